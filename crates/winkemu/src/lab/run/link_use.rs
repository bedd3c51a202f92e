//! State of the links on a transfer's path while it ran.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    lab::{
        program::Transfer,
        scenario::{Edge, Network, Program, Scenario, Workload},
        topology::Family,
    },
    link::{
        Availability, DelayModel, Direction, Gilbert, LinkConfig, LossConfig, Nanos, Occupancy,
        PathConfig, QueueHistory, RateModel, nanos,
    },
    shell::LinkReport,
};

/// Bytes of a full packet that are not payload: IP, TCP and its time stamps.
const HEADERS_IPV4: u32 = 20 + 20 + 12;
const HEADERS_IPV6: u32 = 40 + 20 + 12;

/// Time window of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lab) struct Window {
    pub began: Instant,
    /// Start of the measurement, after the warm-up.
    pub measured: Instant,
    pub ended: Instant,
    /// Interval of its time series.
    pub interval: Duration,
}

/// State of the links on the path of a workload's data, in the direction of the data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkUse {
    /// Goodput that the links can carry during the measurement: the lowest rate after headers, loss
    /// on the path and outages. A variable rate counts with its mean. `None` without a rate.
    pub ceiling_bps: Option<f64>,
    /// `ceiling_bps` with headers.
    pub available_bps: Option<f64>,
    /// Sum of the links' one-way delays, if these are fixed.
    pub one_way_s: Option<f64>,
    /// Last outage that ended while the workload ran; the latest over all links.
    pub outage: Option<OutageUse>,
    /// Queues of the links, in the order of the path.
    pub queues: Vec<QueueUse>,
}

/// Outage during a workload.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OutageUse {
    /// Start, in seconds since the workload's start; 0 if before that.
    pub began_s: f64,
    /// Link-up, in seconds since the workload's start.
    pub ended_s: f64,
}

/// Queue while a workload ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueUse {
    /// Name of the link.
    pub link: String,
    /// Direction of the queue: along the path, or against it.
    pub direction: Direction,
    /// Bandwidth-delay product of the link; 0 without rate or delay.
    pub bdp_bytes: u64,
    /// Occupancy in bytes during the measurement.
    pub bytes: Occupancy,
    /// Occupancy in bandwidth-delay products during the measurement.
    pub bdp: Option<Occupancy>,
    /// Occupancy in bytes from start to end, warm-up included.
    pub whole_bytes: Occupancy,
    /// Packets offered to the link over its whole life.
    pub offered: u64,
    /// Bytes offered to the link over its whole life.
    pub offered_bytes: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    /// Occupancy over time.
    pub series: Vec<QueuePoint>,
}

/// Interval of a queue's time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QueuePoint {
    /// End of the interval, in seconds since the workload's start.
    pub t_s: f64,
    /// Mean bytes queued.
    pub mean_bytes: f64,
    /// Maximum bytes queued.
    pub max_bytes: f64,
}

impl LinkUse {
    /// Mean of the fullest queue, in bandwidth-delay products.
    pub fn standing_queue(&self) -> Option<f64> {
        let means = self.queues.iter().filter_map(|queue| queue.bdp);
        means.map(|bdp| bdp.mean).max_by(f64::total_cmp)
    }

    /// Bytes offered to the first link in the direction of the data, over its whole life.
    pub fn offered_bytes(&self) -> Option<u64> {
        self.queues.first().map(|queue| queue.offered_bytes)
    }

    /// Share of packets dropped, at the queue with the most drops.
    pub fn queue_drops(&self) -> Option<f64> {
        let offered = self.queues.iter().filter(|queue| queue.offered > 0);
        let shares = offered.map(|queue| queue.dropped as f64 / queue.offered as f64);
        shares.max_by(f64::total_cmp)
    }

    /// Computes the link use of a workload; `None` for commands, whose traffic may go anywhere.
    pub(super) fn measure(
        workload: &Workload,
        window: &Window,
        Scenario { network, mtu, .. }: &Scenario,
        configs: &[(String, LinkConfig)],
        reports: &BTreeMap<String, LinkReport>,
    ) -> Option<Self> {
        let (from, to, family) = ends(workload)?;
        let crossed = crossed(network, from, to);
        let delay = one_way(network, configs, from, to);
        let directions: Option<Vec<_>> = crossed
            .iter()
            .map(|link| link.way(window, configs, reports, delay.unwrap_or_default()))
            .collect();
        let directions = directions?;
        let ceiling = ceiling(&directions, family, *mtu);
        let outages = directions.iter().filter_map(|way| way.outage);
        let queue = |link: &Crossed<'_>| {
            let config = config(configs, link.name)?;
            let report = reports.get(link.name)?;
            queue_use(config, link.name, link.direction, report, window)
        };
        Some(Self {
            ceiling_bps: ceiling,
            available_bps: ceiling
                .map(|bps| bps * f64::from(*mtu) / f64::from(mtu - headers(family))),
            one_way_s: delay.map(|delay| delay.as_secs_f64()),
            outage: outages.max_by(|a, b| a.ended_s.total_cmp(&b.ended_s)),
            queues: crossed.iter().filter_map(queue).collect(),
        })
    }
}

/// One-way delay of the links between two nodes, if it is fixed.
pub(super) fn one_way(
    network: &Network,
    configs: &[(String, LinkConfig)],
    from: &str,
    to: &str,
) -> Option<Duration> {
    let delay = |link: &Crossed<'_>| {
        let config = config(configs, link.name)?;
        match &config.path(link.direction).delay.base {
            DelayModel::Fixed(delay) => Some(*delay),
            _ => None,
        }
    };
    crossed(network, from, to).iter().map(delay).sum()
}

fn config<'a>(configs: &'a [(String, LinkConfig)], name: &str) -> Option<&'a LinkConfig> {
    let found = configs.iter().find(|(link, _)| link == name);
    found.map(|(_, config)| config)
}

/// Source and destination of a workload's data.
fn ends(workload: &Workload) -> Option<(&str, &str, Family)> {
    let (transfer, family) = match &workload.program {
        Program::Bulk(bulk) => (bulk.transfer, bulk.family),
        Program::Curl(curl) => (curl.transfer, curl.family),
        Program::Iperf3(iperf3) => (iperf3.transfer, iperf3.family),
        Program::Messages(messages) => (messages.transfer, messages.family),
        Program::Page(page) => (Transfer::Download, page.family),
        Program::Datagrams(flow) => (flow.transfer, flow.family),
        Program::CountingTcp(flow) => (flow.transfer, Family::Ipv4),
        Program::Shell(_) => return None,
    };
    Some(match transfer {
        Transfer::Upload => (&workload.client, &workload.server, family),
        Transfer::Download => (&workload.server, &workload.client, family),
    })
}

/// Link on the path between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Crossed<'a> {
    name: &'a str,
    /// Number of its edge, which its draws depend on.
    number: usize,
    direction: Direction,
}

/// Links between two nodes, in the order of the path.
fn crossed<'a>(network: &'a Network, from: &'a str, to: &str) -> Vec<Crossed<'a>> {
    let link = |(edge, direction): (&'a Edge, Direction)| {
        Some(Crossed {
            name: edge.link.as_deref()?,
            number: network.edges().iter().position(|one| one == edge)?,
            direction,
        })
    };
    network.way(from, to).into_iter().filter_map(link).collect()
}

impl Crossed<'_> {
    /// State of the link while a workload ran, from its start to `end` after it.
    fn way<'a>(
        &self,
        window: &Window,
        configs: &'a [(String, LinkConfig)],
        reports: &BTreeMap<String, LinkReport>,
        delay: Duration,
    ) -> Option<DirectionUse<'a>> {
        let path = config(configs, self.name)?.path(self.direction);
        let always = DirectionUse {
            path,
            rate: path.rate.mean().map(|rate| rate.bits_per_second() as f64),
            up: 1.0,
            outage: None,
        };
        let report = reports.get(self.name);
        let Some((seed, began)) = report.and_then(|report| Some((report.seed, report.began?)))
        else {
            return Some(always);
        };
        let at = |instant: Instant| nanos(instant.saturating_duration_since(began));
        let left = |instant: Instant| at(instant).saturating_sub(nanos(delay));
        let mut available = Availability::new(path, seed, self.number as u64);
        let (from, to) = (left(window.measured), left(window.ended));
        let seconds = |ns: Nanos| Duration::from_nanos(ns).as_secs_f64();
        let outage = available.last_outage(at(window.began), at(window.ended));
        let since = |ns: Nanos| seconds(ns - at(window.began));
        Some(DirectionUse {
            rate: rate_within(&path.rate, from, to),
            up: available.up_within(from, to) as f64 / (to - from).max(1) as f64,
            outage: outage.map(|(began, ended)| OutageUse {
                began_s: since(began),
                ended_s: since(ended),
            }),
            ..always
        })
    }
}

/// Mean rate between two instants, in bit/s; `None` without a limit.
fn rate_within(rate: &RateModel, from: Nanos, to: Nanos) -> Option<f64> {
    let RateModel::Trace(trace) = rate else {
        return rate.mean().map(|rate| rate.bits_per_second() as f64);
    };
    let (mut now, mut bits) = (from, 0.0);
    while now < to {
        let (rate, until) = trace.at(now);
        let until = until.min(to);
        bits += rate as f64 * (until - now) as f64;
        now = until;
    }
    Some(bits / (to - from).max(1) as f64)
}

/// Direction of a link, with the share of time for which it was up.
#[derive(Debug)]
struct DirectionUse<'a> {
    path: &'a PathConfig,
    /// Mean rate during the measurement, in bit/s; `None` without a limit.
    rate: Option<f64>,
    up: f64,
    outage: Option<OutageUse>,
}

fn headers(family: Family) -> u32 {
    match family {
        Family::Ipv4 => HEADERS_IPV4,
        Family::Ipv6 => HEADERS_IPV6,
    }
}

/// Goodput of links in a row that are never idle.
fn ceiling(directions: &[DirectionUse<'_>], family: Family, mtu: u32) -> Option<f64> {
    let mut carried = f64::INFINITY;
    for DirectionUse { path, rate, up, .. } in directions {
        let wire = f64::from(mtu) + f64::from(path.overhead_bytes);
        let rate = rate.unwrap_or(f64::INFINITY);
        carried = carried.min(rate * f64::from(mtu - headers(family)) / wire);
        carried *= up * survival(&path.loss, wire) * (1.0 - path.corrupt.get());
    }
    carried.is_finite().then_some(carried)
}

/// Share of full packets that survive all loss models.
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
        offered_bytes: side.packets.offered_bytes,
        dropped: side.packets.dropped.queue_full + side.packets.dropped.codel,
        series: series(
            &side.history,
            at(window.began),
            at(window.ended),
            nanos(window.interval),
        ),
    })
}

/// One point per interval, or per multiple of it if the history is coarser.
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
    use crate::{
        link::{LinkOptions, trace::Trace},
        shell::MTU,
    };

    fn way(options: &str) -> PathConfig {
        let options: LinkOptions = options.parse().unwrap();
        options.resolve_without_files().unwrap().ab
    }

    fn carried(directions: &[&str], family: Family) -> Option<f64> {
        let paths: Vec<_> = directions.iter().map(|options| way(options)).collect();
        let up = |path| DirectionUse {
            path,
            rate: rate_within(&path.rate, 0, 1),
            up: 1.0,
            outage: None,
        };
        ceiling(&paths.iter().map(up).collect::<Vec<_>>(), family, MTU)
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
        // The bad state holds for one packet in four, and loses half of them.
        assert_carried(&["rate=10mbit,gilbert=p=0.1,q=0.3,bad=0.5"], full * 0.875);
        assert_carried(&["rate=10mbit,loss=1%,corrupt=1%"], full * 0.99 * 0.99);
        let ipv6 = carried(&["rate=10mbit"], Family::Ipv6);
        assert_eq!(ipv6, Some(10e6 * 1428.0 / 1500.0));
    }

    #[test]
    fn of_a_rate_that_varies_the_mean_over_the_measured_time_counts() {
        let steps = [(0, 10_000_000), (40, 3_000_000), (80, 10_000_000)];
        let forever = RateModel::Trace(Trace::new(&steps, None).unwrap());
        assert_eq!(rate_within(&forever, 20, 60), Some(6.5e6));
        assert_eq!(rate_within(&forever, 100, 900), Some(1e7));
        let again = RateModel::Trace(Trace::new(&steps, Some(120)).unwrap());
        assert_eq!(rate_within(&again, 120, 240), rate_within(&again, 0, 120));
        assert_eq!(rate_within(&RateModel::Unlimited, 0, 10), None);
    }

    #[test]
    fn of_several_links_the_slowest_counts_and_what_is_lost_behind_it() {
        let slow = 2e6 * 1448.0 / 1500.0;
        // Half of 10 Mbit/s is still enough for the second link.
        assert_carried(&["rate=10mbit,loss=50%", "rate=2mbit"], slow);
        assert_carried(&["rate=2mbit,loss=10%", "loss=50%"], slow * 0.45);
    }

    #[test]
    fn without_a_rate_there_is_no_ceiling() {
        assert_eq!(carried(&["delay=1s"], Family::Ipv4), None);
        assert_eq!(carried(&[], Family::Ipv4), None);
    }

    #[test]
    fn links_are_met_in_the_order_of_the_data() {
        let network = network(
            r#"["a", "b", "one", "c", "d", "two", "e"]"#,
            r#"["x", "three", "d"]"#,
        );
        use Direction::{AtoB, BtoA};
        let met = |from, to| -> Vec<_> {
            let crossed = crossed(&network, from, to);
            crossed
                .iter()
                .map(|link| (link.name.to_owned(), link.number, link.direction))
                .collect()
        };
        let one = |way| ("one".to_owned(), 1, way);
        let two = |way| ("two".to_owned(), 3, way);
        assert_eq!(met("a", "e"), [one(AtoB), two(AtoB)]);
        assert_eq!(met("e", "a"), [two(BtoA), one(BtoA)]);
        assert_eq!(met("c", "e"), [two(AtoB)]);
        assert_eq!(met("a", "b"), []);
        let three = ("three".to_owned(), 4, AtoB);
        assert_eq!(met("x", "b"), [three, one(BtoA)]);
    }

    fn network(path: &str, branch: &str) -> Network {
        let links =
            ["one", "two", "three"].map(|name| format!("[links.{name}]\ndelay = \"1ms\"\n"));
        let workload = "[[workload]]\nname = \"w\"\nprogram = \"bulk\"\nduration = \"4s\"\n";
        let text = format!(
            "path = {path}\nbranches = [{branch}]\n{}{workload}",
            links.concat()
        );
        let scenario = Scenario::parse(&text, std::path::Path::new("test.toml")).unwrap();
        scenario.network
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
