//! Scenario in the form of its file.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;
use units::{ByteSize, Rate, duration::Span};

use crate::{
    lab::{
        program::{Carrier, QuicControl, Transfer},
        topology::Family,
    },
    link::predict::Model,
};

/// Table with keys chosen by the author.
pub type Table<T> = BTreeMap<Spanned<String>, Spanned<T>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawScenario {
    pub name: Option<String>,
    pub title: Option<String>,
    pub description: Option<String>,
    pub paper: Option<Spanned<String>>,
    pub figure: Option<Spanned<Vec<Spanned<String>>>>,
    pub remark: Option<Spanned<String>>,
    pub path: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    pub branches: Vec<Spanned<Vec<Spanned<String>>>>,
    pub seeds: Option<Spanned<Vec<u64>>>,
    pub repetitions: Option<Spanned<u64>>,
    pub parallel: Option<Spanned<usize>>,
    pub retries: Option<Spanned<u32>>,
    pub timeout: Option<Spanned<Span>>,
    pub late: Option<Spanned<Span>>,
    pub offloads: Option<bool>,
    pub mtu: Option<Spanned<u32>>,
    pub metrics: Option<Spanned<Vec<Spanned<String>>>>,
    pub baseline: Option<Spanned<String>>,
    pub controls: Option<Vec<Spanned<String>>>,
    pub link: Option<Table<toml::Value>>,
    #[serde(default)]
    pub links: BTreeMap<Spanned<String>, Table<toml::Value>>,
    #[serde(default)]
    pub node: BTreeMap<Spanned<String>, RawNode>,
    #[serde(default)]
    pub matrix: Table<Vec<Spanned<toml::Value>>>,
    #[serde(default)]
    pub labels: Table<String>,
    #[serde(default)]
    pub variant: Vec<RawVariant>,
    #[serde(default)]
    pub workload: Vec<RawWorkload>,
    #[serde(default)]
    pub check: Vec<RawCheck>,
    #[serde(default)]
    pub reference: Vec<RawReference>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawNode {
    pub congestion: Option<Spanned<String>>,
    pub pacing: Option<Spanned<Rate>>,
    pub quic: Option<QuicControl>,
    #[serde(default)]
    pub sysctl: Table<toml::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawVariant {
    pub name: Spanned<String>,
    pub pepd: Option<Spanned<toml::Table>>,
    #[serde(default)]
    pub node: BTreeMap<Spanned<String>, RawNode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RawProgram {
    Bulk,
    Curl,
    Iperf3,
    Messages,
    Page,
    Udp,
    #[serde(rename = "counting_tcp")]
    CountingTcp,
    Command,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawWorkload {
    pub name: Spanned<String>,
    pub program: Spanned<RawProgram>,
    pub direction: Option<Spanned<Transfer>>,
    pub family: Option<Family>,
    pub client: Option<Spanned<String>>,
    pub server: Option<Spanned<String>>,
    pub pepd_on: Option<Spanned<String>>,
    pub start: Option<Spanned<Span>>,
    pub link_time: Option<Spanned<Span>>,
    pub group: Option<String>,
    pub copies: Option<Spanned<u32>>,
    pub port: Option<Spanned<u16>>,
    pub timeout: Option<Spanned<Span>>,
    pub partial: Option<Spanned<bool>>,
    pub size: Option<Spanned<ByteSize>>,
    pub duration: Option<Spanned<Span>>,
    pub warmup: Option<Spanned<Span>>,
    pub interval: Option<Spanned<Span>>,
    pub sample: Option<Spanned<Span>>,
    pub early: Option<Spanned<Span>>,
    pub congestion: Option<Spanned<String>>,
    pub pacing: Option<Spanned<Rate>>,
    pub flows: Option<Spanned<u32>>,
    pub protocol: Option<Spanned<Carrier>>,
    pub rate: Option<Spanned<Rate>>,
    pub dscp: Option<Spanned<u32>>,
    pub within: Option<Spanned<Span>>,
    pub objects: Option<Spanned<u32>>,
    pub connections: Option<Spanned<u32>>,
    pub command: Option<Spanned<Vec<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawReference {
    pub name: String,
    pub metric: Spanned<String>,
    pub workload: Option<Spanned<String>>,
    #[serde(default)]
    pub at: Table<toml::Value>,
    pub values: Option<Spanned<Vec<Spanned<toml::Value>>>>,
    pub predict: Option<Spanned<RawPredict>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPredict {
    pub model: Model,
    pub perfect: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCheck {
    pub variant: Spanned<String>,
    pub baseline: Option<Spanned<String>>,
    pub workload: Option<Spanned<String>>,
    pub metric: Option<Spanned<String>>,
    #[serde(default)]
    pub at: Table<toml::Value>,
    pub min: Option<Spanned<toml::Value>>,
    pub max: Option<Spanned<toml::Value>>,
    pub mean_ratio_min: Option<Spanned<f64>>,
    pub mean_ratio_max: Option<Spanned<f64>>,
}
