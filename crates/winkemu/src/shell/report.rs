//! What a link did, for people and programs.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::lateness::{LatenessReport, Verdict};
use crate::link::{Occupancy, PathStats, QueueHistory};

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The instant at which its time is 0; not part of files.
    #[serde(skip)]
    pub began: Option<Instant>,
    /// How long it ran.
    pub seconds: f64,
    /// Processor time the link took.
    pub cpu_seconds: f64,
    /// The seed of its draws.
    pub seed: u64,
    /// What it was made of.
    pub link: serde_json::Value,
    /// What it got of real time, where it was asked for.
    pub realtime: Option<Realtime>,
    /// From A to B.
    pub ab: DirectionReport,
    /// From B to A.
    pub ba: DirectionReport,
    /// How late packets came out.
    pub lateness: LatenessReport,
    /// Whether the run counts.
    pub accuracy: Verdict,
    /// Why the link ended before it was told to.
    pub failure: Option<String>,
}

/// What the system permitted of [`super::Priority::Realtime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Realtime {
    /// SCHED_FIFO: needs CAP_SYS_NICE or `ulimit -r`.
    pub scheduled: bool,
    /// Memory that is never paged: needs CAP_IPC_LOCK or `ulimit -l`.
    pub locked: bool,
    /// Processors that wait awake: needs to be root with `/dev/cpu_dma_latency`.
    pub awake: bool,
}

impl Realtime {
    /// What was not permitted, in words.
    pub fn missing(self) -> Vec<&'static str> {
        let parts = [
            (self.scheduled, "SCHED_FIFO"),
            (self.locked, "locked memory"),
            (self.awake, "processors that stay awake"),
        ];
        let missing = parts.into_iter().filter(|(got, _)| !got);
        missing.map(|(_, name)| name).collect()
    }
}

/// One direction of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// What the link did to the packets.
    #[serde(flatten)]
    pub packets: PathStats,
    /// How full its queue was, in bytes; without the packet being sent.
    pub queue_bytes: Occupancy,
    /// The same over time, since the link began.
    #[serde(skip)]
    pub history: QueueHistory,
    /// Packets lost ahead of the link, because the emulator did not read them in time.
    pub tun_drops: u64,
    /// Packets that came out but that the kernel did not take (corrupted beyond being IP, or the
    /// interface was down); these are not among the delivered ones.
    pub refused: u64,
    /// Multicast housekeeping of the kernel's IPv6 that was not forwarded.
    pub ignored: u64,
}

impl LinkReport {
    /// A few lines for a terminal.
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
            "{}\n{}\nlateness: median {:.0} us, 99 % {:.0} us, most {:.0} us, of {} packets in {:.1} s",
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
