//! Mode `boost`: packets through the boosters of one pepd alone, between the kernel of a router and
//! itself.

use std::{
    io::Read as _,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use pepd_tests::{
    bed::Family,
    payload::{Payload, receive},
    pep::Pep,
    raw::Packets,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_for, wait_until},
};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{ADMIN, BOTH, Stream, boosters::count, connection, looks, octets, path_mtu};
use crate::{
    survive::{crash, next_worker},
    tunnel::{LINK, PORT},
};

/// All boosters that need no peer.
const ALL: &str = "snoop = true, ack_filter = true, data_filter = true, divacks = true, \
                   checksum = true, congestion = true";

/// Returns the configuration of a boat with one site.
fn config(link: &str, matches: &str, boost: &str) -> String {
    format!(
        "[intercept]\nlan = [\"client\"]\n[log]\nformat = \"json\"\nlevel = \"debug\"\n{ADMIN}\
         [link]\ninterface = \"hub\"\n{link}\n\
         [[site]]\nname = \"boosted\"\nmode = \"boost\"\nmatch = {{ {matches} }}\nboost = {{ {boost} }}\n"
    )
}

fn start(bed: &TunnelBed, link: &str, boost: &str) -> Pep {
    bed.start(End::Boat, &config(link, "", boost))
}

/// Checks that pepd is as at the start, and that all packets have found the kernel's approval.
fn stop(mut pep: Pep) {
    pep.assert_healthy();
    assert_eq!(pep.counter("packets_undeliverable"), 0);
    pep.stop();
}

#[test]
fn packets_come_out_as_the_kernel_would_have_forwarded_them() {
    let bed = TunnelBed::new(LINK);
    let services = [0xb8, 0xb9, 0xba, 0];
    let look = |family: Family| {
        services.map(|service| {
            let (hops, service, from) = looks(&bed, family, service);
            (hops, service, from.ip())
        })
    };
    let without = BOTH.map(look);
    let pep = start(&bed, "rate = \"20Mbit/s\"", ALL);
    assert_eq!(BOTH.map(look), without);
    for family in BOTH {
        for protocol in [50, 132] {
            passes(&bed, family, protocol);
        }
        echoes(&bed, family);
        let mut stream = Stream::new(&bed, family, PORT);
        for len in [8, 1472, 4000, 20_000] {
            stream.until_one_comes("a datagram, perhaps in fragments", len);
        }
        assert_eq!(stream.wrong, 0);
        connection(&bed, family, 1_000_000, || {});
    }
    let counters = pep.counters();
    assert_eq!(counters["flows_accepted"], 0, "{counters:?}");
    assert!(counters["packets_taken"] > 2000, "{counters:?}");
    stop(pep);
}

fn raw(bed: &TunnelBed, host: &str, family: Family, protocol: i32) -> Socket {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let open = || Socket::new(domain, Type::RAW, Some(Protocol::from(protocol)));
    let socket = bed.host(host).enter(open);
    let socket = socket.expect("root may open a raw socket");
    let patience = Some(Duration::from_millis(50));
    socket.set_read_timeout(patience).expect("a socket");
    socket
}

fn address(bed: &TunnelBed, host: &str, family: Family) -> SockAddr {
    SocketAddr::new(bed.address(host, family), 0).into()
}

/// Sends a payload by one socket until the other receives what is expected.
fn crosses(from: &Socket, to: &SockAddr, payload: &[u8], mut at: &Socket, expected: &[u8]) {
    let mut buffer = [0; 2000];
    wait_until("a packet to arrive", || {
        from.send_to(payload, to).expect("a route");
        let len = at.read(&mut buffer).unwrap_or(0);
        buffer[..len].ends_with(expected)
    });
}

/// Checks that packets of a protocol that pepd does not know pass in both directions.
fn passes(bed: &TunnelBed, family: Family, protocol: i32) {
    let ends = ["client", "server"].map(|host| raw(bed, host, family, protocol));
    let at = ["client", "server"].map(|host| address(bed, host, family));
    crosses(
        &ends[0],
        &at[1],
        b"to the server",
        &ends[1],
        b"to the server",
    );
    crosses(
        &ends[1],
        &at[0],
        b"to the client",
        &ends[0],
        b"to the client",
    );
}

/// Checks that the server's kernel answers an ICMP echo request.
fn echoes(bed: &TunnelBed, family: Family) {
    let (protocol, request, reply) = match family {
        // Type, code, checksum, id, number: the checksum is that of these bytes.
        Family::V4 => (
            1,
            [8, 0, 0xf7, 0xfc, 0, 1, 0, 2],
            [0, 0, 0xff, 0xfc, 0, 1, 0, 2],
        ),
        // The kernel computes the checksum, which the reply has in other bytes.
        Family::V6 => (58, [128, 0, 0, 0, 0, 1, 0, 2], [0; 8]),
    };
    let (client, to) = (
        raw(bed, "client", family, protocol),
        address(bed, "server", family),
    );
    let expected = match family {
        Family::V4 => &reply[..],
        Family::V6 => &request[4..],
    };
    crosses(&client, &to, &request, &client, expected);
}

/// The MTU of the link, below that of the LAN.
const NARROW: usize = 1400;

#[test]
fn hosts_learn_what_fits_the_link() {
    let bed = TunnelBed::new(LINK);
    bed.host("boat").ip(&format!("link set hub mtu {NARROW}"));
    let pep = start(&bed, "", ALL);
    for family in BOTH {
        let mut stream = Stream::new(&bed, family, PORT);
        let mtu = wait_for("the path MTU to reach the host", || {
            stream.run(1, 1440, Duration::from_millis(5));
            path_mtu(&bed, family)
        });
        assert_eq!(mtu, NARROW);
        stream.until_one_comes("a long one", 1440);
        assert_eq!(stream.wrong, 0);
        connection(&bed, family, 300_000, || {});
    }
    stop(pep);
}

/// A firewall that lets connections of hosts out, and their answers back. Packets cross `forward`
/// twice: into a TUN of pepd, and out of one.
const STATEFUL: &str = "
    table inet filter {
        chain forward {
            type filter hook forward priority filter; policy drop;
            ct state established,related accept
            ct state invalid drop
            iifname \"client\" oifname \"hub\" accept
            oifname \"pepd-*\" accept
            iifname \"pepd-*\" accept
        }
    }";

const MASQUERADE: &str = "
    table ip nat {
        chain out { type nat hook postrouting priority srcnat; oifname \"hub\" masquerade; }
    }";

#[test]
fn a_stateful_firewall_that_masquerades_does_no_harm() {
    let bed = TunnelBed::new("rate=20Mbit/s,delay=5ms,queue=100kB,loss=1%");
    let boat = bed.host("boat");
    boat.nft(MASQUERADE);
    boat.nft(STATEFUL);
    let pep = start(&bed, "rate = \"20Mbit/s\"", ALL);
    let mut stream = Stream::new(&bed, Family::V4, PORT);
    stream.until_one_comes("a datagram", 100);
    let mut buffer = [0; 100];
    let (_, from) = wait_for("a datagram", || {
        stream.server.recv_from(&mut buffer).ok().or_else(|| {
            stream.send(100);
            thread::sleep(Duration::from_millis(5));
            None
        })
    });
    assert_ne!(from.ip(), bed.address("client", Family::V4), "masqueraded");
    // The answer goes to the machine with pepd.
    wait_until("an answer", || {
        stream.server.send_to(b"answer", from).expect("a route");
        thread::sleep(Duration::from_millis(5));
        stream
            .client
            .recv_from(&mut buffer)
            .is_ok_and(|(len, _)| &buffer[..len] == b"answer")
    });
    echoes(&bed, Family::V4);
    connection(&bed, Family::V4, 1_000_000, || {});
    wait_count(&pep, "snoop.retransmitted");
    // ICMP errors name the packets as hosts know them.
    bed.host("hub").ip("link set server mtu 1300");
    let mut stream = Stream::new(&bed, Family::V4, PORT + 1);
    let mtu = wait_for("the path MTU to reach the host", || {
        stream.run(1, 1400, Duration::from_millis(5));
        path_mtu(&bed, Family::V4)
    });
    assert_eq!(mtu, 1300);
    stop(pep);
}

/// Waits for a counter, which pepd shows once per second.
fn wait_count(pep: &Pep, name: &str) {
    wait_until(name, || count(pep, "boosted", name) > 0);
}

/// Uploads through a link that loses packets; returns the time that it took.
fn upload(boost: Option<&str>) -> Duration {
    let bed = TunnelBed::new("rate=20Mbit/s,delay=20ms,queue=200kB,loss=2%");
    let client = bed.host("client");
    client.sysctl("net.ipv4.tcp_congestion_control", "reno");
    let pep = boost.map(|boost| start(&bed, "", boost));
    let began = Instant::now();
    connection(&bed, Family::V4, 2_000_000, || {});
    let took = began.elapsed();
    if let Some(pep) = pep {
        // Of 1,400 segments the link loses 28.
        wait_until("segments to be retransmitted", || {
            count(&pep, "boosted", "snoop.retransmitted") >= 12
        });
        stop(pep);
    }
    took
}

/// The sender does not slow down, so the upload takes a fraction of the time.
#[test]
fn snoop_retransmits_in_the_place_of_senders() {
    let direct = upload(None);
    let boosted = upload(Some("snoop = true"));
    assert!(boosted < direct, "{boosted:?}, direct {direct:?}");
}

/// Downloads bytes from the server to the client.
fn download(bed: &TunnelBed, len: u64) {
    let at = bed.server_at(Family::V4, PORT);
    let listener = bed.host("server").listen(at);
    let server = Server::start(listener, move |mut stream, _| {
        Payload::new(2, len).send(&mut stream).expect("connected");
    });
    let mut client = bed.host("client").connect(at).expect("the server answers");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let found = receive(&mut client).expect("a payload");
    assert_eq!(found, (len, Payload::new(2, len).sum()));
    drop(server);
}

/// The stated rate holds back ACKs for data of 20 Mbit/s.
#[test]
fn acks_that_wait_for_the_link_are_filtered() {
    let bed = TunnelBed::new(LINK);
    let pep = start(&bed, "rate = \"60kbit/s\"", "ack_filter = true");
    download(&bed, 3_000_000);
    let replaced = count(&pep, "boosted", "ack_filter.replaced");
    assert!(replaced > 100, "{replaced}");
    let seen = pep.ask(&["status"]);
    assert!(
        seen.contains("boosted") && seen.contains("ack_filter"),
        "{seen}"
    );
    stop(pep);
}

/// Sends datagrams until one with such bytes arrives at the server.
fn until_seen(bed: &TunnelBed, what: &str, send: impl Fn(), wanted: impl Fn(&[u8]) -> bool) {
    let wire = Packets::new(&bed.host("server"));
    let to = octets(bed, Family::V4);
    wait_until(what, || {
        send();
        thread::sleep(Duration::from_millis(5));
        let mut udp = (&wire).filter(|packet| packet[0] >> 4 == 4 && packet[9] == 17);
        udp.any(|packet| packet[16..20] == to && wanted(&packet))
    });
}

#[test]
fn datagrams_without_a_checksum_get_one() {
    let bed = TunnelBed::new(LINK);
    // Ports, length, no checksum, and four bytes.
    let [high, low] = PORT.to_be_bytes();
    let datagram = [high, low, high, low, 0, 12, 0, 0, 1, 2, 3, 4];
    let client = raw(&bed, "client", Family::V4, 17);
    let to = address(&bed, "server", Family::V4);
    let send = || {
        client.send_to(&datagram, &to).expect("a route");
    };
    let has_checksum = |packet: &[u8]| packet[26..28] != [0, 0];
    until_seen(&bed, "a datagram without a checksum", send, |packet| {
        !has_checksum(packet)
    });
    let pep = start(&bed, "", "checksum = true");
    until_seen(&bed, "a datagram with a checksum", send, has_checksum);
    wait_count(&pep, "checksum.added");
    stop(pep);
}

#[test]
fn congestion_marks_what_waits_for_the_link() {
    let bed = TunnelBed::new(LINK);
    let boost = "congestion = { queue_above = \"20ms\" }";
    let pep = start(&bed, "rate = \"100kbit/s\"", boost);
    let stream = Stream::new(&bed, Family::V4, PORT);
    // ECT(0).
    SockRef::from(&stream.client)
        .set_tos_v4(2)
        .expect("a socket");
    let to = bed.server_at(Family::V4, PORT);
    let send = || {
        stream.client.send_to(&[0; 500], to).expect("a route");
    };
    until_seen(&bed, "a mark", send, |packet| packet[1] & 3 == 3);
    wait_count(&pep, "congestion.marked");
    stop(pep);
}

#[test]
fn packets_pass_once_pepd_has_been_killed_or_its_site_is_off() {
    let bed = TunnelBed::new(LINK);
    let mut pep = start(&bed, "", ALL);
    let mut stream = Stream::new(&bed, Family::V4, PORT);
    let taken = |pep: &Pep| pep.counter("packets_taken");
    stream.until("packets to be taken", || taken(&pep) > 0);
    pep.ask(&["site", "off", "boosted"]);
    let before = taken(&pep);
    stream.until_one_comes("past the site", 100);
    connection(&bed, Family::V4, 100_000, || {});
    assert_eq!(taken(&pep), before);
    pep.ask(&["site", "on", "boosted"]);
    stream.until("packets to be taken", || taken(&pep) > before);
    // A crash of the worker, whose successor takes over.
    connection(&bed, Family::V4, 10_000_000, || {
        let before = pep.id();
        crash(&pep);
        next_worker(&pep, before);
    });
    stream.until("packets to be taken", || taken(&pep) > 0);
    connection(&bed, Family::V4, 10_000_000, || pep.kill());
    stream.until_one_comes("without pepd", 100);
    assert_eq!(stream.wrong, 0);
    // The next one takes over the rules that are left.
    let mut next = start(&bed, "", ALL);
    assert_eq!(next.terminate(), 0);
}
