//! How much the other side may send.

use super::StreamError;

/// What the peer may send, and what it was told of that.
///
/// It is told when a quarter of the window has been added, as each time costs a part, or when it has used up what it
/// knows of; then whatever there is. That happens at most once in a round trip, so a reader that
/// takes a byte at a time does not make it send them one by one.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    /// Bytes below this may come.
    allowed: u64,
    /// What the peer was last told.
    told: u64,
    /// The most that has been allowed beyond what has come, since the peer had used it up.
    window: u64,
}

impl Allowance {
    pub(super) fn new(allowed: u64) -> Self {
        Self {
            allowed,
            told: allowed,
            window: allowed,
        }
    }

    pub(super) fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Bytes below `until` may come; all below `come` have, and none from `highest` on. Whether to tell the
    /// peer, which counts as done then.
    pub(super) fn raise(&mut self, until: u64, come: u64, highest: u64) -> bool {
        self.allowed = self.allowed.max(until);
        let free = self.allowed.saturating_sub(come);
        let is_used_up = highest >= self.told;
        self.window = if is_used_up {
            free
        } else {
            self.window.max(free)
        };
        let added = self.allowed - self.told;
        let tell = added > 0 && (is_used_up || added >= self.window / 4);
        if tell {
            self.told = self.allowed;
        }
        tell
    }
}

/// The credit of all streams together, both ways. Positions are sums of the streams' highest ones, since
/// the session began.
#[derive(Clone, Debug)]
pub(super) struct SessionCredit {
    pub(super) sent: u64,
    credit: u64,
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

    /// How much may be sent now.
    pub(super) fn left(&self) -> u64 {
        self.credit.saturating_sub(self.sent)
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// The peer takes so much. Whether nothing was left, and something is.
    pub(super) fn on_credit(&mut self, until: u64) -> bool {
        let was_stuck = self.left() == 0;
        self.credit = self.credit.max(until);
        was_stuck && self.left() > 0
    }

    /// Highest positions have risen by so much.
    pub(super) fn on_received(&mut self, risen: u64) -> Result<(), StreamError> {
        let (sum, allowed) = (self.received.saturating_add(risen), self.allowed());
        if sum > allowed {
            return Err(StreamError::SessionCredit { sum, allowed });
        }
        self.received = sum;
        Ok(())
    }

    /// The peer may send so much. Whether it should be told.
    pub(super) fn allow(&mut self, until: u64) -> bool {
        self.allowance.raise(until, self.received, self.received)
    }

    pub(super) fn allowed(&self) -> u64 {
        self.allowance.allowed()
    }
}
