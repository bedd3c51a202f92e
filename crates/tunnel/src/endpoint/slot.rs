//! Place of a peer, which remembers when the peer is due.
//!
//! The endpoint needs the earliest time of all peers several times per datagram, and seldom more
//! than one of them has changed.

use std::{cell::Cell, time::Duration};

use super::{
    PeerEvent, PeerId,
    local::Local,
    peer::{Peer, Times},
};

/// Place for a peer, which may be empty.
#[derive(Default)]
pub(super) struct Slot {
    /// Number of peers that had the place before.
    pub generation: u16,
    peer: Option<Box<Peer>>,
    /// Times of the peer; `None` if it may have changed since they were computed.
    times: Cell<Option<Times>>,
}

impl Slot {
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// Returns the peer for a change.
    pub fn peer_mut(&mut self) -> Option<&mut Peer> {
        self.times.set(None);
        self.peer.as_deref_mut()
    }

    /// Sets the peer, and returns the previous one.
    pub fn replace(&mut self, peer: Option<Box<Peer>>) -> Option<Box<Peer>> {
        self.times.set(None);
        std::mem::replace(&mut self.peer, peer)
    }

    /// Returns when the peer may have something to send.
    pub fn due(&self, local: &Local) -> Option<Duration> {
        let peer = self.peer()?;
        let times = self.times.get().unwrap_or_else(|| peer.times(local));
        debug_assert_eq!(times, peer.times(local), "changed by no access");
        self.times.set(Some(times));
        times.due(local)
    }

    /// Returns the peer's next event. `retry` is the interval between initiations to it.
    pub fn poll_event(&mut self, retry: Duration) -> Option<(PeerId, PeerEvent)> {
        let peer = self.peer.as_deref_mut()?;
        let event = peer.poll_event(retry)?;
        self.times.set(None);
        Some((peer.id, event))
    }
}
