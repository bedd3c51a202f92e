//! Programs on another kernel: Debian's 6.12 in an emulated machine, by `scripts/guest`.
//!
//! The guest sees this machine's files, so that any program built here runs there. Booting takes
//! some ten seconds, so a test had better do all it wants to do there in one run. One that runs
//! itself again in the guest:
//!
//! ```no_run
//! use pepd_tests::guest::{self, Guest};
//!
//! // #[test]
//! fn vegas_serves_sockets() {
//!     if !guest::inside() {
//!         return Guest::new().modules(&["tcp_vegas"]).run_test("module::vegas_serves_sockets");
//!     }
//!     // Here the kernel is the guest's.
//! }
//! ```

use std::{
    env,
    ffi::OsString,
    path::Path,
    process::{Command, Output},
};

use crate::programs::try_install;

/// What `scripts/guest` ends with when qemu or the kernel is not to be had.
const SKIPPED: i32 = 77;

/// What its message then begins with; a command of ours may end with the same code.
const SKIPPED_WORDS: &str = "guest: skipped";

/// Whether this process runs in a guest.
pub fn inside() -> bool {
    env::var_os("PEPD_GUEST").is_some()
}

/// Runs a program in a guest with the modules and time of any machine; see [`Guest::run`].
pub fn run(program: &Path, args: &[&str]) -> Option<Output> {
    Guest::new().run(program, args)
}

/// A machine with another kernel, which is there while a program runs on it.
#[derive(Debug, Clone, Default)]
pub struct Guest {
    options: Vec<OsString>,
}

impl Guest {
    /// One processor, 1 GB of memory, five minutes at most; writes to no file of this machine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads kernel modules first.
    pub fn modules(self, names: &[&str]) -> Self {
        self.option("--modules", names.join(","))
    }

    /// Lets the guest write to a directory and what is below it.
    pub fn share(self, directory: &Path) -> Self {
        self.option("--share", directory)
    }

    /// Time goes by instructions rather than by the clock: see `scripts/guest --help`.
    pub fn icount(mut self) -> Self {
        self.options.push("--icount".into());
        self
    }

    fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Runs a program, as root, to its end: its status and its output. `None`, with the reason on
    /// stderr, where qemu or the kernel is not to be had.
    ///
    /// # Panics
    /// When the script itself cannot be run.
    pub fn run(&self, program: &Path, args: &[&str]) -> Option<Output> {
        // The script says what is missing.
        let _reason = try_install(&["qemu-system-x86", "busybox-static", "xz", "zstd"]);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest");
        let mut command = Command::new(script);
        command.args(&self.options);
        if !self.options.iter().any(|option| option == "--share") {
            // The default is the working directory, which a test has no business in.
            command.arg("--share").arg("none");
        }
        let output = command.arg("--").arg(program).args(args).output();
        let output = output.expect("scripts/guest can be run");
        let words = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(SKIPPED) && words.starts_with(SKIPPED_WORDS) {
            eprint!("{words}");
            return None;
        }
        Some(output)
    }

    /// Runs one test of the running test binary once more, in the guest, where [`inside`] is true.
    ///
    /// # Panics
    /// When it fails there, with its output, or when there is no test of this name.
    pub fn run_test(&self, name: &str) {
        let binary = env::current_exe().expect("a running program has a path");
        let args = [name, "--exact", "--include-ignored", "--nocapture"];
        let Some(output) = self.run(&binary, &args) else {
            return;
        };
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let passed = output.status.success() && out.contains("test result: ok. 1 passed");
        assert!(passed, "{name} in the guest:\n{out}{err}");
    }
}
