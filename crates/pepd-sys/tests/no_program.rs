//! A filter of system calls holds for a whole process, so this test has one of its own.

use std::{io::ErrorKind, process::Command, thread};

use pepd_sys::privileges::{
    self, Phase,
    calls::{Programs, refuse},
};

#[test]
fn a_process_that_may_run_no_program_runs_none() {
    let run = || Command::new("true").status();
    assert!(run().unwrap().success());
    privileges::limit(Phase::Runner, false);
    refuse(Programs::Allowed).unwrap();
    assert!(run().unwrap().success(), "a runner still may");
    refuse(Programs::Refused).unwrap();
    let in_thread = thread::spawn(run).join().unwrap();
    for refused in [run(), in_thread] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
