//! Whose flows there are to be taken over.
//!
//! A [claim](crate::survive::claim) says which process carries flows and which one keeps its sockets. The
//! keeper's parent is the former for as long as that lives, and somebody else from the very moment on at which it is
//! through with its last system call: process ids alone may be another's by then.

use std::fs;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// What the process is called that restarts the one that carries flows.
pub const SUPERVISOR: &std::ffi::CStr = c"pepd-supervisor";

/// A process that has ended and whose sockets are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    /// It.
    pub process: u32,
    /// The process that keeps them.
    pub keeper: u32,
}

impl Predecessor {
    /// `None` where the process still lives, or has no keeper, or that is not to be seen from here.
    pub fn find(process: u32, keeper: u32) -> Option<Self> {
        let ended = is_keeper(keeper) && parent(keeper)? != process;
        ended.then_some(Self { process, keeper })
    }

    /// A process that carries flows and nobody would restart: its supervisor was killed.
    pub fn unguarded(process: u32) -> Option<Unguarded> {
        let guard = parent(process)?;
        let is_guard = name(guard).is_some_and(|name| name.as_bytes() == SUPERVISOR.to_bytes());
        let carries = children(process).into_iter().any(is_keeper);
        (carries && !is_guard).then_some(Unguarded(process))
    }
}

/// A process that carries flows, and which nobody would restart.
#[derive(Debug)]
pub struct Unguarded(u32);

impl Unguarded {
    /// Asks it to leave its flows to a successor.
    pub fn hand_over(&self) {
        tracing::warn!(
            process = self.0,
            "takes over the flows of a pepd that nobody supervises"
        );
        let Ok(process) = i32::try_from(self.0) else {
            return;
        };
        // It may just have ended: so much the better.
        if let Err(err) = kill(Pid::from_raw(process), Signal::SIGUSR2) {
            tracing::debug!(error = %err, "cannot be asked");
        }
    }
}

fn is_keeper(process: u32) -> bool {
    name(process).is_some_and(|name| name.as_bytes() == pepd_sys::keeper::NAME.to_bytes())
}

fn name(process: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let lists = threads.into_iter().flatten().flatten().map(|thread| {
        let children = fs::read_to_string(thread.path().join("children"));
        children.unwrap_or_default()
    });
    let numbers: Vec<_> = lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().map(str::parse);
            numbers.collect::<Vec<_>>()
        })
        .collect();
    numbers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;
    use crate::survive::keeper::{Keeper, PATIENCE};

    #[test]
    fn who_lives_has_no_successor_and_is_left_alone_unless_it_has_a_keeper() {
        assert!(Predecessor::unguarded(process::id()).is_none());
        let keeper = Keeper::new(PATIENCE).unwrap();
        assert!(is_keeper(keeper.id()));
        assert_eq!(Predecessor::find(process::id(), keeper.id()), None);
        assert!(Predecessor::unguarded(process::id()).is_some());
        // Its parent is somebody else than the one that is asked for.
        let other = Predecessor::find(1, keeper.id());
        assert_eq!(other.map(|found| found.keeper), Some(keeper.id()));
        assert_eq!(Predecessor::find(1, process::id()), None, "not a keeper");
        assert_eq!(Predecessor::find(1, 0), None);
    }
}
