//! Discovery of flows to be taken over.
//!
//! A [claim](crate::survive::claim) names the process that carries flows and the keeper of its
//! sockets. The former is the keeper's parent for as long as it lives. The parent changes at the
//! moment at which the process has completed its last system call. Process ids alone may already
//! belong to another process by then.

use std::{ffi::CStr, fs};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Process name of the supervisor, which restarts the process that carries flows.
pub const SUPERVISOR: &CStr = c"pepd-supervisor";

/// Returns whether a process has ended and left its sockets to that keeper, as far as visible from
/// this process.
pub(super) fn has_left(process: u32, keeper: u32) -> bool {
    is_keeper(keeper) && parent(keeper).is_some_and(|parent| parent != process)
}

/// Returns whether a process carries flows without a supervisor, because that was killed.
pub(super) fn is_unguarded(process: u32) -> bool {
    let carries = || children(process).into_iter().any(is_keeper);
    parent(process).is_some_and(|guard| !has_name(guard, SUPERVISOR) && carries())
}

/// Asks an unsupervised process to leave its flows to a successor.
pub(super) fn relieve(process: u32) {
    tracing::warn!(
        process,
        "taking over the flows of a pepd without a supervisor"
    );
    let Ok(process) = i32::try_from(process) else {
        return;
    };
    // ESRCH: the process has just ended, as wanted.
    if let Err(err) = kill(Pid::from_raw(process), Signal::SIGUSR2) {
        tracing::debug!(error = %err, "cannot signal the pepd to hand over its flows");
    }
}

fn is_keeper(process: u32) -> bool {
    has_name(process, pepd_sys::keeper::NAME)
}

fn has_name(process: u32, name: &CStr) -> bool {
    fs::read(format!("/proc/{process}/comm"))
        .is_ok_and(|comm| comm.trim_ascii_end() == name.to_bytes())
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
        assert!(!is_unguarded(process::id()));
        let keeper = Keeper::new(PATIENCE).unwrap();
        assert!(is_keeper(keeper.id()));
        assert!(!has_left(process::id(), keeper.id()));
        assert!(is_unguarded(process::id()));
        // Its parent is another process than the one passed.
        assert!(has_left(1, keeper.id()));
        assert!(!has_left(1, process::id()), "not a keeper");
        assert!(!has_left(1, 0));
    }
}
