//! The configuration: TOML text, parsed into checked types that cannot hold an invalid value.
//!
//! A section is a table of its keys; sections that sites need are in [`crate::site`]. Nothing else
//! sees TOML. `docs/configuration.md` is the reference for operators; tests compare it with the
//! tables.

mod addresses;
mod admin;
mod clear;
mod congestion;
mod fit;
mod intercept;
mod limits;
mod link;
mod log;
mod packet;
mod peers;
mod sites;
mod syntax;

use std::{ops::RangeInclusive, path::Path, time::Duration};

pub use crate::reading::{ConfigError, ConfigWarning, RenameError, closest, with_present_names};
pub use crate::site::boost::{
    AckFilter, AckReconstruction, Arq, Boost, Checksum, Compress, Congestion, CongestionMark,
    DataFilter, DivAcks, DivAcksMode, Fec, FecCode, FecScheme, Jitter, Rule, Snoop, When,
};
pub use crate::site::custody::Custody;
pub use crate::site::link::{Link, OtherRoutes};
pub use crate::site::names::{CongestionName, IfName, NameError, TableName};
pub use crate::site::timeouts::{Keepalive, KeepalivePolicy, Timeouts};
pub use addresses::{Addresses, TUNNEL_EXTENT_MIN};
pub use admin::{Admin, AdminMode, AdminSocket};
pub use intercept::{Forward, Intercept, Marks, Midway, RulesBy};
pub use limits::Limits;
pub use log::{LogConfig, LogFormat, LogLevel};
pub use peers::{Carrier, Endpoint, Identity, OnPeerLoss, Peer};

use toml::de::DeTable;
use units::Rate;

use self::sites::Context;
use crate::budget::MemoryBudget;
use crate::reading::{Findings, Lines, Section, values::Span};
use crate::site::{Clear, Mode, PacketPolicy, Site, SiteId, SiteTable};

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Interfaces and rules that catch connections.
    pub intercept: Intercept,
    /// The bad hop, if configured.
    pub link: Option<Link>,
    /// Resource limits.
    pub limits: Limits,
    /// Data held while the link is down.
    pub custody: Custody,
    /// Timers of flows whose site sets none. Sites hold their own copy.
    pub timeouts: Timeouts,
    /// Time that flows may still run after SIGTERM before pepd resets them (`timeouts.drain`), 0 to
    /// 1 h. Default 10 s: short transfers finish, and service managers wait longer (90 s).
    pub drain: Duration,
    /// Logging.
    pub log: LogConfig,
    /// Administration interface.
    pub admin: Admin,
    /// Sites in order of precedence, with the built-in `default` at the end.
    pub sites: SiteTable,
    /// Far ends of tunnels, in the order of their names.
    pub peers: Vec<Peer>,
    /// The local end's identity towards peers; always `Some` where there are peers.
    pub identity: Option<Identity>,
    /// Values that are accepted but are probably mistakes.
    pub warnings: Vec<ConfigWarning>,
    lines: Lines,
}

/// A site of mode `packet` or `boost` with its packet policy and peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacketSite<'a> {
    /// Number of the site.
    pub id: SiteId,
    /// The whole site.
    pub site: &'a Site,
    /// Policy of its packets.
    pub policy: &'a PacketPolicy,
    /// Index in [`Config::peers`] of the peer at the far end; `None` exactly in mode `boost`.
    pub peer: Option<usize>,
}

impl PacketSite<'_> {
    /// Number of its TUNs: one for packets to a peer, or one for each direction.
    pub fn tuns(&self) -> usize {
        if self.peer.is_some() { 1 } else { 2 }
    }
}

/// Reads and checks a configuration.
///
/// # Errors
/// All errors, in the order of the lines. Where the text is not TOML, only that error.
pub fn parse(text: &str) -> Result<Config, Vec<ConfigError>> {
    let findings = Findings::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(syntax::errors(text, &findings, &errors));
    }
    let config = Config::read(Section::root(document.get_ref(), &findings), &findings);
    let (warnings, lines) = findings.finish()?;
    Ok(Config {
        warnings,
        lines,
        ..config
    })
}

impl Config {
    /// Bytes of the smallest extent of the arena with which flows can start.
    pub fn extent_min(&self) -> u64 {
        let initial = self.limits.ring_initial.bytes();
        if self.peers.is_empty() {
            initial
        } else {
            initial.max(TUNNEL_EXTENT_MIN)
        }
    }

    /// Reads every section. The result is meaningful only without errors.
    fn read(mut root: Section<'_>, findings: &Findings) -> Self {
        let intercept = Intercept::read(root.section("intercept"));
        let link = Link::read(root.section("link"));
        let (timeouts, drain) = read_timeouts(root.section("timeouts"), link.as_ref());
        let (peers, names) = peers::read_peers(root.named_tables("peer"), link.as_ref());
        let identity = peers::read_identity(root.section("identity"), &peers);
        if !names.is_empty() && !root.has("identity") {
            let message = "missing: tunnels need a local key; expected a section [identity] with \
                           `key_file`, which `pepd keygen` writes";
            findings.error(&format!("peer.{}", names[0]), message);
        }
        let limits = Limits::read(root.section("limits"), Addresses::HERE, !names.is_empty());
        let custody = Custody::read(root.section("custody"), limits.memory);
        if names.is_empty() && custody.directory.is_some() {
            let message = "has no effect: there are no peers, and split flows use no disk";
            findings.warning("custody.directory", message);
        }
        let context = Context {
            custody: &custody,
            intercept: &intercept,
            link: link.as_ref(),
            timeouts: &timeouts,
            peers: &names,
            findings,
        };
        let sites = context.read_sites(root.tables("site"));
        let log = root.section("log").whole(LogConfig::read_keys);
        let admin = root.section("admin").whole(Admin::read_keys);
        root.finish();
        let (warnings, lines) = (Vec::new(), Lines::default());
        let config = Self {
            intercept,
            link,
            limits,
            custody,
            timeouts,
            drain,
            log,
            admin,
            sites,
            peers,
            identity,
            warnings,
            lines,
        };
        packet::check_memory(&config, findings);
        packet::check_waits(&config, findings);
        packet::check_boosts(&config, findings);
        clear::check(&config, findings);
        link::check_dedicated(&config, findings);
        admin::check_port(&config, findings);
        config
    }

    /// Resolves relative paths of files against `directory`.
    pub fn resolve_paths(&mut self, directory: &Path) {
        self.custody.resolve_paths(directory);
        peers::resolve_paths(self.identity.as_mut(), &mut self.peers, directory);
        self.admin.resolve_paths(directory);
        if let Some(contacts) = self.link.as_mut().and_then(|link| link.contacts.as_mut()) {
            *contacts = directory.join(&*contacts);
        }
    }

    /// Index in [`peers`](Self::peers) of the peer at the far end of a site's tunnel; `None` for
    /// other modes.
    pub fn peer_of(&self, site: SiteId) -> Option<usize> {
        let site = self.sites.get(site)?;
        let name = site.peer.as_ref()?;
        let peer = self.peers.iter().position(|peer| peer.name == *name);
        peer.filter(|_| site.mode == Mode::Tunnel)
    }

    /// The sites of modes `packet` and `boost`, in order, 0 to 16. Their TUNs, in this order,
    /// number marks and routing tables.
    pub fn packet_sites(&self) -> impl Iterator<Item = PacketSite<'_>> {
        let position = |name: &String| self.peers.iter().position(|peer| peer.name == *name);
        self.sites.iter().filter_map(move |(id, site)| {
            let peer = site.peer.as_ref().filter(|_| site.mode == Mode::Packet);
            Some(PacketSite {
                id,
                site,
                policy: site.packet.as_ref()?,
                peer: peer.and_then(position),
            })
        })
    }

    /// Reports whether packets of some site never leave outside of its tunnel.
    pub fn holds_clear(&self) -> bool {
        let mut sites = self.sites.iter();
        sites.any(|(_, site)| site.clear == Clear::Never)
    }

    /// The sites of mode `boost`, in order.
    pub fn boosted_sites(&self) -> impl Iterator<Item = PacketSite<'_>> {
        self.packet_sites().filter(|site| site.peer.is_none())
    }

    /// Number of the TUNs of all [packet sites](Self::packet_sites).
    pub fn packet_tuns(&self) -> usize {
        self.packet_sites().map(|site| site.tuns()).sum()
    }

    /// Rate into the link before which packets of such a site wait, where it is configured.
    pub fn rate_before(&self, site: &PacketSite<'_>) -> Option<Rate> {
        match site.peer {
            Some(peer) => self.peers[peer].rate,
            None => self.link.as_ref()?.rate,
        }
    }

    /// Reports whether flows of a site share the stated rate of the link.
    pub fn shares_link(&self) -> bool {
        let mut sites = self.sites.iter();
        sites.any(|(_, site)| site.mode.takes_flows() && site.shares(self.link.as_ref()))
    }

    /// Interface of the link, whose other traffic reduces the shares of flows. `None` without a
    /// link, and if the interface also leads to hosts: its counters include packets to them.
    pub fn counted_interface(&self) -> Option<&str> {
        let interface = &self.link.as_ref()?.interface;
        let leads_to_hosts = self.intercept.lan.contains(interface);
        (!leads_to_hosts).then_some(interface.as_str())
    }

    /// Reports whether a site holds SYNs until the server has answered.
    pub fn defers(&self) -> bool {
        self.sites.iter().any(|(_, site)| site.is_deferred())
    }

    /// Reports whether SYNs of flows pass rules in the forward hook first.
    pub fn obeys_forward(&self) -> bool {
        let mut sites = self.sites.iter();
        sites.any(|(_, site)| self.asks_forward(site))
    }

    /// Reports whether SYNs of a site do so. Held ones do not: a repeated SYN would disturb what
    /// conntrack knows about the server leg. Nor those that must not leave in the clear.
    pub fn asks_forward(&self, site: &Site) -> bool {
        let may = site.mode.takes_flows() && !site.is_deferred() && site.clear != Clear::Never;
        may && self.intercept.may_obey()
    }

    /// Reports whether pepd may not run where SYNs cannot pass these rules.
    pub fn must_obey_forward(&self) -> bool {
        self.obeys_forward() && self.intercept.forward == Forward::Obey
    }

    /// Reports whether SYNs go through pepd before the kernel answers them.
    pub fn takes_syns(&self) -> bool {
        self.defers() || self.obeys_forward()
    }

    /// Maximum number of SYNs held at one time, each with a descriptor: 0 where no site defers.
    pub fn held_most(&self) -> u32 {
        if self.defers() { self.limits.held } else { 0 }
    }

    /// Maximum bytes of memory in custody: `custody.memory`, and no more than one peer may grow
    /// its flows by.
    pub fn custody_memory(&self) -> u64 {
        let most = MemoryBudget::most_alone(self.limits.memory.bytes());
        most.min(self.custody.memory.bytes())
    }

    /// Returns the number of threads that share the peers: none without peers.
    pub fn tunnel_threads(&self) -> usize {
        (self.limits.tunnel_threads as usize).min(self.peers.len())
    }

    /// Descriptors needed at full load: two per flow, one per held SYN, and the reserve.
    pub fn descriptors_needed(&self) -> u64 {
        let limits = &self.limits;
        2 * u64::from(limits.flows) + u64::from(self.held_most()) + u64::from(limits.descriptors)
    }

    /// Line, from 1, on which the file sets a key (written as in [`ConfigError::key`]), or else of
    /// the enclosing section. 1 where the file has neither.
    pub fn line_of(&self, key: &str) -> usize {
        self.lines.line_of(key)
    }

    /// TCP port for peers, where the local end listens for TCP and `listen` is configured.
    pub fn peers_port(&self) -> Option<u16> {
        let by_tcp = self.peers.iter().any(|peer| peer.carrier != Carrier::Udp);
        let listen = self.identity.as_ref()?.listen?;
        by_tcp.then_some(listen.port())
    }

    /// Loopback port of a site's listeners, never the port of peers.
    ///
    /// # Panics
    /// When the site is not part of this configuration.
    pub fn listen_port(&self, site: SiteId) -> u16 {
        assert!(
            site.index() < self.sites.len(),
            "site {site} of {}",
            self.sites.len()
        );
        let first = self.intercept.listen_port;
        let port = first + site.0;
        if self.peers_port() != Some(port) {
            return port;
        }
        // The port after the others, or before them where none is left.
        let behind = u16::try_from(self.sites.len()).ok();
        let behind = behind.and_then(|sites| first.checked_add(sites));
        behind.unwrap_or(first - 1)
    }

    /// Range of the loopback ports of all sites, from the lowest to the highest. Other ports may
    /// lie between.
    pub fn listen_ports(&self) -> RangeInclusive<u16> {
        let ports = self.sites.iter().map(|(id, _)| self.listen_port(id));
        let first = self.intercept.listen_port;
        ports.fold(first..=first, |all, port| {
            port.min(*all.start())..=port.max(*all.end())
        })
    }
}

fn read_timeouts(mut section: Section<'_>, link: Option<&Link>) -> (Timeouts, Duration) {
    let timeouts = Timeouts::read(&mut section, &Timeouts::over(link), link);
    let drain = section.read("drain", Span(Duration::ZERO..=Duration::from_secs(3600)));
    section.finish();
    (timeouts, drain.unwrap_or(Duration::from_secs(10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(first: u16, carrier: &str) -> Vec<u16> {
        let key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\nlisten_port = {first}\n\
             [[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n\
             [identity]\nkey_file = \"k\"\nlisten = \"0.0.0.0:5001\"\n\
             [peer.hub]\npublic_key = \"{key}\"\n{carrier}\n"
        );
        let config = parse(&text).expect("valid");
        let ports: Vec<_> = config
            .sites
            .iter()
            .map(|(id, _)| config.listen_port(id))
            .collect();
        let all = config.listen_ports();
        assert!(ports.iter().all(|port| all.contains(port)), "{all:?}");
        ports
    }

    #[test]
    fn no_site_has_the_port_at_which_peers_are_listened_to() {
        assert_eq!(ports(5000, ""), [5000, 5003, 5002]);
        assert_eq!(ports(5001, ""), [5004, 5002, 5003]);
        assert_eq!(ports(5002, ""), [5002, 5003, 5004]);
        assert_eq!(ports(5000, "carrier = \"udp\""), [5000, 5001, 5002]);
    }
}
