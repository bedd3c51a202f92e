//! `pepd check` on a live system: its findings on common faults.

use std::{fs, net::SocketAddr, thread, time::Duration};

use pepd_tests::{
    bed::{self, Bed, Family, Path, Place, join},
    echo::EchoServer,
    host::{Dial, Host},
    matrix::shared,
    pep::Pep,
    pep_binary::pepd,
    wait::wait_for,
};
use serde_json::Value;

use crate::support::{PORT, connect, echo_once};

/// Exit status and findings of `pepd check`.
struct Checked {
    code: Option<i32>,
    report: Value,
}

impl Checked {
    /// Returns the finding about a subject.
    fn finding(&self, what: &str) -> &Value {
        let findings = self.report["findings"].as_array().expect("a list");
        let found = findings
            .iter()
            .find(|finding| finding["what"].as_str().is_some_and(|it| it.contains(what)));
        found.unwrap_or_else(|| panic!("no finding on `{what}` in {:#}", self.report))
    }

    fn assert(&self, what: &str, state: &str, words: &[&str]) {
        let finding = self.finding(what);
        assert_eq!(finding["state"], state, "{finding:#}");
        let text = finding.to_string();
        for word in words {
            assert!(text.contains(word), "no `{word}` in {finding:#}");
        }
    }

    fn failing(&self) -> Vec<&str> {
        let findings = self.report["findings"].as_array().expect("a list");
        let fail = findings.iter().filter(|finding| finding["state"] == "fail");
        fail.filter_map(|finding| finding["what"].as_str())
            .collect()
    }
}

fn check_by(host: &Host, file: &std::path::Path, before: &[&str], more: &[&str]) -> Checked {
    let mut words = before.to_vec();
    words.extend([
        pepd().to_str().expect("a path"),
        "check",
        "--json",
        "--strict",
        "--config",
    ]);
    words.push(file.to_str().expect("a path"));
    words.extend(more);
    let output = host.output(words[0], &words[1..]);
    let report = serde_json::from_slice(&output.stdout);
    Checked {
        code: output.status.code(),
        report: report.unwrap_or_else(|err| panic!("{err}: {output:?}")),
    }
}

/// Checks a running pepd.
fn check(bed: &Bed, pep: &Pep) -> Checked {
    check_by(&bed.gateway, &pep.path("pepd.toml"), &[], &[])
}

/// Checks a configuration without a running pepd.
fn check_alone(host: &Host, before: &[&str], config: &str) -> Checked {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("pepd.toml");
    let config = format!("{config}\n[admin]\nsocket = \"admin.sock\"\n");
    fs::write(&file, config).expect("a temporary file can be written");
    check_by(host, &file, before, &[])
}

fn start(bed: &Bed) -> Pep {
    let link = "[link]\ninterface = \"wan0\"\nrate = \"10Mbit/s\"\nrtt = \"100ms\"\n[admin]\nsocket = \"admin.sock\"\n";
    bed.start_with(link).expect("not direct")
}

#[test]
fn where_all_is_well_nothing_fails() {
    shared(|| {
        for (path, family) in [(Path::Spoof, Family::V4), (Path::Defer, Family::V6)] {
            let bed = Bed::new(path, family);
            let pep = start(&bed);
            check(&bed, &pep).assert(
                "connections arrive",
                "warn",
                &["no SYN has arrived by lan0"],
            );
            let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
            let mut stream = connect(&bed);
            echo_once(&mut stream, b"accelerated");
            let checked = check(&bed, &pep);
            assert_eq!(
                (checked.failing(), checked.code),
                (vec![], Some(0)),
                "{:#}",
                checked.report
            );
            checked.assert("capabilities", "ok", &[]);
            checked.assert("rules", "ok", &["installed"]);
            checked.assert("connections arrive", "ok", &["by lan0"]);
            checked.assert("handshakes with clients", "ok", &["1 flow accepted"]);
            checked.assert("return path of servers", "ok", &["1 SYN-ACK received"]);
            checked.assert("route to clients", "ok", &["lan0"]);
            drop(stream);
            pep.wait_idle();
            pep.stop();
        }
    });
}

/// Fault 1: hosts are behind another interface than the configured one.
#[test]
fn a_wrong_interface_is_found() {
    shared(|| {
        let bed = Bed::new(Path::Direct, Family::V4);
        // An interface that does not exist.
        let slip = check_alone(&bed.gateway, &[], "[intercept]\nlan = [\"lan1\"]\n");
        slip.assert("interface lan1", "fail", &["did you mean `lan0`?"]);
        assert_eq!(slip.code, Some(7), "{:#}", slip.report);
        // An existing interface without hosts.
        let empty = Host::new();
        join(&bed.gateway, "other0", &empty, "eth0");
        let config = "[intercept]\nlan = [\"other0\"]\n[log]\nformat = \"json\"\n[admin]\nsocket = \"admin.sock\"\n";
        let pep = Pep::start(&bed.gateway, config);
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        echo_once(&mut connect(&bed), b"not accelerated");
        let checked = check(&bed, &pep);
        checked.assert(
            "connections arrive",
            "fail",
            &[
                "no SYN has arrived by other0",
                "but by lan0",
                "intercept.lan = [\\\"lan0\\\"]",
            ],
        );
        assert_eq!(checked.code, Some(7));
        pep.stop();
    });
}

/// Fault 2: servers' answers take another path to the hosts.
#[test]
fn an_asymmetric_return_path_is_found() {
    shared(|| {
        for path in [Path::Spoof, Path::Defer] {
            let bed = Bed::new(path, Family::V4);
            join(&bed.client, "eth1", &bed.server, "eth1");
            bed::add_addresses(&bed.client, "eth1", Family::V4, &[(5, 1)]);
            bed::add_addresses(&bed.server, "eth1", Family::V4, &[(5, 2)]);
            bed.server.ip("route add 10.1.0.0/24 via 10.5.0.1 dev eth1");
            let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
            let pep = start(&bed);
            let dial = Dial::to(bed.at(Place::Server, PORT));
            let _waits = bed.client.enter(|| dial.begin_here()).expect("it begins");
            let checked = wait_for("three SYNs without an answer", || {
                let checked = check(&bed, &pep);
                let fails = checked.failing().contains(&"return path of servers");
                fails.then_some(checked)
            });
            let words = ["0 SYN-ACKs received", "asymmetric", "source = \\\"self\\\""];
            checked.assert("return path of servers", "fail", &words);
            checked.assert("connections arrive", "ok", &["by lan0"]);
            assert_eq!(checked.code, Some(7));
        }
    });
}

/// Fault 2 on the hosts' side: pepd's answers take another path.
#[test]
fn answers_that_do_not_reach_clients_are_found() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed);
        bed.gateway
            .ip("route add 10.1.0.2/32 via 10.2.0.66 dev wan0");
        let dial = Dial::to(bed.at(Place::Server, PORT));
        let _waits = bed.client.enter(|| dial.begin_here()).expect("it begins");
        let findings = wait_for("a handshake that does not end", || {
            let checked = check(&bed, &pep);
            let fails = checked.failing().contains(&"route to clients");
            fails.then_some(checked)
        });
        findings.assert("route to clients", "fail", &["10.1.0.2 by wan0"]);
        let more: Vec<_> = (0..3)
            .map(|_| bed.client.enter(|| dial.begin_here()).expect("it begins"))
            .collect();
        let checked = wait_for("SYNs of all of them", || {
            let checked = check(&bed, &pep);
            let fails = checked.failing().contains(&"handshakes with clients");
            fails.then_some(checked)
        });
        checked.assert(
            "handshakes with clients",
            "fail",
            &["0 flows accepted", "asymmetric"],
        );
        drop(more);
    });
}

/// Packets of hosts that the kernel drops, because its route back uses another interface.
#[test]
fn what_the_reverse_path_check_drops_is_counted() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        bed.gateway.sysctl("net.ipv4.conf.lan0.rp_filter", "1");
        let what = "reverse path check (rp_filter)";
        let pep = start(&bed);
        check(&bed, &pep).assert(what, "ok", &["strict on lan0", "dropped nothing"]);
        bed::add_addresses(&bed.client, "eth0", Family::V4, &[(5, 2)]);
        bed.gateway.ip("route add 10.5.0.0/24 dev wan0");
        let to = bed.at(Place::Server, PORT);
        let dial = Dial::to(to).from(SocketAddr::new(bed.family.address(5, 2), 0));
        let waits = bed.client.enter(|| dial.begin_here()).expect("it begins");
        let checked = wait_for("its SYN to be dropped", || {
            let checked = check(&bed, &pep);
            let warns = checked.finding(what)["state"] == "warn";
            warns.then_some(checked)
        });
        drop(waits);
        checked.assert(
            what,
            "warn",
            &["strict on lan0; it has dropped", "rp_filter=2"],
        );
        // With the advised setting.
        bed.gateway.sysctl("net.ipv4.conf.lan0.rp_filter", "2");
        bed.gateway.ip("route replace 10.5.0.0/24 dev lan0");
        let _echo = EchoServer::start(bed.server.listen(to));
        let mut stream = bed.client.dial(&dial).expect("pepd answers");
        echo_once(&mut stream, b"accelerated");
        pep.wait_counter("flows_accepted", |flows| flows == 1);
    });
}

/// Fault 3: a missing capability.
#[test]
fn a_missing_capability_is_found() {
    shared(|| {
        let bed = Bed::new(Path::Direct, Family::V4);
        let config = "[intercept]\nlan = [\"lan0\"]\n";
        check_alone(&bed.gateway, &[], config).assert("capabilities", "ok", &["root"]);
        let without = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"];
        let without = check_alone(&bed.gateway, &without, config);
        without.assert("capabilities", "fail", &["lack CAP_NET_RAW", "--cap-add"]);
        assert_eq!(without.code, Some(7));
    });
}

/// Without privileges the report names the checks that are not possible.
#[test]
fn without_privileges_it_says_what_it_cannot_see() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed);
        let user = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ];
        // The file and its directory are for root only.
        for name in ["", "pepd.toml"] {
            let path = pep.path(name);
            let mode = if name.is_empty() { 0o711 } else { 0o644 };
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(path, mode).expect("ours");
        }
        let checked = check_by(&bed.gateway, &pep.path("pepd.toml"), &user, &[]);
        checked.assert("running pepd", "unknown", &["access denied", "as root"]);
        checked.assert("parts of the kernel", "unknown", &["CAP_NET_ADMIN"]);
        checked.assert("interface lan0", "ok", &[]);
        pep.stop();
    });
}

#[test]
fn what_comes_in_within_a_time_can_be_asked_for() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = start(&bed);
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        echo_once(&mut connect(&bed), b"before");
        let watch = || {
            check_by(
                &bed.gateway,
                &pep.path("pepd.toml"),
                &[],
                &["--watch", "2s"],
            )
        };
        watch().assert(
            "connections arrive",
            "warn",
            &["no SYN has arrived by lan0 within 2s"],
        );
        thread::scope(|scope| {
            let watching = scope.spawn(watch);
            while !watching.is_finished() {
                echo_once(&mut connect(&bed), b"meanwhile");
                thread::sleep(Duration::from_millis(50));
            }
            let checked = watching.join().expect("it ends");
            checked.assert("connections arrive", "ok", &["within 2s"]);
        });
        pep.wait_idle();
        pep.stop();
    });
}
