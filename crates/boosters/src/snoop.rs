//! `snoop`: segments that the link loses are sent again from here, and the sender does not hear of their loss (Balakrishnan et al. 1995, as paul2006 §3
//! describes it).
//!
//! Copies of what has left our queue and has not been acknowledged are kept. What SACK shows to be missing though something that left later has arrived,
//! or a duplicate acknowledgement without SACK asks for, goes again at once, before all that waits, and duplicates are held back from the sender until the
//! receiver gets on; acknowledgements that say something else, too, go on without their SACK. So goes the first segment if nothing comes for twice the link's
//! round trip. After some tries, or some round trips, duplicates pass, so that the sender acts. Nothing is acknowledged here that the receiver has not.
//!
//! What our queue drops has not left it: its sender hears of it as of any congestion, or it would fill the queue for ever.
//!
//! Duplicates that ask for nothing pass: those that say that something came twice (D-SACK, RFC 2883), and those of a closed window, which answer probes.

mod kept;

use std::{collections::BTreeSet, time::Duration};

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::FlowKey,
    packet::Packet,
    rule::Path,
    tcp::{self, Tcp, flags, is_after},
};
use kept::{Flow, Kept, Missing};

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
/// Duplicates are held back from a sender for so many round trips at most, or for so long, which is what senders wait for at least before they act
/// unasked (Linux; RFC 6298 has a second).
const HOLD: u32 = 4;
const HOLD_MIN: Duration = Duration::from_millis(200);
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
    /// The link's round trip.
    path: Duration,
    again: u64,
    unasked: u64,
    held_back: u64,
    given_up: u64,
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
            path: Path::default().rtt,
            again: 0,
            unasked: 0,
            held_back: 0,
            given_up: 0,
        }
    }

    /// From when a segment leaves the queue to when its acknowledgement comes.
    fn round_trip(&self, flow: &Flow) -> Duration {
        flow.rtt.unwrap_or(self.path).max(self.path)
    }

    fn timeout(&self, flow: &Flow) -> Duration {
        (self.round_trip(flow) * 2).max(TIMEOUT_MIN)
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
        // Its number has been there before: our host sends it again.
        let repeated = seq < flow.sent;
        flow.sent = flow.sent.max(end);
        let is_needed = flow.acked.is_none_or(|acked| end > acked);
        if let Some((key, flow)) = gone {
            self.drop_flow(&key, &flow);
        }
        if is_needed {
            let kept = Kept {
                packet: packet.clone(),
                end,
                sent: now,
                tries: self.config.tries,
                since: None,
                repeated,
                arrived: false,
                order: 0,
            };
            self.insert(&key, seq, kept);
        }
    }

    fn insert(&mut self, key: &FlowKey, seq: u64, kept: Kept) {
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        self.bytes += kept.cost();
        if let Some(before) = flow.insert(seq, kept) {
            self.bytes -= before.cost();
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
        // Behind a hole that is not ours all may have arrived.
        let first = (flow.kept.first_key_value())
            .filter(|(seq, kept)| kept.tries > 0 && flow.acked.is_none_or(|acked| **seq <= acked))
            .map(|(_, kept)| kept);
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

    /// What becomes of an acknowledgement.
    fn hear(&mut self, now: Duration, tcp: &Tcp<'_>, out: &mut Out) -> Verdict {
        let key = tcp.ip.key().reversed();
        let Some(ack) = self.advance(now, &key, tcp) else {
            return Verdict::Passes;
        };
        let Some(flow) = self.flows.get(&key) else {
            return Verdict::Passes;
        };
        let changed = std::mem::replace(&mut flow.window, tcp.window) != tcp.window;
        let duplicate = !ack.is_news && !changed;
        if tcp.window == 0 || is_dsack(tcp) {
            return Verdict::Passes;
        }
        let mut missing = flow.missing(ack.number, tcp);
        if duplicate && missing == Missing::default() {
            // Without SACK a duplicate says nothing but that something has arrived.
            flow.on_duplicate(ack.number);
            missing.kept.push(ack.number);
        }
        let (mut repaired, mut left) = (!missing.others, AT_ONCE);
        for seq in missing.kept.iter().copied() {
            let again = self.again;
            repaired &= left > 0 && self.send_again(now, &key, seq, out);
            left -= usize::from(self.again > again);
        }
        self.schedule(&key);
        match repaired && !missing.kept.is_empty() {
            true if duplicate => Verdict::Held,
            true => Verdict::Cleared,
            false => Verdict::Passes,
        }
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
        let longest = self.path * FARTHER;
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        flow.acked = Some(ack);
        let (mut newest, mut repeated) = (None, false);
        while let Some(entry) = flow.kept.first_entry()
            && entry.get().end <= ack
        {
            let kept = entry.remove();
            self.bytes -= kept.cost();
            repeated |= kept.repeated;
            flow.on_arrival(kept.order, kept.repeated);
            newest = Some(kept).filter(|kept| kept.end == ack);
        }
        // Those before may have been waited for.
        if let Some(kept) = newest.filter(|_| !repeated) {
            let sample = now.saturating_sub(kept.sent).min(longest);
            let rtt = flow.rtt.get_or_insert(sample);
            *rtt = (*rtt * 7 + sample) / 8;
        }
    }

    /// Whether the segment is under way once more, or still.
    fn send_again(&mut self, now: Duration, key: &FlowKey, seq: u64, out: &mut Out) -> bool {
        let Some(flow) = self.flows.get(key) else {
            return false;
        };
        let pause = flow.rtt.unwrap_or(self.path).max(self.path);
        let Some(kept) = flow.kept.get(&seq) else {
            return false;
        };
        let in_time = now < kept.since.unwrap_or(now) + (pause * HOLD).max(HOLD_MIN);
        if now < kept.sent + pause && !flow.is_overtaken(kept) {
            return in_time;
        }
        if kept.tries == 0 {
            self.given_up += 1;
            return false;
        }
        let order = flow.next_order();
        let Some(kept) = flow.kept.get_mut(&seq) else {
            return false;
        };
        kept.since.get_or_insert(now);
        kept.tries -= 1;
        kept.repeated = true;
        (kept.sent, kept.order) = (now, order);
        self.again += 1;
        let mut packet = kept.packet.clone();
        (packet.since, packet.urgent) = (now, true);
        out.down.push(packet);
        in_time
    }
}

/// An acknowledgement, and whether it is of more than the one before.
struct Ack {
    number: u64,
    is_news: bool,
}

/// What becomes of an acknowledgement on its way to the sender.
enum Verdict {
    Passes,
    /// It says something that is not of what is missing, so that it goes on without that.
    Cleared,
    Held,
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
    fn leaving(&mut self, now: Duration, packet: &Packet) {
        if let Some(tcp) = Tcp::read(&packet.bytes) {
            if tcp.has(flags::SYN | flags::RST) {
                self.forget(&tcp.ip.key());
            } else if !tcp.data().is_empty() && !tcp.has(flags::URG) {
                self.keep(now, packet, &tcp);
            }
        }
    }

    fn up(&mut self, now: Duration, mut packet: Packet, out: &mut Out) {
        let mut verdict = Verdict::Passes;
        if let Some(tcp) = Tcp::read(&packet.bytes) {
            let key = tcp.ip.key().reversed();
            if tcp.has(flags::SYN | flags::RST) {
                self.forget(&key);
            } else if tcp.is_plain_ack() {
                verdict = self.hear(now, &tcp, out);
            } else if tcp.has(flags::ACK) {
                self.advance(now, &key, &tcp);
            }
        }
        match verdict {
            Verdict::Held => {
                self.held_back += 1;
                return;
            }
            Verdict::Cleared => tcp::clear_sack(&mut packet.bytes),
            Verdict::Passes => {}
        }
        out.up.push(packet);
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
        self.path = path.rtt;
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
