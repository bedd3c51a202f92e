//! `[peer.NAME]` and `[identity]`: far ends of tunnels, and the local end's identity.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use toml::de::DeValue;
use units::Rate;

use super::Link;
use crate::reading::{
    Section, section,
    values::{Integer, Reading, Span, Switch, path, some, text},
    words,
};
use crate::{
    key::PublicKey,
    reach::{Reach, Target, Targets},
    site::headers::Prefix,
    site::link::{rate_or_auto, round_trip},
};

section! {
    /// `[peer.NAME]`: a pepd at the far end of a tunnel.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Peer(s, given: String, link: Option<&Link>, key: &mut Option<PublicKey>) {
        /// Name in the configuration; appears in logs.
        name: String = given;
        /// Address at which pepd calls the peer. `None`: the peer calls.
        endpoint: Option<Endpoint> = some(Endpoints), None;
        /// Transport to the peer.
        carrier: Carrier = Carrier::WORDS, Carrier::Auto;
        /// Public key that identifies the peer.
        public_key: PublicKey =
            { *key = s.require("public_key", text(KEY)); key.unwrap_or(PublicKey([0; 32])) };
        /// File with the key that both ends share.
        psk_file: Option<PathBuf> = some(path("the path of a file")), None;
        /// Rate at which pepd may send to the peer, in IP packets. `None`: measured.
        rate: Option<Rate> = rate_or_auto(), link.and_then(|link| link.rate);
        /// Rate at which the peer sends, in IP packets. `None`: unknown.
        rate_down: Option<Rate> = rate_or_auto(), link.and_then(|link| link.rate_down);
        /// Initial round-trip time to the peer, by default that of `[link]`. `None`: unknown.
        rtt: Option<Duration> = some(round_trip()), link.and_then(|link| link.rtt);
        /// True where nothing else uses the link to the peer, so that silence during an outage
        /// helps no other traffic.
        dedicated: bool = Switch, link.is_some_and(|link| link.dedicated);
        /// Handling of new flows while the peer is down.
        on_peer_loss: OnPeerLoss = OnPeerLoss::WORDS, OnPeerLoss::Split;
        /// Time without a packet from the peer after which it counts as down.
        lost_after: Duration =
            Span(Duration::from_secs(1)..=Duration::from_secs(3600)), Duration::from_secs(10);
        /// Maximum number of flows that the peer may have open here, if configured
        /// ([`flows_max`](Self::flows_max)).
        flows: Option<u32> = some(Integer(0..=1_000_000)), None;
        /// Networks of the hosts for which the peer may speak. `None`: any but those of other
        /// peers.
        from: Option<Vec<IpNet>> = s.list("from", Prefix);
        /// Destinations that the peer may reach. `None`: the default ones.
        to: Option<Vec<Target>> = s.list("to", Targets);
        /// True if the peer may open compressed flows.
        compress: bool = Switch, true;
        /// Connections to servers that pepd begins for the peer per second, after a burst of as
        /// many. Further ones wait.
        openings: u32 = Integer(1..=1_000_000), 1000;
    }
}

words! {
    /// Handling of new flows of a tunnel whose peer is down.
    pub enum OnPeerLoss {
        /// pepd splits them, as in that mode.
        Split = "split",
        /// pepd accepts them; they wait for the peer.
        Hold = "hold",
        /// The kernel forwards them.
        Bypass = "bypass",
    }
}

words! {
    /// Transport to a peer.
    pub enum Carrier {
        /// UDP, and TCP while UDP does not get through.
        Auto = "auto",
        /// UDP only.
        Udp = "udp",
        /// TCP only.
        Tcp = "tcp",
    }
}

section! {
    /// `[identity]`: the local end's identity towards peers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Identity(s, stated: PathBuf) {
        /// File with the local private key.
        key_file: PathBuf = stated;
        /// Address on which pepd listens for peers. `None`: any address and a port that the kernel
        /// chooses.
        listen: Option<SocketAddr> = some(Listen), None;
        /// Directory for path measurements that outlive the process. `None`: that of systemd
        /// (`StateDirectory=`), if any.
        state: Option<PathBuf> = some(path("the path of a directory")), None;
    }
}

/// Address of a peer: a host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address.
    pub host: String,
    /// Port for UDP and TCP.
    pub port: u16,
}

impl Endpoint {
    /// Socket address, if the host is given by address.
    pub fn address(&self) -> Option<SocketAddr> {
        let ip = self.host.parse().ok()?;
        Some(SocketAddr::new(ip, self.port))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => address.fmt(f),
            None => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Reads all `[peer.NAME]` sections. Reports and leaves out those without a readable key; the list
/// of names is complete.
pub(super) fn read_peers(
    sections: Vec<(String, Section<'_>)>,
    link: Option<&Link>,
) -> (Vec<Peer>, Vec<String>) {
    let names = sections.iter().map(|(name, _)| name.clone()).collect();
    let mut peers: Vec<Peer> = Vec::new();
    for (name, mut section) in sections {
        let peer = Peer::read(name, &mut section, link);
        let known = |peer: &Peer| {
            peers
                .iter()
                .find(|other| other.public_key == peer.public_key)
        };
        if let Some(other) = peer.as_ref().and_then(known) {
            section.error(
                "public_key",
                format!(
                    "is also the key of [peer.{}]; accepted: a key of its own",
                    other.name
                ),
            );
        }
        peers.extend(peer);
        section.finish();
    }
    (peers, names)
}

impl Peer {
    /// Returns the reach of the peer at an index.
    ///
    /// # Panics
    /// When there is no such peer.
    pub fn reach(peers: &[Self], index: usize) -> Reach {
        let peer = &peers[index];
        let others = peers.iter().filter(|other| other.name != peer.name);
        let others = others.filter_map(|other| other.from.as_ref()).flatten();
        let others = others.copied().collect();
        Reach::new(peer.from.clone(), peer.to.clone(), others).with_compression(peer.compress)
    }

    /// Maximum number of flows that the peer may have open here; 0 if it may open none. Default:
    /// all of `limits.flows` for a single peer. With several peers, half of it each, which leaves
    /// room for other peers and local hosts.
    pub fn flows_max(&self, limit: u32, peers: usize) -> u32 {
        let part = if peers > 1 { limit.div_ceil(2) } else { limit };
        self.flows.unwrap_or(part)
    }

    fn read(name: String, s: &mut Section<'_>, link: Option<&Link>) -> Option<Self> {
        let mut key = None;
        let peer = Self::read_keys(s, name, link, &mut key);
        key.map(|_| peer)
    }
}

const KEY: &str = "the peer's public key, as printed by its `pepd keygen`";

/// Reads `[identity]`, if present.
pub(super) fn read_identity(mut section: Section<'_>, peers: &[Peer]) -> Option<Identity> {
    if !section.is_present() {
        return None;
    }
    let key_file = path("the path of the file that `pepd keygen` writes");
    let key_file = section.require("key_file", key_file);
    let is_there = key_file.is_some();
    let identity = Identity::read_keys(&mut section, key_file.unwrap_or_default());
    let callers: Vec<_> = peers
        .iter()
        .filter(|peer| peer.endpoint.is_none())
        .collect();
    if !section.has("listen") && !callers.is_empty() {
        let names: Vec<_> = callers.iter().map(|peer| peer.name.as_str()).collect();
        section.warning(
            "listen",
            format!(
                "missing: neither end can connect; set it, or `endpoint` of {}",
                names.join(", ")
            ),
        );
    }
    section.finish();
    is_there.then_some(identity)
}

/// Resolves relative paths against the directory of the file.
pub(super) fn resolve_paths(identity: Option<&mut Identity>, peers: &mut [Peer], directory: &Path) {
    let files = peers.iter_mut().filter_map(|peer| peer.psk_file.as_mut());
    let own = identity.map(|identity| [Some(&mut identity.key_file), identity.state.as_mut()]);
    for file in files.chain(own.into_iter().flatten().flatten()) {
        *file = directory.join(&*file);
    }
}

/// A host, by name or address, and a port.
struct Endpoints;

impl Endpoints {
    fn parse(text: &str) -> Option<Endpoint> {
        let (host, port) = match text.parse::<SocketAddr>() {
            Ok(address) => (address.ip().to_string(), address.port()),
            Err(_) => {
                let (host, port) = text.rsplit_once(':')?;
                let of_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
                let is_name = !host.is_empty() && host.bytes().all(of_name);
                (is_name.then(|| host.to_owned())?, port.parse().ok()?)
            }
        };
        (port > 0).then_some(Endpoint { host, port })
    }
}

impl Reading for Endpoints {
    type Value = Endpoint;

    fn expected(&self) -> String {
        "HOST:PORT such as \"192.0.2.1:5001\" or \"[2001:db8::1]:5001\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Endpoint, String> {
        let text = self.text_of(value)?;
        let endpoint = Self::parse(text);
        let endpoint = endpoint.ok_or_else(|| format!("`{text}` is not {}", self.expected()))?;
        match endpoint.address() {
            Some(address) if !is_of_a_machine(address.ip()) => Err(format!(
                "`{}` is the address of no machine; expected {}",
                address.ip(),
                self.expected()
            )),
            _ => Ok(endpoint),
        }
    }
}

fn is_of_a_machine(address: IpAddr) -> bool {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

/// A local address and a port.
struct Listen;

impl Reading for Listen {
    type Value = SocketAddr;

    fn expected(&self) -> String {
        "ADDRESS:PORT such as \"0.0.0.0:5001\" or \"[::]:5001\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<SocketAddr, String> {
        let text = self.text_of(value)?;
        let address = text
            .parse::<SocketAddr>()
            .ok()
            .filter(|address| address.port() > 0);
        address.ok_or_else(|| format!("`{text}` is not {}", self.expected()))
    }
}
