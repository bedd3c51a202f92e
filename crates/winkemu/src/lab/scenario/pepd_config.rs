//! Nodes of pepd, and its configurations in a run: the author's part, completed from the topology.

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

/// Default node of pepd.
pub(super) const PEPD_NODE: &str = "pepd";

/// Drain timeout. The workloads are over when pepd stops, so open flows do not matter.
const DRAIN: &str = "2s";
/// Port of a pepd that others call.
const PORT: u16 = 5001;

/// Pepds of a variant.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Pepds {
    /// No pepd: nodes in the middle only forward.
    #[default]
    None,
    /// One pepd with this configuration, on the node that the workloads name.
    One(Table),
    /// Several pepds, by node.
    Each(BTreeMap<String, Table>),
}

impl Pepds {
    /// Nodes of pepds that need keys as peers of each other; empty for one pepd or none.
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

/// Specification of one pepd of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PepdSpec {
    /// Name of the node.
    pub node: String,
    /// Text of its configuration.
    pub config: String,
    /// Peers that it calls; it has a session with each once all are ready.
    pub calls: Vec<String>,
}

/// Facts of a run that the scenario does not contain.
pub struct Ground<'a> {
    /// Links by name, with their configuration in this run.
    pub links: &'a [(String, LinkConfig)],
    /// Address of a node's interface toward a neighbour.
    pub address: &'a dyn Fn(&str, &str) -> IpAddr,
    /// Private and public key of a node.
    pub key: &'a dyn Fn(&str) -> (String, String),
    /// File with the pre-shared key.
    pub shared_key: &'a Path,
}

/// Reads `pepd` of a variant: one configuration, or one per node.
pub(super) fn read(
    raw: Option<&Spanned<Table>>,
    key: &str,
    network: &Network,
    findings: &mut Findings<'_>,
) -> Pepds {
    let Some(raw) = raw else { return Pepds::None };
    let table = raw.get_ref();
    // An array of tables, such as `site`, is not the configuration of a node of that name.
    let of_node = |(name, value): &(&String, &Value)| network.contains(name) && value.is_table();
    match table.iter().filter(of_node).count() {
        0 => return Pepds::One(table.clone()),
        all if all == table.len() => {}
        _ => {
            let message = format!(
                "mixes keys that are nodes with others: use one configuration, or one per node; nodes are {}",
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
            let message = format!("peer `{peer}` is not another node with a pepd in this variant");
            findings.add(raw.span(), format!("{key}.{node}"), message);
        }
    }
    Pepds::Each(pepds)
}

/// Peers that the sites of a configuration use, each once.
fn named_in(config: &Table) -> BTreeSet<String> {
    let sites = config.get("site").and_then(Value::as_array);
    let peer = |site: &Value| Some(site.get("peer")?.as_str()?.to_owned());
    sites.into_iter().flatten().filter_map(peer).collect()
}

/// Peers that the sites use or that have tables of their own.
fn named(config: &Table) -> BTreeSet<String> {
    let tables = config.get("peer").and_then(Value::as_table);
    let tables = tables.into_iter().flat_map(|peers| peers.keys().cloned());
    tables.chain(named_in(config)).collect()
}

/// Pepds that name this one, or are named by it.
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

/// Specifications of the pepds of a run; pepds that others call come first.
///
/// Values derived from the topology, unless the variant sets them:
///
/// * `timeouts.drain` is 2 s
/// * `intercept.lan` lists the interfaces toward the hosts
/// * `link` has the interface, rate and round-trip time of the neighbouring link
/// * sites have the side of pepd on which that link is
/// * peers have keys, endpoints, the rate and round-trip time of the path, and reach all hosts
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

/// Context for completing the configurations.
struct Configs<'a> {
    network: &'a Network,
    ground: &'a Ground<'a>,
    tables: &'a BTreeMap<String, Table>,
}

impl Configs<'_> {
    fn spec(&self, node: &str) -> PepdSpec {
        let mut config = self.tables[node].clone();
        let peers = peers_of(self.tables, node);
        let calls: Vec<_> = named_in(&config).intersection(&peers).cloned().collect();
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

    /// Completes a split proxy: connections arrive from the start of the row.
    fn split(&self, node: &str, config: &mut Table) {
        let before = self.before(node);
        let lan = before.map(|edge| edge.other(node)).into_iter().collect();
        set_lan(config, lan);
        let over_link = before.is_some_and(|edge| edge.link.is_some());
        if over_link && self.after(node).is_some_and(|edge| edge.link.is_none()) {
            face_the_clients(config);
        }
    }

    /// Completes a tunnel endpoint. Hosts are on every Ethernet edge or, without one, on every edge
    /// without a peer.
    fn tunnel(&self, node: &str, config: &mut Table, peers: &BTreeSet<String>) {
        let edges = || self.network.edges_of(node);
        let directions = peers.iter().map(|peer| self.network.way(node, peer));
        let toward_peers: Vec<_> = directions.filter_map(|way| Some(way.first()?.0)).collect();
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

    /// Reports whether one of the callers calls a node.
    fn calls<'b>(&self, mut callers: impl Iterator<Item = &'b String>, node: &str) -> bool {
        callers.any(|caller| named_in(&self.tables[caller]).contains(node))
    }

    fn describe_peer(&self, node: &str, name: &str, config: &mut Table) {
        let is_called = named_in(config).contains(name);
        let stated = config.get("link").and_then(Value::as_table);
        let stated = stated.cloned().unwrap_or_default();
        let Some(peer) = table(config, "peer").and_then(|peers| table(peers, name)) else {
            return;
        };
        let public = (self.ground.key)(name).1;
        peer.entry("public_key").or_insert_with(|| public.into());
        let shared = || self.ground.shared_key.display().to_string().into();
        peer.entry("psk_file").or_insert_with(shared);
        // Hosts of a lab are in private networks beside their pepd.
        let all = || Value::Array(vec!["0.0.0.0/0".into(), "::/0".into()]);
        peer.entry("to").or_insert_with(all);
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
        if let (Some(rate), false) = (min_rate(&links), stated.contains_key("rate")) {
            peer.entry("rate")
                .or_insert_with(|| rate.to_string().into());
        }
        if let (Some(rtt), false) = (round_trip(&links), stated.contains_key("rtt")) {
            peer.entry("rtt")
                .or_insert_with(|| duration::format(rtt).into());
        }
    }

    /// Describes the link after the node in its row, else the one before it.
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
                if let Some(rate) = min_rate(&[(link, direction)]) {
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

    /// Edge after the node; a link comes before Ethernet if several edges begin here.
    fn after(&self, node: &str) -> Option<&Edge> {
        let begin_here = || self.network.edges().iter().filter(|edge| edge.a == node);
        begin_here()
            .find(|edge| edge.link.is_some())
            .or_else(|| begin_here().next())
    }
}

/// Table of the configuration, created if absent. `None` if the author put another type there; pepd
/// reports that.
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

/// Sets on all sites that connections arrive over the link.
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

/// Lowest rate of links in a row, if all have one.
fn min_rate(way: &[(&LinkConfig, Direction)]) -> Option<Rate> {
    let mut minimum: Option<Rate> = None;
    for (link, direction) in way {
        match &link.path(*direction).rate {
            RateModel::Fixed(rate) => minimum = minimum.into_iter().chain([*rate]).min(),
            RateModel::Unlimited => {}
            RateModel::Trace(_) => return None,
        }
    }
    minimum
}

/// Sum of the delays of links in a row, both directions; `None` without links or with a variable
/// delay.
fn round_trip(way: &[(&LinkConfig, Direction)]) -> Option<Duration> {
    let both = |link: &LinkConfig| match (&link.ab.delay.base, &link.ba.delay.base) {
        (DelayModel::Fixed(out), DelayModel::Fixed(back)) => Some(*out + *back),
        _ => None,
    };
    let sum: Option<Duration> = way.iter().map(|(link, _)| both(link)).sum();
    sum.filter(|sum| !sum.is_zero())
}
