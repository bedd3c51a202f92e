//! The process that carries flows, as the one sees it that started it.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, ExitStatus as ChildStatus},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::{Pid, pipe2, read},
};
use pepd_relay::survive::inherited_text::InheritedText;

use super::watchdog::Watchdog;

/// Tells it what it is.
const WORKER: &str = "--worker";
/// Tells it that there was one before.
const AGAIN: &str = "--again";
/// Tells it to reset the flows of the one before.
const DISCARD: &str = "--discard-flows";
/// Tells it where to give signs of life.
const HEARTBEAT: &str = "--pulse";
/// Tells it how many before it did not go on.
const HANGS: &str = "--hangs";
/// Tells it what its configuration is.
pub(super) const TEXT: &str = "--text";
/// Tells it that a newer configuration could not be put in place.
const REVERTED: &str = "--reverted";

/// How long a process may take to leave a core, or to end at once.
const GRACE: Duration = Duration::from_secs(5);

/// What the next process that carries flows is to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order<'a> {
    /// Options of `pepd run`, as an operator gave them.
    pub arguments: &'a [OsString],
    /// Its configuration.
    pub text: &'a str,
    /// There was one before, which has ended unasked.
    pub again: bool,
    /// It resets the flows of the one before.
    pub discards: bool,
    /// How many before did not go on.
    pub hangs: u64,
    /// A newer configuration could not be put in place.
    pub reverted: bool,
}

/// The process that carries flows.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    /// Where its signs of life come, while there may be any.
    heartbeat: Option<OwnedFd>,
    began: Instant,
    watchdog: Watchdog,
    /// It has given a sign of life, as it does once it carries flows.
    pub is_up: bool,
    /// When it is killed, unless it has ended.
    kill_at: Option<Instant>,
    /// It was told to end at once.
    hurried: bool,
    /// It did not go on.
    pub hung: bool,
}

impl Worker {
    /// This very program, whatever is at its place by now.
    pub(super) fn start(order: Order<'_>) -> io::Result<Self> {
        let (heartbeat, theirs) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // There is no other thread that could start something now.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let text = InheritedText::new(order.text)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pepd").args(order.arguments).arg(WORKER);
        command.args([HEARTBEAT, &theirs.as_raw_fd().to_string()]);
        command.args([HANGS, &order.hangs.to_string()]);
        command.args([TEXT, &text.number()]);
        let flags = [
            (order.again, AGAIN),
            (order.discards, DISCARD),
            (order.reverted, REVERTED),
        ];
        command.args(flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag));
        Ok(Self {
            child: command.spawn()?,
            heartbeat: Some(heartbeat),
            began: Instant::now(),
            watchdog: Watchdog::new(Duration::ZERO),
            is_up: false,
            kill_at: None,
            hurried: false,
            hung: false,
        })
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How long ago it was started.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Where to wait for its signs of life.
    pub(super) fn heartbeat(&self) -> Option<BorrowedFd<'_>> {
        self.heartbeat.as_ref().map(AsFd::as_fd)
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ChildStatus>> {
        self.child.try_wait()
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        let Ok(process) = i32::try_from(self.id()) else {
            return;
        };
        // It is ours until it was waited for, so that its number is no other's.
        if let Err(err) = kill(Pid::from_raw(process), signal) {
            tracing::debug!(error = %err, "cannot pass a signal on");
        }
    }

    /// It is told to end at once, and is given a moment.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
        self.end_soon();
    }

    fn end_soon(&mut self) {
        let limit = Instant::now() + GRACE;
        self.kill_at = Some(self.kill_at.map_or(limit, |at| at.min(limit)));
    }

    /// Looks whether it goes on; to be called every [`LOOK`](super::watchdog::LOOK) at least.
    pub(super) fn poll(&mut self) {
        let sign = self.hear();
        self.is_up |= sign;
        let hangs = self.watchdog.poll(self.age(), sign);
        if hangs && !self.hung {
            self.hung = true;
            let what = if self.is_up {
                "gone on for 10 s"
            } else {
                "come up for 10 min"
            };
            tracing::error!(
                "the process that carries flows has not {what}: it is killed (SIGABRT, so that there may be a core)"
            );
            self.signal(Signal::SIGABRT);
            // One that was stopped does not end before it is continued.
            self.signal(Signal::SIGCONT);
            self.end_soon();
        }
        if self.hurried {
            // Two signals are one to who has not seen the first one yet.
            self.signal(Signal::SIGTERM);
        }
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.kill_at = None;
            self.signal(Signal::SIGKILL);
        }
    }

    /// Whether there was a sign of life.
    fn hear(&mut self) -> bool {
        let mut sign = false;
        while let Some(heartbeat) = &self.heartbeat {
            match read(heartbeat, &mut [0; 64]) {
                Ok(0) => self.heartbeat = None,
                Ok(_) => sign = true,
                Err(_) => break,
            }
        }
        sign
    }
}
