//! From the configuration to sockets, an endpoint and its peers: everything that can fail.

use std::{fs, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use pep_core::{
    config::{Carrier, Config, Identity, IfName, Peer},
    key::SecretKey,
    site::{Class as SiteClass, Mode, SiteId},
};
use tunnel::{
    class::Class,
    endpoint::{Carriers, DATAGRAM_OVERHEAD, Endpoint, EndpointConfig, Limits, PeerConfig},
    session::{Outages, Rate, SessionConfig},
};

use super::{core::Peers, far, peers::Statuses, table::Table, tcp, udp::Bound};
use crate::{
    congestion::Controls,
    flow::FlowContext,
    keys::{self, KeyFileError, NoRandomness},
    leg::{LegOptions, SiteRuntime},
    marks::MarkSet,
};

/// Why there are no tunnels.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// A key file is missing or has no key in it.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// There is no seed.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// A peer has our own key, or another's.
    #[error("peer `{name}`: {err}")]
    Peer {
        /// Its name.
        name: String,
        /// What is wrong with it.
        err: tunnel::endpoint::AddPeerError,
    },
    /// The port is in use, most likely.
    #[error("cannot listen for peers at {address}: {err}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        err: io::Error,
    },
    /// Another program has the port, most likely.
    #[error(
        "cannot listen for peers by TCP at {address}: {err}; with `carrier = \"udp\"` for all peers we do not"
    )]
    ListenTcp {
        /// Where.
        address: SocketAddr,
        /// Why not.
        err: io::Error,
    },
}

/// What is needed to start.
#[derive(Debug)]
pub struct Prepared {
    pub(super) endpoint: Endpoint,
    pub(super) sockets: Bound,
    pub(super) tcp: tcp::Options,
    pub(super) listeners: Option<tcp::Listeners>,
    pub(super) peers: Vec<(Peer, PeerConfig)>,
    pub(super) statuses: Statuses,
    pub(super) routes: Vec<(SiteId, usize, Class)>,
    pub(super) far: far::Sites,
    /// The link's, where it is known.
    pub(super) interface: Option<IfName>,
    /// Bytes of each ring of a flow.
    ring: u64,
}

impl Prepared {
    /// Reads keys, binds sockets; `None` where the configuration has no peers.
    ///
    /// # Errors
    /// When a key is missing or an address in use.
    pub fn new(config: &Config, controls: &Controls) -> Result<Option<Self>, TunnelError> {
        let identity = config.identity.as_ref();
        let Some(identity) = identity.filter(|_| !config.peers.is_empty()) else {
            return Ok(None);
        };
        let endpoint = Endpoint::new(&EndpointConfig {
            private_key: *keys::read(&identity.key_file)?.bytes(),
            seed: keys::random()?,
            limits: Limits::default(),
        });
        let marks = MarkSet::new(config.intercept.marks);
        let tcp = tcp_options(config, identity, controls);
        let peers = config.peers.iter().enumerate();
        let peers =
            peers.map(|(index, peer)| Ok((peer.clone(), peer_config(config, index, peer)?)));
        Ok(Some(Self {
            endpoint,
            sockets: bind(identity, marks.server_leg())?,
            listeners: listen_by_tcp(config, identity, &tcp)?,
            tcp,
            peers: peers.collect::<Result<_, TunnelError>>()?,
            statuses: Statuses::new(config),
            routes: routes(config),
            far: far::Sites::new(&SiteRuntime::far(config, controls)),
            interface: config.link.as_ref().map(|link| link.interface.clone()),
            ring: ring(config),
        }))
    }

    /// Adds the peers to the endpoint.
    pub(super) fn add_peers(
        endpoint: &mut Endpoint,
        peers: &[(Peer, PeerConfig)],
        context: &Arc<FlowContext>,
        ring: u64,
    ) -> Result<Peers, TunnelError> {
        let mut added = Peers::default();
        for (peer, config) in peers {
            let credit = config.session.session_credit;
            let id = endpoint
                .add_peer(config.clone())
                .map_err(|err| TunnelError::Peer {
                    name: peer.name.clone(),
                    err,
                })?;
            added.push(id, peer.clone(), Table::new(context, ring, credit));
        }
        Ok(added)
    }

    pub(super) fn ring(&self) -> u64 {
        self.ring
    }
}

/// The smallest and the largest ring of a tunnel's flow: that of a link of unknown rate is between.
const RING_MIN: u64 = 1 << 20;
const RING_UNKNOWN: u64 = 4 << 20;
const RING_MAX: u64 = 16 << 20;

/// Bytes of each ring of a tunnel's flow: four times what the fastest peer's link has in flight. What was lost is on
/// its way again while the rest waits for it, and where 8 % are lost, some bytes of each round trip are lost
/// thrice.
pub fn ring(config: &Config) -> u64 {
    let of_peer = |peer: &Peer| match (peer.rate, peer.rtt) {
        (Some(rate), Some(rtt)) => 4 * rate.bandwidth_delay_product(rtt),
        _ => RING_UNKNOWN,
    };
    let most = config.peers.iter().map(of_peer).max().unwrap_or(0);
    let ring = most.clamp(RING_MIN, RING_MAX).next_power_of_two();
    ring.max(config.limits.ring_max.bytes())
}

fn bind(identity: &Identity, mark: u32) -> Result<Bound, TunnelError> {
    Bound::bind(identity.listen, mark).map_err(|err| TunnelError::Listen {
        address: identity
            .listen
            .map_or("any address".to_owned(), |address| address.to_string()),
        err,
    })
}

/// Bytes that the kernel takes ahead of what TCP may send: little, or what is urgent waits behind them.
const UNSENT: u32 = 32 << 10;
/// By which nothing is acknowledged for so long, a connection is given up.
const TCP_TIMEOUT: Duration = Duration::from_secs(60);

/// As the link legs of flows: of the first site with a tunnel, or of the built-in one.
fn tcp_options(config: &Config, identity: &Identity, controls: &Controls) -> tcp::Options {
    let leg = SiteRuntime::tunnel_leg(config, controls);
    let listen = identity.listen.map(|listen| listen.ip());
    tcp::Options {
        leg: LegOptions {
            nodelay: true,
            notsent_lowat: Some(UNSENT),
            user_timeout: Some(TCP_TIMEOUT),
            keepalive: None,
            ..leg
        },
        from: listen.filter(|ip| !ip.is_unspecified()),
    }
}

/// Listens by TCP, too, if a peer may come by it.
fn listen_by_tcp(
    config: &Config,
    identity: &Identity,
    options: &tcp::Options,
) -> Result<Option<tcp::Listeners>, TunnelError> {
    let wanted = config.peers.iter().any(|peer| peer.carrier != Carrier::Udp);
    let address = identity.listen.filter(|_| wanted);
    let listen = |address| {
        tcp::Listeners::bind(address, options)
            .map_err(|err| TunnelError::ListenTcp { address, err })
    };
    address.map(listen).transpose()
}

fn routes(config: &Config) -> Vec<(SiteId, usize, Class)> {
    let sites = config.sites.iter();
    sites
        .filter_map(|(id, site)| Some((id, config.peer_of(id)?, class(site.class))))
        .collect()
}

fn class(class: SiteClass) -> Class {
    match class {
        SiteClass::Interactive => Class::Interactive,
        SiteClass::Normal => Class::Normal,
        SiteClass::Bulk => Class::Bulk,
        SiteClass::DelayTolerant => Class::DelayTolerant,
    }
}

fn peer_config(config: &Config, index: usize, peer: &Peer) -> Result<PeerConfig, TunnelError> {
    let psk = peer.psk_file.as_deref().map(keys::read).transpose()?;
    let address = peer
        .endpoint
        .as_ref()
        .and_then(pep_core::config::Endpoint::address);
    Ok(PeerConfig {
        public_key: peer.public_key.0,
        psk: psk.as_ref().map_or([0; 32], |psk: &SecretKey| *psk.bytes()),
        address,
        carriers: match peer.carrier {
            Carrier::Auto => Carriers::Both,
            Carrier::Udp => Carriers::Udp,
            Carrier::Tcp => Carriers::Tcp,
        },
        session: session_config(config, index, peer, address),
    })
}

/// The round trip of RFC 9002, section 6.2.2, where none is known.
const RTT_UNKNOWN: Duration = Duration::from_millis(333);
/// Headers of UDP.
const UDP: usize = 8;
/// What every path carries (RFC 8200, section 5).
const IPV6_MTU_MIN: usize = 1280;

fn session_config(
    config: &Config,
    index: usize,
    peer: &Peer,
    address: Option<SocketAddr>,
) -> SessionConfig {
    let ip = if address.is_some_and(|address| address.is_ipv6()) {
        40
    } else {
        20
    };
    let overhead = DATAGRAM_OVERHEAD + UDP + ip;
    let mtu = config
        .link
        .as_ref()
        .and_then(|link| interface_mtu(link.interface.as_str()))
        .unwrap_or(1500)
        .clamp(IPV6_MTU_MIN, 9000);
    SessionConfig {
        initiator: false,
        rate: peer
            .rate
            .map_or(Rate::Auto, |rate| Rate::Stated(rate.bits_per_second())),
        return_rate: None,
        rtt: peer.rtt.unwrap_or(RTT_UNKNOWN),
        packet_start: (IPV6_MTU_MIN - 40 - UDP - DATAGRAM_OVERHEAD).min(mtu - overhead),
        packet_max: mtu - overhead,
        overhead,
        outages: outages(config, index, peer),
        stream_credit: ring(config),
        session_credit: config.limits.memory.bytes() / 2,
        streams_max: config.limits.flows,
        memory: None,
        overhead_max: 1.0,
    }
}

/// When to stop sending into silence: never on a link that is ours alone, gently on others.
fn outages(config: &Config, index: usize, peer: &Peer) -> Outages {
    let dedicated = config
        .sites
        .iter()
        .any(|(id, site)| config.peer_of(id) == Some(index) && site.dedicated);
    match peer.rate {
        Some(_) if peer.dedicated || dedicated => Outages::Never,
        Some(_) => Outages::After(Duration::from_secs(1)),
        None => Outages::AtOnce,
    }
}

fn interface_mtu(name: &str) -> Option<usize> {
    let path = Path::new("/sys/class/net").join(name).join("mtu");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether flows of a site go into a tunnel.
pub fn is_tunnel(config: &Config, site: SiteId) -> bool {
    config
        .sites
        .get(site)
        .is_some_and(|site| site.mode == Mode::Tunnel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(peer: &str, site: &str) -> Config {
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n\
             [peer.hub]\nendpoint = \"192.0.2.1:1\"\n{peer}\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"a\"\nmode = \"tunnel\"\npeer = \"hub\"\n{site}\n"
        );
        pep_core::config::parse(&text).expect("valid")
    }

    fn session(peer: &str, site: &str) -> SessionConfig {
        let config = config(peer, site);
        let peer = &config.peers[0];
        peer_config(&config, 0, peer).expect("no files").session
    }

    #[test]
    fn rings_hold_four_times_what_is_in_flight() {
        let ring = |peer| ring(&config(peer, ""));
        assert_eq!(ring("rate = \"10Mbit/s\"\nrtt = \"600ms\""), 4 << 20);
        assert_eq!(ring("rate = \"10kbit/s\"\nrtt = \"600ms\""), 1 << 20);
        assert_eq!(ring("rate = \"10Gbit/s\"\nrtt = \"600ms\""), 16 << 20);
        assert_eq!(ring(""), 4 << 20);
    }

    #[test]
    fn only_a_link_of_our_own_is_sent_into_without_end() {
        let stated = "rate = \"10Mbit/s\"";
        let dedicated = "rate = \"10Mbit/s\"\ndedicated = true";
        let second = Outages::After(Duration::from_secs(1));
        assert_eq!(session(stated, "").outages, second);
        assert_eq!(session(dedicated, "").outages, Outages::Never);
        assert_eq!(session(stated, "dedicated = true").outages, Outages::Never);
        assert_eq!(session("", "").outages, Outages::AtOnce);
        assert_eq!(session("dedicated = true", "").outages, Outages::AtOnce);
    }

    #[test]
    fn packets_fill_what_the_link_carries() {
        let session = session("", "");
        assert_eq!(session.packet_max + session.overhead, 1500);
        assert!(session.packet_start + DATAGRAM_OVERHEAD + 48 <= 1280);
    }
}
