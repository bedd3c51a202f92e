//! `snoop`: segments that the link loses are sent again from here, and the sender does not hear of their loss (Balakrishnan et al. 1995, as paul2006 §3
//! describes it).
//!
//! Copies of what has not been acknowledged are kept. A duplicate acknowledgement, or a hole that SACK shows, asks for a segment: it goes again
//! at once, and further duplicates are held back from the sender until the receiver gets on. So does a segment for which nothing comes for twice the link's round
//! trip. After some tries, or some round trips, duplicates pass, so that the sender acts. Nothing is acknowledged here that the receiver has not.
//!
//! Duplicates that ask for nothing pass: those that say that something came twice (D-SACK, RFC 2883), and those of a closed window, which answer probes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::FlowKey,
    packet::Packet,
    rule::Path,
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

/// The least time after which a segment goes again unasked: receivers wait with acknowledgements for up to so long (RFC 9293 §3.8.6.3 allows 500 ms, those in
/// use take 40 to 200).
const TIMEOUT_MIN: Duration = Duration::from_millis(200);
/// A round trip beyond the link is taken to be at most so many of the link's: what is measured has stalls in it.
const FARTHER: u32 = 4;
/// Duplicates are held back from a sender for so many round trips at most.
const HOLD: u32 = 4;
/// Numbers farther from each other than this are not of the same connection (RFC 7323 §2.3).
const FAR: i64 = 1 << 30;
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
    /// The link's round trip, and how long packets wait before it.
    path: (Duration, Duration),
    again: u64,
    unasked: u64,
    held_back: u64,
    given_up: u64,
}

/// A connection of which our host is the sender. Its numbers are counted on, beyond 2^32.
#[derive(Debug, Default)]
struct Flow {
    /// By their numbers.
    kept: BTreeMap<u64, Kept>,
    /// After the highest byte that our host has sent.
    sent: u64,
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
    /// When it went again first, if it has.
    since: Option<Duration>,
    /// Our host has sent it more than once, or we have: its acknowledgement measures nothing (Karn's rule, RFC 6298 §3).
    repeated: bool,
}

impl Flow {
    fn new(seq: u32) -> Self {
        Self {
            sent: (1 << 40) | u64::from(seq),
            ..Self::default()
        }
    }

    /// The number near those that were sent; `None` if it is near none.
    fn near(&self, seq: u32) -> Option<u64> {
        let ahead = i64::from(seq.wrapping_sub(self.sent as u32) as i32);
        (ahead.abs() <= FAR).then(|| self.sent.saturating_add_signed(ahead))
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
            path: (Path::default().rtt, Duration::ZERO),
            again: 0,
            unasked: 0,
            held_back: 0,
            given_up: 0,
        }
    }

    /// From when a segment goes into the queue to when its acknowledgement comes.
    fn round_trip(&self, flow: &Flow) -> Duration {
        let (rtt, queue) = self.path;
        flow.rtt.unwrap_or(rtt).max(rtt) + queue
    }

    fn timeout(&self, flow: &Flow) -> Duration {
        let (_, queue) = self.path;
        ((self.round_trip(flow) - queue) * 2 + queue).max(TIMEOUT_MIN)
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
        if self
            .flows
            .peek(&key)
            .is_some_and(|flow| flow.near(tcp.seq).is_none())
        {
            self.forget(&key);
        }
        let (flow, gone) = self.flows.entry(key, || Flow::new(tcp.seq));
        let seq = flow.near(tcp.seq).unwrap_or(flow.sent);
        let end = seq + u64::from(tcp.seq_len());
        flow.sent = flow.sent.max(end);
        let is_needed = flow.acked.is_none_or(|acked| end > acked);
        if let Some((key, flow)) = gone {
            self.drop_flow(&key, &flow);
        }
        if is_needed {
            self.insert(now, &key, seq, end, packet);
        }
    }

    fn insert(&mut self, now: Duration, key: &FlowKey, seq: u64, end: u64, packet: &Packet) {
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        let kept = Kept {
            packet: packet.clone(),
            end,
            sent: now,
            tries: self.config.tries,
            since: None,
            repeated: false,
        };
        self.bytes += packet.bytes.len() + PLACE;
        if let Some(before) = flow.kept.insert(seq, kept) {
            self.bytes -= before.packet.bytes.len() + PLACE;
            if let Some(kept) = flow.kept.get_mut(&seq) {
                kept.repeated = true;
            }
        }
        self.schedule(key);
        while self.bytes > self.config.cache {
            match self.flows.oldest() {
                Some(oldest) => self.forget(&oldest),
                None => return,
            }
        }
    }

    /// When the first segment of a connection goes again.
    fn schedule(&mut self, key: &FlowKey) {
        let Some(flow) = self.flows.peek(key) else {
            return;
        };
        let timeout = self.timeout(flow);
        let first = flow.kept.first_key_value().map(|(_, kept)| kept);
        let first = first.filter(|kept| kept.tries > 0);
        let due = first.map(|kept| {
            let tries = u32::from(self.config.tries - kept.tries).min(6);
            kept.sent + timeout * (1 << tries)
        });
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut flow.due, due) {
            self.due.remove(&(before, *key));
        }
        if let Some(due) = due {
            self.due.insert((due, *key));
        }
    }

    /// Whether the acknowledgement is to go on to the sender.
    fn hear(&mut self, now: Duration, tcp: &Tcp<'_>, out: &mut Out) -> bool {
        let key = tcp.ip.key().reversed();
        let Some(ack) = self.advance(now, &key, tcp) else {
            return true;
        };
        let Some(flow) = self.flows.get(&key) else {
            return true;
        };
        let changed = std::mem::replace(&mut flow.window, tcp.window) != tcp.window;
        let duplicate = !ack.is_news && !changed;
        let asks = ack.is_news || duplicate;
        if !asks || tcp.window == 0 || is_dsack(tcp) {
            return true;
        }
        let holes = self.holes(&key, ack.number, tcp);
        let asked = if duplicate && holes.is_empty() {
            vec![ack.number]
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

    /// An acknowledgement of what was sent, and not older than another; of what nobody has seen there is no more to be said.
    fn advance(&mut self, now: Duration, key: &FlowKey, tcp: &Tcp<'_>) -> Option<Ack> {
        let flow = self.flows.get(key)?;
        let number = flow.near(tcp.ack).filter(|ack| *ack <= flow.sent);
        let Some(number) = number else {
            self.forget(key);
            return None;
        };
        let acked = *flow.acked.get_or_insert(number);
        if number > acked {
            flow.window = tcp.window;
            self.on_progress(now, key, number);
            self.schedule(key);
        }
        (number >= acked).then_some(Ack {
            number,
            is_news: number > acked,
        })
    }

    fn on_progress(&mut self, now: Duration, key: &FlowKey, ack: u64) {
        let longest = self.path.0 * FARTHER + self.path.1;
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        flow.acked = Some(ack);
        let (mut newest, mut repeated) = (None, false);
        while let Some(entry) = flow.kept.first_entry()
            && entry.get().end <= ack
        {
            let kept = entry.remove();
            self.bytes -= kept.packet.bytes.len() + PLACE;
            repeated |= kept.repeated;
            newest = Some(kept).filter(|kept| kept.end == ack);
        }
        // Those before may have been waited for.
        if let Some(kept) = newest.filter(|_| !repeated) {
            let sample = now.saturating_sub(kept.sent).min(longest);
            let rtt = flow.rtt.get_or_insert(sample);
            *rtt = (*rtt * 7 + sample) / 8;
        }
    }

    /// Segments that are missing before others that have arrived (RFC 2018).
    fn holes(&self, key: &FlowKey, ack: u64, tcp: &Tcp<'_>) -> Vec<u64> {
        let Some(flow) = self.flows.peek(key) else {
            return Vec::new();
        };
        let ranges: Vec<(u64, u64)> = tcp
            .sack()
            .filter_map(|(begin, end)| Some((flow.near(begin)?, flow.near(end)?)))
            .filter(|(begin, end)| begin < end && *end <= flow.sent)
            .collect();
        let Some(highest) = ranges.iter().map(|(_, end)| *end).max() else {
            return Vec::new();
        };
        let has = |seq: &u64| ranges.iter().any(|(begin, end)| begin <= seq && seq < end);
        let missing = flow.kept.range(ack..highest.max(ack)).map(|(seq, _)| *seq);
        missing.filter(|seq| !has(seq)).collect()
    }

    /// Whether the segment went again, or has just done so.
    fn send_again(&mut self, now: Duration, key: &FlowKey, seq: u64, out: &mut Out) -> bool {
        let Some(pause) = self.flows.peek(key).map(|flow| self.round_trip(flow)) else {
            return false;
        };
        let flow = self.flows.get(key);
        let Some(kept) = flow.and_then(|flow| flow.kept.get_mut(&seq)) else {
            return false;
        };
        let since = *kept.since.get_or_insert(now);
        let in_time = now < since + pause * HOLD;
        if kept.repeated && now < kept.sent + pause {
            return kept.tries > 0 && in_time; // It is under way.
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
        in_time
    }
}

/// An acknowledgement, and whether it is of more than the one before.
struct Ack {
    number: u64,
    is_news: bool,
}

/// Whether its first range is of bytes that came twice (RFC 2883 §4).
fn is_dsack(tcp: &Tcp<'_>) -> bool {
    let mut ranges = tcp.sack();
    let Some((begin, end)) = ranges.next() else {
        return false;
    };
    let within = |(from, to)| !is_after(from, begin) && !is_after(end, to);
    !is_after(end, tcp.ack) || ranges.next().is_some_and(within)
}

impl Booster for Snoop {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if let Some(tcp) = Tcp::read(&packet.bytes) {
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
        if let Some(tcp) = Tcp::read(&packet.bytes) {
            let key = tcp.ip.key().reversed();
            if tcp.has(flags::SYN | flags::RST) {
                self.forget(&key);
            } else if tcp.is_plain_ack() {
                passes = self.hear(now, &tcp, out);
            } else if tcp.has(flags::ACK) {
                self.advance(now, &key, &tcp);
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
            if let Some(seq) = first {
                let before = self.again;
                self.send_again(now, &key, seq, out);
                self.unasked += self.again - before;
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

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.path = (path.rtt, path.queue);
    }

    fn reset(&mut self) {
        self.flows.clear();
        self.due.clear();
        self.bytes = 0;
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
mod tests;
