//! The machine that measures.

use std::{fmt, fs, thread};

use serde::Serialize;

use super::Result;

/// The load above which other work of the machine dominates the figures.
const QUIET_LOAD: f64 = 0.5;

/// The machine, and its load before the measurements.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the CPUs.
    pub processor: String,
    /// Number of CPUs.
    pub cores: usize,
    /// Load average of the last minute.
    pub load_before: f64,
}

impl Machine {
    /// Reads what `/proc` shows.
    ///
    /// # Errors
    /// Without `/proc`.
    pub fn look() -> Result<Self> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let load = fs::read_to_string("/proc/loadavg")?;
        let (load, _) = load.split_once(' ').ok_or("an empty /proc/loadavg")?;
        Ok(Self {
            kernel: kernel.trim_end().to_owned(),
            processor: processor(&fs::read_to_string("/proc/cpuinfo")?),
            cores: thread::available_parallelism()?.get(),
            load_before: load.parse()?,
        })
    }

    /// Returns a warning if other programs work.
    pub fn warning(&self) -> Option<String> {
        let load = self.load_before;
        (load > QUIET_LOAD).then(|| {
            format!("the load average is {load}: figures of a busy machine are worth little")
        })
    }
}

fn processor(cpuinfo: &str) -> String {
    let mut lines = cpuinfo.lines();
    let model = lines.find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|line| line.trim_start_matches(['\t', ' ', ':']));
    model.unwrap_or("unknown").to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            processor,
            cores,
            load_before,
        } = self;
        write!(
            f,
            "{cores} CPUs ({processor}), Linux {kernel}, load average {load_before}"
        )
    }
}
