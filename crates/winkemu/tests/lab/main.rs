//! Tests of `winkemu lab` from outside: results, exit codes, and cleanup.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod endings;
mod results;
mod spokes;
mod watched;

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// Short transfer over a link, and a command.
const SHORT: &str = r#"
path = ["client", "router", "link", "server"]
metrics = ["goodput", "seconds"]
parallel = 2
late = "1s"

[link]
rate = "4Mbit/s"
delay = "10ms"

[matrix]
"link.delay" = ["10ms", "30ms"]

[[workload]]
name = "upload"
program = "bulk"
duration = "1s"
interval = "100ms"
family = "ipv6"

[[workload]]
name = "addresses"
program = "command"
command = ["sh", "-c", "echo $SERVER_IPV4"]
"#;

struct Lab {
    directory: TempDir,
}

impl Lab {
    fn new(scenario: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("test.toml"), scenario).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_winkemu"));
        command.arg("lab").arg("test.toml").args(arguments);
        command
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        // Files that the lab leaves behind would be found here.
        fs::create_dir_all(self.path("tmp")).unwrap();
        command.env("TMPDIR", self.path("tmp"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
