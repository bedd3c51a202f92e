//! Peers with their flows, as a tunnel thread has them.
//!
//! A peer is the store of its session: the bytes of its flows, and packets (datagrams, RFC 9221).

use std::{collections::BTreeMap, net::IpAddr, rc::Rc, sync::Arc, time::Duration};

use pep_core::{arena::name_hash, config::Peer, reach::Reach};
use pepd_relay::flow::Attached;
use tunnel::{
    compression::Expansion,
    ecn::Ecn,
    endpoint::{Carrier, PeerId, Stores},
    session::PacketQueue,
    store::{NextPacket, Store},
    wire::StreamId,
};

use super::{
    lines::PeerLines,
    openings::Openings,
    trouble::{Pause, Trouble},
};
use crate::{
    credit::{Credits, Pool},
    packets::Packets,
    table::Table,
};

/// One peer.
#[derive(Debug)]
pub(crate) struct PeerShell {
    pub(crate) id: PeerId,
    pub(crate) config: Peer,
    /// Hosts for which it speaks, and destinations that it may reach.
    pub(super) reach: Reach,
    pub(crate) table: Table,
    /// Packets of its sites in mode `packet`.
    pub(crate) packets: Option<Packets>,
    /// Local address to which the peer sends, used as the source of replies.
    pub(crate) local: Option<IpAddr>,
    /// Current transport.
    pub(super) carrier: Option<Carrier>,
    /// Time by [`Core::now`](super::Core::now) at which a packet of the peer last arrived, in any
    /// session.
    pub(super) heard: Option<Duration>,
    /// Bytes of datagrams sent to and received from the peer since the process started.
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    /// Earliest time of the next change of the hosts that the peer does not reach.
    pub(super) follows_from: Duration,
    /// Start of the peer's silence within a session.
    pub(super) silent_since: Option<Duration>,
    /// Reaching the maximum of flows was logged.
    pub(super) cap_logged: bool,
    /// Pace at which hosts get decompressed bytes of its flows.
    pub(super) expansion: Expansion,
    /// Reason for which there is no session.
    pub(super) trouble: Trouble,
    /// Pace of its log lines.
    pub(super) lines: PeerLines,
    /// Pace of its flows' connections to servers.
    pub(super) openings: Rc<Openings>,
    /// Hash of the peer's name.
    pub(super) name: u64,
    /// Recorders of its sessions and boosters.
    pub(super) recorded: Attached,
}

/// The peers of one thread, in the order of the configuration.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(super) list: Vec<PeerShell>,
    /// Credit of the peers.
    pub(crate) credits: Credits,
    by_id: BTreeMap<PeerId, usize>,
    /// Connections that the kernel tracks at most; `None` if it tracks none.
    pub(crate) tracked_max: Option<u32>,
    /// Pauses of log lines on strangers, by kind.
    pub(super) strangers: [Pause; 4],
}

impl Peers {
    /// Creates the value without peers.
    pub(crate) fn new(credit: &Arc<Pool>) -> Self {
        Self {
            list: Vec::new(),
            credits: Credits::new(credit),
            by_id: BTreeMap::new(),
            tracked_max: None,
            strangers: Default::default(),
        }
    }

    pub(crate) fn push(
        &mut self,
        id: PeerId,
        (config, reach): (Peer, Reach),
        table: Table,
        packets: Option<Packets>,
    ) {
        self.by_id.insert(id, self.list.len());
        self.list.push(PeerShell {
            id,
            name: name_hash(&config.name),
            openings: Openings::new(config.openings, self.tracked_max),
            config,
            reach,
            table,
            packets,
            local: None,
            carrier: None,
            heard: None,
            sent_bytes: 0,
            received_bytes: 0,
            follows_from: Duration::ZERO,
            silent_since: None,
            cap_logged: false,
            expansion: Expansion::default(),
            trouble: Trouble::default(),
            lines: PeerLines::default(),
            recorded: Attached::default(),
        });
    }

    /// Returns the hash of a peer's name.
    pub(crate) fn name(&self, peer: usize) -> u64 {
        self.list[peer].name
    }

    /// Returns the endpoint's numbers of the peers.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> Vec<PeerId> {
        self.list.iter().map(|peer| peer.id).collect()
    }

    /// Assigns a peer another number of the endpoint.
    #[cfg(test)]
    pub(super) fn rename(&mut self, index: usize, id: PeerId) {
        let peer = &mut self.list[index];
        self.by_id.remove(&peer.id);
        self.by_id.insert(id, index);
        peer.id = id;
    }

    /// Returns the index of a peer by the endpoint's number.
    pub(crate) fn index(&self, id: PeerId) -> usize {
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
