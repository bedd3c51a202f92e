//! A gateway that is also a stateful firewall and does NAT.

use std::{
    io::{Read as _, Write as _},
    sync::mpsc,
};

use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    matrix::{matrix, shared},
    objects::{self, ObjectServer},
    outcome::{Connected, Ended, reset},
    payload::{Payload, receive},
    pep::Pep,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::PATIENCE,
};

use crate::{
    bed::expected,
    support::{PORT, assert_reset_after_connect, connect, echo_once},
    tunnel::{self, Running, SITE},
};

/// Drops packets that connection tracking considers invalid, in every possible hook.
const STATEFUL: &str = "
    table inet firewall {
        chain input { type filter hook input priority filter; ct state invalid drop; }
        chain output { type filter hook output priority filter; ct state invalid drop; }
        chain forward {
            type filter hook forward priority filter; policy drop;
            ct state invalid drop
            ct state established,related accept
            iifname \"lan0\" accept
        }
    }";

/// Masquerading: the server sees only the gateway's address.
const MASQUERADE: &str = "
    table inet translation {
        chain postrouting {
            type nat hook postrouting priority srcnat;
            oifname \"wan0\" masquerade
        }
    }";

/// Tests all that a firewall could break: both directions, refusals, errors and resets.
fn everything_works(bed: &Bed) {
    let pep = bed.start();
    transfers_work(bed);
    failures_look_right(bed);
    resets_cross(bed);
    if let Some(pep) = pep {
        finish(pep);
    }
}

fn transfers_work(bed: &Bed) {
    let server = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
    for (seed, len) in [(1, 0), (2, 100), (3, 3_000_000)] {
        let expected = (len, Payload::new(seed, len).sum());
        let mut stream = connect(bed);
        objects::get(&mut stream, seed, len).expect("connected");
        assert_eq!(receive(&mut stream).expect("the download"), expected);
        objects::put_and_close(connect(bed), seed, len).expect("connected");
        assert_eq!(server.stored(seed), expected);
    }
}

fn failures_look_right(bed: &Bed) {
    for place in [Place::Second, Place::Unreachable, Place::NoNeighbour] {
        let connect = bed.client.connect(bed.at(place, PORT));
        if bed.path == Path::Spoof {
            assert_reset_after_connect(connect);
        } else {
            let outcome = Connected::from_result(&connect);
            assert_eq!(outcome, expected(bed.family, place), "{place:?}");
        }
    }
}

fn resets_cross(bed: &Bed) {
    const RESETTER: u16 = PORT + 1;
    let (result, ended) = mpsc::channel();
    let listener = bed.server.listen(bed.at(Place::Server, RESETTER));
    let _server = Server::start(listener, move |mut stream, _| {
        let mut order = [0];
        stream.read_exact(&mut order).expect("an order");
        match &order {
            b"r" => reset(stream),
            _ => result
                .send(Ended::from_stream(&stream))
                .expect("the test waits"),
        }
    });
    let to = bed.at(Place::Server, RESETTER);
    let mut stream = bed.client.connect(to).expect("the server listens");
    stream.write_all(b"r").expect("connected");
    assert_eq!(Ended::from_stream(&stream), Ended::RESET);
    let mut stream = bed.client.connect(to).expect("the server listens");
    stream.write_all(b"w").expect("connected");
    // Sent and acknowledged before the reset, which might overtake it otherwise.
    reset(stream);
    let ended = ended.recv_timeout(PATIENCE);
    assert_eq!(ended, Ok(Ended::RESET));
}

fn finish(mut pep: Pep) {
    pep.assert_healthy();
    let accepted = pep.counter("flows_accepted");
    assert!(accepted >= 8, "only {accepted} flows were accelerated");
    pep.wait_idle();
    pep.stop();
}

#[test]
fn a_stateful_firewall_on_the_gateway_does_no_harm() {
    matrix(|bed| {
        bed.gateway.nft(STATEFUL);
        everything_works(bed);
    });
}

#[test]
fn masquerading_on_the_gateway_does_no_harm() {
    matrix(|bed| {
        bed.gateway.nft(MASQUERADE);
        everything_works(bed);
        assert_eq!(address_seen(bed), bed.gateway_address());
    });
}

#[test]
fn a_stateful_firewall_that_masquerades_does_no_harm() {
    matrix(|bed| {
        bed.gateway.nft(STATEFUL);
        bed.gateway.nft(MASQUERADE);
        everything_works(bed);
    });
}

#[test]
fn with_a_firewall_and_syn_cookies_connections_work() {
    matrix(|bed| {
        bed.gateway.nft(STATEFUL);
        bed.gateway.nft(MASQUERADE);
        bed.gateway.sysctl("net.ipv4.tcp_syncookies", "2");
        everything_works(bed);
    });
}

/// A strict reverse path filter checks that each packet's source is behind its interface.
#[test]
fn a_strict_reverse_path_filter_does_no_harm() {
    matrix(|bed| {
        for interface in ["all", "default", "lan0", "wan0"] {
            let key = format!("net.ipv4.conf.{interface}.rp_filter");
            bed.gateway.sysctl(&key, "1");
        }
        everything_works(bed);
    });
}

/// Returns the address that a server sees for a connection through the gateway, with pepd running
/// again.
fn address_seen(bed: &Bed) -> std::net::IpAddr {
    let _pep = bed.start();
    let (result, seen) = mpsc::channel();
    let listener = bed.server.listen(bed.at(Place::Server, PORT));
    let _server = Server::start(listener, move |_, peer| {
        result.send(peer.ip()).expect("the test waits");
    });
    let _stream = connect(bed);
    seen.recv_timeout(PATIENCE).expect("the server accepts")
}

/// Tests the advice of docs/threat-model.md on a peer's hosts and the services of this machine.
#[test]
fn a_peers_hosts_can_be_kept_from_the_hubs_own_services() {
    const KEPT: &str = "
        table inet filter {
            chain input {
                type filter hook input priority filter;
                iif lo meta mark and 0xff000000 == 0x51000000 reject with tcp reset
            }
        }";
    shared(|| {
        let bed = TunnelBed::new(tunnel::LINK);
        let site = format!("{SITE}source = \"self\"\n");
        let own = bed.address("hub", Family::V4);
        let to = format!("to = [\"0.0.0.0/0\", \"{own}\"]");
        let config = bed.config(End::Hub, tunnel::STATED, &to, "");
        let running = Running {
            hub: bed.start(End::Hub, &config),
            boat: bed.start(End::Boat, &bed.config(End::Boat, tunnel::STATED, "", &site)),
        };
        running.wait_for_session();
        let hub = bed.host("hub");
        let own = (own, tunnel::PORT).into();
        let _service = EchoServer::start(hub.listen(own));
        let connect = || bed.host("client").connect(own);
        echo_once(&mut connect().expect("pepd answers"), b"reached");
        hub.nft(KEPT);
        assert_reset_after_connect(connect());
        // Other addresses stay reachable.
        let server = bed.server_at(Family::V4, tunnel::PORT);
        let _echo = EchoServer::start(bed.host("server").listen(server));
        echo_once(&mut tunnel::connect(&bed, Family::V4), b"reached");
        hub.nft("delete table inet filter");
        running.stop();
    });
}
