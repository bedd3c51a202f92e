//! Runs of many plans, sequential and parallel.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use parking_lot::Mutex;

use crate::{
    plan::{Plan, Scope},
    side::Side,
    violation::Failure,
    world::{Summary, World},
};

/// Totals over many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Number of runs.
    pub runs: u64,
    /// Total packets.
    pub packets: u64,
    /// Total bytes of streams.
    pub bytes: u64,
    /// Messages outside streams that arrived.
    pub messages: u64,
    /// Total virtual time, in seconds.
    pub seconds: f64,
    /// Maximum memory of an end.
    pub memory: u64,
}

impl Totals {
    fn add(&mut self, summary: &Summary) {
        self.runs += 1;
        self.packets += summary.packets;
        self.bytes += summary.bytes;
        self.messages += summary.messages;
        self.seconds += summary.took.as_secs_f64();
        self.memory = self.memory.max(summary.memory);
    }
}

/// Runs the plans of these seeds on one thread per CPU; stops at the first failure.
///
/// # Errors
/// Returns the failure of the lowest seed that was found to fail.
pub fn explore<S: Side>(seeds: Range<u64>, scope: &Scope) -> Result<Totals, Box<Failure>> {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicBool::new(false);
    let found: Mutex<(Totals, Vec<Box<Failure>>)> = Mutex::default();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let outcome = World::<S>::run(Plan::draw(seed, scope), false);
            let mut found = found.lock();
            match outcome {
                Ok(summary) => found.0.add(&summary),
                Err(failure) => {
                    found.1.push(failure);
                    failed.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            threads.spawn(work);
        }
    });
    let (totals, mut failures) = found.into_inner();
    failures.sort_by_key(|failure| failure.plan.seed);
    failures.into_iter().next().map_or(Ok(totals), Err)
}

/// Returns the simplest plan found that fails in the same way, after at most `runs` runs.
pub fn simplify<S: Side>(failure: Box<Failure>, runs: u32) -> Box<Failure> {
    let (mut best, mut left) = (failure, runs);
    'again: loop {
        for plan in best.plan.simpler() {
            if left == 0 {
                return best;
            }
            left -= 1;
            if let Err(found) = World::<S>::run(plan, false)
                && found.violation.kind() == best.violation.kind()
            {
                best = found;
                continue 'again;
            }
        }
        return best;
    }
}
