//! Supervisor: the process that starts the worker, which carries flows, and the next one when it
//! ends.
//!
//! It touches no flow and holds none of their sockets. So little in it can fail, and if it is
//! killed, flows continue.

mod deaths;
mod texts;
mod watchdog;
mod worker;

use std::{
    env,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::PathBuf,
    process::{Command, ExitStatus as ChildStatus},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal, raise},
        signalfd::{SfdFlags, SignalFd},
        wait::{Id, WaitPidFlag, waitid, waitpid},
    },
};
use pep_core::config::Config;
use pepd_api::exit::ExitStatus;
use pepd_relay::survive::{
    claim,
    discovery::SUPERVISOR,
    stop::{Stop, Stops},
};
use pepd_sys::{
    load::{Loaded, Source},
    privileges,
};

use crate::{cleanup, service::Service};
use deaths::{Deaths, Next};
use texts::{BEFORE, Texts};
use watchdog::LOOK;
use worker::{Order, TEXT, Worker};

/// Signals that the supervisor handles.
const SIGNALS: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGQUIT,
    Signal::SIGCHLD,
];

/// Reason for which the worker was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Not asked.
    Nothing,
    /// Drain.
    Stop,
    /// Upgrade to another program at the same path.
    Upgrade,
    /// Leave the flows to a later process.
    Leave,
}

/// Starts the worker, and restarts it after every unexpected end; with the configuration `before`
/// if it fails to start with this one. Returns how the last worker ended. Must be called before
/// another thread exists. An upgraded program and its children inherit blocked signals, and unblock
/// them once they can handle them.
///
/// # Errors
/// When the worker cannot be started, or signals cannot be waited for.
pub fn run(loaded: Loaded, before: Option<Source>) -> io::Result<ExitStatus> {
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    prctl::set_name(SUPERVISOR)?;
    // Keepers of dead workers become children of the supervisor.
    prctl::set_child_subreaper(true)?;
    let mut supervisor = Supervisor {
        // The path, where a newer program may be at the time of an upgrade.
        program: env::current_exe()?,
        arguments: only_for_run(env::args_os().skip(1)),
        texts: Texts::new(loaded, before),
        signals: SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
        asked: Asked::Nothing,
        stops: Stops::default(),
        reload_again: false,
        deaths: Deaths::default(),
        hangs: 0,
        service: Service::default(),
    };
    supervisor.run()
}

struct Supervisor {
    program: PathBuf,
    arguments: Vec<OsString>,
    texts: Texts,
    signals: SignalFd,
    asked: Asked,
    stops: Stops,
    /// True if a reload was requested after the file was read for the coming program.
    reload_again: bool,
    deaths: Deaths,
    /// Number of workers that hung.
    hangs: u64,
    service: Service,
}

impl Supervisor {
    fn run(&mut self) -> io::Result<ExitStatus> {
        let (mut again, mut discards) = (false, false);
        loop {
            let started = Worker::start(Order {
                arguments: &self.arguments,
                text: self.texts.text(),
                again,
                discards,
                hangs: self.hangs,
                reverted: self.texts.reverted,
            });
            let mut worker = match started {
                Ok(worker) => worker,
                // Processes or memory may be short for a moment. The keeper holds the flows.
                Err(err) if again => {
                    tracing::error!(error = %err, "cannot start a worker process: trying again");
                    match self.deaths.next(Duration::ZERO, false) {
                        Next::Start { after, .. } => self.pause(after)?,
                        Next::GiveUp => {
                            clean_up(self.texts.config());
                            return Err(err);
                        }
                    }
                    if self.asked != Asked::Nothing {
                        return Ok(self.without_worker());
                    }
                    continue;
                }
                Err(err) => return Err(err),
            };
            let status = self.watch(&mut worker)?;
            self.hangs += u64::from(worker.hung);
            if self.asked == Asked::Stop && status.code().is_none() {
                tracing::error!(%status, "worker process ended during the drain: flows are reset");
                clean_up(self.texts.config());
                return Ok(ExitStatus::FlowsReset);
            }
            let failed = self.asked == Asked::Nothing && !was_asked(status);
            if failed && self.texts.revert() {
                tracing::error!(%status, "new configuration failed to start: reverted to the previous one");
                // Regardless of the previous one, it has flows to carry.
                self.deaths.next(worker.age(), crashed(status));
                again = true;
                continue;
            }
            if let Some(status) = self.end(status) {
                return Ok(status);
            }
            tracing::error!(
                status = %status,
                "worker process ended, another takes over its flows: look for the OOM killer in dmesg, else report the crash"
            );
            match self.deaths.next(worker.age(), crashed(status)) {
                Next::Start {
                    after,
                    discards: next,
                } => {
                    (again, discards) = (true, next);
                    self.pause(after)?;
                }
                Next::GiveUp => {
                    clean_up(self.texts.config());
                    return Ok(ExitStatus::Runtime);
                }
            }
            if self.asked != Asked::Nothing {
                // No worker is running.
                return Ok(self.without_worker());
            }
        }
    }

    /// Forwards signals until the worker has ended.
    fn watch(&mut self, worker: &mut Worker) -> io::Result<ChildStatus> {
        loop {
            self.wait(LOOK, worker.heartbeat())?;
            while let Some(signal) = self.next_signal()? {
                self.on_signal(signal, worker);
            }
            worker.poll();
            let stops = matches!(self.asked, Asked::Stop | Asked::Leave);
            self.service.notify(worker.is_up, stops);
            if worker.is_up {
                self.texts.settle();
            }
            reap(worker);
            if let Some(status) = worker.ended()? {
                return Ok(status);
            }
        }
    }

    fn on_signal(&mut self, signal: Signal, worker: &mut Worker) {
        let (asked, passed) = match signal {
            Signal::SIGTERM | Signal::SIGINT => (Asked::Stop, Signal::SIGTERM),
            Signal::SIGHUP if self.asked == Asked::Upgrade => {
                self.reload_again = true;
                return;
            }
            Signal::SIGUSR1 | Signal::SIGHUP => (self.asked, signal),
            Signal::SIGUSR2 if self.asked == Asked::Stop => {
                tracing::error!("upgrade ignored: pepd is draining and its flows end with it");
                return;
            }
            Signal::SIGQUIT => (Asked::Leave, Signal::SIGUSR2),
            Signal::SIGUSR2 if self.offer() => (Asked::Upgrade, Signal::SIGUSR2),
            _ => return,
        };
        if passed == Signal::SIGTERM {
            match self.stops.on_request(Instant::now()) {
                Stop::Drain => {}
                Stop::Copy => return,
                Stop::AtOnce => worker.hurry(),
            }
        }
        self.asked = asked;
        worker.signal(passed);
    }

    /// Checks that the program at pepd's path accepts the configuration with which it is to run.
    fn offer(&mut self) -> bool {
        let offered = self.texts.offer(&self.program);
        if let Err(why) = &offered {
            tracing::error!("upgrade failed, the running program stays: {why}");
        }
        offered.is_ok()
    }

    /// Returns the exit status if the end was requested, or a restart is pointless.
    fn end(&self, status: ChildStatus) -> Option<ExitStatus> {
        match (self.asked, status.code()) {
            (Asked::Upgrade, _) => Some(self.replace()),
            // The request came when its flows had just been reset.
            (Asked::Leave, Some(code)) if ExitStatus::from_code(code) != ExitStatus::Success => {
                Some(ExitStatus::from_code(code))
            }
            (Asked::Leave, _) => {
                tracing::info!("flows wait for the next pepd, for at most a minute");
                Some(ExitStatus::Success)
            }
            (Asked::Stop, code) => code.map(ExitStatus::from_code),
            (Asked::Nothing, Some(code)) => {
                let exit = ExitStatus::from_code(code);
                let in_vain = exit != ExitStatus::Runtime && self.deaths.is_first();
                (was_asked(status) || in_vain).then_some(exit)
            }
            (Asked::Nothing, None) => None,
        }
    }

    /// Replaces this process by another program, or this one again, with the same process id.
    /// Returns only on failure.
    fn replace(&self) -> ExitStatus {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let texts = self.texts.hand_on(&mut command);
        if self.reload_again {
            // The signal is blocked, and waits for the new program.
            let _ = raise(Signal::SIGHUP);
        }
        let err = match texts {
            Ok(_open) => command.exec(),
            Err(err) => err,
        };
        let program = self.program.display();
        tracing::error!(error = %err, "cannot run {program}: start pepd again within a minute (`pepd run`), or its flows are reset");
        ExitStatus::Runtime
    }

    /// Handles a signal that arrived right after the end of the worker.
    fn without_worker(&self) -> ExitStatus {
        match self.asked {
            Asked::Upgrade => self.replace(),
            Asked::Leave | Asked::Nothing => ExitStatus::Success,
            Asked::Stop => {
                clean_up(self.texts.config());
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
                    Signal::SIGUSR2 if self.offer() => Asked::Upgrade,
                    Signal::SIGQUIT => Asked::Leave,
                    _ => self.asked,
                };
            }
        }
    }

    /// Waits for a signal, or a heartbeat.
    fn wait(&self, limit: Duration, heartbeat: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let limit = limit.max(Duration::from_millis(1));
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let sources = [Some(self.signals.as_fd()), heartbeat]
            .into_iter()
            .flatten();
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

/// Returns true if a signal asked the worker itself to end.
fn was_asked(status: ChildStatus) -> bool {
    matches!(
        status.code().map(ExitStatus::from_code),
        Some(ExitStatus::Success | ExitStatus::FlowsReset | ExitStatus::AtOnce)
    )
}

/// Returns true if the worker ended by its own fault. SIGKILL comes from outside.
fn crashed(status: ChildStatus) -> bool {
    status
        .signal()
        .is_some_and(|signal| signal != Signal::SIGKILL as i32)
}

/// Removes internal options between processes, left by programs that this one has replaced.
fn only_for_run(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments;
    let mut kept = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == TEXT || argument == BEFORE {
            arguments.next();
        } else {
            kept.push(argument);
        }
    }
    kept
}

/// Reaps keepers that have ended. The worker is reaped where its end is handled.
fn reap(worker: &Worker) {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(status) = waitid(Id::All, peek) {
        let Some(ended) = status
            .pid()
            .filter(|pid| pid.as_raw().unsigned_abs() != worker.id())
        else {
            return;
        };
        // It has ended: this does not block.
        let _ = waitpid(ended, None);
    }
}

/// Cleans up after giving up: flows end, and the kernel forwards.
fn clean_up(config: &Config) {
    tracing::error!("giving up: flows are reset, rules and routes removed");
    claim::end_keepers_of(config);
    if let Err(err) = cleanup::remove(config) {
        let error = &err as &dyn std::error::Error;
        tracing::error!(
            error,
            "cannot remove all rules and routes: hosts' connections may fail; run `pepd cleanup`"
        );
    }
}

/// Initialises a worker process. A panic ends it, and the next one takes over, except for a panic
/// in a flow, which ends that flow alone.
///
/// No other process of pepd's user may read its memory, and it leaves no core dump
/// ([`privileges::protect_memory`]).
pub fn begin_worker() {
    if let Err(err) = privileges::protect_memory() {
        tracing::debug!(error = %err, "memory stays readable for processes of the same user");
    }
    // The worker was started by another name.
    if let Err(err) = prctl::set_name(c"pepd") {
        tracing::debug!(error = %err, "cannot set the process name");
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        let thread = std::thread::current();
        let in_flow = thread
            .name()
            .is_some_and(|name| name.starts_with(pepd_sys::threads::NAME));
        if !in_flow {
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_was_handed_is_not_handed_on() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, kept) in [
            ("run -c a.toml --text 5 --before 6", "run -c a.toml"),
            (
                "run --text 5 --config=x --log-level debug",
                "run --config=x --log-level debug",
            ),
            ("run", "run"),
        ] {
            assert_eq!(only_for_run(words(given).into_iter()), words(kept));
        }
    }
}
