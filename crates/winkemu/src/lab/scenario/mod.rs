//! Scenarios: experiments as files. `docs/lab.md` describes every key.

mod check;
mod checks;
mod control;
mod error;
mod links;
mod metric;
mod network;
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
pub use pepd_config::{Ground, PepdSpec, Pepds, pepds};
pub use plan::{RunSpec, Setting};

use crate::{
    lab::program::{
        Bulk, CountingTcp, Curl, Datagrams, Iperf3, Messages, Page, QuicControl, Shell,
    },
    link::LinkOptions,
};

/// A checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// A short name, for files.
    pub name: String,
    /// One line, for the heads of tables and plots.
    pub title: String,
    /// What it is for.
    pub description: String,
    /// The file as it was read.
    pub text: String,
    /// Nodes, and what joins them.
    pub network: Network,
    /// The links of the path by name, as they are without the matrix.
    pub links: Vec<(String, LinkOptions)>,
    /// Settings of nodes in all variants.
    pub nodes: Vec<NodeSettings>,
    /// What is varied, in the order of the file; the first changes slowest.
    pub matrix: Vec<Axis>,
    /// What is compared.
    pub variants: Vec<Variant>,
    /// Workloads that run at the same time in one topology.
    pub groups: Vec<Group>,
    /// One run of everything for each.
    pub seeds: Vec<u64>,
    /// How many topologies run at once.
    pub parallel: usize,
    /// How often a run is repeated when the machine was too busy.
    pub retries: u32,
    /// A link that handed on more than 0.1 % of its packets later than this was not itself.
    pub late: Duration,
    /// Whether Ethernet edges keep segmentation offloads.
    pub offloads: bool,
    /// Bytes of the longest packet on every edge.
    pub mtu: u32,
    /// What tables and plots show.
    pub metrics: Vec<Metric>,
    /// The variant that others are related to.
    pub baseline: Option<String>,
    /// The eBPF congestion controls of ours that are registered during the runs.
    pub controls: Vec<WantedControl>,
    /// What must hold.
    pub checks: Vec<Check>,
    /// What stands beside the results.
    pub references: Vec<Reference>,
}

/// Settings of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSettings {
    /// The node.
    pub node: String,
    /// Its default congestion control.
    pub congestion: Option<String>,
    /// What each of its bulk transfers sends at most, in payload.
    pub pacing: Option<Rate>,
    /// Whether they go by QUIC, and with which control.
    pub quic: Option<QuicControl>,
    /// Its kernel settings.
    pub sysctls: Vec<(String, String)>,
}

/// One dimension of the matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The key as in the file, such as `link.loss`.
    pub key: String,
    /// What it takes in turn.
    pub values: Vec<Setting>,
}

/// One of the things compared.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// Where pepd runs, and what it is told; other nodes in the middle only forward.
    pub pepds: Pepds,
    /// Settings of nodes, which go before those of all variants.
    pub nodes: Vec<NodeSettings>,
}

/// Workloads that run at the same time.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its name: that of its workload where there is only one.
    pub name: String,
    /// The node on which pepd runs, in variants that have one.
    pub pepd_on: String,
    /// At least one.
    pub workloads: Vec<Workload>,
}

/// One program and where it runs.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The node that opens connections; for a command, the node it runs on.
    pub client: String,
    /// The node that is connected to.
    pub server: String,
    /// When it starts.
    pub start: Start,
    /// What runs.
    pub program: Program,
}

/// When a workload starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// So long after everything is ready.
    Ready(Duration),
    /// So long after the links began, by which time everything must be ready.
    LinkTime(Duration),
}

/// What runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// The built-in transfer.
    Bulk(Bulk),
    /// curl and nginx.
    Curl(Curl),
    /// iperf3.
    Iperf3(Iperf3),
    /// Messages, and how long each takes.
    Messages(Messages),
    /// A constant flow of UDP or ESP.
    Datagrams(Datagrams),
    /// A transfer from a sender that counts ACKs.
    CountingTcp(CountingTcp),
    /// A web page of many objects.
    Page(Page),
    /// Any command.
    Shell(Shell),
}

/// What others measured, or a model says.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// Whose it is.
    pub name: String,
    /// Of what.
    pub metric: Metric,
    /// One for each value of the matrix's first key: bit/s, seconds, bytes or a share.
    pub values: Vec<Option<f64>>,
}

/// What must hold at every point of the matrix, or at some.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// The variant under test.
    pub variant: String,
    /// The variant it is compared with, for ratios.
    pub baseline: Option<String>,
    /// The workload; all if absent.
    pub workload: Option<String>,
    /// What is compared.
    pub metric: Metric,
    /// Only at points with one of these values, for each of these keys of the matrix.
    pub at: Vec<(String, Vec<String>)>,
    /// The least ratio of the means.
    pub mean_ratio_min: Option<f64>,
    /// The greatest ratio of the means.
    pub mean_ratio_max: Option<f64>,
    /// The least mean: bit/s, seconds, bytes or a share.
    pub min: Option<f64>,
    /// The greatest mean.
    pub max: Option<f64>,
}

impl Reference {
    /// Its value at a point of the matrix.
    pub fn at(&self, point: &[usize]) -> Option<f64> {
        let place = point.first().copied().unwrap_or(0);
        self.values.get(place).copied().flatten()
    }
}

impl Scenario {
    /// What stands beside the results of a metric.
    pub fn references(&self, metric: Metric) -> impl Iterator<Item = &Reference> {
        let of = move |reference: &&Reference| reference.metric == metric;
        self.references.iter().filter(of)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ScenarioError`]: every mistake with file, line, key and what is accepted.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let read = fs::read_to_string(path);
        let text = read.map_err(|source| ScenarioError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Checks a text; `path` is for messages, and files that it names are sought beside it.
    ///
    /// # Errors
    /// Every mistake with file, line, key and what is accepted.
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
