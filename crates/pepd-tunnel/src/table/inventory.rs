//! Which flows go on in a new session: what is known of each, and which the peer does not call any more.

use tunnel::wire::ResetCode;

use super::{FlowId, Table};

/// What is known of a flow that the peer speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It waits for a stream that goes on with it.
    Waiting(FlowId),
    /// It has a stream.
    Bound,
    /// It has ended, like this.
    Ended(ResetCode),
    /// Nothing.
    Not,
}

/// How far the peer has come with those flows that go on in its session.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// How many there are, once it has said so.
    expected: Option<u64>,
    came: u64,
    /// We have said how many of ours there are.
    called: bool,
}

impl Table {
    /// Those that are [to be reopened](Self::to_reopen), once in a session: the peer is to be told how many these are, and takes it that the others have ended.
    pub(crate) fn send_inventory(&mut self) -> Option<Vec<FlowId>> {
        let called = std::mem::replace(&mut self.inventory.called, true);
        (!called).then(|| self.to_reopen())
    }

    /// What is known of the flow that the peer calls by that.
    pub(crate) fn find(&self, token: u128) -> Known {
        let Some(flow) = self.tokens.get(&token) else {
            return self.ended.get(token).map_or(Known::Not, Known::Ended);
        };
        let Some(entry) = self.entries.get(flow) else {
            return Known::Not;
        };
        match entry.reset {
            Some(code) => Known::Ended(code),
            None if entry.closed => Known::Ended(ResetCode::Ended),
            None if entry.is_suspended() => Known::Waiting(*flow),
            None => Known::Bound,
        }
    }

    /// Of the flows that there were so many go on, says the peer.
    pub(crate) fn on_inventory(&mut self, expected: u64) {
        self.inventory.expected = Some(expected);
        self.end_forgotten();
    }

    /// The peer has opened a stream for a flow that goes on.
    pub(crate) fn on_resumed(&mut self) {
        self.inventory.came += 1;
        self.end_forgotten();
    }

    /// Once all flows that go on have come, the others have ended at the peer.
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
            tracing::debug!(?client, ?reset, "a flow has ended at the peer");
        }
    }
}
