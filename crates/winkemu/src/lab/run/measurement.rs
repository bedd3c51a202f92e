//! Measurements of a workload.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    Bench,
    link_use::{LinkUse, OutageUse, Window, one_way},
};
use crate::lab::{
    program::{
        Arrival, Bulk, BulkResult, CountingTcp, CountingTcpResult, Curl, CurlResult, Datagrams,
        DatagramsResult, Delays, Iperf3, Messages, MessagesResult, Nginx, Point, ProgramError,
        Transfer,
    },
    scenario::{Metric, Program, RunSpec, Workload},
    topology::{Node, Topology},
};
use crate::link::LinkConfig;

/// Measurement of a workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Measurement {
    /// Name of the workload.
    pub workload: String,
    /// Goodput at the receiver, in bit/s.
    pub goodput_bps: Option<f64>,
    /// Time from start to end; absent if the transfer is incomplete.
    pub seconds: Option<f64>,
    /// Part that had arrived when the time limit ended the transfer; absent if it is complete.
    pub incomplete: Option<Incomplete>,
    /// Time from start to the first byte.
    pub first_byte_s: Option<f64>,
    /// Share of the total goodput of the bulk transfers of its group, if there are several.
    pub share: Option<f64>,
    /// Jain's index of the goodput of all bulk transfers of its group, if there are several.
    pub fairness: Option<f64>,
    /// Time from the end of the last outage to the next byte at the receiver.
    pub resumed_s: Option<f64>,
    /// Time from the end of the last outage to nine tenths of the goodput before it.
    pub recovered_s: Option<f64>,
    /// Goodput until the last outage, in bit/s.
    pub before_outage_bps: Option<f64>,
    /// Goodput from the end of the last outage on, in bit/s.
    pub after_outage_bps: Option<f64>,
    /// Delays of messages.
    pub messages: Option<MessagesResult>,
    /// Fates of datagrams.
    pub datagrams: Option<DatagramsResult>,
    /// Bytes offered to the first link beyond the datagrams' own packets, as a share of these;
    /// absent with other traffic.
    pub overhead: Option<f64>,
    /// Bytes that the sending socket retransmitted.
    pub retransmitted_bytes: Option<u64>,
    /// Bytes that it retransmitted in the early part.
    pub retransmitted_early_bytes: Option<u64>,
    /// State of the links on the data's path.
    pub link_use: Option<LinkUse>,
    /// Complete result of the program.
    pub detail: Value,
    /// Time window of the workload; not part of files.
    #[serde(skip)]
    pub(in crate::lab) window: Option<Window>,
    /// Goodput over time, which is also in `detail`.
    #[serde(skip)]
    pub(in crate::lab) series: Vec<Point>,
    /// Bytes of a file that have arrived over time, which are also in `detail`.
    #[serde(skip)]
    pub(in crate::lab) arrivals: Vec<Arrival>,
}

/// Transfer that its time limit ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Incomplete {
    /// Time from start to that end.
    pub after_s: f64,
    /// Bytes that had arrived.
    pub arrived_bytes: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Measurement {
    /// Value of a metric: bit/s, seconds, bytes or a share. `None` if it was not measured.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let of_links = |value: fn(&LinkUse) -> Option<f64>| self.link_use.as_ref().and_then(value);
        let of_delays = |value: fn(&Delays) -> f64| self.delays().as_ref().map(value);
        let of_datagrams = |value: fn(&DatagramsResult) -> f64| self.datagrams.as_ref().map(value);
        match metric {
            Metric::Goodput => self.goodput_bps,
            Metric::Seconds => self.seconds,
            Metric::FirstByte => self.first_byte_s,
            Metric::Share => self.share,
            Metric::Utilisation => {
                let ceiling = of_links(|links| links.ceiling_bps)?;
                Some(self.goodput_bps? / ceiling)
            }
            Metric::Efficiency => {
                let available = of_links(|links| links.available_bps)?;
                Some(self.goodput_bps? / available)
            }
            Metric::Fairness => self.fairness,
            Metric::DelayP50 => of_delays(|delays| delays.p50_s),
            Metric::DelayP95 => of_delays(|delays| delays.p95_s),
            Metric::DelayP99 => of_delays(|delays| delays.p99_s),
            Metric::DelayMax => of_delays(|delays| delays.max_s),
            Metric::OnTime => {
                let of_messages = self.messages.as_ref().map(|messages| messages.on_time);
                of_messages.or_else(|| of_datagrams(|flow| flow.on_time))
            }
            Metric::Loss => of_datagrams(|flow| flow.loss),
            Metric::Jitter => self.datagrams.as_ref()?.jitter_s,
            Metric::Duplicates => of_datagrams(|flow| flow.duplicates),
            Metric::Reordered => of_datagrams(|flow| flow.reordered),
            Metric::Corrupt => of_datagrams(|flow| flow.corrupt),
            Metric::Overhead => self.overhead,
            Metric::Resumed => self.resumed_s,
            Metric::Recovered => self.recovered_s,
            Metric::BeforeOutage => self.before_outage_bps,
            Metric::AfterOutage => self.after_outage_bps,
            Metric::Queue => of_links(LinkUse::standing_queue),
            Metric::QueueDrops => of_links(LinkUse::queue_drops),
            Metric::Retransmitted => self.retransmitted_bytes.map(|bytes| bytes as f64),
            Metric::RetransmittedEarly => self.retransmitted_early_bytes.map(|bytes| bytes as f64),
        }
    }

    fn delays(&self) -> Option<Delays> {
        let of_messages = self.messages.as_ref().map(|messages| messages.delays);
        of_messages.or_else(|| self.datagrams.as_ref()?.delays)
    }

    /// Adds the state of the links; `alone` is true for the only workload of a group.
    pub(super) fn look_at_links(&mut self, links: LinkUse, alone: bool) {
        if let (Some(flow), Some(offered), true) = (&self.datagrams, links.offered_bytes(), alone) {
            self.overhead = Some(offered as f64 / flow.packet_bytes.max(1) as f64 - 1.0);
        }
        let interval = self
            .window
            .map_or(0.0, |window| window.interval.as_secs_f64());
        if let Some(outage) = links.outage {
            let round_trip = 2.0 * links.one_way_s.unwrap_or(0.0);
            self.resumed_s = resumed(&self.series, outage);
            self.recovered_s = recovered(&self.series, interval, round_trip, outage);
            self.before_outage_bps = between(&self.series, 0.0, outage.began_s);
            self.after_outage_bps = between(&self.series, outage.ended_s, f64::INFINITY);
        }
        self.link_use = Some(links);
    }

    fn new(workload: &Workload, window: Window, detail: &impl Serialize) -> Self {
        Self {
            workload: workload.name.clone(),
            detail: serde_json::to_value(detail).expect("plain data becomes JSON"),
            window: Some(window),
            ..Self::default()
        }
    }
}

/// Time from the end of an outage to the end of the first interval after it in which data arrived.
fn resumed(series: &[Point], outage: OutageUse) -> Option<f64> {
    let after = series
        .iter()
        .find(|point| point.t_s > outage.ended_s && point.bps > 0.0);
    after.map(|point| point.t_s - outage.ended_s)
}

/// Mean goodput of the intervals that end after `from` and not after `until`, in bit/s; `None`
/// without such intervals.
fn between(series: &[Point], from: f64, until: f64) -> Option<f64> {
    let begin = series.partition_point(|point| point.t_s <= from);
    let end = series.partition_point(|point| point.t_s <= until);
    let points = series.get(begin..end).filter(|points| !points.is_empty())?;
    Some(points.iter().map(|point| point.bps).sum::<f64>() / points.len() as f64)
}

/// Length of the period before an outage over which goodput is averaged.
const BEFORE_S: f64 = 2.0;
/// Minimum time for which nine tenths must last; a longer round trip takes precedence.
const LASTING_S: f64 = 0.05;

/// Time from the end of an outage to the first arrival of nine tenths of the goodput before it.
fn recovered(series: &[Point], interval: f64, round_trip: f64, outage: OutageUse) -> Option<f64> {
    let mean = |points: &[Point]| {
        points.iter().map(|point| point.bps).sum::<f64>() / points.len().max(1) as f64
    };
    let begun = series.partition_point(|point| point.t_s <= outage.began_s);
    let early = series.partition_point(|point| point.t_s <= outage.began_s - BEFORE_S);
    let wanted = 0.9 * mean(&series[early..begun]);
    let ended = series.partition_point(|point| point.t_s - interval < outage.ended_s);
    let lasting = (round_trip.max(LASTING_S) / interval).ceil() as usize;
    let after = series[ended..].windows(lasting.max(1));
    let found = after.clone().find(|points| mean(points) >= wanted)?;
    (wanted > 0.0).then(|| (found[0].t_s - interval - outage.ended_s).max(0.0))
}

/// Environment of the workloads.
pub(super) struct Stage<'a> {
    pub bench: &'a Bench<'a>,
    pub spec: &'a RunSpec,
    pub lab: &'a Topology,
    pub links: &'a [(String, LinkConfig)],
    pub servers: &'a BTreeMap<String, Nginx>,
    pub directory: &'a Path,
}

impl Stage<'_> {
    /// Runs a workload to its end. `slot` is its place in the group.
    pub fn measure(&self, slot: usize, workload: &Workload) -> Result<Measurement, ProgramError> {
        let began = Instant::now();
        let (lab, client) = (self.lab, self.lab.node(&workload.client));
        let server = lab.node(&workload.server);
        match &workload.program {
            Program::Bulk(bulk) => {
                let result = self.settled(workload, bulk).run(client, server)?;
                Ok(new(workload, bulk, &result))
            }
            Program::Curl(curl) => {
                let result = self.curl(slot, workload, curl)?;
                Ok(of_curl(workload, Window::since(began), &result))
            }
            Program::Iperf3(iperf3) => {
                let iperf3 = Iperf3 {
                    congestion: self.actual(iperf3.congestion.as_deref()),
                    ..iperf3.clone()
                };
                let result = iperf3.run(client, server)?;
                let window = Window::since(began).without(iperf3.warmup);
                Ok(Measurement {
                    goodput_bps: Some(result.goodput_bps),
                    ..Measurement::new(workload, window, &result)
                })
            }
            Program::Messages(messages) => self.messages(workload, messages),
            Program::Datagrams(flow) => self.datagrams(workload, flow),
            Program::CountingTcp(flow) => {
                let result = flow.run(client, server)?;
                let window = Window {
                    interval: CountingTcp::INTERVAL,
                    ..Window::since(began)
                };
                Ok(of_counting_tcp(workload, window, &result))
            }
            Program::Page(page) => {
                let result = page.run(client, server, &self.servers[&workload.server])?;
                Ok(Measurement {
                    goodput_bps: Some(result.goodput_bps),
                    seconds: Some(result.seconds),
                    first_byte_s: Some(result.first_byte_s),
                    ..Measurement::new(workload, Window::since(began), &result)
                })
            }
            Program::Shell(shell) => {
                let finished = shell.run(client, &addresses(lab))?;
                let output = serde_json::json!({
                    "stdout": finished.stdout,
                    "stderr": finished.stderr,
                });
                Ok(Measurement {
                    seconds: Some(finished.took.as_secs_f64()),
                    ..Measurement::new(workload, Window::since(began), &output)
                })
            }
        }
    }

    fn curl(
        &self,
        slot: usize,
        workload: &Workload,
        curl: &Curl,
    ) -> Result<CurlResult, ProgramError> {
        let own = self.own_directory(workload)?;
        let nginx = &self.servers[&workload.server];
        let live = self.bench.progress.transfer(curl.bytes);
        curl.run(
            self.lab.node(&workload.client),
            self.lab.node(&workload.server),
            (nginx, slot),
            &own,
            live.bytes(),
        )
    }

    fn messages(
        &self,
        workload: &Workload,
        messages: &Messages,
    ) -> Result<Measurement, ProgramError> {
        let delay = self.one_way(workload, messages.transfer);
        let (client, server) = (
            self.lab.node(&workload.client),
            self.lab.node(&workload.server),
        );
        let result = messages.run(client, server, delay)?;
        let window = Window::new(result.began, messages.warmup, messages.duration);
        let detail = Measurement::new(workload, window, &result);
        Ok(Measurement {
            messages: Some(result),
            ..detail
        })
    }

    fn datagrams(
        &self,
        workload: &Workload,
        flow: &Datagrams,
    ) -> Result<Measurement, ProgramError> {
        let delay = self.one_way(workload, flow.transfer);
        let (client, server) = (
            self.lab.node(&workload.client),
            self.lab.node(&workload.server),
        );
        let result = flow.run(client, server, delay)?;
        let window = Window::new(result.began, flow.warmup, flow.duration);
        let detail = Measurement::new(workload, window, &result);
        Ok(Measurement {
            goodput_bps: Some(result.goodput_bps),
            datagrams: Some(result),
            ..detail
        })
    }

    /// One-way delay of the links from sender to receiver; zero if it is not fixed.
    fn one_way(&self, workload: &Workload, transfer: Transfer) -> Duration {
        let (from, to) = match transfer {
            Transfer::Upload => (&workload.client, &workload.server),
            Transfer::Download => (&workload.server, &workload.client),
        };
        one_way(&self.bench.scenario.network, self.links, from, to).unwrap_or_default()
    }

    /// Applies defaults of the sending node (pacing and transport) to the transfer, and the actual
    /// name of its congestion control.
    fn settled(&self, workload: &Workload, bulk: &Bulk) -> Bulk {
        let sender = match bulk.transfer {
            Transfer::Upload => &workload.client,
            Transfer::Download => &workload.server,
        };
        let node = self.bench.scenario.node_settings(self.spec, sender);
        Bulk {
            pacing: bulk.pacing.or(node.pacing),
            quic: node.quic,
            congestion: self.actual(bulk.congestion.as_deref()),
            ..bulk.clone()
        }
    }

    fn actual(&self, congestion: Option<&str>) -> Option<String> {
        congestion.map(|name| self.bench.controls.actual(name).to_owned())
    }

    fn own_directory(&self, workload: &Workload) -> Result<std::path::PathBuf, ProgramError> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = workload.name.chars().map(plain).collect();
        let own = self.directory.join(format!("curl-{name}"));
        match fs::create_dir_all(&own) {
            Ok(()) => Ok(own),
            Err(source) => Err(ProgramError::File { path: own, source }),
        }
    }
}

fn new(workload: &Workload, bulk: &Bulk, result: &BulkResult) -> Measurement {
    let window = Window {
        began: result.began,
        measured: result.began + bulk.warmup,
        ended: result.began + bulk.duration,
        interval: bulk.interval,
    };
    Measurement {
        goodput_bps: Some(result.goodput_bps),
        first_byte_s: result.first_byte_s,
        retransmitted_bytes: result.retransmitted_bytes,
        retransmitted_early_bytes: result.retransmitted_early_bytes,
        series: result.series.clone(),
        ..Measurement::new(workload, window, result)
    }
}

fn of_curl(workload: &Workload, window: Window, result: &CurlResult) -> Measurement {
    let incomplete = (!result.is_whole()).then_some(Incomplete {
        after_s: result.seconds,
        arrived_bytes: result.arrived_bytes,
        bytes: result.bytes,
    });
    let started = result.first_byte_s > 0.0;
    Measurement {
        goodput_bps: Some(result.goodput_bps),
        seconds: result.is_whole().then_some(result.seconds),
        incomplete,
        first_byte_s: started.then_some(result.first_byte_s),
        arrivals: result.arrivals.clone(),
        ..Measurement::new(workload, window, result)
    }
}

fn of_counting_tcp(workload: &Workload, window: Window, result: &CountingTcpResult) -> Measurement {
    Measurement {
        goodput_bps: Some(result.goodput_bps),
        seconds: Some(result.seconds),
        first_byte_s: Some(result.first_byte_s),
        retransmitted_bytes: Some(result.sender.retransmitted_bytes),
        series: result.series.clone(),
        ..Measurement::new(workload, window, result)
    }
}

/// Computes the share and the fairness of the bulk transfers, if there are several.
pub(super) fn divide(workloads: &[Workload], measurements: &mut [Measurement]) {
    let bulk = |name: &str| {
        let is = |workload: &&Workload| matches!(workload.program, Program::Bulk(_));
        workloads
            .iter()
            .filter(is)
            .any(|workload| workload.name == name)
    };
    let mut transfers: Vec<_> = measurements
        .iter_mut()
        .filter(|measured| bulk(&measured.workload))
        .collect();
    let sum: f64 = transfers.iter().filter_map(|of| of.goodput_bps).sum();
    if transfers.len() < 2 || sum <= 0.0 {
        return;
    }
    let goodput = |of: &&mut Measurement| of.goodput_bps.unwrap_or(0.0);
    let squares: f64 = transfers.iter().map(|of| goodput(of).powi(2)).sum();
    let fairness = sum.powi(2) / (transfers.len() as f64 * squares);
    for transfer in &mut transfers {
        transfer.fairness = Some(fairness);
        transfer.share = transfer.goodput_bps.map(|goodput| goodput / sum);
    }
}

impl Window {
    /// Window from an instant until now, all of which counts.
    fn since(began: Instant) -> Self {
        Self {
            began,
            measured: began,
            ended: Instant::now(),
            interval: Duration::from_secs(1),
        }
    }

    /// Window of a given length after the warm-up.
    fn new(began: Instant, warmup: Duration, duration: Duration) -> Self {
        Self {
            began,
            measured: began + warmup,
            ended: began + duration,
            interval: Duration::from_secs(1),
        }
    }

    /// Window without its initial part.
    fn without(self, warmup: Duration) -> Self {
        Self {
            measured: self.began + warmup,
            ..self
        }
    }
}

/// Addresses of all nodes for commands: `SERVER_IPV4`, `SERVER_IPV6` and so on.
fn addresses(lab: &Topology) -> Vec<(String, String)> {
    let of = |node: &Node| {
        let name = node.name().to_uppercase().replace('-', "_");
        [
            (format!("{name}_IPV4"), node.ipv4().to_string()),
            (format!("{name}_IPV6"), node.ipv6().to_string()),
        ]
    };
    lab.nodes().iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests;
