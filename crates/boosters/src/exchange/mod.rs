//! All chains to one peer, and what the peer's bring: what is between the interfaces of its sites and its tunnel.
//!
//! ```text
//!   channel          who writes it            what the other end does
//!   0 to 31          chain of that number     gives it to the receiver for that chain
//!   64 to 95         that receiver            gives it to the chain of number channel - 64: a reply
//!   127              either                   ABILITIES
//! ```

mod introduction;
mod tracing;

use std::{collections::BTreeMap, time::Duration};

use trace::Trace;

use crate::{
    chain::{Chain, Receiver},
    ecn::Ecn,
    packet::Packet,
    rule::Path,
    settings,
};
use introduction::Introduction;
use tracing::Counted;

/// Chains to one peer at most.
pub const CHAINS_MAX: usize = 32;
/// Receivers of sessions before that are kept at most: these hold back what they have for seconds, and sessions last longer.
const ENDING_MAX: usize = 4 * CHAINS_MAX;
const REPLY: u8 = 64;
const INTRODUCTION: u8 = 127;

/// What is exchanged with one peer.
#[derive(Debug)]
pub struct Exchange {
    chains: Vec<Chain>,
    receivers: BTreeMap<u8, Receiver>,
    /// Those of sessions before, as long as they hold packets back: these are for hosts, and still come in their time.
    ending: Vec<Receiver>,
    introduction: Introduction,
    path: Path,
    /// When we last heard what the time is.
    now: Duration,
    /// Messages that make no sense.
    refused: u64,
    counted: Counted,
}

impl Exchange {
    /// With these chains of ours.
    ///
    /// # Panics
    /// If there are more than [`CHAINS_MAX`].
    #[must_use]
    pub fn new(chains: Vec<Chain>) -> Self {
        assert!(chains.len() <= CHAINS_MAX);
        Self {
            chains,
            receivers: BTreeMap::new(),
            ending: Vec::new(),
            introduction: Introduction::new(Duration::ZERO),
            path: Path::default(),
            now: Duration::ZERO,
            refused: 0,
            counted: Counted::default(),
        }
    }

    /// The trace of all boosters, off to begin with.
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

    /// A session with the peer begins: perhaps it is another program than before, and what it knew it has forgotten.
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

    /// A packet of a host for that chain.
    pub fn from_host(&mut self, now: Duration, chain: usize, packet: &[u8]) {
        if let Some(chain) = self.chains.get_mut(chain) {
            chain.from_host(now, packet);
        }
        self.note(now);
    }

    /// A message of the peer's, whose datagram came with the mark `outer`. `site` says to which of our chains the answers to a packet belong, if it may go to
    /// hosts at all: no chain sees one that may not.
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
                let room = self.path.room;
                let receiver = receiver.or_insert_with(|| settings::receiver(room));
                receiver.handle(now, message, outer);
                deliver(&mut self.chains, receiver, now, site);
            }
            _ => self.refused += 1,
        }
        self.note(now);
    }

    /// Time has passed.
    pub fn on_time(&mut self, now: Duration, site: &mut dyn FnMut(&[u8]) -> Option<usize>) {
        for chain in &mut self.chains {
            if chain.deadline().is_some_and(|at| at <= now) {
                chain.on_time(now);
            }
        }
        for receiver in self.receivers.values_mut().chain(&mut self.ending) {
            if receiver.deadline().is_some_and(|at| at <= now) {
                receiver.on_time(now);
                deliver(&mut self.chains, receiver, now, site);
            }
        }
        self.ending.retain(|receiver| receiver.deadline().is_some());
        self.note(now);
    }

    /// When [`on_time`](Self::on_time) wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let chains = self.chains.iter().filter_map(Chain::deadline);
        let receivers = self.receivers.values().chain(&self.ending);
        chains.chain(receivers.filter_map(Receiver::deadline)).min()
    }

    /// What is known of the path now; what the peer understands we know ourselves.
    pub fn set_path(&mut self, now: Duration, path: &Path) {
        self.now = now;
        self.introduction.set_rate(now, path.rate);
        let Introduction {
            abilities,
            peer_rate,
            ..
        } = self.introduction;
        self.path = Path {
            abilities: abilities.unwrap_or(0),
            // What was agreed upon goes before what was measured.
            peer_rate: path.peer_rate.or(peer_rate),
            ..*path
        };
        for chain in &mut self.chains {
            chain.set_path(now, &self.path);
        }
    }

    /// Whether there is something to be sent of a chain.
    #[must_use]
    pub fn has_message(&self, chain: usize) -> bool {
        self.chains.get(chain).is_some_and(Chain::has_message)
    }

    /// Whether there is something to be sent beside them: replies, or what we understand.
    #[must_use]
    pub fn has_word(&self, now: Duration) -> bool {
        self.introduction.due().is_some_and(|at| at <= now)
            || self.receivers.values().any(Receiver::has_reply)
    }

    /// When there will be something to be said by itself.
    #[must_use]
    pub fn word_due(&self) -> Option<Duration> {
        self.introduction.due()
    }

    /// Writes channel and message of a chain, of at most `room` bytes together, to the end of `out`. Returns the mark of its datagram.
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

    /// Writes a reply, or what we understand, likewise; whether there was something.
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

    /// The next packet for a host, and the chain that its answers belong to.
    pub fn poll_host(&mut self) -> Option<(usize, Packet)> {
        let mut chains = self.chains.iter_mut().enumerate();
        chains.find_map(|(index, chain)| Some((index, chain.poll_host()?)))
    }

    /// Our chains.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The receivers of the peer's chains, by number.
    pub fn receivers(&self) -> impl Iterator<Item = (u8, &Receiver)> {
        self.receivers
            .iter()
            .map(|(channel, receiver)| (*channel, receiver))
    }

    /// What the peer understands, if it has said so.
    #[must_use]
    pub fn abilities(&self) -> Option<u32> {
        self.introduction.abilities
    }

    /// Messages that made no sense.
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

/// What a receiver has goes to the chains whose hosts it is for, if it is for any.
fn deliver(
    chains: &mut [Chain],
    receiver: &mut Receiver,
    now: Duration,
    site: &mut dyn FnMut(&[u8]) -> Option<usize>,
) {
    while let Some(packet) = receiver.poll_packet() {
        let chain = site(&packet.bytes).and_then(|index| chains.get_mut(index));
        if let Some(chain) = chain {
            chain.to_host(now, packet);
        }
    }
}

#[cfg(test)]
mod tests;
