//! Chain of a site's boosters, and its receiver at the far end.

use std::{collections::VecDeque, time::Duration};

use crate::{
    booster::Out,
    ecn::{self, Ecn},
    ip,
    joined::{self, Joining},
    packet::Packet,
    pieces::{Cutter, Joiner},
    queue::{AtQueue, Queue},
    rule::{Path, Rule, Switch},
    stack::{Layer, Stack},
    wire::{Abilities, JOINED, PIECE},
};

/// Booster at the queue, with its state.
#[derive(Debug)]
pub struct QueueLayer {
    name: &'static str,
    needs: u32,
    switch: Switch,
    supported: bool,
    booster: Box<dyn AtQueue>,
}

impl QueueLayer {
    /// Creates a layer that follows a rule, as long as the far end has these
    /// [abilities](crate::wire::Abilities).
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
            supported: needs == 0,
            booster: Box::new(booster),
        }
    }

    fn is_on(&self) -> bool {
        self.supported && self.switch.is_on()
    }

    /// Returns whether it handles leaving packets, which includes those it changed while it was on.
    fn is_at_work(&self) -> bool {
        self.is_on() || (self.supported && self.booster.finishes())
    }
}

/// Counters of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainStats {
    /// Packets from hosts.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Messages given to the tunnel, without replies.
    pub messages: u64,
    /// Bytes of these messages.
    pub message_bytes: u64,
    /// Packets dropped because the queue was full.
    pub dropped_full: u64,
    /// Packets, and messages of boosters, dropped because they had waited for too long or belonged
    /// to an ended session.
    pub dropped_late: u64,
    /// Messages dropped because they fit into no datagram.
    pub dropped_long: u64,
    /// Packets for hosts.
    pub packets_up: u64,
}

/// Maximum messages waiting behind the queue: those that boosters made while the link was down.
const READY_MAX: usize = 1024;

/// Minimum bytes for which a packet for a host counts while it waits.
pub const WAITING_MIN: usize = 1024;

/// Sending side of a site, and both directions of its hosts' connections.
#[derive(Debug)]
pub struct Chain {
    upper: Stack,
    at_queue: Vec<QueueLayer>,
    queue: Queue,
    lower: Stack,
    /// Messages that leave next, each with the time since when it could.
    ready: VecDeque<(Duration, Packet)>,
    ready_late: u64,
    /// Packets for hosts.
    hosts: VecDeque<Packet>,
    /// Bytes for which they count.
    waiting: usize,
    cutter: Cutter,
    /// The far end reads messages of several packets.
    joins: bool,
    out: Out,
    stats: ChainStats,
}

impl Chain {
    /// Creates a chain from the boosters on the hosts' side, at the queue, and between queue and
    /// link.
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
            ready_late: 0,
            hosts: VecDeque::new(),
            waiting: 0,
            cutter: Cutter::default(),
            joins: false,
            out: Out::default(),
            stats: ChainStats::default(),
        }
    }

    /// Takes a packet of a host, to be sent over the link.
    pub fn from_host(&mut self, now: Duration, packet: &[u8]) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        self.queue.expire(now);
        let packet = Packet::new(packet.to_vec(), now);
        self.upper.down(now, packet, &mut self.out);
        self.route_upper(now);
    }

    /// Takes a packet for a host that came over the link.
    pub fn to_host(&mut self, now: Duration, packet: Packet) {
        for layer in &mut self.at_queue {
            layer.booster.seen_up(now, &packet);
        }
        self.upper.up(now, packet, &mut self.out);
        self.route_upper(now);
    }

    /// Takes a reply of the receiver at the far end.
    pub fn on_reply(&mut self, now: Duration, message: &[u8]) {
        let reply = Packet {
            bytes: message.to_vec(),
            since: now,
            ..Packet::default()
        };
        self.lower.up(now, reply, &mut self.out);
        // No booster took it: drop it.
        self.out.up.clear();
        self.take_ready(now);
    }

    /// Handles due timers.
    pub fn on_time(&mut self, now: Duration) {
        self.upper.on_time(now, &mut self.out);
        self.route_upper(now);
        self.lower.on_time(now, &mut self.out);
        self.out.up.clear();
        self.take_ready(now);
    }

    /// Returns the time of the next call of [`on_time`](Self::on_time).
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let all = [self.upper.deadline(), self.lower.deadline()];
        all.into_iter().flatten().min()
    }

    /// Updates the known properties of the path. The chain itself knows the length of its queue.
    pub fn set_path(&mut self, now: Duration, path: &Path) {
        let path = Path {
            queue: self.queue.delay(now),
            ..*path
        };
        self.joins = path.abilities & Abilities::JOINED != 0;
        self.upper.set_path(now, &path);
        for layer in &mut self.at_queue {
            let was_on = layer.is_on();
            layer.supported = path.abilities & layer.needs == layer.needs;
            layer.switch.update(now, &path);
            if layer.is_on() && !was_on {
                layer.booster.reset();
            }
            layer.booster.set_path(now, &path);
        }
        self.lower.set_path(now, &path);
    }

    /// Begins a session with the peer. Packets in between may have taken another path, unseen by
    /// this chain. Messages made for the last session, or with pieces sent in it, may be useless to
    /// the new peer process.
    pub fn renew(&mut self) {
        let before = self.ready.len();
        self.ready
            .retain(|(_, message)| ip::version(&message.bytes).is_some());
        self.ready_late += (before - self.ready.len()) as u64;
        self.upper.reset();
        for layer in &mut self.at_queue {
            layer.booster.reset();
        }
        self.lower.reset();
    }

    /// Returns whether there is a message for the tunnel.
    #[must_use]
    pub fn has_message(&self) -> bool {
        !self.ready.is_empty() || !self.queue.is_empty()
    }

    /// Appends the next message, up to `room` bytes long, to `out`. Returns the ECN mark for its
    /// datagram (RFC 6040 §4.1).
    pub fn poll_message(&mut self, now: Duration, room: usize, out: &mut Vec<u8>) -> Option<Ecn> {
        let first = self.next_message(now, room)?;
        let mut message = Joining::new(&first.bytes, out);
        while self.joins
            && let Some(next) = self.next_to_join(now, &first, &message, room)
        {
            message.push(&next.bytes);
        }
        self.stats.messages += 1;
        self.stats.message_bytes += message.length() as u64;
        Some(first.ecn)
    }

    /// Takes the next message that fits, or piece of one that does not.
    fn next_message(&mut self, now: Duration, room: usize) -> Option<Packet> {
        loop {
            while self.ready.is_empty() {
                let (number, packet) = self.queue.pop(now)?;
                self.leave(now, number, packet);
            }
            let (since, message) = self.ready.pop_front()?;
            if self.is_late(now, since, &message) {
                self.ready_late += 1;
                continue;
            }
            if message.bytes.len() > room {
                self.cut(since, &message, room);
                continue;
            }
            return Some(message);
        }
    }

    /// Takes the next packet if it may share a message with `first` and fits.
    fn next_to_join(
        &mut self,
        now: Duration,
        first: &Packet,
        message: &Joining<'_>,
        room: usize,
    ) -> Option<Packet> {
        let joins = |next: &Packet| {
            message.length_with(next.bytes.len()) <= room && joined::may_join(first, next)
        };
        if self.ready.is_empty() && self.queue.front().is_some_and(joins) {
            let (number, packet) = self.queue.pop(now)?;
            self.leave(now, number, packet);
        }
        // Boosters may have changed it.
        self.ready.front().filter(|(_, next)| joins(next))?;
        self.ready.pop_front().map(|(_, next)| next)
    }

    /// Returns the next packet for a host.
    pub fn poll_host(&mut self) -> Option<Packet> {
        let packet = self.hosts.pop_front()?;
        self.waiting -= counted(&packet);
        Some(packet)
    }

    /// Returns the bytes of packets that wait for hosts, with those that boosters made. A short
    /// packet counts for [`WAITING_MIN`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> ChainStats {
        ChainStats {
            dropped_full: self.queue.dropped_full,
            dropped_late: self.queue.dropped_late + self.ready_late,
            ..self.stats
        }
    }

    /// Returns the queued bytes, and the waiting time of the first packet.
    #[must_use]
    pub fn queued(&self, now: Duration) -> (usize, Duration) {
        (self.queue.bytes(), self.queue.delay(now))
    }

    /// Reports each counter of each booster by name, `on` included.
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
        for layer in self.at_queue.iter_mut().filter(|layer| layer.is_at_work()) {
            let booster = &mut layer.booster;
            packet = booster.leaving(now, number, packet, &self.queue, &mut self.out);
        }
        // Their packets for hosts bypass the boosters that look at packets from the link.
        self.take_hosts();
        self.upper.leaving(now, &packet);
        self.send_down(now, packet);
    }

    fn send_down(&mut self, now: Duration, packet: Packet) {
        self.lower.down(now, packet, &mut self.out);
        self.out.up.clear();
        self.take_ready(now);
    }

    /// Returns whether a message has waited for too long behind the queue, as messages of boosters
    /// do while the link is down. A message already begun is completed: otherwise the pieces sent
    /// are wasted.
    fn is_late(&self, now: Duration, since: Duration, message: &Packet) -> bool {
        let is_piece = message.bytes.first() == Some(&PIECE);
        let patience = self.queue.patience().filter(|_| !is_piece);
        patience.is_some_and(|patience| now.saturating_sub(since) > patience)
    }

    fn cut(&mut self, since: Duration, message: &Packet, room: usize) {
        let pieces = self.cutter.cut(&message.bytes, room);
        if pieces.is_empty() {
            self.stats.dropped_long += 1;
        }
        for piece in pieces.into_iter().rev() {
            self.ready.push_front((since, message.with_bytes(piece)));
        }
    }

    /// Forwards the output of the upper stack.
    fn route_upper(&mut self, now: Duration) {
        let mut down = std::mem::take(&mut self.out.down);
        self.take_hosts();
        for packet in down.drain(..) {
            if packet.urgent {
                self.send_down(now, packet);
            } else {
                self.enqueue(now, packet);
            }
        }
        self.take_hosts();
        debug_assert!(self.out.down.is_empty());
        self.out.down = down;
    }

    fn enqueue(&mut self, now: Duration, packet: Packet) {
        let mut packet = Some(packet);
        for layer in self.at_queue.iter_mut().filter(|layer| layer.is_on()) {
            let Some(arrived) = packet else { return };
            let booster = &mut layer.booster;
            packet = booster.arriving(now, arrived, &mut self.queue, &mut self.out);
        }
        let Some(number) = packet.and_then(|packet| self.queue.push(packet)) else {
            return;
        };
        for layer in self.at_queue.iter_mut().filter(|layer| layer.is_on()) {
            if let Some(packet) = self.queue.get(number) {
                layer.booster.queued(number, packet);
            }
        }
    }

    fn take_hosts(&mut self) {
        self.stats.packets_up += self.out.up.len() as u64;
        self.waiting += self.out.up.iter().map(counted).sum::<usize>();
        self.hosts.extend(self.out.up.drain(..));
    }

    fn take_ready(&mut self, now: Duration) {
        while let Some((since, first)) = self.ready.front()
            && self.is_late(now, *since, first)
        {
            self.ready.pop_front();
            self.ready_late += 1;
        }
        for message in self.out.down.drain(..) {
            if self.ready.len() < READY_MAX {
                self.ready.push_back((now, message));
            } else {
                self.queue.dropped_full += 1;
            }
        }
    }
}

fn counted(packet: &Packet) -> usize {
    packet.bytes.len().max(WAITING_MIN)
}

/// Maximum waiting replies; a lost request is repeated.
const REPLIES_MAX: usize = 64;

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Messages received.
    pub messages: u64,
    /// Packets decoded from them.
    pub packets: u64,
    /// Messages that no booster could read.
    pub unreadable: u64,
    /// Packets dropped because the link was congested and their senders do not support ECN.
    pub dropped_congested: u64,
    /// Messages in pieces that were given up because some were missing.
    pub given_up: u64,
}

/// Receiving side of one of the peer's chains.
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
    /// Creates a receiver from those of all boosters, from the hosts' side to the link's.
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

    /// Takes a message whose datagram had the mark `outer`.
    pub fn handle(&mut self, now: Duration, message: &[u8], outer: Ecn) {
        self.stats.messages += 1;
        match message.first() {
            Some(&JOINED) => self.take_joined(now, &message[1..], outer),
            Some(&PIECE) => {
                if let Some((whole, outer)) = self.joiner.take(now, message, outer) {
                    self.take(now, whole, outer);
                }
            }
            Some(_) => self.take(now, message.to_vec(), outer),
            None => {}
        }
    }

    /// Updates the known properties of the path.
    pub fn set_path(&mut self, now: Duration, path: &Path) {
        self.stack.set_path(now, path);
    }

    /// Takes the packets of one message.
    fn take_joined(&mut self, now: Duration, mut rest: &[u8], outer: Ecn) {
        while !rest.is_empty() {
            let packet = joined::split_off(&mut rest);
            let Some(packet) = packet.filter(|packet| joined::is_datagram(packet)) else {
                self.stats.unreadable += 1;
                return;
            };
            self.take(now, packet.to_vec(), outer);
        }
    }

    fn take(&mut self, now: Duration, bytes: Vec<u8>, outer: Ecn) {
        let packet = Packet {
            ecn: ecn::of_packet(&bytes),
            bytes,
            since: now,
            outer,
            ..Packet::default()
        };
        self.stack.up(now, packet, &mut self.out);
        self.route();
    }

    /// Handles due timers.
    pub fn on_time(&mut self, now: Duration) {
        self.stack.on_time(now, &mut self.out);
        self.route();
    }

    /// Returns the time of the next call of [`on_time`](Self::on_time).
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.stack.deadline()
    }

    /// Returns the next complete IP packet.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        self.packets.pop_front()
    }

    /// Returns whether there is a reply.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Returns the next reply to the chain that sends the messages.
    pub fn poll_reply(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front()
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> ReceiverStats {
        ReceiverStats {
            given_up: self.joiner.given_up,
            ..self.stats
        }
    }

    /// Reports each counter of each booster by name.
    pub fn counters(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.stack.counters(each);
    }

    fn route(&mut self) {
        for mut packet in self.out.up.drain(..) {
            // The rest is up to the hosts: later fragments of a packet have no transport header,
            // although the first one's headers name it.
            if ip::length(&packet.bytes) != Some(packet.bytes.len()) {
                self.stats.unreadable += 1;
            } else if !ecn::decapsulate(&mut packet.bytes, packet.outer) {
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

#[cfg(test)]
mod tests;
