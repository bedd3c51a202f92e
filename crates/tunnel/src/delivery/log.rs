//! Log of the send times of packets, by number.

use std::{collections::VecDeque, time::Duration};

/// Packets that are always kept: 32 KiB, enough for the slowest links.
const PACKETS_MIN: usize = 4096;
/// Maximum number of packets: 2 MiB, three seconds at 1 Gbit/s.
const PACKETS_MAX: usize = 1 << 18;

/// Send times of the most recent packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// In nanoseconds, half the size of a [`Duration`].
    times: VecDeque<u64>,
    next: u64,
}

impl Log {
    /// Returns the next packet's number.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Records that the next packet is sent; forgets packets sent before `horizon`.
    pub(super) fn push(&mut self, now: Duration, horizon: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        self.times.push_back(nanos(now));
        let horizon = nanos(horizon);
        // Two at a time, so that the log can shrink.
        for _ in 0..2 {
            let old = self.times.front().is_some_and(|time| *time < horizon);
            if self.times.len() > PACKETS_MAX || old && self.times.len() > PACKETS_MIN {
                self.times.pop_front();
            }
        }
        number
    }

    /// Returns the send time of a packet; `None` if it is too old or not yet sent.
    pub(super) fn get(&self, number: u64) -> Option<Duration> {
        let first = self.next - self.times.len() as u64;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.times.get(index).copied().map(Duration::from_nanos)
    }
}

/// Saturates after 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_is_recent_and_is_bounded() {
        let mut log = Log::default();
        let ms = Duration::from_millis;
        for number in 0..10_000 {
            assert_eq!(
                log.push(ms(number), ms(number.saturating_sub(5000))),
                number
            );
        }
        assert_eq!(log.get(9999), Some(ms(9999)));
        assert_eq!(log.get(10_000), None);
        assert_eq!(log.get(5000), Some(ms(5000)));
        assert_eq!(log.get(4000), None);
        assert_eq!(log.times.len(), 5001);
        for number in 10_000..600_000 {
            log.push(ms(number), Duration::ZERO);
        }
        assert_eq!(log.times.len(), PACKETS_MAX);
        assert_eq!(log.next(), 600_000);
    }
}
