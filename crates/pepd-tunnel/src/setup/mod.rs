//! From the configuration to sockets, an endpoint and its peers: everything that can fail.

mod kept;
mod places;
mod room;

use std::{
    io, mem, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, rc::Rc, sync::Arc, time::Duration,
};

use parking_lot::Mutex;
use pep_core::{
    chunks,
    config::{Carrier, Config, Identity, Peer},
    key::SecretKey,
    reach::Reach,
    site::{Buffers, ReceiveBuffer, SiteId},
};
use pepd_relay::flow::FlowContext;
use pepd_sys::{
    congestion::Controls,
    interface,
    keys::{self, KeyFileError, NoRandomness},
    leg::{Clamps, LegOptions, SiteRuntime},
    marks::MarkSet,
    places::Places,
    site_counters::SiteCounters,
    threads::IdleLoop,
};
use tunnel::{
    class::Class,
    endpoint::{
        AddPeerError, Carriers, Counters, DATAGRAM_OVERHEAD, Endpoint, EndpointConfig, Limits,
        PeerConfig,
    },
    session::{Outages, Rate, SessionConfig, SkipConfig, Unreached},
};

use super::{
    core::{BEGINNING, Peers},
    credit, far,
    packets::{Packets, groups::Named},
    paths::{self, Paths},
    peers::Statuses,
    shards::{Inbox, Member},
    table::{Custody, Sizes, Table},
    tcp,
    udp::Bound,
};
use crate::custody::DirectoryError;

pub(super) use kept::{Kept, Opening, Portion};
pub(super) use places::Place;
use places::{of_thread, places};
pub use room::extent;

/// Reasons for which the tunnels cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// A key file is missing or contains no key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The custody directory cannot be used.
    #[error("custody.directory: {0}")]
    Directory(#[from] DirectoryError),
    /// The thread for disk operations cannot be started.
    #[error("cannot start a thread for `custody.directory`: {0}")]
    Thread(io::Error),
    /// The kernel cannot be asked for routes.
    #[error("cannot open a netlink socket, which decides what peers may reach: {0}")]
    Routes(io::Error),
    /// No random seed is available.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// A peer has the local key, or another peer's.
    #[error("peer `{name}`: {err}")]
    Peer {
        /// Name of the peer.
        name: String,
        /// The conflict.
        err: AddPeerError,
    },
    /// Listening by UDP failed, most likely because the port is in use.
    #[error("cannot listen for peers at {address} (`identity.listen`): {err}")]
    Listen {
        /// Address and port.
        address: String,
        /// Error of the kernel.
        err: io::Error,
    },
    /// Listening by TCP failed, most likely because another program uses the port.
    #[error(
        "cannot listen for peers by TCP at {address} (`identity.listen`): {err}; with `carrier = \"udp\"` for all peers it needs none"
    )]
    ListenTcp {
        /// Address and port.
        address: SocketAddr,
        /// Error of the kernel.
        err: io::Error,
    },
}

/// Everything that the tunnels need to start.
#[derive(Debug)]
pub struct Prepared {
    /// Parts of the threads.
    pub(super) parts: Vec<Part>,
    /// Thread of each peer, and its place there.
    pub(super) places: Vec<Place>,
    pub(super) statuses: Statuses,
    pub(super) routes: Vec<(SiteId, usize, Class)>,
    /// Counters of the flows that peers open.
    pub(super) far: Arc<SiteCounters>,
    /// Custody in memory and on disk.
    pub(super) custody: Kept,
    /// Sockets of all threads, which stay open until the last thread has ended.
    pub(super) sockets: Vec<Bound>,
}

/// Everything that one thread needs to start.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) endpoint: Endpoint,
    pub(super) member: Member,
    pub(super) inbox: Inbox,
    pub(super) sockets: Bound,
    pub(super) tcp: tcp::Options,
    /// TCP listeners, of the first thread only.
    pub(super) listeners: Option<tcp::Listeners>,
    pub(super) peers: Vec<(Peer, PeerConfig)>,
    pub(super) statuses: Statuses,
    pub(super) far: far::Sites,
    /// Sizes of flows, by peer.
    pub(super) sizes: Vec<Sizes>,
    /// Record of paths to peers, if one is kept.
    pub(super) paths: Option<paths::Record>,
    /// Maximum of flows that each peer may open.
    pub(super) flows: Vec<u32>,
    /// Reach of each peer.
    pub(super) reaches: Vec<Reach>,
    /// Packets of sites in mode `packet`, by peer.
    pub(super) packets: Vec<Option<Packets>>,
    /// Multicast groups whose packets are carried.
    pub(super) groups: Option<Named>,
}

impl Prepared {
    /// Reads keys and binds sockets; `None` if the configuration has no peers. `before` is the
    /// previous process's record of paths, for configurations without a state directory.
    ///
    /// # Errors
    /// If a key is missing or an address is in use.
    pub fn new(
        config: &Config,
        controls: &Controls,
        clamps: &Arc<Clamps>,
        before: Option<OwnedFd>,
    ) -> Result<Option<Self>, TunnelError> {
        let identity = config.identity.as_ref();
        let Some(identity) = identity.filter(|_| !config.peers.is_empty()) else {
            return Ok(None);
        };
        let private_key = keys::read(&identity.key_file)?;
        let marks = MarkSet::new(config.intercept.marks);
        let tcp = tcp_options(config, identity, controls, clamps);
        let mut paths = match state(config) {
            Some(directory) => Some(Paths::prepare(&directory)),
            // Without a record, pepd waits for peers that it cannot call.
            None => Paths::inherit(before).ok(),
        };
        if let Some(paths) = &mut paths {
            paths.raise_counters(config.peers.iter().map(|peer| peer.public_key));
        }
        let mut peers = Vec::new();
        for (index, peer) in config.peers.iter().enumerate() {
            let mut known = peer_config(config, index, peer)?;
            let memory = |paths: &Paths| paths.get(&peer.public_key, BEGINNING, paths::today());
            known.session.memory = paths.as_ref().and_then(memory);
            let last = |paths: &Paths| paths.address(&peer.public_key, paths::today());
            let counters = |paths: &Paths| paths.counters(&peer.public_key);
            known.counters = paths.as_ref().map(counters).unwrap_or_default();
            let calls_us = known.addresses.is_empty();
            known.last = paths.as_ref().and_then(last).filter(|_| calls_us);
            peers.push((peer.clone(), known));
        }
        let sockets = bind(identity, marks.server_leg(), config.tunnel_threads())?;
        let places = places(config, sockets.len());
        let far = SiteRuntime::far(config, controls, clamps);
        let statuses = Statuses::new(config);
        let mut parts = Vec::new();
        for ((member, inbox), sockets) in Member::all(sockets.len()).into_iter().zip(&sockets) {
            // With one seed for several, keys would repeat.
            let endpoint = Endpoint::new(&EndpointConfig {
                private_key: *private_key.bytes(),
                seed: keys::random()?,
                limits: Limits::default(),
            });
            let servers = Places::open(marks.server_leg()).map_err(TunnelError::Routes)?;
            parts.push(Part {
                endpoint: endpoint.in_shard(member.shard()),
                sockets: sockets.clone(),
                tcp: tcp.clone(),
                listeners: None,
                peers: Vec::new(),
                statuses: statuses.of(of_thread(&places, &member)),
                far: far::Sites::new(&far, Box::new(servers)),
                sizes: Vec::new(),
                paths: None,
                flows: Vec::new(),
                reaches: Vec::new(),
                packets: Vec::new(),
                groups: None,
                member,
                inbox,
            });
        }
        parts[0].listeners = listen_by_tcp(config, identity, &tcp)?;
        parts[0].groups = Named::new(config);
        let paths = paths.map(|paths| Arc::new(Mutex::new(paths)));
        for part in &mut parts {
            part.paths.clone_from(&paths);
        }
        let (sizes, flows, mut packets) = (room::sizes(config), flows(config), packets(config)?);
        for (index, (peer, place)) in peers.into_iter().zip(&places).enumerate() {
            for (thread, part) in parts.iter_mut().enumerate() {
                if thread != place.thread {
                    let (key, there) = (peer.1.public_key, place.thread as u16);
                    let added = part.endpoint.add_elsewhere(key, there);
                    added.map_err(|err| conflict(&peer.0, err))?;
                }
            }
            let part = &mut parts[place.thread];
            part.peers.push(peer);
            part.sizes.push(sizes[index]);
            part.flows.push(flows[index]);
            part.reaches.push(Peer::reach(&config.peers, index));
            part.packets.push(packets[index].take());
        }
        Ok(Some(Self {
            parts,
            places,
            statuses,
            routes: routes(config),
            far: Arc::clone(&far.site_counters),
            custody: Kept::new(config)?,
            sockets,
        }))
    }

    /// Creates the threads, without work for now.
    ///
    /// # Errors
    /// When memory, descriptors, or the limit of threads, are exhausted.
    pub fn threads(&self) -> io::Result<Vec<IdleLoop>> {
        let name = |part: &Part| match part.member.shard().number() {
            0 => "tunnels".to_owned(),
            number => format!("tunnels-{number}"),
        };
        let parts = self.parts.iter();
        parts.map(|part| IdleLoop::new(name(part))).collect()
    }
}

fn conflict(peer: &Peer, err: AddPeerError) -> TunnelError {
    TunnelError::Peer {
        name: peer.name.clone(),
        err,
    }
}

impl Part {
    /// Adapts to the existing memory of flows: a predecessor's may have less room for each flow.
    pub(super) fn fit(&mut self, extent: u64) {
        for (_, peer) in &mut self.peers {
            let credit = &mut peer.session.stream_credit;
            *credit = (*credit).min(chunks::window(extent));
        }
    }

    /// Adds the peers to the endpoint.
    pub(super) fn add_peers(
        &mut self,
        context: &Arc<FlowContext>,
        credit: &Arc<credit::Pool>,
        custody: &Rc<Custody>,
    ) -> Result<Peers, TunnelError> {
        let mut added = Peers::new(credit);
        let tracked = pepd_sys::sysctl("net/netfilter/nf_conntrack_max");
        let tracked = tracked.and_then(|max| max.trim().parse().ok());
        // 0 is no limit.
        added.tracked_max = tracked.filter(|max| *max > 0);
        let (far, packets) = (self.far.policy(), mem::take(&mut self.packets));
        let reaches = mem::take(&mut self.reaches);
        let peers = self.peers.iter().zip(packets).zip(reaches).enumerate();
        for (index, (((peer, config), packets), reach)) in peers {
            let (sizes, flows) = (self.sizes[index], self.flows[index]);
            let id = self.endpoint.add_peer(config.clone());
            let id = id.map_err(|err| conflict(peer, err))?;
            let mut table = Table::new(context, sizes, flows);
            table.keep_in(custody, index, far);
            table.belong_to(&peer.name);
            let base = config.session.session_credit;
            added.credits.add(base, sizes.first, table.memory());
            added.push(id, (peer.clone(), reach), table, packets);
        }
        Ok(added)
    }
}

/// Returns the directory for state that outlives the process: the configured one, or systemd's
/// (`StateDirectory=`). `None` without one, and without an identity.
pub fn state(config: &Config) -> Option<PathBuf> {
    let identity = config.identity.as_ref()?;
    let by_systemd = || {
        let directories = std::env::var_os("STATE_DIRECTORY")?;
        std::env::split_paths(&directories).next()
    };
    let state = identity.state.clone().or_else(by_systemd);
    state.filter(|directory| !directory.as_os_str().is_empty())
}

fn flows(config: &Config) -> Vec<u32> {
    let (limit, peers) = (config.limits.flows, &config.peers);
    let flows = peers.iter().map(|peer| peer.flows_max(limit, peers.len()));
    flows.collect()
}

fn packets(config: &Config) -> Result<Vec<Option<Packets>>, NoRandomness> {
    let seed = u64::from_be_bytes(keys::random()?[..8].try_into().expect("longer"));
    let peers = 0..config.peers.len();
    Ok(peers.map(|peer| Packets::new(config, peer, seed)).collect())
}

fn bind(identity: &Identity, mark: u32, threads: usize) -> Result<Vec<Bound>, TunnelError> {
    Bound::bind(identity.listen, mark, threads).map_err(|err| TunnelError::Listen {
        address: identity
            .listen
            .map_or("any address".to_owned(), |address| address.to_string()),
        err,
    })
}

/// Bytes that the kernel takes ahead of the congestion window. Low, because urgent datagrams wait
/// behind them.
const UNSENT: u32 = 32 << 10;
/// Time without an acknowledgement after which a connection is closed.
const TCP_TIMEOUT: Duration = Duration::from_secs(60);

/// Socket options like those of link legs: of the first site with a tunnel, or of the built-in one.
fn tcp_options(
    config: &Config,
    identity: &Identity,
    controls: &Controls,
    clamps: &Arc<Clamps>,
) -> tcp::Options {
    let leg = SiteRuntime::tunnel_leg(config, controls);
    let listen = identity.listen.map(|listen| listen.ip());
    tcp::Options {
        leg: LegOptions {
            nodelay: true,
            notsent_lowat: Some(UNSENT),
            user_timeout: Some(TCP_TIMEOUT),
            keepalive: None,
            buffers: Buffers {
                // pepd reads at once and a peer has one connection: a growing buffer gains nothing.
                receive: match leg.buffers.receive {
                    ReceiveBuffer::Grown(most) => ReceiveBuffer::Fixed(most),
                    fixed => fixed,
                },
                ..leg.buffers
            },
            ..leg
        },
        clamps: Arc::clone(clamps),
        from: listen.filter(|ip| !ip.is_unspecified()),
    }
}

/// Listens by TCP too if a peer may use it.
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
        .filter_map(|(id, site)| Some((id, config.peer_of(id)?, crate::class(site.class))))
        .collect()
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
        addresses: address.into_iter().collect(),
        last: None,
        counters: Counters::default(),
        carriers: match peer.carrier {
            Carrier::Auto => Carriers::Both,
            Carrier::Udp => Carriers::Udp,
            Carrier::Tcp => Carriers::Tcp,
        },
        session: session_config(config, index, peer, address),
    })
}

/// Round trip assumed when none is known (RFC 9002, section 6.2.2).
const RTT_UNKNOWN: Duration = Duration::from_millis(333);
/// Length of a UDP header.
const UDP: usize = 8;
/// Minimum MTU of every IPv6 path (RFC 8200, section 5).
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
        .and_then(|link| interface::mtu(link.interface.as_str()).ok())
        .unwrap_or(1500)
        .clamp(IPV6_MTU_MIN, 9000);
    let stream_credit = chunks::window(room::extent_of(config, index, peer));
    let memory = config.limits.memory.bytes();
    SessionConfig {
        initiator: false,
        rate: match peer.rate.map(units::Rate::bits_per_second) {
            Some(rate) if is_dedicated(config, index, peer) => Rate::Dedicated(rate),
            Some(rate) => Rate::Stated(rate),
            None => Rate::Auto,
        },
        return_rate: None,
        rtt: peer.rtt.unwrap_or(RTT_UNKNOWN),
        packet_start: (IPV6_MTU_MIN - 40 - UDP - DATAGRAM_OVERHEAD).min(mtu - overhead),
        packet_max: mtu - overhead,
        overhead,
        outages: outages(config, index, peer),
        stream_credit,
        session_credit: credit::base(memory, config.peers.len(), room::first(config, index, peer)),
        streams_max: config.limits.flows,
        memory: None,
        overhead_max: 1.0,
        skips: SkipConfig::default(),
        kept_max: (memory as usize / 16).clamp(KEPT_MIN, KEPT_MAX),
        packets: has_packets(config, index),
        unreached: Unreached::default(),
        peer_packets: false,
        peer_rests: false,
    }
}

/// Bounds of the memory for a peer's unacknowledged segments, in bytes; between them a part of
/// `limits.memory`. The smallest suffices for 50 MB in flight.
const KEPT_MIN: usize = 8 << 20;
const KEPT_MAX: usize = 64 << 20;

/// Returns whether there are sites in mode `packet` with that peer.
fn has_packets(config: &Config, peer: usize) -> bool {
    config.packet_sites().any(|site| site.peer == Some(peer))
}

/// Returns the reaction to silence: never stop sending on a dedicated link, stop gently on others.
fn outages(config: &Config, index: usize, peer: &Peer) -> Outages {
    match peer.rate {
        Some(_) if is_dedicated(config, index, peer) => Outages::Never,
        Some(_) => Outages::After(Duration::from_secs(1)),
        None => Outages::AtOnce,
    }
}

/// Returns whether pepd has the link to a peer to itself.
fn is_dedicated(config: &Config, index: usize, peer: &Peer) -> bool {
    let sites = config.sites.iter();
    let mut of_peer = sites.filter(|(id, _)| config.peer_of(*id) == Some(index));
    peer.dedicated || of_peer.any(|(_, site)| site.dedicated)
}

/// Returns the parameters of sessions with a peer and of flows in them.
#[cfg(test)]
pub(super) fn sizes_and_session(config: &Config, peer: usize) -> (SessionConfig, Sizes) {
    let session = session_config(config, peer, &config.peers[peer], None);
    (session, room::sizes(config)[peer])
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn config(peer: &str, site: &str) -> Config {
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
    fn a_stated_rate_is_a_ceiling_unless_the_link_is_our_own() {
        let stated = "rate = \"10Mbit/s\"";
        assert_eq!(session(stated, "").rate, Rate::Stated(10_000_000));
        let dedicated = Rate::Dedicated(10_000_000);
        assert_eq!(session(stated, "dedicated = true").rate, dedicated);
        assert_eq!(session("dedicated = true", "").rate, Rate::Auto);
    }

    #[test]
    fn packets_fill_what_the_link_carries() {
        let session = session("", "");
        assert_eq!(session.packet_max + session.overhead, 1500);
        assert!(session.packet_start + DATAGRAM_OVERHEAD + 48 <= 1280);
    }
}
