//! Martian packets, which no router may forward (RFC 1812 §5.3.7). A peer's packets may bear any
//! address, and the kernel checks source addresses of IPv4 only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice};

/// IPv6 extension headers that precede the transport header: hop-by-hop options, routing, fragment,
/// authentication, destination options.
mod extension {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const AUTHENTICATION: u8 = 51;
    pub const DESTINATION: u8 = 60;
}

/// IPv4 options (RFC 791 §3.1): end, no operation, and the two source routes.
mod option {
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const LOOSE_ROUTE: u8 = 131;
    pub const STRICT_ROUTE: u8 = 137;
}

/// Reports whether a host may have this address. connect(2) and routes take loopback and
/// unspecified addresses for this machine, so that a request from outside would reach local
/// listeners. The other excluded addresses belong to no single host. IPv4-mapped addresses count as
/// the IPv4 address.
pub fn may_be_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || broadcast)
}

/// Reports whether a packet is one that a router may not forward:
///
/// - its header is incomplete;
/// - its source is no single host's, or its destination neither a host's nor a group;
/// - source and destination are the same;
/// - one of them is an IPv4-mapped address (RFC 4942 §2.2) or link-local (RFC 4291 §2.5.6);
/// - it is source-routed (LSRR and SSRR: RFC 7126 §4.3; routing header of type 0: RFC 5095).
///
/// The addresses of this machine itself are not known here.
pub fn is_martian(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => Ipv4HeaderSlice::from_slice(packet).map_or(true, |header| {
            let ends = [header.source_addr(), header.destination_addr()];
            are_strange(ends.map(IpAddr::V4)) || is_source_routed(header.options())
        }),
        Some(6) => Ipv6HeaderSlice::from_slice(packet).map_or(true, |header| {
            let ends = [header.source_addr(), header.destination_addr()];
            let of_link = |address: &Ipv6Addr| address.is_unicast_link_local();
            let is_mapped = |address: &Ipv6Addr| address.to_ipv4_mapped().is_some();
            are_strange(ends.map(IpAddr::V6))
                || ends.iter().any(|end| of_link(end) || is_mapped(end))
                || has_routing_header_0(header.next_header().0, &packet[40..])
        }),
        _ => true,
    }
}

fn are_strange([from, to]: [IpAddr; 2]) -> bool {
    from == to || !may_be_host(from) || !(may_be_host(to) || to.is_multicast())
}

/// Malformed options may hide a source route, so they count as well.
fn is_source_routed(mut options: &[u8]) -> bool {
    loop {
        match *options {
            [] | [option::END, ..] => return false,
            [option::NOP, ref after @ ..] => options = after,
            [option::LOOSE_ROUTE | option::STRICT_ROUTE, ..] => return true,
            [_, len, ..] if len >= 2 && usize::from(len) <= options.len() => {
                options = &options[len.into()..];
            }
            _ => return true,
        }
    }
}

/// Reports whether one of the headers after the IPv6 header, the first of which is of type `next`,
/// is a routing header of type 0. Headers that are cut off, as after the first fragment, do not
/// count.
fn has_routing_header_0(mut next: u8, mut headers: &[u8]) -> bool {
    loop {
        let [after, len, third, fourth, ..] = *headers else {
            return false;
        };
        let len = usize::from(len);
        let length = match next {
            extension::ROUTING if third == 0 => return true,
            extension::HOP_BY_HOP | extension::DESTINATION | extension::ROUTING => 8 + 8 * len,
            extension::AUTHENTICATION => 8 + 4 * len,
            // Fragments after the first have no further headers.
            extension::FRAGMENT if (third, fourth & 0xf8) == (0, 0) => 8,
            _ => return false,
        };
        (next, headers) = (after, headers.get(length..).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [u8; 4] = [10, 1, 0, 2];
    const FAR: [u8; 4] = [203, 0, 113, 5];

    fn v4(from: [u8; 4], to: [u8; 4], options: &[u8]) -> Vec<u8> {
        let length = 20 + options.len() as u8;
        let mut packet = vec![0x40 | (length / 4), 0, 0, length, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([from, to].concat());
        packet.extend(options);
        packet
    }

    fn v6(from: &str, to: &str, next: u8, headers: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, headers.len() as u8, next, 64];
        for address in [from, to] {
            let address: Ipv6Addr = address.parse().expect("an address");
            packet.extend(address.octets());
        }
        packet.extend(headers);
        packet
    }

    #[test]
    fn only_hosts_and_groups_may_be_reached() {
        assert!(!is_martian(&v4(FAR, HOST, &[])));
        assert!(!is_martian(&v4(FAR, [239, 1, 2, 3], &[])));
        assert!(is_martian(&v4(FAR, FAR, &[])), "from itself");
        for address in [[127, 0, 0, 1], [255; 4], [0; 4]] {
            assert!(is_martian(&v4(FAR, address, &[])), "{address:?}");
            assert!(is_martian(&v4(address, HOST, &[])), "{address:?}");
        }
        assert!(is_martian(&v4([239, 1, 2, 3], HOST, &[])));
        let (far, host) = ("2001:db8:f::5", "2001:db8:1::2");
        assert!(!is_martian(&v6(far, host, 17, &[])));
        assert!(!is_martian(&v6(far, "ff1e::1", 17, &[])));
        assert!(is_martian(&v6(far, far, 17, &[])));
        for address in [
            "::1",
            "::",
            "fe80::1",
            "::ffff:10.1.0.2",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_martian(&v6(far, address, 17, &[])), "to {address}");
            assert!(is_martian(&v6(address, host, 17, &[])), "from {address}");
        }
        assert!(is_martian(&v6("ff1e::1", host, 17, &[])));
        for cut in 0..20 {
            assert!(is_martian(&v4(FAR, HOST, &[])[..cut]));
        }
        for cut in 0..40 {
            assert!(is_martian(&v6(far, host, 17, &[])[..cut]));
        }
        assert!(is_martian(&[0x50; 60]), "of no version");
    }

    #[test]
    fn source_routed_packets_are_martians() {
        let routed = |options: &[u8]| is_martian(&v4(FAR, HOST, options));
        assert!(routed(&[131, 7, 4, 192, 0, 2, 1, 0]));
        assert!(routed(&[1, 137, 7, 4, 192, 0, 2, 1]));
        // A record of the route, a timestamp, and then a source route.
        assert!(routed(&[
            7, 3, 4, 68, 5, 5, 0, 0, 131, 7, 4, 192, 0, 2, 1, 0
        ]));
        assert!(routed(&[7, 1, 0, 0]) && routed(&[7, 9, 0, 0]), "nonsense");
        assert!(!routed(&[7, 3, 4, 0]) && !routed(&[1, 1, 1, 1]));
        // A router alert (RFC 2113); data after the end does not count.
        assert!(!routed(&[148, 4, 0, 0]) && !routed(&[0, 131, 7, 4]));
    }

    #[test]
    fn nor_by_a_routing_header() {
        let with =
            |next, headers: &[u8]| is_martian(&v6("2001:db8:f::5", "2001:db8:1::2", next, headers));
        let routing = |kind: u8| [17, 0, kind, 1, 0, 0, 0, 0];
        assert!(with(43, &routing(0)));
        assert!(!with(43, &routing(2)) && !with(43, &routing(4)));
        let hidden = |next: u8, offset: u8| {
            let mut headers = vec![60, 0, 1, 4, 0, 0, 0, 0, 51, 1];
            headers.extend([0; 14]);
            // Authentication of 16 bytes, and a fragment.
            headers.extend([44, 2]);
            headers.extend([0; 14]);
            headers.extend([next, 0, 0, (offset << 3) | 1, 0, 0, 0, 9]);
            headers.extend(routing(0));
            with(0, &headers)
        };
        assert!(hidden(43, 0));
        assert!(!hidden(17, 0), "data");
        assert!(!hidden(43, 1), "in the middle of it");
        assert!(!with(43, &[17, 0]), "cut off");
    }
}
