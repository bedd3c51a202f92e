//! A simulated end of a process at any step, for tests: later steps have no effect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A counter of a process's externally visible steps (stores and calls), which ends the process
/// before one of them.
#[derive(Debug)]
pub struct CrashPoint {
    left: AtomicU64,
    /// True while a system call is in progress, which counts as one step.
    in_call: AtomicBool,
    /// Drops one in so many stores, to simulate a faulty process.
    loses: AtomicU64,
    stores: AtomicU64,
}

impl Default for CrashPoint {
    /// Returns a crash point that never fires.
    fn default() -> Self {
        Self {
            left: AtomicU64::new(u64::MAX),
            in_call: AtomicBool::new(false),
            loses: AtomicU64::new(0),
            stores: AtomicU64::new(0),
        }
    }
}

impl CrashPoint {
    /// Leaves the process so many steps.
    pub fn arm(&self, steps: u64) {
        self.left.store(steps, Relaxed);
    }

    /// Drops one in `one_of` stores.
    pub fn lose(&self, one_of: u64) {
        self.loses.store(one_of, Relaxed);
    }

    /// Returns whether a store takes effect.
    pub fn store(&self) -> bool {
        let loses = self.loses.load(Relaxed);
        let count = self.stores.fetch_add(1, Relaxed);
        self.step() && (loses == 0 || count % loses != loses - 1)
    }

    /// Returns whether the process has ended.
    pub fn has_fired(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    /// Returns whether the next step takes effect.
    pub fn step(&self) -> bool {
        if self.in_call.load(Relaxed) {
            return true;
        }
        let left = self.left.load(Relaxed);
        if left < u64::MAX {
            self.left.store(left.saturating_sub(1), Relaxed);
        }
        left > 0
    }

    /// Runs a call as one step, or not at all if the process has ended.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        if !self.step() {
            return None;
        }
        self.in_call.store(true, Relaxed);
        let result = call();
        self.in_call.store(false, Relaxed);
        Some(result)
    }
}
