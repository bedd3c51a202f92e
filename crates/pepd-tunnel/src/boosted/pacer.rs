//! The rate at which packets leave.

use std::time::Duration;

use units::Rate;

/// Time that a packet may leave early, to make up for a timer that expired late.
const EARLY: Duration = Duration::from_millis(2);

/// Times at which packets may leave.
#[derive(Debug)]
pub(super) struct Pacer {
    /// In bit/s of IP packets; `None`: packets leave at once.
    rate: Option<Rate>,
    next: Duration,
}

impl Pacer {
    pub(super) fn new(rate: Option<Rate>) -> Self {
        Self {
            rate,
            next: Duration::ZERO,
        }
    }

    /// Returns the time at which the next packet may leave.
    pub(super) fn next(&self) -> Duration {
        self.next
    }

    pub(super) fn is_ready(&self, now: Duration) -> bool {
        self.next <= now
    }

    /// Notes that a packet of that many bytes leaves.
    pub(super) fn on_sent(&mut self, now: Duration, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let bits = bytes as f64 * 8.0;
        let takes = Duration::from_secs_f64(bits / rate.bits_per_second().max(1) as f64);
        self.next = self.next.max(now.saturating_sub(EARLY)) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_and_make_up_for_late_timers_only() {
        let ms = Duration::from_millis;
        let mut pacer = Pacer::new(Some("12Mbit/s".parse().expect("a rate")));
        // 1 ms each; timers are late by 1.5 ms.
        let mut sent = 0;
        let late = Duration::from_micros(1500);
        let mut now = ms(1000);
        while now < ms(2000) {
            now = pacer.next().max(now) + late;
            while pacer.is_ready(now) {
                pacer.on_sent(now, 1500);
                sent += 1;
            }
        }
        assert!((998..=1004).contains(&sent), "{sent}");
        // After a pause there is no burst.
        now += ms(5000);
        let mut burst = 0;
        while pacer.is_ready(now) {
            pacer.on_sent(now, 1500);
            burst += 1;
        }
        assert_eq!(burst, 3);
    }

    #[test]
    fn without_a_rate_all_leave_at_once() {
        let mut pacer = Pacer::new(None);
        for _ in 0..1000 {
            assert!(pacer.is_ready(Duration::ZERO));
            pacer.on_sent(Duration::ZERO, 65_535);
        }
    }
}
