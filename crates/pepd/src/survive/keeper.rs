//! The process that keeps our sockets open when we end.

use std::{io, time::Duration};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::sys;

/// How long flows wait for a successor. Then their sockets close, and the kernel forwards.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A keeper of this process, which ends when this is dropped, unless it was [left](Self::leave).
#[derive(Debug)]
pub struct Keeper {
    process: Pid,
    ended: bool,
}

impl Keeper {
    /// Makes one.
    ///
    /// # Errors
    /// When there is no memory, or no process, for it.
    pub fn new(patience: Duration) -> io::Result<Self> {
        Ok(Self {
            process: sys::keeper::spawn(patience)?,
            ended: false,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.as_raw().unsigned_abs()
    }

    /// Whether somebody has killed it.
    pub fn has_ended(&mut self) -> bool {
        let status = waitpid(self.process, Some(WaitPidFlag::WNOHANG));
        self.ended |= !matches!(status, Ok(WaitStatus::StillAlive));
        self.ended
    }

    /// It outlives this process.
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
            tracing::debug!(error = %err, "the keeper cannot be ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd as _,
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
        let ours = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        assert_eq!(link(&keeper, number).as_deref(), ours.to_str());
        let deadline = Instant::now() + Duration::from_secs(20);
        let name = || fs::read_to_string(format!("/proc/{}/comm", keeper.id())).unwrap();
        while name().trim() != "pepd-keeper" {
            assert!(Instant::now() < deadline, "it is called {}", name());
            std::thread::yield_now();
        }
        drop(accepted);
        assert_ne!(link(&keeper, number).as_deref(), ours.to_str());
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
