//! Places at which a process that carries flows may write, and its runner, and the programs that
//! this one runs.
//!
//! Elsewhere these create, change and remove nothing (landlock(7)), whoever owns the files. Open
//! descriptors are not affected, nor is reading.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use landlock::{
    ABI, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, make_bitflags,
};
use pep_core::config::{Config, RulesBy};

use crate::admin_socket;

/// The kernel's interface for which the rights are (Linux 6.2). Older ones enforce fewer.
const INTERFACE: ABI = ABI::V3;

/// Lock of iptables.
const XTABLES_LOCK: &str = "/run/xtables.lock";

/// Use of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A file, or files of a directory, are written, and none is created.
    Write,
    /// A directory in which sockets are created and removed.
    Sockets,
    /// A directory in which files are created, written and removed.
    Files,
}

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Write => make_bitflags!(AccessFs::{WriteFile | Truncate}),
            Self::Sockets => make_bitflags!(AccessFs::{MakeSock | RemoveFile}),
            Self::Files => make_bitflags!(AccessFs::{MakeReg | WriteFile | Truncate | RemoveFile}),
        }
    }
}

/// Places of every configuration, with the reason.
const ALWAYS: [(&str, Use, &str); 2] = [
    ("/dev/net/tun", Use::Write, "TUN devices"),
    (SYSCTLS, Use::Write, "settings of TUN devices"),
];

/// Places of programs, with the reason.
const OF_PROGRAMS: [(&str, Use, &str); 2] = [
    ("/dev/null", Use::Write, "input of programs"),
    (XTABLES_LOCK, Use::Write, "iptables"),
];

/// Settings of the network. Those elsewhere, such as `kernel.core_pattern`, belong to root as well.
const SYSCTLS: &str = "/proc/sys/net";

/// Returns the places of a configuration. `state` is the directory for state that outlives pepd.
fn places(config: &Config, state: Option<PathBuf>) -> Vec<(PathBuf, Use)> {
    let always = ALWAYS.map(|(path, usage, _)| (path.into(), usage));
    let mut places = Vec::from(always);
    let socket = admin_socket::path(config);
    let socket = socket.as_deref().and_then(Path::parent).map(|directory| {
        // A bare file name is relative to the working directory.
        let is_bare = directory.as_os_str().is_empty();
        if is_bare { Path::new(".") } else { directory }.to_owned()
    });
    places.extend(socket.map(|directory| (directory, Use::Sockets)));
    let directories = state.into_iter().chain(config.custody.directory.clone());
    places.extend(directories.map(|directory| (directory, Use::Files)));
    places
}

/// Allows the calling thread, and those that it starts later, to write at the places of this
/// configuration only. `state` is the directory for state that outlives pepd. On a kernel without
/// landlock, and on an error, nothing changes but a line in the log.
pub fn confine(config: &Config, state: Option<PathBuf>) {
    let places = places(config, state);
    prepare(&places);
    restrict_or_log(&places);
}

/// Likewise for the process that runs programs, which needs no place of a configuration.
pub fn confine_runner() {
    restrict_or_log(&OF_PROGRAMS.map(|(path, usage, _)| (path.into(), usage)));
}

fn restrict_or_log(places: &[(PathBuf, Use)]) {
    match restrict(places) {
        Ok(RulesetStatus::NotEnforced) => {
            tracing::info!("kernel has no landlock: pepd may write wherever its user may");
        }
        Ok(_) => {}
        Err(err) => {
            tracing::warn!(error = %err, "landlock fails: pepd may write wherever its user may");
        }
    }
}

/// Creates what would otherwise be created later, at a place where that is no longer permitted.
fn prepare(places: &[(PathBuf, Use)]) {
    for (directory, usage) in places {
        let created = match usage {
            Use::Write => continue,
            Use::Sockets if directory == Path::new(admin_socket::DIRECTORY) => {
                DirBuilder::new().recursive(true).create(directory)
            }
            Use::Sockets => continue,
            Use::Files => DirBuilder::new().mode(0o700).create(directory),
        };
        // It exists, or its later use reports the reason.
        if let Err(err) = created {
            tracing::debug!(error = %err, directory = %directory.display(), "directory not created");
        }
    }
}

/// Creates the lock of iptables, if this configuration uses it. Call it before the runner starts,
/// which may write it but not create it.
pub fn create_lock(config: &Config) {
    if config.intercept.rules == RulesBy::Iptables {
        let mut options = OpenOptions::new();
        let lock = options.append(true).create(true).mode(0o600);
        if let Err(err) = lock.open(XTABLES_LOCK) {
            tracing::debug!(error = %err, "{XTABLES_LOCK} not created");
        }
    }
}

fn restrict(places: &[(PathBuf, Use)]) -> Result<RulesetStatus, RulesetError> {
    let rules = Ruleset::default().handle_access(AccessFs::from_write(INTERFACE))?;
    let mut rules = rules.create()?;
    for (path, usage) in places {
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(libc::O_PATH).open(path);
        // What is missing needs no rule.
        let Ok(place) = opened else { continue };
        rules = rules.add_rule(PathBeneath::new(&place, usage.rights()))?;
        if path == Path::new(SYSCTLS) {
            pin(place);
        }
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Keeps a file of /proc open for as long as the process lives: the kernel may otherwise forget it,
/// and the rule with it.
fn pin(file: File) {
    std::mem::forget(file);
}

#[cfg(test)]
mod tests {
    use std::{fs, io, thread};

    use super::*;

    fn config(more: &str) -> Config {
        let text = format!("[intercept]\nlan = [\"lo\"]\n{more}");
        pep_core::config::parse(&text).unwrap()
    }

    #[test]
    fn a_thread_writes_only_where_its_configuration_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["run", "custody", "state"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("other"), "before").unwrap();
        // Root may write it, if /proc/sys is writable; the value stays.
        let sysctl = "/proc/sys/net/ipv4/conf/lo/rp_filter";
        let value = fs::read(sysctl).unwrap();
        let may_set = fs::write(sysctl, &value).is_ok();
        let config = config(&format!(
            "[admin]\nsocket = {:?}\n[custody]\ndirectory = {:?}\n",
            path("run/a.sock"),
            path("custody")
        ));
        let state = path("state");
        let enforced = thread::scope(|scope| {
            let confined = scope.spawn(|| {
                let enforced = restrict(&places(&config, Some(state))).unwrap();
                if enforced == RulesetStatus::NotEnforced {
                    return false;
                }
                for name in ["custody", "state"] {
                    let file = path(name).join("a.new");
                    fs::write(&file, "x").unwrap();
                    fs::rename(&file, path(name).join("a")).unwrap();
                    fs::write(path(name).join("a"), "").unwrap();
                    fs::remove_file(path(name).join("a")).unwrap();
                }
                let socket = path("run/a.sock");
                drop(admin_socket::bind(&socket, 0o600).unwrap());
                assert_eq!(fs::write(sysctl, &value).is_ok(), may_set);
                let is_denied = |result: io::Result<()>| {
                    result.is_err_and(|err| err.kind() == io::ErrorKind::PermissionDenied)
                };
                assert!(is_denied(fs::write(path("other"), "after")));
                assert!(is_denied(fs::write(path("new"), "")));
                assert!(is_denied(fs::write(path("run/file"), "")));
                assert!(is_denied(fs::remove_file(path("other"))));
                assert!(is_denied(fs::create_dir(path("d"))));
                let sysctl = File::options()
                    .write(true)
                    .open("/proc/sys/kernel/core_pattern");
                assert!(sysctl.is_err(), "root owns it");
                assert_eq!(fs::read_to_string(path("other")).unwrap(), "before");
                true
            });
            confined.join().unwrap()
        });
        if enforced {
            // The restriction is the thread's own.
            fs::write(path("other"), "after").unwrap();
        } else {
            eprintln!("skipped: this kernel has no landlock");
        }
    }

    #[test]
    fn places_are_those_of_the_configuration() {
        let config = config("[admin]\nsocket = \"a.sock\"\n[custody]\ndirectory = \"/c\"\n");
        let places = places(&config, Some("/s".into()));
        let more: Vec<_> = places[ALWAYS.len()..].to_vec();
        let expected = [(".", Use::Sockets), ("/s", Use::Files), ("/c", Use::Files)];
        let expected = expected.map(|(path, usage)| (PathBuf::from(path), usage));
        assert_eq!(more, expected);
    }
}
