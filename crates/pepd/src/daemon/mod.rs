//! The daemon: build everything, run, drain.

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

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SigSet, Signal},
};
use pep_core::config::Config;
use pepd_api::exit::ExitStatus;
use pepd_intercept::InterceptError;
use pepd_relay::{
    limits::descriptors,
    survive::{
        claim::ClaimError,
        keeper::{Keeper, PATIENCE},
    },
};
use pepd_sys::{congestion::ControlsError, leg::OptionError, load::Source};
use pepd_tunnel::TunnelError;
use tokio::runtime;

/// Why the daemon did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A site gets no congestion control.
    #[error(transparent)]
    Congestion(#[from] ControlsError),
    /// Another pepd is in the way.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A port is in use.
    #[error(
        "cannot listen at {address} for site `{site}` (its port is counted from `intercept.listen_port`)"
    )]
    Listen {
        /// The site's name.
        site: String,
        /// Where.
        address: String,
        /// Which step failed.
        #[source]
        err: OptionError,
    },
    /// A key is missing, or the port for peers in use.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// Rules, routes or TUN devices cannot be put in place.
    #[error("cannot intercept connections")]
    Intercept(#[source] InterceptError),
    /// A process may have too few of them, which is found before anything is installed.
    #[error(
        "this process may have {limit} descriptors, and needs {needed} to start, to carry a flow and to end in order: \
         raise the limit (LimitNOFILE=, ulimit -n)"
    )]
    Descriptors {
        /// How many it may have.
        limit: u64,
        /// How many it needs.
        needed: u64,
    },
    /// Who may look into another process, and who not, say ptrace(2) and prctl(2).
    #[error(
        "cannot take over the flows of the pepd before: give this one the same user and capabilities, \
         or give them up (kill -9 the process pepd-keeper)"
    )]
    TakeOver(#[source] io::Error),
    /// There is no room for the rings.
    #[error(
        "cannot map the memory of the rings: lower `limits.flows` or `limits.ring_max`, whose product it is (of its \
         pages `limits.memory` are used at most)"
    )]
    Rings(#[source] io::Error),
    /// A thread, descriptor or memory is missing.
    #[error("cannot {action}")]
    System {
        /// What was to be done.
        action: &'static str,
        /// Why not.
        #[source]
        err: io::Error,
    },
}

impl DaemonError {
    /// The exit code that says so.
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

/// What the process that runs the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// All there is: its flows end with it.
    Alone,
    /// Another starts the next one when it ends, and flows go on.
    Worker {
        /// Flows of the one before are reset instead of being taken over.
        discards: bool,
        /// There was one before, which has ended unasked.
        again: bool,
        /// The number of the pipe by which it gives signs of life.
        heartbeat: Option<RawFd>,
        /// How many processes before were killed as they did not go on.
        hangs: u64,
        /// A newer configuration could not be put in place.
        reverted: bool,
    },
}

/// Raises the limit of descriptors as far as this process may, and returns what it is.
///
/// # Errors
/// When pepd cannot start with so few.
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

/// Has this process, and those that it starts, leave no core dump: keys and what hosts send would
/// be in it. Only the soft limit changes, so that whoever needs one may ask for it (`prlimit
/// --core=unlimited --pid PID`).
///
/// # Errors
/// When the system refuses.
pub fn leave_no_core() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
    Ok(setrlimit(Resource::RLIMIT_CORE, 0, hard)?)
}

/// Runs until a signal ends it. Blocks the calling thread, which has to be the only one; the log
/// must be set up.
///
/// SIGTERM and SIGINT drain: no further flow is taken, those that are open may run on for `drain`,
/// and are then reset. A second one ends at once. SIGUSR1 logs the counters. SIGHUP reloads.
/// SIGUSR2 ends a worker, whose flows wait for the next one; it ignores SIGINT, which a terminal
/// sends to its supervisor as well. Whatever happens else, rules and routes are removed.
///
/// # Errors
/// When it cannot be set up; nothing is left installed then, unless flows wait for a successor.
pub fn run(config: &Config, source: Source, role: Role) -> Result<ExitStatus, DaemonError> {
    // The supervisor waits for it; here the ends of programs that are run are waited for.
    SigSet::from(Signal::SIGCHLD)
        .thread_unblock()
        .map_err(|err| DaemonError::system("unblock signals")(err.into()))?;
    let descriptors = raise_descriptors(config)?;
    let keeper = match role {
        Role::Alone => None,
        Role::Worker { .. } => {
            let keeper = Keeper::new(PATIENCE);
            Some(keeper.map_err(DaemonError::system(
                "start a process that keeps the sockets",
            ))?)
        }
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DaemonError::system("start an event loop"))?;
    runtime.block_on(async {
        let daemon = build::build(config, descriptors, role, keeper).await?;
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
        // Other tests open and close some meanwhile.
        assert!(check_descriptors(&config, needed + 1000).is_ok());
    }
}
