//! Heartbeat of the process that carries flows, sent to its supervisor: one byte per second through
//! a pipe, as long as each of its threads is alive.

use std::{
    convert::Infallible,
    fs::File,
    io::{self, ErrorKind, Write as _},
    os::{fd::RawFd, unix::fs::OpenOptionsExt as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Interval at which each thread shows that it is alive, and is checked.
const BEAT: Duration = Duration::from_secs(1);

/// Liveness of all threads.
#[derive(Debug, Default)]
pub struct Heartbeat(Mutex<Vec<Beats>>);

/// Beats of one thread.
#[derive(Debug)]
struct Beats {
    count: Arc<AtomicU64>,
    seen: u64,
}

impl Heartbeat {
    /// Returns a future that the event loop of a thread runs until it ends. From now on that thread
    /// counts.
    pub fn of_thread(&self) -> impl Future<Output = Infallible> + use<> {
        let count = Arc::new(AtomicU64::new(0));
        let beats = Beats {
            count: Arc::clone(&count),
            seen: 0,
        };
        self.0.lock().push(beats);
        async move {
            let mut tick = ticks();
            loop {
                tick.tick().await;
                count.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns whether all threads have been alive since the last call that returned true. Ended
    /// threads do not count.
    fn beats(&self) -> bool {
        let mut threads = self.0.lock();
        threads.retain(|thread| Arc::strong_count(&thread.count) > 1);
        let goes_on = |thread: &Beats| thread.count.load(Relaxed) != thread.seen;
        let beats = threads.iter().all(goes_on);
        if beats {
            threads
                .iter_mut()
                .for_each(|thread| thread.seen = thread.count.load(Relaxed));
        }
        beats
    }

    /// Sends the heartbeat until the reader has gone. Run it on the one thread that is not
    /// [checked](Self::of_thread).
    pub async fn send(&self, mut to: File) {
        let mut tick = ticks();
        // The first byte shows that flows are carried.
        let mut is_first = true;
        loop {
            tick.tick().await;
            if !(self.beats() | std::mem::take(&mut is_first)) {
                continue;
            }
            match to.write(&[0]) {
                // Full: the reader itself is late.
                Ok(_) => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => {}
                Err(err) => {
                    tracing::debug!(error = %err, "heartbeat stopped: the supervisor's pipe is closed");
                    return;
                }
            }
        }
    }
}

fn ticks() -> Interval {
    let mut tick = interval(BEAT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

/// Opens the pipe inherited by this descriptor number, and takes ownership of the number.
///
/// # Errors
/// Fails without such a pipe, or without a reader.
pub fn pipe(number: RawFd) -> io::Result<File> {
    let path = format!("/proc/self/fd/{number}");
    let pipe = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    nix::unistd::close(number)?;
    Ok(pipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_beats_as_long_as_each_thread_goes_on() {
        let heartbeat = Heartbeat::default();
        assert!(heartbeat.beats(), "without threads none hangs");
        let first = tokio::spawn(heartbeat.of_thread());
        let second = heartbeat.of_thread();
        // The paused clock advances when no task is ready, and each thread beats meanwhile.
        let wait = || tokio::time::sleep(3 * BEAT);
        wait().await;
        assert!(!heartbeat.beats(), "a thread has not begun");
        let second = tokio::spawn(second);
        wait().await;
        assert!(heartbeat.beats());
        assert!(!heartbeat.beats(), "already reported");
        second.abort();
        let _ = second.await;
        wait().await;
        assert!(heartbeat.beats(), "an ended thread does not count");
        drop(first);
    }
}
