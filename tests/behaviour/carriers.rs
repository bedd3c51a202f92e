//! Tunnels where UDP is blocked.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::Dial,
    payload::{Payload, receive},
    pep::Pep,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_until},
};

use crate::{
    support::echo_once,
    tunnel::{LINK, PORT, Running, SITE, STATED, connect, exchange, exchange_server},
};

fn wait_for_carrier(running: &Running, by_tcp: bool) {
    for pep in [&running.boat, &running.hub] {
        pep.wait_counter("tunnel_peers_by_tcp", |peers| peers == u64::from(by_tcp));
    }
}

#[test]
fn where_udp_is_dropped_from_the_start_flows_go_by_tcp() {
    let bed = TunnelBed::new(LINK);
    bed.block_udp();
    let running = Running::start(&bed, "", SITE);
    wait_for_carrier(&running, true);
    running.boat.log().expect("peer reached by TCP: UDP");
    for family in [Family::V4, Family::V6] {
        let _server = exchange_server(&bed, family, 3_000_000);
        exchange(&bed, family, 3_000_000);
    }
    running.assert_in_tunnel(2);
    running.stop();
}

#[test]
fn tcp_alone_can_be_asked_for_and_survives_loss() {
    let bed = TunnelBed::new("rate=20Mbit/s,delay=10ms,queue=100kB,loss=1%");
    let running = Running::start(&bed, "carrier = \"tcp\"", SITE);
    wait_for_carrier(&running, true);
    let _server = exchange_server(&bed, Family::V4, 3_000_000);
    exchange(&bed, Family::V4, 3_000_000);
    running.assert_in_tunnel(1);
    running.stop();
}

/// Like a boat with two uplinks, whose providers take only packets from addresses that they have
/// given.
#[test]
fn a_tunnel_leaves_by_the_uplink_to_which_the_route_moves() {
    const SECOND: &str = "198.51.100.7";
    for carrier in ["udp", "tcp"] {
        let bed = TunnelBed::new(LINK);
        let running = Running::start(&bed, &format!("carrier = \"{carrier}\""), SITE);
        let server = bed.host("server");
        let _echo = EchoServer::start(server.listen(bed.server_at(Family::V4, PORT)));
        let mut stream = connect(&bed, Family::V4);
        echo_once(&mut stream, b"before");
        let (boat, hub, at) = (bed.host("boat"), bed.host("hub"), bed.hub_at().ip());
        let [first, _] = bed.addresses_toward("boat", "hub");
        boat.ip(&format!("address add {SECOND}/32 dev hub"));
        hub.ip(&format!("route add {SECOND}/32 via {first} dev boat"));
        boat.ip(&format!("route add {at}/32 dev hub src {SECOND}"));
        hub.nft(&format!(
            "table inet provider {{
                chain in {{ type filter hook prerouting priority -400; ip saddr {first} drop; }}
            }}"
        ));
        echo_once(&mut stream, b"after");
        drop(stream);
        hub.nft("delete table inet provider");
        hub.ip(&format!("route delete {SECOND}/32"));
        boat.ip(&format!("route delete {at}/32"));
        boat.ip(&format!("address delete {SECOND}/32 dev hub"));
        running.assert_in_tunnel(1);
        running.stop();
    }
}

/// From UDP to TCP and back, while bytes flow in both directions.
#[test]
fn a_transfer_continues_by_tcp_and_back_by_udp() {
    // Forty seconds of transfer: probing UDP takes half of that if an answer is lost.
    const LEN: u64 = 100_000_000;
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let _server = Server::start(listener, |mut stream, _| {
        let mut back = stream.try_clone().expect("a socket");
        let answer = thread::spawn(move || Payload::new(2, LEN).send(&mut back));
        let (received, sum) = receive(&mut stream).expect("a payload");
        assert_eq!((received, sum), (LEN, Payload::new(1, LEN).sum()));
        answer.join().expect("no panic").expect("connected");
    });
    let mut stream = connect(&bed, Family::V4);
    let mut up = stream.try_clone().expect("a socket");
    let sender = thread::spawn(move || {
        Payload::new(1, LEN).send(&mut up).expect("connected");
        up.shutdown(std::net::Shutdown::Write).expect("connected");
    });
    let receiver = thread::spawn(move || receive(&mut stream).expect("in order"));
    let passed = |count| {
        let before = running.hub.counter("tunnel_datagrams_received");
        let received = |now| now > before + count;
        running
            .hub
            .wait_counter("tunnel_datagrams_received", received);
    };
    passed(1000);
    bed.block_udp();
    let blocked = Instant::now();
    wait_for_carrier(&running, true);
    eprintln!("by TCP after {:?}", blocked.elapsed());
    passed(1000);
    bed.unblock_udp();
    let unblocked = Instant::now();
    wait_for_carrier(&running, false);
    eprintln!("by UDP after {:?}", unblocked.elapsed());
    passed(1000);
    assert!(
        !sender.is_finished() || !receiver.is_finished(),
        "too early"
    );
    sender.join().expect("sent");
    let (received, sum) = receiver.join().expect("whole");
    assert_eq!((received, sum), (LEN, Payload::new(2, LEN).sum()));
    running.assert_in_tunnel(1);
    running.stop();
}

/// After an outage of all transports the tunnel returns to UDP, and waiting flows continue.
#[test]
fn an_outage_does_not_leave_a_tunnel_on_tcp() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, b"before");
    bed.cut_link();
    thread::sleep(Duration::from_secs(6));
    bed.restore_link();
    echo_once(&mut stream, b"after");
    thread::sleep(Duration::from_secs(2));
    for pep in [&running.boat, &running.hub] {
        assert_eq!(pep.counter("tunnel_peers_by_tcp"), 0);
    }
    drop(stream);
    running.stop();
}

/// The connection dies with the link, and is established again.
#[test]
fn an_outage_by_tcp_loses_nothing() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "carrier = \"tcp\"", SITE);
    let _server = exchange_server(&bed, Family::V4, 10_000_000);
    thread::scope(|scope| {
        let transfer = scope.spawn(|| exchange(&bed, Family::V4, 10_000_000));
        let before = running.hub.counter("tunnel_datagrams_received");
        running
            .hub
            .wait_counter("tunnel_datagrams_received", |now| now > before + 300);
        bed.cut_link();
        thread::sleep(Duration::from_secs(12));
        bed.restore_link();
        let mended = Instant::now();
        let before = running.hub.counter("tunnel_datagrams_received");
        running
            .hub
            .wait_counter("tunnel_datagrams_received", |now| now > before + 300);
        eprintln!("going on after {:?}", mended.elapsed());
        transfer.join().expect("whole");
    });
    running.assert_in_tunnel(1);
    running.stop();
}

/// The connection of a dead peer ends in order, and new connections are refused.
#[test]
fn a_peer_that_dies_while_reached_by_tcp_is_down() {
    let bed = TunnelBed::new(LINK);
    let mut running = Running::start(&bed, "lost_after = \"1s\"\ncarrier = \"tcp\"", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    wait_for_carrier(&running, true);
    running.hub.kill();
    let here = |pep: &Pep, count| pep.wait_counter("tunnel_peers_up", |peers| peers == count);
    here(&running.boat, 0);
    echo_once(&mut connect(&bed, Family::V4), b"split");
    assert_eq!(running.boat.counter("tunnel_flows_near"), 0);
    running.hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    here(&running.boat, 1);
    echo_once(&mut connect(&bed, Family::V4), b"in the tunnel");
    running.assert_in_tunnel(1);
    for pep in [&mut running.boat, &mut running.hub] {
        pep.assert_healthy();
        pep.wait_idle();
        assert_eq!(pep.terminate(), 0);
    }
}

/// A connection that never authenticates gets no answer, and takes no resources of peers.
#[test]
fn unauthenticated_connections_are_closed_and_peers_are_not_disturbed() {
    let bed = TunnelBed::new(LINK);
    bed.block_udp();
    let running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    let strangers: Vec<_> = (0..600).map(|number| stranger(&bed, number)).collect();
    echo_once(&mut stream, b"undisturbed");
    let connections = running.hub.counter("tunnel_tcp_connections");
    assert!(connections <= 17, "{connections}");
    let gone = |gone| gone + 17 >= strangers.len() as u64;
    running.hub.wait_counter("tunnel_tcp_unauthenticated", gone);
    for stranger in strangers {
        assert_ended_without_a_word(stranger);
    }
    running
        .hub
        .wait_counter("tunnel_tcp_connections", |now| now == 1);
    echo_once(&mut stream, b"still undisturbed");
    drop(stream);
    running.stop();
}

/// As the router of a boat may take a port for its tunnel that another one has just left.
#[test]
fn from_the_port_of_a_connection_that_was_reset_the_next_one_is_answered() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let [hubs, boats] =
        [("hub", "boat"), ("boat", "hub")].map(|(of, toward)| bed.addresses_toward(of, toward));
    for (hub, boat) in hubs.into_iter().zip(boats) {
        for _ in 0..3 {
            let dial = Dial::to(SocketAddr::new(hub, bed.hub_at().port()));
            let dial = dial.from(SocketAddr::new(boat, 40_000));
            let mut stream = bed.host("boat").dial(&dial).expect("a listener");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let datagram = [&[0, 229, 1][..], &[7; 228][..]].concat();
            let _ = stream.write_all(&datagram.repeat(20));
            assert_ended_without_a_word(stream);
        }
    }
    running.stop();
}

/// Connects and sends nothing, garbage, half a datagram, or whole ones without a valid key.
fn stranger(bed: &TunnelBed, number: usize) -> TcpStream {
    let mut stream = bed.host("boat").connect(bed.hub_at()).expect("a listener");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let datagram = [&[0, 229, 1][..], &[7; 228][..]].concat();
    // The hub may have closed the connection already.
    let _ = match number % 5 {
        0 => Ok(()),
        1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        2 => stream.write_all(&datagram[..100]),
        3 => stream.write_all(&[255, 255, 5, 1, 2, 3]),
        _ => stream.write_all(&datagram.repeat(20)),
    };
    stream
}

fn assert_ended_without_a_word(mut stream: TcpStream) {
    match stream.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0, "an answer"),
        Err(err) => assert_eq!(err.kind(), ErrorKind::ConnectionReset),
    }
}

/// A tunnel whose TCP is refused waits for UDP.
#[test]
fn a_peer_that_takes_no_connections_is_reached_once_udp_is_back() {
    let bed = TunnelBed::new(LINK);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let hub = bed.config(End::Hub, STATED, "carrier = \"udp\"", "");
    let hub = bed.start(End::Hub, &hub);
    bed.block_udp();
    let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, "", SITE));
    wait_for_refusal(&boat);
    echo_once(&mut connect(&bed, Family::V4), b"split");
    assert_eq!(boat.counter("tunnel_flows_near"), 0);
    bed.unblock_udp();
    let running = Running { boat, hub };
    running.wait_for_session();
    wait_for_carrier(&running, false);
    echo_once(&mut connect(&bed, Family::V4), b"in the tunnel");
    running.assert_in_tunnel(1);
    running.stop();
}

fn wait_for_refusal(boat: &Pep) {
    wait_until("a call by TCP to be refused", || {
        let events = boat.log().events_since(0);
        events
            .iter()
            .any(|event| event.message().contains("cannot call a peer by TCP"))
    });
}
