//! A site as the legs of its flows need it.

use std::{fs, io, sync::Arc};

use pep_core::{
    config::{Config, CongestionName, Timeouts},
    site::{DscpPolicy, LinkLeg, Mode, Site, SiteId, Source, SynHandling},
};
use socket2::{Domain, Socket, Type};

use super::options::{Congestion, LegOptions};
use crate::marks::MarkSet;

/// Why the legs of a site cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// None of a site's congestion controls exists: load the module, or add one that does to
    /// the list.
    #[error("site `{site}`: this kernel has no congestion control {wanted}; it has {available}")]
    Congestion {
        /// The site's name.
        site: String,
        /// What it asks for.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// Even a plain TCP socket cannot be made.
    #[error("cannot make a TCP socket")]
    Socket(#[source] io::Error),
}

/// A site as the legs of its flows need it.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteRuntime {
    /// Its place in the configuration.
    pub id: SiteId,
    /// Its name.
    pub name: String,
    /// The loopback port of its listeners.
    pub port: u16,
    /// Connections waiting to be accepted, at most.
    pub backlog: i32,
    /// Options of client legs.
    pub client: LegOptions,
    /// Options of server legs.
    pub server: LegOptions,
    /// Whose address the server sees.
    pub source: Source,
    /// When SYNs are answered.
    pub syn: SynHandling,
    /// The DSCP of both legs.
    pub dscp: DscpPolicy,
    /// Timers of the flows.
    pub timeouts: Timeouts,
}

impl SiteRuntime {
    /// The sites whose flows come to us, in the order of the configuration.
    ///
    /// # Errors
    /// [`SetupError::Congestion`] when the kernel has none of a site's list.
    pub fn all(config: &Config) -> Result<Vec<Arc<Self>>, SetupError> {
        config
            .sites
            .iter()
            .filter(|(_, site)| site.mode == Mode::Split)
            .map(|(id, site)| Self::new(config, id, site).map(Arc::new))
            .collect()
    }

    fn new(config: &Config, id: SiteId, site: &Site) -> Result<Self, SetupError> {
        let link_congestion = choose(&site.name, &site.congestion)?;
        let host_congestion = choose(&site.name, &site.congestion_lan)?;
        let link = |mark| LegOptions {
            congestion: link_congestion.clone(),
            ..link_leg(config, site, mark)
        };
        let host = |mark| LegOptions {
            congestion: host_congestion.clone(),
            ..host_leg(site, mark)
        };
        let marks = MarkSet::new(config.intercept.marks);
        let (client_mark, server_mark) = (marks.client_leg(), marks.server_leg());
        let (client, server) = match site.link_leg {
            LinkLeg::Server => (host(client_mark), link(server_mark)),
            LinkLeg::Client => (link(client_mark), host(server_mark)),
        };
        Ok(Self {
            id,
            name: site.name.clone(),
            port: config.listen_port(id),
            backlog: i32::try_from(config.limits.backlog).unwrap_or(i32::MAX),
            client,
            server,
            source: site.source,
            syn: site.syn,
            dscp: site.dscp,
            timeouts: site.timeouts.clone(),
        })
    }

    /// Whether the DSCP of the client's SYN goes onto both legs.
    pub fn keeps_dscp(&self) -> bool {
        self.dscp == DscpPolicy::Keep
    }
}

fn link_leg(config: &Config, site: &Site, mark: u32) -> LegOptions {
    let link = config.link.as_ref();
    LegOptions {
        mark,
        congestion: Congestion::System,
        nodelay: site.nodelay_link,
        buffers: site.link_buffers(link),
        mss: site.mss,
        notsent_lowat: site
            .unsent_max(link)
            .map(|size| u32::try_from(size.bytes()).unwrap_or(u32::MAX)),
        pacing: site.pacing_rate(link),
        user_timeout: site.timeouts.user_timeout,
        rto_max: site.timeouts.rto_max,
        connect: site.timeouts.connect,
        keepalive: site.timeouts.keepalive,
    }
}

/// No user timeout on this leg: a host that reads nothing for an hour, and answers our probes, is
/// slow, not dead (RFC 1122, 4.2.2.17). Nor a cap on retransmissions, which needs one.
fn host_leg(site: &Site, mark: u32) -> LegOptions {
    LegOptions {
        mark,
        congestion: Congestion::System,
        nodelay: site.nodelay_lan,
        buffers: site.lan_buffers(),
        mss: None,
        notsent_lowat: None,
        pacing: None,
        user_timeout: None,
        rto_max: None,
        connect: site.timeouts.connect,
        keepalive: site.timeouts.keepalive,
    }
}

/// The first of the list that the kernel takes. It is tried, not looked up, since trying loads
/// the module.
fn choose(site: &str, wanted: &[CongestionName]) -> Result<Congestion, SetupError> {
    if wanted.is_empty() {
        return Ok(Congestion::System);
    }
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(SetupError::Socket)?;
    let taken =
        |name: &&CongestionName| socket.set_tcp_congestion(name.as_str().as_bytes()).is_ok();
    match wanted.iter().find(taken) {
        Some(name) => Ok(Congestion::Named(name.clone())),
        None => Err(SetupError::Congestion {
            site: site.to_owned(),
            wanted: list(wanted.iter().map(CongestionName::as_str)),
            available: available(),
        }),
    }
}

fn available() -> String {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    fs::read_to_string(path).map_or_else(
        |err| format!("an unknown set ({path}: {err})"),
        |names| list(names.split_whitespace()),
    )
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
