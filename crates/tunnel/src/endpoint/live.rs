//! An established session with its keys.

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

/// Generations of keys accepted for receiving: the present one, the previous one, and that of a
/// handshake that crossed the local end's.
const GENERATIONS: usize = 3;

/// Maximum number of 16-byte blocks sealed with one key, 512 GiB: with packets of 2^11 bytes these
/// are the 2^28 packets of RFC 9001, appendix B.1.1.
const BLOCKS_MAX: u64 = 1 << 35;

/// Keys of one handshake, and their state.
pub(super) struct Generation {
    /// Index of the local end, used by the peer.
    pub index: u32,
    /// Index of the peer, used by the local end.
    pub peer_index: u32,
    pub keys: Keys,
    /// Lowest number of the peer's packets under these keys.
    pub base: u64,
    /// True if the local end sent the initiation.
    pub ours: bool,
    /// True if the peer has these keys, too, and knows that the local end has them.
    pub confirmed: bool,
    pub since: Duration,
}

/// An established session.
pub(super) struct Live {
    pub session: Session,
    /// Name of its first keys, which identifies it at both ends.
    pub id: u64,
    pub window: Window,
    /// Number after the highest that the local end has used.
    pub next: u64,
    /// Time when a packet of the peer last arrived.
    pub heard: Duration,
    /// Key generations; the first one is for sending.
    generations: Vec<Generation>,
    /// Packets sealed and opened with the first generation.
    packets: [u64; 2],
    blocks: u64,
    /// Time of the next confirmation.
    confirm: Duration,
}

/// A packet that was opened.
pub(super) struct Opened<'a> {
    pub number: u64,
    /// True if the number is the highest so far.
    pub newest: bool,
    pub packet: &'a [u8],
}

/// Reason why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Replayed, or too old.
    Repeated,
    /// Not sealed by the peer.
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

    /// Returns the keys used for sending.
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

    /// Returns the session's silence limit, or the general one if that is longer. For a peer that
    /// was at rest when a stream began, it counts from when that peer can know of the stream.
    pub fn silence_limit(&self, limits: &Limits) -> Duration {
        let unexpected = self.session.expected_since().saturating_sub(self.heard);
        limits.silence.max(self.session.silence_limit()) + unexpected
    }

    /// Returns when new keys are needed: soon if nothing comes from the peer, or the keys are used
    /// up. The end that initiated the last handshake initiates the next, and the other end only if
    /// it does not. `limits` are the general ones.
    pub fn wants_keys(&self, limits: &Limits) -> Duration {
        let keys = self.current();
        let patience = if keys.ours { 8 } else { 9 };
        let used_up = limits.rekey_packets / 8 * u64::from(patience);
        if self.packets.iter().any(|packets| *packets >= used_up) {
            return Duration::ZERO;
        }
        let silent = self.heard + self.silence_limit(limits);
        let old = keys.since + limits.rekey_after / 8 * patience;
        if self.packets == [0; 2] {
            silent
        } else {
            silent.min(old)
        }
    }

    /// Returns when to confirm the keys to the peer, if it may not know that the local end has
    /// them.
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

    /// Writes and seals the session's next packet, if there is one; returns the mark for its
    /// datagram.
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

    /// Opens a packet for one of the local indices.
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

    /// Records an authentic packet with a new number.
    pub fn opened<'a>(&mut self, now: Duration, number: u64, packet: &'a [u8]) -> Opened<'a> {
        self.heard = now;
        Opened {
            number,
            newest: self.window.insert(number),
            packet,
        }
    }
}

/// Opens a packet without recording it. `window` is the session's.
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
