//! One end of tunnels to many peers: sealed datagrams on one side, sessions on the other.
//!
//! ```text
//!   session         Up: a session            RESPONSE ok     +-----------+
//!   or none   ---------------------+   +-------------------> |  offered  |  the responder waits for proof
//!      ^                           |   |  INITIATION         |  (<= 32)  |  that the initiator is there
//!      |    CONFIRMATION or DATA   v   |                     +-----------+
//!      +------------------------  keys that both have  <----------+
//! ```

mod addresses;
mod carriers;
mod config;
mod datagram;
mod ending;
mod event;
mod guard;
mod handshakes;
mod initiations;
mod live;
mod local;
mod peer;
mod terms;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

pub use crate::wire::DATAGRAM_OVERHEAD;
pub use addresses::ADDRESSES;
pub use carriers::{Carrier, Carriers, Remote};
pub use config::{EndpointConfig, Limits, PeerConfig};
pub use event::{AddPeerError, DownReason, HandshakeError, PeerEvent, Stranger};
pub use terms::VERSION;

use self::{
    datagram::{CONFIRMATION_HEADER, Kind},
    guard::{Bucket, Guard},
    live::Refused,
    local::Local,
    peer::{Arrival, Peer},
};
#[cfg(not(test))]
use crate::session::Session;
use trace::Trace;

use crate::{crypto::Key, ecn::Ecn, store::Store};
// What is above sessions is tested with one that does as it is told.
#[cfg(test)]
use tests::fake::Session;

/// A peer of an endpoint, which no other one ever is of the same endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u32);

/// Datagrams to a peer before another one's are asked for: as many as one system call may send.
const TURN: u32 = 32;

/// Replies to handshakes that wait to be sent.
const REPLIES: usize = 64;

/// Where the bytes of all peers' streams are.
pub trait Stores {
    /// That of one peer.
    type Store: Store;

    /// The bytes of the streams of the session with that peer.
    fn store_of(&mut self, peer: PeerId) -> &mut Self::Store;
}

/// A datagram to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Whose it is; none if it goes to somebody who has yet to show a cookie.
    pub peer: Option<PeerId>,
    /// Where it goes.
    pub to: Remote,
    /// The mark that it is to have.
    pub ecn: Ecn,
}

/// How a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Where it is, or should be.
    pub remote: Option<Remote>,
    /// The round trip that was stated.
    pub rtt: Duration,
    /// There is a session.
    pub up: bool,
    /// When something of it last arrived, in this session.
    pub heard: Option<Duration>,
    /// Since when the keys are used.
    pub keys_since: Option<Duration>,
    /// Rounds of initiations, one to each of its addresses, without success.
    pub unanswered: u32,
    /// Initiations of the peer's that were answered without success, since there were keys.
    pub answers_rejected: u32,
}

/// What an endpoint has seen since it began, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that were opened and passed on.
    pub packets: u64,
    /// Neither a known type nor a length that fits it.
    pub malformed: u64,
    /// For an index that nobody has.
    pub unknown: u64,
    /// Damaged, or not the peer's.
    pub forged: u64,
    /// A second time, or too late.
    pub repeated: u64,
    /// Initiations without a valid first MAC, and responses.
    pub not_for_us: u64,
    /// Initiations by keys that are no peer's.
    pub unknown_keys: u64,
    /// Initiations refused as there were too many.
    pub refused: u64,
    /// Handshake messages that were read, successfully or not: each costs DH.
    pub handshakes_read: u64,
    /// Initiations that were answered.
    pub answered: u64,
    /// Initiations that were answered by a cookie.
    pub cookies: u64,
}

struct Slot {
    generation: u16,
    peer: Option<Box<Peer>>,
}

struct Reply {
    transmit: Transmit,
    datagram: Vec<u8>,
}

/// One end of tunnels.
pub struct Endpoint {
    local: Local,
    guard: Guard,
    responses: Bucket,
    slots: Vec<Slot>,
    by_key: BTreeMap<Key, PeerId>,
    replies: VecDeque<Reply>,
    /// Whose turn it is, and for how many more datagrams.
    turn: (usize, u32),
    stats: Stats,
    /// The last one of each kind that was not told yet.
    strangers: [Option<Remote>; 2],
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &mut f.debug_struct("Endpoint");
        shown.field("peers", &self.by_key.len());
        shown.field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// One without peers.
    pub fn new(config: &EndpointConfig) -> Self {
        let mut local = Local::new(config);
        let (secret, source_key) = (local.seed(), u64::from_be_bytes(local.random()));
        Self {
            guard: Guard::new(&config.limits, &secret, source_key),
            responses: Bucket::new(config.limits.responses),
            local,
            slots: Vec::new(),
            by_key: BTreeMap::new(),
            replies: VecDeque::new(),
            turn: (0, TURN),
            stats: Stats::default(),
            strangers: [None; 2],
        }
    }

    /// What peers know us by.
    pub fn public_key(&self) -> Key {
        self.local.identity.public
    }

    /// What was seen so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// From now on there are tunnels to that peer; if its address is known, it is called at once.
    ///
    /// # Errors
    /// If there is one with that key, or the key is our own, or there are too many.
    pub fn add_peer(&mut self, config: PeerConfig) -> Result<PeerId, AddPeerError> {
        if config.public_key == self.public_key() {
            return Err(AddPeerError::Ourselves);
        }
        if self.by_key.contains_key(&config.public_key) {
            return Err(AddPeerError::Known);
        }
        let slot = self.free_slot()?;
        let id = PeerId::new(slot, self.slots[usize::from(slot)].generation);
        self.by_key.insert(config.public_key, id);
        let peer = Peer::new(id, config, &self.local);
        self.slots[usize::from(slot)].peer = Some(Box::new(peer));
        Ok(id)
    }

    fn free_slot(&mut self) -> Result<u16, AddPeerError> {
        let free = |slot: &Slot| slot.peer.is_none() && slot.generation < u16::MAX;
        let place = self.slots.iter().position(free).unwrap_or(self.slots.len());
        let slot = u16::try_from(place).map_err(|_| AddPeerError::TooMany)?;
        match self.slots.get_mut(place) {
            Some(slot) => slot.generation += 1,
            None => self.slots.push(Slot {
                generation: 0,
                peer: None,
            }),
        }
        Ok(slot)
    }

    /// Forgets a peer and its session. It is not told.
    pub fn remove_peer(&mut self, peer: PeerId) {
        if let Some(peer) = self.slot(peer).and_then(|slot| slot.peer.take()) {
            self.by_key.remove(&peer.config.public_key);
        }
    }

    fn slot(&mut self, peer: PeerId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(peer.slot()))?;
        (slot.generation == peer.generation()).then_some(slot)
    }

    /// The peer with that public key.
    pub fn find_peer(&self, public_key: &Key) -> Option<PeerId> {
        self.by_key.get(public_key).copied()
    }

    /// How a peer is.
    pub fn peer_state(&self, peer: PeerId) -> Option<PeerState> {
        self.live_peer(peer).map(Peer::state)
    }

    /// Addresses at which a peer is called, in the order of RFC 8305; none if it calls us, or if
    /// there is no such peer.
    pub fn addresses(&self, peer: PeerId) -> &[SocketAddr] {
        self.live_peer(peer)
            .map_or(&[], |there| there.addresses.list())
    }

    /// Calls a peer at these addresses from now on, in place of those before; those beyond
    /// [`ADDRESSES`] are not tried. A session goes on where it is. A peer that is not heard is
    /// called at once if any of them is new.
    pub fn set_addresses(&mut self, now: Duration, peer: PeerId, addresses: &[SocketAddr]) {
        let limits = self.local.limits;
        if let Some(peer) = self.peer(peer) {
            peer.set_addresses(now, addresses, &limits);
        }
    }

    /// Tells whether a peer is heard, and hears us, in a session; never of one that is none.
    pub fn is_well(&self, now: Duration, peer: PeerId) -> bool {
        let limits = &self.local.limits;
        self.live_peer(peer)
            .is_some_and(|there| there.is_well(now, &there.limits(limits)))
    }

    fn live_peer(&self, peer: PeerId) -> Option<&Peer> {
        let slot = self.slots.get(usize::from(peer.slot()))?;
        slot.peer.as_deref().filter(|there| there.id == peer)
    }

    /// The session with a peer, if there is one. Ask for [datagrams](Self::poll_transmit) and
    /// [events](Self::poll_event) afterwards.
    pub fn session(&mut self, peer: PeerId) -> Option<&mut Session> {
        self.slot(peer)?.peer.as_mut()?.session()
    }

    /// The trace of the sessions with a peer; `None` if there is no such peer.
    pub fn trace(&mut self, peer: PeerId) -> Option<&mut Trace> {
        self.peer(peer).map(Peer::trace)
    }

    /// Takes a datagram that has arrived, which is opened where it is. `ecn` is the mark
    /// that it came with, [`Ecn::NotEct`] where it has none. Whose it was, if it was anybody's.
    pub fn handle_datagram(
        &mut self,
        now: Duration,
        from: impl Into<Remote>,
        ecn: Ecn,
        datagram: &mut [u8],
        stores: &mut impl Stores,
    ) -> Option<PeerId> {
        let Some(kind) = Kind::parse(datagram) else {
            self.stats.malformed += 1;
            return None;
        };
        let from = from.into();
        let arrival = |index| Arrival {
            now,
            from,
            ecn,
            index,
        };
        match kind {
            Kind::Data { receiver, number } => {
                self.on_data(&arrival(receiver), number, datagram, stores)
            }
            Kind::Confirmation { receiver } => {
                let peer = self.on_confirmation(&arrival(receiver), datagram);
                self.renew(peer, stores)
            }
            Kind::Initiation { sender } => self.on_initiation(now, from, sender, datagram),
            Kind::Response { sender, receiver } => {
                let peer = self.on_response(&arrival(receiver), sender, datagram);
                self.renew(peer, stores)
            }
            Kind::Cookie { receiver } => self.on_cookie(&arrival(receiver), datagram),
        }
    }

    /// Tells the peer's store if a session has begun.
    fn renew(&mut self, peer: Option<PeerId>, stores: &mut impl Stores) -> Option<PeerId> {
        let id = peer?;
        if let Some(peer) = self.slot(id).and_then(|slot| slot.peer.as_mut()) {
            peer.renew(stores.store_of(id));
        }
        Some(id)
    }

    fn on_data(
        &mut self,
        arrival: &Arrival,
        number: u32,
        datagram: &mut [u8],
        stores: &mut impl Stores,
    ) -> Option<PeerId> {
        let limits = self.local.limits;
        let peer = self.owner(arrival.index)?;
        let id = peer.id;
        let taken = peer.on_data(arrival, number, datagram, &limits, stores.store_of(id));
        let farewell = self.count(taken)?;
        if !farewell.is_empty() {
            self.reply(Some(id), arrival.from, farewell);
        }
        self.stats.packets += 1;
        Some(id)
    }

    fn on_confirmation(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Option<PeerId> {
        let limits = self.local.limits;
        let peer = self.owner(arrival.index)?;
        let id = peer.id;
        let taken = peer.on_confirmation(arrival, CONFIRMATION_HEADER, datagram, &limits);
        self.count(taken)?;
        Some(id)
    }

    fn count<T>(&mut self, taken: Result<T, Refused>) -> Option<T> {
        match taken {
            Ok(taken) => return Some(taken),
            Err(Refused::Forged) => self.stats.forged += 1,
            Err(Refused::Repeated) => self.stats.repeated += 1,
        }
        None
    }

    /// Whose index it is; perhaps not any more.
    fn owner(&mut self, index: u32) -> Option<&mut Peer> {
        let slot = self.slots.get_mut(PeerId::slot_of(index));
        let peer = slot.and_then(|slot| slot.peer.as_deref_mut());
        if peer.is_none() {
            self.stats.unknown += 1;
        }
        peer
    }

    /// Writes the next datagram to be sent now to the end of `out`, if there is one. Ask until
    /// there is none, after everything that happens, and at the [deadline](Self::deadline).
    pub fn poll_transmit(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        stores: &mut impl Stores,
    ) -> Option<Transmit> {
        if let Some(reply) = self.replies.pop_front() {
            out.extend_from_slice(&reply.datagram);
            return Some(reply.transmit);
        }
        for _ in 0..=self.slots.len() {
            if let Some(transmit) = self.poll_turn(now, out, stores) {
                self.turn.1 = self.turn.1.saturating_sub(1);
                return Some(transmit);
            }
            self.turn = ((self.turn.0 + 1) % self.slots.len().max(1), TURN);
        }
        None
    }

    fn poll_turn(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        stores: &mut impl Stores,
    ) -> Option<Transmit> {
        let (slot, left) = self.turn;
        let peer = self.slots.get_mut(slot)?.peer.as_deref_mut()?;
        if left == 0 || peer.due(&self.local).is_none_or(|at| at > now) {
            return None;
        }
        let (to, ecn) = peer.poll(now, &mut self.local, out, stores.store_of(peer.id))?;
        let peer = Some(peer.id);
        Some(Transmit { peer, to, ecn })
    }

    /// There is no room for more on the way to a peer: until it is [released](Self::release), or is
    /// elsewhere, there are no datagrams for it but those of handshakes.
    pub fn hold(&mut self, peer: PeerId, remote: Remote) {
        if let Some(peer) = self.peer(peer) {
            peer.hold(remote);
        }
    }

    /// There is room again.
    pub fn release(&mut self, peer: PeerId, remote: Remote) {
        if let Some(peer) = self.peer(peer) {
            peer.release(remote);
        }
    }

    /// The connection to a peer is gone. It is called at once, if it can be, and held until then.
    pub fn lose(&mut self, peer: PeerId, remote: Remote) {
        if let Some(peer) = self.peer(peer) {
            peer.lose(remote);
        }
    }

    fn peer(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.slot(peer)?.peer.as_deref_mut()
    }

    /// When to call [`poll_transmit`](Self::poll_transmit) again though nothing else has happened.
    /// What is past means at once.
    pub fn deadline(&self) -> Option<Duration> {
        if !self.replies.is_empty() {
            return Some(Duration::ZERO);
        }
        let peers = self.slots.iter().filter_map(|slot| slot.peer.as_ref());
        peers.filter_map(|peer| peer.due(&self.local)).min()
    }

    /// Somebody who was not answered, and where that came from: of each kind the last one since it
    /// was asked for. The address is not proved.
    pub fn take_stranger(&mut self) -> Option<(Stranger, Remote)> {
        [Stranger::NotForUs, Stranger::UnknownKey]
            .into_iter()
            .find_map(|kind| Some((kind, self.strangers[kind as usize].take()?)))
    }

    /// What has happened; ask until there is nothing.
    pub fn poll_event(&mut self) -> Option<(PeerId, PeerEvent)> {
        let retry = self.local.limits.retry;
        let mut peers = self.slots.iter_mut().filter_map(|slot| slot.peer.as_mut());
        peers.find_map(|peer| Some((peer.id, peer.poll_event(retry)?)))
    }
}

impl PeerId {
    fn new(slot: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(slot))
    }

    fn slot(self) -> u16 {
        self.0 as u16
    }

    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// An index by which the peer addresses us: it says which slot the peer has.
    fn index(self, random: u16) -> u32 {
        u32::from(self.slot()) << 16 | u32::from(random)
    }

    fn slot_of(index: u32) -> usize {
        (index >> 16) as usize
    }
}
