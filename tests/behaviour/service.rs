//! pepd under a service manager, and leftovers for it to clean up.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    process::Command,
    time::Instant,
};

use nix::sys::signal::Signal;
use pepd_tests::{
    bed::{Bed, Family, Path},
    matrix::shared,
    pep::Pep,
    pep_binary::pepd,
    wait::{PATIENCE, wait_until},
};

use crate::{support::echo_once, survive::talking};

/// A listener on `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    directory: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("a socket");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout is not 0");
        Self { socket, directory }
    }

    fn start(&self, bed: &Bed, more: &str) -> Pep {
        let config = bed.config(more).expect("not direct");
        Pep::start_by(&bed.gateway, &config, |mut command| {
            command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
            command
        })
    }

    /// Returns the lines of the next message.
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).expect("a message");
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        text.lines().map(str::to_owned).collect()
    }

    fn next_with(&self, wanted: &str) -> Vec<String> {
        let limit = Instant::now() + PATIENCE;
        loop {
            let lines = self.next();
            assert!(Instant::now() < limit, "{wanted}: {lines:?}");
            if lines.iter().any(|line| line == wanted) {
                return lines;
            }
        }
    }
}

#[test]
fn it_says_when_it_is_ready_that_it_lives_and_that_it_drains() {
    for survive in [true, false] {
        shared(|| {
            let bed = Bed::new(Path::Spoof, Family::V4);
            let manager = Manager::new();
            let mut pep = manager.start(&bed, &format!("[custody]\nsurvive = {survive}\n"));
            manager.next_with("READY=1");
            assert_eq!(manager.next(), ["WATCHDOG=1"]);
            let (_echo, mut open) = talking(&bed);
            pep.signal(Signal::SIGTERM);
            let drains = manager.next_with("STATUS=drains: new flows pass by");
            let more = "EXTEND_TIMEOUT_USEC=30000000".to_owned();
            assert!(drains.contains(&more), "{drains:?}");
            assert_eq!(manager.next(), ["WATCHDOG=1".to_owned(), more]);
            echo_once(&mut open, b"to its end");
            drop(open);
            assert_eq!(pep.wait().code(), Some(0));
        });
    }
}

#[test]
fn leftovers_are_removed_once_unused() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut pep = bed.start().expect("not direct");
        let config = pep.path("pepd.toml");
        let says = |command: &str, config: &std::path::Path| {
            let config = config.to_str().expect("a path");
            let pepd = pepd();
            let program = pepd.to_str().expect("a path");
            bed.gateway.run(program, &[command, "--config", config])
        };
        let clean = || says("cleanup", &config);
        let in_use = clean();
        assert!(in_use.contains("nothing was removed: process"), "{in_use}");
        let (_echo, mut open) = talking(&bed);
        echo_once(&mut open, b"it works on");
        drop(open);
        pep.wait_idle();
        pep.kill();
        assert!(!pep.leftovers().is_empty());
        // Claimed names disappear a moment after the processes.
        wait_until("the report of leftovers", || {
            says("check", &config).contains("`pepd cleanup` removes them")
        });
        wait_until("rules to be removed", || {
            clean().starts_with("removed the rules of `pepd`")
        });
        pep.assert_nothing_left();
        let again = clean();
        assert!(again.starts_with("found no rules of `pepd`"), "{again}");
        assert!(!says("check", &config).contains("leftovers"));
        let gone = says("cleanup", std::path::Path::new("/nonexistent/pepd.toml"));
        assert!(gone.contains("no rules of `pepd`"), "{gone}");
    });
}

/// As in pepd's systemd unit, which uses a dynamic user.
#[test]
fn a_key_that_only_root_may_read_is_a_credential() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let allow = |name: &str, mode| {
        fs::set_permissions(path(name), Permissions::from_mode(mode)).expect("ours");
    };
    // Copied by another process: a child of another test could inherit this process's descriptor,
    // and a file open for writing cannot be executed.
    let copied = Command::new("cp").arg(pepd()).arg(path("pepd")).status();
    assert!(copied.expect("it starts").success());
    fs::create_dir(path("credentials")).expect("a directory");
    let config = "[intercept]\nlan = [\"lo\"]\n[identity]\nkey_file = \"own.key\"\n\
                  listen = \"127.0.0.1:5001\"\n";
    fs::write(path("pepd.toml"), config).expect("writable");
    let made = Command::new(path("pepd"))
        .args(["keygen", "--out"])
        .arg(path("own.key"))
        .output();
    assert!(made.expect("it starts").status.success());
    allow("", 0o755);
    allow("credentials", 0o755);
    let check = || {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(path("pepd"))
            .args(["check", "--config-only", "--config"])
            .arg(path("pepd.toml"))
            .env("CREDENTIALS_DIRECTORY", path("credentials"))
            .output()
            .expect("it starts");
        let printed = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8(printed).expect("text"),
        )
    };
    let (code, printed) = check();
    assert_eq!(code, Some(3), "{printed}");
    assert!(
        printed.contains("own.key: cannot be read: Permission denied"),
        "{printed}"
    );
    fs::copy(path("own.key"), path("credentials/pepd_own.key")).expect("a copy");
    allow("credentials/pepd_own.key", 0o644);
    let (code, printed) = check();
    assert_eq!(code, Some(0), "{printed}");
}

/// Checks the rating of the unit by systemd-analyze(1), with and without the drop-in.
#[test]
fn the_unit_exposes_no_more_than_stated() {
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let root = tempfile::tempdir().expect("a directory");
    let units = root.path().join("usr/lib/systemd/system");
    fs::create_dir_all(units.join("pepd.service.d")).expect("a directory");
    let copy = |from: &str, to: &str| {
        fs::copy(packaging.join(from), units.join(to)).expect("a file");
    };
    let exceeds = |threshold: &str| {
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(format!("--root={}", root.path().display()))
            .arg(format!("--threshold={threshold}"))
            .arg("pepd.service")
            .output();
        output.ok().map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("Overall exposure level"), "{output:?}");
            (!output.status.success()).then_some(text)
        })
    };
    copy("pepd.service", "pepd.service");
    let Some(found) = exceeds("25") else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    assert_eq!(found, None);
    assert!(
        exceeds("20").flatten().is_some(),
        "the test sees a difference"
    );
    copy("pepd-split.conf", "pepd.service.d/split.conf");
    assert_eq!(exceeds("20").flatten(), None);
}
