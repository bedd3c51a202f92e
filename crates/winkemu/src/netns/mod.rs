//! Network namespaces held by a descriptor, and programs and interfaces in them.
//!
//! A [`Netns`] made here has no name in the file system: it lives as long as a descriptor or a
//! process holds it, so nothing is left behind after an interrupt, a panic or a `SIGKILL`.
//! Programs started in it die with us ([`Process`]).
//!
//! ```no_run
//! use winkemu::netns::{Netns, Process};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (Netns::new()?, Netns::new()?);
//! a.add_veth("eth0", &b, "eth0")?;
//! a.add_address("eth0", "10.0.0.1/24".parse()?)?;
//! b.add_address("eth0", "10.0.0.2/24".parse()?)?;
//! a.set_up("eth0")?;
//! b.set_up("eth0")?;
//! let listener = b.enter(|| std::net::TcpListener::bind("10.0.0.2:80"))??;
//! let mut curl = a.command("curl");
//! let curl = Process::spawn(curl.arg("http://10.0.0.2/"))?;
//! # drop((listener, curl)); Ok(())
//! # }
//! ```

mod error;
mod interfaces;
mod privileges;
mod process;
mod sys;

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic,
    path::Path,
    process::Command,
    sync::Arc,
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};

pub use error::NetnsError;
pub use privileges::{PrivilegeError, check_tun, ensure_privileges};
pub use process::{Process, kill_all, spawn};

/// A network namespace; clones refer to the same one.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
}

impl Netns {
    /// A new, empty namespace whose loopback interface is up.
    ///
    /// # Errors
    /// [`NetnsError::Create`] without the right to make one; see [`ensure_privileges`].
    pub fn new() -> Result<Self, NetnsError> {
        let create = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            fs::File::open("/proc/thread-self/ns/net")
        };
        let file = on_scratch_thread(create)?.map_err(NetnsError::Create)?;
        let netns = Self::from_fd(file.into());
        netns.set_up("lo")?;
        Ok(netns)
    }

    /// The namespace a descriptor of `/proc/PID/ns/net` or `/run/netns/NAME` refers to.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetnsError::Open`] where `/proc` is missing.
    pub fn current() -> Result<Self, NetnsError> {
        Self::by_path(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace that `ip netns add NAME` made.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when there is none of that name.
    pub fn by_name(name: &str) -> Result<Self, NetnsError> {
        Self::by_path(&Path::new("/run/netns").join(name))
    }

    /// The namespace of a process.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when there is no such process or it may not be inspected.
    pub fn by_pid(pid: u32) -> Result<Self, NetnsError> {
        Self::by_path(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// The namespace a file stands for.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when the file cannot be opened.
    pub fn by_path(path: &Path) -> Result<Self, NetnsError> {
        let open = fs::File::open(path);
        let file = open.map_err(|source| NetnsError::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::from_fd(file.into()))
    }

    /// Runs a closure on a new thread inside the namespace and waits for it.
    ///
    /// What it opens there (sockets, TUN devices) stays in the namespace wherever it is used
    /// later. A panic of the closure continues in the caller.
    ///
    /// # Errors
    /// [`NetnsError::Enter`] without the right to enter.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_scratch_thread(|| self.move_thread_here().map(|()| f()))?
    }

    /// A command that will run in the namespace, in a session of its own, and be killed when the
    /// *thread* that spawned it ends.
    ///
    /// Start it with [`spawn`] or [`Process::spawn`], which use a thread that lives as long as
    /// this process does, unless the calling thread is known to outlive it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::before_exec(&mut command, Arc::clone(&self.fd), sys::Session::Own);
        command
    }

    /// Spawns it in the caller's session: a shell keeps its terminal.
    pub fn foreground_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::before_exec(&mut command, Arc::clone(&self.fd), sys::Session::Callers);
        command
    }

    fn move_thread_here(&self) -> Result<(), NetnsError> {
        setns(&*self.fd, CloneFlags::CLONE_NEWNET).map_err(|err| NetnsError::Enter(err.into()))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs a closure on a thread of its own, so that the caller's namespace does not change.
fn on_scratch_thread<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".to_owned());
        let handle = thread.spawn_scoped(scope, f).map_err(NetnsError::Thread)?;
        handle.join().or_else(|panic| panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;
