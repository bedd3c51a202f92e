//! A host that takes all it can get, and another that only wants to work.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::TcpRepair};
use parking_lot::Mutex;
use pepd_tests::{
    bed::{Bed, Family, LAN, Path, Place},
    echo::EchoServer,
    host::{Dial, Host},
    matrix::{matrix, matrix_pepd_only, shared},
    objects::{self, ObjectServer},
    payload::{Payload, receive},
    pep::{Pep, children},
    raw::{Segment, flood},
    serve::Server,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;

use crate::{
    custody::{HOLD, LINK, MIB, assert_done, sink, sink_at, upload, wait_down},
    support::{PORT, connect, echo_once},
    survive::crash,
    survive_tunnel::given,
    tunnel::{Running, SITE, connect as connect_in_tunnel},
};

/// The hostile host's address: on the client's machine, but another address and, in IPv6, another
/// /64.
fn hostile_at(bed: &Bed, port: u16) -> SocketAddr {
    SocketAddr::new(bed.family.address(5, 2), port)
}

/// Returns the name under which pepd distinguishes the hostile host.
fn hostile_name(bed: &Bed) -> String {
    match bed.family {
        Family::V4 => bed.family.address(5, 2).to_string(),
        Family::V6 => format!("{}/64", bed.family.address(5, 0)),
    }
}

/// Adds the hostile host to a bed.
fn add_hostile(bed: &Bed) {
    pepd_tests::bed::add_addresses(&bed.client, "eth0", Family::V4, &[(5, 2)]);
    bed.client
        .ip("-6 address add fd05::2/64 dev eth0 preferred_lft 0");
    bed.gateway.ip(&format!("route add 10.5.0.0/24 dev {LAN}"));
    bed.gateway.ip(&format!("-6 route add fd05::/64 dev {LAN}"));
}

fn echo_server(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

/// Connects from the hostile host.
fn hostile_connect(bed: &Bed) -> TcpStream {
    let dial = Dial::to(bed.at(Place::Server, PORT)).from(hostile_at(bed, 0));
    let stream = bed.client.dial(&dial).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Opens connections of the hostile host that have each had an echo.
fn hostile_flows(bed: &Bed, flows: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = hostile_connect(bed);
        echo_once(&mut stream, b"x");
        stream
    };
    (0..flows).map(open).collect()
}

const PER_HOST: &str =
    "[limits]\nflows = 100\nflows_per_host = 8\n[admin]\nsocket = \"admin.sock\"";

fn expect_logged(pep: &Pep) {
    pep.log().expect("host reached limits.flows_per_host");
}

/// The control: on the plain network all connections work.
#[test]
fn a_host_at_its_cap_passes_unaccelerated_and_others_do_not() {
    matrix(|bed| {
        add_hostile(bed);
        let echo = echo_server(bed);
        let pep = bed.start_with(PER_HOST);
        let mut hostile = hostile_flows(bed, 8);
        if let Some(pep) = &pep {
            // Until the set in the kernel is updated, further flows are accelerated.
            expect_logged(pep);
        }
        let mut passed = hostile_flows(bed, 6);
        let mut good = connect(bed);
        for stream in hostile.iter_mut().chain(&mut passed).chain([&mut good]) {
            echo_once(stream, b"all at once");
        }
        assert_eq!(echo.open(), 15);
        let Some(mut pep) = pep else { return };
        let counters = pep.counters();
        assert_eq!(counters["flows_accepted"], 9, "{counters:?}");
        assert_eq!(counters["syns_passed_hosts"], 6, "{counters:?}");
        assert_eq!(counters["hosts_at_cap"], 1, "{counters:?}");
        assert_eq!(counters["host_cap_reached"], 1, "{counters:?}");
        assert_eq!(counters["gate_closed"], 0, "{counters:?}");
        shown_in_status(bed, &pep);
        drop(hostile);
        wait_until("the host's flows to be accelerated", || {
            let before = pep.counter("flows_accepted");
            hostile_flows(bed, 1);
            pep.counter("flows_accepted") > before
        });
        // Flows that passed stay unaccelerated.
        for stream in passed.iter_mut().chain([&mut good]) {
            echo_once(stream, b"still there");
        }
        pep.assert_healthy();
    });
}

fn shown_in_status(bed: &Bed, pep: &Pep) {
    let status: Value = serde_json::from_str(&pep.ask(&["status", "--json"])).expect("JSON");
    let limits = &status["limits"];
    let expected = serde_json::json!([{"host": hostile_name(bed), "flows": 8}]);
    assert_eq!(limits["hosts_at_cap"], expected, "{limits}");
    assert_eq!(limits["flows_per_host"], 8, "{limits}");
    let text = pep.ask(&["status"]);
    assert!(text.contains(&hostile_name(bed)), "{text}");
}

/// A burst is faster than updates of the packet filter: pepd serves and counts flows that the
/// kernel has answered by then.
#[test]
fn a_burst_beyond_the_cap_loses_no_connection() {
    const BURST: usize = 60;
    matrix_pepd_only(|bed| {
        add_hostile(bed);
        let echo = echo_server(bed);
        let mut pep = bed.start_with(PER_HOST).expect("not direct");
        let dial = Dial::to(bed.at(Place::Server, PORT)).from(hostile_at(bed, 0));
        let begin = || (0..BURST).map(|_| dial.connect_here()).collect();
        let burst: Result<Vec<_>, _> = bed.client.enter(begin);
        let mut burst = burst.expect("passed or answered");
        for stream in &mut burst {
            stream.write_all(b"x").expect("connected");
        }
        for stream in &mut burst {
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.read_exact(&mut [0]).expect("an answer");
        }
        assert_eq!(echo.open(), BURST);
        expect_logged(&pep);
        let counters = pep.counters();
        let (accepted, beyond) = (counters["flows_accepted"], counters["host_cap_exceeded"]);
        assert_eq!(accepted, 8 + beyond, "{counters:?}");
        // Retransmitted SYNs are counted again.
        assert!(
            accepted + counters["syns_passed_hosts"] >= BURST as u64,
            "{counters:?}"
        );
        echo_once(&mut connect(bed), b"another host");
        pep.wait_counter("flows_accepted", |now| now == accepted + 1);
        pep.assert_healthy();
    });
}

/// The next process counts the flows it has taken over, but not the SYNs that passed.
#[test]
fn a_host_is_at_its_cap_after_a_crash_too() {
    matrix_pepd_only(|bed| {
        add_hostile(bed);
        let _echo = echo_server(bed);
        let pep = bed.start_with(PER_HOST).expect("not direct");
        let mut hostile = hostile_flows(bed, 8);
        expect_logged(&pep);
        crash(&pep);
        pep.wait_counter("flows_recovered", |flows| flows == 8);
        pep.wait_counter("hosts_at_cap", |hosts| hosts == 1);
        wait_until("the host's new flows to pass", || {
            let before = pep.counter("syns_passed_hosts");
            hostile_flows(bed, 1);
            pep.counter("syns_passed_hosts") > before
        });
        let accepted = pep.counter("flows_accepted");
        hostile.extend(hostile_flows(bed, 3));
        assert_eq!(pep.counter("flows_accepted"), accepted);
        echo_once(&mut connect(bed), b"another host");
        pep.wait_counter("flows_accepted", |now| now == accepted + 1);
        for stream in &mut hostile {
            echo_once(stream, b"taken over");
        }
    });
}

/// Returns SYNs of the hostile host that are never completed: from all of its ports to two of the
/// server's.
fn half_open(bed: &Bed) -> impl Iterator<Item = Segment> + Send + use<> {
    let [from, to] = [hostile_at(bed, 0), bed.at(Place::Server, PORT)];
    let ports = (0..2).flat_map(|more| (1024..=u16::MAX).map(move |port| (more, port)));
    ports.map(move |(more, port)| {
        let from = SocketAddr::new(from.ip(), port);
        Segment::opening(from, SocketAddr::new(to.ip(), to.port() + more))
    })
}

/// Stops the host from resetting answers to SYNs that its kernel did not send.
fn make_mute(bed: &Bed) {
    make_mute_host(&bed.client);
}

fn make_mute_host(host: &Host) {
    host.nft(
        "table inet mute {
            chain output {
                type filter hook output priority 0;
                ip saddr 10.5.0.2 tcp flags rst drop
                ip daddr 10.5.0.2 tcp flags rst drop
                ip6 saddr fd05::2 tcp flags rst drop
            }
        }",
    );
}

/// Sends more SYNs than any queue or set of the kernel holds, while other hosts continue and begin
/// flows.
#[test]
fn a_flood_of_syns_from_one_host_stops_nobody() {
    matrix_pepd_only(|bed| {
        add_hostile(bed);
        make_mute(bed);
        let _echo = echo_server(bed);
        let limits = "[limits]\nheld = 256\nheld_per_source = 64\nheld_per_destination = 192\nheld_rate_per_source = 500";
        let mut pep = bed.start_with(limits).expect("not direct");
        let mut healthy = connect(bed);
        echo_once(&mut healthy, b"before");
        let (gateway, done): (IpAddr, _) = (bed.family.address(1, 1), AtomicBool::new(false));
        let begun = thread::scope(|scope| {
            let flooding = scope.spawn(|| {
                let mut sent = 0;
                while !done.load(Ordering::SeqCst) {
                    sent += flood(&bed.client, gateway, half_open(bed));
                }
                sent
            });
            // However the test ends.
            let stop = Stop(&done);
            let mut begun = 0;
            while begun < 20 || !flooded(bed) {
                echo_once(&mut connect(bed), b"a new flow");
                echo_once(&mut healthy, b"an open flow");
                begun += 1;
            }
            drop(stop);
            let sent = flooding.join().expect("reported");
            assert!(sent > 65_536, "{sent}");
            begun
        });
        let counters = pep.counters();
        let accepted = counters["flows_accepted"];
        assert!(
            accepted <= begun + 1,
            "{accepted} flows accepted, {begun} begun by the test"
        );
        for short in [
            "descriptors_short",
            "memory_short",
            "gate_closed",
            "hosts_at_cap",
        ] {
            assert_eq!(counters[short], 0, "{short}: {counters:?}");
        }
        if bed.path == Path::Defer {
            assert!(counters["syns_held"] <= 64 + 1, "{counters:?}");
            assert!(counters["syns_passed_rate"] > 0, "{counters:?}");
        }
        assert!(pep.resident_bytes() < 100 << 20, "{}", pep.resident_bytes());
        pep.assert_healthy();
    });
}

/// With held SYNs, a host gets no more than its share of pepd's time; other hosts lose nothing.
#[test]
fn a_host_that_opens_too_many_at_a_time_passes_unaccelerated_and_others_do_not() {
    matrix_pepd_only(|bed| {
        if bed.path != Path::Defer {
            return;
        }
        add_hostile(bed);
        let _echo = echo_server(bed);
        let limits = "[limits]\nheld_rate = 1000\nheld_rate_per_source = 2";
        let mut pep = bed.start_with(limits).expect("not direct");
        wait_until("the host to open too many", || {
            hostile_flows(bed, 8);
            pep.counter("syns_passed_rate") > 0
        });
        let accepted = pep.counter("flows_accepted");
        echo_once(&mut connect(bed), b"another host");
        pep.wait_counter("flows_accepted", |now| now > accepted);
        pep.assert_healthy();
    });
}

/// A host with many addresses.
#[test]
fn a_flood_from_many_addresses_passes_unaccelerated_and_stops_nobody() {
    const HOSTS: u16 = 250;
    matrix_pepd_only(|bed| {
        if bed.path != Path::Defer {
            return;
        }
        add_hostile(bed);
        make_mute(bed);
        let _echo = echo_server(bed);
        let limits = "[limits]\nheld_rate = 50\nheld_rate_per_source = 10";
        let mut pep = bed.start_with(limits).expect("not direct");
        let to = bed.at(Place::Server, PORT);
        let segments = (0..4).flat_map(|port| (0..HOSTS).map(move |host| (1024 + port, host)));
        let segments = segments.map(|(port, host)| {
            let from = match bed.family {
                Family::V4 => IpAddr::from([10, 5, 0, 3 + host as u8]),
                Family::V6 => IpAddr::from([0xfd05, 0, 0, host, 0, 0, 0, 3]),
            };
            Segment::opening(SocketAddr::new(from, port), to)
        });
        flood(&bed.client, bed.family.address(1, 1), segments);
        echo_once(&mut connect(bed), b"a host that does no harm");
        let passed = pep.counter("syns_passed_rate");
        assert!(passed > 0, "{:?}", pep.counters());
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

/// Returns whether so many SYNs have come in that the set of recent ones is full.
fn flooded(bed: &Bed) -> bool {
    crate::support::counter(&bed.gateway, "pepd", "syns") > 80_000
}

/// A crash must not write keys and hosts' bytes to a disk.
#[test]
fn no_process_of_pepd_leaves_a_core_dump() {
    matrix_pepd_only(|bed| {
        let mut pep = bed.start().expect("not direct");
        let mut all = vec![pep.supervisor()];
        all.extend(children(pep.supervisor()));
        all.push(pep.id());
        for process in all {
            let limits = std::fs::read_to_string(format!("/proc/{process}/limits"));
            let limits = limits.expect("it runs");
            let mut lines = limits.lines();
            let core = lines.find_map(|line| line.strip_prefix("Max core file size"));
            let soft = core.and_then(|core| core.split_whitespace().next());
            assert_eq!(soft, Some("0"), "{limits}");
        }
        pep.assert_healthy();
    });
}

/// Unread downloads leave memory for other flows.
#[test]
fn a_slow_reader_takes_its_part_of_memory_only() {
    const MEMORY: u64 = 16 << 20;
    const SIZE: u64 = 4_000_000;
    const UNREAD: u64 = 24;
    matrix_pepd_only(|bed| {
        add_hostile(bed);
        let _objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let limits = format!("[limits]\nflows = 100\nmemory = {MEMORY}");
        let mut pep = bed.start_with(&limits).expect("not direct");
        let ask = |number| {
            let mut stream = hostile_connect(bed);
            objects::get(&mut stream, number, 100 * SIZE).expect("connected");
            stream
        };
        let unread: Vec<_> = (0..UNREAD).map(ask).collect();
        let mut last = 0;
        wait_until("no more to be taken", || {
            // Bytes are counted once a second.
            thread::sleep(Duration::from_millis(1100));
            let now = pep.counter("down_bytes");
            std::mem::replace(&mut last, now) == now && now > UNREAD * 65_536
        });
        // Growing rings leave a quarter, apart from the initial rings of flows.
        let initial = 2 * 65_536 * (UNREAD + pep.threads());
        let bytes = pep.counter("ring_bytes");
        let most = (MEMORY * 3 / 4).max(initial);
        assert!(bytes <= most, "{bytes} of {most}");
        for seed in 0..3 {
            let mut stream = connect(bed);
            objects::get(&mut stream, seed, SIZE).expect("connected");
            let received = receive(&mut stream).expect("the download");
            assert_eq!(received, (SIZE, Payload::new(seed, SIZE).sum()));
            assert!(pep.counter("ring_bytes") <= MEMORY);
        }
        assert!(pep.resident_bytes() < 150 << 20, "{}", pep.resident_bytes());
        drop(unread);
        pep.assert_healthy();
    });
}

/// Returns the bytes that connections of a machine have received unread, once it gets no more.
fn unread_at_last(host: &Host, at_least: u64) -> u64 {
    let mut last = 0;
    wait_until("no more to be received", || {
        thread::sleep(Duration::from_millis(1100));
        let now = host.unread_bytes();
        std::mem::replace(&mut last, now) == now && now >= at_least
    });
    last
}

const SMALL_MEMORY: &str = "[limits]\nflows = 400\nmemory = \"64MiB\"\n";
/// Bytes of the kernel that the legs of one host or peer may take there: their part, and for each
/// what the kernel starts with.
const fn legs_most(flows: u64) -> u64 {
    (12 << 20) + flows * (128 << 10)
}

/// The kernel's memory for downloads that a host does not read is bounded.
#[test]
fn unread_downloads_of_a_host_take_its_part_of_the_kernels_memory_only() {
    const UNREAD: u64 = 200;
    matrix_pepd_only(|bed| {
        add_hostile(bed);
        let _objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed.start_with(SMALL_MEMORY).expect("not direct");
        let ask = |number| {
            let dial = Dial::to(bed.at(Place::Server, PORT));
            let dial = dial.from(hostile_at(bed, 0)).receive_buffer(4096);
            let mut stream = bed.client.dial(&dial).expect("the server listens");
            objects::get(&mut stream, number, 1 << 30).expect("connected");
            stream
        };
        let unread: Vec<_> = (0..UNREAD).map(ask).collect();
        let bytes = unread_at_last(&bed.gateway, UNREAD * 20_000);
        println!("{bytes} bytes of {UNREAD} flows");
        assert!(bytes <= legs_most(UNREAD), "{bytes}");
        let mut stream = connect(bed);
        objects::get(&mut stream, 1, 4_000_000).expect("connected");
        let received = receive(&mut stream).expect("the download");
        assert_eq!(received.0, 4_000_000);
        drop(unread);
        pep.assert_healthy();
    });
}

/// So is a hub's for the flows of a peer whose host does not read.
#[test]
fn unread_downloads_of_a_peer_take_its_part_of_the_kernels_memory_only() {
    const UNREAD: u64 = 100;
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let running = Running::start_with(&bed, "", SITE, SMALL_MEMORY);
        let to = bed.server_at(Family::V4, crate::tunnel::PORT);
        let _objects = ObjectServer::start(bed.host("server").listen(to));
        let client = bed.host("client");
        let ask = |number| {
            let dial = Dial::to(to).receive_buffer(4096);
            let mut stream = client.dial(&dial).expect("the server listens");
            objects::get(&mut stream, number, 1 << 30).expect("connected");
            stream
        };
        let unread: Vec<_> = (0..UNREAD).map(ask).collect();
        let bytes = unread_at_last(&bed.host("hub"), UNREAD * 20_000);
        println!("{bytes} bytes of {UNREAD} flows");
        assert!(bytes <= legs_most(UNREAD), "{bytes}");
        drop(unread);
        running.stop_after_errors();
    });
}

/// Uploads of a host to a server that reads nothing take no more than its part of the far end's
/// credit.
#[test]
fn what_a_server_leaves_unread_of_one_host_stops_no_other_host_in_the_tunnel() {
    const UNREAD: u64 = 100;
    shared(|| {
        let bed = TunnelBed::new("rate=100mbit,delay=10ms");
        let (_server, taken) = counting_server(&bed);
        add_second_host(&bed);
        let running = Running::start_with(&bed, "", SITE, SMALL_MEMORY);
        let client = bed.host("client");
        let hostile = "10.5.0.2:0".parse().expect("an address");
        let mute = bed.server_at(Family::V4, crate::tunnel::PORT + 1);
        let _listener = bed.host("server").listen(mute);
        let connect = |_| {
            let stream = client.dial(&Dial::to(mute).from(hostile));
            let stream = stream.expect("pepd answers");
            stream.set_nonblocking(true).expect("a socket");
            stream
        };
        let mut unread: Vec<_> = (0..UNREAD).map(connect).collect();
        wait_until("the hub to hold the uploads", || {
            for stream in &mut unread {
                let _ = stream.write(&[7; 65_536]);
            }
            running.hub.counter("tunnel_flows_held") >= UNREAD / 2
        });
        for number in 1..=3 {
            let mut good = connect_in_tunnel(&bed, Family::V4);
            let ours = good.local_addr().expect("a socket").ip();
            Payload::new(number, 2_000_000)
                .send(&mut good)
                .expect("connected");
            drop(good);
            wait_until("the upload to arrive", || {
                *taken.lock().entry(ours).or_default() == number * 2_000_000
            });
        }
        drop(unread);
        drop(running);
    });
}

/// Connections of a host that read nothing take no more than its part of a tunnel's credit: those
/// of others go on.
#[test]
fn what_a_host_leaves_unread_stops_no_other_host_in_the_tunnel() {
    const UNREAD: u64 = 100;
    shared(|| {
        let bed = TunnelBed::new("rate=100mbit,delay=10ms");
        add_second_host(&bed);
        let running = Running::start_with(&bed, "", SITE, SMALL_MEMORY);
        let to = bed.server_at(Family::V4, crate::tunnel::PORT);
        let _objects = ObjectServer::start(bed.host("server").listen(to));
        let client = bed.host("client");
        let hostile = "10.5.0.2:0".parse().expect("an address");
        let ask = |number| {
            let dial = Dial::to(to).from(hostile).receive_buffer(4096);
            let mut stream = client.dial(&dial).expect("the server listens");
            objects::get(&mut stream, number, 1 << 30).expect("connected");
            stream
        };
        let mut unread: Vec<_> = (0..UNREAD).map(ask).collect();
        running
            .boat
            .wait_counter("tunnel_flows_held", |held| held >= UNREAD / 2);
        for number in 0..3 {
            let mut stream = connect_in_tunnel(&bed, Family::V4);
            objects::get(&mut stream, number, 4_000_000).expect("connected");
            let received = receive(&mut stream).expect("the download");
            assert_eq!(received.0, 4_000_000);
        }
        // A host that reads again has every byte.
        for stream in &mut unread[..2] {
            let mut begun = vec![0; 3_000_000];
            stream.read_exact(&mut begun).expect("the download goes on");
        }
        drop(unread);
        running.stop_after_errors();
    });
}

/// Returns the bytes held for a client, in memory.
fn held_for(pep: &Pep, client: IpAddr) -> Vec<u64> {
    let shown: Value = serde_json::from_str(&pep.ask(&["flows", "--json"])).expect("JSON");
    let flows = shown["flows"].as_array().expect("a list");
    let of_client = flows.iter().filter(|flow| {
        let address = flow["client"].as_str().expect("text");
        address.starts_with(&format!("{client}:"))
    });
    let held = of_client.map(|flow| flow["memory"][0].as_u64().expect("a number"));
    held.collect()
}

/// A host fills custody with many flows while the link is down. Another host's upload is still
/// accepted completely, and arrives when the link is up, although the first host's server never
/// answers.
#[test]
fn a_host_that_fills_custody_leaves_a_share_to_others() {
    const MEMORY: u64 = 16 * MIB;
    const LEN: u64 = 600_000;
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let more = format!("{SITE}[custody]\nmemory = {MEMORY}\n[admin]\nsocket = \"admin.sock\"");
        let running = Running::start(&bed, HOLD, &more);
        let _server = sink(&bed, LEN);
        let (client, boat) = (bed.host("client"), bed.host("boat"));
        client.ip("address add 10.5.0.2/24 dev boat");
        boat.ip("route add 10.5.0.0/24 dev client");
        bed.cut_link();
        wait_down(&running);
        let hostile: SocketAddr = "10.5.0.2:0".parse().expect("an address");
        let to = bed.server_at(Family::V4, crate::tunnel::PORT);
        let hoards: Vec<_> = (0..40)
            .map(|_| {
                let stream = client.dial(&Dial::to(to).from(hostile));
                let stream = stream.expect("pepd answers");
                stream.set_nonblocking(true).expect("a socket");
                stream
            })
            .collect();
        let mut last = 0;
        wait_until("the host to fill its share of custody", || {
            let piece = [7; 65_536];
            for mut stream in &hoards {
                while stream.write(&piece).is_ok() {}
            }
            // The host tries again every second.
            thread::sleep(Duration::from_millis(1100));
            let held = held_for(&running.boat, hostile.ip()).iter().sum();
            std::mem::replace(&mut last, held) == held && held > MEMORY / 2
        });
        // No other host has a flow: this one gets 8/9.
        let hoarded = running.boat.counter("custody_memory_bytes");
        assert!(
            (MEMORY * 7 / 9..=MEMORY * 8 / 9).contains(&hoarded),
            "{hoarded}"
        );
        let mut good = connect_in_tunnel(&bed, Family::V4);
        upload(&mut good, LEN);
        let address = good.local_addr().expect("a socket").ip();
        wait_until("the upload to be in custody", || {
            held_for(&running.boat, address) == [LEN]
        });
        assert!(running.boat.counter("custody_memory_bytes") <= MEMORY);
        bed.restore_link();
        assert_done(&mut good);
    });
}

/// Starts a server that receives everything, and counts bytes by host.
fn counting_server(bed: &TunnelBed) -> (Server, Arc<Mutex<HashMap<IpAddr, u64>>>) {
    let taken: Arc<Mutex<HashMap<IpAddr, u64>>> = Arc::default();
    let counts = Arc::clone(&taken);
    let to = bed.server_at(Family::V4, crate::tunnel::PORT);
    let server = Server::start(bed.host("server").listen(to), move |mut stream, _| {
        let host = stream.peer_addr().expect("connected").ip();
        let mut buffer = [0; 16_384];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            *counts.lock().entry(host).or_default() += count as u64;
        }
    });
    (server, taken)
}

/// Adds 10.5.0.2 to the client of a tunnel, and routes to it.
fn add_second_host(bed: &TunnelBed) {
    bed.host("client").ip("address add 10.5.0.2/24 dev boat");
    bed.host("boat").ip("route add 10.5.0.0/24 dev client");
    for name in ["hub", "server"] {
        // The client's route to that network.
        let to = bed.address("client", Family::V4);
        let route = bed.host(name).ip(&format!("route get {to}"));
        let route = route.split_whitespace().skip(1).take(4);
        let route = route.collect::<Vec<_>>().join(" ");
        bed.host(name).ip(&format!("route add 10.5.0.0/24 {route}"));
    }
}

/// A host with twenty flows gets as much of a tunnel as another with one.
#[test]
fn many_flows_of_a_host_get_no_more_of_a_tunnel_than_one_of_another() {
    const LEN: u64 = 2_000_000;
    shared(|| {
        let bed = TunnelBed::new(crate::tunnel::LINK);
        let (_server, taken) = counting_server(&bed);
        let client = bed.host("client");
        add_second_host(&bed);
        let _running = Running::start(&bed, "", SITE);
        let hostile: SocketAddr = "10.5.0.2:0".parse().expect("an address");
        let to = bed.server_at(Family::V4, crate::tunnel::PORT);
        let of_host = |host: IpAddr| *taken.lock().entry(host).or_default();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let stop = Stop(&done);
            for _ in 0..20 {
                let stream = client.dial(&Dial::to(to).from(hostile));
                let mut stream = stream.expect("pepd answers");
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        stream.write_all(&[7; 65_536]).expect("connected");
                    }
                });
            }
            wait_until("the link to be full", || of_host(hostile.ip()) > LEN);
            let mut good = connect_in_tunnel(&bed, Family::V4);
            let ours = good.local_addr().expect("a socket").ip();
            let before = of_host(hostile.ip());
            let sending = scope.spawn(move || Payload::new(1, LEN).send(&mut good));
            wait_until("the upload to arrive", || of_host(ours) == LEN);
            let theirs = of_host(hostile.ip()) - before;
            sending.join().expect("no panic").expect("connected");
            drop(stop);
            // Bytes in flight, and the moment until the link is shared, belong to the first host.
            println!("{theirs} bytes of the other host beside {LEN}");
            assert!(
                theirs < 2 * LEN,
                "{theirs} bytes of the other host beside {LEN}"
            );
        });
    });
}

/// Ends the use of a connection without a word to its other end, which keeps it open: so a test has
/// more connections than descriptors. The machine must not reset them ([`make_mute`]).
fn abandon(stream: TcpStream) {
    setsockopt(&stream, TcpRepair, &1).expect("root may");
    drop(stream);
}

/// Starts a server that answers a byte and abandons the connection.
fn abandoning_server(bed: &TunnelBed, port: u16) -> Server {
    let listener = bed.host("server").listen(bed.server_at(Family::V4, port));
    Server::start(listener, |mut stream, _| {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {
            abandon(stream);
        }
    })
}

/// A host keeps thousands of flows open, most of which pass, since it is at its cap; the flows of
/// another host are accelerated and lose nothing. `PEPD_TEST_FLOWS` is their number: `.ci/night`
/// has 20,000, under the limits of the defaults.
#[test]
fn thousands_of_flows_of_one_host_harm_no_other() {
    const FEW: u64 = 1200;
    const THREADS: u64 = 8;
    const LEN: u64 = 3_000_000;
    shared(|| {
        let flows = given("PEPD_TEST_FLOWS", FEW);
        let bed = TunnelBed::new(LINK);
        let (client, server) = (bed.host("client"), bed.host("server"));
        add_second_host(&bed);
        for host in [&client, &server] {
            make_mute_host(host);
        }
        let limits = if flows > FEW {
            ""
        } else {
            "[limits]\nflows = 1024\n"
        };
        let more = format!("{SITE}{limits}[admin]\nsocket = \"admin.sock\"\n");
        let mut running = Running::start(&bed, "", &more);
        let cap = if flows > FEW { 2048 } else { 256 };
        let _abandoning = abandoning_server(&bed, crate::tunnel::PORT + 1);
        let _echo =
            EchoServer::start(server.listen(bed.server_at(Family::V4, crate::tunnel::PORT)));
        let mut good = connect_in_tunnel(&bed, Family::V4);
        echo_once(&mut good, b"before");
        let before = running.boat.resident_bytes();
        let to = bed.server_at(Family::V4, crate::tunnel::PORT + 1);
        let opened = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (client, opened) = (&client, &opened);
                scope.spawn(move || {
                    for number in 0..flows / THREADS {
                        // Ports that the kernel chooses would be those of abandoned connections.
                        let port = 1025 + thread * (flows / THREADS) + number;
                        let from: SocketAddr = format!("10.5.0.2:{port}").parse().expect("ours");
                        let stream = client.dial(&Dial::to(to).from(from));
                        let mut stream = stream.expect("answered or passed");
                        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
                        echo_once(&mut stream, b"x");
                        abandon(stream);
                        opened.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while opened.load(Ordering::SeqCst) < flows / THREADS * THREADS {
                echo_once(&mut good, &[7; 5000]);
                assert!(!thread::panicking());
                echo_once(&mut connect_in_tunnel(&bed, Family::V4), b"a new flow");
            }
        });
        let counters = running.boat.counters();
        println!("{flows} flows of one host: {counters:?}");
        let open = counters["flows_open"];
        // A burst may be faster than the packet filter.
        assert!((cap..cap + 64).contains(&open), "{open} open flows");
        assert_eq!(counters["hosts_at_cap"], 1, "{counters:?}");
        assert!(counters["syns_passed_hosts"] > flows / 2, "{counters:?}");
        for short in ["descriptors_short", "memory_short", "gate_closed"] {
            assert_eq!(counters[short], 0, "{short}: {counters:?}");
        }
        let lines = running.boat.log().events_since(0);
        let lines = lines.iter().filter(|line| {
            let message = line.message();
            message.contains("host reached limits.flows_per_host")
        });
        assert_eq!(lines.count(), 1);
        let grown = running.boat.resident_bytes().saturating_sub(before);
        println!("{} KiB for a flow", grown / cap / 1024);
        assert!(grown < (40 << 20) + cap * 160_000, "{grown} bytes");
        // Other hosts have accelerated flows, whole.
        let near = running.boat.counter("tunnel_flows_near");
        let _upload = sink_at(&bed, LEN, crate::tunnel::PORT + 2);
        let to = bed.server_at(Family::V4, crate::tunnel::PORT + 2);
        let mut stream = client.connect(to).expect("pepd answers");
        upload(&mut stream, LEN);
        assert_done(&mut stream);
        assert_eq!(running.boat.counter("tunnel_flows_near"), near + 1);
        echo_once(&mut good, b"after");
        running.boat.assert_healthy();
        running.hub.assert_healthy();
    });
}
