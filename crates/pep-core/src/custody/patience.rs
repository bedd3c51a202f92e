//! How long bytes are held that do not get on.

use std::time::Duration;

/// Since when a flow holds bytes of which none has been delivered.
///
/// Time is what it was when somebody looked, by a clock that never goes back; one who looks once a second is right to a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patience {
    /// Since when, and how far it had come.
    stuck: Option<(Duration, u64)>,
}

impl Patience {
    /// Now `held` bytes are held, and `delivered` have been delivered since the beginning. For how long none has been.
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
        // A clock that goes back is one that stands.
        assert_eq!(patience.note(11 * HOUR, 1, 9), Duration::ZERO);
        assert_eq!(patience.note(13 * HOUR, 1, 9), HOUR);
    }
}
