//! Flows in tunnels outlive the processes at both ends, whichever ends, and at any time.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    outcome::Ended,
    payload::{Payload, receive, run_seed, size},
    pep::Pep,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_until},
};
use splitmix::SplitMix64;

use crate::{
    churn::{self, Flows, send},
    support::echo_once,
    survive::{GROWN, crash, upgrade},
    tunnel::{LINK, PORT, Running, SITE, STATED, connect},
};

const WINKS: &str = "wink=p=0.4,i=500ms";
/// The maximum bytes of a flow per direction.
const MOST: u64 = 150_000;

fn len(id: u64, up: bool) -> u64 {
    size(id * 2 + u64::from(up), MOST)
}

fn payload(id: u64, up: bool) -> Payload {
    Payload::new(id * 2 + u64::from(up), len(id, up))
}

fn take(stream: &TcpStream, id: u64, up: bool) -> io::Result<()> {
    let (found, expected) = (receive(&mut &*stream)?, payload(id, up).sum());
    if found == (len(id, up), expected) {
        return Ok(());
    }
    let (came, of) = (found.0, len(id, up));
    Err(io::Error::other(format!("{came} of {of} bytes, or others")))
}

/// Sends and receives, at once or one after the other.
fn be_host(stream: &TcpStream, id: u64, is_client: bool) -> io::Result<()> {
    let sent = || payload(id, is_client);
    if id.is_multiple_of(3) {
        if is_client {
            send(stream, sent())?;
            return take(stream, id, false);
        }
        take(stream, id, true)?;
        return send(stream, sent());
    }
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(stream, sent()));
        take(stream, id, !is_client)?;
        sending.join().expect("does not panic")
    })
}

/// Flows with bytes in both directions that both ends check.
pub struct BothWays;

impl Flows for BothWays {
    fn kind(&self, id: u64) -> String {
        format!("{} and {} bytes", len(id, true), len(id, false))
    }

    fn client(&self, id: u64, stream: TcpStream) -> io::Result<()> {
        be_host(&stream, id, true)
    }

    fn server(&self, id: u64, stream: &TcpStream) -> io::Result<()> {
        be_host(stream, id, false)
    }
}

/// Runs `flows` at a time during an action. All of them must be complete.
fn under_load(bed: &TunnelBed, flows: usize, act: impl FnOnce()) {
    // With many flows the link is full, and each waits for much of the time.
    let patience = PATIENCE * (1 + flows as u32 / 20);
    let connect = || Ok(connect(bed, Family::V4));
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    churn::under_load(BothWays, flows, patience, (connect, listener), act);
}

fn assert_nothing_lost(running: Running) {
    for pep in [&running.boat, &running.hub] {
        let counters = pep.counters();
        let ended = ["ended_error", "ended_expired", "ended_peer_restarted"];
        assert_eq!(counters["flows_lost_at_restart"], 0, "{counters:?}");
        assert!(
            ended.iter().all(|name| counters[*name] == 0),
            "{counters:?}"
        );
        pep.wait_idle();
    }
    running.boat.stop();
    running.hub.stop();
}

/// Returns a number from the environment, or a default.
pub fn given(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().expect("a number"))
}

/// Crashes at random moments, of either end and of both. `PEPD_TEST_CRASHES` overrides their
/// number, and `PEPD_TEST_FLOWS` the flows at a time.
fn crash_at_random(link: &str, flows: u64, crashes: u64) {
    let bed = TunnelBed::new(link);
    let running = Running::start(&bed, "", SITE);
    let mut random = SplitMix64::new(run_seed());
    let flows = given("PEPD_TEST_FLOWS", flows) as usize;
    let crashes = given("PEPD_TEST_CRASHES", crashes);
    under_load(&bed, flows, || {
        for round in 0..crashes {
            let pause = Duration::from_micros(random.below(500_000));
            thread::sleep(GROWN + pause);
            match round % 3 {
                0 => crash(&running.boat),
                1 => crash(&running.hub),
                _ => {
                    crash(&running.hub);
                    thread::sleep(Duration::from_micros(random.below(300_000)));
                    crash(&running.boat);
                }
            }
        }
        running.wait_for_session();
    });
    assert!(running.boat.counter("tunnel_flows_resumed") > 0);
    assert!(running.hub.counter("flows_recovered") > 0);
    assert_nothing_lost(running);
}

#[test]
fn no_flow_in_a_tunnel_is_lost_by_crashes_of_either_end_at_any_moment() {
    crash_at_random(LINK, 50, 6);
}

/// Reports and stream openings are lost as well, so each end knows less of the other.
#[test]
fn nor_is_any_during_short_outages() {
    crash_at_random(&format!("{LINK},{WINKS}"), 20, 9);
}

/// Upgrades, and restarts as by systemd, of either end in turn.
#[test]
fn nor_is_any_by_upgrades_and_restarts() {
    let bed = TunnelBed::new(&format!("{LINK},{WINKS}"));
    let mut running = Running::start(&bed, "", SITE);
    let mut random = SplitMix64::new(run_seed());
    under_load(&bed, 20, || {
        for round in 0..given("PEPD_TEST_CRASHES", 4) {
            thread::sleep(GROWN + Duration::from_micros(random.below(500_000)));
            let pep = if round % 2 == 0 {
                &mut running.boat
            } else {
                &mut running.hub
            };
            if round % 4 < 2 {
                upgrade(pep);
            } else {
                pep.succeed();
            }
        }
        running.wait_for_session();
    });
    assert!(running.hub.counter("flows_recovered") > 0);
    assert_nothing_lost(running);
}

/// Only the ending process knows of the flow.
#[test]
fn a_flow_whose_opening_has_not_left_when_its_process_ends_is_opened_by_the_next() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    echo_once(&mut connect(&bed, Family::V4), b"before");
    bed.cut_link();
    let mut stream = connect(&bed, Family::V4);
    stream.write_all(b"into the silence").expect("accepted");
    running
        .boat
        .wait_counter("tunnel_flows_near", |flows| flows == 2);
    crash(&running.boat);
    bed.restore_link();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"into the silence");
    echo_once(&mut stream, b"after");
    drop(stream);
    assert_nothing_lost(running);
}

/// The server's host is slow, and the process that called it ends meanwhile.
#[test]
fn a_leg_that_is_connecting_when_its_process_ends_connects_for_the_next() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let server = bed.host("server");
    let _echo = EchoServer::start(server.listen(bed.server_at(Family::V4, PORT)));
    server.nft(&format!(
        "table inet wall {{\n chain input {{\n type filter hook input priority 0;\n tcp dport {PORT} drop\n }}\n }}"
    ));
    let mut stream = connect(&bed, Family::V4);
    stream.write_all(b"hello").expect("accepted");
    running
        .hub
        .wait_counter("tunnel_flows_far", |flows| flows == 1);
    crash(&running.hub);
    server.nft("delete table inet wall");
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"hello");
    drop(stream);
    assert_nothing_lost(running);
}

/// The boat cannot call, so the hub does, once it knows the boat's address. `act` is done to the
/// hub.
fn reaches_state(state: &str, knows: impl Fn(&Pep) -> bool, act: impl FnOnce(&Pep)) {
    let bed = TunnelBed::new(LINK);
    let by_udp = "carrier = \"udp\"";
    let config = bed.config(End::Hub, STATED, by_udp, "");
    let identity = format!("[identity]\n{state}");
    let hub = bed.start(End::Hub, &config.replace("[identity]", &identity));
    let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, by_udp, SITE));
    let running = Running { boat, hub };
    running.wait_for_session();
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, b"before");
    wait_until("the hub to know where its boat is", || knows(&running.hub));
    bed.host("boat").nft(
        "table inet mute {
            chain output { type filter hook output priority 0; udp dport 5001 @th,64,8 1 drop; }
        }",
    );
    act(&running.hub);
    echo_once(&mut stream, b"after");
    bed.host("boat").nft("delete table inet mute");
    drop(stream);
    assert_nothing_lost(running);
}

#[test]
fn a_hub_that_crashed_calls_its_boat_where_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = format!("state = \"{}\"", directory.path().display());
    let paths = directory.path().join("paths.json");
    let knows = |_: &Pep| fs::read_to_string(&paths).is_ok_and(|text| text.contains("address"));
    reaches_state(&state, knows, crash);
}

/// Returns whether the hub has stored the peer's address in memory for the next process.
fn has_in_memory(hub: &Pep) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", hub.id())) else {
        return false;
    };
    let is_of_paths = |entry: &fs::DirEntry| {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        link.to_string_lossy().contains("pepd-paths")
    };
    let found = open.flatten().find(is_of_paths);
    found.is_some_and(|entry| {
        fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("address"))
    })
}

#[test]
fn a_hub_without_a_directory_calls_its_boat_too() {
    reaches_state("", has_in_memory, crash);
    reaches_state("", has_in_memory, upgrade);
}

/// Both hosts have sent everything, and neither pepd has received the other's end of stream.
#[test]
fn ends_that_are_under_way_when_both_processes_end_arrive() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", SITE);
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let mut stream = connect(&bed, Family::V4);
    stream.write_all(b"a").expect("accepted");
    let (mut served, _) = listener.accept().expect("a client");
    served.set_read_timeout(Some(PATIENCE)).expect("a socket");
    served.read_exact(&mut [0]).expect("its byte");
    bed.cut_link();
    for host in [&mut stream, &mut served] {
        host.write_all(b"the end").expect("accepted");
        host.shutdown(Shutdown::Write).expect("connected");
    }
    thread::sleep(Duration::from_millis(200));
    crash(&running.hub);
    crash(&running.boat);
    bed.restore_link();
    for host in [&mut stream, &mut served] {
        let mut last = Vec::new();
        host.read_to_end(&mut last).expect("a clean end");
        assert_eq!(last, b"the end");
    }
    drop((stream, served));
    assert_nothing_lost(running);
}

/// A codec's state is only in the memory of its process.
#[test]
fn a_compressed_flow_is_reset_when_the_process_at_either_end_ends() {
    let bed = TunnelBed::new(LINK);
    let site = format!("{SITE}compress = true\n");
    let running = Running::start(&bed, "", &site);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    for end in [&running.boat, &running.hub] {
        let mut stream = connect(&bed, Family::V4);
        echo_once(&mut stream, b"hello");
        crash(end);
        assert_eq!(Ended::from_stream(&stream), Ended::RESET);
        assert_eq!(end.counter("flows_lost_at_restart"), 1);
        thread::sleep(GROWN);
    }
    running.wait_for_session();
    for pep in [&running.boat, &running.hub] {
        pep.wait_idle();
    }
    running.boat.stop();
    running.hub.stop();
}
