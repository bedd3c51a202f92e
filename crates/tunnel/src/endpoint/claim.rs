//! Presumed senders of datagrams, before any cryptography.

use super::{Endpoint, PeerId, Remote, datagram::Kind};

impl Endpoint {
    /// Returns the peer that a datagram claims to be from: it carries an index that the peer was
    /// given, and comes from where the peer was heard last. `None` for handshakes, peers that have
    /// moved, and strangers. An attacker on the path can forge both.
    pub fn claimed_sender(&self, from: Remote, datagram: &[u8]) -> Option<PeerId> {
        let (Kind::Data { receiver, .. } | Kind::Confirmation { receiver }) =
            Kind::parse(datagram)?
        else {
            return None;
        };
        let slot = self.slots.get(self.local.shard.slot_of(receiver)?)?;
        let peer = slot.peer().filter(|peer| peer.remote == Some(from))?;
        let live = peer.live.as_ref()?;
        live.has(receiver).then_some(peer.id)
    }
}
