//! ICMP errors about packets of a peer, which return through its tunnel.

use std::{net::IpAddr, process::Command};

use pepd_intercept::PacketTun;

use crate::{
    bed::{HOST_V4, HOST_V6, Host, in_place, ip, next, with_ipv6},
    forge::udp,
};

const FAR: [&str; 2] = ["203.0.113.5", "2001:db8:f::5"];

fn from(port: u16, far: &str, to: IpAddr, len: usize, hops: u8) -> Vec<u8> {
    let far = far.parse().expect("an address");
    let mut packet = udp((far, port), (to, 7100), &vec![7; len]);
    match to {
        IpAddr::V4(_) => {
            packet[8] = hops;
            packet[6] |= 0x40; // not to be broken
            packet[10..12].fill(0);
            let header = crate::forge::checksum(&packet[..20], 0);
            packet[10..12].copy_from_slice(&header);
        }
        IpAddr::V6(_) => packet[7] = hops,
    }
    packet
}

/// Returns the type of the next ICMP message, its destination, and true if it quotes `about`. Skips
/// neighbour discovery and router messages of IPv6.
fn error(tun: &PacketTun, about: &[u8]) -> Option<(u8, IpAddr, bool)> {
    loop {
        let packet = next(tun)?;
        let (to, icmp) = match packet[0] >> 4 {
            4 => {
                let to: [u8; 4] = packet[16..20].try_into().expect("four bytes");
                (IpAddr::from(to), &packet[20..])
            }
            _ => {
                let to: [u8; 16] = packet[24..40].try_into().expect("16 bytes");
                (IpAddr::from(to), &packet[40..])
            }
        };
        if to.is_multicast() {
            continue;
        }
        // A forwarded packet has one hop less, and another checksum.
        let quoted = icmp[8..].ends_with(&about[28..about.len().min(60)])
            || icmp[8..].get(28..60) == about.get(28..60);
        return Some((icmp[0], to, quoted));
    }
}

#[test]
fn our_own_errors_about_a_peers_packets_go_back_into_its_tun() {
    in_place(async |host, _interception, tuns| {
        with_ipv6(host);
        let tun = &tuns.sites[0];
        let hosts = [IpAddr::from(HOST_V4), IpAddr::from(HOST_V6)];
        for ((far, to), exceeded) in FAR.into_iter().zip(hosts).zip([11, 3]) {
            let packet = from(5060, far, to, 64, 1);
            tun.tun.write(&packet).expect("writes");
            let expected = (exceeded, far.parse().expect("an address"), true);
            assert_eq!(error(tun, &packet), Some(expected));
            // Of another site, or of none.
            tun.tun.write(&from(80, far, to, 64, 1)).expect("writes");
            assert_eq!(next(tun), None);
        }
        // A LAN with a smaller MTU than the tunnel.
        ip("link set lan0 mtu 1290");
        for ((far, to), too_big) in FAR.into_iter().zip(hosts).zip([3, 2]) {
            let packet = from(5061, far, to, 1300, 64);
            tun.tun.write(&packet).expect("writes");
            let expected = (too_big, far.parse().expect("an address"), true);
            assert_eq!(error(tun, &packet), Some(expected));
        }
    });
}

/// Makes the host answer with an error, like a router behind this machine.
fn refuses(host: &Host) {
    host.on(|| {
        let done = Command::new("sysctl")
            .args(["-qw", "net.ipv4.icmp_ratelimit=0"])
            .output();
        done.expect("starts");
    });
}

#[test]
fn errors_of_routers_behind_this_machine_take_the_same_path() {
    in_place(async |host, _interception, tuns| {
        with_ipv6(host);
        refuses(host);
        let tun = &tuns.sites[0];
        let hosts = [IpAddr::from(HOST_V4), IpAddr::from(HOST_V6)];
        for ((far, to), unreachable) in FAR.into_iter().zip(hosts).zip([3, 1]) {
            // The port is closed.
            let packet = from(5060, far, to, 64, 64);
            tun.tun.write(&packet).expect("writes");
            let expected = (unreachable, far.parse().expect("an address"), true);
            assert_eq!(error(tun, &packet), Some(expected));
            tun.tun.write(&from(80, far, to, 64, 64)).expect("writes");
            assert_eq!(
                next(tun),
                None,
                "it goes by the link, as the packet would have"
            );
        }
    });
}
