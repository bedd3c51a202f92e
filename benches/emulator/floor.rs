//! Limits of the machine itself: the same work without a link.

use std::{
    io::{Read as _, Write as _},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{read, write},
};
use winkemu::shell::{Priority, Punctual, Tun};

use super::{
    Effort,
    probe::wall_clock,
    timing::{Errors, at_intervals},
};

/// Lateness of a thread that another one wakes (as a packet wakes a link), and that then sleeps
/// until the clock wakes it.
///
/// No emulator that sleeps can be more exact than the sum.
pub(crate) fn sleeper(effort: Effort, priority: Priority) -> Errors {
    // Shorter than the interval between two wake-ups.
    const HOLD: Duration = Duration::from_millis(4);
    let count = effort.count(400);
    let (mut reader, mut writer) = std::io::pipe().expect("two descriptors");
    let mut carry = move || {
        let mut stamp = [0; 8];
        reader.read_exact(&mut stamp).expect("the writer is alive");
        let sent = u64::from_be_bytes(stamp);
        let held = Duration::from_nanos(wall_clock() - sent);
        thread::sleep(HOLD.saturating_sub(held));
        (wall_clock() - sent) as i64 - HOLD.as_nanos() as i64
    };
    thread::scope(|scope| {
        let courier = scope.spawn(move || {
            let _punctual = Punctual::thread(priority);
            (0..count).map(|_| carry()).collect()
        });
        at_intervals(count, Duration::from_millis(10), || {
            let stamp = wall_clock().to_be_bytes();
            writer.write_all(&stamp).expect("the reader is alive");
        });
        Errors::new(courier.join().expect("the courier does not panic"))
    })
}

/// Two interfaces with a minimal relay between them: read, write, and wait when there is nothing to
/// read.
pub(crate) struct Wire {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<u64>>,
}

impl Wire {
    pub(crate) fn new(a: Tun, b: Tun) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let run = move || {
            let mut carried = 0;
            let patience = PollTimeout::from(100_u8);
            while !asked.load(Ordering::Relaxed) {
                let mut fds = [&a, &b].map(|tun| PollFd::new(tun.as_fd(), PollFlags::POLLIN));
                poll(&mut fds, patience).expect("two open descriptors");
                carried += carry(&a, &b) + carry(&b, &a);
            }
            carried
        };
        let thread = Some(thread::spawn(run));
        Self { stop, thread }
    }

    /// Stops the relay and returns the packets carried in both directions.
    pub(crate) fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("stopped once only");
        thread.join().expect("the relay does not panic")
    }
}

/// Carries a batch of packets from one interface to the other.
fn carry(from: &Tun, to: &Tun) -> u64 {
    let mut packet = [0; 2048];
    let mut one = || {
        let length = read(from, &mut packet).ok()?;
        // Packets that the other side refuses do not matter here.
        let _ = write(to, &packet[..length]);
        Some(())
    };
    (0..32).map_while(|_| one()).count() as u64
}
