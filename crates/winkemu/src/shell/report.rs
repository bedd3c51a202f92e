//! Report of a link, for display and for programs.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::lateness::{LatenessReport, Verdict};
use crate::link::{Occupancy, PathStats, QueueHistory};

/// Report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Instant at which the link's time is 0; not part of files.
    #[serde(skip)]
    pub began: Option<Instant>,
    /// Duration of the run.
    pub seconds: f64,
    /// CPU time of the link's thread.
    pub cpu_seconds: f64,
    /// Seed of its draws.
    pub seed: u64,
    /// Configuration of the link.
    pub link: serde_json::Value,
    /// Permitted parts of real time, if it was requested.
    pub realtime: Option<Realtime>,
    /// Direction from A to B.
    pub ab: DirectionReport,
    /// Direction from B to A.
    pub ba: DirectionReport,
    /// Lateness of delivered packets.
    pub lateness: LatenessReport,
    /// Verdict on the run.
    pub accuracy: Verdict,
    /// Reason for an early end of the link.
    pub failure: Option<String>,
}

/// Parts of [`super::Priority::Realtime`] that the system permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Realtime {
    /// SCHED_FIFO: needs CAP_SYS_NICE or `ulimit -r`.
    pub scheduled: bool,
    /// Locked memory: needs CAP_IPC_LOCK or `ulimit -l`.
    pub locked: bool,
    /// CPUs kept awake: needs root and `/dev/cpu_dma_latency`.
    pub awake: bool,
}

impl Realtime {
    /// Names of the parts that were not permitted.
    pub fn missing(self) -> Vec<&'static str> {
        let parts = [
            (self.scheduled, "SCHED_FIFO"),
            (self.locked, "locked memory"),
            (self.awake, "CPUs kept awake"),
        ];
        let missing = parts.into_iter().filter(|(got, _)| !got);
        missing.map(|(_, name)| name).collect()
    }
}

/// Report of one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Counters of the packets.
    #[serde(flatten)]
    pub packets: PathStats,
    /// Occupancy of the queue in bytes, without the packet in transmission.
    pub queue_bytes: Occupancy,
    /// Occupancy of the queue over time, since the link began.
    #[serde(skip)]
    pub history: QueueHistory,
    /// Packets lost ahead of the link, because the emulator did not read them in time.
    pub tun_drops: u64,
    /// Packets that came out but that the kernel refused: invalid IP after corruption, or the
    /// interface was down. They do not count as delivered.
    pub refused: u64,
    /// Packets of the kernel's IPv6 multicast housekeeping that were not forwarded.
    pub ignored: u64,
}

impl LinkReport {
    /// Formats a summary of a few lines for a terminal.
    pub fn summary(&self) -> String {
        let direction = |name: &str, report: &DirectionReport| {
            let packets = &report.packets;
            let drops = serde_json::to_value(packets.dropped).expect("plain numbers");
            let drops = drops.as_object().into_iter().flatten();
            let mut drops: Vec<_> = drops
                .filter(|(_, count)| count.as_u64() != Some(0))
                .map(|(cause, count)| format!("{} {count}", cause.replace('_', " ")))
                .collect();
            if report.refused > 0 {
                drops.push(format!("refused by the interface {}", report.refused));
            }
            let drops = if drops.is_empty() {
                "none".to_owned()
            } else {
                drops.join(", ")
            };
            format!(
                "{name}: {} packets in ({} bytes), {} out ({} bytes), {} still inside; dropped: {drops}",
                packets.offered,
                packets.offered_bytes,
                packets.delivered,
                packets.delivered_bytes,
                packets.held,
            )
        };
        let us = |ns: u64| ns as f64 / 1000.0;
        format!(
            "{}\n{}\nlateness: median {:.0} us, p99 {:.0} us, max {:.0} us, of {} packets in {:.1} s",
            direction("a to b", &self.ab),
            direction("b to a", &self.ba),
            us(self.lateness.p50_ns),
            us(self.lateness.p99_ns),
            us(self.lateness.max_ns),
            self.lateness.packets,
            self.seconds,
        )
    }
}
