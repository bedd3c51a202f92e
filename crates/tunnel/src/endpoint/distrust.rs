//! Pauses between sessions with a peer that reports packets without receiving them.
//!
//! Such reports make the local end send faster than the path carries, until a number left out
//! reveals them. Without a pause a peer could do so again at once, and again.

use std::time::Duration;

/// First pause, and the maximum; each is twice the last one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(64);
/// Time after a pause until the next one is a first one again.
const FORGIVEN: Duration = Duration::from_secs(600);

/// Pause after a lie.
#[derive(Debug, Default)]
pub(super) struct Distrust {
    until: Duration,
    lies: u32,
}

impl Distrust {
    /// Begins a pause.
    pub fn on_lie(&mut self, now: Duration) {
        if now >= self.until + FORGIVEN {
            self.lies = 0;
        }
        let doubled = FIRST * 2_u32.saturating_pow(self.lies.min(16));
        self.until = now + doubled.min(LONGEST);
        self.lies = self.lies.saturating_add(1);
    }

    /// Returns when a session may begin again.
    pub fn until(&self) -> Duration {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_are_forgiven() {
        let (mut distrust, mut now) = (Distrust::default(), Duration::from_secs(5000));
        assert!(distrust.until() <= now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            distrust.on_lie(now);
            pauses.push((distrust.until() - now).as_secs());
            now = distrust.until();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        now += FORGIVEN;
        distrust.on_lie(now);
        assert_eq!(distrust.until(), now + FIRST);
    }
}
