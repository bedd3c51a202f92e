//! What ends a process of a test at any of its steps: what it would still do has no effect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Counts the steps of a process that others can see, stores and calls, and ends it before one of them.
#[derive(Debug)]
pub struct Fuse {
    left: AtomicU64,
    /// A call of the kernel's is under way, which is one step.
    in_call: AtomicBool,
    /// One of so many stores is lost, in a process that is broken on purpose.
    loses: AtomicU64,
    stores: AtomicU64,
}

impl Default for Fuse {
    /// One that does not burn.
    fn default() -> Self {
        Self {
            left: AtomicU64::new(u64::MAX),
            in_call: AtomicBool::new(false),
            loses: AtomicU64::new(0),
            stores: AtomicU64::new(0),
        }
    }
}

impl Fuse {
    /// The process has so many steps left.
    pub fn light(&self, steps: u64) {
        self.left.store(steps, Relaxed);
    }

    /// One of so many stores is lost.
    pub fn lose(&self, one_of: u64) {
        self.loses.store(one_of, Relaxed);
    }

    /// Whether a store still happens.
    pub fn store(&self) -> bool {
        let loses = self.loses.load(Relaxed);
        let count = self.stores.fetch_add(1, Relaxed);
        self.step() && (loses == 0 || count % loses != loses - 1)
    }

    /// Whether the process has ended.
    pub fn has_burnt(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    /// Whether the next step still happens.
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

    /// A call, as one step: none where the process has ended.
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
