//! Addresses and ports that the server sees, and reuse of ports.

use std::{
    io::Read as _,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream},
    sync::mpsc,
};

use nix::errno::Errno;
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    host::Dial,
    matrix::{matrix, matrix_pepd_only},
    outcome::{Ended, reset},
    pep::Pep,
    raw::{self, Segment, Wire},
    serve::Server,
    wait::{PATIENCE, wait_for, wait_until},
};

use crate::support::{PORT, echo_once};

/// The default listening port of pepd.
const LISTEN_PORT: u16 = 5000;

/// Connects from a port of the client (0: any); returns the client's and the server's view of the
/// address.
fn seen_by_server(bed: &Bed, port: u16) -> (SocketAddr, SocketAddr) {
    let (result, seen) = mpsc::channel();
    let listener = bed.server.listen(bed.at(Place::Server, PORT));
    let _server = Server::start(listener, move |mut stream, peer| {
        // Waits until the client has read its own address.
        let _ = stream.read(&mut [0]);
        result.send(peer).expect("the test waits");
    });
    let dial = Dial::to(bed.at(Place::Server, PORT)).from(bed.client_at(port));
    let stream = bed.client.dial(&dial).expect("the server listens");
    let own = stream.local_addr().expect("connected");
    drop(stream);
    (
        own,
        seen.recv_timeout(PATIENCE).expect("the server accepts"),
    )
}

#[test]
fn the_server_sees_the_clients_own_address_and_port() {
    matrix(|bed| {
        let _pep = bed.start();
        let (own, seen) = seen_by_server(bed, 0);
        assert_eq!(seen, own);
        let (own, seen) = seen_by_server(bed, 40_000);
        assert_eq!((own, seen), (bed.client_at(40_000), bed.client_at(40_000)));
    });
}

#[test]
fn with_source_self_the_server_sees_pepd() {
    matrix(|bed| {
        let _pep = bed.start_with("[[site]]\nname = \"all\"\nsource = \"self\"");
        let (own, seen) = seen_by_server(bed, 0);
        match bed.path {
            Path::Direct => assert_eq!(seen, own),
            Path::Spoof | Path::Defer => assert_eq!(seen.ip(), bed.gateway_address()),
        }
    });
}

/// Starts a server, and a pepd that reaches it from its own address by these ports.
fn by_ports(bed: &Bed, range: &str) -> (SocketAddr, EchoServer, Pep) {
    bed.gateway.sysctl("net.ipv4.ip_local_port_range", range);
    let at = bed.at(Place::Server, PORT);
    let echo = EchoServer::start(bed.server.listen(at));
    let config = bed.config("[[site]]\nname = \"all\"\nsource = \"self\"");
    let pep = Pep::start(&bed.gateway, &config.expect("not direct"));
    (at, echo, pep)
}

/// Opens so many flows one after the other, and resets each once it was answered.
fn reset_flows(bed: &Bed, at: SocketAddr, pep: &Pep, count: u32) {
    for _ in 0..count {
        let mut stream = bed.client.connect(at).expect("pepd answers");
        echo_once(&mut stream, b"by one of two ports");
        reset(stream);
        pep.wait_idle();
    }
}

/// Each leg stays in TIME_WAIT for a minute. A host that makes many must not take all ports from
/// the others.
#[test]
fn with_source_self_ports_that_are_used_up_are_used_again() {
    matrix_pepd_only(|bed| {
        let (at, _echo, pep) = by_ports(bed, "40000 40063");
        for _ in 0..200 {
            let mut stream = bed.client.connect(at).expect("pepd answers");
            echo_once(&mut stream, b"by one of 64 ports");
        }
        let waiting = bed.gateway.run("ss", &["-tanH", "state", "time-wait"]);
        assert!(waiting.lines().count() >= 60, "{waiting}");
        pep.stop();
    });
}

/// A port of a leg that pepd has reset is free at once.
#[test]
fn with_source_self_a_port_that_was_reset_is_used_again() {
    matrix_pepd_only(|bed| {
        let (at, _echo, pep) = by_ports(bed, "40000 40001");
        reset_flows(bed, at, &pep, 4);
        pep.stop();
    });
}

/// The kernel gives a port that pepd no longer uses to any program.
#[test]
fn with_source_self_a_program_of_this_machine_gets_a_port_that_was_reset() {
    matrix_pepd_only(|bed| {
        let (at, _echo, pep) = by_ports(bed, "40000 40001");
        reset_flows(bed, at, &pep, 2);
        let mut stream = bed.gateway.connect(at).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        echo_once(&mut stream, b"by one of two ports");
        drop(stream);
        pep.stop();
    });
}

#[test]
fn one_client_port_reaches_two_servers_at_once() {
    matrix(|bed| {
        let places = [Place::Server, Place::Second];
        let _echoes = places.map(|place| EchoServer::start(bed.server.listen(bed.at(place, PORT))));
        let _pep = bed.start();
        let streams = places.map(|place| {
            let dial = Dial::to(bed.at(place, PORT)).from(bed.client_at(40_001));
            bed.client.dial(&dial).expect("the server listens")
        });
        for mut stream in streams {
            echo_once(&mut stream, b"from one port");
            let own = stream.local_addr().expect("connected");
            assert_eq!(own, bed.client_at(40_001));
        }
    });
}

#[test]
fn a_client_may_use_the_number_of_pepds_listening_port() {
    matrix(|bed| {
        let _pep = bed.start();
        let (own, seen) = seen_by_server(bed, LISTEN_PORT);
        assert_eq!((own.port(), seen), (LISTEN_PORT, own));
    });
}

#[test]
fn a_server_may_use_the_number_of_pepds_listening_port() {
    matrix(|bed| {
        let to = bed.at(Place::Server, LISTEN_PORT);
        let _echo = EchoServer::start(bed.server.listen(to));
        let mut pep = bed.start();
        let mut stream = bed.client.connect(to).expect("the server listens");
        echo_once(&mut stream, b"to that port");
        if let Some(pep) = &mut pep {
            assert_eq!(pep.counter("flows_accepted"), 1);
        }
    });
}

/// pepd's listening port is on loopback: hosts must not reach it.
#[test]
fn pepds_listening_port_is_not_open_to_hosts() {
    matrix(|bed| {
        let _pep = bed.start_with("[[site]]\nname = \"none\"\nmode = \"bypass\"");
        for address in [bed.gateway_address(), bed.family.address(1, 1)] {
            let connect = bed.client.connect(SocketAddr::new(address, LISTEN_PORT));
            let errno = connect
                .expect_err("no service listens there")
                .raw_os_error();
            assert_eq!(errno, Some(libc::ECONNREFUSED));
        }
    });
}

/// Connects from a fixed port, as soon as the client's kernel permits reuse.
fn reuse(bed: &Bed, port: u16) -> TcpStream {
    let dial = Dial::to(bed.at(Place::Server, PORT)).from(bed.client_at(port));
    let stream = wait_for("the port to be reusable", || {
        match bed.client.dial(&dial) {
            Ok(stream) => Some(stream),
            // In TIME_WAIT at the client itself, which pepd does not influence.
            Err(error) if is_taken(&error) => None,
            Err(error) => panic!("reconnect from port {port}: {error}"),
        }
    });
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

fn is_taken(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EADDRNOTAVAIL | Errno::EADDRINUSE))
}

/// If the client closes first, TIME_WAIT is at the client, and behind pepd at its server leg.
#[test]
fn a_port_is_reused_after_the_client_closed_first() {
    matrix(|bed| {
        // Reuse after a second, which Linux permits only on loopback by default.
        bed.client.sysctl("net.ipv4.tcp_tw_reuse", "1");
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed.start();
        for round in 0..3 {
            let mut stream = reuse(bed, 40_002);
            echo_once(&mut stream, format!("round {round}").as_bytes());
            drop(stream);
            wait_until("the server to see the end", || echo.open() == 0);
        }
        if let Some(pep) = &mut pep {
            pep.assert_healthy();
        }
    });
}

/// If the server closes first, TIME_WAIT is at the server, and behind pepd at its client leg.
#[test]
fn a_port_is_reused_after_the_server_closed_first() {
    matrix(|bed| {
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, |mut stream, _| {
            // Reads one byte and the server's FIN, which comes first.
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_ok() {
                let _ = std::io::Write::write_all(&mut stream, &byte);
            }
        });
        let mut pep = bed.start();
        for _ in 0..5 {
            let mut stream = reuse(bed, 40_003);
            echo_once(&mut stream, b"x");
            assert_eq!(Ended::from_stream(&stream), Ended::EMPTY);
        }
        if let Some(pep) = &mut pep {
            pep.assert_healthy();
        }
    });
}

/// A reset leaves no TIME_WAIT, so the port is free at once.
#[test]
fn a_port_is_reused_after_a_reset() {
    matrix(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let _pep = bed.start();
        for _ in 0..5 {
            let mut stream = reuse(bed, 40_004);
            echo_once(&mut stream, b"x");
            reset(stream);
            wait_until("the server to see the end", || echo.open() == 0);
        }
    });
}

/// Covers all destinations that mean "this machine". No kernel sends these to others, but a host
/// may; and if pepd answered, the host could reach the service.
#[test]
fn this_machines_own_services_are_not_reached_from_outside() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let own = [[127, 0, 0, 1].into(), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let own = own.map(|address| bed.gateway.listen(SocketAddr::new(address, PORT)));
        let own = own.map(|listener| Server::start(listener, |_, _| {}));
        let mut pep = bed.start();
        let mut wire = Wire::new(&bed.client);
        for (to, port) in this_machine(bed.family).into_iter().zip(40_005..) {
            let (from, to) = (bed.client_at(port), SocketAddr::new(to, PORT));
            knock(bed, &mut wire, from, to);
        }
        if let Some(pep) = &mut pep {
            pep.assert_healthy();
            pep.wait_idle();
        }
        assert_eq!(own.map(|own| own.accepted()), [0, 0]);
    });
}

fn this_machine(family: Family) -> Vec<IpAddr> {
    let written = match family {
        Family::V4 => &["127.0.0.1", "127.1.2.3", "0.0.0.0", "255.255.255.255"][..],
        Family::V6 => &["::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"],
    };
    let addresses = written.iter().map(|address| address.parse());
    addresses.map(|address| address.expect("valid")).collect()
}

/// Sends a handshake, as far as it is answered.
fn knock(bed: &Bed, wire: &mut Wire, from: SocketAddr, to: SocketAddr) {
    let next_hop = bed.family.address(1, 1);
    raw::send(&bed.client, next_hop, &Segment::opening(from, to));
    pass_by(bed);
    // The answer may come from another address of the gateway.
    let mut answer = || wire.find(|segment| segment.syn && segment.to == from);
    if let Some(syn_ack) = answer() {
        let ack = Segment {
            to,
            ..syn_ack.answer()
        };
        raw::send(&bed.client, next_hop, &ack);
        pass_by(bed);
    }
}

/// Sends a packet after others: once it has arrived, they have been processed.
fn pass_by(bed: &Bed) {
    let stream = bed.client.connect(bed.at(Place::Server, PORT));
    echo_once(&mut stream.expect("the server listens"), b"after it");
}
