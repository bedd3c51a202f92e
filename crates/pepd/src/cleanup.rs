//! Removal of what a killed pepd has left in the kernel.

use std::{fmt, io, path::PathBuf};

use pep_core::config::Config;
use pepd_intercept::{InterceptError, Interception};
use pepd_relay::survive::claim;
use pepd_sys::admin_socket;
use tokio::runtime;

/// Failure of the clean-up.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// No descriptors are left, or `/proc` is missing.
    #[error("cannot check for a running pepd")]
    Look(#[source] io::Error),
    /// No descriptors are left.
    #[error("cannot start an event loop")]
    Runtime(#[source] io::Error),
    /// The directory belongs to another user, or is read-only.
    #[error("cannot remove the socket {0}")]
    Socket(PathBuf, #[source] io::Error),
    /// nft or iptables is missing, or a capability.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
}

/// Result of the clean-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftovers {
    /// A process uses the rules, or keeps flows for the next one: nothing was removed.
    InUse(u32),
    /// The holds of `clear = "never"` have been removed, if any existed.
    Lifted,
    /// Leftovers have been removed, if any existed.
    Removed {
        /// Name of the nft table, and first part of the names of chains of iptables.
        table: String,
        /// True if rules existed.
        was_installed: bool,
        /// Number of congestion controls of killed processes, also of other configurations.
        controls: usize,
        /// Path of the admin socket, if it existed.
        socket: Option<PathBuf>,
    },
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(process) => writeln!(
                f,
                "nothing was removed: process {process} uses it, or keeps flows for the next `pepd run`"
            ),
            Self::Lifted => writeln!(
                f,
                "removed the holds of `clear = \"never\"`, if any: packets of these sites may leave in the clear until \
                 the next `pepd run`"
            ),
            Self::Removed {
                table,
                was_installed: was_there,
                controls,
                socket,
            } => {
                if *was_there {
                    writeln!(
                        f,
                        "removed the rules of `{table}` (nft or iptables), policy rules and routes"
                    )?;
                } else {
                    writeln!(
                        f,
                        "found no rules of `{table}` (nft or iptables); removed policy rules and routes, if any"
                    )?;
                }
                if let Some(path) = socket {
                    writeln!(f, "removed the socket {}", path.display())?;
                }
                match controls {
                    0 => Ok(()),
                    _ => writeln!(
                        f,
                        "removed congestion controls of processes that were killed: {controls}"
                    ),
                }
            }
        }
    }
}

/// Returns a default configuration, for leftovers of one whose file is missing.
///
/// # Panics
/// Never: it is valid.
pub fn defaults() -> Config {
    let text = "[intercept]\nlan = [\"lo\"]\n";
    pep_core::config::parse(text).expect("it is valid")
}

/// Removes rules, routes and the socket of a configuration unless a process uses them.
///
/// # Errors
/// When the check for such a process fails, nft cannot be run, or the socket cannot be removed.
pub fn run(config: &Config) -> Result<Leftovers, CleanupError> {
    if let Some(process) = claim::user_of(config).map_err(CleanupError::Look)? {
        return Ok(Leftovers::InUse(process));
    }
    let was_there = Interception::is_installed(config).map_err(CleanupError::Look)?;
    let controls = remove(config)?;
    Ok(Leftovers::Removed {
        table: config.intercept.table.to_string(),
        was_installed: was_there,
        controls,
        socket: remove_socket(config)?,
    })
}

/// Removes the holds of `clear = "never"` unless a process uses the configuration.
///
/// # Errors
/// When the check for such a process fails, or nft cannot be run.
pub fn lift(config: &Config) -> Result<Leftovers, CleanupError> {
    if let Some(process) = claim::user_of(config).map_err(CleanupError::Look)? {
        return Ok(Leftovers::InUse(process));
    }
    event_loop()?.block_on(Interception::lift_clear(config))?;
    Ok(Leftovers::Lifted)
}

fn event_loop() -> Result<runtime::Runtime, CleanupError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(CleanupError::Runtime)
}

/// Removes the socket of a dead process, and returns its path.
fn remove_socket(config: &Config) -> Result<Option<PathBuf>, CleanupError> {
    let Some(path) = admin_socket::path(config) else {
        return Ok(None);
    };
    match admin_socket::remove_dead(&path) {
        Ok(removed) => Ok(removed.then_some(path)),
        Err(err) => Err(CleanupError::Socket(path, err)),
    }
}

/// Removes rules and routes even if a process uses them, and the congestion controls of killed
/// processes. Returns the number of the latter.
///
/// # Errors
/// When nft cannot be run, or the kernel does not answer.
pub fn remove(config: &Config) -> Result<usize, CleanupError> {
    let controls = bpf_cc::remove_leftovers();
    event_loop()?.block_on(Interception::clear(config))?;
    Ok(controls)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn defaults_name_the_usual_table() {
        assert_eq!(defaults().intercept.table.as_str(), "pepd");
    }

    #[test]
    fn a_socket_without_a_process_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let text = format!("[intercept]\nlan = [\"lo\"]\n[admin]\nsocket = {path:?}\n");
        let config = pep_core::config::parse(&text).expect("valid");
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(remove_socket(&config).unwrap(), None);
        drop(listener);
        assert_eq!(remove_socket(&config).unwrap(), Some(path.clone()));
        let removed = Leftovers::Removed {
            table: "pepd".to_owned(),
            was_installed: true,
            controls: 0,
            socket: Some(path.clone()),
        };
        let line = format!("removed the socket {}\n", path.display());
        assert!(removed.to_string().ends_with(&line), "{removed}");
    }
}
