//! Bytes of a file that have arrived at the receiver, over time.

use std::{
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

/// Period at which arrivals are read.
const PERIOD: Duration = Duration::from_millis(250);

/// Bytes that have arrived by a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Arrival {
    /// Seconds since the start.
    pub t_s: f64,
    /// Bytes so far.
    pub bytes: u64,
}

/// Calls `work`, and meanwhile `read` for the bytes that have arrived, which `live` then holds.
/// Returns the result and the arrivals, without points in the middle of a pause.
pub(super) fn watch<T>(
    work: impl FnOnce() -> T,
    read: impl Fn() -> u64 + Send,
    live: &AtomicU64,
) -> (T, Vec<Arrival>) {
    let began = Instant::now();
    let (done, ended) = mpsc::channel::<()>();
    let sample = move || {
        let mut arrivals = Vec::new();
        while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            // Never less than before: a finished upload is moved between two looks.
            let bytes = read().max(live.load(Relaxed));
            live.store(bytes, Relaxed);
            add(&mut arrivals, began.elapsed().as_secs_f64(), bytes);
        }
        arrivals
    };
    thread::scope(|scope| {
        let sampler = scope.spawn(sample);
        let result = work();
        drop(done);
        let arrivals = sampler.join().expect("reading a size cannot panic");
        (result, arrivals)
    })
}

/// Adds a point; during a pause it replaces the previous one.
fn add(arrivals: &mut Vec<Arrival>, t_s: f64, bytes: u64) {
    if let [.., before, last] = &mut arrivals[..]
        && before.bytes == bytes
        && last.bytes == bytes
    {
        last.t_s = t_s;
        return;
    }
    arrivals.push(Arrival { t_s, bytes });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_has_two_points() {
        let mut arrivals = Vec::new();
        for (t, bytes) in [(1, 0), (2, 5), (3, 5), (4, 5), (5, 5), (6, 9)] {
            add(&mut arrivals, f64::from(t), bytes);
        }
        let points: Vec<_> = arrivals.iter().map(|at| (at.t_s, at.bytes)).collect();
        assert_eq!(points, [(1.0, 0), (2.0, 5), (5.0, 5), (6.0, 9)]);
    }

    #[test]
    fn work_is_watched_until_it_ends() {
        let (live, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        let read = || seen.fetch_add(3, Relaxed) + 3;
        let began = Instant::now();
        let work = || {
            while live.load(Relaxed) < 6 {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "nothing was read"
                );
                thread::yield_now();
            }
            "done"
        };
        let (result, arrivals) = watch(work, read, &live);
        assert_eq!(result, "done");
        assert!(arrivals.len() >= 2, "{arrivals:?}");
        assert!(arrivals.is_sorted_by(|a, b| a.t_s < b.t_s && a.bytes < b.bytes));
    }
}
