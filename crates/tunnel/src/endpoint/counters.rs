//! Counters of initiations: once one has been accepted, those recorded before it offer nothing.
//!
//! ```text
//!   initiator: sent                          responder: heard
//!      n   --- INITIATION, n + 1 --------->    h < n + 1:  h = n + 1, keys are offered
//!          <---- RESPONSE, n + 1 ----------
//!      1   --- INITIATION, 2 ------------->    h >= 2:     nothing is offered
//!          <---- RESPONSE, h (h > 2) ------
//!  h + m   --- INITIATION, h + m + 1 ----->    keys are offered
//! ```

/// Highest counter that an end sends or accepts: no end comes near it by itself.
pub const COUNTER_MAX: u64 = 1 << 62;

/// Distance that an end that lost its counter keeps above the one that the peer has accepted (m
/// above). If the peer, too, lost its own, recordings of initiations raise the accepted counter
/// while the answer is on its way, and by less than this: no end sends as many.
const RECOVERY: u64 = 1 << 32;

/// Counters of the initiations between the local end and one peer. Store both, or recorded
/// initiations are answered after a restart until the peer initiates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Highest counter that the local end has sent, or that the peer says to have accepted.
    pub sent: u64,
    /// Highest counter that the local end has accepted.
    pub heard: u64,
}

impl Counters {
    /// Returns the counter of the next initiation.
    pub(super) fn next(&mut self) -> u64 {
        self.sent = self.sent.saturating_add(1).min(COUNTER_MAX);
        self.sent
    }

    /// Accepts a received counter, if it is above all accepted ones.
    ///
    /// # Errors
    /// It is not. Contains the counter of the response, which is above the received one.
    pub(super) fn accept(&mut self, counter: u64) -> Result<(), u64> {
        if counter <= self.heard {
            return Err(self.heard.max(counter.saturating_add(1)));
        }
        self.heard = counter;
        Ok(())
    }

    /// Raises the sent counter well above the one that the peer has accepted, if it is lower.
    /// Returns whether it was.
    pub(super) fn raise(&mut self, accepted: u64) -> bool {
        let is_behind = self.sent < accepted;
        if is_behind {
            self.sent = accepted.saturating_add(RECOVERY).min(COUNTER_MAX);
        }
        is_behind
    }
}
