//! `divacks`: an acknowledgement goes on as several, each of a part of its bytes, so that a sender which counts acknowledgements opens its window sooner
//! after a start or a handover (ciminieri2013 §5).
//!
//! Of y bytes that are newly acknowledged the first part acknowledges y - n, the others a byte each, and the last is the acknowledgement itself. Nothing is
//! acknowledged that the receiver has not. A sender that counts bytes (RFC 3465, RFC 5681 §3.1) gains nothing: it is found out by how little more it sends
//! after the first divided ones, and left alone from then on.

use std::time::Duration;

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::Ip,
    packet::Packet,
    rule::Path,
    tcp::{self, Tcp, flags, is_after},
};

/// For how long acknowledgements are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Until so many were made; anew after a pause of three round trips, as after a handover.
    #[default]
    Controlled,
    /// All through slow start: until the first sign of loss.
    BruteForce,
}

/// How acknowledgements are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// For how long.
    pub mode: Mode,
    /// Parts of an acknowledgement beside itself, 2 to 64. Default 12, the paper's best.
    pub parts: u8,
    /// Parts of a connection at most, where that is controlled. Default 1500.
    pub max_count: u32,
    /// Connections that are known at a time. Default 4096.
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

/// Divides acknowledgements for our hosts.
#[derive(Debug)]
pub struct DivAcks {
    config: Config,
    rtt: Duration,
    flows: Flows<Flow>,
    divided: u64,
    made: u64,
    refused: u64,
}

/// A connection of which our host is the sender.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    acked: Option<u32>,
    highest: Option<u32>,
    longest: u32,
    count: u32,
    duplicates: u8,
    /// Loss was seen, or the sender counts bytes.
    over: bool,
    judged: bool,
    /// Since the first divided one: what was in flight then, bytes acknowledged, parts made.
    trial: Option<Trial>,
    /// When the last acknowledgement came.
    heard: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    flight: u32,
    bytes: u32,
    parts: u32,
    /// It is judged by the flight when something beyond this has been acknowledged: what the sender sent upon the parts.
    until: u32,
}

impl DivAcks {
    /// Knows no connection yet. Values out of range are brought into it.
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

    /// How many parts this acknowledgement gets beside itself, and of how many bytes it is.
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
        if pause > self.rtt * 3 && self.config.mode == Mode::Controlled {
            flow.count = 0;
        }
        let bytes = tcp.ack.wrapping_sub(before);
        let highest = flow.highest?;
        // What was never sent cannot be acknowledged.
        let sane = !is_after(tcp.ack, highest);
        let few = flow.count < self.config.max_count || self.config.mode == Mode::BruteForce;
        if !flow.judged && flow.judge(tcp.ack, highest) {
            self.refused += 1;
        }
        let parts = u32::from(self.config.parts);
        if flow.over || !sane || !few || tcp.has_sack() || bytes <= parts || bytes < flow.longest {
            return None;
        }
        let flight = highest.wrapping_sub(before);
        let trial = flow.trial.get_or_insert(Trial {
            flight,
            bytes: 0,
            parts: 0,
            until: highest,
        });
        trial.bytes = trial.bytes.saturating_add(bytes);
        trial.parts += parts;
        flow.count += parts;
        Some((parts, bytes))
    }
}

impl Flow {
    /// Whether the sender is found to count bytes: what it has in flight a round trip after the first divided acknowledgements is no more
    /// than it was and what was acknowledged, where each part should have let it send a segment more.
    fn judge(&mut self, ack: u32, highest: u32) -> bool {
        let Some(trial) = self.trial.filter(|trial| is_after(ack, trial.until)) else {
            return false;
        };
        self.judged = true;
        let flight = highest.wrapping_sub(ack);
        let grown = flight.saturating_sub(trial.flight);
        let by_parts = trial.parts.saturating_mul(self.longest) / 4;
        let by_bytes = trial.bytes.saturating_mul(2);
        self.over = grown <= by_bytes.max(by_parts.min(by_bytes + 8 * self.longest));
        self.over
    }
}

impl Booster for DivAcks {
    fn down(&mut self, _now: Duration, packet: Packet, out: &mut Out) {
        if let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) {
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
        let tcp = Ip::parse(&packet.bytes).and_then(Tcp::parse);
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
    use crate::tcp::tests::{answer, segment};

    const MSS: u32 = 1000;

    /// A sender in slow start that counts acknowledgements or bytes, and a receiver that acknowledges each segment, a round trip apart. How many round
    /// trips `total` bytes take, and the booster.
    fn transfer(config: Config, counts_bytes: bool, total: u32) -> (u32, DivAcks) {
        let mut booster = DivAcks::new(config);
        let (mut out, mut now) = (Out::default(), Duration::ZERO);
        let begin = u32::MAX - 20_000;
        let (mut next, mut una, mut window, mut rounds) = (begin, begin, 2 * MSS, 0);
        while una.wrapping_sub(begin) < total {
            rounds += 1;
            now += Duration::from_millis(100);
            while next.wrapping_sub(una) + MSS <= window && next.wrapping_sub(begin) < total {
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
    fn a_sender_that_counts_acknowledgements_is_sooner_and_one_that_counts_bytes_is_left_alone() {
        let off = Config {
            max_count: 0,
            ..Config::default()
        };
        let (plain, _) = transfer(off, false, 990_000);
        let (sooner, booster) = transfer(Config::default(), false, 990_000);
        assert!(sooner + 3 <= plain, "{sooner} {plain}");
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
    fn hostile_numbers_are_not_divided() {
        let mut booster = DivAcks::new(Config::default());
        let mut out = Out::default();
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (seq, ack) = ((state >> 32) as u32, (state >> 13) as u32);
            let flags = (state >> 50) as u8;
            let bytes = segment(seq, ack, flags, &[0; 200][..(state >> 40) as usize % 200]);
            booster.down(Duration::ZERO, Packet::new(bytes, Duration::ZERO), &mut out);
            let mut bytes = answer(ack, seq, flags, &[]);
            bytes.truncate((state >> 20) as usize % 50);
            booster.up(Duration::ZERO, Packet::new(bytes, Duration::ZERO), &mut out);
            booster.up(
                Duration::ZERO,
                Packet::new(answer(ack, seq, flags, &[]), Duration::ZERO),
                &mut out,
            );
            assert!(out.up.len() <= 66 && out.down.len() == 1);
            out = Out::default();
        }
    }
}
