//! Keeper: process that keeps pepd's sockets open when pepd ends.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Time that flows wait for a successor. Then their sockets close, and the kernel forwards.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Reason why keepers do not work on this system.
#[derive(Debug, thiserror::Error)]
#[error(
    "flows will not survive the end of pepd's process: its sockets cannot be taken over ({0}); \
     allow the system call pidfd_getfd (containers filter it without CAP_SYS_PTRACE), or set \
     `custody.survive = false`"
)]
pub struct UselessError(io::Error);

/// Checks whether other processes can take the descriptors of a keeper, by trying it with one.
///
/// # Errors
/// Fails where a filter of system calls or a security module forbids it, before Linux 5.6, and if
/// no process can be started.
pub fn are_useful() -> Result<(), UselessError> {
    let keeper = Keeper::new(Duration::ZERO);
    keeper
        .and_then(|keeper| keeper.check())
        .map_err(UselessError)
}

/// Keeper of this process. It ends on drop, unless it was [left](Self::leave).
#[derive(Debug)]
pub struct Keeper {
    process: Pid,
    ended: bool,
}

impl Keeper {
    /// Starts a keeper.
    ///
    /// # Errors
    /// Fails without memory, or a process, for it.
    pub fn new(patience: Duration) -> io::Result<Self> {
        Ok(Self {
            process: pepd_sys::keeper::spawn(patience)?,
            ended: false,
        })
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.process.as_raw().unsigned_abs()
    }

    /// Checks that a successor could take its descriptors, by taking one from it.
    fn check(&self) -> io::Result<()> {
        let keeper = pepd_sys::process::pidfd_open(self.process)?;
        let shared = keeper.as_raw_fd();
        // It shares this process's descriptor table, so it has the descriptor just opened.
        pepd_sys::process::pidfd_getfd(keeper.as_fd(), shared).map(drop)
    }

    /// Returns whether the keeper was killed.
    pub fn has_ended(&mut self) -> bool {
        let status = waitpid(self.process, Some(WaitPidFlag::WNOHANG));
        self.ended |= !matches!(status, Ok(WaitStatus::StillAlive));
        self.ended
    }

    /// Lets it outlive this process.
    pub fn leave(mut self) {
        self.ended = true;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let ended = kill(self.process, Signal::SIGKILL).and_then(|()| waitpid(self.process, None));
        if let Err(err) = ended {
            tracing::debug!(error = %err, "cannot end the keeper");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        net::{TcpListener, TcpStream},
        time::Instant,
    };

    use super::*;

    fn link(keeper: &Keeper, fd: i32) -> Option<String> {
        let link = fs::read_link(format!("/proc/{}/fd/{fd}", keeper.id())).ok()?;
        Some(link.to_string_lossy().into_owned())
    }

    #[test]
    fn what_is_opened_and_closed_later_is_so_in_the_keeper_too() {
        let keeper = Keeper::new(PATIENCE).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let number = accepted.as_raw_fd();
        let own = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        assert_eq!(link(&keeper, number).as_deref(), own.to_str());
        let name = |id: u32| fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        assert_eq!(name(keeper.id()).trim(), "pepd-keeper", "from the start");
        drop(accepted);
        assert_ne!(link(&keeper, number).as_deref(), own.to_str());
    }

    #[test]
    fn a_successor_could_take_what_it_keeps() {
        are_useful().unwrap();
    }

    #[test]
    fn it_ends_with_its_handle_and_its_end_is_noticed() {
        let mut keeper = Keeper::new(PATIENCE).unwrap();
        let id = keeper.id();
        assert!(!keeper.has_ended());
        kill(keeper.process, Signal::SIGTERM).unwrap();
        assert!(!keeper.has_ended(), "only SIGKILL ends it");
        drop(keeper);
        assert!(fs::metadata(format!("/proc/{id}")).is_err());
        let mut keeper = Keeper::new(PATIENCE).unwrap();
        kill(keeper.process, Signal::SIGKILL).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !keeper.has_ended() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}
