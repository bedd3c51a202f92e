//! The least or greatest of the values of late.

use std::time::Duration;

/// Which one is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extreme {
    Least,
    Greatest,
}

/// The least or greatest value of the last while: of one span of time at least, of two at most, so that two values are all
/// there is to keep.
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

    /// `None` until there is a value. Of values that nothing has followed, the last ones stay.
    pub(crate) fn get(&self) -> Option<Duration> {
        self.better(self.current, self.previous)
    }

    /// Makes all values greater by this.
    pub(crate) fn raise(&mut self, by: Duration) {
        for value in [&mut self.current, &mut self.previous] {
            *value = value.map(|value| value.saturating_add(by));
        }
    }

    fn better(&self, a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
        match (self.which, a, b) {
            (_, None, one) | (_, one, None) => one,
            (Extreme::Least, Some(a), Some(b)) => Some(a.min(b)),
            (Extreme::Greatest, Some(a), Some(b)) => Some(a.max(b)),
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
        let mut least = Windowed::new(Extreme::Least, s(10));
        assert_eq!(least.get(), None);
        for (now, value, expected) in [
            (0, 5, 5),
            (3, 7, 5),
            (9, 4, 4),
            (10, 6, 4),
            (19, 8, 4),
            (20, 9, 6),
        ] {
            least.add(s(now), s(value));
            assert_eq!(least.get(), Some(s(expected)), "at {now}");
        }
        least.raise(s(1));
        assert_eq!(least.get(), Some(s(7)));
        let mut greatest = Windowed::new(Extreme::Greatest, s(10));
        greatest.add(s(0), s(3));
        greatest.add(s(1), s(2));
        assert_eq!(greatest.get(), Some(s(3)), "nothing newer");
        greatest.add(s(50), s(1));
        greatest.add(s(60), s(1));
        assert_eq!(greatest.get(), Some(s(1)));
    }
}
