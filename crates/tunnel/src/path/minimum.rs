//! Minimum of a value over a sliding window, in bounded memory.

/// Minimum over the last one to two halves of a window. Times in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Minimum {
    now: f64,
    before: f64,
    since: f64,
}

impl Minimum {
    pub(crate) fn new() -> Self {
        Self {
            now: f64::INFINITY,
            before: f64::INFINITY,
            since: 0.0,
        }
    }

    pub(crate) fn note(&mut self, at: f64, value: f64, half: f64) {
        if at - self.since > half {
            self.turn(at);
        }
        self.keep(value);
    }

    /// Begins the next half of the window.
    fn turn(&mut self, at: f64) {
        (self.before, self.now, self.since) = (self.now, f64::INFINITY, at);
    }

    /// Adds a value to the current half.
    fn keep(&mut self, value: f64) {
        self.now = self.now.min(value);
    }

    /// Returns the minimum; infinity if there is no value.
    pub(crate) fn get(&self) -> f64 {
        self.now.min(self.before)
    }
}

/// Half of the window for the minimum delay, in seconds and in round trips. Two clocks that differ
/// by 100 ppm drift apart by 6 ms in twice that time.
const BASE_HALF: (f64, f64) = (30.0, 100.0);
/// Half of the window for the minimum round trip time in seconds, which is independent of clock
/// drift. A longer path is accepted after it.
pub(crate) const RTT_HALF: f64 = 600.0;

/// Returns half of the delay window at that round trip time, in seconds.
fn base_half(rtt: f64) -> f64 {
    BASE_HALF.0.max(BASE_HALF.1 * rtt)
}

/// Queueing delay: the one-way delay above the minimum. The two ends' clocks need not agree and may
/// drift. A queue that stands for longer than the delay window shows in the round trip time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueDelay {
    delay: Minimum,
    rtt: Minimum,
    rtt_ever: Minimum,
}

impl QueueDelay {
    pub(crate) fn new() -> Self {
        Self {
            delay: Minimum::new(),
            rtt: Minimum::new(),
            rtt_ever: Minimum::new(),
        }
    }

    /// Adds a round trip time.
    pub(crate) fn note_rtt(&mut self, at: f64, rtt: f64) {
        self.rtt.keep(rtt);
        self.rtt_ever.note(at, rtt, RTT_HALF);
    }

    /// Adds a packet sent at `sent` and received at `received`, by separate clocks. Returns its
    /// queueing delay in seconds.
    pub(crate) fn note(&mut self, sent: f64, received: f64) -> f64 {
        let rtt = self.rtt_ever.get();
        let half = base_half(if rtt.is_finite() { rtt } else { 0.0 });
        // Both windows turn together: else a standing queue would count twice in between.
        if sent - self.delay.since > half {
            self.delay.turn(sent);
            self.rtt.turn(sent);
        }
        self.delay.keep(received - sent);
        let standing = self.rtt.get() - rtt;
        received - sent - self.delay.get()
            + if standing.is_finite() {
                standing.max(0.0)
            } else {
                0.0
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_stands_counts_once_whenever_its_window_ends() {
        let mut delay = QueueDelay::new();
        // Empty for 10 s; then 0.3 s of queue, but 0.12 s at times.
        for tenth in 0..3000 {
            let sent = f64::from(tenth) / 10.0;
            let queue = match tenth {
                0..100 => 0.0,
                _ if tenth % 50 == 0 => 0.12,
                _ => 0.3,
            };
            delay.note_rtt(sent + 0.6 + queue, 0.6 + queue);
            let noted = delay.note(sent, sent + 0.3 + queue);
            assert!((noted - queue).abs() < 1e-6, "{sent}: {noted}");
        }
    }
}
