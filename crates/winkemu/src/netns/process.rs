//! Programs that cannot outlive us.

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

/// Process groups that are running, for [`kill_all`].
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A program of [`Netns::command`](super::Netns::command) with all its descendants.
///
/// Dropping it kills the whole process group and waits for the program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts the command; it is killed when this process ends, however it ends.
    ///
    /// # Errors
    /// When the program does not exist or cannot be started.
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

    /// The process id, also that of its group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipes, where the command asked for them.
    pub fn pipes(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal to the program (not to its descendants).
    ///
    /// Nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            // The pid stays ours until the child is waited for; an error means it has ended.
            let _ = nix::sys::signal::kill(pid(self.id()), signal);
        }
    }

    /// Waits for the program to end, then kills descendants it left behind; `None` when it has
    /// not ended after the timeout.
    ///
    /// # Errors
    /// When the system cannot wait for it.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() && wait_readable(&self.pidfd, timeout)? {
            return self.kill().map(Some);
        }
        Ok(self.status)
    }

    /// Asks the program to end (`SIGTERM`), and kills its group if it has not after `grace`.
    ///
    /// # Errors
    /// When the system cannot wait for it.
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
    /// When the system cannot wait for it.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        // Before reaping: until then the group's id cannot belong to anybody else.
        kill_group(self.id());
        RUNNING.lock().remove(&self.id());
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It can only fail where the child has been waited for already.
        let _ = self.kill();
    }
}

/// Starts a command from a thread that lives as long as this process.
///
/// `PDEATHSIG` is sent when the *thread* that forked ends, so a command of
/// [`Netns::command`](super::Netns::command) must not be spawned from a short-lived one.
///
/// # Errors
/// When the program does not exist or cannot be started.
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

/// Kills every [`Process`] with its descendants: for signal handlers that end this process.
pub fn kill_all() {
    for group in RUNNING.lock().iter() {
        kill_group(*group);
    }
}

fn kill_group(group: u32) {
    // An error means that nobody is left in the group.
    let _ = killpg(pid(group), Signal::SIGKILL);
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).expect("process ids fit i32"))
}

/// Whether the descriptor became readable before the timeout.
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
