//! The system clock set by ten years while a tunnel carries flows. The test runs in an emulated
//! machine, since no namespace has a system clock of its own.

use std::{
    net::TcpStream,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    guest::{self, Guest},
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;

use crate::{
    custody::{HOLD, LINK, assert_done, sink, upload, wait_down},
    support::echo_once,
    survive::crash,
    tunnel::{PORT, Running, SITE, connect},
};

const YEARS: i64 = 10 * 365 * 24 * 3600;
/// Bytes uploaded during an outage.
const HELD: u64 = 100_000;
/// Ports of echo servers: one within the tunnel, one beside it.
const PORTS: [u16; 2] = [PORT + 1, PORT + 2];
const BESIDE: &str = "[[site]]\nname = \"beside\"\nmatch = { dport = [7002] }\n";

/// Returns Unix time in seconds.
fn unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

/// Sets the system clock forward by these seconds, or back.
fn set_clock(by: i64) {
    let to = unix() + by;
    let date = Command::new("date")
        .args(["-s", &format!("@{to}")])
        .output();
    let date = date.expect("every Debian has it");
    assert!(date.status.success(), "{date:?}");
    assert!((unix() - to).abs() < 60, "the clock is at {}", unix());
}

fn open(bed: &TunnelBed) -> [TcpStream; 2] {
    PORTS.map(|port| {
        let stream = bed.host("client").connect(bed.server_at(Family::V4, port));
        let stream = stream.expect("pepd answers");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    })
}

/// Open flows continue, and new ones begin.
fn talk(bed: &TunnelBed, flows: &mut [TcpStream; 2]) {
    for stream in flows.iter_mut().chain(&mut open(bed)) {
        echo_once(stream, &[7; 5000]);
    }
}

/// Waits until the boat's history has times of the present clock.
fn history_follows(running: &Running) {
    wait_until("a history by the new time", || {
        let mut answer = String::new();
        let read = std::io::Read::read_to_string(&mut running.ask("/v1/history"), &mut answer);
        read.expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        let history: Value = serde_json::from_str(body).expect("JSON");
        let rows = history["series"][0]["rows"].as_array().expect("rows");
        let last = rows.last().and_then(|row| row[0].as_i64());
        last.is_some_and(|last| (unix() - last).abs() < 60)
    });
}

#[test]
fn a_clock_set_by_ten_years_ends_no_flow_and_prevents_no_tunnel() {
    if !guest::inside() {
        let test = "clock::a_clock_set_by_ten_years_ends_no_flow_and_prevents_no_tunnel";
        return Guest::new().icount().run_test(test);
    }
    let bed = TunnelBed::new(LINK);
    let admin = "[admin]\nsocket = \"admin.sock\"\n";
    let running = Running::start(&bed, HOLD, &format!("{BESIDE}{SITE}{admin}"));
    let _echo = PORTS.map(|port| {
        let listener = bed.host("server").listen(bed.server_at(Family::V4, port));
        EchoServer::start(listener)
    });
    let mut flows = open(&bed);
    talk(&bed, &mut flows);
    let began = unix();
    // Ten years ahead, ten years behind, and back.
    for by in [YEARS, -2 * YEARS, YEARS] {
        set_clock(by);
        println!("the clock is set by {by} s");
        talk(&bed, &mut flows);
        history_follows(&running);
    }
    assert!((unix() - began).abs() < 3600);

    // What custody holds grows no older by a step, and the next process makes another session.
    let _sink = sink(&bed, HELD);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    upload(&mut stream, HELD);
    running
        .boat
        .wait_counter("custody_memory_bytes", |bytes| bytes > 0);
    for by in [YEARS, -2 * YEARS] {
        set_clock(by);
        println!("the clock is set by {by} s in an outage");
        crash(&running.boat);
    }
    bed.restore_link();
    assert_done(&mut stream);
    running.wait_for_session();
    talk(&bed, &mut flows);
    drop(flows);
    running.stop_after_errors();
}
