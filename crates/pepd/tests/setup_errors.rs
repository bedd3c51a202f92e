//! What `pepd run` says when the machine lacks something. Each test starts the program in a
//! network namespace of its own. Needs root.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Set up wrongly (`pepd::exit`).
const SETUP: i32 = 4;

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const CONFIG: &str = "[intercept]\nlan = [\"lan0\"]\n";

/// Runs pepd, by a shell with `before` in front of its command line, until it ends or is ready, at most 20 s.
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
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        if fs::read_to_string(log).is_ok_and(|log| log.contains("pepd is ready")) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("running");
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
    let directory = TempDir::new().expect("a directory");
    let nft = directory.path().join("nft");
    let script = format!(
        "#!/bin/sh\ninput=$(cat)\ncase \"$input\" in *'{word}'*)\n\
         echo 'Error: Could not process rule: No such file or directory' >&2; exit 1;; esac\n\
         printf %s \"$input\" | exec /usr/sbin/nft \"$@\"\n"
    );
    fs::write(&nft, script).expect("written");
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
    let program = directory.path().join("pepd");
    fs::copy(PEPD, &program).expect("copied");
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

#[test]
fn a_missing_nft_is_named() {
    let before = "mount -t tmpfs none /usr/sbin; PATH=/bin; exec";
    says(before, Path::new(NOWHERE), CONFIG, "apt install nftables");
}

#[test]
fn a_missing_kernel_part_is_named() {
    let nft = nft_without("\"tproxy\"");
    says("exec", nft.path(), CONFIG, "CONFIG_NFT_TPROXY");
    let nft = nft_without("\"socket\"");
    says("exec", nft.path(), CONFIG, "modprobe nft_socket");
}

#[test]
fn what_can_be_done_without_is_warned_of() {
    for (word, expected) in [("\"update\"", "nft_dynset"), ("\"fib\"", "nft_fib")] {
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
