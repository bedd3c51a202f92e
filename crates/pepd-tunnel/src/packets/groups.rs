//! Multicast groups. Their packets reach no TUN, because the kernel forwards multicast by separate
//! tables of a routing daemon. pepd therefore captures them on the LANs and sends them onto the
//! LANs, like a router with static groups.
//!
//! ```text
//!   host --> LAN --> Groups --> chain of the first site that names the group
//!        ==> peer ==> its Groups --> its LANs
//! ```

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    task::{Context, Poll, ready},
};

use boosters::{
    checksum,
    ip::{Ip, protocol::UDP},
};
use ipnet::IpNet;
use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};
use pep_core::{
    config::Config,
    site::{FlowKey, Matcher, Mode, Protocol, Site, SiteId},
};
use pepd_sys::{packet::PacketSocket, reactor};
use socket2::SockFilter;
use tokio::io::{Interest, unix::AsyncFd};

/// Receive buffer of the sockets in bytes, for times when the thread is busy.
const BUFFER: usize = 1 << 20;
/// Packets read before other tasks run.
const TURN: usize = 128;
/// Instructions of classic BPF: loads of a byte and of a word, AND, jump if equal, return.
const LDB: u16 = 0x30;
const LDW: u16 = 0x20;
const AND: u16 = 0x54;
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const RET: u16 = 0x06;

/// Capture of a family's multicast packets on all interfaces. LANs are selected afterwards.
#[derive(Debug)]
struct Family {
    protocol: u16,
    socket: PacketSocket,
    watch: AsyncFd<OwnedFd>,
}

/// Both families.
#[derive(Debug)]
pub(crate) struct Groups {
    named: Named,
    families: Vec<Family>,
    /// Addresses of this host; packets of others that bear them are not sent.
    own: BTreeSet<IpAddr>,
}

/// Groups of a configuration.
#[derive(Debug)]
pub(crate) struct Named {
    /// All packet sites in their order: the first match decides.
    sites: Vec<Listed>,
    lans: Vec<Lan>,
    /// True if sites name groups of IPv4, and of IPv6.
    families: [bool; 2],
}

#[derive(Debug)]
struct Listed {
    id: SiteId,
    matcher: Matcher,
    /// Matcher for fragments, which do not all have ports.
    portless: Matcher,
    carries: bool,
}

/// An interface toward hosts.
#[derive(Debug)]
struct Lan {
    name: String,
    /// Current interface index.
    index: Option<u32>,
}

/// A host's packet that may be carried, in the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard {
    pub site: SiteId,
    pub length: usize,
}

impl Named {
    /// Returns the groups of a configuration, if a packet site names any.
    pub fn new(config: &Config) -> Option<Self> {
        let nets = config.packet_sites().filter(|site| site.peer.is_some());
        let nets = nets.flat_map(|site| site.site.matcher.dst.iter());
        let groups = nets.map(IpNet::addr).filter(IpAddr::is_multicast);
        let mut families = [false; 2];
        groups.for_each(|group| families[usize::from(group.is_ipv6())] = true);
        let listed = |(id, site): (SiteId, &Site)| Listed {
            id,
            matcher: site.matcher.clone(),
            portless: Matcher {
                sport: Vec::new(),
                dport: Vec::new(),
                ..site.matcher.clone()
            },
            carries: site.mode == Mode::Packet,
        };
        let lans = config.intercept.lan.iter().map(|name| Lan {
            name: name.as_str().to_owned(),
            index: None,
        });
        families.contains(&true).then(|| Self {
            sites: config.sites.iter().map(listed).collect(),
            lans: lans.collect(),
            families,
        })
    }

    /// Returns the first site that matches, if it carries packets and names the group.
    fn site_of(&self, interface: &str, packet: &[u8]) -> Option<SiteId> {
        let ip = Ip::parse(packet)?;
        let key = ip.key();
        let key = FlowKey {
            protocol: Protocol(key.protocol),
            src: key.from.into(),
            dst: key.to.into(),
            dscp: service(packet) >> 2,
            interface,
        };
        let mut sites = self.sites.iter();
        let site = sites.find(|site| match ip.fragment {
            true => site.portless.matches(&key),
            false => site.matcher.matches(&key),
        });
        let site = site.filter(|site| site.carries && site.matcher.names_group(key.dst.ip()));
        site.map(|site| site.id)
    }
}

impl Groups {
    /// Opens the sockets. To be called within a runtime.
    ///
    /// # Errors
    /// As socket(2): without CAP_NET_RAW, or out of descriptors.
    pub fn open(named: Named) -> io::Result<Self> {
        let all = [
            (libc::ETH_P_IP, &groups_of_ipv4()[..]),
            (libc::ETH_P_IPV6, &groups_of_ipv6()[..]),
        ];
        let mut families = Vec::new();
        for ((protocol, filter), named) in all.into_iter().zip(named.families) {
            if named {
                let protocol = protocol as u16;
                let socket = PacketSocket::open_for(protocol, filter, BUFFER)?;
                let watch = socket.as_fd().try_clone_to_owned()?;
                families.push(Family {
                    protocol,
                    watch: reactor::register(watch, Interest::READABLE)?,
                    socket,
                });
            }
        }
        let mut groups = Self {
            named,
            families,
            own: BTreeSet::new(),
        };
        groups.refresh();
        Ok(groups)
    }

    /// Refreshes interfaces, which may be new or replaced, and local addresses.
    pub fn refresh(&mut self) {
        let interfaces = getifaddrs().into_iter().flatten();
        let own = interfaces.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())))
        });
        self.own = own.collect();
        for lan in &mut self.named.lans {
            let index = if_nametoindex(lan.name.as_str()).ok();
            if let Some(new) = index.filter(|_| lan.index != index) {
                for family in &self.families {
                    if let Err(error) = family.socket.hear_all_groups(new) {
                        tracing::warn!(interface = lan.name, %error, "cannot receive all multicast: pepd gets only groups that other programs joined");
                    }
                }
            }
            lan.index = index;
        }
    }

    /// Reads the next multicast packet of a host for a carried group, ready to be forwarded, to the
    /// beginning of `buffer`.
    pub fn poll(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Heard>> {
        for family in &self.families {
            if let Poll::Ready(heard) = self.poll_family(family, cx, buffer) {
                return Poll::Ready(heard);
            }
        }
        Poll::Pending
    }

    fn poll_family(
        &self,
        family: &Family,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<Heard>> {
        for _ in 0..TURN {
            let mut ready = ready!(family.watch.poll_read_ready(cx))?;
            let Some(seen) = family.socket.receive(buffer)? else {
                ready.clear_ready();
                continue;
            };
            let index = u32::try_from(seen.interface).unwrap_or(0);
            let lan = self.named.lans.iter().find(|lan| lan.index == Some(index));
            let packet = buffer.get_mut(..seen.length);
            let (Some(lan), Some(packet)) = (lan, packet) else {
                continue;
            };
            if let Some(site) = self.named.site_of(&lan.name, packet)
                && forward(packet)
            {
                complete(packet);
                let length = seen.length;
                return Poll::Ready(Ok(Heard { site, length }));
            }
        }
        // Many packets for groups that are not carried: other tasks run first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends a multicast packet of the peer onto all LANs. Returns whether one has taken it.
    /// Packets that bear an address of this host are not sent; these packets bypass the packet
    /// filter, which ensures that for others.
    pub fn send(&self, mut packet: Vec<u8>) -> bool {
        let Some((from, to)) = ends(&packet) else {
            return false;
        };
        if self.own.contains(&from) || !forward(&mut packet) {
            return false;
        }
        let protocol = match to {
            IpAddr::V4(_) => libc::ETH_P_IP,
            IpAddr::V6(_) => libc::ETH_P_IPV6,
        } as u16;
        let family = self
            .families
            .iter()
            .find(|family| family.protocol == protocol);
        let Some(family) = family else { return false };
        let lans = self.named.lans.iter().filter_map(|lan| lan.index);
        let sent = lans.filter(|index| {
            let sent = family
                .socket
                .send_to(&packet, protocol, *index, ethernet(to));
            sent.is_ok()
        });
        sent.count() > 0
    }
}

/// Returns the type of service or traffic class.
fn service(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        [_, second, ..] => *second,
        _ => 0,
    }
}

/// Returns the source and destination addresses of a packet.
pub(crate) fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let addresses = packet.get(12..20)?.as_chunks::<4>().0;
            Some((addresses[0].into(), addresses[1].into()))
        }
        6 => {
            let addresses = packet.get(8..40)?.as_chunks::<16>().0;
            Some((addresses[0].into(), addresses[1].into()))
        }
        _ => None,
    }
}

/// Decrements the hop limit (RFC 1812 §5.3.1, RFC 8200 §3). Returns whether the packet may be
/// forwarded.
fn forward(packet: &mut [u8]) -> bool {
    match packet {
        [first, ..] if *first >> 4 == 4 && packet.len() >= 20 => {
            if packet[8] <= 1 {
                return false;
            }
            packet[8] -= 1;
            // Incremental update of the checksum (RFC 1624).
            let sum = u16::from_be_bytes([packet[10], packet[11]]);
            let (sum, carry) = sum.overflowing_add(0x0100);
            let sum = sum.wrapping_add(carry.into());
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        [first, ..] if *first >> 4 == 6 && packet.len() >= 40 => {
            if packet[7] <= 1 {
                return false;
            }
            packet[7] -= 1;
            true
        }
        _ => false,
    }
}

/// Completes an unfinished UDP checksum. Packets of local senders (a container, over veth) carry
/// only the sum of the pseudo-header, to which a network card would add the rest.
fn complete(packet: &mut [u8]) {
    let Some(ip) = Ip::parse(packet).filter(|ip| ip.protocol == UDP && !ip.fragment) else {
        return;
    };
    let (at, datagram) = (ip.header + 6, ip.payload());
    let sum = !checksum::fold(checksum::pseudo(&ip, datagram.len()));
    if datagram.get(6..8) != Some(&sum.to_be_bytes()) {
        return;
    }
    let mut bare = datagram.to_vec();
    bare[6..8].fill(0);
    // 0 means no checksum and is written as 0xffff (RFC 768).
    let sum = match checksum::of_transport(&ip, &bare) {
        0 => u16::MAX,
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the Ethernet address of a group (RFC 1112 §6.4, RFC 2464 §7).
fn ethernet(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let octets = group.octets();
            [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
        }
    }
}

/// Returns a filter for groups that may be forwarded beyond a network: not 224.0.0.0/24 (RFC 5771
/// §4).
fn groups_of_ipv4() -> [SockFilter; 8] {
    [
        SockFilter::new(LDB, 0, 0, 16),
        SockFilter::new(AND, 0, 0, 0xf0),
        SockFilter::new(JEQ, 0, 4, 0xe0),
        SockFilter::new(LDW, 0, 0, 16),
        SockFilter::new(AND, 0, 0, 0xffff_ff00),
        SockFilter::new(JEQ, 1, 0, 0xe000_0000),
        SockFilter::new(RET, 0, 0, u32::MAX),
        SockFilter::new(RET, 0, 0, 0),
    ]
}

/// Returns the filter for IPv6: scopes beyond the link (RFC 7346 §2).
fn groups_of_ipv6() -> [SockFilter; 7] {
    [
        SockFilter::new(LDB, 0, 0, 24),
        SockFilter::new(JEQ, 0, 4, 0xff),
        SockFilter::new(LDB, 0, 0, 25),
        SockFilter::new(AND, 0, 0, 0x0f),
        SockFilter::new(JGT, 0, 1, 2),
        SockFilter::new(RET, 0, 0, u32::MAX),
        SockFilter::new(RET, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_addresses_of_their_own_on_ethernet() {
        let of = |group: &str| ethernet(group.parse().expect("an address"));
        assert_eq!(of("239.129.2.3"), [0x01, 0x00, 0x5e, 1, 2, 3]);
        assert_eq!(
            of("ff1e::1:2345:6789"),
            [0x33, 0x33, 0x23, 0x45, 0x67, 0x89]
        );
    }

    /// Computes a checksum (RFC 1071).
    fn sum(header: &[u8]) -> u16 {
        let words = header.as_chunks().0.iter();
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }

    #[test]
    fn checksums_that_a_card_would_have_written_are_completed() {
        // With a correct checksum: RFC 768 over 10.0.0.1 to 239.1.2.3.
        let mut packet = [0; 31];
        (packet[0], packet[3], packet[8], packet[9]) = (0x45, 31, 9, 17);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 239, 1, 2, 3]);
        packet[20..].copy_from_slice(&[0, 5, 0x1b, 0xbc, 0, 11, 0, 0, b'a', b'l', b'l']);
        let whole = {
            let ip = Ip::parse(&packet).expect("a packet");
            checksum::of_transport(&ip, ip.payload()).to_be_bytes()
        };
        let partial = {
            let ip = Ip::parse(&packet).expect("a packet");
            (!checksum::fold(checksum::pseudo(&ip, 11))).to_be_bytes()
        };
        for (found, expected) in [(partial, whole), (whole, whole), ([7, 7], [7, 7])] {
            packet[26..28].copy_from_slice(&found);
            complete(&mut packet);
            assert_eq!(packet[26..28], expected);
        }
    }

    #[test]
    fn a_hop_less_leaves_the_checksum_right() {
        for ttl in 2..=255 {
            let mut packet = [0; 28];
            (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, ttl, 17);
            packet[12..20].copy_from_slice(&[10, 0, 0, 1, 239, 1, 2, 3]);
            let checksum = !sum(&packet[..20]);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            assert!(forward(&mut packet));
            assert_eq!((packet[8], sum(&packet[..20])), (ttl - 1, 0xffff));
        }
        let mut last = [0; 28];
        (last[0], last[8]) = (0x45, 1);
        assert!(!forward(&mut last));
        assert!(!forward(&mut [0x60; 12]));
    }
}
