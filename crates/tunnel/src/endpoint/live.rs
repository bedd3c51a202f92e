//! A session and the keys that it has had.

use std::time::Duration;

use super::{
    Limits, Session,
    datagram::{self, CONFIRMATION, CONFIRMATION_HEADER, DATA, DATA_HEADER},
};
use crate::{
    crypto::{Keys, Window},
    ecn::Ecn,
    store::Store,
    wire::expand,
};

/// Generations of keys that a session is received with: the present ones, those before, and those of a
/// handshake that crossed ours.
const GENERATIONS: usize = 3;

/// 16-byte blocks sealed with one key at most, 512 GiB: with packets of 2^11 bytes these are the
/// 2^28 packets of RFC 9001, appendix B.1.1.
const BLOCKS_MAX: u64 = 1 << 35;

/// Keys, and what was done with them.
pub(super) struct Generation {
    /// Where the peer sends to.
    pub index: u32,
    /// Where we send to.
    pub peer_index: u32,
    pub keys: Keys,
    /// The peer's packets under these keys have this number or a higher one.
    pub base: u64,
    /// We sent the initiation.
    pub ours: bool,
    /// The peer has these keys too, and knows that we have them.
    pub confirmed: bool,
    pub since: Duration,
}

/// A session that goes on.
pub(super) struct Live {
    pub session: Session,
    /// The name of its first keys: what the two ends call it.
    pub id: u64,
    pub window: Window,
    /// After the highest number that we have used.
    pub next: u64,
    /// When something of the peer's last arrived.
    pub heard: Duration,
    /// The first one is for sending.
    generations: Vec<Generation>,
    /// Packets sealed and opened with the first generation.
    packets: [u64; 2],
    blocks: u64,
    /// When to say again that we have the keys.
    confirm: Duration,
}

/// A packet that was opened.
pub(super) struct Opened<'a> {
    pub number: u64,
    /// Whether it is the highest number so far.
    pub newest: bool,
    pub packet: &'a [u8],
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It has arrived before, or is too old.
    Repeated,
    /// It is not the peer's.
    Forged,
}

impl Live {
    pub fn new(session: Session, generation: Generation) -> Self {
        Self {
            session,
            id: generation.keys.name,
            window: Window::default(),
            next: 0,
            heard: generation.since,
            confirm: generation.since,
            generations: vec![generation],
            packets: [0; 2],
            blocks: 0,
        }
    }

    /// The keys to send with.
    pub fn current(&self) -> &Generation {
        &self.generations[0]
    }

    pub fn has(&self, index: u32) -> bool {
        self.generations.iter().any(|keys| keys.index == index)
    }

    /// Sends with these keys from now on.
    pub fn renew(&mut self, generation: Generation) {
        self.heard = self.heard.max(generation.since);
        self.confirm = generation.since;
        self.packets = [0; 2];
        self.blocks = 0;
        self.generations.insert(0, generation);
        self.generations.truncate(GENERATIONS);
    }

    /// Receives with these keys as well.
    pub fn accept(&mut self, generation: Generation) {
        self.generations.insert(1, generation);
        self.generations.truncate(GENERATIONS);
    }

    /// When new keys are wanted: soon if nothing comes from the peer, or these are used up. The
    /// one who asked for them asks again, unless it does not.
    pub fn wants_keys(&self, limits: &Limits) -> Duration {
        let keys = self.current();
        let patience = if keys.ours { 8 } else { 9 };
        let used_up = limits.rekey_packets / 8 * u64::from(patience);
        if self.packets.iter().any(|packets| *packets >= used_up) {
            return Duration::ZERO;
        }
        let silent = self.heard + limits.silence;
        let old = keys.since + limits.rekey_after / 8 * patience;
        if self.packets == [0; 2] {
            silent
        } else {
            silent.min(old)
        }
    }

    /// When the peer should be told that we have the keys, if it may not know.
    pub fn wants_to_confirm(&self) -> Option<Duration> {
        let keys = self.current();
        (keys.ours && !keys.confirmed).then_some(self.confirm)
    }

    /// Writes a confirmation; another one is due at `again`.
    pub fn confirm(&mut self, again: Duration, out: &mut Vec<u8>) {
        self.confirm = again;
        let (keys, start) = (self.current(), out.len());
        datagram::begin(CONFIRMATION, keys.peer_index, out);
        keys.keys.confirm(start, CONFIRMATION_HEADER, out);
    }

    /// Writes the session's next packet, sealed, if there is one; the mark that its datagram is to have.
    pub fn seal(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Ecn> {
        if self.blocks >= BLOCKS_MAX {
            return None;
        }
        let start = out.len();
        datagram::begin(DATA, self.generations[0].peer_index, out);
        out.extend_from_slice(&[0; 4]);
        let Some(written) = self.session.poll_packet(now, out, store) else {
            out.truncate(start);
            return None;
        };
        self.next = written.number + 1;
        out[start + DATA_HEADER - 4..start + DATA_HEADER]
            .copy_from_slice(&(written.number as u32).to_be_bytes());
        self.packets[0] += 1;
        self.blocks += ((out.len() - start) / 16 + 2) as u64;
        let keys = &self.generations[0].keys;
        keys.seal(written.number, start, DATA_HEADER, out);
        Some(written.ecn)
    }

    /// Opens a packet that came for one of our indices.
    pub fn open<'a>(
        &mut self,
        now: Duration,
        index: u32,
        number: u32,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Refused> {
        let at = self.generations.iter().position(|keys| keys.index == index);
        let at = at.ok_or(Refused::Forged)?;
        let keys = &mut self.generations[at];
        let (number, packet) = open(keys, &self.window, number, datagram)?;
        keys.confirmed = true;
        if at == 0 {
            self.packets[1] += 1;
        }
        Ok(self.opened(now, number, packet))
    }

    /// A packet with a new number is the peer's.
    pub fn opened<'a>(&mut self, now: Duration, number: u64, packet: &'a [u8]) -> Opened<'a> {
        self.heard = now;
        Opened {
            number,
            newest: self.window.insert(number),
            packet,
        }
    }
}

/// Opens a packet without taking note of it. `window` is the session's.
pub(super) fn open<'a>(
    keys: &Generation,
    window: &Window,
    number: u32,
    datagram: &'a mut [u8],
) -> Result<(u64, &'a [u8]), Refused> {
    let number = expand(number, window.next().max(keys.base));
    if !window.is_new(number) {
        return Err(Refused::Repeated);
    }
    match keys.keys.open(number, DATA_HEADER, datagram) {
        Ok(packet) => Ok((number, packet)),
        Err(_) => Err(Refused::Forged),
    }
}
