//! Policy rules and routes, over rtnetlink.
//!
//! ```text
//! rule  fwmark LOCAL/mask  lookup T      T:      local default dev lo
//! rule  fwmark HOLD_k/mask lookup T+1+k  T+1+k:  default dev TUN_k
//! ```
//!
//! The TUNs of packets have the numbers behind those of LAN interfaces.
//!
//! for IPv4 and IPv6. A table without its TUN is empty, and the look-up goes on to the main table.

use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use pep_core::config::{Config, Intercept};
use rtnetlink::{Error, IpVersion, RouteMessageBuilder};

use super::{
    netlink::{Netlink, RouteError, interface},
    rules::Family,
};
use crate::marks::MarkSet;

/// Our rules and routes say that they come from this protocol (`ip rule`: `proto 80`), so that
/// leftovers are known as ours. Not assigned in iproute2's rt_protos; `P` in ASCII.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(80);

/// What our rules have, and no others.
const OURS: RuleAttribute = RuleAttribute::Protocol(PROTOCOL);

/// TUNs of any configuration at most: of LAN interfaces, and of sites of mode `packet`.
const TUNS_MAX: u32 = 64 + 16;

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
}

impl Routing {
    /// What this configuration needs.
    pub fn new(config: &Config, families: &'static [Family]) -> Self {
        let intercept: &Intercept = &config.intercept;
        Self {
            families,
            marks: MarkSet::new(intercept.marks),
            table: intercept.route_table,
            tables: 1 + (intercept.lan.len() + config.packet_sites().count()) as u32,
            priority: intercept.rule_priority,
        }
    }

    /// The table by which a TUN is reached.
    pub fn tun_table(&self, lan: usize) -> u32 {
        self.table + 1 + lan as u32
    }

    /// The commands that do the same: local delivery, and the way into each TUN, by name.
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

    /// Shell commands that remove what [`commands`](Self::commands) add, whatever is left of it; they
    /// fail where nothing is.
    pub fn removing_commands(&self) -> Vec<String> {
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
        let both = |ip| tables.clone().flat_map(move |table| of_table(ip, table));
        families.flat_map(both).collect()
    }

    /// Installs local delivery, and the way into each TUN: (its number, its interface index). What is there already stays as it is.
    ///
    /// # Errors
    /// At the first rule or route that the kernel refuses; what is there already stays.
    pub async fn install(
        &self,
        netlink: &Netlink,
        tuns: &[(usize, u32)],
    ) -> Result<(), RouteError> {
        for &family in self.families {
            let local = (RouteType::Local, RouteScope::Host);
            self.add_route(netlink, family, self.table, LOOPBACK, local)
                .await?;
            self.add_rule(netlink, family, self.marks.local(), self.table)
                .await?;
            for &(lan, index) in tuns {
                let table = self.tun_table(lan);
                let plain = (RouteType::Unicast, RouteScope::Universe);
                self.add_route(netlink, family, table, index, plain).await?;
                self.add_rule(netlink, family, self.marks.hold(lan), table)
                    .await?;
            }
        }
        Ok(())
    }

    /// Whether all that [`install`](Self::install) installs for these TUNs has its effect.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn is_in_place(
        &self,
        netlink: &Netlink,
        tuns: &[(usize, u32)],
    ) -> Result<bool, RouteError> {
        if !self.delivers(netlink).await? {
            return Ok(false);
        }
        for &family in self.families {
            for &(lan, index) in tuns {
                let way = way(netlink, family, self.marks.hold(lan)).await?;
                if way.is_none_or(|(_, interface)| interface != Some(index)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether packets that are redirected are delivered.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn delivers(&self, netlink: &Netlink) -> Result<bool, RouteError> {
        for &family in self.families {
            let way = way(netlink, family, self.marks.local()).await?;
            if way.is_none_or(|(kind, _)| kind != RouteType::Local) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the rules of a configuration with more TUNs, which was ours before a reload. Their routes have gone with the TUNs.
    ///
    /// # Errors
    /// At the first that cannot be listed or removed.
    pub async fn remove_surplus(&self, netlink: &Netlink) -> Result<(), RouteError> {
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
            if !which(&rule) {
                continue;
            }
            let removed = netlink.handle.rule().del(rule).execute().await;
            removed
                .or_else(ignore_missing)
                .map_err(|err| RouteError::new("cannot remove a policy rule", err))?;
        }
        Ok(())
    }

    /// Removes every rule and route in our tables that is marked as ours, whoever left it.
    ///
    /// # Errors
    /// At the first that cannot be listed or removed.
    pub async fn remove(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            let is_ours = |rule: &RuleMessage| self.is_our_rule(rule) || self.is_surplus(rule);
            self.remove_rules(netlink, family, is_ours).await?;
            for route in self.leftover_routes(netlink, family).await? {
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
        mark: u32,
        table: u32,
    ) -> Result<(), RouteError> {
        let mut request = netlink
            .handle
            .rule()
            .add()
            .table_id(table)
            .action(RuleAction::ToTable)
            .priority(self.priority)
            .fw_mark(mark);
        let message = request.message_mut();
        message.header.family = address_family(family);
        message.attributes.extend([
            RuleAttribute::FwMask(self.marks.mask()),
            RuleAttribute::Protocol(PROTOCOL),
        ]);
        let what = || format!("cannot add a policy rule for table {table}");
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
        let what = || format!("cannot add the route of table {table}");
        let added = netlink.handle.route().add(route).replace().execute().await;
        added.map_err(|err| RouteError::new(what(), err))
    }

    fn is_our_rule(&self, rule: &RuleMessage) -> bool {
        self.is_our_table(table_of(rule)) && rule.attributes.contains(&OURS)
    }

    /// Whether a rule is as one of ours for a TUN beyond those that there are. Another pepd has other marks.
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

    async fn leftover_routes(
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
            .filter(|route| self.is_our_route(route))
            .collect())
    }

    fn is_our_route(&self, route: &RouteMessage) -> bool {
        let table = route
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Table(table) => Some(*table),
                _ => None,
            });
        route.header.protocol == PROTOCOL
            && self.is_our_table(table.unwrap_or(u32::from(route.header.table)))
    }

    fn is_our_table(&self, table: u32) -> bool {
        (self.table..self.table + self.tables).contains(&table)
    }
}

async fn all_rules(netlink: &Netlink, family: Family) -> Result<Vec<RuleMessage>, RouteError> {
    let version = match family {
        Family::V4 => IpVersion::V4,
        Family::V6 => IpVersion::V6,
    };
    let all = netlink.handle.rule().get(version).execute();
    let all = all.try_collect().await;
    all.map_err(|err| RouteError::new("cannot list policy rules", err))
}

fn table_of(rule: &RuleMessage) -> u32 {
    let mut attributes = rule.attributes.iter();
    let table = attributes.find_map(|attribute| match attribute {
        RuleAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(u32::from(rule.header.table))
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// What is gone already need not be removed.
fn ignore_missing(err: Error) -> Result<(), Error> {
    ignore(err, &[libc::ESRCH, libc::ENOENT, libc::ENODEV])
}

fn ignore(err: Error, codes: &[i32]) -> Result<(), Error> {
    match &err {
        Error::NetlinkError(message) if codes.contains(&-message.raw_code()) => Ok(()),
        _ => Err(err),
    }
}

/// Where a packet with this mark goes whose address is nobody's (one for documentation: RFC 5737,
/// RFC 3849): the type of the route and the interface. `None` when it goes nowhere.
async fn way(
    netlink: &Netlink,
    family: Family,
    mark: u32,
) -> Result<Option<(RouteType, Option<u32>)>, RouteError> {
    let nobody = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let route = netlink.look_up(nobody, mark).await?;
    Ok(route.map(|route| (route.header.kind, interface(&route))))
}
