//! Pace of decompression.
//!
//! 15 bytes of a block may become 32,768. A peer of a slow link could thus make this end write at
//! any rate. Decompression that exceeds the ratio waits; nothing is refused.

use std::time::Duration;

/// Bytes that may come from one compressed byte without waiting.
const RATIO: u64 = 64;
/// Bytes beyond the ratio that may come at once.
const BURST: u64 = 4 << 20;
/// Bytes beyond the ratio that may come per second.
const PER_SECOND: u64 = 1 << 20;

/// Pace of one peer, for all of its streams.
#[derive(Debug, Clone)]
pub struct Expansion {
    /// Bytes that may come beyond the ratio; below 0 decompression waits.
    room: i64,
    at: Duration,
}

impl Default for Expansion {
    fn default() -> Self {
        Self {
            room: BURST as i64,
            at: Duration::ZERO,
        }
    }
}

impl Expansion {
    /// Returns the time until the next bytes may be decompressed; zero at once. Times do not
    /// decrease.
    pub fn wait(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let more = passed.as_micros() * u128::from(PER_SECOND) / 1_000_000;
        self.add(i64::try_from(more).unwrap_or(i64::MAX));
        let lacking = self.room.min(0).unsigned_abs();
        Duration::from_micros(lacking * 1_000_000 / PER_SECOND)
    }

    /// Counts decompressed bytes: `packed` in the stream became `plain` of a host.
    pub fn on_unpacked(&mut self, packed: u64, plain: u64) {
        let earned = i64::try_from(packed.saturating_mul(RATIO)).unwrap_or(i64::MAX);
        self.room = self.room.saturating_sub_unsigned(plain);
        self.add(earned);
    }

    fn add(&mut self, bytes: i64) {
        self.room = self.room.saturating_add(bytes).min(BURST as i64);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compression::PLAIN_MAX;

    /// Decompresses blocks of `packed` bytes to `plain` ones, as fast as permitted. Returns the
    /// bytes of all that came within that time.
    fn within(time: Duration, packed: u64, plain: u64) -> [u64; 2] {
        let (mut pace, mut now, mut sums) = (Expansion::default(), Duration::ZERO, [0; 2]);
        while sums[1] < 1 << 30 {
            now += pace.wait(now);
            if now > time {
                break;
            }
            pace.on_unpacked(packed, plain);
            sums = [sums[0] + packed, sums[1] + plain];
        }
        sums
    }

    #[test]
    fn ordinary_compression_never_waits() {
        let [_, plain] = within(Duration::ZERO, 512, PLAIN_MAX as u64);
        assert_eq!(plain, 1 << 30);
    }

    #[test]
    fn a_block_of_zeros_is_slowed_to_the_base_rate() {
        let [packed, plain] = within(Duration::from_secs(10), 15, PLAIN_MAX as u64);
        let most = RATIO * packed + BURST + 10 * PER_SECOND;
        assert!(
            (most - PLAIN_MAX as u64..=most + PLAIN_MAX as u64).contains(&plain),
            "{plain}"
        );
    }

    proptest! {
        #[test]
        fn no_interval_has_more_than_the_ratio_the_burst_and_the_base_rate(
            steps in prop::collection::vec((0_u64..2_000_000, 1_u64..40_000, 1_u64..65_536), 1..200),
            from in any::<prop::sample::Index>(),
        ) {
            let (mut pace, mut now, mut done) = (Expansion::default(), Duration::ZERO, Vec::new());
            for (pause, packed, plain) in steps {
                now += Duration::from_micros(pause);
                let wait = pace.wait(now);
                now += wait;
                prop_assert_eq!(pace.wait(now).as_micros() / 2, 0, "waiting suffices");
                pace.on_unpacked(packed, plain);
                done.push((now, packed, plain));
            }
            let done = &done[from.index(done.len())..];
            let sum = |of: fn(&(Duration, u64, u64)) -> u64| done.iter().map(of).sum::<u64>();
            let (packed, plain) = (sum(|step| step.1), sum(|step| step.2));
            let time = (done[done.len() - 1].0 - done[0].0).as_secs() + 1;
            let most = RATIO * packed + BURST + time * PER_SECOND + 65_536;
            prop_assert!(plain <= most, "{} bytes from {} in {} s", plain, packed, time);
        }
    }
}
