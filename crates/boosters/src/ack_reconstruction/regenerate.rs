//! End behind the slow link.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::{FlowKey, Ip},
    packet::Packet,
    tcp::{self, Tcp, is_after},
    wire::{ACKS, Reader},
};

/// Maximum acknowledgements regenerated from one message: a second of 12 Mbit/s of long segments,
/// each of which is acknowledged.
pub(super) const MADE_MAX: u16 = 1024;
/// Maximum time over which they are regenerated, whatever the message contains.
const SPAN_MAX: Duration = Duration::from_secs(10);
/// Maximum acknowledgements sent at once: those of a message without a span, or before another
/// packet of their connection.
const AT_ONCE_MAX: u64 = 64;
/// Connections whose timers run at once.
const TIMERS_MAX: usize = 64;
/// Maximum spacing of two of them. It is less than the minimum retransmission timeout, which each
/// of them restarts (1 s of RFC 6298 §2.4; many senders use 200 ms beyond the round trip).
const GAP_MAX: Duration = Duration::from_millis(200);

/// Regenerates acknowledgements. All have the timestamps of the newest: the echoed segment arrived
/// no earlier than the acknowledged one, so a sender may measure a shorter round trip, by at most
/// the time between the originals. Older timestamps it could take for reordering (RFC 7323 §5).
#[derive(Debug)]
pub struct Regenerate {
    pub(super) flows: Flows<Pending>,
    pub(super) due: BTreeSet<(Duration, FlowKey)>,
    made: u64,
    pub(super) unreadable: u64,
}

/// Acknowledgements to be regenerated one after the other, each at its time.
#[derive(Debug)]
pub(super) struct Pending {
    newest: Packet,
    first: u32,
    /// From the first number to the newest.
    whole: u64,
    /// Number of those before the newest, and number already sent.
    steps: u64,
    done: u64,
    at: Duration,
    step: Duration,
}

impl Pending {
    fn is_over(&self) -> bool {
        self.done > self.steps
    }

    /// Leaves out acknowledgements, so that few remain to be sent at once: each newer one says what
    /// they say.
    fn cut(mut self) -> Self {
        let (left, steps) = ((self.steps + 1).saturating_sub(self.done), self.steps);
        self.done += left.saturating_sub(AT_ONCE_MAX).min(steps);
        self
    }

    /// Leaves out acknowledgements whose time has passed, but for the last of them.
    fn catch_up(&mut self, now: Duration) {
        let late = now.saturating_sub(self.at).as_nanos() / self.step.as_nanos().max(1);
        let late = u64::try_from(late).unwrap_or(u64::MAX);
        let skipped = late.min(self.steps.saturating_sub(self.done));
        self.done += skipped;
        self.at += self.step * u32::try_from(skipped).unwrap_or(u32::MAX);
    }
}

impl Iterator for Pending {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        if self.is_over() {
            return None;
        }
        let done = self.done;
        self.done += 1;
        if done == self.steps {
            return Some(std::mem::take(&mut self.newest));
        }
        let ahead = self.whole * done / self.steps;
        let mut made = self.newest.clone();
        tcp::set_ack(&mut made.bytes, self.first.wrapping_add(ahead as u32));
        Some(made)
    }
}

impl Regenerate {
    /// Creates the far end. It spreads acknowledgements of up to `flows_max` connections at a time,
    /// and sends those of others at once.
    #[must_use]
    pub fn new(flows_max: usize) -> Self {
        Self {
            flows: Flows::new(flows_max),
            due: BTreeSet::new(),
            made: 0,
            unreadable: 0,
        }
    }

    /// Sends all remaining acknowledgements of a connection now.
    fn flush(&mut self, key: &FlowKey, out: &mut Out) {
        if let Some(pending) = self.flows.remove(key) {
            self.due.remove(&(pending.at, *key));
            out.up.extend(pending.cut());
        }
    }

    fn spread(&mut self, now: Duration, key: FlowKey, mut pending: Pending, out: &mut Out) {
        out.up.extend(pending.next());
        if pending.step.is_zero() || pending.is_over() {
            out.up.extend(pending.cut());
            return;
        }
        let at = now + pending.step;
        pending.at = at;
        let (_, gone) = self.flows.entry(key, || pending);
        self.due.insert((at, key));
        if let Some((key, pending)) = gone {
            self.due.remove(&(pending.at, key));
            out.up.extend(pending.cut());
        }
    }
}

/// Reads the acknowledgements of a message, and their connection.
fn read(packet: &Packet) -> Option<(FlowKey, Pending)> {
    let mut reader = Reader(packet.bytes.get(1..)?);
    let (count, first, span) = (reader.u16()?, reader.u32()?, reader.u32()?);
    let newest = packet.with_bytes(reader.0.to_vec());
    let tcp = Tcp::parse(Ip::parse(&newest.bytes)?)?;
    let (key, last) = (tcp.ip.key(), tcp.ack);
    let whole = u64::from(last.wrapping_sub(first));
    // No two are equal: the second would be a duplicate.
    let steps = u64::from(count.clamp(1, MADE_MAX) - 1).min(whole);
    let makes = tcp.is_plain_ack() && tcp.is_whole() && is_after(last, first);
    let steps = if makes { steps } else { 0 };
    let span = Duration::from_micros(span.into()).min(SPAN_MAX);
    let pending = Pending {
        newest,
        first,
        whole,
        steps,
        done: 0,
        at: Duration::ZERO,
        step: (span / steps.max(1) as u32).min(GAP_MAX),
    };
    Some((key, pending))
}

impl Booster for Regenerate {
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() == Some(&ACKS) {
            let Some((key, pending)) = read(&packet) else {
                self.unreadable += 1;
                return;
            };
            self.flush(&key, out);
            self.made += pending.steps;
            self.spread(now, key, pending, out);
            return;
        }
        // No packet overtakes another of its connection.
        if !self.flows.is_empty()
            && let Some(ip) = Ip::parse(&packet.bytes)
        {
            self.flush(&ip.key(), out);
        }
        out.up.push(packet);
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        for _ in 0..TIMERS_MAX {
            let Some(&(at, key)) = self.due.first() else {
                return;
            };
            if at > now {
                return;
            }
            self.due.pop_first();
            let Some(pending) = self.flows.get(&key) else {
                continue;
            };
            pending.catch_up(now);
            out.up.extend(pending.next());
            pending.at += pending.step;
            let next = pending.at;
            if pending.is_over() {
                self.flows.remove(&key);
            } else {
                self.due.insert((next, key));
            }
        }
    }

    fn deadline(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("made", self.made);
        each("unreadable", self.unreadable);
    }
}
