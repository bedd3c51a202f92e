//! Packets that are not split, end to end through two pepds: their content and headers on arrival,
//! and their treatment when an end is down.

mod boost;
mod boosters;
mod errors;
mod groups;
mod strangers;
mod stream;

use std::{fs, net::SocketAddr, thread, time::Duration};

use nix::sys::signal::Signal;
use pepd_tests::{
    bed::Family,
    payload::{Payload, receive},
    pep::Pep,
    raw::Packets,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_for, wait_until},
};

use self::stream::Stream;
use crate::{
    survive::{crash, next_worker},
    tunnel::{LINK, PORT, STATED},
};

/// A site: the port of its servers, and further keys.
type Site<S> = (u16, S);

const BOTH: [Family; 2] = [Family::V4, Family::V6];
const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn sites<S: AsRef<str>>(peer: &str, port: &str, sites: &[Site<S>]) -> String {
    let site = |(number, more): &Site<S>| {
        let more = more.as_ref();
        format!(
            "[[site]]\nname = \"site-{number}\"\nmode = \"packet\"\npeer = \"{peer}\"\n\
             match = {{ protocol = [\"tcp\", \"udp\"], {port} = {number} }}\n{more}\n"
        )
    };
    sites.iter().map(site).collect()
}

fn config_of_hub<S: AsRef<str>>(bed: &TunnelBed, back: &[Site<S>]) -> String {
    let more = format!("{ADMIN}{}", sites("boat", "sport", back));
    bed.config(End::Hub, STATED, "", &more)
}

fn config_of_boat<S: AsRef<str>>(bed: &TunnelBed, there: &[Site<S>]) -> String {
    let more = format!("{ADMIN}{}", sites("hub", "dport", there));
    bed.config(End::Boat, STATED, "lost_after = \"3s\"", &more)
}

/// Both ends.
struct BothEnds {
    boat: Pep,
    hub: Pep,
}

impl BothEnds {
    /// Starts both ends: `there` are the boat's sites toward servers, `back` the hub's sites for
    /// answers.
    fn start<S: AsRef<str>>(bed: &TunnelBed, there: &[Site<S>], back: &[Site<S>]) -> Self {
        let hub = bed.start(End::Hub, &config_of_hub(bed, back));
        let boat = bed.start(End::Boat, &config_of_boat(bed, there));
        for pep in [&boat, &hub] {
            pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
        }
        Self { boat, hub }
    }

    fn stop(mut self) {
        for pep in [&mut self.boat, &mut self.hub] {
            pep.assert_healthy();
        }
        self.boat.stop();
        self.hub.stop();
    }
}

/// Starts both ends with a site of the default port.
fn plain(bed: &TunnelBed) -> BothEnds {
    BothEnds::start(bed, &[(PORT, "")], &[(PORT, "")])
}

/// Returns properties of a datagram at the server: remaining hops, type of service, and source.
fn looks(bed: &TunnelBed, family: Family, service: u32) -> (u8, u8, SocketAddr) {
    let wire = Packets::new(&bed.host("server"));
    let mut stream = Stream::new(bed, family, PORT);
    let client = socket2::SockRef::from(&stream.client);
    match family {
        Family::V4 => client.set_tos_v4(service),
        Family::V6 => client.set_tclass_v6(service),
    }
    .expect("a socket");
    stream.until_one_comes("a datagram", 77);
    let from = stream.client.local_addr().expect("bound");
    let found = (&wire).find_map(|packet| match packet.first()? >> 4 {
        4 if packet[9] == 17 && packet[16..20] == octets(bed, family) => {
            Some((packet[8], packet[1]))
        }
        6 if packet[6] == 17 && packet[24..40] == octets(bed, family) => {
            Some((packet[7], packet[0] << 4 | packet[1] >> 4))
        }
        _ => None,
    });
    let (hops, class) = found.expect("it has come by a wire");
    // The answer comes from the host's own address.
    let (_, source) = answered(&stream);
    assert_eq!(source, bed.server_at(family, PORT));
    (hops, class, from)
}

fn octets(bed: &TunnelBed, family: Family) -> Vec<u8> {
    match bed.address("server", family) {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Makes the server answer; returns the client's datagram and its source.
fn answered(stream: &Stream) -> (Vec<u8>, SocketAddr) {
    let to = stream.client.local_addr().expect("bound");
    let mut buffer = [0; 100];
    let mut came = None;
    wait_until("an answer", || {
        let _ = stream.server.send_to(b"answer", to);
        thread::sleep(Duration::from_millis(5));
        came = stream.client.recv_from(&mut buffer).ok();
        came.is_some()
    });
    let (len, from) = came.expect("it has come");
    (buffer[..len].to_vec(), from)
}

#[test]
fn packets_come_out_as_the_kernel_would_have_forwarded_them() {
    let bed = TunnelBed::new(LINK);
    // Expedited forwarding with each ECN codepoint but CE, which links may set.
    let services = [0xb8, 0xb9, 0xba, 0];
    let look = |family: Family| services.map(|service| looks(&bed, family, service));
    let without = BOTH.map(look);
    let ends = plain(&bed);
    let with = BOTH.map(look);
    for (without, with) in without.iter().flatten().zip(with.iter().flatten()) {
        assert_eq!((without.0, without.1), (with.0, with.1));
        assert_eq!(without.2.ip(), with.2.ip());
    }
    for pep in [&ends.boat, &ends.hub] {
        let counters = pep.counters();
        assert!(counters["packets_taken"] >= 8, "{counters:?}");
        assert!(counters["packets_delivered"] >= 8, "{counters:?}");
        assert_eq!(counters["packets_passed"], 0, "{counters:?}");
    }
    ends.stop();
}

/// The kernel merges several datagrams of a flow, and splits them again.
#[test]
fn datagrams_that_come_at_once_come_as_they_were() {
    let bed = TunnelBed::new(LINK);
    let ends = plain(&bed);
    for family in BOTH {
        let mut stream = Stream::new(&bed, family, PORT);
        stream.until_one_comes("a datagram", 100);
        let lengths = [200, 200, 200, 90, 200, 1200, 1200, 8, 1200];
        let burst = stream.burst(lengths.into_iter().cycle().take(72));
        wait_until("all of a burst", || {
            stream.take();
            stream.missing(burst.clone()) == 0
        });
        assert!(stream.is_in_order(burst));
        assert_eq!(stream.wrong, 0);
    }
    ends.stop();
}

/// Returns the client's path MTU to the server, if it has learned one.
fn path_mtu(bed: &TunnelBed, family: Family) -> Option<usize> {
    let to = bed.address("server", family);
    let route = bed.host("client").ip(&format!("route get {to}"));
    let mut words = route.split_whitespace();
    words.find(|word| *word == "mtu")?;
    words.next()?.parse().ok()
}

#[test]
fn long_datagrams_come_whole_and_hosts_learn_what_fits() {
    let bed = TunnelBed::new(LINK);
    let ends = plain(&bed);
    for family in BOTH {
        let mut stream = Stream::new(&bed, family, PORT);
        // Linux lets no router fragment packets that fit the host's own link, so the host has to
        // learn the MTU.
        let mtu = wait_for("the path MTU to reach the host", || {
            stream.until_one_comes("a long one", 1440);
            path_mtu(&bed, family)
        });
        assert!((1280..1500).contains(&mtu), "{mtu}");
        for len in [1472, 4000, 20_000] {
            stream.until_one_comes("a long one", len);
        }
        assert_eq!(stream.wrong, 0);
    }
    assert!(ends.boat.counter("packets_taken") > 20);
    ends.stop();
}

/// Checks a connection that crosses end to end, with `len` bytes in each direction.
fn connection(bed: &TunnelBed, family: Family, len: u64, meanwhile: impl FnOnce()) {
    let listener = bed.host("server").listen(bed.server_at(family, PORT));
    let up = move || Payload::new(1, len);
    let down = move || Payload::new(2, len);
    let server = Server::start(listener, move |mut stream, _| {
        let found = receive(&mut stream).expect("a payload");
        assert_eq!(found, (len, up().sum()));
        down().send(&mut stream).expect("connected");
    });
    let client = bed.host("client").connect(bed.server_at(family, PORT));
    let mut client = client.expect("the server answers");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    thread::scope(|scope| {
        let transfer = scope.spawn(move || {
            up().send(&mut client).expect("connected");
            client
                .shutdown(std::net::Shutdown::Write)
                .expect("connected");
            receive(&mut client).expect("a payload")
        });
        meanwhile();
        let found = transfer.join().expect("does not panic");
        assert_eq!(found, (len, down().sum()));
    });
    drop(server);
}

#[test]
fn a_connection_stays_one_from_end_to_end() {
    let bed = TunnelBed::new(LINK);
    let ends = plain(&bed);
    for family in BOTH {
        connection(&bed, family, 1_000_000, || {});
    }
    for pep in [&ends.boat, &ends.hub] {
        let counters = pep.counters();
        assert_eq!(counters["flows_accepted"], 0, "{counters:?}");
        assert!(counters["packets_delivered"] > 1000, "{counters:?}");
        assert_eq!(counters["packets_passed"], 0, "{counters:?}");
    }
    ends.stop();
}

#[test]
fn connections_and_datagrams_outlive_crashes_and_restarts_of_either_end() {
    let bed = TunnelBed::new(LINK);
    let mut ends = plain(&bed);
    let mut stream = Stream::new(&bed, Family::V4, PORT);
    connection(&bed, Family::V4, 10_000_000, || {
        for round in 0..2 {
            for act in [crash as fn(&Pep), |pep: &Pep| pep.signal(Signal::SIGUSR2)] {
                for end in [&ends.boat, &ends.hub] {
                    let before = end.id();
                    act(end);
                    next_worker(end, before);
                    stream.until_one_comes("after the end of a process", 100);
                }
            }
            assert!(round < 2);
        }
        ends.boat.succeed();
        ends.hub.succeed();
        stream.until_one_comes("after a restart", 100);
    });
    let carried = |pep: &Pep| pep.counter("packets_delivered") + pep.counter("packets_taken");
    stream.until("packets to be carried", || {
        [&ends.boat, &ends.hub].iter().all(|pep| carried(pep) > 0)
    });
    assert_eq!(stream.wrong, 0);
    ends.stop();
}

#[test]
fn packets_pass_while_the_peer_is_down_and_are_carried_when_it_is_up() {
    let bed = TunnelBed::new(LINK);
    let mut ends = plain(&bed);
    let mut streams = BOTH.map(|family| Stream::new(&bed, family, PORT));
    for stream in &mut streams {
        stream.until_one_comes("a datagram", 100);
    }
    assert_eq!(ends.boat.counter("packets_passed"), 0);
    ends.hub.kill();
    for stream in &mut streams {
        stream.until_one_comes("what passes", 100);
        assert_eq!(stream.wrong, 0);
    }
    ends.hub = bed.start(End::Hub, &config_of_hub(&bed, &[(PORT, "")]));
    ends.boat
        .wait_counter("tunnel_peers_up", |peers| peers == 1);
    for stream in &mut streams {
        stream.until("the hub delivers", || {
            ends.hub.counter("packets_delivered") > 0
        });
        stream.until_one_comes("through the tunnel", 100);
        assert_eq!(stream.wrong, 0);
    }
    for pep in [&mut ends.boat, &mut ends.hub] {
        pep.assert_healthy();
    }
    ends.boat.stop();
    // The killed pepd has left its rules, and this one has taken them over.
    assert_eq!(ends.hub.terminate(), 0);
}

#[test]
fn a_peer_that_takes_no_packets_leaves_them_to_the_kernel() {
    let bed = TunnelBed::new(LINK);
    let ends = BothEnds::start(&bed, &[(PORT, "")], &[]);
    let mut stream = Stream::new(&bed, Family::V4, PORT);
    stream.until_one_comes("a datagram", 1000);
    assert_eq!(ends.boat.counter("packets_taken"), 0);
    ends.stop();
}

#[test]
fn packets_that_would_come_too_late_are_dropped() {
    const DEADLINE: Duration = Duration::from_millis(300);
    let bed = TunnelBed::new(LINK);
    let site = "packet = { deadline = \"300ms\", on_peer_loss = \"drop\" }";
    let ends = BothEnds::start(&bed, &[(PORT, site)], &[(PORT, "")]);
    let mut stream = Stream::new(&bed, Family::V4, PORT);
    stream.until_one_comes("a datagram", 100);
    bed.cut_link();
    stream.run(400, 100, Duration::from_millis(5));
    bed.restore_link();
    stream.until_one_comes("after the outage", 100);
    // Packets that are late at the peer's end count there; the rest is the delay of a busy machine.
    let slowest = stream.slowest();
    assert!(
        slowest < DEADLINE + Duration::from_millis(700),
        "{slowest:?}"
    );
    ends.stop();
}

#[test]
fn sites_of_packets_come_and_go_with_a_reload() {
    let bed = TunnelBed::new(LINK);
    let ends = BothEnds::start(
        &bed,
        &[(PORT, "")],
        &[(PORT, ""), (PORT + 1, ""), (PORT + 2, "")],
    );
    let mut streams = [PORT, PORT + 1].map(|port| Stream::new(&bed, Family::V4, port));
    for stream in &mut streams {
        stream.until_one_comes("a datagram", 100);
    }
    let rules = bed.host("boat").ip("rule list");
    for there in [
        &[(PORT + 2, ""), (PORT + 1, ""), (PORT, "")][..],
        &[(PORT + 1, "")],
        &[],
        &[(PORT, "")],
    ] {
        let before = ends.boat.id();
        fs::write(ends.boat.path("pepd.toml"), config_of_boat(&bed, there)).expect("writable");
        let config = ends.boat.path("pepd.toml");
        let config = config.to_str().expect("a path");
        ends.boat.ask(&["reload", "--config", config]);
        next_worker(&ends.boat, before);
        let numbers = [PORT, PORT + 1];
        for (stream, port) in streams.iter_mut().zip(numbers) {
            let expected = there.iter().any(|(taken, _)| *taken == port);
            let taken = || ends.boat.counter("packets_taken");
            ends.boat
                .wait_counter("tunnel_peers_up", |peers| peers == 1);
            let before = taken();
            stream.until_one_comes("a datagram", 100);
            if expected {
                stream.until("it is carried", || taken() > before);
            } else {
                assert_eq!(taken(), before, "{there:?}, {port}");
            }
        }
    }
    assert_eq!(bed.host("boat").ip("rule list"), rules);
    ends.stop();
}
