//! Traces of sessions and boosters, requested by operators.

use pepd_relay::flow::Recorded;

use super::Core;
use crate::packets::Packets;

impl Core {
    /// Passes on traced events of sessions and boosters. Costs one load while no peer is recorded.
    pub(crate) fn record(&mut self) {
        let recorders = &self.context.recorders;
        let was_recorded = self.recorded.is_any();
        let of_any = |what| matches!(what, Recorded::Tunnel { .. });
        if !self.recorded.update(recorders, of_any) && !was_recorded {
            return;
        }
        let now = self.now();
        for peer in &mut self.peers.list {
            let name = peer.name;
            let of_peer = |what| matches!(what, Recorded::Tunnel { peer, .. } if peer == name);
            let was_recorded = peer.recorded.is_any();
            if !peer.recorded.update(&self.context.recorders, of_peer) && !was_recorded {
                continue;
            }
            let session = self.endpoint.trace(peer.id).into_iter();
            let boosters = peer.packets.as_mut().map(Packets::trace);
            let table = &peer.table;
            let stream_of = |slot| table.stream_of_slot(slot);
            peer.recorded.take(now, session.chain(boosters), stream_of);
        }
    }
}
