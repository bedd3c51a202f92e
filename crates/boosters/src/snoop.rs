//! `snoop`: segments that the link loses are sent again from here, and the sender does not hear of their loss (Balakrishnan et al. 1995, as paul2006 §3
//! describes it).
//!
//! Copies of what has not been acknowledged are kept. A duplicate acknowledgement, or a hole that SACK shows, asks for a segment: it goes again
//! at once, and further duplicates are held back from the sender until the receiver gets on. So does a segment for which nothing comes for twice the link's round
//! trip. After some tries duplicates pass, so that the sender acts. Nothing is acknowledged here that the receiver has not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::{FlowKey, Ip},
    packet::Packet,
    tcp::{Tcp, flags, is_after},
};

/// What is kept, and how often it goes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of segments that are kept, of all connections. Default 1 MiB.
    pub cache: usize,
    /// Times that a segment goes again, 1 to 20. Default 5.
    pub tries: u8,
    /// Connections that are known at a time. Default 1024.
    pub flows_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cache: 1 << 20,
            tries: 5,
            flows_max: 1024,
        }
    }
}

/// The link's round trip before it is measured, and the least time after which a segment goes again.
const RTT_UNKNOWN: Duration = Duration::from_millis(300);
const TIMEOUT_MIN: Duration = Duration::from_millis(40);
/// What a segment that is kept costs beyond its bytes.
const PLACE: usize = 128;
/// Segments that one acknowledgement brings again at most.
const AT_ONCE: usize = 16;

/// Sends again in the place of senders.
#[derive(Debug)]
pub struct Snoop {
    config: Config,
    flows: Flows<Flow>,
    /// When something of which connection goes again unasked.
    due: BTreeSet<(Duration, FlowKey)>,
    bytes: usize,
    again: u64,
    unasked: u64,
    held_back: u64,
    given_up: u64,
}

/// A connection of which our host is the sender.
#[derive(Debug, Default)]
struct Flow {
    /// By their numbers, from `base` on.
    kept: BTreeMap<u64, Kept>,
    /// A number near which all others are, so that they can be told in order.
    base: Option<u64>,
    acked: Option<u64>,
    window: u16,
    rtt: Option<Duration>,
    due: Option<Duration>,
}

#[derive(Debug)]
struct Kept {
    packet: Packet,
    end: u64,
    sent: Duration,
    tries: u8,
    /// Our host has sent it more than once, or we have: its acknowledgement measures nothing.
    repeated: bool,
}

impl Flow {
    fn expand(&mut self, seq: u32) -> u64 {
        let base = *self.base.get_or_insert((1 << 40) | u64::from(seq));
        let ahead = i64::from(seq.wrapping_sub(base as u32) as i32);
        let full = base.saturating_add_signed(ahead);
        self.base = Some(base.max(full));
        full
    }

    fn timeout(&self) -> Duration {
        (self.rtt.unwrap_or(RTT_UNKNOWN) * 2).max(TIMEOUT_MIN)
    }

    fn bytes(&self) -> usize {
        self.kept
            .values()
            .map(|kept| kept.packet.bytes.len() + PLACE)
            .sum()
    }
}

impl Snoop {
    /// Keeps nothing yet. Values out of range are brought into it.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            flows: Flows::new(config.flows_max),
            config: Config {
                tries: config.tries.clamp(1, 20),
                ..config
            },
            due: BTreeSet::new(),
            bytes: 0,
            again: 0,
            unasked: 0,
            held_back: 0,
            given_up: 0,
        }
    }

    fn forget(&mut self, key: &FlowKey) {
        if let Some(flow) = self.flows.remove(key) {
            self.drop_flow(key, &flow);
        }
    }

    fn drop_flow(&mut self, key: &FlowKey, flow: &Flow) {
        self.bytes -= flow.bytes();
        if let Some(due) = flow.due {
            self.due.remove(&(due, *key));
        }
    }

    fn keep(&mut self, now: Duration, packet: &Packet, tcp: &Tcp<'_>) {
        let key = tcp.ip.key();
        let (_, gone) = self.flows.entry(key, Flow::default);
        if let Some((key, flow)) = gone {
            self.drop_flow(&key, &flow);
        }
        let Some(flow) = self.flows.get(&key) else {
            return;
        };
        let seq = flow.expand(tcp.seq);
        let end = seq + u64::from(tcp.seq_len());
        if flow.acked.is_some_and(|acked| end <= acked) {
            return;
        }
        let kept = Kept {
            packet: packet.clone(),
            end,
            sent: now,
            tries: self.config.tries,
            repeated: false,
        };
        self.bytes += packet.bytes.len() + PLACE;
        if let Some(before) = flow.kept.insert(seq, kept) {
            self.bytes -= before.packet.bytes.len() + PLACE;
            if let Some(kept) = flow.kept.get_mut(&seq) {
                kept.repeated = true;
            }
        }
        self.schedule(&key);
        while self.bytes > self.config.cache {
            match self.flows.oldest() {
                Some(oldest) => self.forget(&oldest),
                None => return,
            }
        }
    }

    /// When the first segment of a connection goes again.
    fn schedule(&mut self, key: &FlowKey) {
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        if let Some(due) = flow.due.take() {
            self.due.remove(&(due, *key));
        }
        let timeout = flow.timeout();
        let first = flow.kept.first_key_value().map(|(_, kept)| kept);
        let first = first.filter(|kept| kept.tries > 0);
        let due = first.map(|kept| {
            let tries = u32::from(self.config.tries - kept.tries).min(6);
            kept.sent + timeout * (1 << tries)
        });
        flow.due = due;
        if let Some(due) = due {
            self.due.insert((due, *key));
        }
    }

    /// Whether the acknowledgement is to go on to the sender.
    fn hear(&mut self, now: Duration, tcp: &Tcp<'_>, out: &mut Out) -> bool {
        let key = tcp.ip.key().reversed();
        let Some(flow) = self.flows.get(&key) else {
            return true;
        };
        let ack = flow.expand(tcp.ack);
        let acked = *flow.acked.get_or_insert(ack);
        if ack > acked {
            self.on_progress(now, &key, ack, tcp.window);
        } else if ack < acked || flow.window != tcp.window {
            flow.window = tcp.window;
            return true;
        }
        let holes = self.holes(&key, ack, tcp);
        let duplicate = ack == acked;
        let asked = if duplicate && holes.is_empty() {
            vec![ack]
        } else {
            holes
        };
        let mut repaired = false;
        for seq in asked.into_iter().take(AT_ONCE) {
            repaired |= self.send_again(now, &key, seq, out);
        }
        self.schedule(&key);
        let hold = duplicate && repaired;
        self.held_back += u64::from(hold);
        !hold
    }

    fn on_progress(&mut self, now: Duration, key: &FlowKey, ack: u64, window: u16) {
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        flow.acked = Some(ack);
        flow.window = window;
        while let Some(entry) = flow.kept.first_entry()
            && entry.get().end <= ack
        {
            let kept = entry.remove();
            self.bytes -= kept.packet.bytes.len() + PLACE;
            if !kept.repeated {
                let sample = now.saturating_sub(kept.sent);
                let rtt = flow.rtt.get_or_insert(sample);
                *rtt = (*rtt * 7 + sample) / 8;
            }
        }
    }

    /// Segments that are missing before others that have arrived (RFC 2018).
    fn holes(&mut self, key: &FlowKey, ack: u64, tcp: &Tcp<'_>) -> Vec<u64> {
        let Some(option) = tcp.options().find(|option| option.kind == 5) else {
            return Vec::new();
        };
        let Some(flow) = self.flows.get(key) else {
            return Vec::new();
        };
        let word = |bytes: &[u8], at| {
            let word: Option<&[u8; 4]> = bytes.get(at..).and_then(<[u8]>::first_chunk);
            word.map(|word| u32::from_be_bytes(*word))
        };
        let mut ranges = Vec::new();
        for block in option.data.chunks_exact(8) {
            if let (Some(begin), Some(end)) = (word(block, 0), word(block, 4))
                && is_after(end, begin)
            {
                ranges.push((flow.expand(begin), flow.expand(end)));
            }
        }
        let Some(highest) = ranges.iter().map(|(_, end)| *end).max() else {
            return Vec::new();
        };
        let has = |seq: &u64| ranges.iter().any(|(begin, end)| begin <= seq && seq < end);
        let missing = flow.kept.range(ack..highest.max(ack)).map(|(seq, _)| *seq);
        missing.filter(|seq| !has(seq)).collect()
    }

    /// Whether the segment went again, or has just done so.
    fn send_again(&mut self, now: Duration, key: &FlowKey, seq: u64, out: &mut Out) -> bool {
        let Some(flow) = self.flows.get(key) else {
            return false;
        };
        let pause = flow.rtt.unwrap_or(RTT_UNKNOWN);
        let Some(kept) = flow.kept.get_mut(&seq) else {
            return false;
        };
        if kept.repeated && now < kept.sent + pause {
            return kept.tries > 0; // It is under way.
        }
        if kept.tries == 0 {
            self.given_up += 1;
            return false;
        }
        kept.tries -= 1;
        kept.repeated = true;
        kept.sent = now;
        self.again += 1;
        let mut packet = kept.packet.clone();
        packet.since = now;
        out.down.push(packet);
        true
    }
}

impl Booster for Snoop {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) {
            if tcp.has(flags::SYN | flags::RST) {
                self.forget(&tcp.ip.key());
            } else if !tcp.data().is_empty() && !tcp.has(flags::URG) {
                self.keep(now, &packet, &tcp);
            }
        }
        out.down.push(packet);
    }

    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let mut passes = true;
        if let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) {
            if tcp.has(flags::SYN | flags::RST) {
                self.forget(&tcp.ip.key().reversed());
            } else if tcp.is_plain_ack() {
                passes = self.hear(now, &tcp, out);
            } else if tcp.has(flags::ACK) {
                let key = tcp.ip.key().reversed();
                if let Some(flow) = self.flows.get(&key) {
                    let ack = flow.expand(tcp.ack);
                    if flow.acked.is_none_or(|acked| ack > acked) {
                        self.on_progress(now, &key, ack, tcp.window);
                        self.schedule(&key);
                    }
                }
            }
        }
        if passes {
            out.up.push(packet);
        }
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        while let Some(&(at, key)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let Some(flow) = self.flows.get(&key) else {
                continue;
            };
            flow.due = None;
            let first = flow.kept.first_key_value().map(|(seq, _)| *seq);
            if let Some(seq) = first
                && self.send_again(now, &key, seq, out)
            {
                self.unasked += 1;
            }
            self.schedule(&key);
            if self.due.first() == Some(&(at, key)) {
                return; // Nothing more can be done now.
            }
        }
    }

    fn deadline(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("again", self.again);
        each("unasked", self.unasked);
        each("held_back", self.held_back);
        each("given_up", self.given_up);
        each("kept_bytes", self.bytes as u64);
        each("connections", self.flows.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::tests::{answer, segment, with_sack};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn down(snoop: &mut Snoop, ms: u64, bytes: Vec<u8>) -> Out {
        let mut out = Out::default();
        snoop.down(at(ms), Packet::new(bytes, at(ms)), &mut out);
        out
    }

    fn up(snoop: &mut Snoop, ms: u64, bytes: Vec<u8>) -> Out {
        let mut out = Out::default();
        snoop.up(at(ms), Packet::new(bytes, at(ms)), &mut out);
        out
    }

    fn data(seq: u32) -> Vec<u8> {
        segment(seq, 1, flags::ACK, &[seq as u8; 100])
    }

    fn ack(ack: u32) -> Vec<u8> {
        answer(1, ack, flags::ACK, &[])
    }

    fn begun() -> Snoop {
        let mut snoop = Snoop::new(Config::default());
        for number in 0..10 {
            down(
                &mut snoop,
                u64::from(number),
                data((u32::MAX - 300).wrapping_add(number * 100)),
            );
        }
        snoop
    }

    #[test]
    fn a_lost_segment_goes_again_and_duplicates_are_held_back() {
        let mut snoop = begun();
        let lost = (u32::MAX - 300).wrapping_add(200);
        assert_eq!(up(&mut snoop, 50, ack(lost)).up.len(), 1);
        let out = up(&mut snoop, 51, ack(lost));
        assert_eq!((out.up.len(), out.down.len()), (0, 1));
        assert_eq!(out.down[0].bytes, data(lost));
        for _ in 0..5 {
            let out = up(&mut snoop, 52, ack(lost));
            assert_eq!((out.up.len(), out.down.len()), (0, 0));
        }
        let all = (u32::MAX - 300).wrapping_add(1000);
        assert_eq!(up(&mut snoop, 100, ack(all)).up.len(), 1);
        assert_eq!((snoop.bytes, snoop.deadline()), (0, None));
        assert_eq!((snoop.again, snoop.held_back), (1, 6));
    }

    #[test]
    fn holes_that_selective_acknowledgements_show_are_filled() {
        let mut snoop = begun();
        let begin = u32::MAX - 300;
        let n = |number: u32| begin.wrapping_add(number * 100);
        up(&mut snoop, 50, ack(n(1)));
        let sacked = with_sack(&ack(n(1)), &[(n(2), n(3)), (n(5), n(6))]);
        let out = up(&mut snoop, 51, sacked);
        let again: Vec<_> = out.down.iter().map(|packet| packet.bytes.clone()).collect();
        assert_eq!(again, [data(n(1)), data(n(3)), data(n(4))]);
    }

    #[test]
    fn what_nothing_comes_for_goes_again_a_few_times_and_then_the_sender_hears_of_it() {
        let mut snoop = begun();
        let mut sent = 0;
        while let Some(now) = snoop.deadline() {
            let mut out = Out::default();
            snoop.on_time(now, &mut out);
            sent += out.down.len();
            assert!(now < Duration::from_secs(120));
        }
        assert_eq!(sent, 5);
        let first = u32::MAX - 300;
        up(&mut snoop, 200_000, ack(first));
        let out = up(&mut snoop, 200_001, ack(first));
        assert_eq!((out.up.len(), out.down.len()), (1, 0));
    }

    #[test]
    fn memory_is_bounded_and_hostile_numbers_do_no_harm() {
        let mut snoop = Snoop::new(Config {
            cache: 20_000,
            flows_max: 4,
            ..Config::default()
        });
        let mut state = 1u64;
        for step in 0..50_000u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (a, b, f) = (
                (state >> 32) as u32,
                (state >> 11) as u32,
                (state >> 56) as u8,
            );
            let len = (state >> 40) as usize % 300;
            let mut mine = segment(a, b, f, &[0; 300][..len]);
            mine[20 + 1] = (state >> 3) as u8 % 8;
            down(&mut snoop, step, mine);
            let mut theirs = with_sack(&answer(b, a, f, &[]), &[(a, b), (b, a)]);
            theirs[20 + 3] = (state >> 3) as u8 % 8;
            theirs.truncate(theirs.len() - (state >> 60) as usize % 3);
            let out = up(&mut snoop, step, theirs);
            assert!(out.down.len() <= AT_ONCE);
            if let Some(now) = snoop
                .deadline()
                .filter(|at| *at <= Duration::from_millis(step))
            {
                snoop.on_time(now, &mut Out::default());
            }
            assert!(snoop.bytes <= 20_000 && snoop.due.len() <= 4);
        }
    }
}
