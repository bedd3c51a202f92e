//! The process that starts the one that carries flows, and the next one when that ends.
//!
//! It touches no flow and holds none of their sockets: there is little in it that can fail, and should it be
//! killed, flows go on.

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
use pepd_sys::load::{Loaded, Source};

use crate::{cleanup, service::Service};
use deaths::{Deaths, Next};
use texts::{BEFORE, Texts};
use watchdog::LOOK;
use worker::{Order, TEXT, Worker};

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

/// Starts the process that carries flows, and again whenever it ends without having been asked to; with the configuration
/// `before`, should it not come up with this one. Returns how the last one ended. Has to be called before there is another
/// thread: a program that replaces this one, and those that it starts, have our signals blocked, and unblock them once
/// they can handle them.
///
/// # Errors
/// When it cannot be started, or signals cannot be waited for.
pub fn run(loaded: Loaded, before: Option<Source>) -> io::Result<ExitStatus> {
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    prctl::set_name(SUPERVISOR)?;
    // Keepers of processes that have ended become children of ours.
    prctl::set_child_subreaper(true)?;
    let mut supervisor = Supervisor {
        // Where a newer one may be by the time it is asked for.
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
    /// Somebody wants the file to be read again, which was read already for the program that is to come.
    reload_again: bool,
    deaths: Deaths,
    /// How many did not go on.
    hangs: u64,
    service: Service,
}

impl Supervisor {
    fn run(&mut self) -> io::Result<ExitStatus> {
        let (mut again, mut discards) = (false, false);
        loop {
            let mut worker = Worker::start(Order {
                arguments: &self.arguments,
                text: self.texts.text(),
                again,
                discards,
                hangs: self.hangs,
                reverted: self.texts.reverted,
            })?;
            let status = self.watch(&mut worker)?;
            self.hangs += u64::from(worker.hung);
            if self.asked == Asked::Stop && status.code().is_none() {
                tracing::error!(%status, "the process that carries flows has ended while it drained: they are reset");
                clean_up(self.texts.config());
                return Ok(ExitStatus::FlowsReset);
            }
            let failed = self.asked == Asked::Nothing && !was_asked(status);
            if failed && self.texts.revert() {
                tracing::error!(%status, "a newer configuration could not be put in place: the one before is in use again");
                // Whatever comes of the one before, it has flows to carry.
                self.deaths.next(worker.age(), crashed(status));
                again = true;
                continue;
            }
            if let Some(status) = self.end(status) {
                return Ok(status);
            }
            tracing::error!(
                status = %status,
                "the process that carries flows has ended, another takes them over"
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
                // Nobody is there to be asked.
                return Ok(self.without_worker());
            }
        }
    }

    /// Passes signals on until it has ended.
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
            Signal::SIGQUIT | Signal::SIGUSR2 if self.asked == Asked::Stop => {
                tracing::error!("pepd drains, and ends then: nobody is to go on with its flows");
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

    /// Whether the program at our place takes the configuration, which it is to run by then.
    fn offer(&mut self) -> bool {
        let offered = self.texts.offer(&self.program);
        if let Err(why) = &offered {
            tracing::error!("no upgrade: {why}; everything goes on as before");
        }
        offered.is_ok()
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
                let exit = ExitStatus::from_code(code);
                let in_vain = exit != ExitStatus::Runtime && self.deaths.is_first();
                (was_asked(status) || in_vain).then_some(exit)
            }
            (Asked::Nothing, None) => None,
        }
    }

    /// Another program, or this one again, with the same process id. Returns only where that fails.
    fn replace(&self) -> ExitStatus {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let texts = self.texts.hand_on(&mut command);
        if self.reload_again {
            // Blocked, it waits for the program that replaces us.
            let _ = raise(Signal::SIGHUP);
        }
        let err = match texts {
            Ok(_open) => command.exec(),
            Err(err) => err,
        };
        let program = self.program.display();
        tracing::error!(error = %err, "cannot run {program}: flows wait for a minute, for `pepd run`");
        ExitStatus::Runtime
    }

    /// A signal came when the process that carries flows had just ended.
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

    /// Waits for a signal, or a sign of life.
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

/// Whether somebody has asked the process that carries flows itself to end.
fn was_asked(status: ChildStatus) -> bool {
    matches!(
        status.code().map(ExitStatus::from_code),
        Some(ExitStatus::Success | ExitStatus::FlowsReset | ExitStatus::AtOnce)
    )
}

/// Whether it has ended by something that it did itself. SIGKILL is of others.
fn crashed(status: ChildStatus) -> bool {
    status
        .signal()
        .is_some_and(|signal| signal != Signal::SIGKILL as i32)
}

/// Without the options by which one process tells the next what it is: those of programs that this one has replaced.
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
fn clean_up(config: &Config) {
    tracing::error!("gives up: flows are reset, rules and routes removed");
    claim::end_keepers_of(config);
    if let Err(err) = cleanup::remove(config) {
        let error = &err as &dyn std::error::Error;
        tracing::error!(error, "cannot remove all rules and routes");
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
