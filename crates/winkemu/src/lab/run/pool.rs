//! Runs side by side, and again where the machine was too busy.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{
    Bench, Progress,
    single::{self, Outcome, RunResult},
};
use crate::lab::scenario::RunSpec;

/// Calls `f` for 0 to `count` - 1 on `jobs` threads, and gives the answers in order.
pub(super) fn map<T: Send>(count: usize, jobs: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let value = f(index);
            done.lock()
                .expect("no holder of this lock panics")
                .push((index, value));
        }
    };
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let mut done = done.into_inner().expect("no holder of this lock panics");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, value)| value).collect()
}

/// Runs once, and again as often as the scenario allows while the machine was too busy.
pub(super) fn attempt(bench: &Bench<'_>, spec: &RunSpec, progress: &Progress) -> RunResult {
    let scenario = bench.scenario;
    let mut attempt = 1;
    loop {
        let result = single::run(bench, spec, attempt);
        match &result.outcome {
            Outcome::Late { reason } if attempt <= scenario.retries => {
                progress.retry(scenario, spec, reason);
                attempt += 1;
            }
            _ => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn answers_are_in_order_and_jobs_at_once() {
        // Nobody passes the barrier unless three run at the same time.
        let barrier = Barrier::new(3);
        let square = |index: usize| {
            barrier.wait();
            index * index
        };
        assert_eq!(map(6, 3, square), [0, 1, 4, 9, 16, 25]);
        assert_eq!(map(2, 1, |index| index), [0, 1]);
    }
}
