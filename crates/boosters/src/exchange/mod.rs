//! All chains to one peer and the receivers for the peer's chains: the part between the interfaces
//! of its sites and its tunnel.
//!
//! ```text
//!   channel          written by               handled at the other end by
//!   0 to 31          chain of that number     the receiver for that chain
//!   64 to 95         that receiver            the chain of number channel - 64: a reply
//!   127              either                   ABILITIES
//! ```

mod introduction;
mod tracing;

use std::{collections::BTreeMap, time::Duration};

use trace::Trace;

use crate::{
    chain::{Chain, Receiver},
    ecn::Ecn,
    fec::Backend,
    packet::Packet,
    rule::Path,
    settings,
};
use introduction::Introduction;
use tracing::Counted;

/// Maximum chains to one peer.
pub const CHAINS_MAX: usize = 32;
/// Maximum receivers kept from earlier sessions: they hold packets back for seconds, and sessions
/// last longer.
const ENDING_MAX: usize = 8;
/// Packets that timers of receivers release at once, and the pace beyond it. A peer may let
/// thousands fall due together: each costs a system call, and other peers wait meanwhile.
const RELEASED_MAX: usize = 64;
const RELEASED_EACH: Duration = Duration::from_micros(50);
const REPLY: u8 = 64;
const INTRODUCTION: u8 = 127;

/// Packet exchange with one peer.
#[derive(Debug)]
pub struct Exchange {
    chains: Vec<Chain>,
    /// Implementation of the block code in receivers.
    code: Backend,
    receivers: BTreeMap<u8, Receiver>,
    /// Receivers of earlier sessions, as long as they hold packets back: these packets are for
    /// hosts, and still come in time.
    ending: Vec<Receiver>,
    /// Receiver whose timers run first next time.
    turn: usize,
    /// Time until which no timer of a receiver runs, as many packets were released.
    released_until: Duration,
    introduction: Introduction,
    path: Path,
    /// Time of the last call.
    now: Duration,
    /// Malformed messages.
    refused: u64,
    counted: Counted,
}

impl Exchange {
    /// Creates the exchange with these local chains.
    ///
    /// # Panics
    /// Panics if there are more than [`CHAINS_MAX`].
    #[must_use]
    pub fn new(chains: Vec<Chain>) -> Self {
        assert!(chains.len() <= CHAINS_MAX);
        Self {
            chains,
            code: Backend::default(),
            receivers: BTreeMap::new(),
            ending: Vec::new(),
            turn: 0,
            released_until: Duration::ZERO,
            introduction: Introduction::new(Duration::ZERO),
            path: Path::default(),
            now: Duration::ZERO,
            refused: 0,
            counted: Counted::default(),
        }
    }

    /// Decodes the peer's blocks by `code`; by the fastest kernel otherwise.
    #[must_use]
    pub fn with_code(self, code: Backend) -> Self {
        Self { code, ..self }
    }

    /// Returns the trace of all boosters, initially off.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.counted.trace
    }

    fn note(&mut self, now: Duration) {
        let receivers = self
            .receivers
            .iter()
            .map(|(chain, receiver)| (*chain, receiver));
        self.counted.note(now, &self.chains, receivers);
    }

    /// Begins a session with the peer. The peer may be another process, without the state of the
    /// last one.
    pub fn renew(&mut self) {
        let before = std::mem::take(&mut self.receivers).into_values();
        self.ending
            .extend(before.filter(|receiver| receiver.deadline().is_some()));
        let more = self.ending.len().saturating_sub(ENDING_MAX);
        self.ending.drain(..more);
        for chain in &mut self.chains {
            chain.renew();
        }
        self.introduction = Introduction::new(self.now);
        let path = self.path;
        self.set_path(self.now, &path);
    }

    /// Takes a packet of a host for that chain.
    pub fn from_host(&mut self, now: Duration, chain: usize, packet: &[u8]) {
        if let Some(chain) = self.chains.get_mut(chain) {
            chain.from_host(now, packet);
        }
        self.note(now);
    }

    /// Takes a message of the peer, whose datagram had the mark `outer`. `site` maps a packet to
    /// the local chain that its answers belong to, if the packet may go to hosts at all. No chain
    /// sees a packet that may not.
    pub fn handle(
        &mut self,
        now: Duration,
        channel: u8,
        message: &[u8],
        outer: Ecn,
        site: &mut dyn FnMut(&[u8]) -> Option<usize>,
    ) {
        match channel {
            INTRODUCTION => self.on_introduction(now, message),
            REPLY.. => match self.chains.get_mut(usize::from(channel - REPLY)) {
                Some(chain) => chain.on_reply(now, message),
                None => self.refused += 1,
            },
            channel if usize::from(channel) < CHAINS_MAX => {
                let receiver = self.receivers.entry(channel);
                let (room, code) = (self.path.room, self.code);
                let receiver = receiver.or_insert_with(|| settings::receiver(room, code));
                receiver.handle(now, message, outer);
                deliver(&mut self.chains, receiver, now, site);
            }
            _ => self.refused += 1,
        }
        self.note(now);
    }

    /// Handles due timers; not those of all receivers if some release many packets.
    pub fn on_time(&mut self, now: Duration, site: &mut dyn FnMut(&[u8]) -> Option<usize>) {
        for chain in &mut self.chains {
            if chain.deadline().is_some_and(|at| at <= now) {
                chain.on_time(now);
            }
        }
        let places = self.receivers.iter_mut();
        let places = places.map(|(channel, receiver)| (usize::from(*channel), receiver));
        let ending = (CHAINS_MAX..).zip(&mut self.ending);
        let may_release = now >= self.released_until;
        let is_due =
            |receiver: &Receiver| may_release && receiver.deadline().is_some_and(|at| at <= now);
        let due = places.chain(ending);
        let mut due: Vec<_> = due.filter(|(_, receiver)| is_due(receiver)).collect();
        due.sort_unstable_by_key(|(place, _)| (*place < self.turn, *place));
        let mut released = 0;
        for (place, receiver) in due {
            if released >= RELEASED_MAX {
                self.turn = place;
                break;
            }
            receiver.on_time(now);
            released += deliver(&mut self.chains, receiver, now, site);
        }
        if released > 0 {
            self.released_until = now + RELEASED_EACH * released as u32;
        }
        self.ending.retain(|receiver| receiver.deadline().is_some());
        self.note(now);
    }

    /// Returns the time of the next call of [`on_time`](Self::on_time).
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let chains = self.chains.iter().filter_map(Chain::deadline);
        let receivers = self.receivers.values().chain(&self.ending);
        let receivers = receivers.filter_map(Receiver::deadline);
        let receivers = receivers.map(|at| at.max(self.released_until));
        chains.chain(receivers).min()
    }

    /// Updates the known properties of the path. The exchange itself knows the peer's abilities.
    pub fn set_path(&mut self, now: Duration, path: &Path) {
        self.now = now;
        for receiver in self.receivers.values_mut() {
            receiver.set_path(now, path);
        }
        self.introduction.set_rate(now, path.rate);
        let Introduction {
            abilities,
            peer_rate,
            ..
        } = self.introduction;
        self.path = Path {
            abilities: abilities.unwrap_or(0),
            // A rate stated in the handshake takes precedence over an announced, measured one.
            peer_rate: path.peer_rate.or(peer_rate),
            ..*path
        };
        for chain in &mut self.chains {
            chain.set_path(now, &self.path);
        }
    }

    /// Returns whether a chain has a message to send.
    #[must_use]
    pub fn has_message(&self, chain: usize) -> bool {
        self.chains.get(chain).is_some_and(Chain::has_message)
    }

    /// Returns whether there is a message outside the chains: a reply or an announcement.
    #[must_use]
    pub fn has_word(&self, now: Duration) -> bool {
        self.introduction.due().is_some_and(|at| at <= now)
            || self.receivers.values().any(Receiver::has_reply)
    }

    /// Returns when the next announcement is due.
    #[must_use]
    pub fn word_due(&self) -> Option<Duration> {
        self.introduction.due()
    }

    /// Appends channel and message of a chain, up to `room` bytes together, to `out`. Returns the
    /// mark of its datagram.
    pub fn poll_message(
        &mut self,
        now: Duration,
        chain: usize,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<Ecn> {
        let begin = out.len();
        out.push(u8::try_from(chain).ok()?);
        let sender = self.chains.get_mut(chain);
        let ecn = sender.and_then(|chain| chain.poll_message(now, room.saturating_sub(1), out));
        if ecn.is_none() {
            out.truncate(begin);
        }
        self.note(now);
        ecn
    }

    /// Appends channel and message of a reply or an announcement to `out`. Returns false if there
    /// is none.
    pub fn poll_word(&mut self, now: Duration, room: usize, out: &mut Vec<u8>) -> bool {
        if self.introduction.due().is_some_and(|at| at <= now) {
            out.push(INTRODUCTION);
            self.introduction.write(now, out);
            return true;
        }
        for (channel, receiver) in &mut self.receivers {
            if let Some(reply) = receiver.poll_reply().filter(|reply| reply.len() < room) {
                out.push(REPLY + channel);
                out.extend_from_slice(&reply);
                return true;
            }
        }
        false
    }

    /// Returns the next packet for a host, and the chain that its answers belong to.
    pub fn poll_host(&mut self) -> Option<(usize, Packet)> {
        let mut chains = self.chains.iter_mut().enumerate();
        chains.find_map(|(index, chain)| Some((index, chain.poll_host()?)))
    }

    /// Returns the bytes of packets that wait for hosts ([`Chain::waiting`]).
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.chains.iter().map(Chain::waiting).sum()
    }

    /// Returns the local chains.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Returns the receivers of the peer's chains, by number.
    pub fn receivers(&self) -> impl Iterator<Item = (u8, &Receiver)> {
        self.receivers
            .iter()
            .map(|(channel, receiver)| (*channel, receiver))
    }

    /// Returns the abilities of the peer, if announced.
    #[must_use]
    pub fn abilities(&self) -> Option<u32> {
        self.introduction.abilities
    }

    /// Returns the number of malformed messages.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn on_introduction(&mut self, now: Duration, message: &[u8]) {
        match self.introduction.read(now, message) {
            Some(true) => {
                let path = self.path;
                self.set_path(now, &path);
            }
            Some(false) => {}
            None => self.refused += 1,
        }
    }
}

/// Passes a receiver's packets to the chains whose hosts they are for, if any. Returns their
/// number.
fn deliver(
    chains: &mut [Chain],
    receiver: &mut Receiver,
    now: Duration,
    site: &mut dyn FnMut(&[u8]) -> Option<usize>,
) -> usize {
    let mut packets = 0;
    while let Some(packet) = receiver.poll_packet() {
        packets += 1;
        let chain = site(&packet.bytes).and_then(|index| chains.get_mut(index));
        if let Some(chain) = chain {
            chain.to_host(now, packet);
        }
    }
    packets
}

#[cfg(test)]
mod tests;
