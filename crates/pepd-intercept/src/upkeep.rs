//! Upkeep of the installed rules and routes against changes by other programs.
//!
//! `nft flush ruleset` (the first line of reloading nftables.service) removes pepd's table, and
//! `iptables -F` its rules of iptables. Network
//! managers delete policy rules that they did not install. Rules without a priority
//! (`ip rule add from ...`) come before pepd's. Setting `lo` down deletes IPv6 routes. Without the
//! table connections pass unaccelerated; without local delivery the kernel drops what the table
//! redirects.

use std::fmt;

use pepd_sys::{gate::Gate, notices::Changes};

use super::{
    InterceptError, Interception, cannot,
    filter::{FilterError, InKernel},
    netlink::{self, LanHost},
    nft,
    route::Rules,
    rules::Family,
    setup, tun,
};

/// A difference from the installed state, or a lack of its effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The nft table is missing, or rules of iptables are missing or not in their place.
    Table,
    /// Other programs have changed this number of rules of the nft table.
    Changed(usize),
    /// The nft table or policy rules of `clear = "never"` are missing or not in their place.
    Clear,
    /// A TUN of pepd is down, or lacks its address or its loose reverse path check.
    Tun(String),
    /// Policy rules, or routes in pepd's tables, of the family are missing.
    Routing(Family),
    /// pepd's policy rules of the family come after this one of another program.
    Behind(Family, String),
    /// Packets of the family are diverted by this policy rule of another program, and there is no
    /// place ahead of it: the program has moved it, and pepd its own, to the first numbers.
    Stuck(Family, String),
    /// The usual place of pepd's policy rules of the family is free again.
    Displaced(Family),
    /// All is installed, but the kernel would not deliver redirected packets of hosts of this
    /// interface.
    Undelivered(Family, String),
    /// The kernel filters packets of this bridge too early to redirect them.
    Bridge(Family, String),
    /// IPv6 has been disabled.
    Off,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => f.write_str("pepd's rules were removed by another program"),
            Self::Changed(rules) => write!(
                f,
                "another program has changed rules of pepd's table, {rules} in all (a saved rule set was restored?)"
            ),
            Self::Clear => f.write_str(
                "one of the holds of `clear = \"never\"` was removed or changed by another program, or came after its rules",
            ),
            Self::Routing(family) => write!(
                f,
                "pepd's policy rules or routes for {family} were removed by another program"
            ),
            Self::Behind(family, rule) => write!(
                f,
                "a policy rule of another program for {family} ({rule}) came before pepd's"
            ),
            Self::Stuck(family, rule) => write!(
                f,
                "a policy rule of another program for {family} ({rule}) comes before pepd's: new connections \
                 pass unaccelerated"
            ),
            Self::Displaced(family) => write!(
                f,
                "the usual place of pepd's policy rules for {family} is free again"
            ),
            Self::Undelivered(family, interface) => write!(
                f,
                "the kernel did not deliver redirected {family} connections of {interface}"
            ),
            Self::Tun(name) => write!(
                f,
                "another program has set pepd's interface {name} down, removed its address, or changed its \
                 net.ipv4.conf.{name}.rp_filter (exempt pepd's interfaces from network managers)"
            ),
            Self::Bridge(family, name) => {
                let key = setup::bridge_filter(*family);
                write!(
                    f,
                    "{name} is a bridge, and with {key}=1 (Docker, Kubernetes) the kernel filters its packets too early: \
                     {family} connections of `syn = \"spoof\"` and of tunnels are not accepted; `syn = \"defer\"`, or \
                     sysctl -w {key}=0"
                )
            }
            Self::Off => f.write_str(
                "IPv6 is switched off on this machine (net.ipv6.conf.lo.disable_ipv6): pepd takes IPv4 only \
                 until it is on",
            ),
        }
    }
}

impl Trouble {
    /// Returns true for a state that lasts until an operator fixes it.
    pub fn is_for_operators(&self) -> bool {
        matches!(self, Self::Bridge(..) | Self::Off)
    }
}

/// Number of checks left out at most while nothing has changed, as far as the kernel says: some
/// settings that matter have no notification.
const UNCHECKED: u32 = 9;

/// Knowledge of the last check.
#[derive(Debug)]
pub(super) struct Upkeep {
    changes: Changes,
    /// Generation of the rules of nf_tables. The kernel would notify of their changes, too, but
    /// builds a message of 4 KiB for each element of a set then.
    generation: Option<u32>,
    /// Checks that may still be left out.
    left_out: u32,
}

impl Upkeep {
    pub(super) fn new() -> Result<Self, InterceptError> {
        let changes = Changes::open().map_err(InterceptError::Ask)?;
        Ok(Self {
            changes,
            generation: None,
            left_out: 0,
        })
    }

    /// Returns true if something may have changed since the last call.
    fn has_changed(&mut self) -> bool {
        let generation = nft::generation().ok();
        let before = std::mem::replace(&mut self.generation, generation);
        self.changes.any() || generation.is_none() || generation != before
    }
}

impl Interception {
    /// Returns changes by other programs since the installation; `None` if nothing has changed
    /// since the last check, which found none. Call it every second.
    ///
    /// # Errors
    /// When no descriptors are left for queries to the kernel.
    pub async fn troubles(&mut self) -> Result<Option<Vec<Trouble>>, InterceptError> {
        // Listing rules of iptables also reads the counters.
        let is_due = !self.filter.is_nft()
            || self.upkeep.has_changed()
            || self.forwards_other()
            || self.hops.is_late();
        if let Some(left_out) = self.upkeep.left_out.checked_sub(1)
            && !is_due
        {
            self.upkeep.left_out = left_out;
            return Ok(None);
        }
        self.upkeep.left_out = 0;
        let troubles = self.look().await?;
        if troubles.is_empty() {
            self.upkeep.left_out = UNCHECKED;
        }
        Ok(Some(troubles))
    }

    async fn look(&mut self) -> Result<Vec<Trouble>, InterceptError> {
        self.hops.begin();
        let mut troubles = Vec::new();
        if let Some(hold) = &mut self.clear_hold {
            match hold.state(&self.netlink).await? {
                state if !state.is_whole() => troubles.push(Trouble::Clear),
                _ => hold.update(&self.netlink).await?,
            }
        }
        match self.filter.in_kernel().await {
            Ok(InKernel::Whole) => {}
            Ok(InKernel::Changed(rules)) => troubles.push(Trouble::Changed(rules)),
            // Where rules cannot be listed, restoring them fails as well, and the log says why.
            Ok(InKernel::Missing) | Err(FilterError::Iptables(_)) => troubles.push(Trouble::Table),
            Err(err) => return Err(cannot("look at the rules")(err)),
        }
        if self.answers_at_once {
            for family in setup::bridge_filters() {
                for name in self.routing.lans() {
                    if self.netlink.is_bridge(name).await? {
                        troubles.push(Trouble::Bridge(family, name.clone()));
                    }
                }
            }
        }
        let tuns = self.tun_queues.iter().map(|(name, _)| name.as_str());
        let spoilt = tun::spoilt(tuns).map_err(InterceptError::Ask)?;
        troubles.extend(spoilt.map(|name| Trouble::Tun(name.to_owned())));
        let hosts = self.routing.lan_hosts().map_err(InterceptError::Ask)?;
        for &family in self.routing.families() {
            if family == Family::V6 && !setup::has_ipv6() {
                troubles.push(Trouble::Off);
                continue;
            }
            let hosts = hosts.iter().filter(|host| host.family() == family);
            troubles.extend(self.trouble_of(family, hosts).await?);
        }
        let is_whole = |trouble: &Trouble| !matches!(trouble, Trouble::Table | Trouble::Changed(_));
        if troubles.iter().all(is_whole) {
            self.look_at_forwarding().await?;
            self.look_at_hops().await?;
        }
        if troubles.is_empty() {
            self.look_at_networks().await?;
        }
        Ok(troubles)
    }

    async fn trouble_of(
        &self,
        family: Family,
        hosts: impl Iterator<Item = &LanHost>,
    ) -> Result<Option<Trouble>, InterceptError> {
        let (netlink, tuns) = (&self.netlink, &self.tun_indices);
        match self.routing.rules_of(netlink, family, tuns).await? {
            Rules::Missing => return Ok(Some(Trouble::Routing(family))),
            Rules::Behind(rule) => return Ok(Some(Trouble::Behind(family, rule))),
            Rules::Displaced => return Ok(Some(Trouble::Displaced(family))),
            Rules::Stuck(rule) => {
                let trouble = self.undelivered(family, hosts).await?;
                return Ok(trouble.map(|_| Trouble::Stuck(family, rule)));
            }
            Rules::InPlace => {}
        }
        self.undelivered(family, hosts).await
    }

    /// Returns the lack of the rules' effect.
    async fn undelivered(
        &self,
        family: Family,
        hosts: impl Iterator<Item = &LanHost>,
    ) -> Result<Option<Trouble>, InterceptError> {
        let (netlink, tuns) = (&self.netlink, &self.tun_indices);
        if !self.routing.leads_into_tuns(netlink, family, tuns).await? {
            return Ok(Some(Trouble::Routing(family)));
        }
        for host in hosts {
            if !self.routing.delivers(netlink, host).await? {
                return Ok(Some(Trouble::Undelivered(family, host.interface.clone())));
            }
        }
        Ok(None)
    }

    /// Restores the installed state and the gate. Returns a description of the changes.
    ///
    /// # Errors
    /// When that fails, or has no effect.
    pub async fn restore(
        &self,
        trouble: &Trouble,
        gate: Gate,
    ) -> Result<&'static str, InterceptError> {
        let (netlink, tuns) = (&self.netlink, &self.tun_indices);
        match trouble {
            Trouble::Table | Trouble::Changed(_) => {
                self.put_table_back(gate).await?;
                Ok("reinstalled")
            }
            Trouble::Clear => {
                if let Some(hold) = &self.clear_hold {
                    hold.restore(netlink).await?;
                }
                Ok("reinstalled")
            }
            Trouble::Routing(family) => {
                self.routing.install(netlink, *family, tuns).await?;
                Ok("reinstalled")
            }
            Trouble::Behind(family, _) => {
                self.routing.install(netlink, *family, tuns).await?;
                Ok("moved pepd's ahead of it")
            }
            Trouble::Displaced(family) => {
                self.routing.install(netlink, *family, tuns).await?;
                Ok("moved them back")
            }
            Trouble::Stuck(..) => Err(InterceptError::NoPlace),
            Trouble::Undelivered(family, interface) => {
                self.routing.install(netlink, *family, tuns).await?;
                let hosts = self.routing.lan_hosts().map_err(InterceptError::Ask)?;
                let hosts = hosts.iter().filter(|host| host.family() == *family);
                match self.trouble_of(*family, hosts).await? {
                    None => Ok("reinstalled the route"),
                    Some(_) => Err(InterceptError::Undelivered {
                        family: *family,
                        interface: interface.clone(),
                    }),
                }
            }
            Trouble::Tun(name) => {
                let queue = self.tun_queues.iter().find(|(tun, _)| tun == name);
                let queue = queue.map_or(netlink::HELD_QUEUE, |(_, queue)| *queue);
                netlink.set_up(name, queue).await?;
                tun::configure(name, self.ipv6)?;
                for &family in self.routing.families() {
                    if family == Family::V4 || setup::has_ipv6() {
                        self.routing.install(netlink, family, tuns).await?;
                    }
                }
                Ok("restored it")
            }
            Trouble::Bridge(..) | Trouble::Off => Ok("waiting"),
        }
    }

    async fn put_table_back(&self, gate: Gate) -> Result<(), InterceptError> {
        let installed = self.filter.put_back(&self.ruleset).await;
        installed.map_err(cannot("install the rules"))?;
        self.set_gate(gate).await?;
        self.put_back_bypassed().await?;
        self.put_back_lost().await?;
        self.put_back_forwarding().await?;
        self.put_back_networks().await?;
        self.put_back_hosts_at_cap().await
    }
}
