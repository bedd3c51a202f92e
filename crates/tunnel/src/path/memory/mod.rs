//! Memory of path parameters across sessions.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// Age up to which a rate is fully trusted.
const FRESH: Duration = Duration::from_secs(600);
/// Age beyond which nothing is trusted.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// Factor between round trip times that indicates another path (RFC 9959 §3).
const SAME_RTT: f64 = 2.0;
/// Initial share of the remembered rate (RFC 9959 §3).
const JUMP: f64 = 0.5;

/// Path parameters learnt by a session, in a plain form for storage. For storage across restarts,
/// `at` must come from a clock that continues.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathMemory {
    /// Time of these values.
    pub at: Duration,
    /// Link capacity for the session in bits per second; 0 if unknown.
    pub rate: u64,
    /// Minimum round trip time.
    pub rtt: Duration,
    /// Share of packets lost by the link, 0 to 1.
    pub loss: f64,
    /// Largest packet that arrived, in bytes of plain text.
    pub packet: usize,
}

/// Degree of trust in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The link was down for a while: resume at the remembered rate.
    Full,
    /// Begin with half of the rate.
    Half,
    /// Begin as if nothing were known.
    None,
}

impl PathMemory {
    /// Replaces the memory with current values.
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

    /// Returns the trust at `now`, given the current round trip time, if known.
    pub fn trust(&self, now: Duration, rtt: Option<Duration>) -> Trust {
        let age = now.saturating_sub(self.at);
        let same = rtt.is_none_or(|rtt| {
            let (was, is) = (self.rtt.as_secs_f64(), rtt.as_secs_f64());
            is <= SAME_RTT * was && was <= SAME_RTT * is
        });
        // A time in the future means that the clock was set back.
        if self.rate == 0 || age > STALE || !same || self.at > now {
            Trust::None
        } else if age <= FRESH {
            Trust::Full
        } else {
            Trust::Half
        }
    }

    /// Returns the initial rate for a new session in bits per second, if any: at most half of the
    /// remembered one, as other traffic may share the link now.
    pub fn first_rate(&self, now: Duration, rtt: Option<Duration>) -> Option<u64> {
        let trusted = self.trust(now, rtt) != Trust::None;
        trusted.then(|| ((self.rate as f64 * JUMP) as u64).max(1))
    }

    /// Returns the rate after an outage within the same session, whose beginning was noted here.
    pub fn rate_after_outage(&self, now: Duration) -> Option<u64> {
        match self.trust(now, None) {
            Trust::Full => Some(self.rate),
            Trust::Half => Some((self.rate / 2).max(1)),
            Trust::None => None,
        }
    }
}
