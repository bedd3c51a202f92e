//! Programs that cannot outlive this process.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, OwnedFd},
    process::{Child, Command, ExitStatus},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;

use super::sys;

/// Running process groups, for [`kill_all`].
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Program started from [`Netns::command`](super::Netns::command), with all its descendants.
///
/// Dropping it kills the whole process group and waits for the program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts the command. The kernel kills it when this process ends for any reason.
    ///
    /// # Errors
    /// The program does not exist or cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = spawn(command)?;
        let pidfd = sys::pidfd(child.id())?;
        RUNNING.lock().insert(child.id());
        Ok(Self {
            child,
            pidfd,
            status: None,
        })
    }

    /// Process id, which is also the id of its group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Child with the pipes that the command requested.
    pub fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal to the program, but not to its descendants. Does nothing if it has ended.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            // The pid stays valid until the child is reaped; an error means that it has ended.
            let _ = nix::sys::signal::kill(pid(self.id()), signal);
        }
    }

    /// Waits for the program to end, then kills descendants that it left. Returns `None` after the
    /// timeout.
    ///
    /// # Errors
    /// The system cannot wait for it.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() && wait_readable(&self.pidfd, timeout)? {
            return self.kill().map(Some);
        }
        Ok(self.status)
    }

    /// Sends `SIGTERM` to the program, and kills its group after `grace`.
    ///
    /// # Errors
    /// The system cannot wait for it.
    pub fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::SIGTERM);
        match self.wait(grace)? {
            Some(status) => Ok(status),
            None => self.kill(),
        }
    }

    /// Kills the program and its descendants, and waits for it.
    ///
    /// # Errors
    /// The system cannot wait for it.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        // Before reaping: until then no other process can get the group's id.
        kill_group(self.id());
        RUNNING.lock().remove(&self.id());
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the child was reaped already.
        let _ = self.kill();
    }
}

/// Starts a command from a thread that lives as long as this process.
///
/// The kernel sends `PDEATHSIG` when the *thread* that forked ends. A command of
/// [`Netns::command`](super::Netns::command) must therefore not be spawned from a short-lived
/// thread.
///
/// # Errors
/// The program does not exist or cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    type Job = (Command, mpsc::SyncSender<(Command, io::Result<Child>)>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        let serve = move || {
            for (mut command, reply) in jobs {
                let child = command.spawn();
                let _ = reply.send((command, child));
            }
        };
        let thread = thread::Builder::new().name("spawner".to_owned());
        thread.spawn(serve).expect("one thread can be started");
        Mutex::new(sender)
    });
    let (reply, answer) = mpsc::sync_channel(1);
    let job = std::mem::replace(command, Command::new(""));
    let sender = spawner.lock().clone();
    sender.send((job, reply)).expect("the spawner never ends");
    let (job, child) = answer.recv().expect("the spawner answers each job");
    *command = job;
    child
}

/// Kills every [`Process`] with its descendants, for signal handlers that end this process.
pub fn kill_all() {
    for group in RUNNING.lock().iter() {
        kill_group(*group);
    }
}

fn kill_group(group: u32) {
    // An error means that the group is empty.
    let _ = killpg(pid(group), Signal::SIGKILL);
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).expect("process ids fit i32"))
}

/// Waits for the descriptor to become readable; returns false after the timeout.
fn wait_readable(fd: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Whole milliseconds, rounded up so as not to spin at the end.
        let left = left.as_nanos().div_ceil(1_000_000);
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) if Instant::now() >= deadline => return Ok(false),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(err) => return Err(err.into()),
        }
    }
}
