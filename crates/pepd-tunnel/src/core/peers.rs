//! The peers as the tunnels' thread has them, with their flows.

//!
//! A peer is the store of its session: the bytes of its flows, and packets beside them.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use pep_core::{arena::name_hash, config::Peer};
use pepd_relay::flow::Attached;
use tunnel::{
    ecn::Ecn,
    endpoint::{Carrier, PeerId, Stores},
    session::PacketQueue,
    store::{NextPacket, Store},
    wire::StreamId,
};

use super::trouble::{Pause, Trouble};
use crate::{credit::Credits, packets::Packets, table::Table};

/// One peer.
#[derive(Debug)]
pub(crate) struct PeerShell {
    pub(crate) id: PeerId,
    pub(crate) config: Peer,
    pub(crate) table: Table,
    /// Of its sites in mode `packet`.
    pub(crate) packets: Option<Packets>,
    /// Which of our addresses it writes to, so that our answers come from there.
    pub(crate) local: Option<IpAddr>,
    /// By what it is reached.
    pub(super) carrier: Option<Carrier>,
    /// Time by [`Core::now`](super::Core::now) at which a packet of it last arrived, in any
    /// session.
    pub(super) heard: Option<Duration>,
    /// Bytes of datagrams sent to it and received from it, since this process began.
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    /// Since when nothing comes from it, though there is a session.
    pub(super) silent_since: Option<Duration>,
    /// That it has as many flows as it may was told.
    pub(super) cap_logged: bool,
    /// Why there is no session with it.
    pub(super) trouble: Trouble,
    /// Hash of its name.
    pub(super) name: u64,
    /// Recorders of its sessions and boosters.
    pub(super) recorded: Attached,
}

/// All peers, in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(super) list: Vec<PeerShell>,
    /// What they may send.
    pub(crate) credits: Credits,
    by_id: BTreeMap<PeerId, usize>,
    /// When strangers of a kind may be told of again.
    pub(super) strangers: [Pause; 2],
}

impl Peers {
    pub(crate) fn push(
        &mut self,
        id: PeerId,
        config: Peer,
        table: Table,
        packets: Option<Packets>,
    ) {
        self.by_id.insert(id, self.list.len());
        self.list.push(PeerShell {
            id,
            name: name_hash(&config.name),
            config,
            table,
            packets,
            local: None,
            carrier: None,
            heard: None,
            sent_bytes: 0,
            received_bytes: 0,
            silent_since: None,
            cap_logged: false,
            trouble: Trouble::default(),
            recorded: Attached::default(),
        });
    }

    /// The endpoint knows a peer by another number now.
    #[cfg(test)]
    pub(super) fn rename(&mut self, index: usize, id: PeerId) {
        let peer = &mut self.list[index];
        self.by_id.remove(&peer.id);
        self.by_id.insert(id, index);
        peer.id = id;
    }

    /// Which one the endpoint speaks of.
    pub(super) fn index(&self, id: PeerId) -> usize {
        *self.by_id.get(&id).expect("every peer was pushed")
    }

    pub(crate) fn of_id(&mut self, id: PeerId) -> &mut PeerShell {
        let index = self.index(id);
        &mut self.list[index]
    }
}

impl Stores for Peers {
    type Store = PeerShell;

    fn store_of(&mut self, peer: PeerId) -> &mut PeerShell {
        self.of_id(peer)
    }
}

impl Store for PeerShell {
    fn renew(&mut self) {
        self.table.renew();
        if let Some(packets) = &mut self.packets {
            packets.renew();
        }
    }

    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) {
        self.table.read(stream, from, into);
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        self.table.place(stream, from, bytes);
    }

    fn next_packet(
        &mut self,
        queue: PacketQueue,
        now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        self.packets.as_mut()?.next(queue, now, room, out)
    }

    fn packet(&mut self, now: Duration, channel: u8, outer: Ecn, message: &[u8]) {
        if let Some(packets) = &mut self.packets {
            packets.take(now, channel, outer, message);
        }
    }
}
