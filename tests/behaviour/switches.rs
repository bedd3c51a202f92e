//! Switches that an operator sets while pepd runs: for sites, and for draining.

use std::{
    io::Read as _,
    process::{Child, Command, Output, Stdio},
};

use pepd_tests::{
    bed::{Bed, Family, Path},
    matrix::shared,
    pep::Pep,
    pep_binary::pepd,
    pep_log::Event,
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;

use crate::{
    support::{connect, echo_once},
    survive::{crash, talking},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";
const SITES: &str = "[[site]]\nname = \"mail\"\nmatch = { dport = [7000] }\n\
                     [[site]]\nname = \"voice\"\nmode = \"bypass\"\nmatch = { dport = [5060] }\n\
                     [[site]]\nname = \"all\"\n";

fn start(bed: &Bed) -> Pep {
    bed.start_with(&format!("{ADMIN}{SITES}"))
        .expect("not direct")
}

fn command(bed: &Bed, pep: &Pep, words: &[&str]) -> Command {
    let mut command = bed.gateway.command(pepd().to_str().expect("a path"));
    command
        .args(words)
        .arg("--socket")
        .arg(pep.path("admin.sock"));
    command
}

fn code_and_text(bed: &Bed, pep: &Pep, words: &[&str]) -> (Option<i32>, String) {
    let output: Output = command(bed, pep, words).output().expect("it starts");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).expect("text");
    (output.status.code(), printed)
}

/// Returns whether pepd accepts a new flow.
fn takes(bed: &Bed, pep: &Pep) -> bool {
    let before = of_mail(pep, "flows_accepted");
    echo_once(&mut connect(bed), b"another");
    of_mail(pep, "flows_accepted") != before
}

/// Waits: the kernel may use old rules for a moment after it has the new ones.
fn wait_taken(bed: &Bed, pep: &Pep, taken: bool) {
    let what = if taken { "taken" } else { "forwarded" };
    wait_until(&format!("new flows to be {what}"), || {
        takes(bed, pep) == taken
    });
}

fn of_mail(pep: &Pep, key: &str) -> Value {
    let status: Value = serde_json::from_str(&pep.ask(&["status", "--json"])).expect("JSON");
    let sites = status["sites"].as_array().expect("sites");
    let mail = sites.iter().find(|site| site["name"] == "mail");
    mail.expect("a site")[key].clone()
}

#[test]
fn a_site_that_is_off_leaves_new_flows_to_the_kernel_until_it_is_on() {
    for path in [Path::Spoof, Path::Defer] {
        leaves_new_flows_to_the_kernel_until_it_is_on(path);
    }
}

fn leaves_new_flows_to_the_kernel_until_it_is_on(path: Path) {
    shared(|| {
        let bed = Bed::new(path, Family::V4);
        let pep = start(&bed);
        let (_echo, mut open) = talking(&bed);
        assert_eq!(of_mail(&pep, "bypassed"), Value::Null);
        let off = pep.ask(&["site", "off", "mail"]);
        assert!(off.contains("`mail` is off"), "{off}");
        wait_taken(&bed, &pep, false);
        assert_eq!(of_mail(&pep, "bypassed"), "operator");
        let list = pep.ask(&["site"]);
        let off: Vec<_> = list.lines().filter(|line| line.ends_with(" off")).collect();
        assert_eq!((list.lines().count(), off.len()), (4, 1), "{list}");
        assert!(off[0].starts_with("mail "), "{list}");
        echo_once(&mut open, b"still carried");
        crash(&pep);
        wait_taken(&bed, &pep, false);
        pep.ask(&["reload"]);
        wait_taken(&bed, &pep, false);
        echo_once(&mut open, b"still carried");
        pep.ask(&["site", "on", "mail"]);
        wait_taken(&bed, &pep, true);
        assert_eq!(of_mail(&pep, "bypassed"), Value::Null);
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn a_site_that_cannot_be_switched_is_reported() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed);
        for (name, words) in [
            ("mial", "no site `mial`; sites: `mail`"),
            ("voice", "`voice`, since its mode is `bypass`"),
        ] {
            let (code, printed) = code_and_text(&bed, &pep, &["site", "off", name]);
            assert_eq!(code, Some(1), "{printed}");
            assert!(printed.contains(words), "{printed}");
        }
        pep.stop();
    });
}

/// Begins to drain, and waits for pepd's confirmation.
fn drain(bed: &Bed, pep: &Pep, words: &[&str]) -> Child {
    let mut command = command(bed, pep, &["drain"]);
    command.args(words).stdout(Stdio::piped());
    let child = command.spawn().expect("it starts");
    let drains = |event: &Event| event.message().contains("draining");
    assert!(pep.log().find(0, PATIENCE, drains).is_some());
    child
}

fn end(mut child: Child) -> (Option<i32>, String) {
    let mut printed = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    output.read_to_string(&mut printed).expect("text");
    let status = child.wait().expect("a child can be waited for");
    (status.code(), printed)
}

#[test]
fn draining_waits_for_the_last_flow_and_says_so() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut pep = start(&bed);
        let (_echo, mut open) = talking(&bed);
        let first = drain(&bed, &pep, &["--timeout", "1h"]);
        // A second request ends nothing.
        let second = drain(&bed, &pep, &[]);
        wait_until("new flows to be forwarded", || !takes(&bed, &pep));
        echo_once(&mut open, b"to its end");
        drop(open);
        let (code, printed) = end(first);
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains("1 flow may take 1h"), "{printed}");
        assert!(printed.ends_with("done: pepd has ended\n"), "{printed}");
        let (code, printed) = end(second);
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains("draining already"), "{printed}");
        assert_eq!(pep.wait().code(), Some(0));
        pep.assert_nothing_left();
    });
}

#[test]
fn flows_that_outlive_the_drain_are_reset_and_counted() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut pep = start(&bed);
        let (_echo, mut open) = talking(&bed);
        let (code, printed) = end(drain(&bed, &pep, &["--timeout", "1s"]));
        assert_eq!(code, Some(5), "{printed}");
        assert_eq!(pep.wait().code(), Some(5));
        assert!(open.read(&mut [0]).is_err(), "it was reset");
        pep.assert_nothing_left();
    });
}

#[test]
fn a_drain_for_longer_than_a_week_is_refused() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed);
        let (code, printed) = code_and_text(&bed, &pep, &["drain", "--timeout", "8days"]);
        assert_eq!(code, Some(2), "{printed}");
        assert!(printed.contains("a week or less"), "{printed}");
        pep.stop();
    });
}
