//! Where pepd runs, and its configurations in a run: the author's part, and what the topology knows better.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use toml::{Spanned, Table, Value};
use units::{Rate, duration};

use super::{Edge, Network, RunSpec, Scenario, error::Findings};
use crate::link::{DelayModel, Direction, LinkConfig, RateModel};

/// The node on which pepd runs unless a workload says otherwise.
pub(super) const PEPD_NODE: &str = "pepd";

/// The workloads are over when pepd is told to end: what is still open then is of no interest.
const DRAIN: &str = "2s";
/// Where a pepd that others call listens.
const PORT: u16 = 5001;

/// The pepds of a variant.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Pepds {
    /// None: nodes in the middle only forward.
    #[default]
    None,
    /// One, on the node that the workloads say; what it is told.
    One(Table),
    /// Some, by their nodes.
    Each(BTreeMap<String, Table>),
}

impl Pepds {
    /// The nodes of pepds that need keys: peers of each other. None where there is one pepd at most.
    pub fn peers(&self) -> Vec<&str> {
        let Self::Each(tables) = self else {
            return Vec::new();
        };
        let nodes = tables.keys().map(String::as_str);
        nodes
            .filter(|node| !peers_of(tables, node).is_empty())
            .collect()
    }
}

/// One pepd of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PepdSpec {
    /// Its node.
    pub node: String,
    /// The text of its configuration.
    pub config: String,
    /// The pepds that it calls: there is a session with each when all are ready.
    pub calls: Vec<String>,
}

/// What a run has, and a scenario does not know.
pub struct Ground<'a> {
    /// The links by name, as they are in this run.
    pub links: &'a [(String, LinkConfig)],
    /// The address of a node's interface toward a neighbour.
    pub address: &'a dyn Fn(&str, &str) -> IpAddr,
    /// The private key of a node, and its public key.
    pub key: &'a dyn Fn(&str) -> (String, String),
    /// The file with the key that all share.
    pub shared_key: &'a Path,
}

/// Reads `pepd` of a variant: a configuration, or one for each of some nodes.
pub(super) fn read(
    raw: Option<&Spanned<Table>>,
    key: &str,
    network: &Network,
    findings: &mut Findings<'_>,
) -> Pepds {
    let Some(raw) = raw else { return Pepds::None };
    let table = raw.get_ref();
    // An array of tables, such as `site`, is no configuration of a node that is called so.
    let of_node = |(name, value): &(&String, &Value)| network.contains(name) && value.is_table();
    match table.iter().filter(of_node).count() {
        0 => return Pepds::One(table.clone()),
        all if all == table.len() => {}
        _ => {
            let message = format!(
                "holds keys that are nodes beside others that are not: either one configuration, or one for each \
                 of some nodes; there are {}",
                network.names()
            );
            findings.add(raw.span(), key, message);
        }
    }
    let nodes = table
        .iter()
        .filter_map(|(node, config)| Some((node.clone(), config.as_table()?.clone())));
    let pepds: BTreeMap<_, _> = nodes.collect();
    for (node, config) in &pepds {
        let is_other = |peer: &String| pepds.contains_key(peer) && peer != node;
        for peer in named(config).into_iter().filter(|peer| !is_other(peer)) {
            let message = format!("the peer `{peer}` is no other node with a pepd of this variant");
            findings.add(raw.span(), format!("{key}.{node}"), message);
        }
    }
    Pepds::Each(pepds)
}

/// The peers that sites of a configuration use. Each once.
fn called(config: &Table) -> BTreeSet<String> {
    let sites = config.get("site").and_then(Value::as_array);
    let peer = |site: &Value| Some(site.get("peer")?.as_str()?.to_owned());
    sites.into_iter().flatten().filter_map(peer).collect()
}

/// These, and the ones that have tables of their own.
fn named(config: &Table) -> BTreeSet<String> {
    let tables = config.get("peer").and_then(Value::as_table);
    let tables = tables.into_iter().flat_map(|peers| peers.keys().cloned());
    tables.chain(called(config)).collect()
}

/// The pepds that name this one, or are named by it.
fn peers_of(tables: &BTreeMap<String, Table>, node: &str) -> BTreeSet<String> {
    let by_others = tables
        .iter()
        .filter(|(_, table)| named(table).contains(node));
    let by_others = by_others.map(|(other, _)| other.clone());
    let of_ours = tables.get(node).map(named).unwrap_or_default();
    by_others
        .chain(of_ours)
        .filter(|peer| tables.contains_key(peer))
        .collect()
}

/// The pepds of a run, those first that are called by others.
///
/// `timeouts.drain` becomes 2 s, `intercept.lan` the interfaces toward the hosts, `link` the interface, rate and
/// round-trip time of the neighbouring link, sites know on which side of pepd that link is, and peers have
/// keys, endpoints, and the rate and round-trip time of the way, unless the variant says otherwise.
pub fn pepds(scenario: &Scenario, run: &RunSpec, ground: &Ground<'_>) -> Vec<PepdSpec> {
    let tables = match &scenario.variant(run).pepds {
        Pepds::None => BTreeMap::new(),
        Pepds::One(table) => {
            let node = scenario.groups[run.group].pepd_on.clone();
            BTreeMap::from([(node, table.clone())])
        }
        Pepds::Each(tables) => tables.clone(),
    };
    let all = Configs {
        network: &scenario.network,
        ground,
        tables: &tables,
    };
    let mut specs: Vec<_> = tables.keys().map(|node| all.spec(node)).collect();
    specs.sort_by_key(|spec| !spec.calls.is_empty());
    specs
}

/// Fills in what the author left out.
struct Configs<'a> {
    network: &'a Network,
    ground: &'a Ground<'a>,
    tables: &'a BTreeMap<String, Table>,
}

impl Configs<'_> {
    fn spec(&self, node: &str) -> PepdSpec {
        let mut config = self.tables[node].clone();
        let peers = peers_of(self.tables, node);
        let calls: Vec<_> = called(&config).intersection(&peers).cloned().collect();
        if let Some(timeouts) = table(&mut config, "timeouts") {
            timeouts.entry("drain").or_insert_with(|| DRAIN.into());
        }
        if peers.is_empty() {
            self.split(node, &mut config);
        } else {
            self.tunnel(node, &mut config, &peers);
        }
        for peer in &peers {
            self.describe_peer(node, peer, &mut config);
        }
        self.describe_link(node, &mut config);
        PepdSpec {
            node: node.to_owned(),
            config: toml::to_string(&config).expect("a TOML table can be written as TOML"),
            calls,
        }
    }

    /// Connections arrive from the row's beginning.
    fn split(&self, node: &str, config: &mut Table) {
        let before = self.before(node);
        let lan = before.map(|edge| edge.other(node)).into_iter().collect();
        set_lan(config, lan);
        let over_link = before.is_some_and(|edge| edge.link.is_some());
        if over_link && self.after(node).is_some_and(|edge| edge.link.is_none()) {
            face_the_clients(config);
        }
    }

    /// Hosts are at every Ethernet, or, where there is none, wherever no peer is.
    fn tunnel(&self, node: &str, config: &mut Table, peers: &BTreeSet<String>) {
        let edges = || self.network.edges_of(node);
        let ways = peers.iter().map(|peer| self.network.way(node, peer));
        let toward_peers: Vec<_> = ways.filter_map(|way| Some(way.first()?.0)).collect();
        let mut hosts: Vec<_> = edges().filter(|edge| edge.link.is_none()).collect();
        if hosts.is_empty() {
            hosts = edges()
                .filter(|edge| !toward_peers.contains(edge))
                .collect();
        }
        set_lan(config, hosts.iter().map(|edge| edge.other(node)).collect());
        if let Some(identity) = table(config, "identity") {
            let key = || (self.ground.key)(node).0.into();
            identity.entry("key_file").or_insert_with(key);
            if self.calls(peers.iter(), node) {
                let listen = || format!("0.0.0.0:{PORT}").into();
                identity.entry("listen").or_insert_with(listen);
            }
        }
        let sites = config.get_mut("site").and_then(Value::as_array_mut);
        for site in sites.into_iter().flatten().filter_map(Value::as_table_mut) {
            if site.contains_key("peer") {
                site.entry("mode").or_insert_with(|| "tunnel".into());
            }
        }
    }

    /// Whether one of these calls a node.
    fn calls<'b>(&self, mut callers: impl Iterator<Item = &'b String>, node: &str) -> bool {
        callers.any(|caller| called(&self.tables[caller]).contains(node))
    }

    fn describe_peer(&self, node: &str, name: &str, config: &mut Table) {
        let is_called = called(config).contains(name);
        let stated = config.get("link").and_then(Value::as_table);
        let stated = stated.cloned().unwrap_or_default();
        let Some(peer) = table(config, "peer").and_then(|peers| table(peers, name)) else {
            return;
        };
        let public = (self.ground.key)(name).1;
        peer.entry("public_key").or_insert_with(|| public.into());
        let shared = || self.ground.shared_key.display().to_string().into();
        peer.entry("psk_file").or_insert_with(shared);
        let way = self.network.way(node, name);
        if let (true, Some((last, _))) = (is_called, way.last()) {
            let address = (self.ground.address)(name, last.other(name));
            let endpoint = || format!("{address}:{PORT}").into();
            peer.entry("endpoint").or_insert_with(endpoint);
        }
        let links: Vec<_> = way
            .iter()
            .filter_map(|(edge, way)| Some((self.link(edge)?, *way)))
            .collect();
        if let (Some(rate), false) = (least_rate(&links), stated.contains_key("rate")) {
            peer.entry("rate")
                .or_insert_with(|| rate.to_string().into());
        }
        if let (Some(rtt), false) = (round_trip(&links), stated.contains_key("rtt")) {
            peer.entry("rtt")
                .or_insert_with(|| duration::format(rtt).into());
        }
    }

    /// The link behind the node in its row, else the one before it.
    fn describe_link(&self, node: &str, config: &mut Table) {
        let edges = [
            (self.after(node), Direction::AtoB),
            (self.before(node), Direction::BtoA),
        ];
        let found = edges.into_iter().find_map(|(edge, away)| {
            let edge = edge?;
            Some((edge, self.link(edge)?, away))
        });
        if let (Some((edge, link, away)), Some(table)) = (found, table(config, "link")) {
            let interface = || edge.other(node).into();
            table.entry("interface").or_insert_with(interface);
            for (key, direction) in [("rate", away), ("rate_down", away.opposite())] {
                if let Some(rate) = least_rate(&[(link, direction)]) {
                    table.entry(key).or_insert_with(|| rate.to_string().into());
                }
            }
            if let Some(rtt) = round_trip(&[(link, away)]) {
                table
                    .entry("rtt")
                    .or_insert_with(|| duration::format(rtt).into());
            }
        }
    }

    fn link(&self, edge: &Edge) -> Option<&LinkConfig> {
        let name = edge.link.as_ref()?;
        let found = self.ground.links.iter().find(|(link, _)| link == name);
        found.map(|(_, config)| config)
    }

    fn before(&self, node: &str) -> Option<&Edge> {
        self.network.edges().iter().find(|edge| edge.b == node)
    }

    /// A link before Ethernet, where several begin here.
    fn after(&self, node: &str) -> Option<&Edge> {
        let begin_here = || self.network.edges().iter().filter(|edge| edge.a == node);
        begin_here()
            .find(|edge| edge.link.is_some())
            .or_else(|| begin_here().next())
    }
}

/// A table of the configuration, made if absent; `None` when the author put something else
/// there, which pepd will complain about.
fn table<'a>(config: &'a mut Table, key: &str) -> Option<&'a mut Table> {
    config
        .entry(key)
        .or_insert_with(|| Value::Table(Table::new()))
        .as_table_mut()
}

fn set_lan(config: &mut Table, interfaces: Vec<&str>) {
    let lan = interfaces.into_iter().map(Value::from).collect();
    if let Some(intercept) = table(config, "intercept") {
        intercept.entry("lan").or_insert(Value::Array(lan));
    }
}

/// Tells all sites that connections arrive over the link.
fn face_the_clients(config: &mut Table) {
    let all = || {
        Value::Array(vec![Value::Table(Table::from_iter([(
            "name".to_owned(),
            "all".into(),
        )]))])
    };
    let sites = config.entry("site").or_insert_with(all).as_array_mut();
    for site in sites.into_iter().flatten().filter_map(Value::as_table_mut) {
        site.entry("link_leg").or_insert_with(|| "client".into());
    }
}

/// The least rate of links in a row, where all that have one state it.
fn least_rate(way: &[(&LinkConfig, Direction)]) -> Option<Rate> {
    let mut least: Option<Rate> = None;
    for (link, direction) in way {
        match &link.path(*direction).rate {
            RateModel::Fixed(rate) => least = least.into_iter().chain([*rate]).min(),
            RateModel::Unlimited => {}
            RateModel::Trace(_) => return None,
        }
    }
    least
}

/// The delays of links in a row, there and back; `None` where there is none, or it varies.
fn round_trip(way: &[(&LinkConfig, Direction)]) -> Option<Duration> {
    let both = |link: &LinkConfig| match (&link.ab.delay.base, &link.ba.delay.base) {
        (DelayModel::Fixed(out), DelayModel::Fixed(back)) => Some(*out + *back),
        _ => None,
    };
    let sum: Option<Duration> = way.iter().map(|(link, _)| both(link)).sum();
    sum.filter(|sum| !sum.is_zero())
}
