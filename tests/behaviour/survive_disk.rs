//! Data of tunnelled flows on disk outlives the process that wrote it.

use std::{fs, thread, time::Instant};

use pepd_tests::{
    bed::Family, payload::Payload, pep::Pep, pep_log::Event, serve::Server, tunnel::TunnelBed,
    wait::PATIENCE,
};

use crate::{
    custody::{
        Directory, HOLD, LINK, MB, MIB, assert_done, assert_nothing_held, sink, upload, wait_down,
    },
    support::echo_once,
    survive::{crash, upgrade},
    tunnel::{PORT, Running, connect},
};

/// Much more than memory may hold.
const LEN: u64 = 32 * MB;
const KEYS: &str =
    "memory = \"4MiB\"\ndisk = \"128MiB\"\nsurvive = true\n[admin]\nsocket = \"admin.sock\"";

/// Replaces the process; the next one must take over `minimum` chunks on disk or more.
fn replace(pep: &Pep, by: fn(&Pep), minimum: u64) {
    let position = pep.log().position();
    by(pep);
    let took = |event: &Event| {
        event
            .message()
            .contains("previous process's custody on disk")
    };
    let took = pep.log().find(position, PATIENCE, took);
    let chunks = took.expect("a count of chunks on disk").number("chunks");
    println!("{chunks} chunks were on disk");
    assert!(chunks >= minimum, "{chunks}");
}

/// Uploads while the process is replaced, once while data goes to disk, once while it is read.
fn upload_through_two_processes(by: fn(&Pep)) {
    let bed = TunnelBed::new(LINK);
    let directory = Directory::new(&bed, None);
    let running = Running::start(&bed, HOLD, &directory.keys(KEYS));
    let _server = sink(&bed, LEN);
    bed.cut_link();
    wait_down(&running);
    let began = Instant::now();
    let mut stream = connect(&bed, Family::V4);
    let boat = &running.boat;
    thread::scope(|scope| {
        let mut sender = stream.try_clone().expect("a descriptor");
        let sending = scope.spawn(move || upload(&mut sender, LEN));
        boat.wait_counter("custody_spilled_bytes", |bytes| bytes >= 2 * MIB);
        replace(boat, by, 16);
        boat.wait_counter("custody_disk_bytes", |bytes| bytes >= 12 * MIB);
        sending.join().expect("sent");
    });
    bed.restore_link();
    running
        .hub
        .wait_counter("up_bytes", |bytes| bytes >= LEN / 8);
    let age = began.elapsed();
    replace(boat, by, 1);
    let held = running.boat.ask(&["custody", "--json"]);
    let held: serde_json::Value = serde_json::from_str(&held).expect("JSON");
    let shown = held["sites"][0]["oldest_s"].as_u64().expect("seconds");
    assert!(shown >= age.as_secs(), "{age:?}: {held}");
    assert_done(&mut stream);
    drop(stream);
    let end = boat
        .log()
        .find(0, PATIENCE, |event| event.message() == "flow ended");
    let lasted = end.expect("it has ended").number("duration_ms");
    assert!(
        u128::from(lasted) >= age.as_millis(),
        "{lasted} ms, {age:?}"
    );
    assert_nothing_held(&running, &directory);
    let counters = boat.counters();
    assert_eq!(counters["flows_lost_at_restart"], 0, "{counters:?}");
    assert_eq!(counters["restarts"], 2);
    running.stop_after_errors();
}

#[test]
fn an_upload_on_disk_outlives_crashes_while_it_is_written_and_while_it_is_read_back() {
    upload_through_two_processes(crash);
}

#[test]
fn an_upload_on_disk_outlives_upgrades_while_it_is_written_and_while_it_is_read_back() {
    upload_through_two_processes(upgrade);
}

/// The directory was emptied: flows with data only there are reset, and logged; others continue.
#[test]
fn a_flow_whose_bytes_on_disk_are_lost_is_reset_and_others_continue() {
    let bed = TunnelBed::new(LINK);
    let directory = Directory::new(&bed, None);
    let running = Running::start(&bed, HOLD, &directory.keys(KEYS));
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let _server = Server::start(listener, |mut stream, _| {
        let _ = std::io::copy(&mut stream.try_clone().expect("a descriptor"), &mut stream);
    });
    let mut other = connect(&bed, Family::V4);
    echo_once(&mut other, b"before");
    bed.cut_link();
    wait_down(&running);
    let boat = &running.boat;
    let lost = connect(&bed, Family::V4);
    thread::scope(|scope| {
        let mut sender = lost.try_clone().expect("a descriptor");
        // More than fits.
        let sending = scope.spawn(move || Payload::new(1, 10 * LEN).send(&mut sender));
        boat.wait_counter("custody_spilled_bytes", |bytes| bytes >= 2 * MIB);
        fs::remove_dir_all(directory.path()).expect("ours");
        crash(boat);
        let sent = sending.join().expect("does not panic");
        assert!(sent.is_err(), "it is reset");
    });
    bed.restore_link();
    echo_once(&mut other, b"after");
    assert_eq!(boat.counter("flows_lost_at_restart"), 1);
    boat.log().expect("flow in a tunnel lost in the restart");
    drop((other, lost));
    running.stop_after_errors();
}
