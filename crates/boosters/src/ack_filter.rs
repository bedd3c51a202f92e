//! `ack_filter`: drops acknowledgements that a later one supersedes, to save a slow return path
//! (packet control, paul2006 §3).
//!
//! An acknowledgement older than a waiting one, or than one queued within the last round trip, is
//! dropped. A waiting plain acknowledgement is replaced in its place by a newer one of the same
//! connection. Duplicates of one number signal a loss. While others wait, enough of them pass to
//! signal it: the first `high`, then one in `high - low`. One per round trip always passes, to
//! answer keepalives. An acknowledgement passes unchanged if it has new SACK ranges, bytes, flags,
//! other options, a congestion mark or a closed window. One with a wrong checksum passes, too, and
//! changes no state.

use std::{cmp::Ordering, time::Duration};

use crate::{
    booster::Out,
    ecn::Ecn,
    flow::Flows,
    ip::{FlowKey, Ip},
    packet::Packet,
    queue::{AtQueue, Queue},
    rule::Path,
    tcp::{Tcp, flags, is_after},
};

/// Minimum assumed round trip.
const PATIENCE_MIN: Duration = Duration::from_millis(20);

/// Settings of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Beyond `high`, one duplicate in `high - low` passes, and at most every second one; 1 to 255.
    /// Default 2.
    pub low: u8,
    /// Number of duplicates that all pass, `low` to 255 and no less than 3, as fast retransmit
    /// needs (RFC 5681 §3.2). Default 8.
    pub high: u8,
    /// Connections tracked at a time. Default 4096.
    pub flows_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            low: 2,
            high: 8,
            flows_max: 4096,
        }
    }
}

/// Drops superseded acknowledgements.
#[derive(Debug)]
pub struct AckFilter {
    limits: Limits,
    flows: Flows<Flow>,
    /// State that the connection takes on once the packet that has just passed is queued, if there
    /// is room for it.
    pending: Option<(FlowKey, Seen, bool)>,
    old: u64,
    replaced: u64,
    thinned: u64,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    high: u32,
    /// Beyond them one in this number passes.
    step: u32,
    /// About a round trip: within this time an old number brings no news.
    patience: Duration,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    /// Newest one that was queued.
    last: Option<Seen>,
    sack: Vec<u8>,
    duplicates: u32,
    /// Times of the last duplicate, and of the last one that passed.
    heard: Duration,
    passed: Duration,
    /// Plain acknowledgement waiting in the queue.
    standing: Option<u64>,
}

/// Content of an acknowledgement, its time, and its number in the queue.
#[derive(Clone, Copy, Debug)]
struct Seen {
    ack: u32,
    window: u16,
    at: Duration,
    number: Option<u64>,
}

enum Verdict {
    /// Passed on. `stands`: a later one may replace it in the queue.
    Passes {
        stands: bool,
    },
    Old,
    Thinned,
    /// Newer than this waiting one, whose place it may take.
    Replaces(u64),
}

const PASSES: Verdict = Verdict::Passes { stands: false };

impl AckFilter {
    /// Creates a filter without connections. Values out of range are clamped.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let high = config.high.max(config.low).max(3);
        Self {
            limits: Limits {
                high: high.into(),
                step: u32::from(high - config.low.min(high - 1)).max(2),
                patience: Path::default().rtt,
            },
            flows: Flows::new(config.flows_max),
            pending: None,
            old: 0,
            replaced: 0,
            thinned: 0,
        }
    }
}

fn sack(tcp: &Tcp<'_>) -> Vec<u8> {
    let option = tcp.options().find(|option| option.kind == 5);
    option.map_or_else(Vec::new, |option| option.data.to_vec())
}

impl Flow {
    fn judge(
        &mut self,
        now: Duration,
        packet: &Packet,
        tcp: &Tcp<'_>,
        queue: &Queue,
        limits: Limits,
    ) -> Verdict {
        let standing = self.standing.take();
        // The stored acknowledgement may be wrong, or belong to an earlier connection with these
        // ports: it counts only briefly.
        let last = self.last.filter(|last| {
            let waits = last
                .number
                .is_some_and(|number| queue.get(number).is_some());
            waits || now < last.at + limits.patience
        });
        let is_old = last.is_some_and(|last| is_after(last.ack, tcp.ack));
        // No later acknowledgement repeats its mark, and senders look at marks of acknowledgements.
        if !tcp.is_plain_ack() || packet.ecn == Ecn::Ce {
            return PASSES;
        }
        let sack = sack(tcp);
        let news = !sack.is_empty() && sack != self.sack;
        if is_old && !news {
            self.standing = standing;
            return Verdict::Old;
        }
        self.sack = sack;
        if is_old {
            return PASSES;
        }
        let seen = self.last.map(|last| (last.ack, last.window));
        if seen == Some((tcp.ack, tcp.window)) {
            // While nothing waits there is room for all of them. Senders without SACK send a
            // segment for each one (RFC 5681 §3.2).
            let needed = news || tcp.window == 0 || queue.is_empty();
            return self.duplicate(now, needed, limits);
        }
        (self.duplicates, self.heard, self.passed) = (0, now, now);
        let plain = self.sack.is_empty() && tcp.window > 0;
        match standing.filter(|_| plain) {
            Some(number) => Verdict::Replaces(number),
            None => Verdict::Passes { stands: plain },
        }
    }

    fn duplicate(&mut self, now: Duration, needed: bool, limits: Limits) -> Verdict {
        // After a pause it answers a keepalive, or signals a new loss.
        if now >= self.heard + limits.patience {
            self.duplicates = 0;
        }
        self.heard = now;
        self.duplicates += 1;
        let beyond = self.duplicates.saturating_sub(limits.high);
        let recent = now < self.passed + limits.patience;
        if !needed && recent && beyond > 0 && !beyond.is_multiple_of(limits.step) {
            return Verdict::Thinned;
        }
        self.passed = now;
        PASSES
    }
}

/// Compares the age of a waiting packet, if it is a plain acknowledgement of this connection.
/// Another booster may have put it there.
fn age(waiting: &Packet, tcp: &Tcp<'_>) -> Option<Ordering> {
    let old = Tcp::parse(Ip::parse(&waiting.bytes)?)?;
    let plain = old.is_plain_ack() && !old.has_sack() && old.ip.key() == tcp.ip.key();
    let order = if is_after(old.ack, tcp.ack) {
        Ordering::Greater
    } else if (old.ack, old.window) == (tcp.ack, tcp.window) {
        Ordering::Equal
    } else {
        Ordering::Less
    };
    plain.then_some(order)
}

impl AtQueue for AckFilter {
    fn arriving(
        &mut self,
        now: Duration,
        packet: Packet,
        queue: &mut Queue,
        _out: &mut Out,
    ) -> Option<Packet> {
        // The last one may never have been queued.
        self.pending = None;
        let Some(tcp) = Tcp::read(&packet.bytes) else {
            return Some(packet);
        };
        let key = tcp.ip.key();
        let (flow, _) = self.flows.entry(key, Flow::default);
        if tcp.has(flags::SYN | flags::RST) {
            // Another connection, or an ended one.
            *flow = Flow::default();
            return Some(packet);
        }
        let mut seen = Seen {
            ack: tcp.ack,
            window: tcp.window,
            at: now,
            number: None,
        };
        let stands = match flow.judge(now, &packet, &tcp, queue, self.limits) {
            Verdict::Passes { stands } => stands,
            Verdict::Old => {
                self.old += 1;
                return None;
            }
            Verdict::Thinned => {
                self.thinned += 1;
                return None;
            }
            Verdict::Replaces(number) => {
                let waiting = queue.get(number);
                let waiting = waiting.filter(|waiting| waiting.ecn == packet.ecn);
                let age = waiting.and_then(|waiting| age(waiting, &tcp));
                if age == Some(Ordering::Greater) {
                    flow.standing = Some(number);
                    self.old += 1;
                    return None;
                }
                if age == Some(Ordering::Less) && queue.replace(number, packet.clone()).is_some() {
                    seen.number = Some(number);
                    flow.standing = Some(number);
                    flow.last = Some(seen);
                    self.replaced += 1;
                    return None;
                }
                age.is_none()
            }
        };
        self.pending = tcp.has(flags::ACK).then_some((key, seen, stands));
        Some(packet)
    }

    fn queued(&mut self, number: u64, packet: &Packet) {
        let Some((key, seen, stands)) = self.pending.take() else {
            return;
        };
        let is_it = Ip::parse(&packet.bytes).is_some_and(|ip| ip.key() == key);
        if let Some(flow) = self.flows.get(&key).filter(|_| is_it) {
            let newest = flow.last.is_none_or(|last| {
                !is_after(last.ack, seen.ack) || seen.at >= last.at + self.limits.patience
            });
            if newest {
                if flow.last.is_some_and(|last| last.ack != seen.ack) {
                    flow.duplicates = 0;
                }
                flow.last = Some(Seen {
                    number: Some(number),
                    ..seen
                });
            }
            flow.standing = stands.then_some(number);
        }
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.limits.patience = path.rtt.max(PATIENCE_MIN);
    }

    fn reset(&mut self) {
        self.flows.clear();
        self.pending = None;
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("old", self.old);
        each("replaced", self.replaced);
        each("thinned", self.thinned);
        each("connections", self.flows.len() as u64);
    }
}

#[cfg(test)]
mod tests;
