//! A site as the legs of its flows need it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pep_core::{
    config::{Config, Link, Timeouts},
    relay::Side,
    site::{
        Close, DscpPolicy, IpVersion, KeepWhen, LinkLeg, Mode, Sharing, Site, SiteId, Source,
        SynHandling, WhileDown,
    },
};

use super::{
    clamp::Clamps,
    options::{Congestion, LegOptions, PayloadRate},
};
use crate::{congestion::Controls, leg::Terms, marks::MarkSet, tally::Tally};

/// A site as the legs of its flows need it.
#[derive(Debug, Clone)]
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
    /// Which of their legs crosses the link.
    pub link_side: Side,
    /// Whether their bytes are compressed in a tunnel.
    pub compress: bool,
    /// When more of their bytes is kept than may soon be sent, and for how long.
    pub keep: KeepWhen,
    /// The same.
    pub hold: Duration,
    /// When clients' FINs are answered.
    pub close: Close,
    /// What becomes of those that begin while the link is away.
    pub while_down: WhileDown,
    /// How they share it, over IPv4 and over IPv6.
    pub share: [Option<Terms>; 2],
    /// What they have come to.
    pub tally: Arc<Tally>,
    /// The MSS that server legs have at most.
    pub clamps: Arc<Clamps>,
    /// Options of its flows that do not cross the link, where there may be some.
    pub beside: Option<Arc<Self>>,
}

impl SiteRuntime {
    /// Whether new flows wait while the link is away. With `defer` their server has answered, so that it is there.
    pub fn waits_for_link(&self) -> bool {
        self.while_down == WhileDown::Custody && self.syn == SynHandling::Spoof
    }

    /// Options for a flow of this site, which leads by another interface than the link or not.
    pub fn on_way(self: &Arc<Self>, is_elsewhere: bool) -> Arc<Self> {
        let beside = self.beside.as_ref().filter(|_| is_elsewhere);
        Arc::clone(beside.unwrap_or(self))
    }

    /// The sites whose flows come to us, in the order of the configuration; `clamps` are for their
    /// server legs.
    pub fn all(config: &Config, controls: &Controls, clamps: &Arc<Clamps>) -> Vec<Arc<Self>> {
        config
            .sites
            .iter()
            .filter(|(_, site)| site.mode.takes_flows())
            .map(|(id, site)| {
                let site_of = Self::new(config, controls, clamps, id, site);
                Arc::new(site_of.with_beside(site))
            })
            .collect()
    }

    /// A flow of a split site may leave by another uplink, to which nothing of the link applies.
    fn with_beside(self, site: &Site) -> Self {
        if site.mode != Mode::Split || site.link_leg != LinkLeg::Server {
            return self;
        }
        let unlimited = host_leg(site, self.server.mark);
        let server = LegOptions {
            congestion: self.client.congestion.clone(),
            ..unlimited
        };
        let beside = Self {
            server,
            share: [None, None],
            while_down: WhileDown::Bypass,
            ..self.clone()
        };
        Self {
            beside: Some(Arc::new(beside)),
            ..self
        }
    }

    /// The server legs of flows that peers open: as those of the built-in site, but none of them
    /// crosses the link.
    pub fn far(config: &Config, controls: &Controls, clamps: &Arc<Clamps>) -> Self {
        let last = config.sites.iter().next_back();
        let (id, site) = last.expect("the built-in site");
        let site = Site {
            link_leg: LinkLeg::Client,
            share: Sharing::Off,
            ..site.clone()
        };
        Self::new(config, controls, clamps, id, &site)
    }

    /// Connections that carry tunnels themselves: as the link legs of the first site with a tunnel, or of the
    /// built-in site.
    pub fn tunnel_leg(config: &Config, controls: &Controls) -> LegOptions {
        let mut sites = config.sites.iter();
        let first = sites.find(|(id, _)| config.peer_of(*id).is_some());
        let last = || config.sites.iter().next_back();
        let (id, site) = first.or_else(last).expect("the built-in site");
        let mark = MarkSet::new(config.intercept.marks).server_leg();
        LegOptions {
            congestion: controls.link(id).into(),
            rtt0: controls.rtt0(id),
            ..link_leg(config, site, mark)
        }
    }

    fn new(
        config: &Config,
        controls: &Controls,
        clamps: &Arc<Clamps>,
        id: SiteId,
        site: &Site,
    ) -> Self {
        let link = |mark| LegOptions {
            congestion: controls.link(id).into(),
            rtt0: controls.rtt0(id),
            ..link_leg(config, site, mark)
        };
        let host = |mark| LegOptions {
            congestion: controls.host(id).into(),
            ..host_leg(site, mark)
        };
        let marks = MarkSet::new(config.intercept.marks);
        let (client_mark, server_mark) = (marks.client_leg(), marks.server_leg());
        let (client, server) = match site.link_leg {
            LinkLeg::Server => (host(client_mark), link(server_mark)),
            LinkLeg::Client => (link(client_mark), host(server_mark)),
        };
        Self {
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
            link_side: match site.link_leg {
                LinkLeg::Server => Side::Server,
                LinkLeg::Client => Side::Client,
            },
            compress: site.compress,
            keep: site.custody,
            hold: site.hold,
            close: site.close,
            while_down: site.while_down,
            share: [IpVersion::V4, IpVersion::V6]
                .map(|ip| Terms::new(site, config.link.as_ref(), ip)),
            tally: Arc::default(),
            clamps: Arc::clone(clamps),
            beside: None,
        }
    }

    /// Options of the legs that cross the link.
    pub fn link_leg(&self) -> &LegOptions {
        match self.link_side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// How flows to this destination share the link, if they do.
    pub fn share_terms(&self, destination: &SocketAddr) -> Option<Terms> {
        self.share[usize::from(destination.is_ipv6())]
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
        rtt0: None,
        pacing: payload_rate(site, link),
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
        rtt0: None,
        pacing: None,
        user_timeout: None,
        rto_max: None,
        connect: site.timeouts.connect,
        keepalive: site.timeouts.keepalive,
    }
}

fn payload_rate(site: &Site, link: Option<&Link>) -> Option<PayloadRate> {
    Some(PayloadRate {
        v4: site.payload_rate(link, IpVersion::V4)?,
        v6: site.payload_rate(link, IpVersion::V6)?,
    })
}
