//! `jitter`: packets leave the far end as far apart as they came here (jitter control, ramakrishnan2000 §2.3).
//!
//! ```text
//!  JITTER 0x14 | stamp:32, us | delay:16, ms | message
//! ```
//!
//! The clocks of both ends need not agree: what counts is the least difference of arrival and stamp of late.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    booster::{Booster, Out},
    packet::Packet,
    wire::{JITTER, Reader},
};

/// What a message is longer than what it carries.
pub const OVERHEAD: usize = 1 + 4 + 2;

/// How even packets become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How much later than the fastest a packet may be and still leave at its time: all others wait for it. 1 ms to 2 s. Default
    /// 60 ms.
    pub delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(60),
        }
    }
}

/// Says when packets came.
#[derive(Debug)]
pub struct Sender {
    delay_ms: u16,
    stamped: u64,
}

impl Sender {
    /// With that bound.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            delay_ms: config.delay.as_millis().clamp(1, 2000) as u16,
            stamped: 0,
        }
    }
}

impl Booster for Sender {
    fn down(&mut self, _now: Duration, packet: Packet, out: &mut Out) {
        self.stamped += 1;
        let mut bytes = Vec::with_capacity(OVERHEAD + packet.bytes.len());
        bytes.push(JITTER);
        bytes.extend_from_slice(&(packet.since.as_micros() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.delay_ms.to_be_bytes());
        bytes.extend_from_slice(&packet.bytes);
        out.down.push(packet.with_bytes(bytes));
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("stamped", self.stamped);
    }
}

/// The least of each of these times is remembered, and of the one before.
const MEMORY: Duration = Duration::from_secs(10);
/// What waits at most.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: usize = 4 << 20;
/// A difference that changes by more is another clock's.
const JUMP_US: i64 = 5_000_000;

/// Gives packets out at their times.
#[derive(Debug, Default)]
pub struct Receiver {
    /// The last stamp, in full.
    stamp: Option<i64>,
    /// Least differences of arrival and stamp: of now and before, and until when.
    least: Option<(i64, i64, Duration)>,
    waiting: BTreeMap<(Duration, u64), Packet>,
    bytes: usize,
    count: u64,
    late: u64,
    early: u64,
    unreadable: u64,
}

impl Receiver {
    /// Has received nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// When a packet with this stamp would have come by the fastest way.
    fn fastest(&mut self, now: Duration, stamp: u32) -> i64 {
        let arrival = now.as_micros() as i64;
        let last = self.stamp.unwrap_or(stamp.into());
        let mut full = last + i64::from(stamp.wrapping_sub(last as u32) as i32);
        let mut difference = arrival - full;
        let jumped = |(least, ..): (i64, i64, Duration)| (difference - least).abs() > JUMP_US;
        if self.least.is_some_and(jumped) {
            self.least = None;
            full = stamp.into();
            difference = arrival - full;
        }
        self.stamp = Some(full);
        let (current, before, until) =
            *self
                .least
                .get_or_insert((difference, difference, now + MEMORY));
        let current = current.min(difference);
        self.least = Some(if now >= until {
            (difference, current, now + MEMORY)
        } else {
            (current, before, until)
        });
        full + current.min(before)
    }

    fn wait(&mut self, at: Duration, packet: Packet, out: &mut Out) {
        self.bytes += packet.bytes.len();
        self.count += 1;
        self.waiting.insert((at, self.count), packet);
        while self.waiting.len() > WAITING_MAX || self.bytes > BYTES_MAX {
            self.early += 1;
            self.give(out);
        }
    }

    fn give(&mut self, out: &mut Out) {
        if let Some((_, packet)) = self.waiting.pop_first() {
            self.bytes -= packet.bytes.len();
            out.up.push(packet);
        }
    }
}

impl Booster for Receiver {
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() != Some(&JITTER) {
            out.up.push(packet);
            return;
        }
        let mut reader = Reader(&packet.bytes[1..]);
        let (Some(stamp), Some(delay)) = (reader.u32(), reader.u16()) else {
            self.unreadable += 1;
            return;
        };
        let inner = packet.with_bytes(reader.0.to_vec());
        let at = self.fastest(now, stamp) + i64::from(delay.min(2000)) * 1000;
        let at = Duration::from_micros(u64::try_from(at).unwrap_or(0));
        if at <= now {
            self.late += u64::from(at < now);
            out.up.push(inner);
        } else {
            self.wait(at, inner, out);
        }
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        while self.deadline().is_some_and(|at| at <= now) {
            self.give(out);
        }
    }

    fn deadline(&self) -> Option<Duration> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("late", self.late);
        each("early", self.early);
        each("unreadable", self.unreadable);
        each("waiting", self.waiting.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets every 20 ms over a way of 100 to 150 ms by clocks that differ by `ppm`; when each was given out.
    fn run(ppm: f64, begin: u64, count: u32) -> Vec<(u32, i64)> {
        let (mut sender, mut receiver) = (Sender::new(Config::default()), Receiver::new());
        let (mut state, mut wire) = (1u64, BTreeMap::new());
        let mut out = Out::default();
        for number in 0..count {
            let came = Duration::from_millis(begin) + Duration::from_millis(20) * number;
            let bytes = [&[0x45][..], &number.to_be_bytes()].concat();
            sender.down(came, Packet::new(bytes, came), &mut out);
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let way = 100_000 + (state >> 33) % 50_000;
            let arrives = f64::from(number) * 20_000.0 * (1.0 + ppm * 1e-6);
            let arrives = Duration::from_micros(arrives as u64 + way);
            wire.insert((arrives, number), out.down.pop().unwrap());
        }
        let mut given = Vec::new();
        let mut note = |out: &mut Out, now: Duration| {
            for packet in out.up.drain(..) {
                let number = u32::from_be_bytes(packet.bytes[1..5].try_into().unwrap());
                given.push((number, now.as_micros() as i64));
            }
        };
        for ((now, _), packet) in wire {
            while let Some(at) = receiver.deadline().filter(|at| *at <= now) {
                receiver.on_time(at, &mut out);
                note(&mut out, at);
            }
            receiver.up(now, packet, &mut out);
            note(&mut out, now);
        }
        while let Some(at) = receiver.deadline() {
            receiver.on_time(at, &mut out);
            note(&mut out, at);
        }
        given
    }

    #[test]
    fn packets_are_as_even_as_they_came_and_in_order_also_by_clocks_that_drift() {
        for ppm in [0.0, 100.0, -100.0] {
            let given = run(ppm, 1_000_000, 5000);
            assert_eq!(given.len(), 5000);
            for pair in given[500..].windows(2) {
                assert_eq!(pair[1].0, pair[0].0 + 1);
                let apart = pair[1].1 - pair[0].1;
                assert!((apart - 20_000).abs() < 3000, "{ppm}: {apart}");
            }
            let latest = given[500..]
                .iter()
                .map(|(number, at)| at - i64::from(*number) * 20_000);
            // 100 ms of the way, and the bound; and as far as clocks have gone apart.
            assert!(latest.max().unwrap() < 160_000 + 11_000 + 3000);
        }
    }

    #[test]
    fn a_sender_with_another_clock_and_rubbish_do_no_harm() {
        let mut receiver = Receiver::new();
        let mut out = Out::default();
        let mut state = 1u64;
        for round in 0..100_000u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let now = Duration::from_micros(round * 50);
            let mut bytes = vec![JITTER];
            bytes.extend_from_slice(&state.to_be_bytes()[..(state >> 3) as usize % 9]);
            receiver.up(
                now,
                Packet {
                    bytes,
                    ..Packet::default()
                },
                &mut out,
            );
            receiver.on_time(now, &mut out);
            assert!(receiver.waiting.len() <= WAITING_MAX);
            out = Out::default();
        }
    }
}
