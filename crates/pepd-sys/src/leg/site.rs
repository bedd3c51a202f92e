//! Runtime parameters of a site for the legs of its flows.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pep_core::{
    config::{Config, Link, Timeouts},
    relay::Side,
    site::{
        Class, Close, DscpPolicy, IpVersion, KeepWhen, LinkLeg, Mode, Sharing, Site, SiteId,
        Source, SynHandling, WhileDown,
    },
};

use super::{
    clamp::Clamps,
    options::{Congestion, LegOptions, PayloadRate},
};
use crate::{congestion::Controls, leg::Terms, marks::MarkSet, site_counters::SiteCounters};

/// Runtime parameters of a site for the legs of its flows.
#[derive(Debug, Clone)]
pub struct SiteRuntime {
    /// The index in the configuration.
    pub id: SiteId,
    /// The name.
    pub name: String,
    /// The loopback port of its listeners.
    pub port: u16,
    /// The maximum number of connections waiting to be accepted.
    pub backlog: i32,
    /// Options of client legs.
    pub client: LegOptions,
    /// Options of server legs.
    pub server: LegOptions,
    /// The source address of server legs.
    pub source: Source,
    /// The time at which SYNs are answered.
    pub syn: SynHandling,
    /// The DSCP of both legs.
    pub dscp: DscpPolicy,
    /// Timers of the flows.
    pub timeouts: Timeouts,
    /// The leg that crosses the link.
    pub link_side: Side,
    /// True if bytes are compressed in a tunnel.
    pub compress: bool,
    /// The condition for keeping more bytes than may soon be sent.
    pub keep: KeepWhen,
    /// The maximum time for which they are kept.
    pub hold: Duration,
    /// The time at which clients' FINs are answered.
    pub close: Close,
    /// The treatment of flows that begin while the link is down.
    pub while_down: WhileDown,
    /// The class of the flows.
    pub class: Class,
    /// The terms of sharing the link, over IPv4 and over IPv6.
    pub share: [Option<Terms>; 2],
    /// Counters of the site.
    pub site_counters: Arc<SiteCounters>,
    /// The maximum MSS of server legs.
    pub clamps: Arc<Clamps>,
    /// Options of flows that bypass the link, if there may be any.
    pub beside: Option<Arc<Self>>,
    /// True if these are such options.
    pub is_beside: bool,
}

impl SiteRuntime {
    /// Returns whether new flows wait while the link is down. With `defer` the server has answered
    /// already, so the link is up.
    pub fn waits_for_link(&self) -> bool {
        self.while_down == WhileDown::Custody && self.syn == SynHandling::Spoof
    }

    /// Returns the options for a flow of this site; `is_elsewhere` if its route uses another
    /// interface than the link.
    pub fn on_way(self: &Arc<Self>, is_elsewhere: bool) -> Arc<Self> {
        let beside = self.beside.as_ref().filter(|_| is_elsewhere);
        Arc::clone(beside.unwrap_or(self))
    }

    /// Returns the sites that accept flows locally, in the order of the configuration; `clamps` are
    /// for their server legs.
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

    /// Adds options without the link's settings for flows of a split site that leave by another
    /// uplink.
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
            is_beside: true,
            ..self.clone()
        };
        Self {
            beside: Some(Arc::new(beside)),
            ..self
        }
    }

    /// Returns the options for server legs of flows from peers: as those of the built-in site, but
    /// none of them crosses the link.
    pub fn far(config: &Config, controls: &Controls, clamps: &Arc<Clamps>) -> Self {
        let last = config.sites.iter().next_back();
        let (id, site) = last.expect("the built-in site");
        let site = Site {
            link_leg: LinkLeg::Client,
            share: Sharing::Off,
            ..site.clone()
        };
        let far = Self::new(config, controls, clamps, id, &site);
        let server = LegOptions {
            keepalive: site.timeouts.keepalive.of_far_leg(),
            ..far.server
        };
        Self { server, ..far }
    }

    /// Returns the options of TCP connections that carry tunnels: as the link legs of the first
    /// site with a tunnel, or of the built-in site.
    pub fn tunnel_leg(config: &Config, controls: &Controls) -> LegOptions {
        let mut sites = config.sites.iter();
        let first = sites.find(|(id, _)| config.peer_of(*id).is_some());
        let last = || config.sites.iter().next_back();
        let (id, site) = first.or_else(last).expect("the built-in site");
        let mark = MarkSet::new(config.intercept.marks).server_leg();
        LegOptions {
            congestion: controls.link(id).into(),
            terms: controls.terms(id),
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
            terms: controls.terms(id),
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
            class: site.class,
            share: [IpVersion::V4, IpVersion::V6]
                .map(|ip| Terms::new(site, config.link.as_ref(), ip)),
            site_counters: Arc::default(),
            clamps: Arc::clone(clamps),
            beside: None,
            is_beside: false,
        }
    }

    /// Returns the options of the legs that cross the link.
    pub fn link_leg(&self) -> &LegOptions {
        match self.link_side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Returns the terms on which flows to this destination share the link, if they do.
    pub fn share_terms(&self, destination: &SocketAddr) -> Option<Terms> {
        self.share[usize::from(destination.is_ipv6())]
    }

    /// Returns whether both legs copy the DSCP of the client's SYN.
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
        terms: None,
        pacing: payload_rate(site, link),
        user_timeout: site.timeouts.user_timeout,
        rto_max: site.timeouts.rto_max,
        rto_min: site.timeouts.rto_min,
        connect: site.timeouts.connect,
        keepalive: site.timeouts.keepalive.own,
    }
}

/// Returns the options of the host leg. No user timeout: a host that reads nothing for an hour, but
/// answers probes, is slow, not dead (RFC 1122, 4.2.2.17). No cap on retransmissions either, which
/// requires one.
fn host_leg(site: &Site, mark: u32) -> LegOptions {
    LegOptions {
        mark,
        congestion: Congestion::System,
        nodelay: site.nodelay_lan,
        buffers: site.lan_buffers(),
        mss: None,
        notsent_lowat: None,
        terms: None,
        pacing: None,
        user_timeout: None,
        rto_max: None,
        rto_min: None,
        connect: site.timeouts.connect,
        keepalive: site.timeouts.keepalive.of_host(),
    }
}

fn payload_rate(site: &Site, link: Option<&Link>) -> Option<PayloadRate> {
    Some(PayloadRate {
        v4: site.payload_rate(link, IpVersion::V4)?,
        v6: site.payload_rate(link, IpVersion::V6)?,
    })
}
