//! Servers that refuse, are unreachable or stay silent, and clients that give up.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use pepd_tests::{
    bed::{Bed, Family, Path, Place, add_route},
    echo::EchoServer,
    host::Dial,
    matrix::{matrix, matrix_pepd_only},
    measure::ping_pong,
    outcome::{Connected, Ended, reset},
    pep::Pep,
    raw::{self, Segment, Wire},
    wait::{PATIENCE, wait_for, wait_until},
};

use crate::{
    bed::expected,
    support::{PORT, SynGate, assert_reset_after_connect, connect, echo_once},
};

/// The bound for an error that does not come from a timeout of TCP or of pepd.
const SOON: Duration = Duration::from_secs(5);

const SECOND: Duration = Duration::from_secs(1);

/// Connects to a failing destination. On the direct path and in `defer` the connect fails as on the
/// plain network; in `spoof` the connection is established and then reset.
fn fails_as_without_pepd(place: Place, reason: &str) {
    matrix(|bed| {
        let pep = bed.start();
        let start = Instant::now();
        let connect = bed.client.connect(bed.at(place, PORT));
        if bed.path == Path::Spoof {
            assert_reset_after_connect(connect);
        } else {
            assert_eq!(
                Connected::from_result(&connect),
                expected(bed.family, place)
            );
        }
        assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
        let Some(mut pep) = pep else { return };
        if bed.path == Path::Spoof {
            pep.wait_flow_end(|end| end.reason == reason);
        }
        pep.wait_counter("syns_held", |held| held == 0);
        pep.assert_healthy();
        pep.stop();
    });
}

#[test]
fn a_closed_port_refuses() {
    fails_as_without_pepd(Place::Second, "refused");
}

#[test]
fn a_firewall_rejects() {
    fails_as_without_pepd(Place::Rejected, "refused");
}

#[test]
fn a_router_cannot_reach_the_host() {
    fails_as_without_pepd(Place::Unreachable, "unreachable");
}

#[test]
fn a_router_prohibits() {
    fails_as_without_pepd(Place::Prohibited, "unreachable");
}

/// pepd does not answer for such a host, so programs try another address at once.
#[test]
fn the_gateway_has_no_route() {
    matrix(|bed| {
        let pep = bed.start();
        let connect = bed.client.connect(bed.at(Place::NoRoute, PORT));
        let expected = expected(bed.family, Place::NoRoute);
        assert_eq!(Connected::from_result(&connect), expected);
        let Some(mut pep) = pep else { return };
        // A host that tries again is counted again.
        let passed = pep.counter("syns_passed_no_route") > 0;
        assert_eq!(passed, bed.path == Path::Spoof);
        pep.assert_healthy();
    });
}

/// IPv6 routes that lead nowhere: hosts notice that, and fall back to IPv4, as without pepd.
#[test]
fn hosts_notice_that_no_server_answers_over_ipv6() {
    matrix_pepd_only(|bed| {
        if bed.path != Path::Spoof || bed.family == Family::V4 {
            return;
        }
        let mut pep = bed.start().expect("a path of pepd");
        let dead = bed.at(Place::BlackHole, PORT);
        let first = bed.client.connect(dead).expect("pepd answers at first");
        pep.log().expect("no server answers over IPv6");
        wait_until("its SYN passes", || {
            bed.client.dial(&Dial::to(dead).limit(SECOND)).is_err()
        });
        drop(first);
        assert!(pep.counter("syns_passed_no_route") > 0);
        // IPv4 is unaffected, and the first answer over IPv6 ends the state.
        let server = Place::Server.address(Family::V4);
        let v4 = SocketAddr::new(server, PORT);
        let listeners = [v4, bed.at(Place::Server, PORT)].map(|at| bed.server.listen(at));
        let _echoes = listeners.map(EchoServer::start);
        let accepted = || pep.counter("flows_accepted");
        let before = accepted();
        echo_once(&mut bed.client.connect(v4).expect("a server"), b"hello");
        assert_eq!(accepted(), before + 1);
        echo_once(&mut connect(bed), b"hello");
        assert_eq!(accepted(), before + 1, "the kernel forwards it");
        pep.log().expect("servers answer over IPv6");
        wait_until("flows are split again", || {
            echo_once(&mut connect(bed), b"hello");
            accepted() > before + 1
        });
        pep.assert_healthy();
        pep.terminate_at_once();
    });
}

/// The kernel reports the error only to the client, which in `spoof` ignores it.
#[test]
fn the_gateway_has_no_such_neighbour() {
    fails_as_without_pepd(Place::NoNeighbour, "unreachable");
}

/// Several flows are behind it, and one goes to the router itself.
#[test]
fn the_router_beyond_the_gateway_is_dead() {
    matrix(|bed| {
        let beyond = match bed.family {
            Family::V4 => "10.5.0.0/24",
            Family::V6 => "fd05::/64",
        };
        add_route(&bed.gateway, beyond, Place::NoNeighbour.address(bed.family));
        let mut pep = bed.start();
        let hosts = [(5, 1), (5, 2), (5, 2), (2, 99)];
        let hosts = hosts.map(|(net, host)| bed.family.address(net, host));
        let start = Instant::now();
        thread::scope(|scope| {
            for host in hosts {
                scope.spawn(move || unreachable_neighbour(bed, host));
            }
        });
        assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
        if let Some(pep) = &mut pep {
            pep.assert_healthy();
            pep.wait_idle();
        }
    });
}

fn unreachable_neighbour(bed: &Bed, host: IpAddr) {
    let connect = bed.client.connect(SocketAddr::new(host, PORT));
    if bed.path == Path::Spoof {
        assert_reset_after_connect(connect);
    } else {
        let outcome = Connected::from_result(&connect);
        assert_eq!(outcome, Connected::No(Errno::EHOSTUNREACH), "{host}");
    }
}

/// Both ends check properties that pepd cannot imitate: a signature, or the remaining hop count.
#[test]
fn a_connection_that_is_not_to_be_split_passes_as_it_is() {
    /// TCP-MD5 and TCP-AO.
    const SIGNATURES: [u8; 2] = [19, 29];
    /// BGP and LDP.
    const GUARDED: [u16; 2] = [179, 646];
    matrix(|bed| {
        let pep = bed.start();
        let mut wire = Wire::new(&bed.server);
        let opening = |from, to| {
            let to = bed.at(Place::Server, to);
            Segment::opening(bed.client_at(from), to)
        };
        let signed = SIGNATURES.map(|kind| Segment {
            option: Some(kind),
            ..opening(40_000 + u16::from(kind), PORT)
        });
        let guarded = GUARDED.map(|port| Segment {
            hops: 255,
            ..opening(41_000 + port, port)
        });
        for segment in [signed, guarded].concat() {
            raw::send(&bed.client, bed.family.address(1, 1), &segment);
            let arrives = Segment {
                hops: segment.hops - 1,
                ..segment
            };
            wait_for("the SYN at the server", || {
                wire.find(|found| *found == arrives)
            });
        }
        if let Some(mut pep) = pep {
            assert_eq!(pep.counter("syns_passed_end_to_end"), 4);
            assert_eq!(pep.counter("flows_accepted"), 0);
            pep.assert_healthy();
        }
    });
}

/// The client's own kernel gives up its SYN after two tries, some 3 s; pepd forgets it after the
/// lease.
#[test]
fn a_black_hole_swallows() {
    matrix(|bed| {
        let pep = bed.start_with(match bed.path {
            Path::Spoof => "[timeouts]\nconnect = \"1s\"",
            _ => "",
        });
        let connect = bed.client.connect(bed.at(Place::BlackHole, PORT));
        if bed.path == Path::Spoof {
            assert_reset_after_connect(connect);
        } else {
            assert_eq!(
                Connected::from_result(&connect),
                Connected::No(Errno::ETIMEDOUT)
            );
        }
        let Some(mut pep) = pep else { return };
        if bed.path == Path::Spoof {
            pep.wait_flow_end(|end| end.reason == "connect_timeout");
        }
        pep.assert_healthy();
    });
}

#[test]
fn a_held_syn_is_forgotten_once_the_client_gave_up() {
    matrix_pepd_only(|bed| {
        if bed.path != Path::Defer {
            return;
        }
        let held = bed.config("").expect("not direct");
        let config = held.replace("syn = \"defer\"", "syn = \"defer\"\nsyn_lease = \"1s\"");
        let pep = Pep::start(&bed.gateway, &config);
        let dial = Dial::to(bed.at(Place::BlackHole, PORT));
        let mut before = None;
        for round in 1..=3 {
            let socket = bed.client.enter(|| dial.begin_here()).expect("it begins");
            pep.wait_counter("syns_held", |held| held == 1);
            drop(socket);
            pep.wait_counter("syns_expired", |expired| expired == round);
            pep.wait_counter("syns_held", |held| held == 0);
            let before = *before.get_or_insert_with(|| pep.descriptors());
            wait_until("the descriptor to be given back", || {
                pep.descriptors() <= before
            });
        }
    });
}

#[test]
fn a_server_that_is_silent_at_first_is_reached() {
    matrix(|bed| {
        // Long enough for the client, too.
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let gate = SynGate::closed(bed, PORT);
        let pep = bed.start();
        thread::scope(|scope| {
            let client = scope.spawn(|| echo_once(&mut connect(bed), b"hello"));
            // Two SYNs have been lost, so a second has passed.
            wait_until("the SYN to be repeated", || gate.seen() >= 2);
            gate.open();
            client.join().expect("the flow works");
        });
        if let Some(mut pep) = pep {
            pep.assert_healthy();
        }
    });
}

/// The server may see nothing or a connection that ends at once, depending on timing; but nothing
/// may be left of it.
#[test]
fn a_client_that_gives_up_before_the_server_answers_leaves_nothing() {
    matrix(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.config("").map(|config| {
            let config = config.replace("[log]", "syn_lease = \"1s\"\n\n[log]");
            Pep::start(&bed.gateway, &config)
        });
        let before = pep.as_ref().map(|pep| {
            // pepd's answer means that its reserve of descriptors is open.
            pep.counters();
            pep.descriptors()
        });
        let gate = SynGate::closed(bed, PORT);
        let dial = Dial::to(bed.at(Place::Server, PORT));
        let begin = || (0..GIVING_UP).map(|_| dial.begin_here()).collect();
        let sockets: Result<Vec<_>, _> = bed.client.enter(begin);
        wait_until("the SYNs to be lost", || gate.seen() >= GIVING_UP);
        for socket in sockets.expect("every connect begins") {
            reset(socket.into());
        }
        gate.open();
        if let (Some(mut pep), Some(before)) = (pep, before) {
            nothing_is_left(&pep, before);
            pep.assert_healthy();
        }
        wait_until("the server to be rid of them", || echo.open() == 0);
    });
}

/// More than pepd's threads, each of which keeps a descriptor for its next flow.
const GIVING_UP: u64 = 40;

fn nothing_is_left(pep: &Pep, before: usize) {
    let allowed = before + pep.threads() as usize;
    assert!(allowed < before + GIVING_UP as usize, "too few to tell");
    wait_until("pepd to forget them", || {
        let counters = pep.counters();
        counters["flows_open"] + counters["syns_held"] == 0
    });
    wait_until("the descriptors to be given back", || {
        pep.descriptors() <= allowed
    });
}

#[test]
fn refused_connections_of_others_do_not_hurt() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        let mut healthy: Vec<_> = (0..5).map(|_| connect(bed)).collect();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let done = &done;
            let others = scope.spawn(move || {
                for _ in 0..150 {
                    refused(bed);
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) && !others.is_finished() {
                for stream in &mut healthy {
                    ping_pong(stream, 100, 5).expect("a healthy flow");
                }
            }
            others.join().expect("each is refused");
        });
        for stream in &mut healthy {
            echo_once(stream, b"still here");
        }
        if let Some(mut pep) = pep {
            pep.assert_healthy();
        }
    });
}

/// Connects to a closed port, and writes as soon as the connection seems established.
fn refused(bed: &Bed) {
    let connect = bed.client.connect(bed.at(Place::Second, PORT));
    if bed.path != Path::Spoof {
        let refused = Connected::No(Errno::ECONNREFUSED);
        return assert_eq!(Connected::from_result(&connect), refused);
    }
    let Ok(mut stream) = connect else {
        return assert_reset_after_connect(connect);
    };
    // The first call after the reset returns its error.
    match stream.write_all(b"request") {
        Ok(()) => assert_eq!(Ended::from_stream(&stream), Ended::RESET),
        Err(error) => {
            let errno = pepd_tests::outcome::errno(&error);
            assert!(matches!(errno, Errno::ECONNRESET | Errno::EPIPE), "{errno}");
        }
    }
}

/// `tcp_syncookies` 2 always sends cookies, 1 once the backlog is full, which the small one makes
/// likely. Both lose the request socket that identifies half-open connections.
#[test]
fn syn_cookies_do_no_harm() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        // With or without cookies, SYNs are dropped while the small backlog is full of flows that
        // are not accepted yet. Hosts retransmit theirs more than once.
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        for cookies in ["0", "1", "2"] {
            bed.gateway.sysctl("net.ipv4.tcp_syncookies", cookies);
            let pep = bed.start_with("[limits]\nbacklog = 8");
            thread::scope(|scope| {
                for _ in 0..40 {
                    scope.spawn(|| echo_once(&mut connect(bed), b"through a cookie"));
                }
            });
            refused(bed);
            if let Some(mut pep) = pep {
                pep.assert_healthy();
                let name = pep.counter("flows_accepted");
                assert!(name >= 20, "only {name} of 40 flows were accelerated");
                pep.wait_idle();
                pep.stop();
            }
        }
    });
}

/// An ACK repeated in the network may arrive after the end. It still carries a valid cookie: a
/// server with cookies then accepts one more connection, as the control shows.
#[test]
fn an_ack_after_the_end_opens_no_flow() {
    matrix(|bed| {
        // Not on both: machines with one kernel share its secret.
        let answering = match bed.path {
            Path::Direct => &bed.server,
            Path::Spoof | Path::Defer => &bed.gateway,
        };
        answering.sysctl("net.ipv4.tcp_syncookies", "2");
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        let mut wire = Wire::new(&bed.client);
        let own = echo_and_close(bed, &echo);
        if let Some(pep) = &pep {
            pep.wait_idle();
        }
        let syn_ack = wire.find(|segment| segment.to == own && segment.syn);
        let ack = syn_ack.expect("the connection was there").answer();
        let repeat_ack = || raw::send(&bed.client, bed.family.address(1, 1), &ack);
        repeat_ack();
        if let Some(mut pep) = pep {
            // Follows the repeated ACK on the same path. A connection in LAST-ACK takes that ACK
            // for its own, and needs time to end.
            echo_and_close(bed, &echo);
            repeat_ack();
            pep.wait_idle();
            echo_and_close(bed, &echo);
            pep.wait_idle();
            assert_eq!((pep.counter("flows_accepted"), echo.accepted()), (3, 3));
            pep.assert_healthy();
        } else {
            // Repeatedly: the closed connection takes the ACK while it waits for its own last ACK.
            wait_until("the ACK to open one", || {
                repeat_ack();
                echo.accepted() == 2
            });
        }
    });
}

/// Returns the source address of the connection.
fn echo_and_close(bed: &Bed, echo: &EchoServer) -> SocketAddr {
    let mut stream = connect(bed);
    echo_once(&mut stream, b"through a cookie");
    let own = stream.local_addr().expect("connected");
    drop(stream);
    wait_until("the server to see the end", || echo.open() == 0);
    own
}

/// The server's first bytes must not be lost when they arrive with the handshake's last ACK.
#[test]
fn many_short_connections_in_a_row() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        for number in 0..200_u32 {
            let mut stream = connect(bed);
            stream.write_all(&number.to_le_bytes()).expect("connected");
            let mut answer = [0; 4];
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(u32::from_le_bytes(answer), number);
        }
        if let Some(mut pep) = pep {
            pep.wait_counter("ended_closed", |closed| closed == 200);
            pep.assert_healthy();
            pep.stop();
        }
    });
}
