//! Rules of other programs for this machine itself, which packets that pepd takes meet.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    time::Duration,
};

use pepd_tests::{
    bed::{Bed, Family, Place},
    echo::EchoServer,
    host::Dial,
    matrix::matrix_pepd_only,
    raw::{self, Segment},
    wait::wait_until,
};

use crate::{
    elsewhere::transparent,
    support::{PORT, connect, echo_once},
};

/// A port that the gateway closes for itself.
const CLOSED: u16 = PORT + 1;
/// Longer than until a host's second SYN, and shorter than until its third.
const SOON: Duration = Duration::from_millis(2500);

fn echoes(bed: &Bed, port: u16) -> bool {
    let dial = Dial::to(bed.at(Place::Server, port)).limit(SOON);
    let Ok(mut stream) = bed.client.dial(&dial) else {
        return false;
    };
    stream.set_read_timeout(Some(SOON)).expect("a socket");
    let mut answer = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut answer).is_ok()
}

fn servers(bed: &Bed) -> [EchoServer; 2] {
    let listen = |port| bed.server.listen(bed.at(Place::Server, port));
    [PORT, CLOSED].map(|port| EchoServer::start(listen(port)))
}

fn close(bed: &Bed, hook: &str, rule: &str) {
    bed.gateway.nft(&format!(
        "table inet others {{\nchain closed {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}"
    ));
}

/// Checks that connections to a port of a server become possible although a rule drops packets of
/// pepd, while others are accelerated.
fn hosts_get_on(bed: &Bed, rule: &str) {
    let _echoes = servers(bed);
    let mut pep = bed.start().expect("not direct");
    close(bed, "input", rule);
    echo_once(&mut connect(bed), b"accelerated");
    wait_until("connections to pass", || echoes(bed, CLOSED));
    pep.log().expect("before they reach pepd");
    pep.wait_counter("syns_passed_filtered", |syns| syns > 0);
    // At once from now on.
    assert!(echoes(bed, CLOSED));
    echo_once(&mut connect(bed), b"accelerated");
    pep.wait_counter("flows_accepted", |flows| flows >= 2);
    assert_eq!(pep.counter("interception_losses"), 0);
    bed.gateway.nft("delete table inet others");
    // Its first flow may still wait for the server.
    pep.terminate_at_once();
}

#[test]
fn a_port_that_the_gateway_closes_to_hosts_is_open_beyond_it() {
    matrix_pepd_only(|bed| {
        hosts_get_on(bed, &format!("iifname lan0 tcp dport {CLOSED} drop"));
    });
}

#[test]
fn servers_whose_answers_the_gateway_drops_are_reached_past_pepd() {
    matrix_pepd_only(|bed| {
        hosts_get_on(bed, &format!("iifname wan0 tcp sport {CLOSED} drop"));
    });
}

/// A host repeats its SYN, whether or not pepd has let it pass.
#[test]
fn a_destination_that_is_silent_says_nothing_about_others() {
    matrix_pepd_only(|bed| {
        let _echoes = servers(bed);
        let dead = Place::NoRoute.address(bed.family);
        let (six, bits) = match bed.family {
            Family::V4 => ("", 32),
            Family::V6 => ("-6 ", 128),
        };
        let gateway = &bed.gateway;
        gateway.ip(&format!("{six}route add blackhole {dead}/{bits}"));
        let pep = bed.start().expect("not direct");
        let dial = Dial::to(SocketAddr::new(dead, PORT)).limit(SOON);
        bed.client.dial(&dial).expect_err("nothing answers");
        echo_once(&mut connect(bed), b"accelerated");
        pep.wait_counter("flows_accepted", |flows| flows == 1);
        pep.wait_idle();
        pep.stop();
    });
}

/// Returns whether a set of pepd has an element.
fn has_any(bed: &Bed, set: &str) -> bool {
    let number = match bed.family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    let set = format!("{set}{number}");
    let listed = bed
        .gateway
        .run("nft", &["list", "set", "inet", "pepd", &set]);
    listed.contains("elements")
}

/// Sends a packet of the LAN twice, as if it had been repeated.
fn repeat(bed: &Bed, segment: &Segment) {
    for _ in 0..2 {
        raw::send(&bed.client, bed.family.address(1, 1), segment);
        wait_until("it to be no longer of one burst", || !has_any(bed, "fresh"));
    }
}

/// The kernel drops forged packets between the rules of two hooks, as does this rule.
#[test]
fn who_forges_packets_takes_acceleration_from_nobody() {
    matrix_pepd_only(|bed| {
        let _echoes = servers(bed);
        let pep = bed.start().expect("not direct");
        let forged = "iifname lan0 fib saddr . iif oif missing drop";
        close(bed, "prerouting", forged);
        let server = bed.at(Place::Server, PORT);
        let mut stream = connect(bed);
        echo_once(&mut stream, b"accelerated");
        repeat(bed, &Segment::opening(bed.at(Place::Second, PORT), server));
        let own = stream.local_addr().expect("connected");
        let answer = Segment {
            ack: Some(1),
            ..Segment::opening(server, own)
        };
        repeat(bed, &answer);
        for set in ["unheard", "filtered_hosts", "filtered_servers"] {
            assert!(!has_any(bed, set), "{set}");
        }
        echo_once(&mut connect(bed), b"accelerated");
        pep.wait_counter("flows_accepted", |flows| flows == 2);
        bed.gateway.nft("delete table inet others");
        drop(stream);
        pep.wait_idle();
        pep.stop();
    });
}

/// Rules that deny by pepd's marks are meant: nothing passes.
#[test]
fn rules_that_drop_what_pepd_sends_hold_and_are_named() {
    matrix_pepd_only(|bed| {
        let _echoes = servers(bed);
        let mut pep = bed.start().expect("not direct");
        let rule = format!("oifname wan0 tcp dport {CLOSED} fib saddr type != local drop");
        close(bed, "output", &rule);
        for _ in 0..2 {
            assert!(!echoes(bed, CLOSED));
        }
        pep.log().expect("drop pepd's SYNs to servers");
        echo_once(&mut connect(bed), b"accelerated");
        assert_eq!(pep.counter("syns_passed_filtered"), 0);
        bed.gateway.nft("delete table inet others");
        pep.terminate_at_once();
    });
}

/// Such as mitmproxy, sing-box and HAProxy.
#[test]
fn a_transparent_listener_for_any_address_takes_no_connection_to_others() {
    matrix_pepd_only(|bed| {
        let _echoes = servers(bed);
        let any = match bed.family {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        };
        let any = SocketAddr::new(any.parse().expect("an address"), CLOSED);
        let listener = bed.gateway.listen(any);
        transparent(&listener, bed.family);
        let bypass = format!(
            "[[site]]\nname = \"others\"\nmode = \"bypass\"\nmatch = {{ dport = [{CLOSED}] }}\n"
        );
        for sites in [bypass.as_str(), ""] {
            let pep = bed.start_with(sites).expect("not direct");
            assert!(echoes(bed, CLOSED));
            echo_once(&mut connect(bed), b"accelerated");
            let accelerated = if sites.is_empty() { 2 } else { 1 };
            pep.wait_counter("flows_accepted", |flows| flows == accelerated);
            pep.wait_idle();
            pep.stop();
        }
    });
}
