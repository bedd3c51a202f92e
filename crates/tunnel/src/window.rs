//! The minimum or maximum of recent values.

use std::time::Duration;

/// Selects the minimum or the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extreme {
    Min,
    Max,
}

/// Minimum or maximum over a sliding window of one to two time spans. The two-span window needs
/// only two stored values.
#[derive(Clone, Debug)]
pub(crate) struct Windowed {
    which: Extreme,
    span: Duration,
    began: Duration,
    current: Option<Duration>,
    previous: Option<Duration>,
}

impl Windowed {
    pub(crate) fn new(which: Extreme, span: Duration) -> Self {
        Self {
            which,
            span,
            began: Duration::ZERO,
            current: None,
            previous: None,
        }
    }

    pub(crate) fn add(&mut self, now: Duration, value: Duration) {
        if self.current.is_none() || now >= self.began + self.span {
            self.previous = self.current.take();
            self.began = now;
        }
        self.current = self.better(self.current, Some(value));
    }

    /// Returns the extreme value, or `None` before the first value. The last values stay if none
    /// follow.
    pub(crate) fn get(&self) -> Option<Duration> {
        self.better(self.current, self.previous)
    }

    /// Raises all values by this.
    pub(crate) fn raise(&mut self, by: Duration) {
        for value in [&mut self.current, &mut self.previous] {
            *value = value.map(|value| value.saturating_add(by));
        }
    }

    fn better(&self, a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
        match (self.which, a, b) {
            (_, None, one) | (_, one, None) => one,
            (Extreme::Min, Some(a), Some(b)) => Some(a.min(b)),
            (Extreme::Max, Some(a), Some(b)) => Some(a.max(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn values_are_forgotten_after_one_span_or_two() {
        let mut minimum = Windowed::new(Extreme::Min, s(10));
        assert_eq!(minimum.get(), None);
        for (now, value, expected) in [
            (0, 5, 5),
            (3, 7, 5),
            (9, 4, 4),
            (10, 6, 4),
            (19, 8, 4),
            (20, 9, 6),
        ] {
            minimum.add(s(now), s(value));
            assert_eq!(minimum.get(), Some(s(expected)), "at {now}");
        }
        minimum.raise(s(1));
        assert_eq!(minimum.get(), Some(s(7)));
        let mut maximum = Windowed::new(Extreme::Max, s(10));
        maximum.add(s(0), s(3));
        maximum.add(s(1), s(2));
        assert_eq!(maximum.get(), Some(s(3)), "nothing newer");
        maximum.add(s(50), s(1));
        maximum.add(s(60), s(1));
        assert_eq!(maximum.get(), Some(s(1)));
    }
}
