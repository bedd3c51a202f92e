//! Signs of life of the process that carries flows, for the one that would start the next: a byte a second by a pipe, as long
//! as each of its threads goes on.

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

/// How often a thread shows that it goes on, and is asked whether it does.
const BEAT: Duration = Duration::from_secs(1);

/// Whether the threads go on.
#[derive(Debug, Default)]
pub struct Pulse(Mutex<Vec<Beats>>);

/// Those of one thread.
#[derive(Debug)]
struct Beats {
    count: Arc<AtomicU64>,
    seen: u64,
}

impl Pulse {
    /// What the event loop of a thread is to run until it ends: from now on that thread counts.
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

    /// Whether all threads have gone on since that was last so. Those that have ended do not count.
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

    /// Tells of it, until nobody hears it any more. To be run by the one thread that is not [asked](Self::of_thread).
    pub async fn tell(&self, mut to: File) {
        let mut tick = ticks();
        // The first one says that flows are carried.
        let mut is_first = true;
        loop {
            tick.tick().await;
            if !(self.beats() | std::mem::take(&mut is_first)) {
                continue;
            }
            match to.write(&[0]) {
                // Full: who is to hear it is late itself.
                Ok(_) => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => {}
                Err(err) => {
                    tracing::debug!(error = %err, "nobody hears any more whether this process goes on");
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

/// The pipe that was inherited by this number, which is free then.
///
/// # Errors
/// When there is no such pipe, or nobody to read from it.
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
        let pulse = Pulse::default();
        assert!(pulse.beats(), "there is none that could hang");
        let first = tokio::spawn(pulse.of_thread());
        let second = pulse.of_thread();
        // By the paused clock, which is put forward when nothing else is to be done: each thread beats meanwhile.
        let wait = || tokio::time::sleep(3 * BEAT);
        wait().await;
        assert!(!pulse.beats(), "one has not begun");
        let second = tokio::spawn(second);
        wait().await;
        assert!(pulse.beats());
        assert!(!pulse.beats(), "that was told");
        second.abort();
        let _ = second.await;
        wait().await;
        assert!(pulse.beats(), "one that has ended does not count");
        drop(first);
    }
}
