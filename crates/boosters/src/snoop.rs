//! `snoop`: retransmits segments lost on the link locally, and hides the loss from the sender
//! (Balakrishnan et al. 1995, as described in paul2006 §3).
//!
//! The booster keeps copies of unacknowledged segments that have left the queue. It retransmits one
//! at once, ahead of all queued packets, in two cases. Either SACK shows it missing although a
//! segment that left later has arrived, or a duplicate acknowledgement without SACK requests it.
//! Duplicates are held back from the sender until the receiver makes progress. Acknowledgements
//! with other news pass without their SACK. The first segment is also retransmitted if no
//! acknowledgement comes for twice the link's round trip. After some tries, or some round trips,
//! duplicates pass, so that the sender acts. The booster never acknowledges data that the receiver
//! does not have.
//!
//! Segments dropped by the local queue have not left it. Their senders see the loss as ordinary
//! congestion, or they would fill the queue for ever.
//!
//! Duplicates that request nothing pass: those that report a second arrival (D-SACK, RFC 2883), and
//! those of a closed window, which answer probes.

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

/// Settings of the booster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum bytes of kept segments, of all connections. Default 1 MiB.
    pub cache: usize,
    /// Maximum retransmissions of a segment, 1 to 20. Default 5.
    pub tries: u8,
    /// Connections tracked at a time. Default 1024.
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

/// Minimum retransmission timeout: receivers delay acknowledgements for up to this time (RFC 9293
/// §3.8.6.3 allows 500 ms, implementations take 40 to 200).
const TIMEOUT_MIN: Duration = Duration::from_millis(200);
/// Maximum assumed round trip beyond the link, in round trips of the link: measurements contain
/// stalls.
const FARTHER: u32 = 4;
/// Assumed round trip before the first measurement, where that of the link is unknown (RFC 6298
/// §2.1).
const ROUND_TRIP_FIRST: Duration = Duration::from_secs(1);
/// Maximum time for which duplicates are held back from a sender, in round trips and absolute. The
/// latter is the minimum retransmission timeout of senders (Linux; RFC 6298 has a second).
const HOLD: u32 = 4;
const HOLD_MIN: Duration = Duration::from_millis(200);
/// Maximum retransmissions triggered by one acknowledgement.
const AT_ONCE: usize = 16;

/// Retransmits on behalf of senders.
#[derive(Debug)]
pub struct Snoop {
    config: Config,
    flows: Flows<Flow>,
    /// Times of the next retransmission timeout of each connection.
    due: BTreeSet<(Duration, FlowKey)>,
    bytes: usize,
    /// Round trip of the link.
    path: Duration,
    again: u64,
    unsolicited: u64,
    held_back: u64,
    given_up: u64,
}

impl Snoop {
    /// Creates a booster without state. Values out of range are clamped.
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
            unsolicited: 0,
            held_back: 0,
            given_up: 0,
        }
    }

    /// Returns the time from a segment's leaving the queue to its acknowledgement.
    fn round_trip(&self, flow: &Flow) -> Duration {
        let first = match self.path {
            Path::RTT_UNKNOWN => ROUND_TRIP_FIRST,
            known => known,
        };
        flow.rtt.unwrap_or(first).max(self.path)
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
        // An old number: the local host retransmits it.
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

    /// Sets the retransmission timer of a connection.
    fn schedule(&mut self, key: &FlowKey) {
        let Some(flow) = self.flows.peek(key) else {
            return;
        };
        let timeout = self.timeout(flow);
        // Behind a hole with segments that were not kept, all may have arrived.
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

    /// Handles an acknowledgement, and decides if it passes.
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
            // Without SACK a duplicate only shows that some segment has arrived.
            flow.on_duplicate(ack.number);
            missing.kept.push(ack.number);
        }
        let (mut repaired, mut left) = (!missing.others, AT_ONCE);
        for seq in missing.kept.iter().copied() {
            let again = self.again;
            repaired &= left > 0 && self.retransmit(now, &key, seq, out);
            left -= usize::from(self.again > again);
        }
        self.schedule(&key);
        match repaired && !missing.kept.is_empty() {
            true if duplicate => Verdict::Held,
            true => Verdict::Cleared,
            false => Verdict::Passes,
        }
    }

    /// Returns an acknowledgement of data that was sent, not older than the last one. One of unseen
    /// data resets the connection's state.
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
        let longest = match self.path {
            Path::RTT_UNKNOWN => Duration::MAX,
            known => known * FARTHER,
        };
        let Some(flow) = self.flows.get(key) else {
            return;
        };
        flow.acked = Some(ack);
        let (mut newest, mut repeated) = (None, false);
        while let Some(kept) = flow.take_acked(ack) {
            self.bytes -= kept.cost();
            repeated |= kept.repeated;
            flow.on_arrival(kept.order, kept.repeated);
            newest = Some(kept).filter(|kept| kept.end == ack);
        }
        // The acknowledgement may have waited for earlier ones.
        if let Some(kept) = newest.filter(|_| !repeated) {
            let sample = now.saturating_sub(kept.sent).min(longest);
            let rtt = flow.rtt.get_or_insert(sample);
            *rtt = (*rtt * 7 + sample) / 8;
        }
    }

    /// Retransmits a segment. Returns whether it is in flight again, or still.
    fn retransmit(&mut self, now: Duration, key: &FlowKey, seq: u64, out: &mut Out) -> bool {
        let Some(pause) = self.flows.peek(key).map(|flow| self.round_trip(flow)) else {
            return false;
        };
        let Some(flow) = self.flows.get(key) else {
            return false;
        };
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

/// Acknowledgement, with a flag for new data.
struct Ack {
    number: u64,
    is_news: bool,
}

/// Fate of an acknowledgement for the sender.
enum Verdict {
    Passes,
    /// Passed on without its SACK: it has other news.
    Cleared,
    Held,
}

/// Returns whether its first range reports bytes received twice (RFC 2883 §4).
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
                self.retransmit(now, &key, seq, out);
                self.unsolicited += self.again - before;
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
        each("retransmitted", self.again);
        each("unsolicited", self.unsolicited);
        each("held_back", self.held_back);
        each("given_up", self.given_up);
        each("kept_bytes", self.bytes as u64);
        each("connections", self.flows.len() as u64);
    }
}

#[cfg(test)]
mod tests;
