//! Two independent holds on packets of sites with `clear = "never"`, which outlive pepd: a table of
//! nft, and policy rules.
//!
//! ```text
//! H    rule  iif lo            goto H+2
//! H    rule  fwmark MARK/mask  goto H+2
//! H+1  rule  from HOSTS        blackhole
//! H+2  rule                    nop
//! ```
//!
//! for IPv4 and IPv6, with a rule for each of pepd's marks on packets of hosts. The table sets such
//! a mark, so the policy rules drop packets only while the table is missing: `nft flush ruleset`
//! removes it. The first rule exempts packets of this machine, and reverse look-ups.
//!
//! Each rule has `intercept.route_table`, which no other pepd has, though the kernel ignores it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use ipnet::IpNet;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::InterfaceFlags,
};
use pep_core::config::Config;
use rtnetlink::Error;

use super::{
    InterceptError, cannot,
    filter::FilterError,
    lan::network_of,
    netlink::{Netlink, RouteError},
    nft::{self, Installed, Nft, NftError},
    route::{
        FLOOR, OURS, address_family, all_rules, ignore, place_before, priority_of, remove_rule,
        table_of,
    },
    rules::{
        Counter, Device, Family, Features, Ruleset, hosts_never_in_clear, hosts_only,
        marks_that_pass,
    },
};

/// Both holds of a configuration.
#[derive(Debug)]
pub struct ClearHold {
    /// The table, with names of interfaces.
    ruleset: Ruleset,
    /// LAN interfaces that do not lead to the link.
    hosts_only: Vec<String>,
    lans: Lans,
    /// The LAN interfaces for which the table is written; `None` before the first look.
    devices: Option<Vec<Device>>,
    /// The table as last written.
    installed: Installed,
    policy: Policy,
}

/// The LAN interfaces, which stay the same when they get other names.
#[derive(Debug)]
struct Lans {
    names: Vec<String>,
    /// Indices of interfaces, and their names when they were first seen up. Before that an
    /// interface may have a temporary name.
    seen: BTreeMap<u32, String>,
}

impl Lans {
    /// Returns the present LAN interfaces, from all addresses of this machine.
    fn look(
        &mut self,
        addresses: &[InterfaceAddress],
        permanent: &BTreeSet<IpAddr>,
    ) -> Vec<Device> {
        let present = addresses.iter().filter_map(|address| {
            let index = address.address.as_ref()?.as_link_addr()?.ifindex();
            Some((index as u32, address))
        });
        let present: BTreeMap<u32, _> = present.collect();
        self.seen.retain(|index, _| present.contains_key(index));
        for (&index, address) in &present {
            if address.flags.contains(InterfaceFlags::IFF_UP) {
                let name = || address.interface_name.clone();
                self.seen.entry(index).or_insert_with(name);
            }
        }
        let lans = present.into_iter().filter_map(|(index, now)| {
            let name = self.seen.get(&index)?.clone();
            let of = |of: &&InterfaceAddress| of.interface_name == now.interface_name;
            let networks = addresses.iter().filter(of);
            let networks = networks.filter_map(|address| network_of(address, permanent));
            self.names.contains(&name).then(|| Device {
                name,
                index,
                networks: networks.collect(),
            })
        });
        lans.collect()
    }
}

/// State of the holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldState {
    /// True if the table exists, and no program has changed it since this one did.
    pub table: bool,
    /// True if the policy rules exist and come before those of other programs, as far as there is
    /// a place.
    pub policy: bool,
    /// Packets that the table has dropped since its installation.
    pub dropped: u64,
}

impl HoldState {
    /// Returns true if both holds are in place.
    pub fn is_whole(self) -> bool {
        self.table && self.policy
    }
}

impl ClearHold {
    /// Returns the holds of a configuration; `None` if no site has `clear = "never"`.
    pub fn new(config: &Config) -> Option<Self> {
        // IPv6 may be off on `lo` only, where pepd listens, while the kernel forwards it.
        let features = Features {
            ipv6: pepd_sys::sysctl("net/ipv6/conf/all/forwarding").is_some(),
            ..Features::FULL
        };
        let lans = config.intercept.lan.iter().map(ToString::to_string);
        Some(Self {
            ruleset: Ruleset::clear(config, features)?,
            hosts_only: hosts_only(config),
            lans: Lans {
                names: lans.collect(),
                seen: BTreeMap::new(),
            },
            devices: None,
            installed: Installed::default(),
            policy: Policy::new(config, features.families()),
        })
    }

    /// Looks at the LAN interfaces. Returns true if they differ from those of the last look.
    async fn look(&mut self, netlink: &Netlink) -> Result<bool, InterceptError> {
        let permanent = netlink.permanent_addresses().await?;
        let addresses: io::Result<Vec<_>> = getifaddrs().map(Iterator::collect).map_err(Into::into);
        let addresses = addresses.map_err(InterceptError::Ask)?;
        let devices = Some(self.lans.look(&addresses, &permanent));
        let before = std::mem::replace(&mut self.devices, devices);
        Ok(before != self.devices)
    }

    /// Installs both for the present LAN interfaces.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub async fn install(&mut self, netlink: &Netlink) -> Result<(), InterceptError> {
        self.look(netlink).await?;
        self.restore(netlink).await
    }

    /// Updates the installed table with LAN interfaces and their networks, if they have changed.
    ///
    /// # Errors
    /// When the kernel does not answer, or nft rejects the change.
    pub async fn update(&mut self, netlink: &Netlink) -> Result<(), InterceptError> {
        if !self.look(netlink).await? {
            return Ok(());
        }
        let devices = self.devices.as_deref().unwrap_or_default();
        let chains = self.ruleset.chains_for(devices, &self.hosts_only);
        let (table, mask) = (&self.ruleset.table, self.ruleset.mask);
        let texts = chains
            .iter()
            .map(|part| nft::chain_transaction(table, mask, &part.name, &part.rules));
        let text: String = texts.collect();
        let updated = apply(&text, "update the table of `clear = \"never\"`").await;
        // The next look tries again.
        updated.inspect_err(|_| self.devices = None)?;
        let rewritten = chains.iter().map(|part| part.name.as_str());
        let table = &self.ruleset.table;
        self.installed.remember_chains(table, rewritten);
        Ok(())
    }

    /// Installs both, and replaces those of an earlier configuration. No packet passes meanwhile.
    ///
    /// # Errors
    /// When nft is missing or rejects the table, or the kernel rejects a policy rule.
    pub async fn restore(&self, netlink: &Netlink) -> Result<(), InterceptError> {
        let devices = self.devices.as_deref().unwrap_or_default();
        let table = self.ruleset.for_devices(devices, &self.hosts_only);
        let text = nft::install_transaction(&table);
        apply(&text, "install the table of `clear = \"never\"`").await?;
        self.installed.remember(&self.ruleset.table);
        // The table comes first: without it the policy rules drop packets of all sites.
        Ok(self.policy.install(netlink).await?)
    }

    /// Returns the state of the holds.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn state(&self, netlink: &Netlink) -> Result<HoldState, InterceptError> {
        let changes = self.installed.changes(&self.ruleset.table);
        let table = changes.map_err(InterceptError::Ask)? == Some(0);
        let counters = nft::counters(&self.ruleset.table).unwrap_or_default();
        let dropped = counters.get(Counter::NotInClear.name().as_ref());
        Ok(HoldState {
            table,
            policy: self.policy.is_in_place(netlink).await?,
            dropped: dropped.copied().unwrap_or(0),
        })
    }
}

/// Removes both holds of any configuration with this nft table and this `route_table`.
///
/// # Errors
/// When nft cannot be run, or the kernel does not answer.
pub async fn lift(config: &Config, netlink: &Netlink) -> Result<(), InterceptError> {
    let policy = Policy {
        hosts: Vec::new(),
        ..Policy::new(config, Features::FULL.families())
    };
    // The policy rules go first: without the table they would drop more.
    policy.remove(netlink).await?;
    let table = format!("{}_clear", config.intercept.table);
    if nft::table_exists(&table).unwrap_or(false) {
        let text = nft::remove_transaction(&table);
        apply(&text, "remove the table of `clear = \"never\"`").await?;
    }
    Ok(())
}

async fn apply(transaction: &str, action: &'static str) -> Result<(), InterceptError> {
    let run = async { Nft::find().await?.apply(transaction).await };
    let applied: Result<(), NftError> = run.await;
    applied.map_err(FilterError::from).map_err(cannot(action))
}

/// The policy rules.
#[derive(Debug)]
struct Policy {
    families: &'static [Family],
    hosts: Vec<IpNet>,
    /// Marks of packets that pass.
    marks: Vec<u32>,
    mask: u32,
    table: u32,
    /// Priority of the first rule, where no rule of another program comes earlier.
    priority: u32,
}

/// A policy rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Exempts packets with this mark, or those of this machine; leads to the priority `end`.
    Skip {
        mark: Option<u32>,
        end: u32,
    },
    Drop(IpNet),
    End,
}

impl Part {
    fn is(self, rule: &RuleMessage) -> bool {
        let has = |attribute| rule.attributes.contains(&attribute);
        match self {
            Self::Skip { mark, end } => has(RuleAttribute::Goto(end)) && mark_of(rule) == mark,
            Self::Drop(net) => {
                let source = RuleAttribute::Source(net.addr());
                let of_all = net.prefix_len() == 0;
                rule.header.action == RuleAction::Blackhole
                    && rule.header.src_len == net.prefix_len()
                    && (of_all || has(source))
            }
            Self::End => rule.header.action == RuleAction::Nop,
        }
    }
}

fn mark_of(rule: &RuleMessage) -> Option<u32> {
    let mut attributes = rule.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        RuleAttribute::FwMark(mark) => Some(*mark),
        _ => None,
    })
}

impl Policy {
    fn new(config: &Config, families: &'static [Family]) -> Self {
        Self {
            families,
            hosts: hosts_never_in_clear(config),
            marks: marks_that_pass(config),
            table: config.intercept.route_table,
            mask: config.intercept.marks.mask(),
            priority: config.intercept.rule_priority.saturating_sub(4).max(1),
        }
    }

    /// Returns the rules of a family, from this priority on.
    fn rules(&self, family: Family, first: u32) -> Vec<(u32, Part)> {
        let of_family = |net: &&IpNet| net.addr().is_ipv4() == (family == Family::V4);
        let hosts: Vec<_> = self.hosts.iter().filter(of_family).collect();
        if hosts.is_empty() {
            return Vec::new();
        }
        let drops = hosts.into_iter().map(|net| (first + 1, Part::Drop(*net)));
        let end = first + 2;
        let marks = self.marks.iter().copied().map(Some);
        let skips = [None].into_iter().chain(marks);
        let skips = skips.map(|mark| (first, Part::Skip { mark, end }));
        // Those that drop come last, so that pepd's packets pass meanwhile.
        let all = [(end, Part::End)].into_iter().chain(skips).chain(drops);
        all.collect()
    }

    /// Returns true for one of these rules, of any configuration.
    fn is_own(&self, rule: &RuleMessage) -> bool {
        let leads = rule.header.action == RuleAction::ToTable;
        rule.attributes.contains(&OURS) && !leads && table_of(rule) == self.table
    }

    /// Returns the priority that puts the rules ahead of those of other programs, as far as there
    /// is one.
    fn first(&self, all: &[RuleMessage]) -> u32 {
        // pepd's other rules lie between: they would be skipped if both moved by themselves.
        let place = 1..=self.priority + 5;
        let others = all.iter().filter(|rule| !rule.attributes.contains(&OURS));
        let ahead = others.map(priority_of).filter(|at| place.contains(at));
        place_before(ahead.min(), 6, self.priority, FLOOR)
    }

    async fn install(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            let all = all_rules(netlink, family).await?;
            let wanted = self.rules(family, self.first(&all));
            for &(priority, part) in &wanted {
                self.add(netlink, family, priority, part).await?;
            }
            for rule in all.into_iter().filter(|rule| self.is_own(rule)) {
                let is_wanted =
                    |(at, part): &(u32, Part)| *at == priority_of(&rule) && part.is(&rule);
                if !wanted.iter().any(is_wanted) {
                    remove_rule(netlink, rule).await?;
                }
            }
        }
        Ok(())
    }

    async fn add(
        &self,
        netlink: &Netlink,
        family: Family,
        priority: u32,
        part: Part,
    ) -> Result<(), RouteError> {
        let request = netlink.handle.rule().add().priority(priority);
        let request = request.table_id(self.table);
        let mut request = match part {
            Part::Skip { mark, .. } => match mark {
                Some(mark) => request.fw_mark(mark),
                None => request.input_interface("lo"),
            }
            .action(RuleAction::Goto),
            Part::Drop(_) => request.action(RuleAction::Blackhole),
            Part::End => request.action(RuleAction::Nop),
        };
        let message = request.message_mut();
        message.header.family = address_family(family);
        message.attributes.push(OURS);
        match part {
            Part::Skip { mark, end } => {
                let mask = mark.map(|_| RuleAttribute::FwMask(self.mask));
                message.attributes.extend(mask);
                message.attributes.push(RuleAttribute::Goto(end));
            }
            Part::Drop(net) => {
                message.header.src_len = net.prefix_len();
                message.attributes.push(RuleAttribute::Source(net.addr()));
            }
            Part::End => {}
        }
        let added = request.execute().await;
        let added: Result<(), Error> = added.or_else(|err| ignore(err, &[libc::EEXIST]));
        let what = "cannot add a policy rule of `clear = \"never\"`";
        added.map_err(|err| RouteError::new(what, err))
    }

    async fn is_in_place(&self, netlink: &Netlink) -> Result<bool, RouteError> {
        for &family in self.families {
            let all = all_rules(netlink, family).await?;
            let own: Vec<_> = all.iter().filter(|rule| self.is_own(rule)).collect();
            let wanted = self.rules(family, self.first(&all));
            let is_there = |(at, part): &(u32, Part)| {
                own.iter()
                    .any(|rule| *at == priority_of(rule) && part.is(rule))
            };
            if !wanted.iter().all(is_there) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn remove(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            for rule in all_rules(netlink, family).await? {
                if self.is_own(&rule) {
                    remove_rule(netlink, rule).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::CLEAR_HEAD as HEAD;

    const SITE: &str = r#"
        [[site]]
        name = "secret"
        mode = "tunnel"
        peer = "hub"
        clear = "never"
        match = { src = ["10.0.0.0/25", "10.0.0.128/25", "fd00::/8"] }
    "#;

    fn policy(priority: u32) -> Policy {
        let head = HEAD.replace(
            "[intercept]",
            &format!("[intercept]\nrule_priority = {priority}"),
        );
        let config = pep_core::config::parse(&format!("{head}{SITE}")).expect("valid");
        Policy::new(&config, &Family::ALL)
    }

    fn rule_of_another(priority: u32) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.attributes.push(RuleAttribute::Priority(priority));
        rule
    }

    #[test]
    fn hosts_are_dropped_between_the_exemption_and_its_end() {
        let net = |text: &str| Part::Drop(text.parse().expect("a prefix"));
        let rules = |family| policy(100).rules(family, 96);
        let skip = |mark| (96, Part::Skip { mark, end: 98 });
        // SYNs forwarded as they came, packets for pepd; no site defers.
        let marks = [0x5200_0000, 0x5300_0000].map(|mark| skip(Some(mark)));
        let around = |drop| vec![(98, Part::End), skip(None), marks[0], marks[1], (97, drop)];
        assert_eq!(rules(Family::V4), around(net("10.0.0.0/24")));
        assert_eq!(rules(Family::V6), around(net("fd00::/8")));
    }

    #[test]
    fn the_rules_come_before_those_of_others() {
        let usual = policy(100);
        assert_eq!(usual.first(&[]), 96);
        assert_eq!(usual.first(&[rule_of_another(32_766)]), 96);
        assert_eq!(usual.first(&[rule_of_another(98)]), 92);
        assert_eq!(usual.first(&[rule_of_another(101)]), 95);
        assert_eq!(usual.first(&[rule_of_another(50), rule_of_another(60)]), 44);
        assert_eq!(usual.first(&[rule_of_another(2)]), 10, "the floor");
        assert_eq!(policy(1).first(&[]), 1);
    }
}
