//! The configuration: TOML text to checked types which cannot hold a nonsensical value.
//!
//! A section is a table of its keys; those that sites need are in [`crate::site`]. Nothing else
//! sees TOML. `docs/configuration.md` is the reference for operators; tests keep it and the tables
//! in agreement.

mod addresses;
mod admin;
mod congestion;
mod intercept;
mod limits;
mod link;
mod log;
mod packet;
mod peers;
mod sites;
mod syntax;

use std::{ops::RangeInclusive, path::Path, time::Duration};

pub use crate::reading::{ConfigError, ConfigWarning, closest};
pub use crate::site::boost::{
    AckFilter, AckReconstruction, Arq, Boost, Checksum, Compress, Congestion, CongestionMark,
    DataFilter, DivAcks, DivAcksMode, Fec, FecScheme, Jitter, Rule, Snoop, When,
};
pub use crate::site::custody::Custody;
pub use crate::site::link::{Elsewhere, Link};
pub use crate::site::names::{CongestionName, IfName, NameError, TableName};
pub use crate::site::timeouts::{Keepalive, Timeouts};
pub use addresses::{Addresses, TUNNEL_EXTENT_MIN};
pub use admin::{Admin, AdminMode, AdminSocket};
pub use intercept::{Intercept, Marks};
pub use limits::Limits;
pub use log::{LogConfig, LogFormat, LogLevel};
pub use peers::{Carrier, Endpoint, Identity, OnPeerLoss, Peer};

use toml::de::DeTable;

use self::sites::Context;
use crate::reading::{Findings, Lines, Section, values::Span};
use crate::site::{Mode, PacketPolicy, Site, SiteId, SiteTable};

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where connections come in.
    pub intercept: Intercept,
    /// The bad hop, where it is described.
    pub link: Option<Link>,
    /// What is never exceeded.
    pub limits: Limits,
    /// What is held while the link is away.
    pub custody: Custody,
    /// Timers of flows whose site says nothing else. Sites hold their own copy.
    pub timeouts: Timeouts,
    /// After SIGTERM, how long flows may still run before they are reset (`timeouts.drain`), 0
    /// to 1 h. Default 10 s: short transfers finish, and service managers wait longer (90 s).
    pub drain: Duration,
    /// What is logged.
    pub log: LogConfig,
    /// How it is asked and told while it runs.
    pub admin: Admin,
    /// The policies, in order of precedence, with the built-in `default` at the end.
    pub sites: SiteTable,
    /// The far ends of tunnels, in the order of their names.
    pub peers: Vec<Peer>,
    /// Who we are to them; there is one wherever there are peers.
    pub identity: Option<Identity>,
    /// What is allowed but can hardly be meant.
    pub warnings: Vec<ConfigWarning>,
    lines: Lines,
}

/// A site of mode `packet`, with what only such a site has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacketSite<'a> {
    /// Which one it is.
    pub id: SiteId,
    /// All of it.
    pub site: &'a Site,
    /// How its packets are carried.
    pub policy: &'a PacketPolicy,
    /// The peer at the far end, by its place in [`Config::peers`].
    pub peer: usize,
}

/// Reads and checks a configuration.
///
/// # Errors
/// Everything that is wrong with it, in the order of the lines. Where the text is not TOML,
/// only that: nothing can be said of the rest.
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
    /// Bytes of the smallest extent of the arena with which flows can begin.
    pub fn extent_least(&self) -> u64 {
        let initial = self.limits.ring_initial.bytes();
        if self.peers.is_empty() {
            initial
        } else {
            initial.max(TUNNEL_EXTENT_MIN)
        }
    }

    /// Reads every section. Its result means something only if there are no errors.
    fn read(mut root: Section<'_>, findings: &Findings) -> Self {
        let intercept = Intercept::read(root.section("intercept"));
        let link = Link::read(root.section("link"));
        let (timeouts, drain) = read_timeouts(root.section("timeouts"), link.as_ref());
        let (peers, names) = peers::read_peers(root.named_tables("peer"), link.as_ref());
        let identity = peers::read_identity(root.section("identity"), &peers);
        if !names.is_empty() && !root.has("identity") {
            let message = "missing: tunnels need a key of ours; expected a section [identity] with \
                           `key_file`, which `pepd keygen` writes";
            findings.error(&format!("peer.{}", names[0]), message);
        }
        let limits = Limits::read(root.section("limits"), Addresses::HERE, !names.is_empty());
        let custody = Custody::read(root.section("custody"), limits.memory);
        if names.is_empty() && custody.folder.is_some() {
            let message =
                "has no effect: there are no peers, and flows that are split take nothing to disk";
            findings.warning("custody.folder", message);
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
        link::check_dedicated(&config, findings);
        config
    }

    /// Takes the paths of files in it for relative to `folder`, where they are relative.
    pub fn resolve_paths(&mut self, folder: &Path) {
        self.custody.resolve_paths(folder);
        peers::resolve_paths(self.identity.as_mut(), &mut self.peers, folder);
        self.admin.resolve_paths(folder);
        if let Some(contacts) = self.link.as_mut().and_then(|link| link.contacts.as_mut()) {
            *contacts = folder.join(&*contacts);
        }
    }

    /// The peer at the far end of a site's tunnel, by its place in [`peers`](Self::peers); `None`
    /// for other modes.
    pub fn peer_of(&self, site: SiteId) -> Option<usize> {
        let site = self.sites.get(site)?;
        let name = site.peer.as_ref()?;
        let peer = self.peers.iter().position(|peer| peer.name == *name);
        peer.filter(|_| site.mode == Mode::Tunnel)
    }

    /// The sites of mode `packet`, in order, 0 to 16, each with its peer by its place in
    /// [`peers`](Self::peers). The place of a site in this list is the number of its mark, its
    /// routing table and its TUN.
    pub fn packet_sites(&self) -> impl Iterator<Item = PacketSite<'_>> {
        self.sites.iter().filter_map(|(id, site)| {
            let name = site.peer.as_ref()?;
            Some(PacketSite {
                id,
                site,
                policy: site.packet.as_ref()?,
                peer: self.peers.iter().position(|peer| peer.name == *name)?,
            })
        })
    }

    /// True where some site holds SYNs until the server has answered.
    pub fn defers(&self) -> bool {
        self.sites.iter().any(|(_, site)| site.is_deferred())
    }

    /// SYNs that may be held at one time, each with a descriptor: none where no site defers.
    pub fn held_most(&self) -> u32 {
        if self.defers() { self.limits.held } else { 0 }
    }

    /// Descriptors needed when everything is full: two per flow, one per held SYN, the rest.
    pub fn descriptors_needed(&self) -> u64 {
        let limits = &self.limits;
        2 * u64::from(limits.flows) + u64::from(self.held_most()) + u64::from(limits.descriptors)
    }

    /// The line, from 1, on which the file sets a key (written as in [`ConfigError::key`]), or
    /// else of the section around it; 1 where the file has neither.
    pub fn line_of(&self, key: &str) -> usize {
        self.lines.line_of(key)
    }

    /// The port at which peers reach us by TCP, where they may and it was stated.
    pub fn peers_port(&self) -> Option<u16> {
        let by_tcp = self.peers.iter().any(|peer| peer.carrier != Carrier::Udp);
        let listen = self.identity.as_ref()?.listen?;
        by_tcp.then_some(listen.port())
    }

    /// The loopback port of a site's listeners: never that of the peers.
    ///
    /// # Panics
    /// When the site is not one of this configuration's.
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
        // The one behind the others, or before them where there is none.
        let behind = u16::try_from(self.sites.len()).ok();
        let behind = behind.and_then(|sites| first.checked_add(sites));
        behind.unwrap_or(first - 1)
    }

    /// The loopback ports of all sites, from the least to the greatest; others may be between.
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
