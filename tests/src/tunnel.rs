//! Two pepds with a link between them.
//!
//! ```text
//!   client --------- boat ~~~~~ link ~~~~~ hub --------- server
//!   10.77.0.1       pepd       10.77.1.x      pepd |     10.77.2.2
//!                                                  |
//!   client2 -------- boat2 ~~~~ link ~~~~~~~~~~~~~~+       (where there are two)
//! ```

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tempfile::TempDir;
use winkemu::{
    lab::{LinkEdge, Topology, TopologyBuilder},
    link::LinkOptions,
};

use crate::{bed::Family, host::Host, pep::Pep, pep_binary::pepd};

/// The hub's UDP port for its peers.
pub const PORT: u16 = 5001;

/// The reach of peers: servers and clients are in private networks beside their pepd.
const TO: &str = "to = [\"0.0.0.0/0\", \"::/0\"]\n";

/// A machine at an end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The clients' end.
    Boat,
    /// The servers' end.
    Hub,
    /// The end of other clients.
    SecondBoat,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            Self::Boat => "boat",
            Self::Hub => "hub",
            Self::SecondBoat => "boat2",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Boat | Self::SecondBoat => Self::Hub,
            Self::Hub => Self::Boat,
        }
    }

    /// Returns the interface toward its own hosts.
    const fn lan(self) -> &'static str {
        match self {
            Self::Boat => "client",
            Self::Hub => "server",
            Self::SecondBoat => "client2",
        }
    }
}

/// Five machines, and keys for those that run pepd.
#[derive(Debug)]
pub struct TunnelBed {
    nodes: Topology,
    keys: TempDir,
}

impl TunnelBed {
    /// Builds the machines, joined by a link of these options (as of `winkemu link`).
    ///
    /// # Panics
    /// When the kernel refuses something.
    pub fn new(link: &str) -> Self {
        Self::build(&[("client", "boat", Some(link))])
    }

    /// Builds a bed with a second boat and a second client.
    ///
    /// # Panics
    /// When the kernel refuses something.
    pub fn with_two_boats(link: &str) -> Self {
        Self::with_links(link, link)
    }

    /// Builds a bed of two boats with different links.
    ///
    /// # Panics
    /// When the kernel refuses something.
    pub fn with_links(first: &str, second: &str) -> Self {
        Self::build(&[
            ("client", "boat", Some(first)),
            ("client2", "boat2", Some(second)),
        ])
    }

    /// Builds a bed of two boats, of which the second one is beside the hub: no link between them
    /// costs CPU time.
    ///
    /// # Panics
    /// When the kernel refuses something.
    pub fn with_a_boat_beside_the_hub(link: &str) -> Self {
        Self::build(&[("client", "boat", Some(link)), ("client2", "boat2", None)])
    }

    fn build(boats: &[(&str, &str, Option<&str>)]) -> Self {
        let chain = |nodes: TopologyBuilder, (client, boat, link): &(&str, &str, Option<&str>)| {
            let nodes = nodes.veth(client, boat);
            let Some(link) = link else {
                return nodes.veth(boat, "hub");
            };
            let link: LinkOptions = link.parse().expect("valid options");
            let edge = LinkEdge::new(boat, link.resolve_without_files().expect("no files"));
            nodes.link(boat, "hub", edge)
        };
        let (first, others) = boats.split_first().expect("one boat or more");
        let nodes = chain(Topology::builder(), first).veth("hub", "server");
        let nodes = others.iter().fold(nodes, chain);
        let nodes = nodes.build();
        let nodes = nodes.expect("namespaces can be made (run the tests as root)");
        let keys = tempfile::tempdir().expect("a temporary directory can be made");
        let bed = Self { nodes, keys };
        for name in ["boat", "boat2", "hub", "stranger"] {
            bed.keygen(&["--out", &bed.key(name)]);
        }
        bed.keygen(&["--psk", &bed.key("psk")]);
        bed
    }

    /// Returns the path of a key file: of `boat`, `boat2`, `hub`, `stranger`, or `psk`.
    ///
    /// # Panics
    /// When the temporary directory has a path that is not UTF-8.
    pub fn key(&self, name: &str) -> String {
        let path: PathBuf = self.keys.path().join(name);
        path.to_str()
            .expect("a path that can be printed")
            .to_owned()
    }

    /// Returns the secrets with their names: the private keys of both ends, and their pre-shared
    /// key.
    ///
    /// # Panics
    /// When a key file cannot be read.
    pub fn secrets(&self) -> [(&'static str, String); 3] {
        ["boat", "hub", "psk"].map(|name| (name, self.secret(name)))
    }

    fn secret(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.key(name)).expect("a file with a key");
        let mut lines = text.lines().map(str::trim);
        let key = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        key.expect("a key").to_owned()
    }

    /// Returns the private key of a machine, or the pre-shared key as `psk`.
    ///
    /// # Panics
    /// When the file cannot be read, or has no key.
    pub fn private_key(&self, name: &str) -> [u8; 32] {
        let key = STANDARD.decode(self.secret(name)).expect("a key in base64");
        key.try_into().expect("32 bytes")
    }

    fn keygen(&self, arguments: &[&str]) -> String {
        let program = pepd().to_str().expect("a path that can be printed");
        let words = [&["keygen"], arguments].concat();
        self.host("client").run(program, &words).trim().to_owned()
    }

    /// Returns the public key of `boat`, `hub` or `stranger`, which no configuration names.
    pub fn public_key(&self, name: &str) -> String {
        self.keygen(&["--public", &self.key(name)])
    }

    /// Returns a machine: `client`, `boat`, `hub` or `server`.
    pub fn host(&self, name: &str) -> Host {
        Host::in_netns(self.nodes.node(name).netns())
    }

    /// Returns a port of the server.
    pub fn server_at(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.address("server", family), port)
    }

    /// Returns the address of a machine on its first edge.
    pub fn address(&self, name: &str, family: Family) -> IpAddr {
        let node = self.nodes.node(name);
        match family {
            Family::V4 => node.ipv4().into(),
            Family::V6 => node.ipv6().into(),
        }
    }

    /// Returns the configuration of an end without its peer and sites.
    pub fn config_without_peer(&self, end: End, key: &str) -> String {
        let listen = match end {
            End::Boat | End::SecondBoat => String::new(),
            End::Hub => format!("listen = \"0.0.0.0:{PORT}\""),
        };
        format!(
            "[intercept]\nlan = [\"{}\"]\n[log]\nformat = \"json\"\nlevel = \"debug\"\n\
             [identity]\nkey_file = \"{}\"\n{listen}\n",
            end.lan(),
            self.key(key),
        )
    }

    /// Returns the configuration of an end. `link` are keys of `[link]` such as its rate, `peer`
    /// those of the peer, `more` further TOML. The peer reaches all hosts, unless `peer` has `to`.
    pub fn config(&self, end: End, link: &str, peer: &str, more: &str) -> String {
        let other = end.other().name();
        let to = if peer.contains("to = ") { "" } else { TO };
        format!(
            "{}[link]\ninterface = \"{other}\"\n{link}\n{}{to}{peer}\n{more}\n",
            self.config_without_peer(end, end.name()),
            self.bare_peer(end, end.other()),
        )
    }

    /// Returns the section of a peer in the configuration of an end. The peer reaches all hosts.
    pub fn peer(&self, end: End, peer: End) -> String {
        self.bare_peer(end, peer) + TO
    }

    /// Returns the section of a peer without its reach.
    fn bare_peer(&self, end: End, peer: End) -> String {
        let endpoint = match peer {
            End::Hub => {
                let hub = self.nodes.node("hub").interface(end.name()).ipv4.addr();
                format!("endpoint = \"{hub}:{PORT}\"\n")
            }
            End::Boat | End::SecondBoat => String::new(),
        };
        let (name, psk) = (peer.name(), self.key("psk"));
        format!(
            "[peer.{name}]\npublic_key = \"{}\"\npsk_file = \"{psk}\"\n{endpoint}",
            self.public_key(name),
        )
    }

    /// Returns the addresses of a machine toward a neighbour, of IPv4 and of IPv6.
    pub fn addresses_toward(&self, name: &str, neighbour: &str) -> [IpAddr; 2] {
        let interface = self.nodes.node(name).interface(neighbour);
        [interface.ipv4.addr().into(), interface.ipv6.addr().into()]
    }

    /// Returns the hub's address for the boat.
    pub fn hub_at(&self) -> SocketAddr {
        self.hub_for(End::Boat)
    }

    /// Returns the hub's address for a boat.
    pub fn hub_for(&self, boat: End) -> SocketAddr {
        let hub = self.nodes.node("hub").interface(boat.name()).ipv4.addr();
        SocketAddr::new(hub.into(), PORT)
    }

    /// Starts pepd at an end.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start(&self, end: End, config: &str) -> Pep {
        Pep::start(&self.host(end.name()), config)
    }

    /// Drops all packets on the link silently.
    pub fn cut_link(&self) {
        self.host("hub").nft(
            "table inet outage {
                chain from { type filter hook prerouting priority -400; iifname \"boat\" drop; }
                chain to { type filter hook postrouting priority 400; oifname \"boat\" drop; }
            }",
        );
    }

    /// Drops the tunnels' UDP on the link.
    pub fn block_udp(&self) {
        self.host("hub").nft(&format!(
            "table inet blocked {{
                chain from {{ type filter hook prerouting priority -400; udp dport {PORT} drop; }}
                chain to {{ type filter hook output priority -400; udp sport {PORT} drop; }}
            }}"
        ));
    }

    /// Ends [`block_udp`](Self::block_udp).
    pub fn unblock_udp(&self) {
        self.host("hub").nft("delete table inet blocked");
    }

    /// Ends [`cut_link`](Self::cut_link).
    pub fn restore_link(&self) {
        self.host("hub").nft("delete table inet outage");
    }
}
