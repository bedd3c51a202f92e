//! Configuration changes while flows continue.

use std::{fs, net::SocketAddr, process::Output};

use nix::sys::signal::Signal;
use pepd_tests::{
    bed::{Bed, Family, Path},
    echo::EchoServer,
    host::Host,
    matrix::{matrix_pepd_only, shared},
    pep::Pep,
    pep_binary::pepd,
    pep_log::Event,
    tunnel::{End, TunnelBed},
    wait::PATIENCE,
};

use crate::{
    support::echo_once,
    survive::{crash, next_worker, talking, under_load, wait_ready},
    tunnel::{self, LINK, Running, SITE, STATED},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";
const MAIL: &str = "[[site]]\nname = \"mail\"\nmatch = { dport = [25] }\n";
const MAIL_IS_NEW: &str = "site.mail.match.dport: not set -> [25]";

fn start(bed: &Bed, more: &str) -> Pep {
    bed.start_with(&format!("{ADMIN}{more}"))
        .expect("not direct")
}

fn configure(bed: &Bed, pep: &Pep, more: &str) {
    let config = bed.config(&format!("{ADMIN}{more}")).expect("not direct");
    fs::write(pep.path("pepd.toml"), config).expect("writable");
}

fn reload(bed: &Bed, pep: &Pep, more: &[&str]) -> Output {
    reload_at(&bed.gateway, pep, more)
}

fn reload_at(host: &Host, pep: &Pep, more: &[&str]) -> Output {
    let config = pep.path("pepd.toml");
    let mut arguments = vec!["reload", "--config", config.to_str().expect("a path")];
    arguments.extend(more);
    host.output(pepd().to_str().expect("a path"), &arguments)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns exit code and message.
fn code_and_text(output: &Output) -> (Option<i32>, String) {
    let printed = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    (output.status.code(), printed.concat())
}

/// Reloads; expects an exit code and words in the message.
fn expect(bed: &Bed, pep: &Pep, more: &[&str], code: i32, words: &[&str]) {
    expect_of(&reload(bed, pep, more), code, words);
}

/// Checks a dry run: it succeeds and prints these words.
fn would_say(bed: &Bed, pep: &Pep, words: &[&str]) {
    expect(bed, pep, &["--dry-run"], 0, words);
}

fn expect_of(output: &Output, code: i32, words: &[&str]) {
    let (found, printed) = code_and_text(output);
    assert_eq!(found, Some(code), "{printed}");
    for word in words {
        assert!(printed.contains(word), "{word}: {printed}");
    }
}

#[test]
fn a_reload_says_what_changes_and_keeps_flows() {
    matrix_pepd_only(|bed| {
        let pep = start(bed, "");
        let first = pep.supervisor();
        under_load(bed, 6, || {
            let before = pep.id();
            configure(bed, &pep, MAIL);
            would_say(bed, &pep, &[MAIL_IS_NEW, "nothing was changed"]);
            assert_eq!(pep.id(), before);
            let position = pep.log().position();
            expect(bed, &pep, &[], 0, &[MAIL_IS_NEW]);
            next_worker(&pep, before);
            wait_ready(&pep, position);
            // The running configuration is current by then.
            would_say(bed, &pep, &["the configuration has not changed"]);
        });
        assert_eq!(pep.supervisor(), first);
        let counters = pep.counters();
        assert_eq!(
            (counters["flows_lost_at_restart"], counters["restarts"]),
            (0, 1)
        );
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn what_is_wrong_or_cannot_change_is_refused_whole() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed, "");
        let (_echo, mut open) = talking(&bed);
        let worker = pep.id();
        let socket = pep.path("admin.sock");
        let socket = socket.to_str().expect("a path");
        for (more, words) in [
            (
                "[limits]\nflows = \"many\"\nring_max = 3\n",
                &["limits.flows", "limits.ring_max"][..],
            ),
            (
                "[limits]\nflows = 20000\nmemory = \"8GiB\"\n",
                &["limits.flows", "restart pepd"],
            ),
            (
                "[custody]\nsurvive = false\n",
                &["custody.survive", "restart pepd"],
            ),
            // Checked by the kernel only.
            (
                "[[site]]\nname = \"a\"\ncongestion = [\"nonesuch\"]\n",
                &["nonesuch"],
            ),
        ] {
            configure(&bed, &pep, more);
            // As this program finds it, and as the running one does.
            for by in [&[][..], &["--socket", socket]] {
                expect(&bed, &pep, by, 3, words);
            }
        }
        echo_once(&mut open, b"after");
        assert_eq!(pep.id(), worker);
        // The rejected configuration had no effect.
        configure(&bed, &pep, "");
        would_say(&bed, &pep, &["the configuration has not changed"]);
        drop(open);
        pep.wait_idle();
    });
}

#[test]
fn without_surviving_a_reload_is_refused() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let more = "[custody]\nsurvive = false\n";
        let pep = start(&bed, more);
        let (_echo, mut open) = talking(&bed);
        configure(&bed, &pep, &format!("{more}{MAIL}"));
        expect(&bed, &pep, &[], 1, &["`custody.survive` is off"]);
        pep.signal(Signal::SIGHUP);
        let refused = |event: &Event| event.message().contains("reload failed");
        assert!(pep.log().find(0, PATIENCE, refused).is_some());
        echo_once(&mut open, b"after");
    });
}

#[test]
fn a_hangup_reloads_and_the_log_says_how_it_went() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed, "");
        let (_echo, mut open) = talking(&bed);
        let worker = pep.id();
        fs::write(pep.path("pepd.toml"), "[intercept]\nlan = 5\n").expect("writable");
        pep.signal(Signal::SIGHUP);
        let refused = |event: &Event| event.message().contains("intercept.lan");
        assert!(pep.log().find(0, PATIENCE, refused).is_some());
        echo_once(&mut open, b"as before");
        assert_eq!(pep.id(), worker);
        configure(&bed, &pep, MAIL);
        let position = pep.log().position();
        pep.signal(Signal::SIGHUP);
        let changed = |event: &Event| event.message().contains(MAIL_IS_NEW);
        assert!(pep.log().find(position, PATIENCE, changed).is_some());
        next_worker(&pep, worker);
        wait_ready(&pep, position);
        echo_once(&mut open, b"after");
    });
}

#[test]
fn a_crash_changes_nothing_whatever_the_file_is_by_then() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed, "");
        let (_echo, mut open) = talking(&bed);
        fs::write(pep.path("pepd.toml"), "[intercept]\nlan = 5\n").expect("writable");
        crash(&pep);
        echo_once(&mut open, b"broken");
        configure(&bed, &pep, MAIL);
        crash(&pep);
        echo_once(&mut open, b"another message, unasked");
        would_say(&bed, &pep, &[MAIL_IS_NEW]);
        // A configuration in use stays.
        expect(&bed, &pep, &[], 0, &[]);
        configure(&bed, &pep, "");
        crash(&pep);
        would_say(&bed, &pep, &["site.mail.match.dport: [25] -> not set"]);
        echo_once(&mut open, b"after");
        drop(open);
        pep.wait_idle();
    });
}

#[test]
fn what_cannot_be_put_in_place_is_followed_by_what_was_before() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed, "");
        let (_echo, mut open) = talking(&bed);
        let taken = SocketAddr::from(([127, 0, 0, 1], 5001));
        let taken = bed.gateway.listen(taken);
        configure(&bed, &pep, MAIL);
        expect(&bed, &pep, &[], 1, &["reverted to the previous one"]);
        let why = |event: &Event| event.message().contains("cannot listen at 127.0.0.1:5001");
        assert!(pep.log().find(0, PATIENCE, why).is_some());
        echo_once(&mut open, b"as before");
        let counters = pep.counters();
        assert_eq!(
            (counters["reverts"], counters["flows_lost_at_restart"]),
            (1, 0)
        );
        crash(&pep);
        echo_once(&mut open, b"as before, after a crash as well");
        drop(taken);
        expect(&bed, &pep, &[], 0, &[]);
        echo_once(&mut open, b"and then");
        assert_eq!(pep.counter("reverts"), 0);
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn who_drains_reloads_nothing_and_ends() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut pep = start(&bed, "");
        let (_echo, mut open) = talking(&bed);
        pep.signal(Signal::SIGTERM);
        let drains = |event: &Event| event.message().contains("draining");
        assert!(pep.log().find(0, PATIENCE, drains).is_some());
        expect(&bed, &pep, &[], 1, &["draining"]);
        pep.signal(Signal::SIGUSR2);
        let refused = |event: &Event| event.message().contains("pepd is draining");
        assert!(pep.log().find(0, PATIENCE, refused).is_some());
        echo_once(&mut open, b"to its end");
        drop(open);
        assert_eq!(pep.wait().code(), Some(0));
    });
}

#[test]
fn a_peer_that_has_flows_goes_only_if_they_are_given_up() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start_with(&bed, "", SITE, ADMIN);
    let (hub, host) = (&running.hub, bed.host("hub"));
    let _echo = EchoServer::start(
        bed.host("server")
            .listen(bed.server_at(Family::V4, tunnel::PORT)),
    );
    let mut open = tunnel::connect(&bed, Family::V4);
    echo_once(&mut open, b"through the tunnel");
    // The new site listens on the tunnel's former port.
    let port = pepd_tests::tunnel::PORT;
    let alone = bed.config(End::Hub, STATED, "", "");
    let alone = alone.split("[identity]").next().expect("a part");
    let alone = alone.replace("[intercept]", &format!("[intercept]\nlisten_port = {port}"));
    fs::write(hub.path("pepd.toml"), format!("{alone}{ADMIN}")).expect("writable");
    expect_of(
        &reload_at(&host, hub, &[]),
        1,
        &["peer.boat: has flows (1;", "--reset-flows"],
    );
    echo_once(&mut open, b"still");
    expect_of(&reload_at(&host, hub, &["--reset-flows"]), 0, &[]);
    assert_eq!(hub.counter("flows_lost_at_restart"), 1);
}

#[test]
fn flows_in_tunnels_go_on_in_less_memory_than_a_new_configuration_would_give_them() {
    let bed = TunnelBed::new(LINK);
    let limits = "[limits]\nflows = 100\nmemory = \"64MiB\"\n";
    let running = Running::start_with(&bed, "", SITE, &format!("{limits}{ADMIN}"));
    let (hub, host) = (&running.hub, bed.host("hub"));
    let server = bed.server_at(Family::V4, tunnel::PORT);
    let _echo = EchoServer::start(bed.host("server").listen(server));
    let mut open = tunnel::connect(&bed, Family::V4);
    echo_once(&mut open, b"in a MiB");
    let path = hub.path("pepd.toml");
    let before = fs::read_to_string(&path).expect("readable");
    fs::write(&path, before.replace("64MiB", "1GiB")).expect("writable");
    let from = hub.log().position();
    expect_of(
        &reload_at(&host, hub, &[]),
        0,
        &["limits.memory: \"64MiB\" -> \"1GiB\""],
    );
    echo_once(&mut open, b"still in a MiB");
    echo_once(&mut tunnel::connect(&bed, Family::V4), b"and another");
    let warned = |event: &Event| event.message().contains("restart pepd to enlarge it");
    assert!(hub.log().find(from, PATIENCE, warned).is_some());
    assert_eq!(hub.counter("flows_lost_at_restart"), 0);
}
