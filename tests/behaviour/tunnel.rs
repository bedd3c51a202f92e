//! Flows in a tunnel between two pepds.

use std::{
    io::{BufReader, ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::Dial,
    outcome::Ended,
    payload::{Payload, receive},
    pep::Pep,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_for, wait_until},
};

use crate::support::{Busy, assert_reset_after_connect, echo_once};

pub const LINK: &str = "rate=20Mbit/s,delay=20ms,queue=100kB";
pub const STATED: &str = "rate = \"20Mbit/s\"\nrtt = \"40ms\"";
pub const SITE: &str = "[[site]]\nname = \"all\"\nmode = \"tunnel\"\npeer = \"hub\"\n";
pub const PORT: u16 = 7000;

/// Enables the admin socket.
const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// Both pepds, with a session between them.
pub struct Running {
    pub boat: Pep,
    pub hub: Pep,
}

impl Running {
    pub fn start(bed: &TunnelBed, peer: &str, site: &str) -> Self {
        Self::start_with(bed, peer, site, "")
    }

    /// Starts both ends; `both` is in the configuration of either end.
    pub fn start_with(bed: &TunnelBed, peer: &str, site: &str, both: &str) -> Self {
        let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", both));
        let more = format!("{site}\n{both}");
        let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, peer, &more));
        let running = Self { boat, hub };
        running.wait_for_session();
        running
    }

    pub fn wait_for_session(&self) {
        for pep in [&self.boat, &self.hub] {
            pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
        }
    }

    /// Sends an HTTP request to the boat's admin socket. The answer begins with its head.
    pub fn ask(&self, target: &str) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(self.boat.path("admin.sock")).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let request = format!("GET {target} HTTP/1.1\r\nhost: pepd\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        BufReader::new(stream)
    }

    pub fn assert_in_tunnel(&self, flows: u64) {
        assert_eq!(self.boat.counter("tunnel_flows_near"), flows);
        assert_eq!(self.hub.counter("tunnel_flows_far"), flows);
    }

    pub fn stop(mut self) {
        for pep in [&mut self.boat, &mut self.hub] {
            pep.assert_healthy();
        }
        self.stop_after_errors();
    }

    /// Ends both, where a test has changed the machines for good.
    fn end(mut self) {
        for pep in [&mut self.boat, &mut self.hub] {
            pep.wait_idle();
            assert_eq!(pep.terminate(), 0);
        }
    }

    pub fn stop_after_errors(self) {
        for pep in [&self.boat, &self.hub] {
            pep.wait_idle();
        }
        self.boat.stop();
        self.hub.stop();
    }
}

pub fn connect(bed: &TunnelBed, family: Family) -> TcpStream {
    let stream = bed.host("client").connect(bed.server_at(family, PORT));
    let stream = stream.expect("pepd answers");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Returns a busy flow, a flow to another port ([`PORT`] and the next) that has carried ten bytes
/// in both directions, and their servers.
pub fn traffic(bed: &TunnelBed) -> (Busy, TcpStream, [EchoServer; 2]) {
    let echo = [PORT, PORT + 1]
        .map(|port| EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, port))));
    let busy = Busy::start(connect(bed, Family::V4));
    let quiet = bed
        .host("client")
        .connect(bed.server_at(Family::V4, PORT + 1));
    let mut quiet = quiet.expect("pepd answers");
    echo_once(&mut quiet, b"0123456789");
    (busy, quiet, echo)
}

/// Starts a server that receives a payload to its end and then sends another.
pub fn exchange_server(bed: &TunnelBed, family: Family, len: u64) -> Server {
    let listener = bed.host("server").listen(bed.server_at(family, PORT));
    Server::start(listener, move |mut stream, _| {
        let (received, sum) = receive(&mut stream).expect("a payload");
        assert_eq!((received, sum), (len, Payload::new(1, len).sum()));
        Payload::new(2, len).send(&mut stream).expect("connected");
    })
}

pub fn exchange(bed: &TunnelBed, family: Family, len: u64) {
    let mut stream = connect(bed, family);
    Payload::new(1, len).send(&mut stream).expect("connected");
    // Half-closed: the answer follows.
    stream.shutdown(Shutdown::Write).expect("connected");
    let (received, sum) = receive(&mut stream).expect("in order");
    assert_eq!((received, sum), (len, Payload::new(2, len).sum()));
}

#[test]
fn bytes_arrive_whole_in_both_directions_and_each_half_closes_by_itself() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    for (flow, family) in [Family::V4, Family::V6].into_iter().enumerate() {
        let _server = exchange_server(&bed, family, 2_000_000);
        exchange(&bed, family, 2_000_000);
        running.assert_in_tunnel(flow as u64 + 1);
    }
    for pep in [&running.boat, &running.hub] {
        pep.wait_idle();
        let ends = pep.flow_ends();
        assert_eq!(ends.len(), 2, "{ends:?}");
        for end in ends {
            let logged = (end.up_bytes, end.down_bytes, end.reason.as_str());
            assert_eq!(logged, (2_000_000, 2_000_000, "closed"), "{end:?}");
        }
    }
    running.stop();
}

#[test]
fn nothing_is_lost_on_a_link_that_loses() {
    let bed = TunnelBed::new("rate=20Mbit/s,delay=10ms,queue=100kB,loss=3%");
    let running = Running::start(&bed, "", SITE);
    let _server = exchange_server(&bed, Family::V4, 3_000_000);
    exchange(&bed, Family::V4, 3_000_000);
    running.assert_in_tunnel(1);
    running.stop();
}

#[test]
fn the_server_sees_the_clients_address_or_the_hubs() {
    for (source, name) in [("client", "client"), ("self", "hub")] {
        let bed = TunnelBed::new(LINK);
        let site = format!("{SITE}source = \"{source}\"\n");
        let running = Running::start(&bed, "", &site);
        let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
        let _server = Server::start(listener, |mut stream, peer| {
            let _ = write!(stream, "{peer}");
        });
        let mut stream = connect(&bed, Family::V4);
        let mut seen = String::new();
        stream.read_to_string(&mut seen).expect("in order");
        let expected = match source {
            "client" => stream.local_addr().expect("connected").to_string(),
            // The hub's side of its edge to the server.
            _ => "10.77.2.1:".to_owned(),
        };
        assert!(
            seen.starts_with(&expected),
            "{name}: {seen}, not {expected}"
        );
        drop(stream);
        running.stop();
    }
}

#[test]
fn resets_go_through_from_both_sides() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let (tell, logged) = std::sync::mpsc::channel();
    let _server = Server::start(listener, move |mut stream, _| {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a byte");
        if byte == *b"r" {
            // Unread bytes turn a close into a reset.
            stream.write_all(b"last words").expect("connected");
            let limit = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            limit.expect("a socket");
        } else {
            stream.write_all(b"ok").expect("connected");
            let _ = tell.send(Ended::from_stream(&stream));
        }
    });

    let mut by_server = connect(&bed, Family::V4);
    by_server.write_all(b"r").expect("connected");
    assert_eq!(Ended::from_stream(&by_server), Ended::RESET);

    let mut by_client = connect(&bed, Family::V4);
    by_client.write_all(b"c").expect("connected");
    by_client.read_exact(&mut [0; 2]).expect("an answer");
    let reset = socket2::SockRef::from(&by_client).set_linger(Some(Duration::ZERO));
    reset.expect("a socket");
    drop(by_client);
    let ended = logged
        .recv_timeout(PATIENCE)
        .expect("the server hears of it");
    assert_eq!(ended, Ended::RESET);

    for pep in [&running.boat, &running.hub] {
        pep.wait_counter("ended_server_reset", |ends| ends == 1);
        pep.wait_counter("ended_client_reset", |ends| ends == 1);
    }
    running.stop();
}

#[test]
fn what_refuses_or_cannot_be_reached_shows_as_a_reset() {
    let bed = TunnelBed::new(LINK);
    bed.host("hub").ip("route add unreachable 10.99.0.0/24");
    for (host, gateway) in [("boat", "10.77.1.2"), ("client", "10.77.0.2")] {
        let route = format!("route add 10.99.0.0/24 via {gateway}");
        bed.host(host).ip(&route);
    }
    let running = Running::start(&bed, "", SITE);
    let refused = bed.server_at(Family::V4, 9);
    assert_reset_after_connect(bed.host("client").connect(refused));
    for pep in [&running.boat, &running.hub] {
        pep.wait_counter("ended_refused", |ends| ends == 1);
    }
    let unreachable = "10.99.0.1:80".parse().expect("an address");
    assert_reset_after_connect(bed.host("client").connect(unreachable));
    for pep in [&running.boat, &running.hub] {
        pep.wait_counter("ended_unreachable", |ends| ends == 1);
    }
    running.stop();
}

#[test]
fn many_flows_at_a_time_have_their_own_bytes() {
    const FLOWS: u64 = 300;
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut streams: Vec<_> = (0..FLOWS).map(|_| connect(&bed, Family::V4)).collect();
    for round in 0..3 {
        for (number, stream) in streams.iter_mut().enumerate() {
            let message = format!("flow {number}, round {round}").repeat(10);
            stream.write_all(message.as_bytes()).expect("connected");
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let expected = format!("flow {number}, round {round}").repeat(10);
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).expect("an echo");
            assert_eq!(answer, expected.as_bytes());
        }
    }
    running.assert_in_tunnel(FLOWS);
    drop(streams);
    running.stop();
}

#[test]
fn an_outage_of_seconds_loses_nothing() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let _server = exchange_server(&bed, Family::V4, 5_000_000);
    thread::scope(|scope| {
        let transfer = scope.spawn(|| exchange(&bed, Family::V4, 5_000_000));
        for _ in 0..2 {
            let before = running.hub.counter("tunnel_datagrams_received");
            running
                .hub
                .wait_counter("tunnel_datagrams_received", |now| now > before + 300);
            bed.cut_link();
            thread::sleep(Duration::from_secs(3));
            bed.restore_link();
        }
        transfer.join().expect("whole");
    });
    running.assert_in_tunnel(1);
    running.stop();
}

/// The interface reports the outage long before silence would: a `dedicated` link is never
/// considered down for silence.
#[test]
fn an_interface_that_loses_its_carrier_stops_the_sender_until_it_is_back() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "dedicated = true\n", SITE);
    let _server = exchange_server(&bed, Family::V4, 5_000_000);
    thread::scope(|scope| {
        let transfer = scope.spawn(|| exchange(&bed, Family::V4, 5_000_000));
        let under_way = |received| received > 300;
        running
            .hub
            .wait_counter("tunnel_datagrams_received", under_way);
        bed.host("boat").ip("link set hub carrier off");
        let changed = "state of the link's interface changed";
        let down = running.boat.log().expect(changed);
        assert_eq!(down.text("up"), "false");
        bed.host("boat").ip("link set hub carrier on");
        transfer.join().expect("whole");
        let changes = running.boat.log().events_since(0);
        let changes = changes.iter().filter(|event| event.message() == changed);
        let states: Vec<_> = changes.map(|event| event.text("up")).collect();
        assert_eq!(states, ["false", "true"]);
    });
    running.assert_in_tunnel(1);
    running.stop();
}

#[test]
fn a_hub_that_dies_resets_its_flows_and_has_new_ones_once_it_is_back() {
    let bed = TunnelBed::new(LINK);
    let mut running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut before = connect(&bed, Family::V4);
    echo_once(&mut before, b"hello");
    running.hub.kill();
    running.hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    assert_eq!(Ended::from_stream(&before), Ended::RESET);
    running
        .boat
        .wait_counter("ended_peer_restarted", |ends| ends == 1);
    running.wait_for_session();
    echo_once(&mut connect(&bed, Family::V4), b"hello again");
    assert_eq!(running.hub.counter("tunnel_flows_far"), 1);
    for pep in [&mut running.boat, &mut running.hub] {
        pep.assert_healthy();
        pep.wait_idle();
        assert_eq!(pep.terminate(), 0);
    }
}

#[test]
fn a_boat_that_ends_says_so() {
    let bed = TunnelBed::new(LINK);
    let mut running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, b"hello");
    assert_eq!(running.boat.terminate_at_once(), 6);
    assert_eq!(Ended::from_stream(&stream), Ended::RESET);
    running
        .hub
        .wait_counter("tunnel_peers_up", |peers| peers == 0);
    running.hub.wait_idle();
    running.boat.assert_nothing_left();
}

/// A hub that does not know the boat's key, or for which the boat has the wrong key.
#[test]
fn a_wrong_key_never_connects_and_flows_are_split() {
    let bed = TunnelBed::new(LINK);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let right = bed.config(End::Hub, STATED, "", "");
    let wrong = right.replace(&bed.public_key("boat"), &bed.public_key("stranger"));
    let mut hub = bed.start(End::Hub, &wrong);
    let mut boat = bed.start(
        End::Boat,
        &bed.config(End::Boat, STATED, "", &format!("{SITE}\n{ADMIN}")),
    );
    hub.log().expect("handshake from an unknown public key");
    boat.log().expect("peer does not answer handshakes");
    assert!(boat.ask(&["status"]).contains("does not answer handshakes"));
    echo_once(&mut connect(&bed, Family::V4), b"split");
    assert_eq!(boat.counter("tunnel_peers_up"), 0);
    assert_eq!(boat.counter("tunnel_flows_near"), 0);
    assert_eq!(
        hub.counter("tunnel_datagrams_sent"),
        0,
        "no answer without a valid key"
    );
    boat.wait_counter("ended_closed", |ends| ends == 1);
    for pep in [&mut boat, &mut hub] {
        pep.assert_healthy();
    }
}

/// The boat has another key in place of the hub's.
#[test]
fn a_wrong_key_of_the_far_end_is_reported_at_both_ends() {
    let bed = TunnelBed::new(LINK);
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    let right = bed.config(End::Boat, STATED, "", SITE);
    let wrong = right.replace(&bed.public_key("hub"), &bed.public_key("stranger"));
    let boat = bed.start(End::Boat, &wrong);
    hub.log().expect("handshake for a different public key");
    let logged = boat.log().expect("peer does not answer handshakes");
    assert!(
        logged.message().contains("`peer.hub.public_key`"),
        "{logged:?}"
    );
    for pep in [boat, hub] {
        pep.stop();
    }
}

#[test]
fn secrets_that_differ_are_reported_at_both_ends() {
    let bed = TunnelBed::new(LINK);
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ADMIN));
    let shared = bed.config(End::Boat, STATED, "", &format!("{SITE}\n{ADMIN}"));
    let alone = shared.lines().filter(|line| !line.starts_with("psk_file"));
    let boat = bed.start(End::Boat, &alone.collect::<Vec<_>>().join("\n"));
    let logged = boat
        .log()
        .expect("peer's handshake response does not verify");
    assert!(
        logged.message().contains("`peer.hub.psk_file`"),
        "{logged:?}"
    );
    let logged = hub.log().expect("rejects pepd's handshake responses");
    assert!(
        logged.message().contains("`peer.boat.psk_file`"),
        "{logged:?}"
    );
    assert!(
        boat.ask(&["status"])
            .contains("sends responses that do not verify")
    );
    assert!(hub.ask(&["status"]).contains("rejects handshake responses"));
    for pep in [boat, hub] {
        pep.stop();
    }
}

#[test]
fn flows_are_held_until_the_peer_is_there() {
    let bed = TunnelBed::new(LINK);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let boat = bed.config(End::Boat, STATED, "on_peer_loss = \"hold\"", SITE);
    let boat = bed.start(End::Boat, &boat);
    let mut stream = connect(&bed, Family::V4);
    stream.write_all(b"hello").expect("connected");
    boat.wait_counter("tunnel_flows_near", |flows| flows == 1);
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).expect("an echo");
    assert_eq!(&answer, b"hello");
    drop(stream);
    Running { boat, hub }.stop();
}

#[test]
fn flows_are_left_to_the_kernel_while_the_peer_is_down() {
    let bed = TunnelBed::new(LINK);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let boat = bed.config(End::Boat, STATED, "on_peer_loss = \"bypass\"", SITE);
    let boat = bed.start(End::Boat, &boat);
    // The rule appears a moment after pepd is ready.
    let listed = || {
        bed.host("boat")
            .run("nft", &["list", "chain", "inet", "pepd", "site_0"])
    };
    wait_until("the site to be bypassed", || {
        listed().contains("accept comment")
    });
    // On a busy machine a packet may still meet old rules after a list shows the new ones.
    wait_until("new flows to be forwarded", || {
        let before = boat.counter("flows_accepted");
        echo_once(&mut connect(&bed, Family::V4), b"forwarded");
        boat.counter("flows_accepted") == before
    });
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    let running = Running { boat, hub };
    running.wait_for_session();
    wait_until("the site to be tunnelled", || listed().contains("tproxy"));
    echo_once(&mut connect(&bed, Family::V4), b"in the tunnel");
    running.assert_in_tunnel(1);
    running.stop();
}

/// Silence for longer than `lost_after`.
#[test]
fn while_a_peer_is_silent_new_flows_are_split_and_open_ones_wait() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "lost_after = \"1s\"\ncarrier = \"udp\"", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut open = connect(&bed, Family::V4);
    echo_once(&mut open, b"hello");
    // Only the tunnel is blocked: split flows get through.
    bed.block_udp();
    running
        .boat
        .wait_counter("tunnel_peers_up", |peers| peers == 0);
    open.write_all(b"later").expect("connected");
    echo_once(&mut connect(&bed, Family::V4), b"split");
    running.assert_in_tunnel(1);
    bed.unblock_udp();
    let mut answer = [0; 5];
    open.read_exact(&mut answer).expect("an echo");
    assert_eq!(&answer, b"later");
    running.wait_for_session();
    echo_once(&mut connect(&bed, Family::V4), b"in the tunnel");
    running.assert_in_tunnel(2);
    drop(open);
    running.stop();
}

/// If the client's port is taken on the hub, the flow loses only its port.
#[test]
fn a_client_may_reuse_a_port() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let from = "10.77.0.1:40000".parse().expect("an address");
    for _ in 0..3 {
        let dial = Dial::to(bed.server_at(Family::V4, PORT)).from(from);
        let mut stream = bed.host("client").dial(&dial).expect("pepd answers");
        echo_once(&mut stream, b"hello");
        stream.shutdown(Shutdown::Write).expect("connected");
        assert_eq!(Ended::from_stream(&stream), Ended::EMPTY);
        // Else TIME_WAIT would keep the port.
        let reset = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        reset.expect("a socket");
        drop(stream);
        running.boat.wait_idle();
    }
    running.stop();
}

/// The TCP listener for peers uses a port that a site would use as well.
#[test]
fn a_hub_may_have_sites_of_its_own() {
    let bed = TunnelBed::new(LINK);
    let own = "[[site]]\nname = \"own\"\n[[site]]\nname = \"other\"\n";
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", own));
    let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, "", SITE));
    let running = Running { boat, hub };
    running.wait_for_session();
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    echo_once(&mut connect(&bed, Family::V4), b"hello");
    running.assert_in_tunnel(1);
    running.stop();
}

/// Like two hubs behind one name: both have reached the boat once, and both call it.
#[test]
fn a_second_hub_with_the_same_key_takes_no_session_while_the_first_is_heard() {
    let bed = TunnelBed::with_two_boats(LINK);
    let running = Running::start(&bed, "", SITE);
    let server = bed.host("server");
    let _echo = EchoServer::start(server.listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, b"before");
    let heard = running.hub.log().find(0, PATIENCE, |event| {
        event.message() == "peer heard at its address"
    });
    let at = heard.and_then(|event| event.field("address")?.as_str().map(str::to_owned));
    let other = format!(
        "{}[peer.boat]\npublic_key = \"{}\"\npsk_file = \"{}\"\nendpoint = \"{}\"\n",
        bed.config_without_peer(End::SecondBoat, "hub"),
        bed.public_key("boat"),
        bed.key("psk"),
        at.expect("an address"),
    );
    let other = bed.start(End::SecondBoat, &other);
    let warned = "handshake by the key of a peer that is heard at another address";
    running.boat.log().expect(warned);
    // More calls than one.
    thread::sleep(Duration::from_secs(5));
    echo_once(&mut stream, b"after");
    assert_eq!(other.counter("tunnel_peers_up"), 0);
    assert_eq!(running.hub.counter("tunnel_peers_up"), 1);
    other.stop();
    drop(stream);
    running.assert_in_tunnel(1);
    running.stop();
}

/// Programs with an IPv4 address, too, then try that at once (RFC 8305).
#[test]
fn what_the_hub_does_not_reach_is_refused_at_once_and_only_while_that_lasts() {
    const HUB: &str = "hub";
    let bed = TunnelBed::new(LINK);
    let _servers = [Family::V4, Family::V6]
        .map(|family| EchoServer::start(bed.host("server").listen(bed.server_at(family, PORT))));
    let running = Running::start_with(&bed, "", SITE, ADMIN);
    let dial = || bed.host("client").connect(bed.server_at(Family::V6, PORT));
    let exchange = |family| echo_once(&mut connect(&bed, family), b"by the hub");
    let status = || running.boat.ask(&["status"]);
    exchange(Family::V6);
    assert!(!status().contains("reaches no"));
    let own = bed.addresses_toward(HUB, "server")[1];
    for refused in 1..=2 {
        let begin = running.boat.log().position();
        let logged = |words: &str| {
            wait_for(words, || {
                let events = running.boat.log().events_since(begin);
                let mut events = events.iter();
                events
                    .any(|event| event.message().contains(words))
                    .then_some(())
            });
        };
        // Its addresses and routes of IPv6 go.
        bed.host(HUB).sysctl("net.ipv6.conf.all.disable_ipv6", "1");
        logged("peer reaches no IPv6 hosts");
        wait_until("the rules refuse IPv6", || dial().is_err());
        assert!(status().contains("reaches no IPv6 hosts"), "{}", status());
        exchange(Family::V4);
        let accepted = running.boat.counter("flows_accepted");
        let err = dial().expect_err("refused");
        assert_eq!(err.kind(), ErrorKind::ConnectionRefused);
        let is_counted = |count| count > refused;
        running
            .boat
            .wait_counter("syns_refused_unreached", is_counted);
        assert_eq!(running.boat.counter("flows_accepted"), accepted);
        bed.host(HUB).sysctl("net.ipv6.conf.all.disable_ipv6", "0");
        bed.host(HUB)
            .ip(&format!("address add {own}/64 dev server nodad"));
        logged("peer reaches IPv6 hosts again");
        wait_until("IPv6 goes through the tunnel", || dial().is_ok());
        exchange(Family::V6);
    }
    running.end();
}

/// The kernel forwards what comes by an interface that pepd does not know.
#[test]
fn a_renamed_interface_of_hosts_is_reported_as_unprotected_until_it_is_back() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start_with(&bed, "", SITE, ADMIN);
    let rename = |from: &str, to: &str| {
        for words in [
            format!("link set {from} down"),
            format!("link set {from} name {to}"),
            format!("link set {to} up"),
        ] {
            bed.host("boat").ip(&words);
        }
    };
    let missing = "missing interfaces of intercept.lan: client\n";
    assert!(!running.boat.ask(&["status"]).contains(missing));
    rename("client", "other");
    let logged = running.boat.log().expect("UNPROTECTED");
    assert_eq!(logged.level(), "ERROR");
    assert_eq!(
        (logged.text("interface"), logged.text("sites")),
        ("client".into(), "all".into())
    );
    assert!(running.boat.ask(&["status"]).contains(missing));
    rename("other", "client");
    running
        .boat
        .log()
        .expect("an interface of `intercept.lan` is back");
    assert!(!running.boat.ask(&["status"]).contains(missing));
    running.end();
}
