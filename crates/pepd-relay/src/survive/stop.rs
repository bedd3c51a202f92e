//! Signals that ask pepd to end: the first one drains, a later one ends at once.

use std::time::{Duration, Instant};

/// Signals this soon after the first one are copies of it: `timeout` and init programs of
/// containers signal the process and its group.
const COPIES: Duration = Duration::from_secs(1);

/// Requests to end that have arrived so far.
#[derive(Debug, Default)]
pub struct Stops {
    first: Option<Instant>,
}

/// Meaning of a request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// First request.
    Drain,
    /// Copy of the first request.
    Copy,
    /// Later request, from an operator who does not want to wait.
    AtOnce,
}

impl Stops {
    /// Classifies a request.
    pub fn on_request(&mut self, now: Instant) -> Stop {
        match self.first {
            None => {
                self.first = Some(now);
                Stop::Drain
            }
            Some(first) if now.saturating_duration_since(first) < COPIES => Stop::Copy,
            Some(_) => Stop::AtOnce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_the_first_request_end_nothing_at_once() {
        let (mut stops, begin) = (Stops::default(), Instant::now());
        let mut after = |ms| stops.on_request(begin + Duration::from_millis(ms));
        assert_eq!(after(0), Stop::Drain);
        assert_eq!(after(0), Stop::Copy);
        assert_eq!(after(999), Stop::Copy);
        assert_eq!(after(1000), Stop::AtOnce);
        assert_eq!(after(1001), Stop::AtOnce);
    }
}
