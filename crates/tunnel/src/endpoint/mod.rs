//! One end of tunnels to many peers: sealed datagrams on one side, sessions on the other.
//!
//! ```text
//!   session        Up: a session           RESPONSE ok    +-----------+
//!   or none   --------------------+   +-----------------> |  offered  |  responder waits for
//!      ^                          |   |  INITIATION       |  (<= 32)  |  proof of the initiator
//!      |    CONFIRMATION or DATA  v   |                   +-----------+
//!      +-----------------------  keys at both ends  <--------+
//! ```

mod addresses;
mod carriers;
mod claim;
mod config;
mod counters;
mod datagram;
mod distrust;
mod ending;
mod event;
mod guard;
mod handshakes;
mod initiations;
mod live;
mod local;
mod paths;
mod peer;
#[cfg(feature = "rogue")]
mod rogue;
mod shard;
mod slot;
mod terms;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

pub use crate::wire::DATAGRAM_OVERHEAD;
pub use addresses::ADDRESSES;
pub use carriers::{Carrier, Carriers, Remote};
pub use config::{EndpointConfig, Limits, PeerConfig};
pub use counters::{COUNTER_MAX, Counters};
pub use event::{AddPeerError, DownReason, HandshakeError, PeerEvent, Stranger};
pub use guard::{block_of, subnet_of};
pub use shard::Shard;
pub use terms::VERSION;

use self::{
    datagram::{CONFIRMATION_HEADER, Kind},
    guard::{Bucket, Guard},
    live::Refused,
    local::Local,
    peer::{Arrival, Peer},
    slot::Slot,
};
#[cfg(not(test))]
use crate::session::Session;
use trace::Trace;

use crate::{crypto::Key, ecn::Ecn, session::Unreached, store::Store};
// Tests of the layers above use a scripted session.
#[cfg(test)]
use tests::fake::Session;

/// Handle of a peer, unique within its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u32);

/// Time since a peer was heard for which its datagrams are expected: three beacons of an idle one.
const HEARD_LATELY: Duration = Duration::from_secs(3);
/// Datagrams to a peer before the next peer's turn: as many as one system call may send.
const TURN: u32 = 32;
/// Events of a peer before the next peer's turn.
const EVENT_TURN: u32 = 16;

/// Maximum number of queued replies to handshakes.
const REPLIES: usize = 64;

/// Access to the bytes of all peers' streams.
pub trait Stores {
    /// Store of one peer.
    type Store: Store;

    /// Returns the store of the session with that peer.
    fn store_of(&mut self, peer: PeerId) -> &mut Self::Store;
}

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Peer of the datagram; `None` for a reply to a sender that has not returned a cookie yet.
    pub peer: Option<PeerId>,
    /// Destination.
    pub to: Remote,
    /// ECN mark to set.
    pub ecn: Ecn,
}

/// State of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Current or configured remote.
    pub remote: Option<Remote>,
    /// Address at which the peer was last proved to receive by UDP.
    pub proved: Option<SocketAddr>,
    /// Stated round trip time.
    pub rtt: Duration,
    /// True if there is a session.
    pub up: bool,
    /// Time of the peer's last packet in this session.
    pub heard: Option<Duration>,
    /// Time without packets from it after which the link counts as silent; `None` without a
    /// session.
    pub silence_limit: Option<Duration>,
    /// Time since which the keys are used.
    pub keys_since: Option<Duration>,
    /// Failed rounds of initiations, one to each address.
    pub unanswered: u32,
    /// Initiations of the peer that were answered without success, since the last keys.
    pub answers_rejected: u32,
    /// Reason for which the last handshake failed, if none has succeeded since.
    pub failed: Option<HandshakeError>,
    /// Counters of initiations, to be stored.
    pub counters: Counters,
    /// Hosts that the peer does not reach, by the terms of the last handshake.
    pub unreached: Unreached,
}

/// Counters of an endpoint since it began, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets opened and delivered.
    pub packets: u64,
    /// Unknown type, or wrong length for the type.
    pub malformed: u64,
    /// Unknown receiver index.
    pub unknown: u64,
    /// Damaged, or not from the peer.
    pub forged: u64,
    /// Replayed, or too late; initiations with too low a counter.
    pub repeated: u64,
    /// Initiations without a valid first MAC, and such responses.
    pub not_for_us: u64,
    /// Initiations with a public key of no peer.
    pub unknown_keys: u64,
    /// Initiations refused because of rate limits, during shutdown, or by another than the first
    /// [shard](Shard).
    pub refused: u64,
    /// Handshake messages read, successfully or not: each costs a DH computation. An initiation
    /// of another shard's peer is read, and counts, in both shards.
    pub handshakes_read: u64,
    /// Initiations answered.
    pub answered: u64,
    /// Initiations answered with a cookie.
    pub cookies: u64,
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
    /// Shards of the other shards' peers, by public key.
    elsewhere: BTreeMap<Key, u16>,
    /// Shard for which the last initiation was admitted.
    admitted_for: Option<u16>,
    replies: VecDeque<Reply>,
    /// Slot whose turn it is, and the number of datagrams left in the turn.
    turn: (usize, u32),
    /// Slot whose events come next, and how many of them before those of others.
    event_turn: (usize, u32),
    stats: Stats,
    /// Last unauthenticated sender of each kind that has not been reported.
    strangers: [Option<Remote>; 4],
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &mut f.debug_struct("Endpoint");
        shown.field("peers", &self.by_key.len());
        shown.field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates an endpoint without peers.
    pub fn new(config: &EndpointConfig) -> Self {
        let mut local = Local::new(config);
        let (secret, subnet_key) = (local.seed(), u64::from_be_bytes(local.random()));
        Self {
            guard: Guard::new(&config.limits, &secret, subnet_key),
            responses: Bucket::new(config.limits.responses),
            local,
            slots: Vec::new(),
            by_key: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            admitted_for: None,
            replies: VecDeque::new(),
            turn: (0, TURN),
            event_turn: (0, EVENT_TURN),
            stats: Stats::default(),
            strangers: [None; 4],
        }
    }

    /// Makes the endpoint one of several with its private key, each with another seed. Call before
    /// adding peers.
    #[must_use]
    pub fn in_shard(mut self, shard: Shard) -> Self {
        debug_assert!(self.slots.is_empty(), "slots depend on the shard");
        self.local.shard = shard;
        self
    }

    /// Returns the endpoint's public key.
    pub fn public_key(&self) -> Key {
        self.local.identity.public
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Adds a peer; if it has addresses, it is called at once.
    ///
    /// # Errors
    /// A peer with that key exists here or elsewhere, the key is the endpoint's own, or there are
    /// too many peers.
    pub fn add_peer(&mut self, mut config: PeerConfig) -> Result<PeerId, AddPeerError> {
        self.check_new(&config.public_key)?;
        config.session.skips.seed = self.local.skip_seed();
        let slot = self.free_slot()?;
        let id = PeerId::new(slot, self.slots[usize::from(slot)].generation);
        self.by_key.insert(config.public_key, id);
        let peer = Peer::new(id, config, &self.local);
        self.slots[usize::from(slot)].replace(Some(Box::new(peer)));
        Ok(id)
    }

    /// Adds the public key of a peer of another shard. Each shard that admits initiations needs
    /// these keys, or it would take the peers for strangers.
    ///
    /// # Errors
    /// A peer with that key exists here or elsewhere, or the key is the endpoint's own.
    pub fn add_elsewhere(&mut self, public_key: Key, shard: u16) -> Result<(), AddPeerError> {
        self.check_new(&public_key)?;
        self.elsewhere.insert(public_key, shard);
        Ok(())
    }

    /// Replaces the addresses where peers were heard lately, of all [shards](Shard): a part of the
    /// initiations that are read under load is kept for them. An IPv6 address stands for its /64.
    pub fn expect_from(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.guard.expect(addresses.into_iter());
    }

    fn check_new(&self, public_key: &Key) -> Result<(), AddPeerError> {
        if *public_key == self.public_key() {
            return Err(AddPeerError::Ourselves);
        }
        if self.by_key.contains_key(public_key) || self.elsewhere.contains_key(public_key) {
            return Err(AddPeerError::Known);
        }
        Ok(())
    }

    fn free_slot(&mut self) -> Result<u16, AddPeerError> {
        let free = |slot: &Slot| slot.peer().is_none() && slot.generation < u16::MAX;
        let place = self.slots.iter().position(free).unwrap_or(self.slots.len());
        if place >= self.local.shard.slots() {
            return Err(AddPeerError::TooMany);
        }
        match self.slots.get_mut(place) {
            Some(slot) => slot.generation += 1,
            None => self.slots.push(Slot::default()),
        }
        Ok(place as u16)
    }

    /// Removes a peer and its session without notifying the peer.
    pub fn remove_peer(&mut self, peer: PeerId) {
        if let Some(peer) = self.slot(peer).and_then(|slot| slot.replace(None)) {
            self.by_key.remove(&peer.config.public_key);
        }
        // The caller no longer knows the peer.
        self.replies
            .retain(|reply| reply.transmit.peer != Some(peer));
    }

    fn slot(&mut self, peer: PeerId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(peer.slot()))?;
        (slot.generation == peer.generation()).then_some(slot)
    }

    /// Returns the peer with that public key.
    pub fn find_peer(&self, public_key: &Key) -> Option<PeerId> {
        self.by_key.get(public_key).copied()
    }

    /// Returns the state of a peer.
    pub fn peer_state(&self, peer: PeerId) -> Option<PeerState> {
        self.live_peer(peer).map(Peer::state)
    }

    /// Returns the addresses at which a peer is called, in the order of RFC 8305; empty if the peer
    /// calls, or does not exist.
    pub fn addresses(&self, peer: PeerId) -> &[SocketAddr] {
        self.live_peer(peer)
            .map_or(&[], |there| there.addresses.list())
    }

    /// Replaces the addresses at which a peer is called; those beyond [`ADDRESSES`] are not tried.
    /// A session continues at its present address. A peer that is not heard is called at once if an
    /// address is new.
    pub fn set_addresses(&mut self, now: Duration, peer: PeerId, addresses: &[SocketAddr]) {
        let limits = self.local.limits;
        if let Some(peer) = self.peer(peer) {
            peer.set_addresses(now, addresses, &limits);
        }
    }

    /// Sets the hosts that a peer's flows do not reach by the local end. If there is a session, a
    /// handshake notifies the peer at once.
    pub fn set_unreached(&mut self, peer: PeerId, unreached: Unreached) {
        if let Some(peer) = self.peer(peer) {
            peer.config.session.unreached = unreached;
        }
    }

    /// Returns true if a peer with a session is heard and hears the local end; false if it does not
    /// exist.
    pub fn is_well(&self, now: Duration, peer: PeerId) -> bool {
        let limits = &self.local.limits;
        self.live_peer(peer)
            .is_some_and(|there| there.is_well(now, &there.limits(limits)))
    }

    fn live_peer(&self, peer: PeerId) -> Option<&Peer> {
        let slot = self.slots.get(usize::from(peer.slot()))?;
        slot.peer().filter(|there| there.id == peer)
    }

    /// Returns the session with a peer, if there is one. Poll [datagrams](Self::poll_transmit) and
    /// [events](Self::poll_event) afterwards.
    pub fn session(&mut self, peer: PeerId) -> Option<&mut Session> {
        self.peer(peer)?.session()
    }

    /// Returns the trace of the sessions with a peer; `None` if there is no such peer.
    pub fn trace(&mut self, peer: PeerId) -> Option<&mut Trace> {
        self.peer(peer).map(Peer::trace)
    }

    /// Handles a received datagram, and opens it in place. `ecn` is its mark, [`Ecn::NotEct`] if
    /// none. Returns the peer it came from, if authenticated.
    ///
    /// With several shards, hand over only what no other shard [owns](Shard::owner), and call
    /// [`take_elsewhere`](Self::take_elsewhere) afterwards. Others are not answered.
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
            Kind::Initiation1 => {
                self.on_initiation_1(from, datagram);
                None
            }
            Kind::Response { sender, receiver } => {
                let peer = self.on_response(&arrival(receiver), sender, datagram);
                self.renew(peer, stores)
            }
            Kind::Cookie { receiver } => self.on_cookie(&arrival(receiver), datagram),
        }
    }

    /// Notifies the peer's store if a session has begun.
    fn renew(&mut self, peer: Option<PeerId>, stores: &mut impl Stores) -> Option<PeerId> {
        let id = peer?;
        if let Some(peer) = self.peer(id) {
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

    /// Returns the peer in the slot of an index, which may no longer be in use.
    fn owner(&mut self, index: u32) -> Option<&mut Peer> {
        let slot = self.local.shard.slot_of(index);
        let slot = slot.and_then(|slot| self.slots.get_mut(slot));
        let peer = slot.and_then(Slot::peer_mut);
        if peer.is_none() {
            self.stats.unknown += 1;
        }
        peer
    }

    /// Writes the next datagram to the end of `out`, if one may be sent now. Call until it returns
    /// `None`, after every other call, and at the [deadline](Self::deadline).
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
        let slot = self.slots.get_mut(slot)?;
        if left == 0 || slot.due(&self.local).is_none_or(|at| at > now) {
            return None;
        }
        let peer = slot.peer_mut()?;
        let (to, ecn) = peer.poll(now, &mut self.local, out, stores.store_of(peer.id))?;
        let peer = Some(peer.id);
        Some(Transmit { peer, to, ecn })
    }

    /// Holds datagrams to a peer, except those of handshakes, as its path has no room. Ends when
    /// the peer is [released](Self::release), or moves to another remote.
    pub fn hold(&mut self, peer: PeerId, remote: Remote) {
        if let Some(peer) = self.peer(peer) {
            peer.hold(remote);
        }
    }

    /// Releases datagrams to a peer.
    pub fn release(&mut self, peer: PeerId, remote: Remote) {
        if let Some(peer) = self.peer(peer) {
            peer.release(remote);
        }
    }

    /// Handles the loss of the connection to a peer. The peer is called at once, if it can be, and
    /// held until then.
    pub fn lose(&mut self, peer: PeerId, remote: Remote) {
        if let Some(peer) = self.peer(peer) {
            peer.lose(remote);
        }
    }

    fn peer(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.slot(peer)?.peer_mut()
    }

    /// Returns when to call [`poll_transmit`](Self::poll_transmit) again if nothing else happens. A
    /// time in the past means at once.
    pub fn deadline(&self) -> Option<Duration> {
        if !self.replies.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.slots.iter().filter_map(|slot| slot.due(&self.local));
        due.min()
    }

    /// Lets reports wait until `at`, when the caller will handle datagrams that have arrived: the
    /// [deadline](Self::deadline) disregards them until then. A past time ends this.
    pub fn delay_reports(&mut self, at: Duration) {
        self.local.reports_from = at;
    }

    /// Returns true if a link would now count as silent: datagrams that have arrived should be
    /// handled first.
    pub fn is_silence_due(&self, now: Duration) -> bool {
        self.sessions().any(|(session, _)| {
            let silent = session.silence_deadline();
            silent.is_some_and(|at| now >= at)
        })
    }

    /// Returns the [longest wait](Session::may_wait) that suits all peers heard within the last
    /// three seconds; 0 without any.
    pub fn may_wait(&self, now: Duration) -> Duration {
        let recent = self
            .sessions()
            .filter(|(_, heard)| now < *heard + HEARD_LATELY);
        let waits = recent.map(|(session, _)| session.may_wait(now));
        waits.min().unwrap_or_default()
    }

    /// Returns the sessions of all peers, and the times at which they were heard.
    fn sessions(&self) -> impl Iterator<Item = (&Session, Duration)> {
        let peers = self.slots.iter().filter_map(Slot::peer);
        let live = peers.filter_map(|peer| peer.live.as_ref());
        live.map(|live| (&live.session, live.heard))
    }

    /// Returns the shard of the peer that sent the datagram handled last, if that was an admitted
    /// initiation of another shard's peer. Its bytes are unchanged. Pass them to that shard's
    /// [`handle_admitted`](Self::handle_admitted).
    pub fn take_elsewhere(&mut self) -> Option<u16> {
        self.admitted_for.take()
    }

    /// Returns an unknown sender that was not answered, and its unverified address: the last one of
    /// each kind since the previous call.
    pub fn take_stranger(&mut self) -> Option<(Stranger, Remote)> {
        let kinds = [
            Stranger::NotForUs,
            Stranger::UnknownKey,
            Stranger::Version1,
            Stranger::SecondHolder,
        ];
        let strangers = &mut self.strangers;
        kinds
            .into_iter()
            .find_map(|kind| Some((kind, strangers[kind as usize].take()?)))
    }

    /// Returns the next event; call until it returns `None`. Peers with many events take turns.
    pub fn poll_event(&mut self) -> Option<(PeerId, PeerEvent)> {
        let retry = self.local.limits.retry;
        let slots = self.slots.len();
        // The first slot may have used up its turn while no other has an event.
        for _ in 0..=slots {
            let (at, left) = self.event_turn;
            let slot = self.slots.get_mut(at);
            if left > 0
                && let Some(event) = slot.and_then(|slot| slot.poll_event(retry))
            {
                self.event_turn = (at, left - 1);
                return Some(event);
            }
            self.event_turn = ((at + 1) % slots.max(1), EVENT_TURN);
        }
        None
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
}
