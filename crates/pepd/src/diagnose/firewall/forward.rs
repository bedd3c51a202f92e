//! Effect of rules of other programs in the forward hook on accelerated connections.

use pep_core::{
    config::{Config, Forward},
    site::{Clear, LinkLeg, Mode},
};
use pepd_intercept::rules::lans;

use super::{
    Drop, Evidence, Fate, Finding, Hook, Packet, PacketInterface, State, Table, dropped, into_tun,
    passage, redirected, remedy,
};

/// Object of findings about these rules.
pub(super) const WHAT: &str = "rules in forward";

/// Path of hosts' packets to servers.
#[derive(Debug)]
pub(super) struct Uplink {
    /// Interface of the link, or of the default route.
    pub interface: PacketInterface,
    /// True if there is a default route.
    pub is_routed: bool,
}

/// Returns findings about rules in the forward hook, with their [`obstacles`].
pub(super) fn findings(
    config: &Config,
    uplink: &Uplink,
    tables: &[Table],
    families: &[bool],
    evidence: Evidence,
    obstacles: &[Option<[Packet; 2]>; 2],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut families_in_use = families.iter();
    let obstacle = families_in_use.find_map(|&is_v6| obstacles[usize::from(is_v6)].as_ref());
    let of_family = |&is_v6: &bool| syns(config, &uplink.interface, is_v6);
    let syns: Vec<_> = families.iter().flat_map(of_family).collect();
    if !config.obeys_forward() || obstacle.is_some() {
        findings.extend(void(config, &syns, tables));
        // Nothing is closed otherwise.
        if !findings.is_empty() {
            findings.extend(obstacle.map(|syns| blocked(config, tables, syns)));
        }
    } else {
        findings.extend(closed(&syns, tables, evidence));
        findings.extend(unrouted(config, uplink.is_routed, tables, families));
    }
    findings
}

/// Returns, for each family, SYNs behind these rules that would not reach a listener, although
/// others would.
pub(super) fn obstacles(config: &Config, tables: &[Table]) -> [Option<[Packet; 2]>; 2] {
    [false, true].map(|is_v6| obstacle(config, tables, is_v6))
}

/// Returns SYNs out of a TUN that may not reach a listener, although those from the hosts'
/// interface would.
fn obstacle(config: &Config, tables: &[Table], is_v6: bool) -> Option<[Packet; 2]> {
    let is_optional = config.obeys_forward() && !config.must_obey_forward();
    let mut lans = lans(config).into_iter().filter(|_| is_optional);
    let syns_from = |interface: String| {
        let interface = PacketInterface::By(interface);
        redirected(config, is_v6, "hosts' SYNs", &interface, &["syn"])
    };
    let worst = |packets: &[Packet]| packets.iter().map(|packet| passage(tables, packet)).max();
    lans.find_map(|lan| {
        let out_of_tun = syns_from(lan.tun?);
        let is_worse = worst(&out_of_tun) > worst(&syns_from(lan.interface));
        is_worse.then_some(out_of_tun)
    })
}

/// Returns the first chain that drops one of these packets.
fn first_drop<'a>(tables: &'a [Table], packets: &[Packet]) -> Option<Drop<'a>> {
    let chains = tables.iter().flat_map(|table| {
        let chains = table.chains.iter();
        chains.filter_map(move |(name, chain)| Some((table, name, chain.base?)))
    });
    let drops = chains.filter_map(|(table, name, base)| dropped(table, name, base, packets));
    let mut drops: Vec<_> = drops.collect();
    drops.sort_by_key(|drop| !drop.is_sure);
    drops.into_iter().next()
}

fn blocked(config: &Config, tables: &[Table], syns: &[Packet]) -> Finding {
    let tun = match &syns[0].input {
        PacketInterface::By(name) => name.as_str(),
        _ => "pepd's TUN",
    };
    let drop = first_drop(tables, syns);
    let by = drop.as_ref().map_or_else(
        || "a rule of another program may drop".to_owned(),
        |drop| {
            let verb = if drop.is_sure { "drops" } else { "may drop" };
            let (table, chain, by) = (&drop.table.name, drop.chain, &drop.by);
            format!("{table}, chain {chain}: {by} {verb}")
        },
    );
    let seen = format!(
        "they do not hold for accelerated connections, since {by} SYNs that come from {tun} behind these rules"
    );
    let otherwise = || "accept them: docs/interception.md, \"Beside your firewall\"".to_owned();
    let what_to_do = drop.map_or_else(otherwise, |drop| remedy(config, &drop));
    Finding::warn(WHAT, seen, what_to_do)
}

/// Returns a finding for each chain of rules that do not hold.
fn void(config: &Config, syns: &[Packet], tables: &[Table]) -> Vec<Finding> {
    let mut sites = config.sites.iter().map(|(_, site)| site);
    // Held SYNs pass the hook. With `clear = "never"` nothing leaves but by the tunnel.
    let mut past = sites.by_ref().filter(|site| {
        site.mode.takes_flows() && !site.is_deferred() && site.clear != Clear::Never
    });
    let serves = match past.next() {
        None => return Vec::new(),
        Some(site) => {
            site.link_leg == LinkLeg::Client || past.any(|site| site.link_leg == LinkLeg::Client)
        }
    };
    let state = match config.intercept.forward {
        Forward::Ignore if !serves => State::Info,
        _ => State::Warn,
    };
    let mut findings = Vec::new();
    for table in tables {
        for (name, chain) in &table.chains {
            let Some(base) = chain.base.filter(|base| base.hook == Hook::Forward) else {
                continue;
            };
            let mut seen = syns.iter().filter(|syn| table.sees(syn));
            let drops = seen.any(|syn| {
                let fate = table.fate(name, base, syn);
                fate != Fate::Accepted || table.drops_some(name, syn)
            });
            if drops {
                let seen = format!(
                    "{}, chain {name}, drops connections of hosts; accelerated ones do not meet it, so hosts reach \
                     what it closes",
                    table.name
                );
                findings.push(Finding::new(state, WHAT, seen, INSTEAD));
            }
        }
    }
    findings
}

/// Returns a finding if all connections of hosts are dropped.
fn closed(syns: &[Packet], tables: &[Table], evidence: Evidence) -> Option<Finding> {
    let drop = first_drop(tables, syns).filter(|drop| drop.is_sure)?;
    let state = match evidence.accepted {
        _ if evidence.flows[usize::from(drop.packet.is_v6)] => State::Info,
        0 => State::Fail,
        _ => State::Warn,
    };
    let (table, chain, by) = (&drop.table.name, drop.chain, &drop.by);
    let seen = format!("{table}, chain {chain}: {by} drops hosts' SYNs to servers, and pepd obeys");
    let what_to_do = "accept what hosts may reach, or set `forward = \"ignore\"`: docs/interception.md, \"Rules in forward\"";
    Some(Finding::new(state, WHAT, seen, what_to_do))
}

const INSTEAD: &str = "`forward = \"obey\"` (needs nft), or sites with mode = \"bypass\" for what it closes: docs/interception.md, \
                       \"Rules in forward\"";

/// Returns a finding about SYNs that cannot be forwarded, as there is no route.
fn unrouted(
    config: &Config,
    is_routed: bool,
    tables: &[Table],
    families: &[bool],
) -> Option<Finding> {
    let packets = families.iter().flat_map(|&is_v6| {
        let lans = lans(config).into_iter().enumerate();
        lans.filter_map(move |(number, lan)| {
            let syn = into_tun(config, is_v6, number, &lan, "hosts' SYNs without a route")?;
            Some(Packet {
                is_of_host: true,
                ..syn
            })
        })
    });
    let packets: Vec<_> = packets.collect();
    let drop = first_drop(tables, &packets).filter(|drop| drop.is_sure)?;
    let mut sites = config.sites.iter();
    let tunnels = sites.any(|(_, site)| config.asks_forward(site) && site.mode == Mode::Tunnel);
    let (table, chain, by) = (&drop.table.name, drop.chain, &drop.by);
    let (state, when) = match is_routed {
        false if tunnels => (
            State::Warn,
            "without a default route no connection enters a tunnel",
        ),
        _ => (
            State::Info,
            "while the link is down, hosts repeat them until it is up",
        ),
    };
    let seen = format!("{table}, chain {chain}: {by} drops SYNs that no route leads on: {when}");
    let what_to_do = "repeat your rules for the uplink with the TUN as output interface (`oifname \"pepd*\"`): \
                      docs/interception.md, \"Rules in forward\"";
    Some(Finding::new(state, WHAT, seen, what_to_do))
}

/// Returns SYNs of hosts as the forward hook sees them.
pub(super) fn syns(
    config: &Config,
    uplink: &PacketInterface,
    is_v6: bool,
) -> impl Iterator<Item = Packet> {
    let uplink = uplink.clone();
    lans(config).into_iter().map(move |lan| Packet {
        what: "hosts' SYNs to servers".to_owned(),
        hook: Hook::Forward,
        is_v6,
        // From beyond the link they go to servers behind any interface.
        output: match uplink.is(&lan.interface) {
            Some(false) => uplink.clone(),
            _ => PacketInterface::Unknown,
        },
        input: PacketInterface::By(lan.interface),
        mark: 0,
        state: "new",
        flags: &["syn"],
        is_of_host: true,
    })
}
