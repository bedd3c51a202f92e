//! The test bed: client - pepd - server, and destinations that fail.
//!
//! ```text
//!   client                    gateway                    server
//!   10.1.0.2  .3    eth0 -- lan0        wan0 -- eth0     10.2.0.2  .3   (echo, objects, ...)
//!   fd01::2   ::3        10.1.0.1   10.2.0.1             fd02::2   ::3
//!                        fd01::1    fd02::1              10.2.0.66 fd02::66   drops SYNs
//!                                        |               10.3.0.1  fd03::1    ICMP: no host
//!                           10.2.0.99, fd02::99:         10.3.0.2  fd03::2    ICMP: prohibited
//!                           not assigned                 10.3.0.3  fd03::3    ICMP: no port
//!                           10.4.0.1, fd04::1: no route
//! ```
//!
//! The gateway forwards; pepd runs on it, except on the direct path.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;

use crate::{host::Host, outcome::Connected, pep::Pep, wait::wait_until};

/// The LAN interface of the gateway, for connections from hosts.
pub const LAN: &str = "lan0";
/// The interface of the gateway toward the servers.
pub const WAN: &str = "wan0";

/// The path of connections across the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Forwarded by the kernel, without pepd.
    Direct,
    /// Through pepd, which answers SYNs at once.
    Spoof,
    /// Through pepd, which answers SYNs once the server has.
    Defer,
}

impl Path {
    /// Returns the name in the configuration and in case names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Spoof => "spoof",
            Self::Defer => "defer",
        }
    }
}

/// The family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the name in case names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    /// Returns the name in nft matches.
    pub const fn nft(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// Returns host `host` of network `net`: 10.net.0.host or fd0net::host, the host in decimal
    /// digits.
    pub fn address(self, net: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, net, 0, host).into(),
            Self::V6 => {
                // 66 is written ::66, so that both families look alike.
                let host = u16::from_str_radix(&host.to_string(), 16).expect("decimal digits");
                Ipv6Addr::new(0xfd00 | u16::from(net), 0, 0, 0, 0, 0, 0, host).into()
            }
        }
    }

    fn prefix(self, net: u8, host: u8) -> String {
        let len = match self {
            Self::V4 => 24,
            Self::V6 => 64,
        };
        format!("{}/{len}", self.address(net, host))
    }

    fn default_route(self) -> &'static str {
        match self {
            Self::V4 => "0.0.0.0/0",
            Self::V6 => "::/0",
        }
    }
}

/// A destination of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The server.
    Server,
    /// The server's second address.
    Second,
    /// An address whose SYNs are dropped.
    BlackHole,
    /// An address that a remote router reports as unreachable.
    Unreachable,
    /// An address that a remote router reports as prohibited.
    Prohibited,
    /// An address that a remote firewall rejects with ICMP port unreachable.
    Rejected,
    /// An address without a route on the gateway.
    NoRoute,
    /// An unassigned address on the gateway's own segment.
    NoNeighbour,
}

impl Place {
    /// Returns the address.
    pub fn address(self, family: Family) -> IpAddr {
        let (net, host) = match self {
            Self::Server => (2, 2),
            Self::Second => (2, 3),
            Self::BlackHole => (2, 66),
            Self::Unreachable => (3, 1),
            Self::Prohibited => (3, 2),
            Self::Rejected => (3, 3),
            Self::NoRoute => (4, 1),
            Self::NoNeighbour => (2, 99),
        };
        family.address(net, host)
    }
}

/// A chain of three machines in separate namespaces.
#[derive(Debug)]
pub struct Bed {
    /// The path of connections across the gateway.
    pub path: Path,
    /// The family of addresses from [`at`](Self::at); the bed has both.
    pub family: Family,
    /// The client's machine.
    pub client: Host,
    /// The machine that runs pepd.
    pub gateway: Host,
    /// The server's machine.
    pub server: Host,
    /// Switches and routers between them.
    _others: Vec<Host>,
}

/// Beginning of a configuration by which SYNs do not pass the hook `forward`.
pub const PAST_FORWARD: &str = "[intercept]\nforward = \"ignore\"\n";

impl Bed {
    /// Builds the machines, which run nothing but the kernel.
    ///
    /// # Panics
    /// When the kernel refuses something.
    pub fn new(path: Path, family: Family) -> Self {
        let bed = Self::machines(path, family, Vec::new());
        bed.connect_machines();
        bed.add_routes();
        bed.add_failing_places();
        bed.wait_until_connected();
        bed
    }

    /// Builds a one-armed bed: each machine has one interface, on one switch; the gateway's is
    /// [`LAN`]. The only failing destinations are closed ports.
    ///
    /// # Panics
    /// When the kernel refuses something.
    pub fn one_armed(path: Path, family: Family) -> Self {
        let switch = Host::new();
        switch.ip("link add bridge type bridge");
        switch.ip("link set bridge up");
        let bed = Self::machines(path, family, vec![switch.clone()]);
        let hosts = [
            (&bed.client, "eth0"),
            (&bed.gateway, LAN),
            (&bed.server, "eth0"),
        ];
        for (port, (host, interface)) in hosts.into_iter().enumerate() {
            let port = format!("port{port}");
            join(&switch, &port, host, interface);
            switch.ip(&format!("link set {port} master bridge"));
        }
        for family in [Family::V4, Family::V6] {
            add_addresses(&bed.client, "eth0", family, &[(1, 2), (1, 3)]);
            add_addresses(&bed.gateway, LAN, family, &[(1, 1), (2, 1)]);
            add_addresses(&bed.server, "eth0", family, &[(2, 2), (2, 3)]);
            add_route(&bed.client, family.default_route(), family.address(1, 1));
            add_route(&bed.server, family.default_route(), family.address(2, 1));
        }
        prefer_first(&bed.client, "eth0", 1, &[3]);
        prefer_first(&bed.server, "eth0", 2, &[3]);
        forward(&bed.gateway);
        bed.without_redirects();
        bed.wait_until_connected();
        bed
    }

    fn machines(path: Path, family: Family, others: Vec<Host>) -> Self {
        Self {
            path,
            family,
            client: Host::new(),
            gateway: Host::new(),
            server: Host::new(),
            _others: others,
        }
    }

    /// Disables ICMP redirects: hosts must not learn that the other side is on the same wire.
    fn without_redirects(&self) {
        for interface in ["all", LAN] {
            let key = format!("net.ipv4.conf.{interface}.send_redirects");
            self.gateway.sysctl(&key, "0");
        }
        for host in [&self.client, &self.server] {
            host.sysctl("net.ipv4.conf.eth0.accept_redirects", "0");
            host.sysctl("net.ipv6.conf.eth0.accept_redirects", "0");
        }
    }

    /// Waits until addresses work: IPv6 needs a moment after an interface comes up, and the kernel
    /// adds its last routes even later.
    fn wait_until_connected(&self) {
        for interface in self
            .gateway
            .netns()
            .interfaces()
            .expect("they can be listed")
        {
            wait_until("the addresses of the gateway to settle", || {
                let routes = self.gateway.ip("-6 route show table local");
                let settled = format!("anycast fe80:: dev {interface} ");
                interface == "lo" || routes.contains(&settled)
            });
        }
        for family in [Family::V4, Family::V6] {
            let nobody = SocketAddr::new(Place::Server.address(family), 9);
            wait_until("the machines to reach one another", || {
                let connect = self.client.connect(nobody);
                Connected::from_result(&connect) == Connected::No(Errno::ECONNREFUSED)
            });
        }
    }

    fn connect_machines(&self) {
        join(&self.gateway, LAN, &self.client, "eth0");
        join(&self.gateway, WAN, &self.server, "eth0");
        for family in [Family::V4, Family::V6] {
            add_addresses(&self.client, "eth0", family, &[(1, 2), (1, 3)]);
            add_addresses(&self.gateway, LAN, family, &[(1, 1)]);
            add_addresses(&self.gateway, WAN, family, &[(2, 1)]);
            add_addresses(&self.server, "eth0", family, &[(2, 2), (2, 3), (2, 66)]);
        }
        prefer_first(&self.client, "eth0", 1, &[3]);
        prefer_first(&self.server, "eth0", 2, &[3, 66]);
        for host in [&self.gateway, &self.server] {
            forward(host);
        }
        // Connects to a black hole end within seconds, by the kernel's own ETIMEDOUT.
        self.client.sysctl("net.ipv4.tcp_syn_retries", "1");
    }

    fn add_routes(&self) {
        for family in [Family::V4, Family::V6] {
            add_route(&self.client, family.default_route(), family.address(1, 1));
            add_route(&self.server, family.default_route(), family.address(2, 1));
            let beyond = family.prefix(3, 0);
            add_route(&self.gateway, &beyond, family.address(2, 2));
        }
    }

    fn add_failing_places(&self) {
        self.server.ip("route add unreachable 10.3.0.1");
        self.server.ip("-6 route add unreachable fd03::1");
        self.server.nft(
            "table inet places {
                chain input {
                    type filter hook input priority 0;
                    ip daddr 10.2.0.66 tcp flags syn drop
                    ip6 daddr fd02::66 tcp flags syn drop
                }
                chain prerouting {
                    type filter hook prerouting priority 0;
                    ip daddr 10.3.0.2 reject with icmp admin-prohibited
                    ip6 daddr fd03::2 reject with icmpv6 admin-prohibited
                    ip daddr 10.3.0.3 reject with icmp port-unreachable
                    ip6 daddr fd03::3 reject with icmpv6 port-unreachable
                }
            }",
        );
        // Resolution of unassigned addresses fails after 0.3 s rather than 3 s.
        for family in ["ipv4", "ipv6"] {
            let key = format!("net.{family}.neigh.{WAN}.retrans_time_ms");
            self.gateway.sysctl(&key, "100");
        }
    }

    /// Returns a port of a destination, in the bed's family.
    pub fn at(&self, place: Place, port: u16) -> SocketAddr {
        SocketAddr::new(place.address(self.family), port)
    }

    /// Returns a port of the client, in the bed's family.
    pub fn client_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.family.address(1, 2), port)
    }

    /// Returns a port of the client's second address, in the bed's family.
    pub fn other_client_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.family.address(1, 3), port)
    }

    /// Returns the gateway's address toward the servers.
    pub fn gateway_address(&self) -> IpAddr {
        self.family.address(2, 1)
    }

    /// Runs pepd with its defaults for this path; `None` on the direct path.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start(&self) -> Option<Pep> {
        self.start_with("")
    }

    /// Runs pepd like [`start`](Self::start) with more TOML, such as `[limits]` or `[[site]]`.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_with(&self, more: &str) -> Option<Pep> {
        let config = self.config(more)?;
        Some(Pep::start(&self.gateway, &config))
    }

    /// Runs pepd like [`start_with`](Self::start_with), past the hook `forward`.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_past_forward(&self, more: &str) -> Option<Pep> {
        let config = self.config(more)?;
        let config = config.replacen("[intercept]\n", PAST_FORWARD, 1);
        Some(Pep::start(&self.gateway, &config))
    }

    /// Returns the configuration for this path; `None` for the direct one.
    pub fn config(&self, more: &str) -> Option<String> {
        let syn = self.path.name();
        let config = format!(
            "[intercept]\nlan = [\"{LAN}\"]\nsyn = \"{syn}\"\n\n\
             [log]\nformat = \"json\"\nlevel = \"debug\"\n\n{more}\n"
        );
        (self.path != Path::Direct).then_some(config)
    }
}

/// Joins two machines by a cable.
///
/// # Panics
/// When a name is taken.
pub fn join(a: &Host, a_name: &str, b: &Host, b_name: &str) {
    let join = a.netns().add_veth(a_name, b.netns(), b_name);
    join.unwrap_or_else(|error| panic!("{error}"));
    for (host, name) in [(a, a_name), (b, b_name)] {
        let up = host.netns().set_up(name);
        up.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Adds addresses to an interface, given as network and host: see [`Family::address`].
///
/// # Panics
/// When the kernel refuses.
pub fn add_addresses(host: &Host, interface: &str, family: Family, addresses: &[(u8, u8)]) {
    for (net, number) in addresses {
        let prefix = family.prefix(*net, *number);
        let prefix = prefix.parse().expect("a valid prefix");
        let added = host.netns().add_address(interface, prefix);
        added.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Makes the first IPv6 address the default source; the kernel would choose one of the others.
fn prefer_first(host: &Host, interface: &str, net: u8, others: &[u8]) {
    for number in others {
        let other = Family::V6.prefix(net, *number);
        let change = format!("-6 address change {other} dev {interface} preferred_lft 0");
        host.ip(&change);
    }
}

/// Adds a route by a gateway.
///
/// # Panics
/// When the kernel refuses.
pub fn add_route(host: &Host, destination: &str, gateway: IpAddr) {
    let destination = destination.parse().expect("a valid prefix");
    let added = host.netns().add_route(destination, Some(gateway), None);
    added.unwrap_or_else(|error| panic!("{error}"));
}

/// Enables forwarding.
///
/// # Panics
/// When the kernel refuses.
pub fn forward(host: &Host) {
    host.sysctl("net.ipv4.ip_forward", "1");
    host.sysctl("net.ipv6.conf.all.forwarding", "1");
}
