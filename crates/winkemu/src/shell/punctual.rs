//! Scheduling, memory and timer settings that make a thread punctual.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
};

use nix::sys::{
    mman::{MlockAllFlags, mlockall},
    prctl,
};

use super::{Priority, Realtime, sys};

/// SCHED_FIFO priority, below threaded interrupts (50): above them it would delay the network
/// itself.
const REALTIME_PRIORITY: i32 = 40;

/// Settings of a punctual thread, reverted on drop where they affect the system.
#[derive(Debug, Default)]
pub struct Punctual {
    realtime: Option<Realtime>,
    /// Open descriptor that keeps CPUs awake.
    _wakefulness: Option<File>,
}

impl Punctual {
    /// Applies a priority to the calling thread, always with minimum timer slack. CPUs stay awake
    /// until the value is dropped.
    pub fn thread(priority: Priority) -> Self {
        // Cannot fail: the value is 1.
        let _ = prctl::set_timerslack(1);
        match priority {
            Priority::Ordinary => Self::default(),
            Priority::Preferred => {
                // A refusal shows as lateness.
                let _ = sys::set_realtime(REALTIME_PRIORITY);
                Self::default()
            }
            Priority::Realtime => Self::realtime_thread(),
        }
    }

    fn realtime_thread() -> Self {
        let all = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE;
        let wakefulness = keep_cpus_awake().ok();
        let realtime = Realtime {
            scheduled: sys::set_realtime(REALTIME_PRIORITY).is_ok(),
            locked: mlockall(all).is_ok(),
            awake: wakefulness.is_some(),
        };
        Self {
            realtime: Some(realtime),
            _wakefulness: wakefulness,
        }
    }

    /// Permitted parts of real time, if it was requested. Missing parts show as lateness.
    pub fn realtime(&self) -> Option<Realtime> {
        self.realtime
    }
}

/// Asks the kernel for a wake-up latency of zero (Documentation/power/pm_qos_interface.rst): a
/// virtual CPU may take milliseconds to wake up.
fn keep_cpus_awake() -> io::Result<File> {
    const LATENCY_US: i32 = 0;
    let mut file = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")?;
    file.write_all(&LATENCY_US.to_ne_bytes())?;
    Ok(file)
}
