//! The process that starts the one that carries flows, and the next one when that ends.
//!
//! It touches no flow and holds none of their sockets: there is little in it that can fail, and should it be
//! killed, flows go on.

mod deaths;
mod watchdog;
mod worker;

use std::{
    env,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Command, ExitStatus as ChildStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::{Id, WaitPidFlag, waitid, waitpid},
    },
};
use pep_core::config::Config;
use tokio::runtime;

use super::discovery::SUPERVISOR;
use crate::{
    exit::ExitStatus,
    intercept::{Interception, claim},
};
use deaths::{Deaths, Next};
use watchdog::LOOK;
use worker::Worker;

/// Signals that mean something to us.
const SIGNALS: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGQUIT,
    Signal::SIGCHLD,
];

/// Why the process that carries flows was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Not at all.
    Nothing,
    /// To drain.
    Stop,
    /// To hand over to another program at the same place.
    Upgrade,
    /// To leave its flows to whoever comes next.
    Leave,
}

/// Starts the process that carries flows, and again whenever it ends without having been asked to. Returns how the last one
/// ended. Has to be called before there is another thread: a program that replaces this one, and those that it
/// starts, have our signals blocked, and unblock them once they can handle them.
///
/// # Errors
/// When it cannot be started, or signals cannot be waited for.
pub fn run(config: &Config) -> io::Result<ExitStatus> {
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    prctl::set_name(SUPERVISOR)?;
    // Keepers of processes that have ended become children of ours.
    prctl::set_child_subreaper(true)?;
    let mut supervisor = Supervisor {
        // Where a newer one may be by the time it is asked for.
        program: env::current_exe()?,
        arguments: env::args_os().skip(1).collect(),
        signals: SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
        asked: Asked::Nothing,
        deaths: Deaths::default(),
        hangs: 0,
    };
    supervisor.run(config)
}

struct Supervisor {
    program: PathBuf,
    arguments: Vec<OsString>,
    signals: SignalFd,
    asked: Asked,
    deaths: Deaths,
    /// How many did not go on.
    hangs: u64,
}

impl Supervisor {
    fn run(&mut self, config: &Config) -> io::Result<ExitStatus> {
        let (mut again, mut discards) = (false, false);
        loop {
            let mut worker = Worker::start(&self.arguments, (again, discards), self.hangs)?;
            let status = self.watch(&mut worker)?;
            self.hangs += u64::from(worker.hung);
            if self.asked == Asked::Stop && status.code().is_none() {
                tracing::error!(%status, "the process that carries flows has ended while it drained: they are reset");
                give_up(config);
                return Ok(ExitStatus::FlowsReset);
            }
            if let Some(status) = self.end(status) {
                return Ok(status);
            }
            tracing::error!(
                status = %status,
                "the process that carries flows has ended, another takes them over"
            );
            match self.deaths.next(worker.age(), status.code().is_none()) {
                Next::Start {
                    after,
                    discards: next,
                } => {
                    (again, discards) = (true, next);
                    self.pause(after)?;
                }
                Next::GiveUp => {
                    give_up(config);
                    return Ok(ExitStatus::Runtime);
                }
            }
            if self.asked != Asked::Nothing {
                // Nobody is there to be asked.
                return Ok(self.without_worker(config));
            }
        }
    }

    /// Passes signals on until it has ended.
    fn watch(&mut self, worker: &mut Worker) -> io::Result<ChildStatus> {
        loop {
            self.wait(LOOK, worker.pulse())?;
            while let Some(signal) = self.next_signal()? {
                self.on_signal(signal, worker);
            }
            worker.look();
            reap(worker);
            if let Some(status) = worker.ended()? {
                return Ok(status);
            }
        }
    }

    fn on_signal(&mut self, signal: Signal, worker: &mut Worker) {
        let (asked, passed) = match signal {
            Signal::SIGTERM | Signal::SIGINT => (Asked::Stop, Signal::SIGTERM),
            Signal::SIGUSR1 | Signal::SIGHUP => (self.asked, signal),
            Signal::SIGQUIT => (Asked::Leave, Signal::SIGUSR2),
            Signal::SIGUSR2 => match self.check() {
                Ok(()) => (Asked::Upgrade, Signal::SIGUSR2),
                Err(why) => {
                    tracing::error!("no upgrade: {why}; everything goes on as before");
                    return;
                }
            },
            _ => return,
        };
        if (self.asked, asked) == (Asked::Stop, Asked::Stop) && passed == Signal::SIGTERM {
            worker.hurry();
        }
        self.asked = asked;
        worker.tell(passed);
    }

    /// Whether the program at our place takes the configuration.
    fn check(&self) -> Result<(), String> {
        let mut arguments = self.arguments.clone();
        for argument in &mut arguments {
            if argument == "run" {
                *argument = "check".into();
                break;
            }
        }
        let mut command = Command::new(&self.program);
        command.args(only_config(&arguments)).stdout(Stdio::null());
        let program = self.program.display();
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!(
                "{program} does not take the configuration ({status})"
            )),
            Err(err) => Err(format!("cannot run {program}: {err}")),
        }
    }

    /// What its end means, if it was asked for, or nothing would come of a restart.
    fn end(&self, status: ChildStatus) -> Option<ExitStatus> {
        match (self.asked, status.code()) {
            (Asked::Upgrade, _) => Some(self.replace()),
            (Asked::Leave, _) => {
                tracing::info!("flows wait for the next pepd, for a minute at most");
                Some(ExitStatus::Success)
            }
            (Asked::Stop, code) => code.map(ExitStatus::from_code),
            (Asked::Nothing, Some(code)) => {
                let status = ExitStatus::from_code(code);
                let final_ = match status {
                    // Somebody has asked it directly.
                    ExitStatus::Success | ExitStatus::FlowsReset | ExitStatus::AtOnce => true,
                    ExitStatus::Runtime => false,
                    ExitStatus::Usage | ExitStatus::Configuration | ExitStatus::Setup => {
                        self.deaths.is_first()
                    }
                };
                final_.then_some(status)
            }
            (Asked::Nothing, None) => None,
        }
    }

    /// Another program, or this one again, with the same process id. Returns only where that fails.
    fn replace(&self) -> ExitStatus {
        let err = Command::new(&self.program).args(&self.arguments).exec();
        let program = self.program.display();
        tracing::error!(error = %err, "cannot run {program}: flows wait for a minute, for `pepd run`");
        ExitStatus::Runtime
    }

    /// A signal came when the process that carries flows had just ended.
    fn without_worker(&self, config: &Config) -> ExitStatus {
        match self.asked {
            Asked::Upgrade => self.replace(),
            Asked::Leave | Asked::Nothing => ExitStatus::Success,
            Asked::Stop => {
                give_up(config);
                ExitStatus::FlowsReset
            }
        }
    }

    fn pause(&mut self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.asked != Asked::Nothing {
                return Ok(());
            }
            self.wait(left, None)?;
            while let Some(signal) = self.next_signal()? {
                self.asked = match signal {
                    Signal::SIGTERM | Signal::SIGINT => Asked::Stop,
                    Signal::SIGUSR2 => Asked::Upgrade,
                    Signal::SIGQUIT => Asked::Leave,
                    _ => self.asked,
                };
            }
        }
    }

    /// Waits for a signal, or a sign of life.
    fn wait(&self, limit: Duration, pulse: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let limit = limit.max(Duration::from_millis(1));
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let sources = [Some(self.signals.as_fd()), pulse].into_iter().flatten();
        let mut fds: Vec<_> = sources
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut fds, limit) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    fn next_signal(&self) -> io::Result<Option<Signal>> {
        let Some(info) = self.signals.read_signal()? else {
            return Ok(None);
        };
        let signal = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
        Ok(Some(Signal::try_from(signal)?))
    }
}

/// `check` takes no option of `run` but where the configuration is.
fn only_config(arguments: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if text == "check"
            || text.starts_with("--config=")
            || (text.starts_with("-c") && text.len() > 2)
        {
            kept.push(argument.clone());
        } else if text == "--config" || text == "-c" {
            kept.push(argument.clone());
            kept.extend(arguments.next().cloned());
        }
    }
    kept
}

/// Waits for keepers that have ended. Who carries flows is waited for where its end means something.
fn reap(worker: &Worker) {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(status) = waitid(Id::All, peek) {
        let Some(ended) = status
            .pid()
            .filter(|pid| pid.as_raw().unsigned_abs() != worker.id())
        else {
            return;
        };
        // It has ended: this does not wait.
        let _ = waitpid(ended, None);
    }
}

/// Nobody carries flows, and nobody will: they end, and the kernel forwards.
fn give_up(config: &Config) {
    tracing::error!("gives up: flows are reset, rules and routes removed");
    claim::end_keepers_of(config);
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let cleared = match runtime {
        Ok(runtime) => runtime
            .block_on(Interception::clear(config))
            .map_err(io::Error::other),
        Err(err) => Err(err),
    };
    if let Err(err) = cleared {
        tracing::error!(error = %err, "cannot remove all rules and routes");
    }
}

/// What a process that carries flows begins with. A panic ends it, and the next one takes over: but for a panic in a flow,
/// which ends that flow alone.
pub fn begin_worker() {
    // It was started by another name.
    if let Err(err) = prctl::set_name(c"pepd") {
        tracing::debug!(error = %err, "cannot be named");
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        let thread = std::thread::current();
        let in_flow = thread
            .name()
            .is_some_and(|name| name.starts_with(crate::workers::THREAD));
        if !in_flow {
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_gets_the_configuration_and_nothing_else_of_a_run() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (run, check) in [
            ("check -c a.toml --log-level debug", "check -c a.toml"),
            ("check --log-format json --config=x", "check --config=x"),
            ("check --config y --log-level=warn", "check --config y"),
            ("check", "check"),
        ] {
            assert_eq!(only_config(&words(run)), words(check));
        }
    }
}
