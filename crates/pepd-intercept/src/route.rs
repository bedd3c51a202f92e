//! Policy rules and routes, over rtnetlink.
//!
//! ```text
//! P-1  rule  iif lo fwmark LOCAL/mask  goto P+1
//! P    rule  fwmark LOCAL/mask         lookup T      T:      local default dev lo
//! P    rule  fwmark HOLD_k/mask        lookup T+1+k  T+1+k:  default dev TUN_k
//! P+1  rule  fwmark LOCAL/mask         nop
//! ```
//!
//! for IPv4 and IPv6. The TUNs of packets are numbered after those of LAN interfaces. A table
//! without its TUN is empty, and the look-up continues with the main table.
//!
//! The first rule serves reverse look-ups, which check if a packet's source is behind its input
//! interface. The kernel (`src_valid_mark`) and rules of other programs (`fib saddr . mark`) look
//! it up with the packet's mark, as if the packet came from `lo`. Without the rule every host would
//! seem local.
//!
//! P is `intercept.rule_priority`, or less. Rules without an explicit priority (`ip rule add`) get
//! the number before the first one's, and would divert pepd's packets. So pepd moves its rules
//! ahead of them, and back once they are gone: otherwise each reconnection of a VPN would move both
//! on, to the first number. From there on the kernel gives such rules the number 0, and keeps them
//! in the order of their addition, which none of these programs expects.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use futures_util::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};
use pep_core::config::{Config, Intercept};
use pepd_sys::{
    marks::MarkSet,
    places::{ROUTE_PROTOCOL, unused_address},
};
use rtnetlink::{Error, IpVersion, RouteMessageBuilder};

use super::{
    lan::lan_hosts,
    netlink::{LanHost, Netlink, RouteError, interface},
    rules::Family,
};

/// Routing protocol that marks pepd's rules and routes (`ip rule`: `proto 80`), by which pepd finds
/// leftovers. Not assigned in iproute2's rt_protos; `P` in ASCII.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(ROUTE_PROTOCOL);

/// Attribute of pepd's rules, and of no others.
pub(super) const OURS: RuleAttribute = RuleAttribute::Protocol(PROTOCOL);

/// Lowest number that rules of `clear_hold.rs` take to come ahead of others, unless configured. The
/// others of pepd follow three numbers later.
pub(super) const FLOOR: u32 = 10;

/// Maximum number of TUNs of any configuration: of LAN interfaces, and two of each of 16 sites of
/// mode `boost`.
const TUNS_MAX: u32 = 64 + 2 * 16;

/// Index of the loopback interface, the same in every network namespace.
const LOOPBACK: u32 = 1;

/// The rules and routes of a configuration.
#[derive(Debug, Clone)]
pub struct Routing {
    families: &'static [Family],
    marks: MarkSet,
    table: u32,
    tables: u32,
    priority: u32,
    lans: Vec<String>,
}

impl Routing {
    /// Returns the rules and routes that this configuration needs.
    pub fn new(config: &Config, families: &'static [Family]) -> Self {
        let intercept: &Intercept = &config.intercept;
        Self {
            families,
            marks: MarkSet::new(intercept.marks),
            table: intercept.route_table,
            tables: 1 + (intercept.lan.len() + config.packet_tuns()) as u32,
            priority: intercept.rule_priority,
            lans: intercept.lan.iter().map(ToString::to_string).collect(),
        }
    }

    /// Returns true if the rules are installed and the kernel would deliver the redirected packets
    /// of hosts of each LAN interface that is up.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn works(&self, netlink: &Netlink) -> Result<bool, RouteError> {
        for &family in self.families {
            if self.rules_of(netlink, family, &[]).await? == Rules::Missing {
                return Ok(false);
            }
        }
        let hosts = lan_hosts(&self.lans).map_err(|err| RouteError {
            what: "cannot list addresses".to_owned(),
            err,
        })?;
        for host in hosts
            .iter()
            .filter(|host| self.families.contains(&host.family()))
        {
            if !self.delivers(netlink, host).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns LAN hosts of the machine's networks, as sources of route look-ups.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(crate) fn lan_hosts(&self) -> io::Result<Vec<LanHost>> {
        lan_hosts(&self.lans)
    }

    /// Returns the policy rules of other programs that route packets of hosts but not those of
    /// pepd: by a LAN interface, or by a whole mark, whose other bits a server leg lacks. They are
    /// named as by `ip rule`.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn for_hosts_only(&self, netlink: &Netlink) -> Result<Vec<String>, RouteError> {
        let mut found = Vec::new();
        for &family in self.families {
            for rule in all_rules(netlink, family).await? {
                found.extend(self.why_for_hosts_only(&rule));
            }
        }
        Ok(found)
    }

    fn why_for_hosts_only(&self, rule: &RuleMessage) -> Option<String> {
        let leads = rule.header.action == RuleAction::ToTable;
        if !leads
            || rule.attributes.contains(&OURS)
            || rule.header.flags.contains(RuleFlags::Invert)
        {
            return None;
        }
        let ours = self.marks.mask();
        let mut attributes = rule.attributes.iter();
        let mask = attributes.find_map(|attribute| match attribute {
            RuleAttribute::FwMask(mask) => Some(*mask),
            _ => None,
        });
        let mask = mask.unwrap_or(u32::MAX);
        let selector = rule
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RuleAttribute::Iifname(name) if self.lans.contains(name) => {
                    Some(format!("iif {name}"))
                }
                RuleAttribute::FwMark(mark) if mark & !ours != 0 && mask & ours != 0 => {
                    Some(format!("fwmark {mark:#x} without a mask"))
                }
                _ => None,
            });
        Some(format!("{} ({})", selector?, describe(rule)))
    }

    /// Returns the names of the LAN interfaces.
    pub fn lans(&self) -> &[String] {
        &self.lans
    }

    /// Returns the families in use.
    pub fn families(&self) -> &'static [Family] {
        self.families
    }

    /// Returns the number of the table that leads to a TUN.
    pub(crate) fn tun_table(&self, lan: usize) -> u32 {
        self.table + 1 + lan as u32
    }

    /// Returns equivalent commands: local delivery, and the route into each TUN, by name.
    pub fn commands(&self, tuns: &[(usize, String)]) -> Vec<String> {
        let (protocol, priority) = (u8::from(PROTOCOL), self.priority);
        let rule = |ip: &str, mark: u32, table: u32| {
            let mask = self.marks.mask();
            format!(
                "{ip} rule add fwmark {mark:#010x}/{mask:#010x} lookup {table} \
                 priority {priority} protocol {protocol}"
            )
        };
        let mut commands = Vec::new();
        for family in self.families {
            let ip = match family {
                Family::V4 => "ip -4",
                Family::V6 => "ip -6",
            };
            let table = self.table;
            commands.push(format!(
                "{ip} route add local default dev lo table {table} protocol {protocol}"
            ));
            let local = format!(
                "fwmark {:#010x}/{:#010x}",
                self.marks.local(),
                self.marks.mask()
            );
            let (before, end) = (priority - 1, priority + 1);
            commands.push(format!(
                "{ip} rule add {local} nop priority {end} protocol {protocol}"
            ));
            commands.push(format!(
                "{ip} rule add iif lo {local} goto {end} priority {before} protocol {protocol}"
            ));
            commands.push(rule(ip, self.marks.local(), table));
            for (lan, tun) in tuns {
                let table = self.tun_table(*lan);
                commands.push(format!(
                    "{ip} route add default dev {tun} table {table} protocol {protocol}"
                ));
                commands.push(rule(ip, self.marks.hold(*lan), table));
            }
        }
        commands
    }

    /// Returns shell commands that remove the result of [`commands`](Self::commands), as far as it
    /// exists. They fail where nothing is installed.
    pub(crate) fn removing_commands(&self) -> Vec<String> {
        let protocol = u8::from(PROTOCOL);
        let tables = self.table..self.table + self.tables;
        let of_table = |ip: &'static str, table: u32| {
            let rule = format!("{ip} rule del table {table} protocol {protocol}");
            [
                format!("while {rule}; do :; done"),
                format!("{ip} route flush table {table} protocol {protocol}"),
            ]
        };
        let families = self.families.iter().map(|family| match family {
            Family::V4 => "ip -4",
            Family::V6 => "ip -6",
        });
        let reverse = |ip: &str| {
            let (mark, mask) = (self.marks.local(), self.marks.mask());
            let rule =
                format!("{ip} rule del fwmark {mark:#010x}/{mask:#010x} protocol {protocol}");
            format!("while {rule}; do :; done")
        };
        let all = |ip| {
            let of_tables = tables.clone().flat_map(move |table| of_table(ip, table));
            of_tables.chain([reverse(ip)])
        };
        families.flat_map(all).collect()
    }

    /// Installs, for one family, local delivery and the route into each TUN (number and interface
    /// index). Existing rules and routes stay, unless rules of other programs come before them:
    /// then pepd's rules move.
    ///
    /// # Errors
    /// At the first rule or route that the kernel rejects; the earlier ones stay.
    pub async fn install(
        &self,
        netlink: &Netlink,
        family: Family,
        tuns: &[(usize, u32)],
    ) -> Result<(), RouteError> {
        let local = (RouteType::Local, RouteScope::Host);
        self.add_route(netlink, family, self.table, LOOPBACK, local)
            .await?;
        for &(lan, index) in tuns {
            let plain = (RouteType::Unicast, RouteScope::Universe);
            self.add_route(netlink, family, self.tun_table(lan), index, plain)
                .await?;
        }
        let all = all_rules(netlink, family).await?;
        let priority = self.place(&all);
        for wanted in self.rules(tuns, priority) {
            self.add_rule(netlink, family, wanted).await?;
        }
        // The new rules are in place, so no packet lacks a rule meanwhile.
        for rule in all {
            let is_old = self.is_our_rule(&rule) && !self.is_wanted(&rule, tuns, priority);
            if is_old {
                remove_rule(netlink, rule).await?;
            }
        }
        Ok(())
    }

    /// Returns the required rules, in the order of their installation.
    fn rules(&self, tuns: &[(usize, u32)], priority: u32) -> Vec<Wanted> {
        let rule = |mark, kind, priority| Wanted {
            mark,
            kind,
            priority,
        };
        let (local, end) = (self.marks.local(), priority + 1);
        let mut rules = vec![
            rule(local, Kind::End, end),
            rule(local, Kind::Reverse { end }, priority.saturating_sub(1)),
            rule(local, Kind::Table(self.table), priority),
        ];
        rules.extend(tuns.iter().map(|&(lan, _)| {
            let kind = Kind::Table(self.tun_table(lan));
            rule(self.marks.hold(lan), kind, priority)
        }));
        rules
    }

    /// Returns the priority that puts pepd's rules ahead of all rules of other programs, as far as
    /// there is one.
    fn place(&self, all: &[RuleMessage]) -> u32 {
        let others = all.iter().filter(|rule| self.is_ahead(rule));
        // pepd's last rule comes before it as well.
        place_before(others.map(priority_of).min(), 2, self.priority, FLOOR + 4)
    }

    /// Returns true for a rule of another program ahead of the usual place of pepd's rules that may
    /// divert packets with pepd's marks. The rule of the local table is always first, and rules of
    /// another pepd match other marks.
    fn is_ahead(&self, rule: &RuleMessage) -> bool {
        let is_before = (1..=self.priority + 1).contains(&priority_of(rule));
        is_before && !rule.attributes.contains(&OURS) && self.may_divert(rule)
    }

    /// Returns false for a rule that matches no packet with one of pepd's marks.
    fn may_divert(&self, rule: &RuleMessage) -> bool {
        if rule.header.action == RuleAction::Nop {
            return false;
        }
        if rule.header.flags.contains(RuleFlags::Invert) {
            return true;
        }
        let (mut mark, mut mask) = (None, u32::MAX);
        for attribute in &rule.attributes {
            match attribute {
                // Packets of this machine's sockets only.
                RuleAttribute::Oifname(_) => return false,
                RuleAttribute::FwMark(wanted) => mark = Some(*wanted),
                RuleAttribute::FwMask(wanted) => mask = *wanted,
                _ => {}
            }
        }
        let of_ours = mask & self.marks.mask();
        let matches = |ours: u32, wanted: u32| ours & of_ours == wanted & of_ours;
        let holds = (0..self.tables as usize - 1).map(|tun| self.marks.hold(tun));
        let mut ours = [self.marks.local()].into_iter().chain(holds);
        mark.is_none_or(|wanted| ours.any(|ours| matches(ours, wanted)))
    }

    /// Returns true for one of the [wanted](Self::rules) rules at this priority or an earlier one.
    fn is_wanted(&self, rule: &RuleMessage, tuns: &[(usize, u32)], priority: u32) -> bool {
        self.rules(tuns, priority)
            .iter()
            .any(|wanted| wanted.is(rule, self.marks.mask()))
    }

    /// Returns the state of the rules of a family, compared with the result of
    /// [`install`](Self::install).
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(crate) async fn rules_of(
        &self,
        netlink: &Netlink,
        family: Family,
        tuns: &[(usize, u32)],
    ) -> Result<Rules, RouteError> {
        let all = all_rules(netlink, family).await?;
        let mask = self.marks.mask();
        let ours: Vec<_> = all.iter().filter(|rule| self.is_our_rule(rule)).collect();
        let is_there = |wanted: &Wanted| {
            ours.iter()
                .any(|rule| wanted.is_but_for_priority(rule, mask))
        };
        if !self.rules(tuns, 0).iter().all(is_there) {
            return Ok(Rules::Missing);
        }
        let place = self.place(&all);
        let wanted = self.rules(tuns, place);
        let is_at_place = |wanted: &Wanted| ours.iter().any(|rule| wanted.is(rule, mask));
        let is_surplus = |rule: &&RuleMessage| !self.is_wanted(rule, tuns, place);
        let is_in_place = wanted.iter().all(is_at_place) && !ours.iter().any(is_surplus);
        let last = ours.iter().map(|rule| priority_of(rule)).max();
        let mut ahead = all.iter().filter(|rule| self.is_ahead(rule));
        let first = ahead.find(|rule| Some(priority_of(rule)) <= last);
        Ok(match (is_in_place, first.map(describe)) {
            (true, None) => Rules::InPlace,
            (false, None) => Rules::Displaced,
            (false, Some(rule)) => Rules::Behind(rule),
            (true, Some(rule)) => Rules::Stuck(rule),
        })
    }

    /// Returns true if the kernel would deliver redirected packets of a host of a LAN interface to
    /// pepd.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn delivers(&self, netlink: &Netlink, host: &LanHost) -> Result<bool, RouteError> {
        let address = unused_address(host.family());
        let route = netlink
            .look_up_from(address, self.marks.local(), host)
            .await?;
        Ok(route.is_some_and(|route| route.header.kind == RouteType::Local))
    }

    /// Returns true if held SYNs of a family are routed into their TUNs.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(crate) async fn leads_into_tuns(
        &self,
        netlink: &Netlink,
        family: Family,
        tuns: &[(usize, u32)],
    ) -> Result<bool, RouteError> {
        for &(lan, index) in tuns {
            let route = netlink
                .look_up(unused_address(family), self.marks.hold(lan))
                .await?;
            if route.is_none_or(|route| interface(&route) != Some(index)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the rules of pepd's earlier configuration with more TUNs, after a reload. Their
    /// routes vanished with the TUNs.
    ///
    /// # Errors
    /// At the first rule that cannot be listed or removed.
    pub(crate) async fn remove_surplus(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            let is_surplus = |rule: &RuleMessage| self.is_surplus(rule);
            self.remove_rules(netlink, family, is_surplus).await?;
        }
        Ok(())
    }

    async fn remove_rules(
        &self,
        netlink: &Netlink,
        family: Family,
        which: impl Fn(&RuleMessage) -> bool,
    ) -> Result<(), RouteError> {
        for rule in all_rules(netlink, family).await? {
            if which(&rule) {
                remove_rule(netlink, rule).await?;
            }
        }
        Ok(())
    }

    /// Removes every rule and route in pepd's tables with pepd's protocol, whichever process has
    /// installed it.
    ///
    /// # Errors
    /// At the first one that cannot be listed or removed.
    pub async fn remove(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            let is_ours = |rule: &RuleMessage| self.is_our_rule(rule) || self.is_surplus(rule);
            self.remove_rules(netlink, family, is_ours).await?;
            for route in self.routes(netlink, family).await? {
                if route.header.protocol != PROTOCOL {
                    continue;
                }
                let removed = netlink.handle.route().del(route).execute().await;
                removed
                    .or_else(ignore_missing)
                    .map_err(|err| RouteError::new("cannot remove a route", err))?;
            }
        }
        Ok(())
    }

    async fn add_rule(
        &self,
        netlink: &Netlink,
        family: Family,
        wanted: Wanted,
    ) -> Result<(), RouteError> {
        let request = netlink.handle.rule().add();
        let request = request.priority(wanted.priority).fw_mark(wanted.mark);
        let mut request = match wanted.kind {
            Kind::Table(table) => request.table_id(table).action(RuleAction::ToTable),
            Kind::Reverse { .. } => request.input_interface("lo").action(RuleAction::Goto),
            Kind::End => request.action(RuleAction::Nop),
        };
        let message = request.message_mut();
        message.header.family = address_family(family);
        message.attributes.extend([
            RuleAttribute::FwMask(self.marks.mask()),
            RuleAttribute::Protocol(PROTOCOL),
        ]);
        if let Kind::Reverse { end } = wanted.kind {
            message.attributes.push(RuleAttribute::Goto(end));
        }
        let what = || format!("cannot add a policy rule of priority {}", wanted.priority);
        let added = request.execute().await;
        let added = added.or_else(|err| ignore(err, &[libc::EEXIST]));
        added.map_err(|err| RouteError::new(what(), err))
    }

    async fn add_route(
        &self,
        netlink: &Netlink,
        family: Family,
        table: u32,
        interface: u32,
        (kind, scope): (RouteType, RouteScope),
    ) -> Result<(), RouteError> {
        let route = match family {
            Family::V4 => RouteMessageBuilder::<Ipv4Addr>::new()
                .table_id(table)
                .output_interface(interface)
                .kind(kind)
                .scope(scope)
                .protocol(PROTOCOL)
                .build(),
            Family::V6 => RouteMessageBuilder::<Ipv6Addr>::new()
                .table_id(table)
                .output_interface(interface)
                .kind(kind)
                .protocol(PROTOCOL)
                .build(),
        };
        let added = netlink.handle.route().add(route).replace().execute().await;
        added.map_err(|err| {
            let is_down = matches!(&err, Error::NetlinkError(message) if -message.raw_code() == libc::ENETDOWN);
            let what = match is_down && interface == LOOPBACK {
                true => "interface lo is down, but pepd needs it to receive packets: ip link set lo up".to_owned(),
                false => format!("cannot add the route of table {table}"),
            };
            RouteError::new(what, err)
        })
    }

    fn is_our_rule(&self, rule: &RuleMessage) -> bool {
        let has = |attribute| rule.attributes.contains(&attribute);
        let is_of_local = has(RuleAttribute::FwMark(self.marks.local()));
        let is_ours = match rule.header.action {
            RuleAction::ToTable => self.is_our_table(table_of(rule)),
            // Of these, rules of `clear_hold.rs` have pepd's table.
            _ => is_of_local && table_of(rule) != self.table,
        };
        has(OURS) && is_ours
    }

    /// Returns true for a rule of pepd for a TUN that no longer exists. Another pepd has other
    /// marks.
    fn is_surplus(&self, rule: &RuleMessage) -> bool {
        let number = table_of(rule).checked_sub(self.table + 1);
        let number = number.filter(|number| (self.tables - 1..TUNS_MAX).contains(number));
        let mark = number.and_then(|number| self.marks.hold_if_any(number));
        let has = |attribute| rule.attributes.contains(&attribute);
        mark.is_some_and(|mark| {
            has(OURS)
                && has(RuleAttribute::FwMark(mark))
                && has(RuleAttribute::FwMask(self.marks.mask()))
        })
    }

    /// Returns a routing table of pepd that has a route of another program.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub(crate) async fn table_of_others(
        &self,
        netlink: &Netlink,
    ) -> Result<Option<u32>, RouteError> {
        for &family in self.families {
            let routes = self.routes(netlink, family).await?;
            let mut others = routes.iter();
            if let Some(other) = others.find(|route| route.header.protocol != PROTOCOL) {
                return Ok(Some(table_of_route(other)));
            }
        }
        Ok(None)
    }

    /// Returns the routes in pepd's tables.
    async fn routes(
        &self,
        netlink: &Netlink,
        family: Family,
    ) -> Result<Vec<RouteMessage>, RouteError> {
        let query = match family {
            Family::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            Family::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };
        let all: Vec<RouteMessage> = netlink
            .handle
            .route()
            .get(query)
            .execute()
            .try_collect()
            .await
            .map_err(|err| RouteError::new("cannot list routes", err))?;
        Ok(all
            .into_iter()
            .filter(|route| self.is_our_table(table_of_route(route)))
            .collect())
    }

    fn is_our_table(&self, table: u32) -> bool {
        (self.table..self.table + self.tables).contains(&table)
    }
}

pub(super) async fn all_rules(
    netlink: &Netlink,
    family: Family,
) -> Result<Vec<RuleMessage>, RouteError> {
    let version = match family {
        Family::V4 => IpVersion::V4,
        Family::V6 => IpVersion::V6,
    };
    let all = netlink.handle.rule().get(version).execute();
    let all = all.try_collect().await;
    all.map_err(|err| RouteError::new("cannot list policy rules", err))
}

pub(super) fn table_of(rule: &RuleMessage) -> u32 {
    let mut attributes = rule.attributes.iter();
    let table = attributes.find_map(|attribute| match attribute {
        RuleAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(u32::from(rule.header.table))
}

fn table_of_route(route: &RouteMessage) -> u32 {
    let mut attributes = route.attributes.iter();
    let table = attributes.find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(u32::from(route.header.table))
}

pub(super) fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// Ignores the error of removing something that no longer exists.
fn ignore_missing(err: Error) -> Result<(), Error> {
    ignore(err, &[libc::ESRCH, libc::ENOENT, libc::ENODEV])
}

pub(super) fn ignore(err: Error, codes: &[i32]) -> Result<(), Error> {
    match &err {
        Error::NetlinkError(message) if codes.contains(&-message.raw_code()) => Ok(()),
        _ => Err(err),
    }
}

/// A required rule, for packets with `mark`.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    mark: u32,
    kind: Kind,
    priority: u32,
}

/// Effect of a rule.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Routes by a table.
    Table(u32),
    /// Leads a reverse look-up past pepd's rules, to the priority at which they end.
    Reverse { end: u32 },
    /// Target of [`Reverse`](Self::Reverse); rules of other programs follow.
    End,
}

impl Wanted {
    fn is(self, rule: &RuleMessage, mask: u32) -> bool {
        let leads = match self.kind {
            Kind::Reverse { end } => rule.attributes.contains(&RuleAttribute::Goto(end)),
            Kind::Table(_) | Kind::End => true,
        };
        leads && priority_of(rule) == self.priority && self.is_but_for_priority(rule, mask)
    }

    fn is_but_for_priority(self, rule: &RuleMessage, mask: u32) -> bool {
        let has = |attribute| rule.attributes.contains(&attribute);
        let is_of_kind = match self.kind {
            Kind::Table(table) => table_of(rule) == table,
            Kind::Reverse { .. } => rule.header.action == RuleAction::Goto,
            Kind::End => rule.header.action == RuleAction::Nop,
        };
        is_of_kind && has(RuleAttribute::FwMark(self.mark)) && has(RuleAttribute::FwMask(mask))
    }
}

/// State of the rules of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rules {
    /// All installed, ahead of others.
    InPlace,
    /// Some are missing.
    Missing,
    /// All installed, ahead of others, but not in their usual place, which is free again.
    Displaced,
    /// A rule of another program comes first: this one.
    Behind(String),
    /// A rule of another program comes first, and there is no place ahead of it.
    Stuck(String),
}

/// Returns the place for rules that come `ahead` of the first rule of another program, if there is
/// one: the `usual` place, or an earlier one, but none below `least` unless the usual one is.
pub(super) fn place_before(first: Option<u32>, ahead: u32, usual: u32, least: u32) -> u32 {
    let least = if usual > least { least } else { 1 };
    first.map_or(usual, |first| {
        first.saturating_sub(ahead).clamp(least, usual)
    })
}

pub(super) fn priority_of(rule: &RuleMessage) -> u32 {
    let mut attributes = rule.attributes.iter();
    let priority = attributes.find_map(|attribute| match attribute {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    priority.unwrap_or(0)
}

/// Returns a description by which an operator finds the rule in `ip rule`.
fn describe(rule: &RuleMessage) -> String {
    format!("priority {}, table {}", priority_of(rule), table_of(rule))
}

pub(super) async fn remove_rule(netlink: &Netlink, rule: RuleMessage) -> Result<(), RouteError> {
    let removed = netlink.handle.rule().del(rule).execute().await;
    removed
        .or_else(ignore_missing)
        .map_err(|err| RouteError::new("cannot remove a policy rule", err))
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
