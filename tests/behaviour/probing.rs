//! `pepd probe`: its results on known links, and its restraint.

use std::{
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pepd_tests::{
    bed::Family,
    pep::Pep,
    pep_binary::pepd,
    tunnel::{End, TunnelBed},
    wait::wait_until,
};
use serde_json::Value;

use crate::tunnel::{LINK, Running, SITE, exchange, exchange_server};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// Starts both ends, with these keys of their peers.
fn start(bed: &TunnelBed, peer: &str) -> Running {
    let hub = bed.start(End::Hub, &bed.config(End::Hub, "", peer, ADMIN));
    let more = format!("{SITE}{ADMIN}");
    let boat = bed.start(End::Boat, &bed.config(End::Boat, "", peer, &more));
    let running = Running { boat, hub };
    running.wait_for_session();
    running
}

fn command(bed: &TunnelBed, pep: &Pep, words: &[&str]) -> Command {
    let mut command = bed.host("boat").command(pepd().to_str().expect("a path"));
    command.arg("probe").args(words).arg("--socket");
    command.arg(pep.path("admin.sock"));
    command
}

/// Returns exit code and output.
fn probe(bed: &TunnelBed, pep: &Pep, words: &[&str]) -> (Option<i32>, String) {
    let output: Output = command(bed, pep, words).output().expect("it starts");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).expect("text");
    (output.status.code(), printed)
}

fn report(pep: &Pep, words: &[&str]) -> Value {
    let words = [&["probe", "hub", "--json"], words].concat();
    serde_json::from_str(&pep.ask(&words)).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn the_figures_are_those_of_the_link() {
    let bed = TunnelBed::new("rate=10Mbit/s,delay=100ms,loss=2%,queue=250kB");
    let running = start(&bed, "");
    let report = report(&running.boat, &[]);
    for direction in ["up", "down"] {
        let direction = &report[direction];
        // 10 Mbit/s less headers and losses are 9.3.
        let rate = number(&direction["rate_median"]);
        assert!((7.9e6..=10e6).contains(&rate), "{report:#}");
        let loss = number(&direction["loss"]);
        assert!((0.01..=0.04).contains(&loss), "{report:#}");
        let burst = number(&direction["burst"]);
        assert!((1.0..1.5).contains(&burst), "{report:#}");
    }
    let idle = number(&report["idle"]["median_s"]);
    assert!((0.2..=0.24).contains(&idle), "{report:#}");
    assert_eq!(report["carrier"], "udp");
    let measured = number(&report["link_rate"]);
    assert!((8.5e6..=11.5e6).contains(&measured), "{report:#}");
    let toml = report["suggestion"]["toml"].as_str().expect("text");
    assert!(toml.starts_with("[peer.hub]\nrate = "), "{toml}");
    running.stop();
}

#[test]
fn hosts_flows_beside_a_probe_are_whole() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed, "rate = \"20Mbit/s\"\nrtt = \"40ms\"");
    let _server = exchange_server(&bed, Family::V4, 4_000_000);
    for load in ["delay_tolerant", "normal"] {
        let mut beside = command(&bed, &running.boat, &["hub", "--for", "3s", "--load", load]);
        let beside = beside.stdout(Stdio::piped()).stderr(Stdio::null());
        let beside = beside.spawn().expect("it starts");
        exchange(&bed, Family::V4, 4_000_000);
        let output = beside
            .wait_with_output()
            .expect("a child can be waited for");
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{printed}");
        assert!(
            printed.lines().all(|line| line.chars().count() <= 100),
            "{printed}"
        );
        let named = |line: &str| line == "    [peer.hub]";
        assert!(printed.lines().any(named), "{printed}");
    }
    running.assert_in_tunnel(2);
    running.stop();
}

#[test]
fn a_probe_takes_no_more_bytes_than_it_may() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed, "rate = \"20Mbit/s\"\nrtt = \"40ms\"");
    let report = report(&running.boat, &["--bytes", "1M"]);
    for direction in ["up", "down"] {
        assert_eq!(report[direction]["bytes"], 500_000, "{report:#}");
    }
    running.stop();
}

/// Returns the packets sent by both ends.
fn sent(running: &Running) -> u64 {
    let packets = |pep: &Pep| {
        let status: Value = serde_json::from_str(&pep.ask(&["status", "--json"])).expect("JSON");
        let packets = &status["peers"][0]["session"]["packets_sent"];
        // A session's counters appear within a second of its beginning.
        packets.as_u64().unwrap_or(0)
    };
    packets(&running.boat) + packets(&running.hub)
}

/// Returns whether there is a load now: a status is up to a second old.
fn loaded(running: &Running) -> bool {
    let before = sent(running);
    thread::sleep(Duration::from_millis(1200));
    sent(running) - before > 500
}

fn long(bed: &TunnelBed, running: &Running) -> Child {
    let words = ["hub", "--for", "60s", "--bytes", "1G"];
    let mut command = command(bed, &running.boat, &words);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("it starts");
    wait_until("the load begins", || loaded(running));
    child
}

#[test]
fn an_interrupted_probe_ends_and_there_is_one_at_a_time() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed, "rate = \"20Mbit/s\"\nrtt = \"40ms\"");
    let mut child = long(&bed, &running);
    let (code, printed) = probe(&bed, &running.boat, &["hub"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("one at a time"), "{printed}");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("it runs");
    assert!(!child.wait().expect("a child").success());
    wait_until("the load ends", || !loaded(&running));
    let (code, printed) = probe(&bed, &running.boat, &["hub", "--for", "1s"]);
    assert_eq!(code, Some(0), "{printed}");
    running.stop();
}

#[test]
fn a_peer_that_cannot_be_probed_is_reported() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed, "lost_after = \"1s\"");
    for (words, code, expected) in [
        (&["hbu"][..], 1, "no peer `hbu`; peers: hub"),
        (&["hub", "--for", "2min"], 2, "expected 1s to 60s"),
        (&["hub", "--bytes", "5"], 2, "expected 10k to 20G"),
    ] {
        let (found, printed) = probe(&bed, &running.boat, words);
        assert_eq!(found, Some(code), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
    bed.cut_link();
    running
        .boat
        .wait_counter("tunnel_peers_up", |peers| peers == 0);
    let (code, printed) = probe(&bed, &running.boat, &["hub"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("hub: the peer is down"), "{printed}");
    bed.restore_link();
    running.stop_after_errors();
}

#[test]
fn a_peer_that_is_reached_by_tcp_alone_is_reported() {
    let bed = TunnelBed::new(LINK);
    bed.block_udp();
    let running = start(&bed, "rate = \"20Mbit/s\"\nrtt = \"40ms\"");
    let report = report(&running.boat, &["--for", "2s"]);
    assert_eq!(report["carrier"], "tcp", "{report:#}");
    assert!(report["up"]["loss"].is_null(), "{report:#}");
    let remarks = report["suggestion"]["remarks"].to_string();
    assert!(remarks.contains("UDP: blocked"), "{remarks}");
    running.stop_after_errors();
}
