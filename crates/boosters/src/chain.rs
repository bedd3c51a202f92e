//! A site's boosters put together, and what unwraps at the far end.

use std::{collections::VecDeque, time::Duration};

use crate::{
    booster::Out,
    ecn::{self, Ecn},
    ip::Ip,
    packet::Packet,
    pieces::{Cutter, Joiner},
    queue::{AtQueue, Queue},
    rule::{Path, Rule, Switch},
    stack::{Layer, Stack},
    wire::PIECE,
};

/// A booster at the queue, in its place.
#[derive(Debug)]
pub struct QueueLayer {
    name: &'static str,
    needs: u32,
    switch: Switch,
    able: bool,
    booster: Box<dyn AtQueue>,
}

impl QueueLayer {
    /// One that is on by a rule, as long as the far end has these [abilities](crate::wire::Abilities).
    pub fn new(
        name: &'static str,
        needs: u32,
        rule: Rule,
        booster: impl AtQueue + 'static,
    ) -> Self {
        Self {
            name,
            needs,
            switch: Switch::new(rule),
            able: needs == 0,
            booster: Box::new(booster),
        }
    }

    fn is_on(&self) -> bool {
        self.able && self.switch.is_on()
    }
}

/// What a chain has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// Packets from hosts.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages given to the tunnel, replies apart.
    pub messages: u64,
    /// Their bytes.
    pub message_bytes: u64,
    /// Packets that were dropped as the queue was full.
    pub dropped_full: u64,
    /// Packets that were dropped as they had waited for too long.
    pub dropped_late: u64,
    /// Messages that no room was long enough for.
    pub dropped_long: u64,
    /// Packets for hosts.
    pub packets_up: u64,
}

/// Messages that wait behind the queue at most: what boosters made while the link was away.
const READY_MAX: usize = 1024;

/// The sending side of a site, and both ways of its hosts' connections.
#[derive(Debug)]
pub struct Chain {
    upper: Stack,
    at_queue: Vec<QueueLayer>,
    queue: Queue,
    lower: Stack,
    /// What leaves next.
    ready: VecDeque<Packet>,
    /// For hosts.
    hosts: VecDeque<Packet>,
    cutter: Cutter,
    out: Out,
    stats: ChainStats,
}

impl Chain {
    /// Boosters from the hosts' side, at the queue, and from there to the link.
    #[must_use]
    pub fn new(
        upper: Vec<Layer>,
        at_queue: Vec<QueueLayer>,
        queue: Queue,
        lower: Vec<Layer>,
    ) -> Self {
        Self {
            upper: Stack::new(upper),
            at_queue,
            queue,
            lower: Stack::new(lower),
            ready: VecDeque::new(),
            hosts: VecDeque::new(),
            cutter: Cutter::default(),
            out: Out::default(),
            stats: ChainStats::default(),
        }
    }

    /// A packet of a host, to be carried.
    pub fn from_host(&mut self, now: Duration, packet: &[u8]) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        self.queue.expire(now);
        let packet = Packet::new(packet.to_vec(), now);
        self.upper.down(now, packet, &mut self.out);
        self.route_upper(now);
    }

    /// A packet for a host, which has come by the link.
    pub fn to_host(&mut self, now: Duration, packet: Packet) {
        for layer in &mut self.at_queue {
            layer.booster.seen_up(now, &packet);
        }
        self.upper.up(now, packet, &mut self.out);
        self.route_upper(now);
    }

    /// What the receiver at the far end answers.
    pub fn on_reply(&mut self, now: Duration, message: &[u8]) {
        let reply = Packet {
            bytes: message.to_vec(),
            since: now,
            ..Packet::default()
        };
        self.lower.up(now, reply, &mut self.out);
        // What nobody took is nobody's.
        self.out.up.clear();
        self.take_ready();
    }

    /// Time has passed.
    pub fn on_time(&mut self, now: Duration) {
        self.upper.on_time(now, &mut self.out);
        self.route_upper(now);
        self.lower.on_time(now, &mut self.out);
        self.out.up.clear();
        self.take_ready();
    }

    /// When [`on_time`](Self::on_time) wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let all = [self.upper.deadline(), self.lower.deadline()];
        all.into_iter().flatten().min()
    }

    /// What is known of the path now; how long the queue is the chain knows itself.
    pub fn set_path(&mut self, now: Duration, path: &Path) {
        let path = Path {
            queue: self.queue.delay(now),
            ..*path
        };
        self.upper.set_path(now, &path);
        for layer in &mut self.at_queue {
            layer.able = path.abilities & layer.needs == layer.needs;
            layer.switch.update(now, &path);
            layer.booster.set_path(now, &path);
        }
        self.lower.set_path(now, &path);
    }

    /// Whether there is something for the tunnel.
    #[must_use]
    pub fn has_message(&self) -> bool {
        !self.ready.is_empty() || !self.queue.is_empty()
    }

    /// Writes the next message, of at most `room` bytes, to the end of `out`. Returns the mark that its datagram is to have (RFC 6040 §4.1).
    pub fn poll_message(&mut self, now: Duration, room: usize, out: &mut Vec<u8>) -> Option<Ecn> {
        loop {
            while self.ready.is_empty() {
                let (number, packet) = self.queue.pop(now)?;
                self.leave(now, number, packet);
            }
            let message = self.ready.pop_front()?;
            if message.bytes.len() > room {
                self.cut(&message, room);
                continue;
            }
            self.stats.messages += 1;
            self.stats.message_bytes += message.bytes.len() as u64;
            out.extend_from_slice(&message.bytes);
            return Some(message.ecn);
        }
    }

    /// The next packet for a host.
    pub fn poll_host(&mut self) -> Option<Packet> {
        self.hosts.pop_front()
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> ChainStats {
        ChainStats {
            dropped_full: self.queue.dropped_full,
            dropped_late: self.queue.dropped_late,
            ..self.stats
        }
    }

    /// What is queued, in bytes, and for how long the first of it has been.
    #[must_use]
    pub fn queued(&self, now: Duration) -> (usize, Duration) {
        (self.queue.bytes(), self.queue.delay(now))
    }

    /// Each count of each booster, by their names; whether it is `on` too.
    pub fn counters(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.upper.counters(each);
        for layer in &self.at_queue {
            each(layer.name, "on", layer.is_on().into());
            each(layer.name, "switched_on", layer.switch.switched_on);
            let mut named = |count, value| each(layer.name, count, value);
            layer.booster.counters(&mut named);
        }
        self.lower.counters(each);
    }

    fn leave(&mut self, now: Duration, number: u64, mut packet: Packet) {
        for layer in &mut self.at_queue {
            let booster = &mut layer.booster;
            packet = booster.leaving(now, number, packet, &self.queue, &mut self.out);
        }
        // What they say to hosts does not pass those who look at what comes by the link.
        self.take_hosts();
        self.lower.down(now, packet, &mut self.out);
        self.out.up.clear();
        self.take_ready();
    }

    fn cut(&mut self, message: &Packet, room: usize) {
        let pieces = self.cutter.cut(&message.bytes, room);
        if pieces.is_empty() {
            self.stats.dropped_long += 1;
        }
        for piece in pieces.into_iter().rev() {
            self.ready.push_front(message.with_bytes(piece));
        }
    }

    /// What came out of the upper stack goes to its place.
    fn route_upper(&mut self, now: Duration) {
        let mut down = std::mem::take(&mut self.out.down);
        self.take_hosts();
        for packet in down.drain(..) {
            self.enqueue(now, packet);
        }
        self.take_hosts();
        self.out.down = down;
    }

    fn enqueue(&mut self, now: Duration, packet: Packet) {
        let mut packet = Some(packet);
        for layer in self.at_queue.iter_mut().filter(|layer| layer.is_on()) {
            let Some(arrived) = packet else { return };
            let booster = &mut layer.booster;
            packet = booster.arriving(now, arrived, &mut self.queue, &mut self.out);
        }
        let Some(packet) = packet else { return };
        // Who stands in the queue is looked at again by its number.
        let looked_at = packet.clone();
        if let Some(number) = self.queue.push(packet) {
            for layer in self.at_queue.iter_mut().filter(|layer| layer.is_on()) {
                layer.booster.queued(number, &looked_at);
            }
        }
    }

    fn take_hosts(&mut self) {
        self.stats.packets_up += self.out.up.len() as u64;
        self.hosts.extend(self.out.up.drain(..));
    }

    fn take_ready(&mut self) {
        for message in self.out.down.drain(..) {
            if self.ready.len() < READY_MAX {
                self.ready.push_back(message);
            } else {
                self.queue.dropped_full += 1;
            }
        }
    }
}

/// Replies that wait at most; what is lost of them is asked for again.
const REPLIES_MAX: usize = 64;

/// What a receiver has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Messages that came.
    pub messages: u64,
    /// Packets that came of them.
    pub packets: u64,
    /// Messages that no booster could read.
    pub unreadable: u64,
    /// Packets that were dropped as the link was congested and their senders do not understand marks.
    pub dropped_congested: u64,
    /// Messages in pieces that were given up, as some were missing.
    pub given_up: u64,
}

/// The receiving side of one of the peer's chains.
#[derive(Debug)]
pub struct Receiver {
    stack: Stack,
    joiner: Joiner,
    packets: VecDeque<Packet>,
    replies: VecDeque<Vec<u8>>,
    out: Out,
    stats: ReceiverStats,
}

impl Receiver {
    /// Of the receivers of all boosters, from the hosts' side to the link's.
    #[must_use]
    pub fn new(layers: Vec<Layer>) -> Self {
        Self {
            stack: Stack::new(layers),
            joiner: Joiner::default(),
            packets: VecDeque::new(),
            replies: VecDeque::new(),
            out: Out::default(),
            stats: ReceiverStats::default(),
        }
    }

    /// A message has come; `congested` if its datagram was marked on the way.
    pub fn handle(&mut self, now: Duration, message: &[u8], congested: bool) {
        self.stats.messages += 1;
        let whole = match message.first() {
            Some(&PIECE) => self.joiner.take(now, message),
            Some(_) => Some(message.to_vec()),
            None => None,
        };
        let Some(bytes) = whole else { return };
        let packet = Packet {
            ecn: ecn::of_packet(&bytes),
            bytes,
            since: now,
            congested,
        };
        self.stack.up(now, packet, &mut self.out);
        self.route();
    }

    /// Time has passed.
    pub fn on_time(&mut self, now: Duration) {
        self.stack.on_time(now, &mut self.out);
        self.route();
    }

    /// When [`on_time`](Self::on_time) wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.stack.deadline()
    }

    /// The next IP packet, whole.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        self.packets.pop_front()
    }

    /// Whether there is a reply.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The next reply to the chain that the messages are from.
    pub fn poll_reply(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front()
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> ReceiverStats {
        ReceiverStats {
            given_up: self.joiner.given_up,
            ..self.stats
        }
    }

    /// Each count of each booster, by their names.
    pub fn counters(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.stack.counters(each);
    }

    fn route(&mut self) {
        for mut packet in self.out.up.drain(..) {
            let len = Ip::parse(&packet.bytes).map(|ip| ip.bytes.len());
            if len != Some(packet.bytes.len()) {
                self.stats.unreadable += 1;
            } else if !ecn::decapsulate(&mut packet.bytes, packet.congested) {
                self.stats.dropped_congested += 1;
            } else {
                self.stats.packets += 1;
                self.packets.push_back(packet);
            }
        }
        for reply in self.out.down.drain(..) {
            if self.replies.len() < REPLIES_MAX {
                self.replies.push_back(reply.bytes);
            }
        }
    }
}
