//! Minimum over a sliding window.

use std::collections::VecDeque;

/// Length of the window (s). Long enough to contain a packet of the clean path among those of a
/// jittery one; short enough that clocks with 100 ppm of drift are at most 2 ms off.
const SECONDS: usize = 20;

/// Minimum of the last 20 seconds that had values.
#[derive(Debug, Default)]
pub(super) struct Minimum {
    /// Minimum of each second, as long as no later one is lower.
    seconds: VecDeque<(i64, i64)>,
}

impl Minimum {
    /// Returns the minimum; `None` before the first value.
    pub(super) fn get(&self) -> Option<i64> {
        self.seconds.front().map(|(_, minimum)| *minimum)
    }

    /// Adds a value at this time (µs).
    pub(super) fn add(&mut self, now: i64, value: i64) {
        let second = now.div_euclid(1_000_000);
        while self
            .seconds
            .front()
            .is_some_and(|(at, _)| second - at >= SECONDS as i64)
        {
            self.seconds.pop_front();
        }
        while self
            .seconds
            .back()
            .is_some_and(|(_, minimum)| *minimum >= value)
        {
            self.seconds.pop_back();
        }
        // A higher one of the same second is superseded together with the present one.
        if self.seconds.back().is_none_or(|(at, _)| *at != second) {
            self.seconds.push_back((second, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_what_a_look_at_all_of_them_gives() {
        let (mut minimum, mut all) = (Minimum::default(), Vec::new());
        let mut state = 1u64;
        for i in 0..5000i64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (now, value) = (i * 37_000, (state >> 48) as i64);
            all.push((now / 1_000_000, value));
            minimum.add(now, value);
            let first = now / 1_000_000 - SECONDS as i64;
            let naive = all.iter().filter(|(at, _)| *at > first).map(|(_, v)| *v);
            assert_eq!(minimum.get(), naive.min());
            assert!(minimum.seconds.len() <= SECONDS);
        }
    }
}
