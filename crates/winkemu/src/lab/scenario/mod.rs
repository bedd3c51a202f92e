//! Scenarios: experiments as files. `docs/lab.md` describes every key.

mod check;
mod checks;
mod control;
mod error;
mod links;
mod metric;
mod network;
mod paper;
mod pepd_config;
mod plan;
mod raw;
mod references;
mod workloads;

use std::{fs, path::Path, time::Duration};

use serde::Serialize;
use units::Rate;

pub use control::WantedControl;
pub use error::{Mistake, Mistakes, ScenarioError};
pub use metric::Metric;
pub use network::{Edge, Network};
pub use paper::Source;
pub use pepd_config::{Ground, PepdSpec, Pepds, pepds};
pub use plan::{RunSpec, Setting, short};

use crate::{
    lab::program::{
        Bulk, CountingTcp, Curl, Datagrams, Iperf3, Messages, Page, QuicControl, Shell,
    },
    link::LinkOptions,
};

/// Checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Short name, for files.
    pub name: String,
    /// Title for the heads of tables and plots, in one line.
    pub title: String,
    /// Purpose of the scenario, shown above brief results.
    pub description: String,
    /// Paper for which it stands.
    pub source: Option<Source>,
    /// Text of the file.
    pub text: String,
    /// Nodes and edges.
    pub network: Network,
    /// Links by name, without the settings of the matrix.
    pub links: Vec<(String, LinkOptions)>,
    /// Settings of nodes in all variants.
    pub nodes: Vec<NodeSettings>,
    /// Axes of the matrix, in the order of the file; the first changes slowest.
    pub matrix: Vec<Axis>,
    /// Words for values of the matrix.
    pub labels: Vec<(String, String)>,
    /// Variants to compare.
    pub variants: Vec<Variant>,
    /// Groups of workloads that run at the same time in one topology.
    pub groups: Vec<Group>,
    /// Seeds; each adds one run of everything.
    pub seeds: Vec<u64>,
    /// Number of topologies that run at once.
    pub parallel: usize,
    /// Number of repetitions of a run on a machine that was too busy.
    pub retries: u32,
    /// Lateness limit of links: a run with more than 0.1 % of the packets beyond it does not count.
    pub late: Duration,
    /// True if Ethernet edges keep segmentation offloads.
    pub offloads: bool,
    /// MTU of every edge, in bytes.
    pub mtu: u32,
    /// Metrics of the tables and plots.
    pub metrics: Vec<Metric>,
    /// Variant to which the others are compared.
    pub baseline: Option<String>,
    /// eBPF congestion controls of pepd that are registered during the runs.
    pub controls: Vec<WantedControl>,
    /// Checks of the results.
    pub checks: Vec<Check>,
    /// References shown beside the results.
    pub references: Vec<Reference>,
}

/// Settings of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSettings {
    /// Name of the node.
    pub node: String,
    /// Default congestion control.
    pub congestion: Option<String>,
    /// Maximum payload rate of each of its bulk transfers.
    pub pacing: Option<Rate>,
    /// Congestion control of QUIC, if its bulk transfers use QUIC.
    pub quic: Option<QuicControl>,
    /// Kernel settings.
    pub sysctls: Vec<(String, String)>,
}

/// Axis of the matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Key as in the file, such as `link.loss`.
    pub key: String,
    /// Values of the axis.
    pub values: Vec<Setting>,
}

/// Variant to compare.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Name of the variant.
    pub name: String,
    /// Nodes and configurations of pepd; other nodes in the middle only forward.
    pub pepds: Pepds,
    /// Settings of nodes, which override those of all variants.
    pub nodes: Vec<NodeSettings>,
}

/// Workloads that run at the same time.
#[derive(Debug, Clone)]
pub struct Group {
    /// Name of the group; that of its workload if there is only one.
    pub name: String,
    /// Node of pepd, in variants with one pepd.
    pub pepd_on: String,
    /// Workloads; never empty.
    pub workloads: Vec<Workload>,
}

/// Program and its nodes.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name of the workload.
    pub name: String,
    /// Node that opens connections; for a command, the node it runs on.
    pub client: String,
    /// Node that accepts connections.
    pub server: String,
    /// Start of the workload.
    pub start: Start,
    /// Program.
    pub program: Program,
}

/// Start of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Time after the set-up is complete.
    Ready(Duration),
    /// Time after the start of the links, by which the set-up must be complete.
    LinkTime(Duration),
}

/// Program of a workload.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// Built-in bulk transfer.
    Bulk(Bulk),
    /// curl and nginx.
    Curl(Curl),
    /// iperf3.
    Iperf3(Iperf3),
    /// Messages and their delays.
    Messages(Messages),
    /// Constant flow of UDP or ESP.
    Datagrams(Datagrams),
    /// Transfer from a sender that counts ACKs.
    CountingTcp(CountingTcp),
    /// Web page of many objects.
    Page(Page),
    /// Any command.
    Shell(Shell),
}

/// Published or predicted values to compare with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reference {
    /// Name of the source.
    pub name: String,
    /// Metric.
    pub metric: Metric,
    /// Workload beside which it stands; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Restriction to points with one of these values, by key of the matrix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<(String, Vec<String>)>,
    /// Values, one per value of the matrix's first key: bit/s, seconds, bytes or a share.
    pub values: Vec<Option<f64>>,
}

/// Check that must hold at all or some points of the matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Variant under test.
    pub variant: String,
    /// Variant to compare with, for ratios.
    pub baseline: Option<String>,
    /// Workload; all if absent.
    pub workload: Option<String>,
    /// Metric.
    pub metric: Metric,
    /// Restriction to points with one of these values, by key of the matrix.
    pub at: Vec<(String, Vec<String>)>,
    /// Minimum ratio of the means.
    pub mean_ratio_min: Option<f64>,
    /// Maximum ratio of the means.
    pub mean_ratio_max: Option<f64>,
    /// Minimum mean: bit/s, seconds, bytes or a share.
    pub min: Option<f64>,
    /// Maximum mean.
    pub max: Option<f64>,
}

impl Scenario {
    /// Reports whether a workload has a time of completion.
    pub fn has_times(&self) -> bool {
        use Program::{CountingTcp, Curl, Page, Shell};
        let mut workloads = self.groups.iter().flat_map(|group| &group.workloads);
        workloads.any(|of| matches!(of.program, Curl(_) | Page(_) | CountingTcp(_) | Shell(_)))
    }

    /// Names of the references of a metric, each once.
    pub fn reference_names(&self, metric: Metric) -> Vec<&str> {
        let mut names = Vec::new();
        for reference in self.references.iter().filter(|one| one.metric == metric) {
            if !names.contains(&&*reference.name) {
                names.push(&reference.name);
            }
        }
        names
    }

    /// Value of the references of a name beside a workload, at a point of the matrix.
    pub fn reference(
        &self,
        metric: Metric,
        name: &str,
        workload: &str,
        point: &[usize],
    ) -> Option<f64> {
        let place = point.first().copied().unwrap_or(0);
        let of = |one: &&Reference| one.metric == metric && one.name == name;
        let beside = |one: &&Reference| one.workload.as_deref().is_none_or(|of| of == workload);
        let mut references = self.references.iter().filter(of).filter(beside);
        references.find_map(|one| {
            let here = self.is_at(&one.at, point);
            here.then(|| one.values.get(place).copied().flatten())?
        })
    }

    /// Reports whether a point has one of the given values for each of the given keys.
    pub fn is_at(&self, at: &[(String, Vec<String>)], point: &[usize]) -> bool {
        at.iter().all(|(wanted, values)| {
            self.settings(point)
                .any(|(key, value)| key == wanted && values.iter().any(|one| one == value.value()))
        })
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ScenarioError`]: every mistake with file, line, key and accepted form.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let read = fs::read_to_string(path);
        let text = read.map_err(|source| ScenarioError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Checks a text. `path` is for messages, and named files are relative to its directory.
    ///
    /// # Errors
    /// Every mistake with file, line, key and accepted form.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        let mistakes = |list| {
            ScenarioError::Mistakes(Mistakes {
                path: path.to_owned(),
                list,
            })
        };
        let raw = toml::from_str(text).map_err(|err| mistakes(vec![error::syntax(text, &err)]))?;
        check::check(raw, text, path).map_err(mistakes)
    }
}

#[cfg(test)]
mod packet_tests;
#[cfg(test)]
mod pepd_tests;
#[cfg(test)]
mod tests;
