//! Options shared by `link` and `run`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::Serialize;
use units::{Ratio, duration::Span};
use winkemu::{
    link::LinkOptions,
    presets::Preset,
    shell::{AccuracyLimit, LinkReport, LinkSpec, MTU, Priority, Realtime, Tun, read_recording},
    write_stdout,
};

use super::exit::Failure;

/// Link and its run.
#[derive(Debug, Args)]
pub(super) struct CommonArgs {
    /// Named link whose figures the other options override: geo, leo, wifi, hf or field
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    #[command(flatten, next_help_heading = "The link")]
    link: LinkOptions,
    #[command(flatten, next_help_heading = "The run")]
    run: RunningArgs,
}

#[derive(Debug, Args)]
struct RunningArgs {
    /// Seed of all random decisions; the same seed gives the same fate to each packet
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// MTU of the link
    #[arg(long, value_name = "BYTES", default_value_t = MTU, value_parser = clap::value_parser!(u32).range(68..=65_535))]
    mtu: u32,
    /// Run in real time (SCHED_FIFO, locked memory and CPUs kept awake, where permitted) and spin
    /// shortly before deadlines
    #[arg(long)]
    rt: bool,
    /// Write each packet's decision to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Replay the decisions of this recording; packets not in it are decided by chance
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Write packet counts, drops by cause and lateness to this JSON file (`-` is stdout)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Lateness beyond which a packet counts as late
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    late_after: Span,
    /// Maximum share of packets that are late; a run with more does not count
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    late_share: Ratio,
    /// Maximum number of packets lost ahead of the emulator; a run with more does not count
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_tun_drops: u64,
}

impl CommonArgs {
    pub(super) fn mtu(&self) -> u32 {
        self.run.mtu
    }

    /// Reports whether the options ask for a report or a recording.
    pub(super) fn is_recorded(&self) -> bool {
        self.run.json.is_some() || self.run.record.is_some()
    }

    /// Options of the user, with those of the preset below them.
    pub(super) fn options(&self) -> LinkOptions {
        let said = self.link.clone();
        match &self.preset {
            Some(preset) => said.over(preset.options()),
            None => said,
        }
    }

    /// Builds the specification of the link between two interfaces.
    pub(super) fn spec(&self, a: Tun, b: Tun) -> Result<LinkSpec, Failure> {
        let config = self
            .options()
            .resolve(&mut |path| fs::read_to_string(path))?;
        let replay = self.run.replay.as_deref().map(read_recording).transpose()?;
        let priority = if self.run.rt {
            Priority::Realtime
        } else {
            Priority::Ordinary
        };
        Ok(LinkSpec {
            priority,
            record: self.run.record.clone(),
            replay: replay.unwrap_or_default(),
            limit: AccuracyLimit {
                late_after: self.run.late_after.0,
                share: self.run.late_share,
                tun_drops: self.run.max_tun_drops,
            },
            ..LinkSpec::new(a, b, config, self.run.seed)
        })
    }

    /// Writes the report and the warnings, and returns whether the run counts.
    pub(super) fn conclude(&self, report: &LinkReport) -> Result<bool, Failure> {
        if let Some(path) = &self.run.json {
            write_json(path, report)?;
        }
        let missing = report.realtime.map(Realtime::missing).unwrap_or_default();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            eprintln!("winkemu: --rt is incomplete, not permitted: {missing}; run as root");
        }
        if let Some(failure) = &report.failure {
            return Err(Failure::Running(failure.clone()));
        }
        if let Some(reason) = &report.accuracy.reason {
            eprintln!(
                "winkemu: run does not count: {reason}; machine too busy: stop other programs, use \
                 --rt, or raise --late-after, --late-share or --max-tun-drops"
            );
        }
        Ok(report.accuracy.counts)
    }
}

/// Writes a report to a file, or to stdout if the path is `-`.
pub(super) fn write_json(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).expect("a report is plain data") + "\n";
    let written = if path.as_os_str() == "-" {
        write_stdout(&text)
    } else {
        fs::write(path, text)
    };
    written.map_err(|error| Failure::Running(format!("cannot write {}: {error}", path.display())))
}

/// Interval at which the commands check that the link still runs.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(200);
