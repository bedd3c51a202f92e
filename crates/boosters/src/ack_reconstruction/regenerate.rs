//! The end behind the slow link.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::{FlowKey, Ip},
    packet::Packet,
    tcp::{self, Tcp, is_after},
    wire::{ACKS, Reader},
};

/// Acknowledgements made of one message at most.
const MADE_MAX: u16 = 64;
/// Whatever a message says, they are made within this time.
const SPAN_MAX: Duration = Duration::from_secs(10);

/// Makes acknowledgements again. They have the timestamps of the newest: what they echo arrived no earlier than what they
/// acknowledge, so a sender may take its round trip for shorter, by the time at most over which they had come; older ones it could take for
/// reordered (RFC 7323 §5).
#[derive(Debug)]
pub struct Regenerate {
    pub(super) flows: Flows<Pending>,
    pub(super) due: BTreeSet<(Duration, FlowKey)>,
    made: u64,
    pub(super) unreadable: u64,
}

#[derive(Debug)]
pub(super) struct Pending {
    acks: VecDeque<Packet>,
    at: Duration,
    step: Duration,
}

impl Regenerate {
    /// Spreads acknowledgements of so many connections at a time; those of others go at once.
    #[must_use]
    pub fn new(flows_max: usize) -> Self {
        Self {
            flows: Flows::new(flows_max),
            due: BTreeSet::new(),
            made: 0,
            unreadable: 0,
        }
    }

    /// What is still to come of a connection goes now.
    fn flush(&mut self, key: &FlowKey, out: &mut Out) {
        if let Some(pending) = self.flows.remove(key) {
            self.due.remove(&(pending.at, *key));
            out.up.extend(pending.acks);
        }
    }

    fn spread(
        &mut self,
        now: Duration,
        key: FlowKey,
        mut acks: VecDeque<Packet>,
        step: Duration,
        out: &mut Out,
    ) {
        out.up.extend(acks.pop_front());
        if step.is_zero() || acks.is_empty() {
            out.up.extend(acks);
            return;
        }
        let at = now + step;
        let (_, gone) = self.flows.entry(key, || Pending { acks, at, step });
        self.due.insert((at, key));
        if let Some((key, pending)) = gone {
            self.due.remove(&(pending.at, key));
            out.up.extend(pending.acks);
        }
    }
}

/// The acknowledgements that a message stands for, their connection, and how far apart they are.
fn read(packet: &Packet) -> Option<(FlowKey, VecDeque<Packet>, Duration)> {
    let mut reader = Reader(packet.bytes.get(1..)?);
    let (count, first, span) = (reader.u16()?, reader.u32()?, reader.u32()?);
    let newest = packet.with_bytes(reader.0.to_vec());
    let tcp = Tcp::parse(Ip::parse(&newest.bytes)?)?;
    let (key, last) = (tcp.ip.key(), tcp.ack);
    let count = count.clamp(1, MADE_MAX);
    let mut acks = VecDeque::with_capacity(count.into());
    if tcp.is_plain_ack() && is_after(last, first) {
        let whole = u64::from(last.wrapping_sub(first));
        let steps = u64::from(count - 1);
        let mut before = None;
        for step in 0..steps {
            let ack = first.wrapping_add((whole * step / steps) as u32);
            if before.replace(ack) == Some(ack) {
                continue; // Two alike would be a duplicate.
            }
            let mut made = newest.clone();
            tcp::set_ack(&mut made.bytes, ack);
            acks.push_back(made);
        }
    }
    acks.push_back(newest);
    let span = Duration::from_micros(span.into()).min(SPAN_MAX);
    let step = span / (acks.len().max(2) - 1) as u32;
    Some((key, acks, step))
}

impl Booster for Regenerate {
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() == Some(&ACKS) {
            let Some((key, acks, step)) = read(&packet) else {
                self.unreadable += 1;
                return;
            };
            self.flush(&key, out);
            self.made += acks.len() as u64 - 1;
            self.spread(now, key, acks, step, out);
            return;
        }
        // Nothing of a connection overtakes another packet of it.
        if !self.flows.is_empty()
            && let Some(ip) = Ip::parse(&packet.bytes)
        {
            self.flush(&ip.key(), out);
        }
        out.up.push(packet);
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        while let Some(&(at, key)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let Some(pending) = self.flows.get(&key) else {
                continue;
            };
            out.up.extend(pending.acks.pop_front());
            pending.at = at + pending.step;
            let next = pending.at;
            if pending.acks.is_empty() {
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
