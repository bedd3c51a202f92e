//! Heartbeat of the process that carries flows, sent to its supervisor: one byte per second through
//! a pipe, as long as each of its threads is alive.
//!
//! ```text
//!   turns of its event loop                     alive
//!   none; it gets some CPU time, below 10 s     alive: busy, or starved by other processes
//!   none; it gets no CPU time                   hangs: blocked in a system call or by a lock
//!   none; 10 s of CPU time                      hangs: an endless loop
//! ```

use std::{
    convert::Infallible,
    fs::File,
    io::{self, ErrorKind, Write as _},
    os::{fd::RawFd, unix::fs::OpenOptionsExt as _},
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use nix::{time::ClockId, unistd::gettid};
use parking_lot::Mutex;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Interval at which each thread shows that it is alive, and is checked.
const BEAT: Duration = Duration::from_secs(1);
/// CPU time of a turn after which the thread does not come to its end.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Liveness of all threads.
#[derive(Debug, Default)]
pub struct Heartbeat(Mutex<Vec<(Beat, Watch)>>);

/// Signs of life of one thread. From its creation on the thread counts, until the last clone is
/// dropped.
#[derive(Debug, Clone, Default)]
pub struct Beat(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    /// Turns of the event loop.
    turns: AtomicU64,
    /// Number of the thread; 0 before it has begun.
    thread: AtomicI32,
}

/// Findings of the last looks at a thread.
#[derive(Debug, Default)]
struct Watch {
    /// Turns that were reported to the supervisor.
    reported: u64,
    /// Turns and CPU time at the last look.
    turns: u64,
    cpu: Duration,
    /// CPU time when the last turn was seen.
    begun: Duration,
}

impl Watch {
    /// Looks at a thread. Returns whether it is alive.
    fn look(&mut self, turns: u64, cpu: Duration) -> bool {
        if turns != std::mem::replace(&mut self.turns, turns) {
            self.begun = cpu;
        }
        let runs = cpu > std::mem::replace(&mut self.cpu, cpu);
        turns != self.reported || runs && cpu.saturating_sub(self.begun) < TURN_MAX
    }

    fn report(&mut self) {
        self.reported = self.turns;
    }
}

impl Beat {
    /// Records a turn of the thread's event loop.
    pub fn turn(&self) {
        self.0.turns.fetch_add(1, Relaxed);
    }

    /// Makes the event loop of the thread turn once a second. Run it there until the thread ends.
    pub async fn tick(self) -> Infallible {
        self.0.thread.store(gettid().as_raw(), Relaxed);
        let mut tick = ticks();
        loop {
            tick.tick().await;
            self.turn();
        }
    }

    /// Returns the CPU time of the thread; 0 if it has not begun, or has ended.
    fn cpu(&self) -> Duration {
        let thread = self.0.thread.load(Relaxed);
        if thread == 0 {
            return Duration::ZERO;
        }
        // The kernel's number for the clock of a thread (clock_getcpuclockid(3) is for processes):
        // the complement of its number, and 4 (a thread) + 2 (scheduled time).
        let clock = ClockId::from_raw((!thread << 3) | 6);
        clock.now().map_or(Duration::ZERO, Duration::from)
    }
}

impl Heartbeat {
    /// Returns the signs of life of a thread that is about to begin.
    pub fn of_thread(&self) -> Beat {
        let beat = Beat::default();
        self.0.lock().push((beat.clone(), Watch::default()));
        beat
    }

    /// Returns whether all threads have been alive since the last call that returned true. Ended
    /// threads do not count.
    fn beats(&self, cpu: impl Fn(&Beat) -> Duration) -> bool {
        let mut threads = self.0.lock();
        threads.retain(|(beat, _)| Arc::strong_count(&beat.0) > 1);
        let mut all = true;
        for (beat, watch) in threads.iter_mut() {
            all &= watch.look(beat.0.turns.load(Relaxed), cpu(beat));
        }
        if all {
            threads.iter_mut().for_each(|(_, watch)| watch.report());
        }
        all
    }

    /// Sends the heartbeat until the reader has gone. Run it on the one thread that is not
    /// [checked](Self::of_thread).
    pub async fn send(&self, mut to: File) {
        let mut tick = ticks();
        // The first byte shows that flows are carried.
        let mut is_first = true;
        loop {
            tick.tick().await;
            if !(self.beats(Beat::cpu) | std::mem::take(&mut is_first)) {
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

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn it_beats_as_long_as_each_thread_goes_on() {
        let heartbeat = Heartbeat::default();
        let beats = || heartbeat.beats(|_| Duration::ZERO);
        assert!(beats(), "without threads none hangs");
        let first = tokio::spawn(heartbeat.of_thread().tick());
        let second = heartbeat.of_thread();
        // The paused clock advances when no task is ready, and each thread beats meanwhile.
        let wait = || tokio::time::sleep(3 * BEAT);
        wait().await;
        assert!(!beats(), "a thread has not begun");
        let second = tokio::spawn(second.tick());
        wait().await;
        assert!(beats());
        assert!(!beats(), "already reported");
        second.abort();
        let _ = second.await;
        wait().await;
        assert!(beats(), "an ended thread does not count");
        drop(first);
    }

    #[test]
    fn a_thread_without_turns_is_busy_while_it_gets_cpu_time_and_hangs_after_ten_seconds_of_it() {
        let mut watch = Watch::default();
        assert!(watch.look(1, s(3)));
        watch.report();
        // It gets a tenth of a CPU, so a turn of 9 s takes 90 s.
        let cpu = |second: u32| s(3) + Duration::from_millis(100) * second;
        assert!((1..100).all(|second| watch.look(1, cpu(second))));
        assert!(!watch.look(1, cpu(100)), "the turn does not end");
        assert!(!watch.look(1, cpu(101)));
        assert!(watch.look(2, cpu(102)), "it has ended");
        watch.report();
        assert!(watch.look(2, cpu(103)), "the next turn");
        assert!(!watch.look(2, cpu(103)), "blocked");
    }

    #[test]
    fn a_turn_counts_once_although_another_thread_hangs() {
        let heartbeat = Heartbeat::default();
        let [one, other] = [heartbeat.of_thread(), heartbeat.of_thread()];
        let beats = || heartbeat.beats(|_| Duration::ZERO);
        one.turn();
        assert!(!beats());
        other.turn();
        assert!(beats(), "both have turned since the last report");
        one.turn();
        assert!(!beats());
    }

    #[test]
    fn the_cpu_time_is_that_of_the_thread() {
        let beat = Beat::default();
        assert_eq!(beat.cpu(), Duration::ZERO, "not begun");
        beat.0.thread.store(gettid().as_raw(), Relaxed);
        let before = beat.cpu();
        let mut sum = 0_u64;
        while beat.cpu() == before {
            sum = std::hint::black_box(sum + 1);
        }
        // Another thread's work is not charged to this one.
        let after = beat.cpu();
        let work = Duration::from_millis(50);
        let busy = std::thread::spawn(move || {
            let other = Beat::default();
            other.0.thread.store(gettid().as_raw(), Relaxed);
            while other.cpu() < work {}
        });
        busy.join().expect("it ends");
        assert!(beat.cpu() - after < work, "{sum}");
    }
}
