//! Shutdown of the endpoint, and of peers.
//!
//! ```text
//!   local end   sessions are closed; no more calls, initiations and answers are ignored
//!   peer        called after 2 s, again after 4, then every 8 s (for a retry of one second),
//!               or as usual once it has called
//! ```

use std::time::Duration;

use super::{Endpoint, peer::Peer, slot::Slot};
use crate::wire::CloseCode;

impl Endpoint {
    /// Shuts down: the next packet of each session closes it. No session begins any more.
    pub fn shut_down(&mut self, reason: &str) {
        self.local.ending = true;
        let peers = self.slots.iter_mut().filter_map(Slot::peer_mut);
        peers.for_each(|peer| peer.shut_down(reason));
    }
}

impl Peer {
    fn shut_down(&mut self, reason: &str) {
        // An offer that is not proven yet would begin a session.
        self.pending.clear();
        if let Some(session) = self.session() {
            session.close(CloseCode::Shutdown, reason);
        }
    }

    /// Handles a session closed by the peer; a peer that shuts down will not want another one soon.
    pub(super) fn on_closed(&mut self, code: CloseCode, retry: Duration) {
        let heard = self.live.as_ref().map(|live| live.heard);
        if let (CloseCode::Shutdown, Some(now)) = (code, heard) {
            self.initiations.rest(now, retry);
        }
    }
}
