//! Chains of other programs that would drop pepd's packets, or that change SYNs of hosts, which
//! pepd's own connections replace.
//!
//! - this module: packets to check, and findings
//! - `forward`: rules in the forward hook, and accelerated connections
//! - `proxies`: other transparent proxies
//! - `walk`: path of a packet through chains
//! - `nft` and `iptables`: rules in the output of these programs

mod forward;
mod iptables;
mod nft;
mod proxies;
mod walk;

use std::{collections::BTreeSet, ops::RangeInclusive, path::Path};

use pep_core::{config::Config, redirection::Verdict};
use pepd_intercept::{
    iptables::is_own_rule,
    nft::{Nft, NftError},
    program,
    rules::{Lan, lans},
    setup,
};
use pepd_sys::marks::MarkSet;

use super::{Finding, Net, State, live::Running, read, routes, system};
use forward::Uplink;
use walk::{Base, Fate, Hook, Packet, PacketInterface, Table};

/// Document with the recipes.
const RECIPES: &str = "docs/interception.md";
/// Priority of pepd's first chain: chains ahead of it see packets of hosts without pepd's marks.
const OURS: i64 = -301;
/// MSS values that the kernel accepts for a socket (TCP_MAXSEG); others are no effective clamp.
const MSS: RangeInclusive<u16> = 88..=32_767;

/// Rules of other programs that concern pepd.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub findings: Vec<Finding>,
    pub clamped: Clamped,
    /// True for a family of which SYNs behind rules in the forward hook would not reach a listener.
    pub obstacles: [bool; 2],
}

/// Inspects the rules of other programs; `None` if they cannot be read.
pub(super) async fn inspect(config: &Config, net: &Net, running: Option<&Running>) -> Option<Seen> {
    let tables = other_tables(config).await?;
    let (families, evidence) = (families(config), Evidence::new(running));
    let mut findings = drops(config, &tables, families, evidence);
    let uplink = uplink(config, net).await;
    let clamped = Clamped::find(config, &uplink.interface, &tables, families);
    findings.extend(clamped.finding());
    let obstacles = forward::obstacles(config, &tables);
    findings.extend(forward::findings(
        config, &uplink, &tables, families, evidence, &obstacles,
    ));
    let obstacles = obstacles.map(|obstacle| obstacle.is_some());
    findings.extend(proxies::findings(config, &tables, families, obstacles));
    Some(Seen {
        findings,
        clamped,
        obstacles,
    })
}

async fn other_tables(config: &Config) -> Option<Vec<Table>> {
    // If not, the finding about pepd's own table reports it.
    if !system::may_ask_nft() {
        return None;
    }
    Some(tables(config).await.ok()?.0)
}

/// Returns whether redirected SYNs pass the rules of other programs.
pub(super) async fn arrival(config: &Config) -> Arrival {
    if !system::may_ask_nft() {
        return Arrival::UNCLEAR;
    }
    match tables(config).await {
        Ok((tables, is_complete)) => Arrival::of(config, &tables, is_complete),
        Err(_) => Arrival::UNCLEAR,
    }
}

async fn uplink(config: &Config, net: &Net) -> Uplink {
    let routed = routes::uplink(config, net).await;
    let is_routed = routed.is_some();
    let link = config.link.as_ref().map(|link| link.interface.to_string());
    let interface = link.or(routed);
    Uplink {
        interface: interface.map_or(PacketInterface::Unknown, PacketInterface::By),
        is_routed,
    }
}

/// Returns the families in use: true for IPv6.
fn families(config: &Config) -> &'static [bool] {
    if setup::serves(config, pepd_sys::leg::Family::V6) {
        &[false, true]
    } else {
        &[false]
    }
}

/// Returns all tables of other programs. Tables of iptables come from its own dump, which contains
/// what nft cannot read. Also returns false if rules may be missing.
async fn tables(config: &Config) -> Result<(Vec<Table>, bool), NftError> {
    let own = config.intercept.table.as_str();
    let mut is_complete = true;
    let mut tables = match Nft::find().await {
        // Its rules would be unknown, but without nft there are mostly none.
        Err(NftError::Missing) => {
            is_complete = false;
            Vec::new()
        }
        found => nft::tables(&found?.list(&["ruleset"]).await?, own),
    };
    for (family, is_v6, program) in [("ip", false, "iptables"), ("ip6", true, "ip6tables")] {
        let incomplete =
            |table: &Table| table.is_v6 == Some(is_v6) && nft::is_partly_readable(table);
        let is_partly_read = tables.iter().any(incomplete);
        let mut is_read = !is_partly_read;
        if is_partly_read && let Some(dump) = dump(&format!("{program}-nft-save")).await {
            is_read = true;
            let dumped = iptables::tables(&without_own(&dump, own), is_v6, program);
            let names: BTreeSet<_> = dumped
                .iter()
                .filter_map(|table| table.name.split(' ').nth(1))
                .map(|name| format!("{family} {name}"))
                .collect();
            tables.retain(|table| !names.contains(&table.name));
            tables.extend(dumped);
        }
        // A query would load modules if no such table exists.
        let legacy = read(&format!(
            "/proc/net/{}_tables_names",
            if is_v6 { "ip6" } else { "ip" }
        ));
        if !legacy.trim().is_empty() {
            let dump = dump(&format!("{program}-legacy-save")).await;
            is_read &= dump.is_some();
            let dump = without_own(&dump.unwrap_or_default(), own);
            tables.extend(iptables::tables(&dump, is_v6, &format!("{program}-legacy")));
        }
        is_complete &= is_read;
    }
    Ok((tables, is_complete))
}

/// Returns a dump without rules in pepd's own chains, and those that lead to them.
fn without_own(dump: &str, table: &str) -> String {
    let others = dump.lines().filter(|line| !is_own_rule(line, table));
    others.map(|line| format!("{line}\n")).collect()
}

/// Returns the output of a program that lists rules, if installed.
async fn dump(program: &str) -> Option<String> {
    let mut places = ["/usr/sbin", "/sbin", "/usr/local/sbin"].iter();
    let path = places.find_map(|place| {
        let path = Path::new(place).join(program);
        path.exists().then_some(path)
    })?;
    let output = program::run::<&str>(path.to_str()?, &[], None).await.ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// Evidence that connections are accepted nevertheless, from a running pepd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Evidence {
    accepted: u64,
    /// True if a flow of IPv4, or of IPv6, is open.
    flows: [bool; 2],
}

impl Evidence {
    fn new(running: Option<&Running>) -> Self {
        let Some(running) = running else {
            return Self::default();
        };
        let mut sites = running.status.sites.iter();
        if sites.any(|site| !site.interception_lost.is_empty()) {
            // Earlier connections prove nothing about the present.
            return Self::default();
        }
        let has = |bracket: bool| {
            let mut flows = running.flows.iter();
            flows.any(|flow| flow.flow.client.starts_with('[') == bracket)
        };
        Self {
            accepted: running.status.total.flows_accepted,
            flows: [has(false), has(true)],
        }
    }
}

/// Returns a redirected packet that arrives by an interface, as each hook sees it.
fn redirected(
    config: &Config,
    is_v6: bool,
    what: &str,
    by: &PacketInterface,
    flags: &'static [&'static str],
) -> [Packet; 2] {
    [Hook::Prerouting, Hook::Input].map(|hook| Packet {
        what: format!("{what} redirected to pepd"),
        hook,
        is_v6,
        input: by.clone(),
        output: PacketInterface::None,
        mark: MarkSet::new(config.intercept.marks).local(),
        state: "untracked",
        flags,
        is_of_host: false,
    })
}

fn redirected_syns(config: &Config, is_v6: bool, interface: String) -> Vec<Packet> {
    let by = PacketInterface::By(interface);
    redirected(config, is_v6, "hosts' SYNs", &by, &["syn"]).to_vec()
}

/// Returns a SYN on its way into the TUN of a LAN interface, if it takes that way.
fn held_syn(config: &Config, is_v6: bool, number: usize, lan: &Lan) -> Option<Packet> {
    config.defers().then_some(())?;
    let what = "held SYNs on the path to pepd's TUN";
    into_tun(config, is_v6, number, lan, what)
}

/// Returns a SYN on its way into the TUN of a LAN interface.
fn into_tun(config: &Config, is_v6: bool, number: usize, lan: &Lan, what: &str) -> Option<Packet> {
    Some(Packet {
        what: what.to_owned(),
        hook: Hook::Forward,
        is_v6,
        input: PacketInterface::By(lan.interface.clone()),
        output: PacketInterface::By(lan.tun.clone()?),
        mark: MarkSet::new(config.intercept.marks).hold(number),
        state: "untracked",
        flags: &["syn"],
        is_of_host: false,
    })
}

/// Returns pepd's packets of a family that must pass.
fn packets(config: &Config, is_v6: bool) -> Vec<Packet> {
    let marks = MarkSet::new(config.intercept.marks);
    let mut packets = Vec::new();
    for (number, of_lan) in lans(config).into_iter().enumerate() {
        let lan = PacketInterface::By(of_lan.interface.clone());
        // Where SYNs out of a TUN do not arrive, pepd takes them from the hosts' interface.
        let is_held = config.defers() || config.must_obey_forward();
        let tun = of_lan.tun.as_ref().filter(|_| is_held);
        let first = tun.unwrap_or(&of_lan.interface);
        packets.extend(redirected_syns(config, is_v6, first.clone()));
        packets.extend(redirected(config, is_v6, "hosts' packets", &lan, &["ack"]));
        packets.extend(held_syn(config, is_v6, number, &of_lan));
        packets.push(Packet {
            what: "pepd's SYN-ACKs to hosts".to_owned(),
            hook: Hook::Output,
            is_v6,
            input: PacketInterface::None,
            output: lan,
            mark: marks.client_leg(),
            state: "untracked",
            flags: &["syn", "ack"],
            is_of_host: false,
        });
    }
    let link = config.link.as_ref();
    packets.push(Packet {
        what: "pepd's SYNs to servers".to_owned(),
        hook: Hook::Output,
        is_v6,
        input: PacketInterface::None,
        output: link.map_or(PacketInterface::Unknown, |link| {
            PacketInterface::By(link.interface.to_string())
        }),
        mark: marks.server_leg(),
        state: "new",
        flags: &["syn"],
        is_of_host: false,
    });
    packets
}

/// Passage of SYNs of hosts to pepd through chains of other programs: of IPv4, and of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// SYNs that a listener answers at once.
    pub at_once: [Verdict; 2],
    /// SYNs on their way into a TUN, to be held.
    pub held: [Verdict; 2],
    /// SYNs that were held, on their way from the TUN to a listener.
    pub released: [Verdict; 2],
}

impl Arrival {
    /// Rules could not be read.
    pub(crate) const UNCLEAR: Self = Self {
        at_once: [Verdict::Unclear; 2],
        held: [Verdict::Unclear; 2],
        released: [Verdict::Unclear; 2],
    };

    fn of(config: &Config, tables: &[Table], is_complete: bool) -> Self {
        let worst = |packets: &[Packet]| {
            let fates = packets.iter().map(|packet| passage(tables, packet));
            let unread = (!is_complete).then_some(Verdict::Unclear);
            fates.chain(unread).max().unwrap_or(Verdict::Sound)
        };
        // A chain may drop what arrives by one interface only: no reason to give up the others.
        let all = |lans: Vec<Verdict>| match (lans.iter().min(), lans.iter().max()) {
            (Some(best), Some(worst)) if best == worst => *best,
            (None, _) => Verdict::Sound,
            _ => Verdict::Unclear,
        };
        let by_family = |syns: fn(&Config, bool, usize, &Lan) -> Vec<Packet>| {
            [false, true].map(|is_v6| {
                let lans = lans(config).into_iter().enumerate();
                let of_lan = |(number, lan)| worst(&syns(config, is_v6, number, &lan));
                all(lans.map(of_lan).collect())
            })
        };
        Self {
            at_once: by_family(|config, is_v6, _, lan| {
                redirected_syns(config, is_v6, lan.interface.clone())
            }),
            held: by_family(|config, is_v6, number, lan| {
                held_syn(config, is_v6, number, lan).into_iter().collect()
            }),
            released: by_family(|config, is_v6, _, lan| {
                let tun = lan.tun.clone();
                tun.map_or_else(Vec::new, |tun| redirected_syns(config, is_v6, tun))
            }),
        }
    }
}

/// Returns the effect of all chains on one packet.
fn passage(tables: &[Table], packet: &Packet) -> Verdict {
    let tables = tables.iter().filter(|table| table.sees(packet));
    let verdicts = tables.flat_map(|table| {
        let bases = table.chains.iter();
        let bases = bases.filter_map(|(name, chain)| Some((name, chain.base?)));
        let bases = bases.filter(|(_, base)| sees(*base, packet));
        bases.map(|(name, base)| match table.fate(name, base, packet) {
            Fate::Dropped { is_sure: true, .. } => Verdict::Broken,
            Fate::Dropped { is_sure: false, .. } => Verdict::Unclear,
            Fate::Accepted if table.drops_some(name, packet) => Verdict::Unclear,
            Fate::Accepted => Verdict::Sound,
        })
    });
    verdicts.max().unwrap_or(Verdict::Sound)
}

/// Returns whether a packet with pepd's mark passes a base chain.
fn sees(base: Base, packet: &Packet) -> bool {
    let is_marked = base.hook != Hook::Prerouting || base.priority > OURS;
    packet.hook == base.hook && is_marked
}

/// A chain that drops pepd's packets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Drop<'a> {
    table: &'a Table,
    chain: &'a str,
    by: String,
    is_sure: bool,
    packet: Packet,
}

/// Returns the first of pepd's packets that a chain drops; certain drops come before possible ones.
fn dropped<'a>(
    table: &'a Table,
    chain: &'a str,
    base: Base,
    packets: &[Packet],
) -> Option<Drop<'a>> {
    let seen = packets.iter();
    let seen = seen.filter(|packet| sees(base, packet) && table.sees(packet));
    let drops = seen.filter_map(|packet| match table.fate(chain, base, packet) {
        Fate::Accepted => None,
        Fate::Dropped { by, is_sure } => Some(Drop {
            table,
            chain,
            by,
            is_sure,
            packet: packet.clone(),
        }),
    });
    let mut drops: Vec<_> = drops.collect();
    drops.sort_by_key(|drop| !drop.is_sure);
    drops.into_iter().next()
}

/// Returns a finding for each chain of other programs that drops pepd's packets, or may.
fn drops(config: &Config, tables: &[Table], families: &[bool], evidence: Evidence) -> Vec<Finding> {
    let packets: Vec<_> = families
        .iter()
        .flat_map(|is_v6| packets(config, *is_v6))
        .collect();
    let mut findings = Vec::new();
    for table in tables {
        for (name, chain) in &table.chains {
            let Some(base) = chain.base else { continue };
            let drop = dropped(table, name, base, &packets);
            findings.extend(drop.and_then(|drop| finding(config, &drop, evidence)));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            WHAT,
            "found no chain of another program that drops pepd's packets",
        ));
    }
    findings
}

pub(super) const WHAT: &str = "firewall";

/// Words of a finding about rules that certainly drop packets.
pub(super) const DROPS: &str = " drops ";

/// Returns a finding; `None` for a possible drop that the evidence refutes.
fn finding(config: &Config, drop: &Drop<'_>, evidence: Evidence) -> Option<Finding> {
    let Drop {
        table,
        chain,
        by,
        is_sure,
        packet,
    } = drop;
    let state = match (is_sure, evidence.accepted) {
        (false, 0) => State::Warn,
        (false, _) => return None,
        (true, _) if evidence.flows[usize::from(packet.is_v6)] => State::Info,
        (true, 0) => State::Fail,
        (true, _) => State::Warn,
    };
    let verb = if *is_sure { "drops" } else { "may drop" };
    let seen = format!(
        "{}, chain {chain}: {by} {verb} {} (mark {:#010x}/{:#010x})",
        table.name,
        packet.what,
        packet.mark,
        MarkSet::new(config.intercept.marks).mask()
    );
    Some(Finding::new(state, WHAT, seen, remedy(config, drop)))
}

/// Returns advice about a chain, with the heading of the recipe that makes it permanent.
fn remedy(config: &Config, drop: &Drop<'_>) -> String {
    let recipe = recipe(drop.table);
    let by = format!("permanent fix: {RECIPES}, \"{recipe}\"");
    let mark = drop.packet.mark;
    let mask = MarkSet::new(config.intercept.marks).mask();
    let (chain, table) = (drop.chain, &drop.table.name);
    if drop.by.starts_with("the reverse path check") {
        return format!("remove that check, or make it ignore marks: {by}");
    }
    let accept = match drop.packet.hook {
        Hook::Forward => {
            "repeat your rules for the uplink with this output interface; or accept them all, also those that you close"
        }
        _ => "accept them there",
    };
    match drop.packet.hook {
        _ if recipe == "firewalld" => format!("firewalld accepts no rules of other programs: {by}"),
        hook if drop.table.is_iptables => {
            let (program, name) = table.split_once(' ').unwrap_or((table, "filter"));
            let is = match (hook, &drop.packet.output) {
                (Hook::Forward, PacketInterface::By(tun)) => format!("-o {tun}"),
                _ => format!("-m mark --mark {mark:#010x}/{mask:#010x}"),
            };
            format!("{accept}: {program} -t {name} -I {chain} {is} -j ACCEPT\n{by}")
        }
        hook => {
            let is = match (hook, &drop.packet.output) {
                (Hook::Forward, PacketInterface::By(tun)) => format!("oifname {tun}"),
                _ => format!("meta mark and {mask:#010x} == {mark:#010x}"),
            };
            format!("{accept}: nft insert rule {table} {chain} {is} accept\n{by}")
        }
    }
}

/// Returns the heading in the documentation that describes the fix.
fn recipe(table: &Table) -> &'static str {
    let has = |prefix: &str| table.chains.keys().any(|name| name.starts_with(prefix));
    match table.name.as_str() {
        "inet firewalld" => "firewalld",
        "inet fw4" => "OpenWrt (fw4)",
        name if name.contains("wg-quick") => "wg-quick",
        _ if has("ufw") => "ufw",
        _ if has("DOCKER") => "Docker",
        _ if has("ts-") => "Tailscale",
        _ if table.is_iptables => "iptables",
        _ => "nftables",
    }
}

/// Rules that clamp the MSS of hosts' SYNs over the link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clamped {
    /// Minimum of each family, in bytes.
    pub minimum: [Option<u16>; 2],
    /// Chain with the overall minimum.
    by: Option<String>,
}

impl Clamped {
    /// Finds clamps in chains that pepd's own SYNs do not traverse. A rule that takes the MTU of
    /// the route tells nothing that pepd's sockets do not know themselves.
    fn find(
        config: &Config,
        uplink: &PacketInterface,
        tables: &[Table],
        families: &[bool],
    ) -> Self {
        let mut clamped = Self::default();
        let of_family = |is_v6: &bool| forwarded(config, uplink, *is_v6);
        let packets = families.iter().flat_map(of_family);
        for packet in packets {
            for table in tables.iter().filter(|table| table.sees(&packet)) {
                for (chain, clamp) in table.clamps(&packet) {
                    let place = || format!("{}, chain {chain}", table.name);
                    if let Some(bytes) = clamp.bytes().filter(|bytes| MSS.contains(bytes)) {
                        clamped.note(packet.is_v6, bytes, place);
                    }
                }
            }
        }
        clamped
    }

    fn note(&mut self, is_v6: bool, bytes: u16, place: impl FnOnce() -> String) {
        if self
            .minimum
            .iter()
            .flatten()
            .all(|minimum| bytes < *minimum)
        {
            self.by = Some(place());
        }
        let minimum = &mut self.minimum[usize::from(is_v6)];
        *minimum = Some(minimum.map_or(bytes, |minimum| minimum.min(bytes)));
    }

    /// Returns a finding if such a rule exists.
    fn finding(&self) -> Option<Finding> {
        let minimum = self.minimum.iter().flatten().min()?;
        let by = self.by.as_ref()?;
        Some(Finding::ok(
            "MSS clamp",
            format!(
                "{by}, sets the MSS of hosts' SYNs to {minimum} bytes: pepd's connections to servers use no larger one"
            ),
        ))
    }
}

/// Returns SYNs of hosts on their path over the link without pepd.
fn forwarded(config: &Config, uplink: &PacketInterface, is_v6: bool) -> Vec<Packet> {
    let syns = |lan: Lan| {
        let input = PacketInterface::By(lan.interface);
        [
            (Hook::Prerouting, PacketInterface::None),
            (Hook::Forward, uplink.clone()),
        ]
        .map(|(hook, output)| Packet {
            what: "hosts' SYNs".to_owned(),
            hook,
            is_v6,
            input: input.clone(),
            output,
            mark: 0,
            state: "new",
            flags: &["syn"],
            is_of_host: false,
        })
    };
    lans(config).into_iter().flat_map(syns).collect()
}

#[cfg(test)]
#[path = "firewall_tests.rs"]
mod tests;
