//! What a workload measured.

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
    link_use::{LinkUse, Window},
};
use crate::lab::{
    program::{Bulk, BulkResult, Iperf3, Nginx, ProgramError, Transfer},
    scenario::{Metric, Program, RunSpec, Workload},
    topology::{Node, Topology},
};

/// What a workload measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Measurement {
    /// The workload.
    pub workload: String,
    /// Bit/s at the receiver.
    pub goodput_bps: Option<f64>,
    /// From start to end.
    pub seconds: Option<f64>,
    /// From start to the first byte.
    pub first_byte_s: Option<f64>,
    /// Of the goodput of all bulk transfers of its group, where there are several.
    pub share: Option<f64>,
    /// Bytes that the sending socket sent again.
    pub retransmitted_bytes: Option<u64>,
    /// Of these, the ones in the early part.
    pub retransmitted_early_bytes: Option<u64>,
    /// What the links on the data's way were like meanwhile.
    pub link_use: Option<LinkUse>,
    /// All that the program had to say.
    pub detail: Value,
    /// When it ran; not part of files.
    #[serde(skip)]
    pub(in crate::lab) window: Option<Window>,
}

impl Measurement {
    /// The value of a metric: bit/s, seconds, bytes or a share. `None` where there is none.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let of_links = |value: fn(&LinkUse) -> Option<f64>| self.link_use.as_ref().and_then(value);
        match metric {
            Metric::Goodput => self.goodput_bps,
            Metric::Seconds => self.seconds,
            Metric::FirstByte => self.first_byte_s,
            Metric::Share => self.share,
            Metric::Utilisation => {
                let ceiling = of_links(|links| links.ceiling_bps)?;
                Some(self.goodput_bps? / ceiling)
            }
            Metric::Queue => of_links(LinkUse::standing_queue),
            Metric::QueueDrops => of_links(LinkUse::queue_drops),
            Metric::Retransmitted => self.retransmitted_bytes.map(|bytes| bytes as f64),
            Metric::RetransmittedEarly => self.retransmitted_early_bytes.map(|bytes| bytes as f64),
        }
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

/// What workloads need to run.
pub(super) struct Stage<'a> {
    pub bench: &'a Bench<'a>,
    pub spec: &'a RunSpec,
    pub lab: &'a Topology,
    pub servers: &'a BTreeMap<String, Nginx>,
    pub directory: &'a Path,
}

impl Stage<'_> {
    /// Runs a workload to its end.
    pub fn measure(&self, workload: &Workload) -> Result<Measurement, ProgramError> {
        let began = Instant::now();
        let (lab, client) = (self.lab, self.lab.node(&workload.client));
        let server = lab.node(&workload.server);
        match &workload.program {
            Program::Bulk(bulk) => {
                let result = self.settled(workload, bulk).run(client, server)?;
                Ok(of_bulk(workload, bulk, &result))
            }
            Program::Curl(curl) => {
                let own = self.own_directory(workload)?;
                let nginx = &self.servers[&workload.server];
                let result = curl.run(client, server, nginx, &own)?;
                Ok(Measurement {
                    goodput_bps: Some(result.goodput_bps),
                    seconds: Some(result.seconds),
                    first_byte_s: Some(result.first_byte_s),
                    ..Measurement::new(workload, Window::since(began), &result)
                })
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

    /// The transfer with the pacing of the node that sends, if it has none of its own, and with
    /// the congestion control by its actual name.
    fn settled(&self, workload: &Workload, bulk: &Bulk) -> Bulk {
        let sender = match bulk.transfer {
            Transfer::Upload => &workload.client,
            Transfer::Download => &workload.server,
        };
        let node = self.bench.scenario.node_settings(self.spec, sender);
        Bulk {
            pacing: bulk.pacing.or(node.pacing),
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

fn of_bulk(workload: &Workload, bulk: &Bulk, result: &BulkResult) -> Measurement {
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
        ..Measurement::new(workload, window, result)
    }
}

/// Says of each bulk transfer which part of the sum it got, where there are several.
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
    for transfer in &mut transfers {
        transfer.share = transfer.goodput_bps.map(|goodput| goodput / sum);
    }
}

impl Window {
    /// From then until now, all of which counts.
    fn since(began: Instant) -> Self {
        Self {
            began,
            measured: began,
            ended: Instant::now(),
            interval: Duration::from_secs(1),
        }
    }

    /// The part at its beginning does not count.
    fn without(self, warmup: Duration) -> Self {
        Self {
            measured: self.began + warmup,
            ..self
        }
    }
}

/// The addresses of all nodes for commands: `SERVER_IPV4`, `SERVER_IPV6` and so on.
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
mod tests {
    use super::*;
    use crate::lab::scenario::Scenario;

    const TWO: &str = r#"
path = ["client", "server"]
[[workload]]
name = "a"
program = "bulk"
duration = "4s"
group = "both"
[[workload]]
name = "b"
program = "bulk"
duration = "4s"
group = "both"
[[workload]]
name = "c"
program = "command"
command = ["true"]
group = "both"
"#;

    fn shares(goodputs: &[(&str, Option<f64>)]) -> Vec<Option<f64>> {
        let scenario = Scenario::parse(TWO, Path::new("two.toml")).unwrap();
        let measured = |(name, goodput_bps): &(&str, Option<f64>)| Measurement {
            workload: (*name).to_owned(),
            goodput_bps: *goodput_bps,
            ..Measurement::default()
        };
        let mut measured: Vec<_> = goodputs.iter().map(measured).collect();
        divide(&scenario.groups[0].workloads, &mut measured);
        measured
            .iter()
            .map(|measured| measured.value(Metric::Share))
            .collect()
    }

    #[test]
    fn bulk_transfers_share_and_others_do_not() {
        let some = [("a", Some(3e6)), ("b", Some(1e6)), ("c", None)];
        assert_eq!(shares(&some), [Some(0.75), Some(0.25), None]);
        assert_eq!(shares(&some[..1]), [None], "alone");
        let nothing = [("a", Some(0.0)), ("b", Some(0.0))];
        assert_eq!(shares(&nothing), [None, None], "nothing to share");
    }
}
