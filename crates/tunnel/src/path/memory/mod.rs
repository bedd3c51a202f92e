//! What is remembered of the way to a peer.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// For so long a rate is believed as it was.
const FRESH: Duration = Duration::from_secs(600);
/// After so long nothing is believed.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// A round trip that is this many times longer or shorter is of another path (RFC 9959 §3).
const SAME_RTT: f64 = 2.0;
/// The share of the remembered rate to begin with (RFC 9959 §3).
const JUMP: f64 = 0.5;

/// What a session has learnt of its path: plain, so that it can be written down. `at` is by a clock that
/// goes on when the program does not, if it is to outlast it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathMemory {
    /// When this was so.
    pub at: Duration,
    /// Bits a second that the link carried for us; 0 if not known.
    pub rate: u64,
    /// The least round trip time.
    pub rtt: Duration,
    /// The share of packets that the link lost, 0 to 1.
    pub loss: f64,
    /// The longest packet that came through, in bytes of plain text.
    pub packet: usize,
}

/// How far a memory may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The link was away for a while: at the remembered rate at once.
    Full,
    /// Begin with half of it and see.
    Half,
    /// Begin as if nothing were known.
    None,
}

impl PathMemory {
    /// What is known now, with what has just been seen.
    pub fn note(&mut self, at: Duration, rate: u64, rtt: Duration, loss: f64, packet: usize) {
        *self = Self {
            at,
            rate,
            rtt,
            loss: if loss.is_finite() {
                loss.clamp(0.0, 1.0)
            } else {
                0.0
            },
            packet,
        };
    }

    /// How far to trust it at `now`, if the round trip time now is `rtt`, as far as known.
    pub fn trust(&self, now: Duration, rtt: Option<Duration>) -> Trust {
        let age = now.saturating_sub(self.at);
        let same = rtt.is_none_or(|rtt| {
            let (was, is) = (self.rtt.as_secs_f64(), rtt.as_secs_f64());
            is <= SAME_RTT * was && was <= SAME_RTT * is
        });
        // A time that lies ahead is of a clock that was set back.
        if self.rate == 0 || age > STALE || !same || self.at > now {
            Trust::None
        } else if age <= FRESH {
            Trust::Full
        } else {
            Trust::Half
        }
    }

    /// The rate for a new session to begin with, in bits a second, if any: never more than half of what it
    /// was, since others may be on the link now.
    pub fn first_rate(&self, now: Duration, rtt: Option<Duration>) -> Option<u64> {
        let trusted = self.trust(now, rtt) != Trust::None;
        trusted.then(|| ((self.rate as f64 * JUMP) as u64).max(1))
    }

    /// The rate after an outage of the same session that began when this was noted.
    pub fn rate_after_outage(&self, now: Duration) -> Option<u64> {
        match self.trust(now, None) {
            Trust::Full => Some(self.rate),
            Trust::Half => Some((self.rate / 2).max(1)),
            Trust::None => None,
        }
    }
}
