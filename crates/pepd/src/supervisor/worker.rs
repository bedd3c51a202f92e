//! Worker process, as seen by its supervisor.

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

/// Option that makes the process a worker.
const WORKER: &str = "--worker";
/// Option after an unexpected end of the previous worker.
const AGAIN: &str = "--again";
/// Option to reset the flows of the previous worker.
const DISCARD: &str = "--discard-flows";
/// Option with the descriptor for heartbeats.
const HEARTBEAT: &str = "--heartbeat";
/// Option with the number of earlier workers that hung.
const HANGS: &str = "--hangs";
/// Option with the descriptor of the configuration's text.
pub(super) const TEXT: &str = "--text";
/// Option after a newer configuration failed to start.
const REVERTED: &str = "--reverted";

/// Time that a worker may take to write a core dump, or to end at once.
const GRACE: Duration = Duration::from_secs(5);

/// Parameters of the next worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order<'a> {
    /// Options of `pepd run`, as given by the operator.
    pub arguments: &'a [OsString],
    /// Text of its configuration.
    pub text: &'a str,
    /// True if the previous worker ended unexpectedly.
    pub again: bool,
    /// True if it resets the flows of its predecessor.
    pub discards: bool,
    /// Number of earlier workers that hung.
    pub hangs: u64,
    /// True if a newer configuration failed to start.
    pub reverted: bool,
}

/// The worker process.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    /// Receiving end of heartbeats, while there may be any.
    heartbeat: Option<OwnedFd>,
    began: Instant,
    watchdog: Watchdog,
    /// True after its first heartbeat, which it sends once it carries flows.
    pub is_up: bool,
    /// Time at which it is killed, unless it has ended.
    kill_at: Option<Instant>,
    /// True after the signal to end at once.
    hurried: bool,
    /// True if it hung.
    pub hung: bool,
}

impl Worker {
    /// Starts this very program, even if the file has been replaced.
    pub(super) fn start(order: Order<'_>) -> io::Result<Self> {
        let (heartbeat, theirs) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // No other thread could start a process now.
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

    /// Returns the process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the time since its start.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the descriptor to wait on for heartbeats.
    pub(super) fn heartbeat(&self) -> Option<BorrowedFd<'_>> {
        self.heartbeat.as_ref().map(AsFd::as_fd)
    }

    /// Returns its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> io::Result<Option<ChildStatus>> {
        self.child.try_wait()
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        let Ok(process) = i32::try_from(self.id()) else {
            return;
        };
        // The id stays reserved until the process is reaped.
        if let Err(err) = kill(Pid::from_raw(process), signal) {
            tracing::debug!(error = %err, "cannot forward a signal");
        }
    }

    /// Tells it to end at once, and allows it a moment.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
        self.end_soon();
    }

    fn end_soon(&mut self) {
        let limit = Instant::now() + GRACE;
        self.kill_at = Some(self.kill_at.map_or(limit, |at| at.min(limit)));
    }

    /// Checks for a hang; call it every [`LOOK`](super::watchdog::LOOK) or more often.
    pub(super) fn poll(&mut self) {
        let sign = self.hear();
        self.is_up |= sign;
        let hangs = self.watchdog.poll(self.age(), sign);
        if hangs && !self.hung {
            self.hung = true;
            let what = if self.is_up {
                "sent a heartbeat for 10 s"
            } else {
                "started within 10 min"
            };
            tracing::error!(
                "worker process has not {what}: killed (SIGABRT), another takes over; see docs/troubleshooting.md, pepd itself hangs"
            );
            self.signal(Signal::SIGABRT);
            // A stopped process does not end before it is continued.
            self.signal(Signal::SIGCONT);
            self.end_soon();
        }
        if self.hurried {
            // A second signal merges with one not yet delivered.
            self.signal(Signal::SIGTERM);
        }
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.kill_at = None;
            self.signal(Signal::SIGKILL);
        }
    }

    /// Returns true if a heartbeat has arrived.
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
