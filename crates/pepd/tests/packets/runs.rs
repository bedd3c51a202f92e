//! Datagrams that the kernel takes as one.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use pepd_intercept::tun::Run;

use crate::{
    bed::{CONFIG, HOST_V4, HOST_V6, firewall, in_place, in_place_for, next_all, run, with_ipv6},
    forge::udp,
};

/// Returns true if the kernel joins datagrams (Linux 6.2).
fn joins() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().ok());
    let version: (Option<u32>, Option<u32>) = (numbers.next().flatten(), numbers.next().flatten());
    version >= (Some(6), Some(2))
}

#[test]
fn the_kernel_takes_datagrams_of_a_flow_as_one_and_hosts_get_each_as_it_was() {
    goes(CONFIG.to_owned(), joins());
}

#[test]
fn filters_see_each_datagram_where_none_are_to_be_joined() {
    let packets = "match = { dport = \"5060-5070\" }\n[site.packet]\njoin = false";
    let config = CONFIG.replace("match = { dport = \"5060-5070\" }", packets);
    goes(config, false);
}

#[test]
fn what_a_host_joins_comes_apart_as_if_sent_singly() {
    in_place(async |host, _interception, tuns| {
        with_ipv6(host);
        let ends: [(IpAddr, &str, usize); 2] = [
            (HOST_V4.into(), "203.0.113.5", 20),
            (HOST_V6.into(), "2001:db8:f::5", 40),
        ];
        for (from, to, header) in ends {
            let (from, to) = ((from, 7000), (to.parse().expect("an address"), 5060));
            let payloads: Vec<_> = (0..11).map(|byte| vec![byte; 200]).collect();
            let bytes = payloads.concat();
            host.on(move || {
                let socket = UdpSocket::bind(from).expect("a socket of the host");
                setsockopt(&socket, UdpGsoSegment, &200).expect("Linux 4.18");
                socket.send_to(&bytes, to).expect("a socket of the host");
            });
            let mut packets = next_all(&tuns.sites[0]);
            assert_eq!(packets.len() > 1, joins(), "{to:?}");
            while packets.len() < payloads.len() {
                let next = next_all(&tuns.sites[0]);
                assert!(!next.is_empty(), "{} to {to:?}", packets.len());
                packets.extend(next);
            }
            // Ports, length, checksum and payload.
            let came = packets.iter().map(|packet| packet[header..].to_vec());
            let sent = payloads
                .iter()
                .map(|bytes| udp(from, to, bytes)[header..].to_vec());
            assert_eq!(came.collect::<Vec<_>>(), sent.collect::<Vec<_>>());
        }
    });
}

/// Checks that datagrams of a flow reach their host unchanged, and that filters before it see them
/// as one, or not.
fn goes(config: String, as_one: bool) {
    in_place_for(config, async move |host, _interception, tuns| {
        with_ipv6(host);
        firewall(
            "filter hook forward priority 0",
            &["udp dport 7000 counter"],
        );
        let sizes = (0..20).map(|_| 200).chain([7]);
        let payloads: Vec<_> = sizes
            .zip(0..)
            .map(|(size, byte)| vec![byte; size])
            .collect();
        for to in [HOST_V4.into(), HOST_V6.into()] {
            let from = match to {
                IpAddr::V4(_) => "203.0.113.5",
                IpAddr::V6(_) => "2001:db8:f::5",
            };
            let from = (from.parse().expect("an address"), 5060);
            let socket = host.on(move || UdpSocket::bind((to, 7000)));
            let socket = socket.expect("a socket of the host");
            let mut packets = payloads.iter().map(|bytes| udp(from, (to, 7000), bytes));
            let mut sent = Run::new(packets.next().expect("21 of them"));
            packets.for_each(|packet| sent.push(packet).expect("goes with the others"));
            assert_eq!(tuns.sites[0].tun.write_run(&sent), payloads.len());
            let patience = Some(Duration::from_secs(5));
            socket.set_read_timeout(patience).expect("a socket");
            for payload in &payloads {
                let mut buffer = [0; 300];
                let length = socket.recv(&mut buffer).expect("each comes");
                assert_eq!(&buffer[..length], payload);
            }
        }
        let counted = run("nft", &["list", "table", "inet", "own"]);
        let wanted = if as_one { 2 } else { 2 * payloads.len() };
        assert!(counted.contains(&format!("packets {wanted} ")), "{counted}");
    });
}
