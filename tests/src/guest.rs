//! Programs on another kernel: Debian's 6.12 in an emulated machine, by `scripts/guest`.
//!
//! The guest sees this machine's files, so any program built here runs there. Booting takes about
//! ten seconds, so a test should do all its work in one run. A test that runs itself in the guest:
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

/// The exit status of `scripts/guest` when qemu or the kernel is unavailable.
const SKIPPED: i32 = 77;

/// The beginning of its message then; the tested command may end with the same status.
const SKIPPED_WORDS: &str = "guest: skipped";

/// Returns whether this process runs in a guest.
pub fn inside() -> bool {
    env::var_os("PEPD_GUEST").is_some()
}

/// Runs a program in a guest with default modules and clock; see [`Guest::run`].
pub fn run(program: &Path, args: &[&str]) -> Option<Output> {
    Guest::new().run(program, args)
}

/// A machine with another kernel, for one run of a program.
#[derive(Debug, Clone, Default)]
pub struct Guest {
    options: Vec<OsString>,
}

impl Guest {
    /// Returns a guest with one CPU, 1 GB of memory and a limit of five minutes, which writes to no
    /// file of this machine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads kernel modules first.
    pub fn modules(self, names: &[&str]) -> Self {
        self.option("--modules", names.join(","))
    }

    /// Lets the guest write to a directory and its subdirectories.
    pub fn share(self, directory: &Path) -> Self {
        self.option("--share", directory)
    }

    /// Derives the guest's clock from instructions: see `scripts/guest --help`.
    pub fn icount(mut self) -> Self {
        self.options.push("--icount".into());
        self
    }

    fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Runs a program as root to its end; returns status and output. Returns `None`, with the
    /// reason on stderr, if qemu or the kernel is unavailable.
    ///
    /// # Panics
    /// When the script itself cannot be run.
    pub fn run(&self, program: &Path, args: &[&str]) -> Option<Output> {
        // The script names missing programs.
        let _reason = try_install(&["qemu-system-x86", "busybox-static", "xz", "zstd"]);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest");
        let mut command = Command::new(script);
        command.args(&self.options);
        if !self.options.iter().any(|option| option == "--share") {
            // The default is the working directory, to which a test must not write.
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

    /// Runs one test of the running test binary again, in the guest, where [`inside`] is true.
    ///
    /// # Panics
    /// When it fails there, with its output, or when no test has this name.
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
