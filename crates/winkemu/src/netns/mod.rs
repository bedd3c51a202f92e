//! Network namespaces held by a descriptor, with their programs and interfaces.
//!
//! A [`Netns`] created here has no name in the file system. It lives as long as a descriptor or a
//! process holds it, so nothing is left after an interrupt, a panic or a `SIGKILL`. Programs
//! started in it end with this process ([`Process`]).
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

/// Network namespace; clones refer to the same one.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
}

impl Netns {
    /// Creates an empty namespace whose loopback interface is up.
    ///
    /// # Errors
    /// [`NetnsError::Create`]: no permission; see [`ensure_privileges`].
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

    /// Wraps a descriptor of `/proc/PID/ns/net` or `/run/netns/NAME`.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetnsError::Open`]: `/proc` is missing.
    pub fn current() -> Result<Self, NetnsError> {
        Self::by_path(Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens the namespace created by `ip netns add NAME`.
    ///
    /// # Errors
    /// [`NetnsError::Open`]: no namespace of that name.
    pub fn by_name(name: &str) -> Result<Self, NetnsError> {
        Self::by_path(&Path::new("/run/netns").join(name))
    }

    /// Opens the namespace of a process.
    ///
    /// # Errors
    /// [`NetnsError::Open`]: no such process, or no permission to inspect it.
    pub fn by_pid(pid: u32) -> Result<Self, NetnsError> {
        Self::by_path(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// Opens the namespace that a file refers to.
    ///
    /// # Errors
    /// [`NetnsError::Open`]: the file cannot be opened.
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
    /// Sockets and TUN devices that it opens stay in the namespace. A panic of the closure
    /// continues in the caller.
    ///
    /// # Errors
    /// [`NetnsError::Enter`]: no permission to enter.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        on_scratch_thread(|| self.move_thread_here().map(|()| f()))?
    }

    /// Creates a command that runs in the namespace, in a session of its own. The kernel kills it
    /// when the *thread* that spawned it ends.
    ///
    /// Start it with [`spawn`] or [`Process::spawn`], which use a thread that lives as long as this
    /// process. Spawn it directly only from a thread known to outlive it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::before_exec(&mut command, Arc::clone(&self.fd), sys::Session::Own);
        command
    }

    /// Creates a command that stays in the caller's session: a shell keeps its terminal.
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

/// Runs a closure on a new thread, so that the caller's namespace does not change.
fn on_scratch_thread<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".to_owned());
        let handle = thread.spawn_scoped(scope, f).map_err(NetnsError::Thread)?;
        handle.join().or_else(|panic| panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;
