//! What the links on a transfer's way were like while it ran.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    lab::{
        program::Transfer,
        scenario::{Hop, Program, Workload},
        topology::Family,
    },
    link::{
        Direction, Gilbert, LinkConfig, LossConfig, Nanos, Occupancy, PathConfig, QueueHistory,
        RateModel, nanos,
    },
    shell::{LinkReport, MTU},
};

/// Bytes of a full packet that are no payload: IP, TCP and its time stamps.
const HEADERS_IPV4: u32 = 20 + 20 + 12;
const HEADERS_IPV6: u32 = 40 + 20 + 12;

/// When a workload ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lab) struct Window {
    pub began: Instant,
    /// From here on it counts.
    pub measured: Instant,
    pub ended: Instant,
    /// Of its time series.
    pub interval: Duration,
}

/// What the links on the way of a workload's data were like, in the direction of the data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkUse {
    /// The goodput that they could carry: the least rate, less headers and what is lost on the
    /// way. `None` where no rate is stated, or it or the outages vary.
    pub ceiling_bps: Option<f64>,
    /// Their queues, in the order in which the data meets them.
    pub queues: Vec<QueueUse>,
}

/// A queue while a workload ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueUse {
    /// The link.
    pub link: String,
    /// Which of its queues: along the path, or against it.
    pub direction: Direction,
    /// The link's bandwidth-delay product; 0 without rate or delay.
    pub bdp_bytes: u64,
    /// While it was measured, in bytes.
    pub bytes: Occupancy,
    /// The same in bandwidth-delay products.
    pub bdp: Option<Occupancy>,
    /// From the beginning to the end, warm-up included, in bytes.
    pub whole_bytes: Occupancy,
    /// Packets offered to the link, as long as there was one.
    pub offered: u64,
    /// Of these, the ones that its queue dropped.
    pub dropped: u64,
    /// Over time.
    pub series: Vec<QueuePoint>,
}

/// An interval of a queue's time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QueuePoint {
    /// Its end, in seconds since the workload's start.
    pub t_s: f64,
    /// Bytes queued, on average.
    pub mean_bytes: f64,
    /// The most bytes queued.
    pub max_bytes: f64,
}

impl LinkUse {
    /// The mean of the fullest queue, in bandwidth-delay products.
    pub fn standing_queue(&self) -> Option<f64> {
        let means = self.queues.iter().filter_map(|queue| queue.bdp);
        means.map(|bdp| bdp.mean).max_by(f64::total_cmp)
    }

    /// Share of packets that were dropped by the queue that dropped most.
    pub fn queue_drops(&self) -> Option<f64> {
        let offered = self.queues.iter().filter(|queue| queue.offered > 0);
        let shares = offered.map(|queue| queue.dropped as f64 / queue.offered as f64);
        shares.max_by(f64::total_cmp)
    }

    /// What links were like for a workload; `None` for commands, whose data goes anywhere.
    pub(super) fn of(
        workload: &Workload,
        window: &Window,
        path: &[Hop],
        configs: &[(String, LinkConfig)],
        reports: &BTreeMap<String, LinkReport>,
    ) -> Option<Self> {
        let (from, to, family) = ends(workload)?;
        let crossed = crossed(path, from, to);
        let config = |name: &str| configs.iter().find(|(link, _)| link == name);
        let ways: Option<Vec<_>> = crossed
            .iter()
            .map(|(name, direction)| Some(config(name)?.1.path(*direction)))
            .collect();
        let queue = |(name, direction): &(&str, Direction)| {
            queue_use(
                &config(name)?.1,
                name,
                *direction,
                reports.get(*name)?,
                window,
            )
        };
        Some(Self {
            ceiling_bps: ceiling(&ways?, family),
            queues: crossed.iter().filter_map(queue).collect(),
        })
    }
}

/// Where a workload's data comes from and goes to.
fn ends(workload: &Workload) -> Option<(&str, &str, Family)> {
    let (transfer, family) = match &workload.program {
        Program::Bulk(bulk) => (bulk.transfer, bulk.family),
        Program::Curl(curl) => (curl.transfer, curl.family),
        Program::Iperf3(iperf3) => (iperf3.transfer, iperf3.family),
        Program::Shell(_) => return None,
    };
    Some(match transfer {
        Transfer::Upload => (&workload.client, &workload.server, family),
        Transfer::Download => (&workload.server, &workload.client, family),
    })
}

/// The links between two nodes, in the order of the way from one to the other.
fn crossed<'a>(path: &'a [Hop], from: &str, to: &str) -> Vec<(&'a str, Direction)> {
    let place = |node: &str| path.iter().position(|hop| hop.node == node);
    let (Some(from), Some(to)) = (place(from), place(to)) else {
        return Vec::new();
    };
    let hops = &path[from.min(to) + 1..=from.max(to)];
    let links = hops.iter().filter_map(|hop| hop.link.as_deref());
    if from < to {
        links.map(|link| (link, Direction::AtoB)).collect()
    } else {
        links.rev().map(|link| (link, Direction::BtoA)).collect()
    }
}

/// The goodput that links in a row carry when they are never idle.
fn ceiling(ways: &[&PathConfig], family: Family) -> Option<f64> {
    let headers = match family {
        Family::Ipv4 => HEADERS_IPV4,
        Family::Ipv6 => HEADERS_IPV6,
    };
    let mut carried = f64::INFINITY;
    for way in ways {
        let wire = f64::from(MTU) + f64::from(way.overhead_bytes);
        let rate = match &way.rate {
            RateModel::Unlimited => f64::INFINITY,
            RateModel::Fixed(rate) => rate.bits_per_second() as f64,
            RateModel::Trace(_) => return None,
        };
        if !way.outages.is_empty() {
            return None;
        }
        carried = carried.min(rate * f64::from(MTU - headers) / wire);
        carried *= survival(&way.loss, wire) * (1.0 - way.corrupt.get());
    }
    carried.is_finite().then_some(carried)
}

/// The share of full packets that no loss model takes.
fn survival(loss: &LossConfig, wire: f64) -> f64 {
    let burst = |gilbert: &Gilbert| {
        let bad = gilbert.share_bad();
        bad * gilbert.loss_bad.get() + (1.0 - bad) * gilbert.loss_good.get()
    };
    let trace = |trace: &[bool]| {
        let lost = trace.iter().filter(|lost| **lost).count();
        lost as f64 / trace.len().max(1) as f64
    };
    (1.0 - loss.packet.get())
        * (1.0 - loss.bit_errors.get()).powf(8.0 * wire)
        * (1.0 - loss.burst.as_ref().map_or(0.0, burst))
        * (1.0 - loss.trace.as_deref().map_or(0.0, trace))
}

fn queue_use(
    config: &LinkConfig,
    name: &str,
    direction: Direction,
    report: &LinkReport,
    window: &Window,
) -> Option<QueueUse> {
    let began = report.began?;
    let at = |instant: Instant| nanos(instant.saturating_duration_since(began));
    let side = match direction {
        Direction::AtoB => &report.ab,
        Direction::BtoA => &report.ba,
    };
    let bytes = side.history.over(at(window.measured), at(window.ended))?;
    let bdp_bytes = config.bandwidth_delay_product(direction);
    Some(QueueUse {
        link: name.to_owned(),
        direction,
        bdp_bytes,
        bytes,
        bdp: (bdp_bytes > 0).then(|| bytes.times(1.0 / bdp_bytes as f64)),
        whole_bytes: side.history.over(at(window.began), at(window.ended))?,
        offered: side.packets.offered,
        dropped: side.packets.dropped.queue_full + side.packets.dropped.codel,
        series: series(
            &side.history,
            at(window.began),
            at(window.ended),
            nanos(window.interval),
        ),
    })
}

/// A point for each interval, or for each of them that is as long as the history is fine.
fn series(history: &QueueHistory, from: Nanos, to: Nanos, interval: Nanos) -> Vec<QueuePoint> {
    let seconds = |ns: Nanos| Duration::from_nanos(ns).as_secs_f64();
    let starts = (from..to).step_by(usize::try_from(interval.max(1)).unwrap_or(usize::MAX));
    let point = |start: Nanos| {
        let end = (start + interval).min(to);
        history.over(start, end).map(|over| QueuePoint {
            t_s: seconds(end - from),
            mean_bytes: over.mean,
            max_bytes: over.max,
        })
    };
    starts.filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkOptions;

    fn way(options: &str) -> PathConfig {
        let options: LinkOptions = options.parse().unwrap();
        options.resolve_without_files().unwrap().ab
    }

    fn carried(ways: &[&str], family: Family) -> Option<f64> {
        let ways: Vec<_> = ways.iter().map(|options| way(options)).collect();
        ceiling(&ways.iter().collect::<Vec<_>>(), family)
    }

    #[track_caller]
    fn assert_carried(options: &[&str], expected: f64) {
        let found = carried(options, Family::Ipv4).unwrap();
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{options:?}: {found}"
        );
    }

    #[test]
    fn the_ceiling_is_what_headers_and_loss_leave_of_the_rate() {
        let full = 10e6 * 1448.0 / 1500.0;
        assert_carried(&["rate=10mbit"], full);
        assert_carried(&["rate=10mbit,loss=8%"], full * 0.92);
        assert_carried(&["rate=10mbit,overhead=20"], 10e6 * 1448.0 / 1520.0);
        assert_carried(
            &["rate=10mbit,ber=1e-6"],
            full * (1.0 - 1e-6_f64).powi(12_000),
        );
        // Bad one packet in four, when half are lost.
        assert_carried(&["rate=10mbit,gilbert=p=0.1,q=0.3,bad=0.5"], full * 0.875);
        assert_carried(&["rate=10mbit,loss=1%,corrupt=1%"], full * 0.99 * 0.99);
        let ipv6 = carried(&["rate=10mbit"], Family::Ipv6);
        assert_eq!(ipv6, Some(10e6 * 1428.0 / 1500.0));
    }

    #[test]
    fn of_several_links_the_slowest_counts_and_what_is_lost_behind_it() {
        let slow = 2e6 * 1448.0 / 1500.0;
        // Half of 10 Mbit/s is still enough for the second.
        assert_carried(&["rate=10mbit,loss=50%", "rate=2mbit"], slow);
        assert_carried(&["rate=2mbit,loss=10%", "loss=50%"], slow * 0.45);
    }

    #[test]
    fn where_the_rate_or_the_link_comes_and_goes_there_is_no_ceiling() {
        assert_eq!(carried(&["delay=1s"], Family::Ipv4), None);
        assert_eq!(carried(&["rate=1mbit,wink=p=0.1,i=1s"], Family::Ipv4), None);
        assert_eq!(carried(&[], Family::Ipv4), None);
    }

    #[test]
    fn links_are_met_in_the_order_of_the_data() {
        let hop = |node: &str, link: Option<&str>| Hop {
            node: node.to_owned(),
            link: link.map(str::to_owned),
        };
        let path = [
            hop("a", None),
            hop("b", Some("one")),
            hop("c", None),
            hop("d", Some("two")),
        ];
        use Direction::{AtoB, BtoA};
        assert_eq!(crossed(&path, "a", "d"), [("one", AtoB), ("two", AtoB)]);
        assert_eq!(crossed(&path, "d", "a"), [("two", BtoA), ("one", BtoA)]);
        assert_eq!(crossed(&path, "c", "d"), [("two", AtoB)]);
        assert_eq!(crossed(&path, "b", "c"), []);
    }

    #[test]
    fn a_series_ends_with_the_workload() {
        let mut history = QueueHistory::default();
        let ms = 1_000_000;
        history.note(10 * ms, 500);
        history.note(30 * ms, 0);
        history.note(50 * ms, 0);
        let series = series(&history, 5 * ms, 35 * ms, 20 * ms);
        let points: Vec<_> = series
            .iter()
            .map(|p| (p.t_s, p.mean_bytes, p.max_bytes))
            .collect();
        assert_eq!(points, [(0.02, 375.0, 500.0), (0.03, 250.0, 500.0)]);
    }
}
