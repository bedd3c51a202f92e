//! Inventory of flows that resume in a new session, and flows that the peer no longer lists.

use tunnel::wire::ResetCode;

use super::{FlowId, Table};

/// State of a flow named by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// The flow waits for a stream that resumes it.
    Waiting(FlowId),
    /// The flow has a stream.
    Bound,
    /// The flow has ended with this code.
    Ended(ResetCode),
    /// The flow is unknown.
    Unknown,
}

/// Progress of the peer's inventory in its session.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Number of flows, once the peer has sent it.
    expected: Option<u64>,
    heard: bool,
    came: u64,
    /// The local inventory was sent.
    called: bool,
}

impl Table {
    /// Returns the flows [to be reopened](Self::to_reopen), once per session. The peer gets their
    /// number and concludes that the others have ended.
    pub(crate) fn send_inventory(&mut self) -> Option<Vec<FlowId>> {
        let called = std::mem::replace(&mut self.inventory.called, true);
        (!called).then(|| self.to_reopen())
    }

    /// Returns the state of the flow with the peer's token.
    pub(crate) fn find(&self, token: u128) -> Known {
        let Some(flow) = self.tokens.get(&token) else {
            return self.ended.get(token).map_or(Known::Unknown, Known::Ended);
        };
        let Some(entry) = self.entries.get(flow) else {
            return Known::Unknown;
        };
        match entry.reset {
            Some(code) => Known::Ended(code),
            None if entry.closed => Known::Ended(ResetCode::Ended),
            None if entry.is_suspended() => Known::Waiting(*flow),
            None => Known::Bound,
        }
    }

    /// Handles the peer's inventory: the number of its resumed flows. Further ones in a session
    /// have no effect: each would look at all flows.
    pub(crate) fn on_inventory(&mut self, expected: u64) {
        if std::mem::replace(&mut self.inventory.heard, true) {
            return;
        }
        self.inventory.expected = Some(expected);
        self.end_forgotten();
    }

    /// Handles a stream that resumes a flow of the peer.
    pub(crate) fn on_resumed(&mut self) {
        self.inventory.came += 1;
        self.end_forgotten();
    }

    /// Ends the flows that the peer does not list, once all listed ones have come.
    fn end_forgotten(&mut self) {
        let comes = |expected| self.inventory.came < expected;
        if self.inventory.expected.is_none_or(comes) {
            return;
        }
        self.inventory.expected = None;
        let entries = self.entries.values_mut();
        let forgotten = entries.filter(|entry| entry.is_far() && entry.is_suspended());
        for entry in forgotten {
            entry.on_forgotten();
            let (client, reset) = (entry.client(), entry.reset);
            tracing::debug!(?client, ?reset, "flow has ended at the peer");
        }
    }
}
