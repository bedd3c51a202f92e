//! Packets of hosts that belong to no flow in the tunnel.

use std::time::Duration;

use pep_core::site::SiteId;

use super::Core;
use crate::packets::{ForHost, Packets, Taken};

impl Core {
    /// Handles a host's packet from the interface of that chain.
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

    /// Returns the peer and the chain of a site in mode `packet`.
    pub(crate) fn chain_of(&self, site: SiteId) -> Option<(usize, usize)> {
        let mut peers = self.peers.list.iter().enumerate();
        peers.find_map(|(index, peer)| Some((index, peer.packets.as_ref()?.chain_of(site)?)))
    }

    /// Runs due timers of packets, and offers ready packets to the sessions. Peers take turns: with
    /// several, those of the next call come first that `most` leaves no time for. Returns whether
    /// there are any.
    pub(crate) fn settle_packets(&mut self, most: Duration) -> bool {
        let until = self.now() + most;
        let count = self.peers.list.len();
        let mut is_first = true;
        for turn in 0..count {
            let index = (self.next_settled + turn) % count;
            let now = self.now();
            let peer = &mut self.peers.list[index];
            let Some(packets) = &mut peer.packets else {
                continue;
            };
            if !std::mem::take(&mut is_first) && now >= until {
                self.next_settled = index;
                return true;
            }
            packets.settle(now, self.endpoint.session(peer.id));
        }
        false
    }

    /// Returns the time of the next timer of packets.
    pub(crate) fn packets_deadline(&self) -> Option<Duration> {
        let peers = self.peers.list.iter();
        let packets = peers.filter_map(|peer| peer.packets.as_ref()?.deadline());
        packets.min()
    }

    /// Returns the next packet for a host, with its peer and chain. Peers take turns.
    pub(crate) fn poll_host(&mut self) -> Option<((usize, usize), ForHost)> {
        let now = self.now();
        let (peers, next) = (&mut self.peers.list, &mut self.next_host);
        let first = *next;
        (first..peers.len()).chain(0..first).find_map(|index| {
            let (chain, packet) = peers.get_mut(index)?.packets.as_mut()?.poll_host(now)?;
            *next = (index + 1) % peers.len();
            Some(((index, chain), packet))
        })
    }

    /// Returns the packets of peers dropped since the last call: martian packets, packets that
    /// match no site, and those outside of their peer's reach.
    pub(crate) fn take_strangers(&mut self) -> [u64; 3] {
        let peers = self.peers.list.iter_mut();
        let packets = peers.filter_map(|peer| peer.packets.as_mut());
        let counts = packets.map(Packets::take_strangers);
        counts.fold([0; 3], |sum, next| {
            std::array::from_fn(|cause| sum[cause] + next[cause])
        })
    }

    /// Returns whether a session that takes packets has begun since the last call.
    pub(crate) fn take_joined(&mut self) -> bool {
        std::mem::take(&mut self.joined)
    }

    /// Returns the longest packet of that chain that is carried in one piece, once the path's MTU
    /// is known. Until then longer packets are split: a host would remember a smaller MTU for long.
    pub(crate) fn packet_mtu(&mut self, (peer, chain): (usize, usize)) -> Option<usize> {
        let peer = &self.peers.list[peer];
        let room = self.endpoint.session(peer.id)?.expected_packet_room();
        peer.packets.as_ref()?.mtus(room).nth(chain)
    }

    /// Handles the begin or the end of a session with the peer.
    pub(super) fn join_packets(&mut self, index: usize) {
        let now = self.now();
        let peer = &mut self.peers.list[index];
        let Some(packets) = &mut peer.packets else {
            return;
        };
        match self.endpoint.session(peer.id) {
            Some(session) => {
                packets.begin(now, session);
                self.joined = true;
                let takes = session.takes_packets();
                self.statuses.set_takes_packets(index, takes);
            }
            None => packets.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{packets::tests::packets, rig};

    #[test]
    fn peers_take_turns_where_their_timers_take_long() {
        let shared = rig::core(1, &[(2, None), (3, None), (4, None)]);
        let mut core = shared.borrow_mut();
        // The second peer has no such site.
        for index in [0, 2] {
            core.peers.list[index].packets = Some(packets());
        }
        assert!(!core.settle_packets(Duration::MAX / 4));
        for next in [2, 0, 2] {
            assert!(core.settle_packets(Duration::ZERO));
            assert_eq!(core.next_settled, next);
        }
        core.peers.list[0].packets = None;
        assert!(!core.settle_packets(Duration::ZERO), "the others are done");
    }
}
