//! Rules that pepd installs by iptables, and rules that the operator installs.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Stdio,
};

use pepd_tests::{
    bed::{Bed, Place},
    echo::EchoServer,
    host::Host,
    matrix::matrix_pepd_only,
    pep::Pep,
    pep_binary::pepd,
    wait::{PATIENCE, wait_until},
};
use tempfile::TempDir;

use crate::{
    support::{PORT, connect, echo_once},
    survive::upgrade,
};

/// A backend of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Nft,
    Legacy,
}

/// Programs that pepd finds first.
struct Tools {
    backend: Backend,
    directory: TempDir,
}

impl Tools {
    /// Returns commands of iptables that have this backend, and no other programs.
    fn new(backend: Backend) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let name = match backend {
            Backend::Nft => "nft",
            Backend::Legacy => "legacy",
        };
        for program in ["iptables", "ip6tables"] {
            for what in ["-restore", "-save", ""] {
                let target = format!("/usr/sbin/{program}-{name}{what}");
                let link = directory.path().join(format!("{program}{what}"));
                symlink(target, link).expect("a new name");
            }
        }
        let all = Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), all).expect("ours");
        Self { backend, directory }
    }

    fn path(&self) -> String {
        format!(
            "{}:/usr/sbin:/usr/bin:/sbin:/bin",
            self.directory.path().display()
        )
    }

    fn start(&self, bed: &Bed, config: &str) -> Pep {
        // The commands create their tables and chains, and leave them.
        for program in ["iptables", "ip6tables"] {
            for (table, chain) in [
                ("raw", "PREROUTING"),
                ("raw", "OUTPUT"),
                ("mangle", "PREROUTING"),
                ("mangle", "INPUT"),
                ("mangle", "FORWARD"),
                ("mangle", "OUTPUT"),
                ("mangle", "POSTROUTING"),
            ] {
                self.run(
                    &bed.gateway,
                    &format!("{program} -t {table} -A {chain} -j ACCEPT"),
                );
                self.run(
                    &bed.gateway,
                    &format!("{program} -t {table} -D {chain} -j ACCEPT"),
                );
            }
        }
        self.start_again(bed, config)
    }

    fn start_again(&self, bed: &Bed, config: &str) -> Pep {
        Pep::start_by(&bed.gateway, config, |mut command| {
            command.env("PATH", self.path());
            command
        })
    }

    /// Runs shell commands on a machine.
    fn run(&self, host: &Host, script: &str) -> String {
        host.run("sh", &["-ec", &format!("PATH={}; {script}", self.path())])
    }

    /// Returns all rules that name one of pepd's chains.
    fn rules(&self, host: &Host) -> String {
        let saved = self.run(host, "iptables-save; ip6tables-save");
        let lines = saved.lines().filter(|line| line.contains("pepd"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn config(bed: &Bed, rules: &str, more: &str) -> String {
    let config = bed.config(more).expect("not direct");
    config.replace(
        "[intercept]\n",
        &format!("[intercept]\nrules = \"{rules}\"\n"),
    )
}

fn echo_server(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

/// Checks that new flows are accelerated.
fn accelerated(bed: &Bed, pep: &Pep) {
    let before = pep.counter("flows_accepted");
    echo_once(&mut connect(bed), b"accelerated");
    assert_eq!(pep.counter("flows_accepted"), before + 1);
}

fn carries_flows_and_removes_its_rules(backend: Backend) {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = Tools::new(backend);
        let mut pep = tools.start(bed, &config(bed, "iptables", ADMIN));
        let mut open = connect(bed);
        echo_once(&mut open, b"open");
        assert_eq!(pep.counter("flows_accepted"), 1);
        let status = pep.ask(&["status"]);
        let version = match backend {
            Backend::Nft => "(nf_tables)",
            Backend::Legacy => "(legacy)",
        };
        assert!(
            status.contains("rules: iptables v") && status.contains(version),
            "{status}"
        );
        assert!(
            !bed.gateway
                .run("nft", &["list", "tables"])
                .contains("inet pepd")
        );
        for program in ["iptables", "ip6tables"] {
            for change in [
                "-t mangle -F",
                "-t raw -F",
                "-t raw -F pepd_sites",
                "-t raw -I PREROUTING -j ACCEPT",
                "-t mangle -D POSTROUTING -j pepd_handshakes",
            ] {
                let position = pep.log().position();
                tools.run(&bed.gateway, &format!("{program} {change}"));
                let logged = pep.log().find(position, PATIENCE, |event| {
                    event.level() == "WARN" && event.message().contains("reinstalled")
                });
                assert!(
                    logged.is_some(),
                    "{program} {change}: pepd has not restored its rules"
                );
                accelerated(bed, &pep);
                echo_once(&mut open, b"still open");
            }
            tools.run(
                &bed.gateway,
                &format!("{program} -t raw -D PREROUTING -j ACCEPT"),
            );
        }
        drop(open);
        assert_eq!(pep.terminate(), 0);
        assert_eq!(tools.rules(&bed.gateway), "");
        if tools.backend == Backend::Nft {
            pep.assert_nothing_left();
        }
    });
}

#[test]
fn iptables_with_the_backend_of_nft_carries_flows() {
    carries_flows_and_removes_its_rules(Backend::Nft);
}

#[test]
fn iptables_with_the_legacy_backend_carries_flows() {
    carries_flows_and_removes_its_rules(Backend::Legacy);
}

#[test]
fn the_gate_of_iptables_closes_at_the_flow_limit_and_opens_again() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = Tools::new(Backend::Nft);
        let mut pep = tools.start(bed, &config(bed, "iptables", "[limits]\nflows = 1"));
        let mut only = connect(bed);
        echo_once(&mut only, b"accelerated");
        // The counter grows before the rules change.
        pep.log().expect("the gate is closed");
        let mut passed = connect(bed);
        echo_once(&mut passed, b"not accelerated");
        // A reinstalled gate stays closed.
        let position = pep.log().position();
        tools.run(&bed.gateway, "iptables -t raw -F; ip6tables -t raw -F");
        let logged = pep.log().find(position, PATIENCE, |event| {
            event.message().contains("reinstalled")
        });
        assert!(logged.is_some(), "pepd has not restored its rules");
        echo_once(&mut connect(bed), b"not accelerated");
        echo_once(&mut only, b"still accelerated");
        assert_eq!(pep.counter("flows_accepted"), 1);
        assert!(pep.wait_counter("syns_passed_gate", |syns| syns > 0) > 0);
        drop(only);
        wait_until("new flows to be accelerated", || {
            echo_once(&mut connect(bed), b"accelerated?");
            pep.counter("flows_accepted") > 1
        });
        echo_once(&mut passed, b"still not accelerated");
        drop(passed);
        assert_eq!(pep.terminate(), 0);
        assert_eq!(tools.rules(&bed.gateway), "");
    });
}

/// A rule that iptables does not understand makes its table unreadable.
const FOREIGN: &str = "add rule ip raw PREROUTING fib daddr type broadcast drop";

#[test]
fn pepd_gets_on_where_iptables_cannot_list_a_table() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = Tools::new(Backend::Nft);
        let text = config(bed, "iptables", ADMIN);
        let mut pep = tools.start(bed, &text);
        let mut open = connect(bed);
        echo_once(&mut open, b"open");
        bed.gateway.nft(FOREIGN);
        let saved = tools.run(&bed.gateway, "iptables-save -t raw");
        assert!(saved.contains("incompatible"), "{saved}");
        upgrade(&pep);
        echo_once(&mut open, b"still open");
        accelerated(bed, &pep);
        drop(open);
        assert_eq!(pep.terminate(), 0);
        let ruleset = || bed.gateway.run("nft", &["list", "ruleset"]);
        assert!(!ruleset().contains("pepd"), "{}", ruleset());
        let mut again = tools.start_again(bed, &text);
        accelerated(bed, &again);
        assert_eq!(again.terminate(), 0);
        assert!(!ruleset().contains("pepd"), "{}", ruleset());
    });
}

#[test]
fn hosts_at_their_limit_pass_by_iptables() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = Tools::new(Backend::Nft);
        let limits = "[limits]\nflows_per_host = 1";
        let mut pep = tools.start(bed, &config(bed, "iptables", limits));
        let mut only = connect(bed);
        echo_once(&mut only, b"accelerated");
        wait_until("the host to be in its chain", || {
            tools.rules(&bed.gateway).contains("-j pepd_host_at_cap")
        });
        echo_once(&mut connect(bed), b"not accelerated");
        pep.wait_counter("syns_passed_hosts", |syns| syns > 0);
        assert_eq!(pep.counter("flows_accepted"), 1);
        drop(only);
        assert_eq!(pep.terminate(), 0);
    });
}

#[test]
fn after_a_kill_connections_pass_the_rules_of_iptables() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = Tools::new(Backend::Nft);
        let config = config(bed, "iptables", "[custody]\nsurvive = false");
        let mut pep = tools.start(bed, &config);
        accelerated(bed, &pep);
        pep.kill();
        assert!(tools.rules(&bed.gateway).contains("TPROXY"));
        // Within its retransmissions, the host's SYN passes.
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "4");
        echo_once(&mut connect(bed), b"passes");
        let mut again = tools.start(bed, &config);
        accelerated(bed, &again);
        assert_eq!(again.terminate(), 0);
        assert_eq!(tools.rules(&bed.gateway), "");
    });
}

/// nft on a kernel that cannot redirect by it.
const NO_TPROXY: &str = "#!/bin/sh\n\
    [ \"$1\" = --version ] && echo 'nftables v1.0.6 (x)' && exit\n\
    grep -q tproxy && echo 'Error: Could not process rule: No such file or directory' >&2 && exit 1\n\
    exit 0\n";

#[test]
fn iptables_is_chosen_where_nft_cannot_redirect() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = Tools::new(Backend::Nft);
        let nft = tools.directory.path().join("nft");
        fs::write(&nft, NO_TPROXY).expect("written");
        fs::set_permissions(&nft, Permissions::from_mode(0o755)).expect("executable");
        let mut pep = tools.start(bed, &config(bed, "auto", ""));
        accelerated(bed, &pep);
        let chosen = pep.log().find(0, PATIENCE, |event| {
            event.message().contains("nft cannot redirect connections")
                && event.message().contains("nft_tproxy")
        });
        assert!(chosen.is_some(), "the log does not name the cause");
        assert_eq!(pep.terminate(), 0);
        assert_eq!(tools.rules(&bed.gateway), "");
    });
}

/// Prints the rules of a configuration.
fn printed(bed: &Bed, config: &Path, format: &str) -> String {
    let program = pepd().to_str().expect("a path");
    let config = config.to_str().expect("a path");
    bed.gateway
        .run(program, &["rules", "--config", config, "--format", format])
}

/// Runs a program with this input.
fn feed(host: &Host, program: &str, arguments: &[&str], input: &str) {
    use std::io::Write as _;
    let mut command = host.command(program);
    let mut child = command
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    assert!(
        child.wait().expect("it ends").success(),
        "refused:\n{input}"
    );
}

/// Returns the output of `pepd check` about rules.
fn checked(bed: &Bed, pep: &Pep) -> String {
    let program = pepd().to_str().expect("a path");
    let config = pep.path("pepd.toml");
    let output = bed.gateway.output(
        program,
        &[
            "check",
            "--quiet",
            "--config",
            config.to_str().expect("a path"),
        ],
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn rules_of_the_operator_carry_flows_and_are_left_alone() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        for format in ["nft", "iptables"] {
            let files = tempfile::tempdir().expect("a temporary directory");
            let text = config(bed, "manual", ADMIN);
            let file = files.path().join("pepd.toml");
            fs::write(&file, &text).expect("written");
            let rules = printed(bed, &file, format);
            let mut pep = Pep::start(&bed.gateway, &text);
            let without = checked(bed, &pep);
            assert!(
                without.contains("fail     rules (of the operator): missing: IPv4: TPROXY"),
                "{without}"
            );
            assert!(without.contains("tproxy ip6 to [::1]:5000"), "{without}");
            echo_once(&mut connect(bed), b"passes");
            assert_eq!(pep.counter("flows_accepted"), 0);
            match format {
                "nft" => feed(&bed.gateway, "nft", &["-f", "-"], &rules),
                _ => {
                    // The script replaces rules of another configuration.
                    let other = text.replacen("lan = [", "lan = [\"lan9\", ", 1);
                    assert_ne!(other, text);
                    fs::write(&file, other).expect("written");
                    feed(&bed.gateway, "sh", &["-s"], &printed(bed, &file, format));
                    feed(&bed.gateway, "sh", &["-s"], &rules);
                }
            }
            // The gate of iptables opens by pepd's next signal.
            wait_until("flows to be accelerated", || {
                echo_once(&mut connect(bed), b"accelerated?");
                pep.counter("flows_accepted") > 0
            });
            let with = checked(bed, &pep);
            assert!(!with.contains("rules (of the operator)"), "{with}");
            let refused = bed.gateway.output(
                pepd().to_str().expect("a path"),
                &[
                    "site",
                    "off",
                    "default",
                    "--socket",
                    pep.path("admin.sock").to_str().expect("a path"),
                ],
            );
            assert!(!refused.status.success(), "{refused:?}");
            pep.wait_idle();
            assert_eq!(pep.terminate(), 0);
            match format {
                "nft" => bed.gateway.nft("delete table inet pepd"),
                _ => {
                    feed(&bed.gateway, "sh", &["-s", "remove"], &rules);
                    let left = bed.gateway.run("iptables-save", &[]);
                    assert!(!left.contains("pepd"), "{left}");
                }
            }
        }
    });
}
