//! Installation and removal of rules, routes and TUN devices, each test in its own network
//! namespace. Needs root.

use std::{
    collections::BTreeSet,
    future::Future,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};
use pep_core::{config::Config, hosts::Host};
use pepd_intercept::{
    Format, InterceptError, Interception, nft, render,
    rules::{Features, Ruleset},
    upkeep::Trouble,
};
use pepd_sys::{gate::Gate, notices::Changes};

/// A configuration with one site of every kind.
const RICH: &str = r#"
[intercept]
lan = ["lan0", "lan1"]
[[site]]
name = "ssh"
mode = "bypass"
match = { dport = [22] }
[[site]]
name = "careful"
syn = "defer"
match = { src = ["10.1.0.0/16", "10.3.4.5/32", "fd01::/16"], dport = [80, 443, "8000-8100"] }
[[site]]
name = "marked"
match = { dscp = [10, 46, 3], sport = ["1024-65535"], interface = ["lan1"] }
[[site]]
name = "one"
syn = "defer"
match = { dst = ["fd02::1/128"], dport = [21], dscp = [0] }
"#;

/// A configuration with sites that handle packets, among others.
const PACKETS: &str = r#"
[intercept]
lan = ["lan0", "lan1"]
[[site]]
name = "quic"
mode = "block"
match = { protocol = "udp", dport = [443, "8000-8100"] }
[[site]]
name = "careful"
syn = "defer"
match = { src = ["10.1.0.0/16", "fd01::/16"], dport = 80 }
[[site]]
name = "voice"
mode = "packet"
peer = "hub"
match = { protocol = ["udp", "sctp"], sport = [5060], dport = [5060, 5061], dscp = "ef", interface = "lan1" }
[[site]]
name = "rest"
mode = "packet"
peer = "hub"
[identity]
key_file = "k"
[peer.hub]
endpoint = "192.0.2.1:1"
public_key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
"#;

const SPOOF: &str = "[intercept]\nlan = [\"lan0\"]\n";

async fn install(text: &str) -> Result<Interception, InterceptError> {
    Interception::install(&config(text), false, Arc::default()).await
}

fn config(text: &str) -> Config {
    pep_core::config::parse(text).expect("a valid configuration")
}

/// Runs `test` in a new network namespace, which vanishes with its thread.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root");
        run("ip", &["link", "set", "lo", "up"]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(test());
    });
    thread.join().expect("the test's thread");
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

fn nft_from(input: &str, args: &[&str]) {
    use std::io::Write as _;
    let mut child = Command::new("nft")
        .args(args)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("nft starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("nft reads");
    drop(stdin);
    let status = child.wait().expect("nft ends");
    assert!(status.success(), "nft refused:\n{input}");
}

/// Returns everything that an installation may change: ruleset, policy rules, routes, links.
fn state() -> String {
    let mut state = run("nft", &["list", "ruleset"]);
    for family in ["-4", "-6"] {
        state += &run("ip", &[family, "rule"]);
        state += &run("ip", &[family, "route", "show", "table", "all"]);
    }
    state + &run("ip", &["-o", "link"])
}

/// Waits until the state is `expected`. A TUN device lasts until the last copy of its descriptor is
/// closed; programs that other tests are starting have one until their exec().
fn assert_becomes(expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while state() != expected {
        assert!(
            Instant::now() < deadline,
            "{}\ninstead of\n{expected}",
            state()
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_rule_of_the_table_is_installed() {
    for (text, features) in [
        (SPOOF, Features::FULL),
        (RICH, Features::FULL),
        (PACKETS, Features::FULL),
        (
            RICH,
            Features {
                ipv6: false,
                recent: false,
                forget: false,
                fib: false,
                rate: false,
                wildcard: false,
                seen: false,
                tags: false,
                marks: false,
                copies: false,
                errors: false,
            },
        ),
    ] {
        in_namespace(move || async move {
            let ruleset = Ruleset::new(&config(text), features);
            nft_from(&nft::install_transaction(&ruleset), &["-f", "-"]);
            let listed = run("nft", &["list", "table", "inet", "pepd"]);
            // The listing of nft must equal the model, including rules that it dropped.
            let rules: usize = ruleset.chains.iter().map(|chain| chain.rules.len()).sum();
            assert_eq!(listed.matches("comment").count(), rules, "{listed}");
        });
    }
}

/// Runs the iptables script of [`RICH`], after shell commands. Returns true on success.
fn iptables_script(before: &str, argument: &str) -> bool {
    iptables_script_of(RICH, before, argument)
}

fn iptables_script_of(text: &str, before: &str, argument: &str) -> bool {
    let script = format!("{before}\n{}", render(&config(text), Format::Iptables));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "script"]);
    shell.args(argument.split_whitespace());
    shell.status().expect("sh starts").success()
}

/// Returns everything that the script may change: nft lists the rules of iptables, too, and its
/// tables once used.
fn iptables_state() -> String {
    let chains = ["iptables-save", "ip6tables-save"].map(|save| run(save, &[]));
    let rules = chains.concat();
    let rules = rules.lines().filter(|line| line.starts_with("-A"));
    let mut state: String = rules.map(|rule| format!("{rule}\n")).collect();
    for family in ["-4", "-6"] {
        state += &run("ip", &[family, "rule"]);
        state += &run("ip", &[family, "route", "show", "table", "all"]);
    }
    state
}

#[test]
fn the_iptables_script_installs_again_and_removes() {
    in_namespace(|| async {
        let before = iptables_state();
        assert!(iptables_script("", ""), "with nothing there");
        let installed = iptables_state();
        for site in 1..=4 {
            let listener = format!("--on-port 500{site}");
            assert_eq!(installed.matches(&listener).count() % 2, 0, "{installed}");
            assert!(
                installed.contains(&listener),
                "{listener} not in\n{installed}"
            );
        }
        assert!(installed.contains("default dev pepd1"), "{installed}");
        assert!(iptables_script("", ""), "a second time");
        assert_eq!(iptables_state(), installed);
        assert!(iptables_script("", "remove"));
        assert_eq!(iptables_state(), before);
        assert!(iptables_script("", "remove"), "with nothing left");
    });
}

#[test]
fn the_iptables_script_sends_packets_into_their_tuns() {
    in_namespace(|| async {
        let before = iptables_state();
        assert!(iptables_script_of(PACKETS, "", ""), "with nothing there");
        let installed = iptables_state();
        for part in [
            "-A pepd_packet_sites -i lan1 -p udp -m dscp --dscp 0x2e -m multiport --sports 5060",
            "-A pepd_block_0 -m comment --comment quic -j DROP",
            "-g pepd_packet_0",
            "--set-xmark 0x57000000/0xff000000",
            "-o pepd-1 -p tcp -m tcp --tcp-flags SYN,RST SYN",
            "default dev pepd-1",
        ] {
            assert!(installed.contains(part), "{part} not in\n{installed}");
        }
        assert!(iptables_script_of(PACKETS, "", "remove"));
        assert_eq!(iptables_state(), before);
    });
}

#[test]
fn the_iptables_script_fails_without_a_trace() {
    in_namespace(|| async {
        let before = iptables_state();
        // Before the start, and at the very last command.
        assert!(!iptables_script("id() { echo 1; }", ""));
        assert_eq!(iptables_state(), before);
        let last = "ip6tables() { case \"$*\" in *'-A POSTROUTING -j pepd_handshakes'*) return 1;; esac; \
                    command ip6tables \"$@\"; }";
        assert!(!iptables_script(last, ""));
        assert_eq!(iptables_state(), before);
        // Partial state from another cause.
        run("ip", &["tuntap", "add", "pepd0", "mode", "tun"]);
        run("iptables", &["-t", "raw", "-N", "pepd_from_hosts"]);
        run(
            "ip",
            &[
                "rule", "add", "fwmark", "1", "table", "5000", "protocol", "80",
            ],
        );
        assert!(iptables_script("", "remove"));
        assert_eq!(iptables_state(), before);
    });
}

#[test]
fn removing_leaves_nothing_behind() {
    in_namespace(|| async {
        let before = state();
        let interception = install(RICH).await.unwrap();
        let installed = state();
        for part in [
            "table inet pepd",
            "fwmark 0x53000000/0xff000000",
            "proto 80",
            "pepd1:",
        ] {
            assert!(installed.contains(part), "no `{part}` in\n{installed}");
        }
        interception.remove().await.unwrap();
        assert_becomes(&before);
    });
}

#[test]
fn leftovers_of_a_killed_daemon_are_replaced() {
    in_namespace(|| async {
        let before = state();
        let first = install(RICH).await.unwrap();
        drop(first); // rules and routes stay, as after SIGKILL
        let killed = state();
        assert!(
            killed.contains("table inet pepd") && !killed.contains("pepd0: "),
            "{killed}"
        );
        let second = install(RICH).await.unwrap();
        let rules = run("ip", &["rule"]);
        assert_eq!(rules.matches("lookup 5000").count(), 1, "{rules}");
        second.remove().await.unwrap();
        assert_becomes(&before);
    });
}

#[test]
fn a_failed_installation_leaves_nothing_behind() {
    in_namespace(|| async {
        // A device of another program with the name of the second TUN.
        run("ip", &["tuntap", "add", "pepd1", "mode", "tun"]);
        let before = state();
        let err = install(RICH).await.expect_err("name is taken");
        assert!(err.to_string().contains("TUN device pepd1"), "{err}");
        assert_becomes(&before);
    });
}

#[test]
fn the_gate_opens_and_closes() {
    in_namespace(|| async {
        let interception = install(SPOOF).await.unwrap();
        let gate = || run("nft", &["list", "chain", "inet", "pepd", "gate"]);
        let open = gate();
        interception.set_gate(Gate::Closed).await.unwrap();
        interception.set_gate(Gate::Closed).await.unwrap();
        assert_eq!(gate().matches("accept").count(), 2, "{}", gate());
        assert_eq!(interception.passed().unwrap(), [0; 11]);
        interception.set_gate(Gate::Open).await.unwrap();
        assert_eq!(gate(), open);
        interception.remove().await.unwrap();
    });
}

#[test]
fn hosts_at_their_cap_are_in_the_sets_and_come_back_with_the_table() {
    in_namespace(|| async {
        let mut interception = install(SPOOF).await.unwrap();
        let set = |name| run("nft", &["list", "set", "inet", "pepd", name]);
        let hosts = |addresses: &[&str]| -> BTreeSet<Host> {
            let parsed = addresses.iter().map(|text| text.parse().unwrap());
            parsed.map(Host::from_address).collect()
        };
        let some = hosts(&["10.0.0.1", "10.0.0.2", "fd00:1::7"]);
        interception.set_hosts_at_cap(some).await.unwrap();
        assert!(
            set("hosts4").contains("10.0.0.1, 10.0.0.2"),
            "{}",
            set("hosts4")
        );
        assert!(set("hosts6").contains("{ fd00:1:: }"), "{}", set("hosts6"));
        let other = hosts(&["10.0.0.2"]);
        interception.set_hosts_at_cap(other).await.unwrap();
        assert!(!set("hosts6").contains("fd00"), "{}", set("hosts6"));
        assert_eq!(interception.troubles().await.unwrap(), Some(Vec::new()));
        assert_eq!(interception.troubles().await.unwrap(), None, "no change");
        run("nft", &["delete", "table", "inet", "pepd"]);
        let troubles = interception.troubles().await.unwrap();
        assert_eq!(troubles, Some(vec![Trouble::Table]));
        interception
            .restore(&Trouble::Table, Gate::Open)
            .await
            .unwrap();
        assert!(set("hosts4").contains("{ 10.0.0.2 }"), "{}", set("hosts4"));
        interception.remove().await.unwrap();
    });
}

/// Guard of [`Interception::troubles`], which looks only after such a change.
#[test]
fn the_kernel_notifies_of_all_that_upkeep_looks_at() {
    in_namespace(|| async {
        let changes = Changes::open().unwrap();
        assert!(!changes.any());
        let commands = [
            "ip link add other0 type veth peer name other1",
            "ip link set other0 up",
            "ip address add 10.77.0.1/24 dev other0",
            "ip -6 address add fd00:77::1/64 dev other0 nodad",
            "ip route add 10.78.0.0/24 dev other0",
            "ip -6 route add fd00:78::/64 dev other0",
            "ip rule add from 10.77.0.0/24 lookup main",
            "ip -6 rule add from fd00:77::/64 lookup main",
            "sysctl -w net.ipv4.conf.all.rp_filter=1",
            "sysctl -w net.ipv4.conf.other0.rp_filter=1",
            "sysctl -w net.ipv4.conf.other0.forwarding=1",
            "sysctl -w net.ipv6.conf.lo.disable_ipv6=1",
        ];
        for command in commands {
            let words: Vec<_> = command.split(' ').collect();
            if let Some(setting) = command.strip_suffix("=1") {
                let setting = setting.split(' ').next_back().unwrap();
                run("sysctl", &["-w", &format!("{setting}=0")]);
            }
            while changes.any() {}
            run(words[0], &words[1..]);
            assert!(changes.any(), "{command}");
        }
    });
}

#[test]
fn a_tun_makes_no_noise() {
    in_namespace(|| async {
        let interception = install(RICH).await.unwrap();
        let addresses = run("ip", &["-o", "address", "show", "dev", "pepd0"]);
        assert_eq!(addresses.lines().count(), 1, "{addresses}");
        assert!(
            addresses.contains("inet 192.0.0.8/32 scope host pepd0"),
            "{addresses}"
        );
        let rp_filter = std::fs::read_to_string("/proc/sys/net/ipv4/conf/pepd0/rp_filter");
        assert_eq!(rp_filter.unwrap().trim(), "2");
        let link = run("ip", &["-o", "link", "show", "dev", "pepd0"]);
        assert!(link.contains("UP") && !link.contains("MULTICAST"), "{link}");
        interception.remove().await.unwrap();
    });
}
