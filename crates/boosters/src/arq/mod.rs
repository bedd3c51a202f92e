//! `arq`: requests lost messages once or twice, as long as they are still useful (selective ARQ,
//! ramakrishnan2000 §2.3; cache upstream, negative acknowledgement downstream).
//!
//! ```text
//!  ARQ   0x11 | flags:8 | seq:32 | wait:16, ms | message
//!        flags: 1 order is kept, 2 no message: `seq` is the next one, 4 retransmitted
//!  AGAIN 0x12 | n:8 | n * (seq:32)        a reply
//! ```

mod receiver;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

pub use receiver::Receiver;

use crate::{
    booster::{Booster, Out},
    ecn::Ecn,
    packet::Packet,
    rule::Path,
    wire::{ARQ, ARQ_AGAIN, Reader},
};

const ORDER: u8 = 1;
const TAIL: u8 = 2;
const AGAIN: u8 = 4;
/// Number of bytes that a message is longer than its content.
pub const OVERHEAD: usize = 1 + 1 + 4 + 2;
/// Minimum pause after which the sender announces the last number; otherwise a quarter of a round
/// trip.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Number of such announcements.
const TAILS: u8 = 2;

/// Settings of the repair of lost messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum retransmissions of a message, 1 to 2. Default 1.
    pub tries: u8,
    /// True if messages leave the far end in the order in which they were sent; those behind a lost
    /// one then wait. Default false.
    pub order: bool,
    /// Bytes kept for retransmission. Default 1 MiB.
    pub cache: usize,
    /// Maximum wait for a lost message, 1 ms to 65 s. Default 1 s. If a round trip takes as long,
    /// messages are not numbered: a retransmission would come too late.
    pub wait: Duration,
    /// Determines the first number.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tries: 1,
            order: false,
            cache: 1 << 20,
            wait: Duration::from_secs(1),
            seed: 0,
        }
    }
}

/// End that keeps sent messages.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    next: u32,
    /// Last messages sent; the last one has the number before `next`.
    kept: VecDeque<Kept>,
    bytes: usize,
    rtt: Duration,
    /// Time of the next announcement of the last number, and how many remain.
    tail: Option<(Duration, u8)>,
    again: u64,
    not_kept: u64,
    too_late: u64,
    unnumbered: u64,
}

#[derive(Debug)]
struct Kept {
    packet: Packet,
    at: Duration,
    tries: u8,
}

/// Cost of a kept message beyond its bytes.
const PLACE: usize = 96;

impl Sender {
    /// Creates a sender. Values out of range are clamped.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let next = (config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        Self {
            config: Config {
                tries: config.tries.clamp(1, 2),
                ..config
            },
            next,
            kept: VecDeque::new(),
            bytes: 0,
            rtt: Path::default().rtt,
            tail: None,
            again: 0,
            not_kept: 0,
            too_late: 0,
            unnumbered: 0,
        }
    }

    fn header(&self, flags: u8, seq: u32) -> Vec<u8> {
        let order = if self.config.order { ORDER } else { 0 };
        let wait = self.config.wait.as_millis().min(u16::MAX.into()) as u16;
        let mut bytes = vec![ARQ, flags | order];
        bytes.extend_from_slice(&seq.to_be_bytes());
        bytes.extend_from_slice(&wait.to_be_bytes());
        bytes
    }

    fn wrap(&self, flags: u8, seq: u32, packet: &Packet) -> Packet {
        let mut bytes = self.header(flags, seq);
        bytes.extend_from_slice(&packet.bytes);
        packet.with_bytes(bytes)
    }

    fn keep(&mut self, now: Duration, packet: Packet) {
        self.bytes += packet.bytes.len() + PLACE;
        self.kept.push_back(Kept {
            packet,
            at: now,
            tries: self.config.tries,
        });
        let old = |kept: &Kept| now.saturating_sub(kept.at) > self.config.wait;
        while self.bytes > self.config.cache || self.kept.front().is_some_and(old) {
            let Some(kept) = self.kept.pop_front() else {
                return;
            };
            self.bytes -= kept.packet.bytes.len() + PLACE;
        }
    }

    fn retransmit(&mut self, now: Duration, seq: u32, out: &mut Out) {
        let back = self.next.wrapping_sub(seq) as usize;
        let at = self.kept.len().checked_sub(back);
        let Some(kept) = at.and_then(|at| self.kept.get_mut(at)) else {
            self.not_kept += 1;
            return;
        };
        if kept.tries == 0 || now.saturating_sub(kept.at) > self.config.wait {
            self.too_late += 1;
            return;
        }
        kept.tries -= 1;
        let packet = kept.packet.clone();
        self.again += 1;
        let message = self.wrap(AGAIN, seq, &packet);
        out.down.push(message);
    }
}

impl Booster for Sender {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if self.rtt >= self.config.wait {
            self.unnumbered += 1;
            out.down.push(packet);
            return;
        }
        let seq = self.next;
        self.next = seq.wrapping_add(1);
        out.down.push(self.wrap(0, seq, &packet));
        self.keep(now, packet);
        self.tail = Some((now + (self.rtt / 4).max(PAUSE_MIN), TAILS));
    }

    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() != Some(&ARQ_AGAIN) {
            out.up.push(packet);
            return;
        }
        let mut reader = Reader(&packet.bytes[1..]);
        let count = reader.u8().unwrap_or(0);
        for _ in 0..count {
            let Some(seq) = reader.u32() else { return };
            self.retransmit(now, seq, out);
        }
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        let Some((at, left)) = self.tail else { return };
        if now < at {
            return;
        }
        let next = now + self.rtt.max(PAUSE_MIN);
        self.tail = (left > 1).then_some((next, left - 1));
        let bytes = self.header(TAIL, self.next);
        out.down.push(Packet {
            bytes,
            since: now,
            // Addressed to the far pepd, which learns of marks from the tunnel. A retransmission
            // keeps the mark of its packet, whose sender may not support ECN.
            ecn: Ecn::Ect0,
            ..Packet::default()
        });
    }

    fn deadline(&self) -> Option<Duration> {
        self.tail.map(|(at, _)| at)
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.rtt = path.rtt;
    }

    /// The far end has forgotten all earlier messages, and requests none of them.
    fn reset(&mut self) {
        self.kept.clear();
        (self.bytes, self.tail) = (0, None);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("retransmitted", self.again);
        each("not_kept", self.not_kept);
        each("too_late", self.too_late);
        each("unnumbered", self.unnumbered);
        each("kept_bytes", self.bytes as u64);
    }
}
