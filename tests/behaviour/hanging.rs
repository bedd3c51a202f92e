//! A worker process that is alive but stuck.

use std::{
    io::{Read as _, Write as _},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use pepd_tests::{
    bed::{Bed, Family, Path},
    matrix::shared,
    outcome::Ended,
};

use crate::{
    support::{connect, echo_once},
    survive::{GROWN, send_signal, talking, wait_ready},
};

/// The process is alive, so no parent is notified; but it does not respond.
#[test]
fn a_process_that_does_not_go_on_is_replaced_and_its_flows_go_on() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start().expect("not direct");
        let (_echo, mut open) = talking(&bed);
        // The heartbeat comes every second, and is expected only after the first one, which is not
        // visible from outside.
        thread::sleep(GROWN);
        let (position, worker) = (pep.log().position(), pep.id());
        send_signal(worker, Signal::SIGSTOP);
        open.write_all(b"while it stands still").expect("connected");
        wait_ready(&pep, position);
        let mut answer = [0; 21];
        open.read_exact(&mut answer).expect("the echo");
        assert_eq!(&answer, b"while it stands still");
        assert_eq!(pep.counter("hangs"), 1);
        assert_eq!(pep.counter("flows_lost_at_restart"), 0);
        drop(open);
        pep.stop();
    });
}

/// The second request to end does not wait for a stuck process.
#[test]
fn a_second_signal_ends_even_what_does_not_go_on() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V6);
        let mut pep = bed.start().expect("not direct");
        let (_echo, open) = talking(&bed);
        send_signal(pep.id(), Signal::SIGSTOP);
        pep.signal(Signal::SIGTERM);
        assert_eq!(pep.wait_at_most(Duration::from_millis(100)), None);
        assert_eq!(pep.terminate_at_once(), 5, "flows are reset");
        assert_eq!(Ended::from_stream(&open), Ended::RESET);
        pep.assert_nothing_left();
        echo_once(&mut connect(&bed), b"forwarded");
    });
}
