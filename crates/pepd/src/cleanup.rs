//! Removing what a pepd that was killed has left in the kernel.

use std::{fmt, io};

use pep_core::config::Config;
use tokio::runtime;

use crate::intercept::{InterceptError, Interception, claim};

/// Why nothing could be removed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// Descriptors are short, or `/proc` is missing.
    #[error("cannot find out whether a pepd runs here")]
    Look(#[source] io::Error),
    /// Descriptors are short.
    #[error("cannot start an event loop")]
    Runtime(#[source] io::Error),
    /// Nft is missing, or a capability.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
}

/// What there was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftovers {
    /// A process uses it, or keeps flows for the next one: nothing was removed.
    InUse(u32),
    /// There is nothing now; whether the nft table of that name was there.
    Removed {
        /// Its name.
        table: String,
        /// It was.
        was_there: bool,
        /// Congestion controls of killed processes, also of other configurations.
        controls: usize,
    },
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(process) => writeln!(
                f,
                "nothing was removed: process {process} uses it, or keeps flows for the next `pepd run`"
            ),
            Self::Removed {
                table,
                was_there,
                controls,
            } => {
                if *was_there {
                    writeln!(
                        f,
                        "removed the nft table `inet {table}`, policy rules and routes"
                    )?;
                } else {
                    writeln!(
                        f,
                        "there was no nft table `inet {table}`; policy rules and routes are removed where there were any"
                    )?;
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

/// Removes the rules and routes of a configuration unless a process uses them.
///
/// # Errors
/// When that cannot be found out, or nft cannot be run.
pub fn run(config: &Config) -> Result<Leftovers, CleanupError> {
    if let Some(process) = claim::user_of(config).map_err(CleanupError::Look)? {
        return Ok(Leftovers::InUse(process));
    }
    let was_there = Interception::is_there(config).map_err(CleanupError::Look)?;
    let controls = remove(config)?;
    Ok(Leftovers::Removed {
        table: config.intercept.table.to_string(),
        was_there,
        controls,
    })
}

/// Removes them whoever uses them, and the congestion controls of killed processes, whose number it gives.
///
/// # Errors
/// When nft cannot be run, or the kernel does not answer.
pub fn remove(config: &Config) -> Result<usize, CleanupError> {
    let controls = bpf_cc::remove_leftovers();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CleanupError::Runtime)?;
    runtime.block_on(Interception::clear(config))?;
    Ok(controls)
}
