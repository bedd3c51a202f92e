//! What others do to the machine while pepd runs.

use pepd_tests::{
    bed::{Bed, Family, Place},
    echo::EchoServer,
    host::Host,
    matrix::matrix_pepd_only,
    pep::Pep,
    wait::PATIENCE,
};

use crate::support::{PORT, connect, echo_once};

fn echo_server(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

/// Removes something of pepd's, and waits until it has put it back.
fn removed_and_put_back(bed: &Bed, pep: &Pep, remove: impl Fn(&Host)) {
    let position = pep.log().position();
    remove(&bed.gateway);
    let told = pep.log().find(position, PATIENCE, |event| {
        event.level() == "WARN" && event.message().contains("put back")
    });
    assert!(told.is_some(), "nobody has put it back");
}

/// Each with `ip -4` and `ip -6`.
fn ip(bed: &Bed, words: &str) {
    let version = match bed.family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    bed.gateway.ip(&format!("{version} {words}"));
}

#[test]
fn what_others_remove_is_put_back() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let removals: [&dyn Fn(&Host); 4] = [
            &|host| host.nft("flush ruleset"),
            &|_| ip(bed, "rule del priority 100 table 5000"),
            &|_| ip(bed, "route flush table 5000"),
            &|host| {
                host.nft("flush ruleset");
                ip(bed, "rule del priority 100 table 5000");
            },
        ];
        for (number, remove) in removals.into_iter().enumerate() {
            removed_and_put_back(bed, &pep, remove);
            echo_once(&mut connect(bed), b"accelerated");
            assert_eq!(pep.counter("flows_accepted"), number as u64 + 1);
        }
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn a_closed_gate_is_put_back_closed() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let limits = "[limits]\nflows = 1";
        let pep = bed.start_with(limits).expect("not direct");
        let mut only = connect(bed);
        echo_once(&mut only, b"accelerated");
        pep.wait_counter("gate_closed", |times| times == 1);
        removed_and_put_back(bed, &pep, |host| host.nft("flush ruleset"));
        echo_once(&mut connect(bed), b"not accelerated");
        echo_once(&mut only, b"still accelerated");
        assert_eq!(pep.counter("flows_accepted"), 1);
        drop(only);
        pep.wait_idle();
        pep.stop();
    });
}
