//! Packets of hosts that are no flows of ours.

use std::time::Duration;

use pep_core::site::SiteId;

use super::Core;
use crate::packets::{Packets, Taken};

impl Core {
    /// A packet of a host has come out of the interface of that chain of a peer's.
    pub(crate) fn packet_from_host(
        &mut self,
        now: Duration,
        (peer, chain): (usize, usize),
        packet: &[u8],
    ) -> Taken {
        let silence = match self.statuses.is_up(peer) {
            true => self.silence(peer, self.base.elapsed()),
            false => Some(Duration::MAX),
        };
        match &mut self.peers.list[peer].packets {
            Some(packets) => packets.offer(now, chain, packet, silence),
            None => Taken::Pass,
        }
    }

    /// The peer of a site in mode `packet`, and its chain there.
    pub(crate) fn chain_of(&self, site: SiteId) -> Option<(usize, usize)> {
        let mut peers = self.peers.list.iter().enumerate();
        peers.find_map(|(index, peer)| Some((index, peer.packets.as_ref()?.chain_of(site)?)))
    }

    /// Does what is due with packets, and tells the sessions what there is to be sent.
    pub(crate) fn settle_packets(&mut self) {
        let now = self.now();
        for peer in &mut self.peers.list {
            if let Some(packets) = &mut peer.packets {
                packets.settle(now, self.endpoint.session(peer.id));
            }
        }
    }

    /// When there is something to do with packets though nothing has happened.
    pub(crate) fn packets_deadline(&self) -> Option<Duration> {
        let peers = self.peers.list.iter();
        let packets = peers.filter_map(|peer| peer.packets.as_ref()?.deadline());
        packets.min()
    }

    /// The next packet for a host: of which peer and chain it is, and the packet.
    pub(crate) fn poll_host(&mut self) -> Option<((usize, usize), Vec<u8>)> {
        let mut peers = self.peers.list.iter_mut().enumerate();
        peers.find_map(|(index, peer)| {
            let (chain, packet) = peer.packets.as_mut()?.poll_host()?;
            Some(((index, chain), packet))
        })
    }

    /// Packets of peers that were dropped since this was last asked for, as no router lets them go on, and as no site has to do with them.
    pub(crate) fn take_strangers(&mut self) -> [u64; 2] {
        let peers = self.peers.list.iter_mut();
        let packets = peers.filter_map(|peer| peer.packets.as_mut());
        let counts = packets.map(Packets::take_strangers);
        counts.fold([0; 2], |sum, next| [sum[0] + next[0], sum[1] + next[1]])
    }

    /// Whether a session with packets has begun since this was last asked.
    pub(crate) fn take_joined(&mut self) -> bool {
        std::mem::take(&mut self.joined)
    }

    /// How long a packet of that chain may be to be carried in one piece, as soon as it is known what the path takes; until then longer ones go in
    /// several. Hosts that are told less remember it for long.
    pub(crate) fn packet_mtu(&mut self, (peer, chain): (usize, usize)) -> Option<usize> {
        let peer = &self.peers.list[peer];
        let room = self.endpoint.session(peer.id)?.expected_packet_room();
        peer.packets.as_ref()?.mtus(room).nth(chain)
    }

    /// A session with the peer has begun, or is over.
    pub(super) fn join_packets(&mut self, index: usize) {
        let peer = &mut self.peers.list[index];
        let Some(packets) = &mut peer.packets else {
            return;
        };
        match self.endpoint.session(peer.id) {
            Some(session) => {
                packets.begin(session);
                self.joined = true;
                let takes = session.takes_packets();
                self.statuses.set_takes_packets(index, takes);
            }
            None => packets.end(),
        }
    }
}
