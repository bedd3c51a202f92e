//! The end of an endpoint, and peers that have come to theirs.
//!
//! ```text
//!   we end      sessions are closed; nobody is called, no initiation and no answer is read any more
//!   a peer ends it is called after 2 s, again after 4, and then every 8 s (as long as a second is the usual pause),
//!               or as usual once it has called
//! ```

use std::time::Duration;

use super::{Endpoint, peer::Peer};
use crate::wire::CloseCode;

impl Endpoint {
    /// Says good-bye to all peers: each session is closed with what is sent next. No session begins any more.
    pub fn shut_down(&mut self, reason: &str) {
        self.local.ending = true;
        let peers = self.slots.iter_mut().filter_map(|slot| slot.peer.as_mut());
        peers.for_each(|peer| peer.shut_down(reason));
    }
}

impl Peer {
    fn shut_down(&mut self, reason: &str) {
        // What was offered and is not proven would begin a session.
        self.pending.clear();
        if let Some(session) = self.session() {
            session.close(CloseCode::Shutdown, reason);
        }
    }

    /// The peer has closed the session; it will not want another one soon if it is ending.
    pub(super) fn on_closed(&mut self, code: CloseCode, retry: Duration) {
        let heard = self.live.as_ref().map(|live| live.heard);
        if let (CloseCode::Shutdown, Some(now)) = (code, heard) {
            self.initiations.rest(now, retry);
        }
    }
}
