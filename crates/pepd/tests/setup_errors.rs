//! What `pepd run` says when the machine lacks something. Each test starts the program in a
//! network namespace of its own. Needs root.

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

/// Set up wrongly (`pepd_api::exit`).
const SETUP: i32 = 4;
/// Configured wrongly, or for another machine.
const CONFIGURATION: i32 = 3;

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const CONFIG: &str = "[intercept]\nlan = [\"lan0\"]\n";

/// Runs pepd, by a shell with `before` in front of its command line, until it ends or is ready, at most a minute.
/// Returns its exit code, `None` if it had to be stopped, and what it logged.
fn run(before: &str, path: &Path, config: &str) -> (Option<i32>, String) {
    run_program(Path::new(PEPD), before, path, config)
}

/// The same with a copy of pepd.
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

/// A directory that all may read.
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
    // Told to end, it ends all of its processes.
    let pid = Pid::from_raw(child.id().cast_signed());
    signal::kill(pid, Signal::SIGTERM).expect("running");
    child.wait().expect("a child");
    None
}

fn says(before: &str, path: &Path, config: &str, expected: &str) {
    let (code, log) = run(before, path, config);
    assert_eq!(code, Some(SETUP), "{log}");
    assert!(log.contains(expected), "no `{expected}` in\n{log}");
}

/// A directory with an `nft` that refuses whatever contains `word`.
fn nft_without(word: &str) -> TempDir {
    nft_by(&format!(
        "input=$(cat)\ncase \"$input\" in *'{word}'*)\n\
         echo 'Error: Could not process rule: No such file or directory' >&2; exit 1;; esac\n\
         printf '%s\\n' \"$input\" | exec /usr/sbin/nft \"$@\"\n"
    ))
}

/// A directory with an `nft` that does so.
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
    says(before, Path::new(NOWHERE), CONFIG, "CAP_NET_RAW");
}

/// What cannot be removed again must not be installed.
#[test]
fn too_few_descriptors_are_told_of_before_anything_is_installed() {
    for limit in [8, 32] {
        let before = format!("trap 'nft list tables' EXIT; exec >&2; ulimit -n {limit};");
        let (code, log) = run(&before, Path::new(NOWHERE), CONFIG);
        assert_eq!(code, Some(SETUP), "{log}");
        let expected = format!("this process may have {limit} descriptors, and needs ");
        assert!(log.contains(&expected), "no `{expected}` in\n{log}");
        assert!(log.contains("LimitNOFILE="), "{log}");
        assert!(!log.contains("table inet"), "{log}");
        // A test beside this one may have left it a descriptor more.
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
    let told = || {
        let found = findings("ulimit -n 32;", CONFIG);
        let expected = "fail     file descriptors: too few: pepd does not start (what is started from here may have 32, ";
        let needed = after(&found, expected);
        let (code, log) = run("ulimit -n 32; exec", Path::new(NOWHERE), CONFIG);
        assert_eq!(code, Some(SETUP), "{log}");
        let agree = needed == after(&log, "may have 32 descriptors, and needs ");
        agree.then(|| after(&found, "LimitNOFILE="))
    };
    // A test beside this one may have left one of them a descriptor more.
    let advised = (0..5).find_map(|_| told()).expect("they agree");
    // With as many as it advises, nothing is short.
    let before = format!("ulimit -n {advised}; exec");
    let (_, log) = run(&before, Path::new(NOWHERE), CONFIG);
    assert!(log.contains("pepd is ready"), "{log}");
    assert!(
        !log.contains("not enough file descriptors"),
        "{advised}: {log}"
    );
}

/// The word that follows these.
fn after(text: &str, words: &str) -> String {
    let Some((_, rest)) = text.split_once(words) else {
        panic!("no `{words}` in\n{text}");
    };
    let rest = rest.split(' ').next();
    rest.unwrap_or_default().to_owned()
}

/// What follows from a missing right must not be reported in its place.
#[test]
fn all_missing_capabilities_are_named_before_anything_is_tried() {
    let before = "exec setpriv --bounding-set -net_admin,-net_raw,-net_bind_service";
    let expected = "pepd lacks CAP_NET_ADMIN, CAP_NET_RAW, CAP_NET_BIND_SERVICE: ";
    says(before, Path::new(NOWHERE), CONFIG, expected);
}

#[test]
fn the_capabilities_that_the_message_asks_for_are_enough() {
    let names = ["net_admin", "net_raw", "net_bind_service"];
    let directory = open_directory();
    let program = copy_of_pepd(&directory);
    let is_ready = |before: &str, options: &str| {
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let before = format!("{before} exec {nobody} {options}");
        let (code, log) = run_program(&program, &before, Path::new(NOWHERE), CONFIG);
        assert!(code.is_none() && log.contains("pepd is ready"), "{log}");
    };
    // AmbientCapabilities= of systemd.
    let given = names.map(|name| format!("+{name}")).join(",");
    is_ready("", &format!("--inh-caps {given} --ambient-caps {given}"));
    // setcap, whose rights nft gets only if pepd hands them down.
    let file = names.map(|name| format!("cap_{name}")).join(",");
    is_ready(&format!("setcap {file}=ep {};", program.display()), "");
}

/// A site with this list, of another control than other tests load.
fn with_congestion(list: &str) -> String {
    format!("{CONFIG}[[site]]\nname = \"a\"\ncongestion = {list}\n")
}

/// Nobody, with capabilities as `AmbientCapabilities=` of systemd gives them.
fn nobody_with(capabilities: &[&str]) -> String {
    let given: Vec<_> = capabilities.iter().map(|name| format!("+{name}")).collect();
    let given = given.join(",");
    format!(
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps {given} \
         --ambient-caps {given}"
    )
}

/// A copy of pepd that everybody may run.
fn copy_of_pepd(directory: &TempDir) -> PathBuf {
    let program = directory.path().join("pepd");
    // Not written by this process: who is started by another test meanwhile would hold it open, and it could not run.
    let copied = Command::new("cp").arg(PEPD).arg(&program).status();
    assert!(copied.expect("it starts").success());
    program
}

#[test]
fn what_loading_a_control_lacks_is_named_in_one_line_and_nothing_else() {
    let directory = open_directory();
    let program = copy_of_pepd(&directory);
    let before = nobody_with(&["net_admin", "net_raw", "net_bind_service", "bpf"]);
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
    let before = nobody_with(&["net_admin", "net_raw", "net_bind_service"]);
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
    let before = nobody_with(&names);
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
    let expected = "pepd.toml:5: site[1].congestion: no congestion control can be had: `vegas`: this kernel \
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
fn an_unknown_control_is_refused_with_what_there_is() {
    let config = with_congestion("[\"hylba\"]");
    let (code, log) = run("exec", Path::new(NOWHERE), &config);
    assert_eq!(code, Some(CONFIGURATION), "{log}");
    let expected = "pepd.toml:5: site[1].congestion: no congestion control can be had: `hylba` is not known \
                    (did you mean `hybla`?); the kernel has reno";
    assert!(log.contains(expected), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn a_missing_nft_is_named() {
    let before = "mount -t tmpfs none /usr/sbin; PATH=/bin; exec";
    says(before, Path::new(NOWHERE), CONFIG, "apt install nftables");
}

/// The only error in the log.
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
    let error = the_error(nft.path(), "exec", CONFIG);
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
    let error = the_error(nft.path(), "exec", CONFIG);
    let expected = "nftables does not work here, as nft refused: cache initialization failed: Operation not supported";
    assert!(
        error.contains(expected) && error.contains("modprobe nf_tables"),
        "{error}"
    );
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
        found.contains("fail     TUN devices: there are none"),
        "{found}"
    );
    let other = "mount -t tmpfs none /dev/net; touch /dev/net/tun;";
    let found = findings(other, &config);
    assert!(found.contains("/dev/net/tun is something else"), "{found}");
    let spoof = findings("mount -t tmpfs none /dev/net;", CONFIG);
    assert!(!spoof.contains("TUN devices"), "{spoof}");
}

/// The output of `pepd check`, behind shell commands.
fn findings(before: &str, config: &str) -> String {
    let files = open_directory();
    let file = files.path().join("pepd.toml");
    // Not the socket of a pepd that another test runs meanwhile.
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
    says("exec", nft.path(), CONFIG, "CONFIG_NFT_TPROXY");
    let nft = nft_without("socket transparent");
    says("exec", nft.path(), CONFIG, "modprobe nft_socket");
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
    says("exec", Path::new(NOWHERE), &config, expected);
}
