//! Forged ICMP errors, RSTs and SYNs, by an attacker who knows addresses and ports of a connection,
//! against legs of flows and against tunnels.

use std::{
    io::Read as _,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::{Bed, Family, Place},
    echo::EchoServer,
    host::Host,
    matrix::{matrix_pepd_only, shared},
    objects::{self, ObjectServer},
    outcome::Ended,
    payload::{Payload, receive},
    raw::{Error, Segment, Wire, datagram, error, send_all},
    tunnel::TunnelBed,
    wait::{wait_for, wait_until},
};
use serde_json::Value;

use crate::{
    support::{PORT, connect, echo_once, socket_toward},
    survive::crash,
    tunnel::{self, LINK, Running, SITE, exchange, exchange_server},
};

/// Sequence numbers that the attacker tries, spread over all.
const GUESSES: u32 = 1000;

/// Errors that end a connection attempt, and MTUs that would make packets tiny.
const ERRORS: [Error; 8] = [
    Error::Host,
    Error::Port,
    Error::Prohibited,
    Error::TooBig(0),
    Error::TooBig(1),
    Error::TooBig(68),
    Error::TooBig(296),
    Error::TooBig(1279),
];

/// Returns a counter of `/proc/net/snmp`, `snmp6` or `netstat`; 0 where the kernel has no such one.
fn kernel_counter(host: &Host, file: &str, group: &str, name: &str) -> u64 {
    let text = host.run("cat", &[&format!("/proc/net/{file}")]);
    let number = if group.is_empty() {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
    } else {
        let prefix = format!("{group}:");
        let mut lines = text.lines().filter(|line| line.starts_with(&prefix));
        let (names, values) = (lines.next(), lines.next());
        let pairs = names.into_iter().flat_map(str::split_whitespace);
        let mut pairs = pairs.zip(values.into_iter().flat_map(str::split_whitespace));
        pairs.find_map(|(of, value)| (of == name).then_some(value))
    };
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns how many ICMP errors a machine has received for its own sockets.
fn errors_received(host: &Host) -> u64 {
    let of_4 = kernel_counter(host, "snmp", "Icmp", "InDestUnreachs");
    let of_6 = ["Icmp6InDestUnreachs", "Icmp6InPktTooBigs"];
    of_4 + of_6
        .map(|name| kernel_counter(host, "snmp6", "", name))
        .iter()
        .sum::<u64>()
}

/// An end of an idle TCP connection.
#[derive(Debug, Clone, Copy)]
struct End {
    at: SocketAddr,
    peer: SocketAddr,
    /// Next sequence number that it expects.
    expects: u32,
    /// Next sequence number that it sends.
    sends: u32,
}

impl End {
    /// Reads the numbers from captured packets.
    fn see(wire: &mut Wire, at: SocketAddr, peer: SocketAddr) -> Option<Self> {
        let mut ack = |from, to| {
            let last = wire.last(|one| (one.from, one.to) == (from, to) && !one.rst)?;
            last.ack
        };
        Some(Self {
            at,
            peer,
            expects: ack(at, peer)?,
            sends: ack(peer, at)?,
        })
    }

    fn segment(&self, sequence: u32) -> Segment {
        Segment {
            sequence,
            syn: false,
            ..Segment::opening(self.peer, self.at)
        }
    }

    fn reset(&self, sequence: u32) -> Segment {
        Segment {
            rst: true,
            ..self.segment(sequence)
        }
    }

    /// RSTs and SYNs with numbers of an attacker who does not know the right one, some of them
    /// within the window.
    fn guesses(self) -> impl Iterator<Item = Segment> + Send {
        let spread = (0..GUESSES).map(|n| 1 + n * (u32::MAX / GUESSES));
        let near = [1, 10, 1000, 10_000, 0_u32.wrapping_sub(1)];
        let sequences = near.into_iter().chain(spread);
        sequences.flat_map(move |more| {
            let sequence = self.expects.wrapping_add(more);
            let syn = Segment {
                syn: true,
                ..self.segment(sequence)
            };
            let ack = Some(self.sends);
            [
                self.reset(sequence),
                Segment {
                    ack,
                    ..self.reset(sequence)
                },
                syn,
                Segment { ack, ..syn },
            ]
        })
    }

    /// ICMP errors about a packet of this end with that sequence number.
    fn errors(self, router: IpAddr, sequence: u32) -> impl Iterator<Item = Vec<u8>> + Send {
        let packet = Segment {
            from: self.at,
            to: self.peer,
            ..self.segment(sequence)
        };
        ERRORS.into_iter().map(move |what| {
            let sender = self.at.ip();
            error(router, what, sender, &packet.bytes())
        })
    }

    /// ICMP errors about packets that it has not sent.
    fn wrong_errors(self, router: IpAddr) -> impl Iterator<Item = Vec<u8>> + Send {
        let spread = (0..GUESSES / 10).map(|n| 1 + n * (u32::MAX / GUESSES * 10));
        spread.flat_map(move |more| self.errors(router, self.sends.wrapping_add(more)))
    }
}

/// Sends to pepd's end of a leg what an attacker without its numbers can send.
fn attack(bed: &Bed, from: &Host, end: End) {
    let next_hop = bed
        .family
        .address(if from_lan(bed, end) { 1 } else { 2 }, 1);
    let router = match next_hop {
        IpAddr::V4(_) => "192.0.2.7".parse(),
        IpAddr::V6(_) => "2001:db8::7".parse(),
    };
    let router = router.expect("an address");
    let challenges = || kernel_counter(&bed.gateway, "netstat", "TcpExt", "TCPChallengeACK");
    let outside = || kernel_counter(&bed.gateway, "netstat", "TcpExt", "OutOfWindowIcmps");
    let before = (challenges(), outside());
    send_all(from, next_hop, end.guesses().map(|one| one.bytes()));
    send_all(from, next_hop, end.wrong_errors(router));
    // They have reached the socket.
    wait_until("challenges to the sender", || challenges() > before.0);
    wait_until("errors outside of the window", || outside() > before.1);
    // An attacker on the path knows the numbers.
    send_all(from, next_hop, end.errors(router, end.sends));
}

/// True if an end is pepd's toward the client.
fn from_lan(bed: &Bed, end: End) -> bool {
    end.at == bed.at(Place::Server, PORT)
}

/// Returns a number that `ss` prints for pepd's socket with this remote end.
fn shown(bed: &Bed, remote: SocketAddr, name: &str) -> u32 {
    let socket = socket_toward(bed, remote);
    let mut words = socket.split_whitespace();
    let number = words.find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    let number = number.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in {socket}"))
}

/// True if no socket waits for an acknowledgement. The captured numbers are then the right ones.
fn is_all_acknowledged(bed: &Bed) -> bool {
    let hosts = [&bed.client, &bed.gateway, &bed.server];
    let waits = |host: &&Host| host.run("ss", &["-tinH"]).contains("unacked:");
    !hosts.iter().any(waits)
}

fn download(bed: &Bed, port: u16) {
    const SIZE: u64 = 1_000_000;
    let stream = bed.client.connect(bed.at(Place::Server, port));
    let mut stream = stream.expect("the server listens");
    objects::get(&mut stream, 3, SIZE).expect("connected");
    let received = receive(&mut stream).expect("the download");
    assert_eq!(received, (SIZE, Payload::new(3, SIZE).sum()));
}

/// The control is a RST with the right number: it ends the flow.
#[test]
fn forged_errors_resets_and_syns_change_no_leg() {
    matrix_pepd_only(|bed| {
        for family in ["ipv4", "ipv6"] {
            let key = format!("net.{family}.route.mtu_expires");
            bed.gateway.sysctl(&key, "3");
        }
        let server = bed.at(Place::Server, PORT);
        let _echo = EchoServer::start(bed.server.listen(server));
        let _objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT + 1)));
        let mut pep = bed.start().expect("not direct");
        let (mut lan, mut wan) = (Wire::new(&bed.client), Wire::new(&bed.server));
        let mut stream = connect(bed);
        echo_once(&mut stream, &[7; 3000]);
        let client = stream.local_addr().expect("connected");
        let mss = shown(bed, server, "mss");
        wait_until("delayed ACKs to leave", || is_all_acknowledged(bed));
        let at_client = End::see(&mut lan, server, client).expect("packets of the flow");
        let at_server = End::see(&mut wan, client, server).expect("packets of the flow");
        attack(bed, &bed.client, at_client);
        attack(bed, &bed.server, at_server);
        echo_once(&mut stream, &[7; 3000]);
        download(bed, PORT + 1);
        // The kernel believes an MTU that an attacker on the path claims, within bounds.
        let least = match bed.family {
            Family::V4 => 552,
            Family::V6 => 1280,
        };
        let pmtu = shown(bed, server, "pmtu");
        assert!((least..=1500).contains(&pmtu), "{pmtu}");
        wait_until("packets as long as before", || {
            echo_once(&mut stream, &[7; 3000]);
            shown(bed, server, "mss") == mss
        });
        assert_eq!(pep.counter("flows_open"), 1);

        // The first capture had no room for all that was forged.
        let mut wan = Wire::new(&bed.server);
        echo_once(&mut stream, b"known");
        wait_until("delayed ACKs to leave", || is_all_acknowledged(bed));
        let now = End::see(&mut wan, client, server).expect("packets of the flow");
        let next_hop = bed.family.address(2, 1);
        let reset = now.reset(now.expects).bytes();
        send_all(&bed.server, next_hop, [reset].into_iter());
        assert_eq!(Ended::from_stream(&stream), Ended::RESET);
        pep.wait_idle();
        pep.assert_healthy();
    });
}

/// A flag that is set on drop.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// Returns the boat's address of the session, as the hub knows it.
fn boat_at(running: &Running) -> SocketAddr {
    wait_for("the address of the boat", || {
        let status = running.hub.ask(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["peers"][0]["remote"].as_str()?.parse().ok()
    })
}

/// Runs a closure while both ends of the tunnel receive some 400 forged errors a second. Returns
/// after each has received hundreds.
fn under_errors(bed: &TunnelBed, running: &Running, run: impl FnOnce()) {
    let (boat, hub) = (bed.host("boat"), bed.host("hub"));
    let ends = [(boat_at(running), bed.hub_at())];
    let ends = ends
        .into_iter()
        .flat_map(|(a, b)| [(a, b, &hub), (b, a, &boat)]);
    let ends: Vec<_> = ends.collect();
    let router = "192.0.2.7".parse().expect("an address");
    let received = || [&boat, &hub].map(errors_received);
    let before = received();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                for (victim, other, from) in &ends {
                    let quoted = datagram(*victim, *other);
                    let errors = ERRORS.map(|what| error(router, what, victim.ip(), &quoted));
                    send_all(from, victim.ip(), errors.into_iter());
                }
                thread::sleep(Duration::from_millis(40));
            }
        });
        let stop = Stop(&done);
        run();
        wait_until("hundreds of errors at both ends", || {
            let mut grown = received().into_iter().zip(before);
            grown.all(|(now, before)| now > before + 300)
        });
        drop(stop);
    });
}

#[test]
fn forged_errors_neither_stop_a_tunnel_nor_split_its_datagrams() {
    const LEN: u64 = 2_000_000;
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let running = Running::start_with(&bed, "", SITE, ADMIN);
        let _server = exchange_server(&bed, Family::V4, LEN);
        under_errors(&bed, &running, || exchange(&bed, Family::V4, LEN));
        assert_eq!(
            running.hub.counter("tunnel_flows_resumed"),
            0,
            "the same session"
        );
        // A session that begins under them.
        under_errors(&bed, &running, || {
            crash(&running.boat);
            running.wait_for_session();
            exchange(&bed, Family::V4, LEN);
        });
        for name in ["boat", "hub"] {
            let fragments = kernel_counter(&bed.host(name), "snmp", "Ip", "FragCreates");
            assert_eq!(fragments, 0, "{name}");
        }
        assert_eq!(running.hub.counter("tunnel_flows_far"), 2);
        running.stop_after_errors();
    });
}

/// An attacker off the path does not end the carrier's connection. One on the path can, as by
/// cutting it; the tunnel then connects again, and its flows lose nothing.
#[test]
fn forged_packets_do_not_end_a_carrier_by_tcp_and_its_end_loses_nothing() {
    const LEN: u64 = 2_000_000;
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let running = Running::start_with(&bed, "carrier = \"tcp\"", SITE, ADMIN);
        let listener = bed
            .host("server")
            .listen(bed.server_at(Family::V4, tunnel::PORT + 1));
        let _echo = EchoServer::start(listener);
        let (boat, hub) = (bed.host("boat"), bed.host("hub"));
        let mut wires = [Wire::new(&boat), Wire::new(&hub)];
        let stream = bed
            .host("client")
            .connect(bed.server_at(Family::V4, tunnel::PORT + 1));
        let mut stream = stream.expect("pepd answers");
        echo_once(&mut stream, b"before");
        let (at_boat, at_hub) = (boat_at(&running), bed.hub_at());
        let router = "192.0.2.7".parse().expect("an address");
        let challenges = |host| kernel_counter(host, "netstat", "TcpExt", "TCPChallengeACK");
        for (at, peer, from, host) in [
            (at_boat, at_hub, &hub, &boat),
            (at_hub, at_boat, &boat, &hub),
        ] {
            let [wire, _] = &mut wires;
            let end = wait_for("packets of the carrier", || End::see(wire, at, peer));
            let before = challenges(host);
            // As many as the link's queue takes at once, again and again.
            for guesses in end.guesses().collect::<Vec<_>>().chunks(100) {
                send_all(from, at.ip(), guesses.iter().map(Segment::bytes));
                thread::sleep(Duration::from_millis(10));
            }
            send_all(from, at.ip(), end.wrong_errors(router).take(400));
            echo_once(&mut stream, b"during");
            wait_until("challenges to the sender", || challenges(host) > before);
        }
        assert_eq!(boat_at(&running), at_boat, "the same connection");

        let _server = exchange_server(&bed, Family::V4, LEN);
        thread::scope(|scope| {
            let transfer = scope.spawn(|| exchange(&bed, Family::V4, LEN));
            // Nothing else changes the number meanwhile.
            hub.nft(
                "table inet held {
                    chain from {
                        type filter hook prerouting priority -400;
                        tcp dport 5001 tcp flags & rst == 0 drop
                    }
                }",
            );
            let mut wire = Wire::new(&hub);
            wait_until("the end of the connection", || {
                // The number is not right before the last ACK has left.
                if let Some(end) = End::see(&mut wire, at_hub, at_boat) {
                    let reset = end.reset(end.expects).bytes();
                    send_all(&boat, at_hub.ip(), [reset].into_iter());
                }
                running.hub.counter("tunnel_tcp_connections") == 0
            });
            hub.nft("delete table inet held");
            wait_until("another connection", || boat_at(&running) != at_boat);
            transfer.join().expect("whole");
        });
        echo_once(&mut stream, b"after");
        let mut none = [0];
        stream.set_nonblocking(true).expect("a socket");
        assert!(stream.read(&mut none).is_err(), "nothing else has arrived");
        drop(stream);
        running.stop_after_errors();
    });
}
