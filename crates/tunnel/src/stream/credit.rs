//! Flow control: credit that each end grants the other.

use super::StreamError;

/// Bytes that the peer may send, and the position last announced to it.
///
/// Announced when a quarter of the window has been added, as each announcement costs a part, or
/// when the peer has used up the last announcement. The latter happens at most once per round trip,
/// so a reader that takes one byte at a time does not cause one-byte segments.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    /// Bytes below this may arrive.
    allowed: u64,
    /// Position last announced to the peer.
    announced: u64,
    /// Largest allowance beyond the received bytes, since the peer last used it up.
    window: u64,
}

impl Allowance {
    pub(super) fn new(allowed: u64) -> Self {
        Self {
            allowed,
            announced: allowed,
            window: allowed,
        }
    }

    pub(super) fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Allows bytes below `until`, of which the peer is notified in any case.
    pub(super) fn announce(&mut self, until: u64) {
        self.allowed = self.allowed.max(until);
        self.announced = self.allowed;
    }

    /// Allows bytes below `until`. All bytes below `come` have arrived, and none from `highest` on.
    /// Returns true if the peer must be notified, which then counts as done.
    pub(super) fn raise(&mut self, until: u64, come: u64, highest: u64) -> bool {
        self.allowed = self.allowed.max(until);
        let free = self.allowed.saturating_sub(come);
        let is_used_up = highest >= self.announced;
        self.window = if is_used_up {
            free
        } else {
            self.window.max(free)
        };
        let added = self.allowed - self.announced;
        let tell = added > 0 && (is_used_up || added >= self.window / 4);
        if tell {
            self.announced = self.allowed;
        }
        tell
    }
}

/// Credit of all streams together, in both directions. Positions are sums of the streams' highest
/// positions since the session began.
#[derive(Clone, Debug)]
pub(super) struct SessionCredit {
    pub(super) sent: u64,
    pub(super) credit: u64,
    pub(super) received: u64,
    allowance: Allowance,
}

impl SessionCredit {
    pub(super) fn new(credit: u64) -> Self {
        Self {
            sent: 0,
            credit,
            received: 0,
            allowance: Allowance::new(credit),
        }
    }

    /// Returns the number of bytes that may be sent now.
    pub(super) fn left(&self) -> u64 {
        self.credit.saturating_sub(self.sent)
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Takes credit from the peer.
    pub(super) fn on_credit(&mut self, until: u64) {
        self.credit = self.credit.max(until);
    }

    /// Counts a rise of the streams' highest positions.
    pub(super) fn on_received(&mut self, risen: u64) -> Result<(), StreamError> {
        let (sum, allowed) = (self.received.saturating_add(risen), self.allowed());
        if sum > allowed {
            return Err(StreamError::SessionCredit { sum, allowed });
        }
        self.received = sum;
        Ok(())
    }

    /// Allows the peer to send up to this sum. Returns true if the peer must be notified.
    pub(super) fn allow(&mut self, until: u64) -> bool {
        self.allowance.raise(until, self.received, self.received)
    }

    pub(super) fn allowed(&self) -> u64 {
        self.allowance.allowed()
    }
}
