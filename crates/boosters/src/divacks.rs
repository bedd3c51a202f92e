//! `divacks`: splits an acknowledgement into several, each for a part of its bytes. A sender that
//! counts acknowledgements then opens its window sooner after a start or a handover (ciminieri2013
//! §5).
//!
//! Of y newly acknowledged bytes, the first part acknowledges y - n, the others one byte each, and
//! the last is the original acknowledgement. No part acknowledges bytes that the receiver does not
//! have. A sender that counts bytes (RFC 3465, RFC 5681 §3.1) gains nothing.
//!
//! A trial finds out which kind the sender is: it splits some acknowledgements, and compares the
//! data in flight a round trip later. The result is valid only while the window limits the sender.
//! So a trial begins when much is in flight. One with a pause, or with hardly more in flight than
//! before, is void. Two trials that agree decide until the next pause, after which something else
//! may limit the sender. Until then acknowledgements are split only for trials.

use std::time::Duration;

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    packet::Packet,
    rule::Path,
    tcp::{self, Tcp, flags, is_after},
};

pub use pep_core::site::boost::DivAcksMode as Mode;

/// Settings of the booster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Duration of the splitting.
    pub mode: Mode,
    /// Parts of an acknowledgement besides the original, 2 to 64. Default 12, the paper's best.
    pub parts: u8,
    /// Maximum parts per connection, if limited. Default 1500.
    pub max_count: u32,
    /// Connections tracked at a time. Default 4096.
    pub flows_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Controlled,
            parts: 12,
            max_count: 1500,
            flows_max: 4096,
        }
    }
}

/// Splits acknowledgements for local hosts.
#[derive(Debug)]
pub struct DivAcks {
    config: Config,
    rtt: Duration,
    flows: Flows<Flow>,
    divided: u64,
    made: u64,
    refused: u64,
}

/// Segments in flight from which on a trial begins: the initial window of senders that count bytes
/// (RFC 6928). Below it the application often limits the sender.
const FLIGHT_MIN: u32 = 10;
/// Minimum parts that a trial takes; as many as there are segments in flight, if that is more.
const TRIAL_PARTS: u32 = 24;
/// Trials without a result, after which the booster waits for a pause.
const TRIALS_MAX: u32 = 8;

/// Connection with a local host as sender.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    acked: Option<u32>,
    highest: Option<u32>,
    longest: u32,
    count: u32,
    duplicates: u8,
    /// True once a loss was seen.
    over: bool,
    /// Result of the last valid trial.
    shown: Option<Counts>,
    /// Result of two valid trials in succession.
    found: Option<Counts>,
    trial: Option<Trial>,
    trials: u32,
    /// Time of the last acknowledgement.
    heard: Option<Duration>,
}

/// Event that opens a sender's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Acks,
    Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Segments in flight at its begin, acknowledged since, and parts since.
    flight: u32,
    bytes: u32,
    parts: u32,
    /// Number whose acknowledgement ends the trial: it lies after the data sent upon the parts.
    until: u32,
}

impl DivAcks {
    /// Creates a booster without connections. Values out of range are clamped.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            flows: Flows::new(config.flows_max),
            config: Config {
                parts: config.parts.clamp(2, 64),
                ..config
            },
            rtt: Path::default().rtt,
            divided: 0,
            made: 0,
            refused: 0,
        }
    }

    /// Returns the number of parts of this acknowledgement besides the original, and its new bytes.
    fn parts(&mut self, now: Duration, tcp: &Tcp<'_>) -> Option<(u32, u32)> {
        let flow = self.flows.get(&tcp.ip.key().reversed())?;
        if !tcp.is_plain_ack() {
            return None;
        }
        let before = flow.acked.replace(tcp.ack)?;
        let pause = flow
            .heard
            .replace(now)
            .map_or(Duration::ZERO, |at| now.saturating_sub(at));
        if !is_after(tcp.ack, before) {
            flow.acked = Some(before);
            flow.duplicates = flow.duplicates.saturating_add(u8::from(tcp.ack == before));
            flow.over |= flow.duplicates >= 3 && self.config.mode == Mode::BruteForce;
            return None;
        }
        flow.duplicates = 0;
        // Where the round trip is unknown, that of RFC 6298 §2.1.
        let rtt = match self.rtt {
            Path::RTT_UNKNOWN => Duration::from_secs(1),
            known => known,
        };
        if pause > rtt * 3 {
            flow.resume(self.config.mode == Mode::Controlled);
        }
        let bytes = tcp.ack.wrapping_sub(before);
        let highest = flow.highest?;
        // Unsent bytes cannot be acknowledged.
        let sane = !is_after(tcp.ack, highest);
        let few = flow.count < self.config.max_count || self.config.mode == Mode::BruteForce;
        let parts = u32::from(self.config.parts);
        if flow.over || !sane || !few {
            return None;
        }
        if flow.found.is_none() {
            flow.judge(tcp.ack, highest);
            self.refused += u64::from(flow.found == Some(Counts::Bytes));
        }
        let divides = flow.is_tried(before, highest, bytes) || flow.found == Some(Counts::Acks);
        if !divides || tcp.has_sack() || bytes <= parts || bytes < flow.longest {
            return None;
        }
        if let Some(trial) = &mut flow.trial {
            trial.parts += parts;
        }
        flow.count += parts;
        Some((parts, bytes))
    }
}

impl Flow {
    /// Resets the state after a pause: the path and the sender's limit may have changed.
    fn resume(&mut self, restarted: bool) {
        (self.shown, self.found, self.trial, self.trials) = (None, None, None, 0);
        if restarted {
            self.count = 0;
        }
    }

    /// Evaluates a trial at its end. A sender that counts bytes has at most twice as much in flight
    /// after a round trip. With one that counts acknowledgements, each part releases one more
    /// segment.
    fn judge(&mut self, ack: u32, highest: u32) {
        let Some(trial) = self.trial.take_if(|trial| is_after(ack, trial.until)) else {
            return;
        };
        let grown = highest.wrapping_sub(ack).saturating_sub(trial.flight);
        let by_parts = trial.parts.saturating_mul(self.longest);
        if by_parts < trial.flight || grown < trial.bytes / 2 {
            self.shown = None; // Something else limits it.
            return;
        }
        let shown = if grown > trial.bytes.saturating_add(by_parts / 4) {
            Counts::Acks
        } else {
            Counts::Bytes
        };
        self.found = (self.shown.replace(shown) == Some(shown)).then_some(shown);
    }

    /// Returns whether to split this acknowledgement of `bytes` bytes for a trial. May begin a
    /// trial.
    fn is_tried(&mut self, before: u32, highest: u32, bytes: u32) -> bool {
        if self.found.is_some() {
            return false;
        }
        let flight = highest.wrapping_sub(before);
        let much = flight >= self.longest.saturating_mul(FLIGHT_MIN) && self.longest > 0;
        if self.trial.is_none() {
            if !much || self.trials >= TRIALS_MAX {
                return false;
            }
            self.trials += 1;
            self.trial = Some(Trial {
                flight,
                bytes: 0,
                parts: 0,
                until: highest,
            });
        }
        let Some(trial) = &mut self.trial else {
            return false;
        };
        trial.bytes = trial.bytes.saturating_add(bytes);
        let enough = trial.flight.div_ceil(self.longest.max(1)).max(TRIAL_PARTS);
        trial.parts < enough
    }
}

impl Booster for DivAcks {
    fn down(&mut self, _now: Duration, packet: Packet, out: &mut Out) {
        if let Some(tcp) = Tcp::read(&packet.bytes) {
            let key = tcp.ip.key();
            if tcp.has(flags::SYN | flags::RST) {
                self.flows.remove(&key);
            }
            if tcp.has(flags::SYN) || !tcp.data().is_empty() {
                let brute = self.config.mode == Mode::BruteForce;
                let (flow, _) = self.flows.entry(key, Flow::default);
                let highest = *flow.highest.get_or_insert(tcp.end());
                if is_after(tcp.end(), highest) {
                    flow.highest = Some(tcp.end());
                } else if !tcp.data().is_empty() && highest != tcp.end() {
                    flow.over |= brute;
                }
                flow.acked.get_or_insert(tcp.seq);
                flow.longest = flow.longest.max(tcp.data().len() as u32);
            }
        }
        out.down.push(packet);
    }

    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let tcp = Tcp::read(&packet.bytes);
        let divided = tcp.and_then(|tcp| Some((tcp.ack, self.parts(now, &tcp)?)));
        if let Some((ack, (parts, bytes))) = divided {
            self.divided += 1;
            self.made += u64::from(parts);
            let first = ack.wrapping_sub(bytes).wrapping_add(bytes - parts);
            for part in 0..parts {
                let mut made = packet.clone();
                tcp::set_ack(&mut made.bytes, first.wrapping_add(part));
                out.up.push(made);
            }
        }
        out.up.push(packet);
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.rtt = path.rtt;
    }

    fn reset(&mut self) {
        self.flows.clear();
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("divided", self.divided);
        each("made", self.made);
        each("refused", self.refused);
        each("connections", self.flows.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Ip;
    use crate::tcp::tests::{answer, segment};

    const MSS: u32 = 1000;

    /// Simulates a sender in slow start that counts acknowledgements or bytes, and a receiver that
    /// acknowledges each segment, a round trip apart. Returns the round trips for `total` bytes,
    /// and the booster.
    fn transfer(config: Config, counts_bytes: bool, total: u32) -> (u32, DivAcks) {
        let unlimited = |_| (u32::MAX, 0);
        transfer_of(config, counts_bytes, total, unlimited)
    }

    /// Does the same for an application with limits: maximum segments in flight in that round trip,
    /// and a pause before it in ms.
    fn transfer_of(
        config: Config,
        counts_bytes: bool,
        total: u32,
        application: fn(u32) -> (u32, u64),
    ) -> (u32, DivAcks) {
        transfer_by(DivAcks::new(config), counts_bytes, total, application)
    }

    fn transfer_by(
        mut booster: DivAcks,
        counts_bytes: bool,
        total: u32,
        application: fn(u32) -> (u32, u64),
    ) -> (u32, DivAcks) {
        let (mut out, mut now) = (Out::default(), Duration::ZERO);
        let begin = u32::MAX - 20_000;
        let (mut next, mut una, mut window, mut rounds) = (begin, begin, 2 * MSS, 0);
        while una.wrapping_sub(begin) < total {
            rounds += 1;
            let (segments, pause) = application(rounds);
            now += Duration::from_millis(100 + pause);
            let limit = window.min(segments.saturating_mul(MSS));
            while next.wrapping_sub(una) + MSS <= limit && next.wrapping_sub(begin) < total {
                let packet = segment(next, 1, flags::ACK, &[1; MSS as usize]);
                booster.down(now, Packet::new(packet, now), &mut out);
                next = next.wrapping_add(MSS);
            }
            for sent in std::mem::take(&mut out.down) {
                let end = Tcp::parse(Ip::parse(&sent.bytes).unwrap()).unwrap().end();
                let ack = answer(1, end, flags::ACK, &[]);
                booster.up(now, Packet::new(ack, now), &mut out);
                let acks = std::mem::take(&mut out.up);
                assert!(acks.len() <= 65);
                for ack in acks {
                    let ack = Tcp::parse(Ip::parse(&ack.bytes).unwrap()).unwrap().ack;
                    assert!(is_after(ack, una) && !is_after(ack, end));
                    let grown = if counts_bytes {
                        ack.wrapping_sub(una).min(2 * MSS)
                    } else {
                        MSS
                    };
                    window += grown;
                    una = ack;
                }
            }
        }
        (rounds, booster)
    }

    #[test]
    fn a_sender_that_counts_bytes_is_left_alone_where_the_round_trip_is_unknown() {
        let mut booster = DivAcks::new(Config::default());
        let path = Path {
            rtt: Path::RTT_UNKNOWN,
            ..Path::default()
        };
        booster.set_path(Duration::ZERO, &path);
        let (_, booster) = transfer_by(booster, true, 2000 * MSS, |_| (u32::MAX, 0));
        assert_eq!(booster.refused, 1);
    }

    #[test]
    fn a_sender_that_counts_acknowledgements_is_sooner_and_one_that_counts_bytes_is_left_alone() {
        let off = Config {
            max_count: 0,
            ..Config::default()
        };
        let (plain, _) = transfer(off, false, 990_000);
        let (sooner, booster) = transfer(Config::default(), false, 990_000);
        assert!(sooner + 2 <= plain, "{sooner} {plain}");
        assert!(booster.refused == 0 && booster.made <= 1500 + 12);
        let brute = Config {
            mode: Mode::BruteForce,
            ..Config::default()
        };
        assert!(transfer(brute, false, 990_000).0 <= sooner);

        let (plain, _) = transfer(off, true, 990_000);
        let (with, booster) = transfer(Config::default(), true, 990_000);
        assert_eq!(with, plain);
        assert_eq!(booster.refused, 1);
        assert!(booster.made < 100, "{}", booster.made);
    }

    #[test]
    fn what_an_application_does_not_send_is_not_taken_for_a_window() {
        // Bytes are counted: a short first flight, and then as much as the window permits.
        let (_, booster) = transfer_of(Config::default(), true, 2_000_000, |round| {
            (if round < 8 { 12 } else { u32::MAX }, 0)
        });
        assert_eq!(booster.refused, 1);
        assert!(booster.made < 400, "{}", booster.made);
        let (_, booster) = transfer_of(Config::default(), true, 2_000_000, |round| {
            (if round % 2 == 0 { 12 } else { 40 }, 0)
        });
        assert!(booster.made < 400, "{}", booster.made);
        // Acknowledgements are counted, after a short first flight: the trial detects it, and the
        // sender gets parts.
        let later = |round| (if round < 8 { 12 } else { u32::MAX }, 0);
        let (_, booster) = transfer_of(Config::default(), false, 2_000_000, later);
        assert_eq!(booster.refused, 0);
        assert!(booster.made > 1400, "{}", booster.made);
        // A few in flight give no result, and start no trial.
        let (_, booster) = transfer_of(Config::default(), true, 200_000, |_| (8, 0));
        assert_eq!(booster.made, 0);
        // After a pause the result may be different.
        let (_, booster) = transfer_of(Config::default(), true, 4_000_000, |round| {
            (60, if round == 14 { 1000 } else { 0 })
        });
        let (made, refused) = (booster.made, booster.refused);
        assert!(
            (1..=2).contains(&refused) && made < 1000,
            "{made} {refused}"
        );
    }

    #[test]
    fn hostile_numbers_are_not_divided() {
        let mut booster = DivAcks::new(Config::default());
        let mut out = Out::default();
        let mut state = 1u64;
        for step in 0..20_000u32 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // A plausible conversation, with invalid packets in between.
            let near = |n: u64| match n % 97 {
                0 => n as u32,
                ahead => (step * 200).wrapping_add(ahead as u32 * 200),
            };
            let (seq, ack) = (near(state >> 32), near(state >> 13).wrapping_sub(9000));
            let flags = match (state >> 50) as u8 {
                few @ 0..8 => few,
                _ => flags::ACK,
            };
            let bytes = segment(seq, 1, flags, &[0; 200][..(state >> 40) as usize % 200]);
            booster.down(Duration::ZERO, Packet::new(bytes, Duration::ZERO), &mut out);
            let mut bytes = answer(1, seq, flags, &[]);
            bytes.truncate((state >> 20) as usize % 50);
            booster.up(Duration::ZERO, Packet::new(bytes, Duration::ZERO), &mut out);
            booster.up(
                Duration::ZERO,
                Packet::new(answer(1, ack, flags, &[]), Duration::ZERO),
                &mut out,
            );
            assert!(out.up.len() <= 66 && out.down.len() == 1);
            out = Out::default();
        }
        assert!(booster.divided > 10, "{}", booster.divided);
    }
}
