//! Parallel runs, repeated if the machine was too busy.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::{
    Bench,
    single::{self, Outcome, RunResult},
};
use crate::lab::scenario::RunSpec;

/// Calls `f` for 0 to `count` - 1 on `jobs` threads.
pub(super) fn each(count: usize, jobs: usize, f: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            f(index);
        }
    };
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
}

/// Executes a run, and repeats it as often as the scenario allows while the machine was too busy.
pub(super) fn attempt(bench: &Bench<'_>, spec: &RunSpec) -> RunResult {
    let scenario = bench.scenario;
    let mut attempt = 1;
    loop {
        let result = single::run(bench, spec, attempt);
        match &result.outcome {
            Outcome::Late { reason } if attempt <= scenario.retries => {
                bench.progress.retry(scenario, spec, reason);
                attempt += 1;
            }
            _ => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn each_is_called_once_and_jobs_at_once() {
        // The barrier opens only if three run at the same time.
        let barrier = Barrier::new(3);
        let seen = Mutex::new(Vec::new());
        each(6, 3, |index| {
            barrier.wait();
            seen.lock().push(index);
        });
        each(1, 1, |index| seen.lock().push(index + 6));
        let mut seen = seen.into_inner();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);
    }
}
