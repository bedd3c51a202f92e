//! The daemon under test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Returns the path of the daemon: `$PEPD_BIN`, or else the one beside the test's own build, which
/// is updated first. So `cargo test` alone never tests a stale daemon.
///
/// # Panics
/// When it does not exist or cannot be built, with the build command.
pub fn pepd() -> &'static Path {
    static PEPD: OnceLock<PathBuf> = OnceLock::new();
    PEPD.get_or_init(|| match env::var_os("PEPD_BIN") {
        Some(given) => existing(given.into(), "PEPD_BIN names no file"),
        None => built(),
    })
}

fn existing(path: PathBuf, problem: &str) -> PathBuf {
    assert!(path.is_file(), "{problem}: {}", path.display());
    path
}

/// Builds pepd in the profile and target directory of the running test.
fn built() -> PathBuf {
    let directory = profile_directory();
    let (name, target) = (
        directory.file_name().expect("it has a name"),
        directory.parent().expect("it is in a target directory"),
    );
    let profile = match name.to_str() {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => panic!("a profile has a name that can be printed"),
    };
    // Under `cargo test` the variable names the running cargo.
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--locked",
            "--package",
            "pepd",
            "--profile",
            profile,
        ])
        // An optimised build takes minutes.
        .args((profile == "dev").then_some("--quiet"))
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    let problem = format!(
        "the daemon under test is missing; run `cargo build -p pepd --profile {profile}` or name \
         it in PEPD_BIN"
    );
    assert!(status.is_ok_and(|status| status.success()), "{problem}");
    existing(directory.join("pepd"), &problem)
}

/// Returns `target/debug` for `target/debug/deps/NAME`.
fn profile_directory() -> PathBuf {
    let exe = env::current_exe().expect("a running program has a path");
    let deps = exe.parent().expect("it is in a directory");
    let profile = if deps.ends_with("deps") {
        deps.parent().expect("deps is in a directory")
    } else {
        deps
    };
    profile.to_owned()
}
