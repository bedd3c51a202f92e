//! Packets that enter the TUN of their site, or are rejected: with the kernel, and a host in its
//! own network namespace. Needs root.

mod bed;
mod crash;
mod errors;
mod forge;
mod runs;

use std::{
    net::{IpAddr, TcpStream, UdpSocket},
    process::Command,
    sync::{Arc, mpsc},
    time::Duration,
};

use bed::{
    CONFIG, HOST_V4, HOST_V6, counter, firewall, in_place, in_place_for, ip, next, run,
    seen_by_rule, socket_of_host, wait_until, with_ipv6,
};
use forge::{checksum, mss, syn_ack, udp};
use pepd_intercept::{Interception, LeftAlone, PacketTun, netlink::Netlink};

#[test]
fn packets_of_a_site_go_into_its_tun_and_no_others() {
    in_place(async |host, interception, tuns| {
        assert!(!host.is_refused(5060));
        let packet = next(&tuns.sites[0]).expect("a datagram");
        assert_eq!(
            (&packet[12..20], packet[9]),
            (&[10, 9, 0, 2, 203, 0, 113, 5][..], 17)
        );
        assert_eq!(packet.get(28..), Some(&b"hello"[..]));
        assert!(!host.is_refused(1234));
        host.on(|| {
            Command::new("ping")
                .args(["-c1", "-W1", "10.9.0.1"])
                .output()
                .map(drop)
        })
        .ok();
        assert_eq!(next(&tuns.sites[0]), None, "another port");
        assert_eq!(next(&tuns.sites[1]), None, "for this machine");
        assert!(counter("packets_into_tunnel_0") && !counter("packets_into_tunnel_1"));
        // Packets of the far end reach the host only.
        let answered = host.on(socket_of_host);
        let mut answer = packet.clone();
        answer[12..20].rotate_left(4);
        answer[20..24].rotate_left(2);
        tuns.sites[0].tun.write(&answer).expect("writes");
        answered
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a socket of the host");
        assert_eq!(answered.recv(&mut [0; 9]).expect("a datagram"), 5);
        assert_eq!(next(&tuns.sites[0]), None, "never captured again");
        interception.remove().await.expect("removed");
    });
}

#[test]
fn a_long_datagram_goes_into_the_tun_of_its_ports_with_all_its_fragments() {
    in_place(async |host, _interception, tuns| {
        host.on(|| {
            let socket = socket_of_host();
            let sent = socket.send_to(&[7; 4000], "203.0.113.5:5060");
            sent.expect("a socket of the host");
        });
        let fragments: Vec<_> = std::iter::from_fn(|| next(&tuns.sites[0])).collect();
        let bytes = fragments.iter().map(|packet| packet.len() - 20);
        assert_eq!(bytes.sum::<usize>(), 4008);
    });
}

#[test]
fn who_is_blocked_hears_of_it_at_once() {
    in_place(async |host, _interception, tuns| {
        assert!(host.is_refused(443));
        assert!(counter("packets_refused"));
        assert_eq!(next(&tuns.sites[0]), None);
    });
}

#[test]
fn connections_learn_how_much_a_packet_of_the_tunnel_holds() {
    in_place(async |host, _interception, tuns| {
        let netlink = Netlink::connect().expect("netlink");
        netlink
            .set_mtu(tuns.sites[0].index, 1300)
            .await
            .expect("an MTU");
        host.on(|| {
            let to = "203.0.113.5:5061".parse().expect("a socket of the host");
            TcpStream::connect_timeout(&to, Duration::from_millis(50)).expect_err("no answer");
        });
        let syn = next(&tuns.sites[0]).expect("a SYN");
        assert_eq!((syn[9], syn[33] & 0x3f), (6, 2));
        assert_eq!(mss(&syn), Some(1260));
    });
}

#[test]
fn a_site_that_is_off_takes_no_packets_and_refuses_none() {
    in_place(async |host, mut interception, tuns| {
        let config = pep_core::config::parse(CONFIG).expect("valid");
        let sites = config
            .sites
            .iter()
            .filter(|(_, site)| site.mode.takes_packets());
        let off = LeftAlone {
            sites: sites.map(|(id, _)| id).collect(),
            ..LeftAlone::default()
        };
        interception.set_bypassed(off).await.expect("switched off");
        assert!(!host.is_refused(443) && !host.is_refused(5060));
        assert_eq!(next(&tuns.sites[0]), None);
        interception
            .set_bypassed(LeftAlone::default())
            .await
            .expect("switched on");
        assert!(host.is_refused(443) && !host.is_refused(5060));
        assert!(next(&tuns.sites[0]).is_some());
    });
}

#[test]
fn without_pepd_packets_pass() {
    in_place(async |host, interception, tuns| {
        drop(interception); // the rules stay, as after a crash
        drop(tuns);
        wait_until("the TUNs are gone", || !ip("-o link").contains(" pepd-"));
        let sent = || {
            let text = ip("-s link show dev far0");
            let last = text.lines().last().unwrap_or_default().to_owned();
            last.split_whitespace().nth(1).map(str::to_owned)
        };
        let before = sent();
        assert!(!host.is_refused(5060));
        assert_ne!(sent(), before);
        assert!(!counter("packets_into_tunnel_0"));
    });
}

#[test]
fn connections_live_behind_a_firewall_that_drops_what_is_invalid() {
    in_place(async |host, _interception, tuns| {
        firewall(
            "filter hook forward priority 0",
            &["ct state invalid counter drop", "ct state new counter"],
        );
        let connected = host.0.clone();
        let (tell, reported) = mpsc::channel();
        let order = move || {
            let to = "203.0.113.5:5061".parse().expect("an address");
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(3));
            tell.send(stream.is_ok()).expect("waits");
        };
        connected.send(Box::new(order)).expect("runs");
        let syn = next(&tuns.sites[0]).expect("a SYN");
        tuns.sites[0].tun.write(&syn_ack(&syn)).expect("writes");
        let ack = next(&tuns.sites[0]).expect("an ACK");
        assert_eq!((ack[9], ack[33] & 0x3f), (6, 0x10));
        assert!(reported.recv().expect("it tells"), "connected");
        assert!(!seen_by_rule("invalid"));
        // Conntrack sees bypassing packets from the first one.
        let passing = tuns.passing.expect("a TUN for what passes");
        passing.write(&syn).expect("writes");
        assert!(seen_by_rule("new"));
    });
}

#[test]
fn what_passes_is_masqueraded_as_ever() {
    in_place(async |host, _interception, tuns| {
        firewall(
            "nat hook postrouting priority 100",
            &["oifname \"far0\" masquerade"],
        );
        ip("address add 198.51.100.1/32 dev far0");
        run(
            "nft",
            &["add chain inet own seen { type filter hook postrouting priority 200; }"],
        );
        for source in ["10.9.0.2", "198.51.100.1"] {
            let rule = format!("add rule inet own seen oifname far0 ip saddr {source} counter");
            run("nft", &[&rule]);
        }
        assert!(!host.is_refused(5060));
        let packet = next(&tuns.sites[0]).expect("a datagram");
        let passing = tuns.passing.expect("a TUN for what passes");
        passing.write(&packet).expect("writes");
        assert!(!seen_by_rule("saddr 10.9.0.2"));
        assert!(seen_by_rule("saddr 198.51.100.1"));
    });
}

#[test]
fn a_peer_reaches_hosts_but_not_this_machine() {
    in_place(async |host, _interception, tuns| {
        let service = UdpSocket::bind("10.9.0.1:7000").expect("a service here");
        service
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("a socket");
        assert!(!host.is_refused(5060));
        let mut packet = next(&tuns.sites[0]).expect("a datagram");
        packet[12..20].rotate_left(4);
        packet[20..24].rotate_left(2);
        for address in [[10, 9, 0, 1], [10, 9, 0, 255]] {
            packet[16..20].copy_from_slice(&address);
            packet[10..12].fill(0);
            let header = checksum(&packet[..20], 0);
            packet[10..12].copy_from_slice(&header);
            packet[26..28].fill(0);
            tuns.sites[0].tun.write(&packet).expect("writes");
        }
        assert!(service.recv(&mut [0; 9]).is_err());
        assert!(counter("packets_not_for_hosts"));
    });
}

/// Returns true if a packet of the peer with this source reaches the host.
fn comes_from(host: &bed::Host, tun: &PacketTun, source: IpAddr) -> bool {
    let (to, wildcard) = match source {
        IpAddr::V4(_) => (IpAddr::from(HOST_V4), "10.9.0.2:7100"),
        IpAddr::V6(_) => (IpAddr::from(HOST_V6), "[2001:db8:9::2]:7100"),
    };
    let socket = host.on(move || UdpSocket::bind(wildcard).expect("a socket of the host"));
    let patience = Some(Duration::from_millis(300));
    socket.set_read_timeout(patience).expect("a socket");
    let packet = udp((source, 5060), (to, 7100), b"hello");
    tun.tun.write(&packet).expect("writes");
    socket.recv(&mut [0; 9]).is_ok()
}

#[test]
fn a_peer_does_not_speak_for_this_machine() {
    in_place(async |host, _interception, tuns| {
        with_ipv6(host);
        let tun = &tuns.sites[0];
        for source in ["203.0.113.5", "2001:db8:f::5"] {
            let source = source.parse().expect("an address");
            assert!(comes_from(host, tun, source), "{source}");
        }
        assert!(!counter("packets_not_from_hosts"));
        for source in ["10.9.0.1", "10.9.0.255", "2001:db8:9::1"] {
            let source = source.parse().expect("an address");
            assert!(!comes_from(host, tun, source), "{source}");
        }
        assert!(counter("packets_not_from_hosts"));
    });
}

/// A peer that is taken for a neighbour could answer for a resolver in the LAN, for example.
#[test]
fn a_peer_does_not_speak_for_hosts_of_this_end() {
    in_place(async |host, mut interception, tuns| {
        with_ipv6(host);
        interception.troubles().await.expect("the kernel answers");
        let tun = &tuns.sites[0];
        for source in ["10.9.0.7", "2001:db8:9::7"] {
            let source = source.parse().expect("an address");
            assert!(!comes_from(host, tun, source), "{source}");
        }
        assert!(counter("packets_not_from_hosts"));
    });
}

#[test]
fn the_rules_of_a_site_removed_by_a_reload_are_removed() {
    in_place(async |_host, interception, tuns| {
        let rules =
            || ip("rule").matches("proto 80").count() + ip("-6 rule").matches("proto 80").count();
        assert_eq!(rules(), 10);
        // State found by another process.
        drop((interception, tuns));
        let less = CONFIG.replace(
            "mode = \"packet\"\npeer = \"hub\"\nmatch = { protocol = \"icmp\" }",
            "mode = \"bypass\"",
        );
        let config = pep_core::config::parse(&less).expect("valid");
        let interception = Interception::install(&config, true, Arc::default())
            .await
            .expect("root");
        assert_eq!(rules(), 8);
        interception.remove().await.expect("removed");
        assert_eq!(rules(), 0);
    });
}

#[test]
fn what_hosts_of_two_interfaces_send_each_other_stays_here() {
    let lans = "lan = [\"lan0\", \"far0\"]\n[link]\ninterface = \"sat0\"";
    let config = CONFIG.replace("lan = [\"lan0\"]", lans);
    in_place_for(config, async |host, _interception, tuns| {
        assert!(!host.is_refused(5060));
        assert_eq!(next(&tuns.sites[0]), None);
        // Otherwise it would enter the tunnel.
        ip("link add sat0 type veth peer name sat1");
        ip("link set sat0 up");
        ip("route add 203.0.113.5/32 dev sat0");
        assert!(!host.is_refused(5060));
        assert!(next(&tuns.sites[0]).is_some());
    });
}
