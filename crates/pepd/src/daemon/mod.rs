//! The daemon: construction, operation, drain.

mod beside;
mod build;
mod bypassed;
mod chores;
mod hosts;
mod redirected;
mod run;
mod signals;
mod spare;
mod takeover;

use std::{io, os::fd::RawFd};

use pep_core::config::Config;
use pepd_api::exit::ExitStatus;
use pepd_intercept::{InterceptError, program::runner};
use pepd_relay::{
    limits::descriptors,
    survive::{
        claim::ClaimError,
        keeper::{Keeper, PATIENCE},
    },
};
use pepd_sys::{congestion::ControlsError, leg::OptionError, load::Source, privileges};
use pepd_tunnel::TunnelError;
use tokio::runtime;

/// Words of the command line by which a process runs programs for this one.
const RUNNER: [&str; 2] = ["run", "--runner"];

/// Failure of the daemon to start or continue.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No congestion control of a site is available.
    #[error(transparent)]
    Congestion(#[from] ControlsError),
    /// Another pepd conflicts with this one.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A port is in use.
    #[error(
        "cannot listen at {address} for site `{site}` (its port is counted from `intercept.listen_port`)"
    )]
    Listen {
        /// Name of the site.
        site: String,
        /// Address of the listener.
        address: String,
        /// Failed step.
        #[source]
        err: OptionError,
    },
    /// A key is missing, or the port for peers is in use.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// Rules, routes or TUN devices cannot be installed.
    #[error("cannot intercept connections")]
    Intercept(#[source] InterceptError),
    /// The limit of descriptors is too low, found before the installation.
    #[error(
        "this process may have {limit} descriptors, and needs {needed} to start, to carry a flow and to end in order: \
         raise the limit (LimitNOFILE=, ulimit -n)"
    )]
    Descriptors {
        /// Present limit.
        limit: u64,
        /// Required number.
        needed: u64,
    },
    /// Another process cannot be accessed: see ptrace(2) and prctl(2).
    #[error(
        "cannot take over the flows of the previous pepd: run this one with the same user and capabilities, \
         or abandon the flows (kill -9 the process pepd-keeper)"
    )]
    TakeOver(#[source] io::Error),
    /// Memory for the rings cannot be mapped.
    #[error(
        "cannot map memory for the rings: lower `limits.flows` or `limits.ring_max`; it is their product (of its \
         pages at maximum `limits.memory` are used)"
    )]
    Rings(#[source] io::Error),
    /// A thread, descriptor or memory is unavailable.
    #[error("cannot {action}")]
    System {
        /// Action that failed.
        action: &'static str,
        /// Error of the system.
        #[source]
        err: io::Error,
    },
}

impl DaemonError {
    /// Returns the exit code of this error.
    pub fn status(&self) -> ExitStatus {
        match self {
            Self::Congestion(_)
            | Self::Claim(_)
            | Self::Listen { .. }
            | Self::Tunnel(_)
            | Self::Intercept(_)
            | Self::Descriptors { .. }
            | Self::TakeOver(_)
            | Self::Rings(_) => ExitStatus::Setup,
            Self::System { .. } => ExitStatus::Runtime,
        }
    }

    fn system(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |err| Self::System { action, err }
    }
}

/// Role of the process that runs the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The only process: flows end with it.
    Alone,
    /// A supervisor starts the next process when this one ends, and flows continue.
    Worker {
        /// True if flows of the previous process are reset instead of taken over.
        discards: bool,
        /// True if the previous process ended unexpectedly.
        again: bool,
        /// Descriptor of the pipe for its heartbeat.
        heartbeat: Option<RawFd>,
        /// Number of earlier processes killed because they hung.
        hangs: u64,
        /// True if a newer configuration failed to start.
        reverted: bool,
    },
}

/// Raises the limit of descriptors as far as permitted, and returns it.
///
/// # Errors
/// When pepd needs more to start.
pub fn raise_descriptors(config: &Config) -> Result<u64, DaemonError> {
    let descriptors = descriptors::raise();
    check_descriptors(config, descriptors)?;
    Ok(descriptors)
}

fn check_descriptors(config: &Config, limit: u64) -> Result<(), DaemonError> {
    let needed = descriptors::to_start(config, descriptors::open());
    if limit < needed {
        return Err(DaemonError::Descriptors { limit, needed });
    }
    Ok(())
}

/// Runs until a signal ends it. Blocks the calling thread, which has to be the only one; the log
/// must be set up.
///
/// SIGTERM and SIGINT drain: pepd accepts no further flow, lets open ones continue for `drain`, and
/// then resets them. A second one ends pepd at once. SIGUSR1 logs the counters. SIGHUP reloads.
/// SIGUSR2 ends a worker, whose flows wait for the next one; it ignores SIGINT, which a terminal
/// also sends to its supervisor. In all other cases rules and routes are removed.
///
/// # Errors
/// When the set-up fails; nothing stays installed then, unless flows wait for a successor.
pub fn run(config: &Config, source: Source, role: Role) -> Result<ExitStatus, DaemonError> {
    let descriptors = raise_descriptors(config)?;
    privileges::files::create_lock(config);
    // Before the keeper, which would share its descriptors otherwise.
    let runner = runner::begin(&RUNNER);
    let runner = runner.map_err(DaemonError::system("start the process that runs nft"))?;
    let keeper = match role {
        Role::Alone => None,
        Role::Worker { .. } => {
            let keeper = Keeper::new(PATIENCE);
            Some(keeper.map_err(DaemonError::system("start the keeper process"))?)
        }
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DaemonError::system("start an event loop"))?;
    runtime.block_on(async {
        let daemon = build::build(config, descriptors, role, runner, keeper).await?;
        daemon.show_heartbeat(role);
        Ok(daemon.run(source).await)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_refused_with_the_number_that_is_needed() {
        let config = pep_core::config::parse("[intercept]\nlan = [\"lan0\"]\n").unwrap();
        let Err(DaemonError::Descriptors { limit: 8, needed }) = check_descriptors(&config, 8)
        else {
            panic!("8 suffice");
        };
        assert!(needed > 32, "{needed}");
        // Other tests open and close descriptors meanwhile.
        assert!(check_descriptors(&config, needed + 1000).is_ok());
    }
}
