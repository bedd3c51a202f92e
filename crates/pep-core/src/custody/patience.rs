//! Time that bytes are held without progress.

use std::time::Duration;

/// Time since which a flow holds bytes without delivering one.
///
/// Measured at each call by a clock that never goes back; with a call per second it is accurate to
/// a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patience {
    /// Start of the standstill, and bytes delivered until then.
    stuck: Option<(Duration, u64)>,
}

impl Patience {
    /// Records the held bytes, and the bytes `delivered` since the start. Returns the time without
    /// a delivery.
    pub fn note(&mut self, now: Duration, held: u64, delivered: u64) -> Duration {
        if held == 0 {
            self.stuck = None;
            return Duration::ZERO;
        }
        match self.stuck {
            Some((since, before)) if before == delivered => now.saturating_sub(since),
            _ => {
                self.stuck = Some((now, delivered));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn only_bytes_that_do_not_get_on_become_old() {
        let mut patience = Patience::default();
        assert_eq!(patience.note(HOUR, 0, 0), Duration::ZERO);
        assert_eq!(patience.note(2 * HOUR, 5, 0), Duration::ZERO);
        assert_eq!(patience.note(8 * HOUR, 9, 0), 6 * HOUR);
        assert_eq!(patience.note(9 * HOUR, 8, 1), Duration::ZERO);
        assert_eq!(patience.note(10 * HOUR, 8, 1), HOUR);
        assert_eq!(patience.note(11 * HOUR, 0, 9), Duration::ZERO);
        assert_eq!(patience.note(12 * HOUR, 1, 9), Duration::ZERO);
        // A clock that goes back counts as standing still.
        assert_eq!(patience.note(11 * HOUR, 1, 9), Duration::ZERO);
        assert_eq!(patience.note(13 * HOUR, 1, 9), HOUR);
    }
}
