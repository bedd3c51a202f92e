//! Errors of `pepd run` on a machine that lacks a requirement. Each test starts the program in its
//! own network namespace. Needs root.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use tempfile::TempDir;

/// Exit code for a failed set-up (`pepd_api::exit`).
const SETUP: i32 = 4;
/// Exit code for an invalid configuration, or one for another machine.
const CONFIGURATION: i32 = 3;

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const CONFIG: &str = "[intercept]\nlan = [\"lan0\"]\n";
/// A configuration that does not use iptables instead.
const NFT: &str = "[intercept]\nlan = [\"lan0\"]\nrules = \"nft\"\n";

/// Runs pepd by a shell with `before` in front of its command line, until it ends or is ready, for
/// at most a minute. Returns its exit code, `None` if it had to be stopped, and its log.
fn run(before: &str, path: &Path, config: &str) -> (Option<i32>, String) {
    run_program(Path::new(PEPD), before, path, config)
}

/// Runs a copy of pepd in the same way.
fn run_program(program: &Path, before: &str, path: &Path, config: &str) -> (Option<i32>, String) {
    let files = open_directory();
    let (config_file, log_file) = (files.path().join("pepd.toml"), files.path().join("log"));
    fs::write(&config_file, config).expect("written");
    let script = format!(
        "set -e; ip link set lo up; {before} {} run --config {}",
        program.display(),
        config_file.display()
    );
    let mut child = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", &script])
        .env(
            "PATH",
            format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", path.display()),
        )
        .stderr(fs::File::create(&log_file).expect("a file"))
        .stdout(Stdio::null())
        .spawn()
        .expect("unshare starts");
    let code = wait(&mut child, &log_file);
    let mut log = String::new();
    let mut file = fs::File::open(&log_file).expect("the log");
    file.read_to_string(&mut log).expect("text");
    (code, log)
}

/// Returns a directory that all users may read.
fn open_directory() -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), all).expect("ours");
    directory
}

fn wait(child: &mut Child, log: &Path) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        if fs::read_to_string(log).is_ok_and(|log| log.contains("pepd is ready")) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    // On SIGTERM it ends all of its processes.
    let pid = Pid::from_raw(child.id().cast_signed());
    signal::kill(pid, Signal::SIGTERM).expect("running");
    child.wait().expect("a child");
    None
}

fn assert_logs(before: &str, path: &Path, config: &str, expected: &str) {
    let (code, log) = run(before, path, config);
    assert_eq!(code, Some(SETUP), "{log}");
    assert!(log.contains(expected), "no `{expected}` in\n{log}");
}

/// Returns a directory with an `nft` that rejects transactions with `word`.
fn nft_without(word: &str) -> TempDir {
    nft_by(&format!(
        "input=$(cat)\ncase \"$input\" in *'{word}'*)\n\
         echo 'Error: Could not process rule: No such file or directory' >&2; exit 1;; esac\n\
         printf '%s\\n' \"$input\" | exec /usr/sbin/nft \"$@\"\n"
    ))
}

/// Returns a directory with this script as `nft`.
fn nft_by(script: &str) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    let nft = directory.path().join("nft");
    fs::write(&nft, format!("#!/bin/sh\n{script}")).expect("written");
    fs::set_permissions(&nft, fs::Permissions::from_mode(0o755)).expect("executable");
    directory
}

const NOWHERE: &str = "/nonexistent";

#[test]
fn a_missing_capability_is_named() {
    // A program started without it in the bounding set does not get it, root or not.
    let before = "exec setpriv --bounding-set -net_raw";
    assert_logs(before, Path::new(NOWHERE), CONFIG, "CAP_NET_RAW");
}

/// Rules that cannot be removed again must not be installed.
#[test]
fn too_few_descriptors_are_reported_before_anything_is_installed() {
    for limit in [8, 32] {
        let before = format!("trap 'nft list tables' EXIT; exec >&2; ulimit -n {limit};");
        let (code, log) = run(&before, Path::new(NOWHERE), CONFIG);
        assert_eq!(code, Some(SETUP), "{log}");
        let expected = format!("this process may have {limit} descriptors, and needs ");
        assert!(log.contains(&expected), "no `{expected}` in\n{log}");
        assert!(log.contains("LimitNOFILE="), "{log}");
        assert!(!log.contains("table inet"), "{log}");
        // A concurrent test may have left it one descriptor more.
        let (mut code, mut log) = (code, log);
        for _ in 0..5 {
            let Some((_, rest)) = log.split_once("descriptors, and needs ") else {
                break;
            };
            let needed = rest.split(' ').next().expect("a number");
            let before = format!("ulimit -n {needed}; exec");
            (code, log) = run(&before, Path::new(NOWHERE), CONFIG);
        }
        assert!(code.is_none() && log.contains("pepd is ready"), "{log}");
    }
}

#[test]
fn a_check_knows_how_many_descriptors_a_start_takes() {
    let reported = || {
        let found = findings("ulimit -n 32;", CONFIG);
        let expected = "fail     file descriptors: too few: pepd does not start (processes started from here may have 32, ";
        let needed = after(&found, expected);
        let (code, log) = run("ulimit -n 32; exec", Path::new(NOWHERE), CONFIG);
        assert_eq!(code, Some(SETUP), "{log}");
        let agree = needed == after(&log, "may have 32 descriptors, and needs ");
        agree.then(|| after(&found, "LimitNOFILE="))
    };
    // A concurrent test may have left one of them one descriptor more.
    let advised = (0..5).find_map(|_| reported()).expect("they agree");
    // The advised number suffices.
    let before = format!("ulimit -n {advised}; exec");
    let (_, log) = run(&before, Path::new(NOWHERE), CONFIG);
    assert!(log.contains("pepd is ready"), "{log}");
    assert!(
        !log.contains("not enough file descriptors"),
        "{advised}: {log}"
    );
}

/// Returns the word after these.
fn after(text: &str, words: &str) -> String {
    let Some((_, rest)) = text.split_once(words) else {
        panic!("no `{words}` in\n{text}");
    };
    let rest = rest.split(' ').next();
    rest.unwrap_or_default().to_owned()
}

/// Consequences of a missing capability must not be reported instead.
#[test]
fn all_missing_capabilities_are_named_before_anything_is_tried() {
    let before = "exec setpriv --bounding-set -net_admin,-net_raw,-net_bind_service";
    let expected = "pepd lacks CAP_NET_ADMIN, CAP_NET_RAW, CAP_NET_BIND_SERVICE: ";
    assert_logs(before, Path::new(NOWHERE), CONFIG, expected);
}

#[test]
fn the_capabilities_that_the_message_asks_for_are_enough() {
    let names = ["net_admin", "net_raw", "net_bind_service"];
    let directory = open_directory();
    let program = copy_of_pepd(&directory);
    let is_ready = |before: &str, options: &str| {
        let unprivileged = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let before = format!("{before} exec {unprivileged} {options}");
        let (code, log) = run_program(&program, &before, Path::new(NOWHERE), CONFIG);
        assert!(code.is_none() && log.contains("pepd is ready"), "{log}");
    };
    // As by AmbientCapabilities= of systemd.
    let given = names.map(|name| format!("+{name}")).join(",");
    is_ready("", &format!("--inh-caps {given} --ambient-caps {given}"));
    // As by setcap; nft gets the capabilities only if pepd passes them on.
    let file = names.map(|name| format!("cap_{name}")).join(",");
    is_ready(&format!("setcap {file}=ep {};", program.display()), "");
}

/// Returns a configuration with a site that has this list, with another control than other tests
/// load.
fn with_congestion(list: &str) -> String {
    format!("{CONFIG}[[site]]\nname = \"a\"\ncongestion = {list}\n")
}

/// Returns a command that runs pepd as an unprivileged user, with capabilities as by
/// `AmbientCapabilities=` of systemd.
fn unprivileged_with(capabilities: &[&str]) -> String {
    let given: Vec<_> = capabilities.iter().map(|name| format!("+{name}")).collect();
    let given = given.join(",");
    format!(
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps {given} \
         --ambient-caps {given}"
    )
}

/// Returns a copy of pepd that all users may run.
fn copy_of_pepd(directory: &TempDir) -> PathBuf {
    let program = directory.path().join("pepd");
    // Written by another process: a child of a concurrent test would otherwise hold it open, and it
    // could not run.
    let copied = Command::new("cp").arg(PEPD).arg(&program).status();
    assert!(copied.expect("it starts").success());
    program
}

#[test]
fn what_loading_a_control_lacks_is_named_in_one_line_and_nothing_else() {
    let directory = open_directory();
    let program = copy_of_pepd(&directory);
    let before = unprivileged_with(&["net_admin", "net_raw", "net_bind_service", "bpf"]);
    let config = with_congestion("[\"vegas\"]");
    let (code, log) = run_program(&program, &before, Path::new(NOWHERE), &config);
    assert_eq!(code, Some(SETUP), "{log}");
    let expected = "site `a`: no congestion control of `congestion` is available: `vegas`: eBPF congestion \
                    controls need CAP_PERFMON, which this process lacks: run it as root, or add to its \
                    unit AmbientCapabilities=CAP_PERFMON";
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    assert!(errors[0].ends_with(expected), "{log}");
    assert!(
        !log.contains("CAP_BPF") && !log.contains("CAP_NET"),
        "{log}"
    );
}

#[test]
fn with_a_fallback_a_missing_capability_is_a_warning() {
    let directory = open_directory();
    let program = copy_of_pepd(&directory);
    let before = unprivileged_with(&["net_admin", "net_raw", "net_bind_service"]);
    let config = with_congestion("[\"vegas\", \"cubic\"]");
    let (code, log) = run_program(&program, &before, Path::new(NOWHERE), &config);
    assert_eq!(code, None, "{log}");
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    let expected = "congestion control vegas is not available, using cubic instead: eBPF congestion controls need CAP_BPF \
                    CAP_PERFMON, which this process lacks";
    let found = warnings.iter().any(|line| line.contains(expected));
    assert!(found && log.contains("pepd is ready"), "{log}");
}

#[test]
fn the_capabilities_of_the_docs_are_enough_for_controls_of_ours() {
    let directory = open_directory();
    let program = copy_of_pepd(&directory);
    let docs = include_str!("../../../docs/interception.md");
    let (_, line) = docs
        .rsplit_once("AmbientCapabilities=")
        .expect("documented");
    let line = line.lines().next().expect("a line").to_lowercase();
    let names: Vec<_> = line
        .split(' ')
        .map(|name| name.trim_start_matches("cap_"))
        .collect();
    assert!(names.contains(&"bpf"), "{names:?}");
    let config = with_congestion("[\"vegas\"]");
    let before = unprivileged_with(&names);
    let (code, log) = run_program(&program, &before, Path::new(NOWHERE), &config);
    assert!(code.is_none() && log.contains("pepd is ready"), "{log}");
    assert!(log.contains("congestion control loaded"), "{log}");
}

const WITHOUT_BTF: &str = "mount -t tmpfs none /sys/kernel/btf; exec";

#[test]
fn without_btf_the_configuration_is_refused_where_it_is_wrong() {
    let config = with_congestion("[\"vegas\"]");
    let (code, log) = run(WITHOUT_BTF, Path::new(NOWHERE), &config);
    assert_eq!(code, Some(CONFIGURATION), "{log}");
    let expected = "pepd.toml:5: site[1].congestion: no congestion control is available: `vegas`: this kernel \
                    has no BTF (/sys/kernel/btf/vmlinux is missing)";
    assert!(log.contains(expected), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn without_btf_the_next_of_the_list_is_taken_with_a_warning() {
    let config = with_congestion("[\"vegas\", \"reno\"]");
    let (code, log) = run(WITHOUT_BTF, Path::new(NOWHERE), &config);
    assert_eq!(code, None, "{log}");
    let warned =
        "congestion control vegas is not available, using reno instead: this kernel has no BTF";
    assert!(
        log.contains(warned) && log.contains("pepd is ready"),
        "{log}"
    );
}

#[test]
fn an_unknown_control_is_refused_with_the_available_ones() {
    let config = with_congestion("[\"hylba\"]");
    let (code, log) = run("exec", Path::new(NOWHERE), &config);
    assert_eq!(code, Some(CONFIGURATION), "{log}");
    let expected = "pepd.toml:5: site[1].congestion: no congestion control is available: `hylba` is not known \
                    (did you mean `hybla`?); the kernel has reno";
    assert!(log.contains(expected), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn what_is_missing_is_named_whichever_program_may_install_rules() {
    let before = "mount -t tmpfs none /usr/sbin; PATH=/bin; exec";
    for remedy in ["apt install nftables", "apt install iptables"] {
        assert_logs(before, Path::new(NOWHERE), CONFIG, remedy);
    }
    let iptables = NFT.replace("\"nft\"", "\"iptables\"");
    assert_logs(before, Path::new(NOWHERE), NFT, "apt install nftables");
    assert_logs(
        before,
        Path::new(NOWHERE),
        &iptables,
        "apt install iptables",
    );
}

/// Returns the only error in the log.
fn the_error(path: &Path, before: &str, config: &str) -> String {
    let (code, log) = run(before, path, config);
    assert_eq!(code, Some(SETUP), "{log}");
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    errors[0].to_owned()
}

#[test]
fn an_nft_that_is_too_old_is_named_with_the_version_that_is_needed() {
    let nft = nft_by("echo 'nftables v0.9.3 (Topsy)'\n");
    let error = the_error(nft.path(), "exec", NFT);
    assert!(
        error.ends_with("this is nft 0.9.3; pepd needs 0.9.8 or later"),
        "{error}"
    );
}

#[test]
fn a_kernel_without_nftables_is_named_in_the_words_of_nft() {
    let nft = nft_by(
        "[ \"$1\" = --version ] && echo 'nftables v1.0.6 (x)' && exit\n\
         echo 'netlink: Error: cache initialization failed: Operation not supported' >&2; exit 1\n",
    );
    let error = the_error(nft.path(), "exec", NFT);
    let expected =
        "nftables does not work: nft refused: cache initialization failed: Operation not supported";
    assert!(
        error.contains(expected) && error.contains("modprobe nf_tables"),
        "{error}"
    );
}

/// VPNs and load balancers have tables of their own.
#[test]
fn a_routing_table_of_another_program_is_named() {
    for ip in ["ip", "ip -6"] {
        let route = format!("{ip} route add blackhole default table 5000;");
        assert_logs(
            &route,
            Path::new(""),
            CONFIG,
            "routing table 5000 already has",
        );
    }
}

#[test]
fn a_missing_tun_is_named() {
    let config = format!("{CONFIG}syn = \"defer\"\n");
    let before = "echo 1 >/proc/sys/net/ipv4/ip_forward; mount -t tmpfs none /dev/net; exec";
    let error = the_error(Path::new(NOWHERE), before, &config);
    assert!(
        error.contains("cannot open /dev/net/tun") && error.contains("modprobe tun"),
        "{error}"
    );
    let found = findings("mount -t tmpfs none /dev/net;", &config);
    assert!(
        found.contains("fail     TUN devices: unavailable"),
        "{found}"
    );
    let other = "mount -t tmpfs none /dev/net; touch /dev/net/tun;";
    let found = findings(other, &config);
    assert!(found.contains("/dev/net/tun is no TUN device"), "{found}");
    let ignore = format!("{CONFIG}forward = \"ignore\"\n");
    let spoof = findings("mount -t tmpfs none /dev/net;", &ignore);
    assert!(!spoof.contains("TUN devices"), "{spoof}");
    let spoof = findings("mount -t tmpfs none /dev/net;", CONFIG);
    let means =
        "warn     TUN devices: unavailable, so rules of other programs in `forward` do not hold";
    assert!(spoof.contains(means), "{spoof}");
}

/// Returns the output of `pepd check`, after shell commands.
fn findings(before: &str, config: &str) -> String {
    let files = open_directory();
    let file = files.path().join("pepd.toml");
    // Another socket than that of a pepd run by a concurrent test.
    let config = format!("{config}\n[admin]\nsocket = \"admin.sock\"\n");
    fs::write(&file, config).expect("written");
    let script = format!("{before} exec {PEPD} check --config {}", file.display());
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "sh", "-c", &script]);
    let output = unshare.output().expect("unshare starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn neither_a_list_of_protocols_nor_dev_stdin_is_needed() {
    let before = "mount --bind /dev/null /etc/protocols; mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; exec";
    let (code, log) = run(before, Path::new(NOWHERE), CONFIG);
    assert!(code.is_none() && log.contains("pepd is ready"), "{log}");
}

#[test]
fn a_missing_kernel_part_is_named() {
    let nft = nft_without(" tproxy ");
    assert_logs("exec", nft.path(), NFT, "CONFIG_NFT_TPROXY");
    let nft = nft_without("socket transparent");
    assert_logs("exec", nft.path(), NFT, "modprobe nft_socket");
}

#[test]
fn what_can_be_done_without_is_warned_of() {
    for (word, expected) in [("update @", "nft_dynset"), ("fib ", "nft_fib")] {
        let nft = nft_without(word);
        let (code, log) = run("exec", nft.path(), CONFIG);
        assert_eq!(code, None, "{log}");
        assert!(log.contains(expected) && log.contains("ready"), "{log}");
    }
}

#[test]
fn a_machine_that_does_not_forward_cannot_defer() {
    let config = format!("{CONFIG}syn = \"defer\"\n");
    let expected = "sysctl -w net.ipv4.ip_forward=1";
    assert_logs("exec", Path::new(NOWHERE), &config, expected);
}
