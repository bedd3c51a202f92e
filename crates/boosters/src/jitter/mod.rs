//! Jitter control: packets leave the far end with their original spacing (ramakrishnan2000 §2.3 b).
//!
//! [`Sender`] stamps each packet with its arrival time; [`Receiver`] holds each until its stamp
//! plus a fixed delay. The two clocks need not agree. The fastest of the last packets gives their
//! difference, including the path's minimum delay, and all packets are measured against it. It is
//! updated all the time, so the receiver follows clock drift and path changes. When the path
//! becomes so slow that all packets are late, the receiver adapts after a second.
//!
//! ```text
//!  JITTER | stamp:32 | delay:16 | message
//! ```
//!
//! `stamp` is the packet's arrival from its host, in microseconds modulo 2^32. `delay`, in
//! milliseconds, is added to the delay of the fastest path.

mod minimum;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use self::minimum::Minimum;
use crate::{
    booster::{Booster, Out},
    packet::Packet,
    wire::{JITTER, Reader},
};

/// Length in bytes of the header before the message.
pub const HEADER: usize = 7;

/// Packets released at once, of which later boosters may make many.
const RELEASED_MAX: usize = 64;
/// Packets released with one that comes: itself, and one held before. Timers release the rest at
/// the pace of their caller.
const RELEASED_WITH: usize = 2;

/// Settings of a [`Sender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Delay added to that of the fastest path, in whole milliseconds: the jitter that is
    /// compensated, and the latency that it costs. 1 ms to 2 s. Default 60 ms, which receivers of
    /// speech tolerate anyway.
    pub delay: Duration,
}

impl Config {
    /// Minimum delay.
    pub const DELAY_MIN: Duration = Duration::from_millis(1);
    /// Maximum delay.
    pub const DELAY_MAX: Duration = Duration::from_secs(2);
}

impl Default for Config {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(60),
        }
    }
}

/// Stamps each packet with its arrival time.
#[derive(Debug)]
pub struct Sender {
    delay: u16,
    stamped: u64,
}

impl Sender {
    /// Creates a sender. Values out of range are clamped.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let delay = config.delay.clamp(Config::DELAY_MIN, Config::DELAY_MAX);
        Self {
            delay: delay.as_millis() as u16,
            stamped: 0,
        }
    }
}

impl Booster for Sender {
    fn down(&mut self, _: Duration, packet: Packet, out: &mut Out) {
        self.stamped += 1;
        let mut bytes = Vec::with_capacity(HEADER + packet.bytes.len());
        bytes.push(JITTER);
        bytes.extend_from_slice(&(packet.since.as_micros() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.delay.to_be_bytes());
        bytes.extend_from_slice(&packet.bytes);
        out.down.push(packet.with_bytes(bytes));
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("stamped", self.stamped);
    }
}

/// Default maximum of bytes that a receiver holds: two seconds of 16 Mbit/s.
pub const BYTES_MAX: usize = 4 << 20;

/// Assumed cost of a held packet beyond its bytes.
const PLACE: usize = 128;

/// Minimum difference of a stamp from the expected one (µs) that indicates another clock or another
/// path.
const JUMP: i64 = 5_000_000;

/// Time (µs) with only packets that are [`JUMP`] too late after which they count as those of
/// another clock. Also the time with only late ones after which the path counts as slower.
const RESTART: i64 = 1_000_000;
/// Minimum late packets by then: a few may be late by chance.
const SLOWER: u32 = 8;

/// Restores the original spacing of packets.
#[derive(Debug)]
pub struct Receiver {
    /// By their time on the sender's clock, then by their number.
    held: BTreeMap<(i64, u64), Held>,
    next: u64,
    bytes: usize,
    bytes_max: usize,
    /// Minimum difference of the clocks seen: the fastest path.
    minimum: Minimum,
    /// Time since when all stamps have been implausibly late.
    implausible_since: Option<i64>,
    lateness: Option<Lateness>,
    delayed: u64,
    late: u64,
    forced: u64,
    restarts: u64,
    slower: u64,
    malformed: u64,
}

/// Late packets in a row.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    since: i64,
    packets: u32,
    /// Minimum difference of the clocks among them.
    minimum: i64,
}

#[derive(Debug)]
struct Held {
    delay: i64,
    /// Latest time of release, even if the path is found to be slower meanwhile.
    end: i64,
    packet: Packet,
}

impl Default for Receiver {
    fn default() -> Self {
        Self::new(BYTES_MAX)
    }
}

impl Receiver {
    /// Creates a receiver that holds up to `bytes_max` bytes; each packet costs 128 more. Beyond
    /// that the first packet is released at once.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            next: 0,
            bytes: 0,
            bytes_max,
            minimum: Minimum::default(),
            implausible_since: None,
            lateness: None,
            delayed: 0,
            late: 0,
            forced: 0,
            restarts: 0,
            slower: 0,
            malformed: 0,
        }
    }

    /// Returns the number of held packets, and their cost in bytes.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.bytes)
    }

    /// Returns the difference (µs) of this end's clock from a stamp, path delay included. A jump of
    /// the stamps resets all state.
    fn offset(&mut self, now: i64, stamp: u32, out: &mut Out) -> i64 {
        let raw = (now as u32).wrapping_sub(stamp);
        if let Some(minimum) = self.minimum.get() {
            // Modulo 2^32, as stamps are.
            let beyond = i64::from(raw.wrapping_sub(minimum as u32) as i32);
            if !self.is_other_clock(now, beyond) {
                let offset = minimum + beyond;
                if beyond <= JUMP {
                    self.minimum.add(now, offset);
                }
                return offset;
            }
            self.restarts += 1;
            self.minimum = Minimum::default();
            self.release(i64::MAX, RELEASED_MAX, out);
        }
        self.minimum.add(now, raw.into());
        raw.into()
    }

    fn is_other_clock(&mut self, now: i64, beyond: i64) -> bool {
        if beyond.abs() <= JUMP {
            self.implausible_since = None;
            return false;
        }
        let since = *self.implausible_since.get_or_insert(now);
        let other = beyond < 0 || now - since >= RESTART;
        if other {
            self.implausible_since = None;
        }
        other
    }

    /// Notes whether a packet with this clock difference is late. When all have been late for a
    /// while, the fastest of them becomes the new reference.
    fn note_lateness(&mut self, now: i64, offset: i64, is_late: bool) {
        if !is_late {
            self.lateness = None;
            return;
        }
        let lateness = self.lateness.get_or_insert(Lateness {
            since: now,
            packets: 0,
            minimum: offset,
        });
        lateness.packets = lateness.packets.saturating_add(1);
        lateness.minimum = lateness.minimum.min(offset);
        if now - lateness.since >= RESTART && lateness.packets >= SLOWER {
            self.slower += 1;
            self.minimum = Minimum::default();
            self.minimum.add(now, lateness.minimum);
            self.lateness = None;
        }
    }

    fn hold(&mut self, time: i64, delay: i64, end: i64, packet: Packet) {
        self.bytes += packet.bytes.len() + PLACE;
        let held = Held { delay, end, packet };
        self.held.insert((time, self.next), held);
        self.next += 1;
    }

    /// Releases the first packet.
    fn give(&mut self, out: &mut Out) {
        if let Some((_, held)) = self.held.pop_first() {
            self.bytes -= held.packet.bytes.len() + PLACE;
            out.up.push(held.packet);
        }
    }

    /// Releases some of the packets that are due.
    fn release(&mut self, now: i64, most: usize, out: &mut Out) {
        for _ in 0..most {
            if self.due().is_none_or(|due| due > now) {
                return;
            }
            self.give(out);
        }
    }

    /// Returns when the first is due. Computed each time, since the fastest path changes; the order
    /// is always that of the stamps.
    fn due(&self) -> Option<i64> {
        let ((time, _), held) = self.held.first_key_value()?;
        let minimum = self.minimum.get().unwrap_or(0);
        let due = time.saturating_add(minimum).saturating_add(held.delay);
        Some(due.min(held.end))
    }
}

/// Parses a message into stamp, delay (µs) and content.
fn parse(bytes: &[u8]) -> Option<(u32, i64, &[u8])> {
    let mut reader = Reader(bytes.get(1..)?);
    let (stamp, delay) = (reader.u32()?, reader.u16()?);
    let delay = Duration::from_millis(delay.into()).min(Config::DELAY_MAX);
    (!reader.0.is_empty()).then_some((stamp, micros(delay), reader.0))
}

/// Converts to microseconds, saturated so that additions do not overflow.
fn micros(time: Duration) -> i64 {
    time.as_micros().min(1 << 60) as i64
}

impl Booster for Receiver {
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() != Some(&JITTER) {
            out.up.push(packet);
            return;
        }
        let Some((stamp, delay, message)) = parse(&packet.bytes) else {
            self.malformed += 1;
            return;
        };
        let now = micros(now);
        let offset = self.offset(now, stamp, out);
        let lateness = offset - self.minimum.get().unwrap_or(offset);
        self.note_lateness(now, offset, lateness > delay && lateness <= JUMP);
        if lateness > delay {
            self.late += 1;
        } else {
            self.delayed += 1;
        }
        let packet = packet.with_bytes(message.to_vec());
        self.hold(now - offset, delay, now.saturating_add(delay), packet);
        while self.bytes > self.bytes_max && !self.held.is_empty() {
            self.forced += 1;
            self.give(out);
        }
        self.release(now, RELEASED_WITH, out);
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        self.release(micros(now), RELEASED_MAX, out);
    }

    fn deadline(&self) -> Option<Duration> {
        let due = self.due()?;
        Some(Duration::from_micros(due.try_into().unwrap_or(0)))
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("delayed", self.delayed);
        each("late", self.late);
        each("forced", self.forced);
        each("restarts", self.restarts);
        each("slower", self.slower);
        each("malformed", self.malformed);
        each("held", self.held.len() as u64);
    }
}
