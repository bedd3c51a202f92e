//! A gateway that takes over from another one, which has lost power: connections whose beginning
//! it has not seen.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _},
};

use pepd_tests::{
    bed::{Bed, Family, LAN, Place, WAN, add_addresses, forward},
    host::Host,
    matrix::matrix_pepd_only,
    pep::Pep,
    raw::{Segment, flood},
    wait::{PATIENCE, wait_until},
};

use crate::support::PORT;

/// Port of the connections that pepd leaves alone.
const ALONE: u16 = 7005;
/// Connections that pepd splits. By chance the numbers of one may fit.
const SPLIT: usize = 4;
const SITE: &str = "[[site]]\nname = \"alone\"\nmode = \"bypass\"\nmatch = { dport = [7005] }\n";

/// The sockets of both ends have other ports than the gateway sees. All machines of a test have one
/// kernel, whose first sequence numbers depend on the four addresses: all legs would count alike.
const SERVERS_PORTS: &str = "table inet ports {
    chain in {
        type nat hook prerouting priority -100;
        ip daddr 10.2.0.2 tcp dport 7000 dnat ip to 10.2.0.2:17000
        ip daddr 10.2.0.2 tcp dport 7005 dnat ip to 10.2.0.2:17005
        ip6 daddr fd02::2 tcp dport 7000 dnat ip6 to [fd02::2]:17000
        ip6 daddr fd02::2 tcp dport 7005 dnat ip6 to [fd02::2]:17005
    }
}";
const HOSTS_PORTS: &str = "table inet ports {
    chain out {
        type nat hook postrouting priority 100;
        tcp dport { 7000, 7005 } masquerade to :20000-29999 fully-random
    }
}";

const MASQUERADE: &str = "table inet nat {
    chain out { type nat hook postrouting priority 100; oifname \"wan0\" tcp dport 7000 masquerade fully-random; oifname \"wan0\" masquerade; }
}";

/// Whoever sends first after the take-over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Host,
    /// The new gateway has other NAT ports: the server does not know its segments.
    HostBehindNat,
    Server,
}

impl First {
    /// Returns the number of ends that learn of it.
    fn ends(self) -> usize {
        if self == Self::HostBehindNat { 1 } else { 2 }
    }
}

/// Returns listeners of the ports that pepd splits and leaves alone, above them by `more`.
fn listeners(bed: &Bed, more: u16) -> [(SocketAddr, TcpListener); 2] {
    [PORT, ALONE].map(|port| {
        let at = |port| bed.at(Place::Server, port);
        (at(port), bed.server.listen(at(more + port)))
    })
}

/// Opens a connection, and sends a byte each way.
fn open(bed: &Bed, (at, listener): &(SocketAddr, TcpListener)) -> [TcpStream; 2] {
    let host = bed.client.connect(*at).expect("the server listens");
    let (server, _) = listener.accept().expect("a connection");
    let ends = [host, server];
    for end in &ends {
        end.set_read_timeout(Some(PATIENCE)).expect("a socket");
    }
    exchange(&ends);
    ends
}

fn exchange(ends: &[TcpStream; 2]) {
    let [one, other] = ends;
    for (mut from, mut to) in [(one, other), (other, one)] {
        from.write_all(b"x").expect("connected");
        let mut byte = [0];
        to.read_exact(&mut byte).expect("it arrives");
    }
}

fn has_ended(mut end: &TcpStream) -> bool {
    end.set_nonblocking(true).expect("a socket");
    match end.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(err) => err.kind() == ErrorKind::ConnectionReset,
    }
}

/// Gives cables and addresses of the gateway to another machine.
fn take_over(bed: &Bed) -> Host {
    let second = Host::new();
    forward(&second);
    let netns = second.netns().as_fd().as_raw_fd();
    let netns = format!("/proc/{}/fd/{netns}", std::process::id());
    for (interface, net) in [(LAN, 1), (WAN, 2)] {
        bed.gateway
            .ip(&format!("link set {interface} netns {netns}"));
        let up = second.netns().set_up(interface);
        up.unwrap_or_else(|error| panic!("{error}"));
        for family in [Family::V4, Family::V6] {
            add_addresses(&second, interface, family, &[(net, 1)]);
        }
    }
    second
}

/// Connections that pepd has split end at once at both ends after a take-over, and others go on.
/// `intercept` are further keys of `[intercept]`.
fn assert_split_ones_end(first: First, intercept: &str, prepare: impl Fn(&Host) + Sync) {
    matrix_pepd_only(|bed| {
        for (end, ports) in [(&bed.server, SERVERS_PORTS), (&bed.client, HOSTS_PORTS)] {
            // Else it would refuse packets of another leg itself.
            end.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1");
            end.nft(ports);
        }
        let [listener, alone] = listeners(bed, 10_000);
        let config = bed.config(SITE).expect("not direct");
        let config = config.replace("[intercept]\n", &format!("[intercept]\n{intercept}"));
        prepare(&bed.gateway);
        let mut pep = Pep::start(&bed.gateway, &config);
        let all = [(); SPLIT].map(|()| open(bed, &listener));
        let mut passing = open(bed, &alone);
        pep.wait_counter("flows_open", |open| open == SPLIT as u64);
        let second = take_over(bed);
        prepare(&second);
        let mut next = Pep::start(&second, &config);
        for split in &all {
            let mut speaker = match first {
                First::Host | First::HostBehindNat => &split[0],
                First::Server => &split[1],
            };
            speaker.write_all(b"y").expect("the kernel takes it");
        }
        let is_over = |split: &[TcpStream; 2]| split[..first.ends()].iter().all(has_ended);
        wait_until("both ends to be reset", || {
            all.iter().filter(|split| is_over(split)).count() + 1 >= SPLIT
        });
        if first == First::Server {
            passing.reverse();
        }
        exchange(&passing);
        next.wait_counter("midway_passed", |passed| passed >= 1);
        if first == First::HostBehindNat {
            assert_eq!(next.counter("midway_reset"), 0);
        }
        next.assert_healthy();
        pep.kill();
    });
}

#[test]
fn hosts_that_send_after_a_take_over_are_reset_if_pepd_has_split_their_connection() {
    assert_split_ones_end(First::Host, "", |_| {});
}

#[test]
fn servers_that_send_after_a_take_over_are_reset_too() {
    assert_split_ones_end(First::Server, "", |_| {});
}

#[test]
fn behind_nat_servers_refuse_what_hosts_send_after_a_take_over() {
    assert_split_ones_end(First::HostBehindNat, "", |gateway| gateway.nft(MASQUERADE));
}

#[test]
fn with_rules_of_iptables_both_ends_are_reset_after_a_take_over() {
    assert_split_ones_end(First::Host, "rules = \"iptables\"\n", |_| {});
}

/// Segments in the name of either end, with any numbers: the connections are known here, and stay.
#[test]
fn forged_segments_end_no_known_connection() {
    matrix_pepd_only(|bed| {
        let [listener, alone] = listeners(bed, 0);
        let mut pep = bed.start_with(SITE).expect("not direct");
        let all = [open(bed, &listener), open(bed, &alone)];
        for [host, _] in &all {
            let host_at = host.local_addr().expect("a socket");
            let server_at = host.peer_addr().expect("a socket");
            for (machine, net, from, to) in [
                (&bed.client, 1, host_at, server_at),
                (&bed.server, 2, server_at, host_at),
            ] {
                let segments = [1, 1 << 30, 1 << 31, 3 << 30].map(|number| Segment {
                    sequence: number,
                    ack: Some(!number),
                    syn: false,
                    ..Segment::opening(from, to)
                });
                let gateway = bed.family.address(net, 1);
                flood(machine, gateway, segments.into_iter());
            }
        }
        all.iter().for_each(exchange);
        assert_eq!(pep.counter("midway_reset"), 0);
        pep.assert_healthy();
    });
}
