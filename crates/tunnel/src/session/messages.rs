//! Datagrams (RFC 9221): sent once, each in its own packet, and delivered in the order of arrival.
//!
//! ```text
//!   set_packets_ready                     on its turn: next_packet
//!   -----------------> queue in the scheduler ------------------------> packet
//!                      among the streams
//! ```
//!
//! The scheduler treats a queue as a stream with a reserved number, so classes, site weights and
//! turns apply across queues and streams. The send window does not apply to datagrams, as they are
//! not kept for retransmission. When the window blocks streams, a second scheduler of queues alone
//! selects the next one.

use std::{collections::VecDeque, time::Duration};

use super::{PacketQueue, Session, TooManyQueues, send::Sending};
use crate::{
    arrival::{IDLE_AFTER, PEER_RESTS_AFTER},
    cause::LossEvent,
    class::Class,
    ecn::Ecn,
    path::Mtu,
    schedule::{Scheduler, SiteId},
    store::Store,
    wire::{GAPS_MAX, Gap, PACKET_CHANNELS, PACKET_HEADER_LEN, emit_packet_type, packet_channel},
};

/// Maximum number of datagram queues of a session.
pub const QUEUES_MAX: usize = 64;

/// Number of recent packets whose lengths are kept, 32 KiB. A few dozen suffice to detect that long
/// packets do not get through.
const SENT_MAX: usize = 2048;

/// State of the datagrams of a session.
#[derive(Debug, Default)]
pub(super) struct Messages {
    next: u32,
    open: usize,
    /// Scheduler of the queues alone.
    pub scheduler: Scheduler,
    /// Numbers and lengths of packets that carried a datagram, in rising order.
    sent: VecDeque<(u64, usize)>,
    /// Packets below this have been reported as arrived or missing.
    reported: u64,
    /// Times of the last datagram sent or received, and of the last one received.
    active_at: Option<Duration>,
    heard: Option<Duration>,
    /// Time when datagrams were last reported as arrived.
    arrived: Option<Duration>,
}

impl Messages {
    /// Records that packet `number` carries a datagram and has this length.
    fn on_sent(&mut self, now: Duration, number: u64, len: usize) {
        self.active_at = Some(now);
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((number, len));
    }

    pub fn on_received(&mut self, now: Duration) {
        self.active_at = Some(now);
        self.heard = Some(now);
    }

    /// Returns the time since which no datagram was sent or received.
    pub fn silent_since(&self) -> Duration {
        self.active_at.unwrap_or_default()
    }

    /// Returns true if datagrams were received lately. So the peer knows that datagrams are
    /// exchanged, which sent ones do not prove, as they may be lost.
    pub fn is_talking(&self, now: Duration) -> bool {
        self.heard.is_some_and(|heard| now < heard + IDLE_AFTER)
    }

    /// Returns true if the peer may be at rest: it has not known of datagrams lately.
    pub fn may_peer_rest(&self, now: Duration) -> bool {
        let known = self.heard.max(self.arrived);
        known.is_none_or(|known| now >= known + PEER_RESTS_AFTER)
    }

    /// Handles a rise of the highest arrived number, with these gaps. Returns true if newly arrived
    /// packets carried datagrams. Their longest one counts for the path MTU, as the last one of a
    /// burst is often short.
    pub fn on_arrived(&mut self, now: Duration, highest: u64, gaps: &[Gap], mtu: &mut Mtu) -> bool {
        let from = std::mem::replace(&mut self.reported, highest.saturating_add(1));
        // A full list of gaps may omit older ones.
        let oldest = gaps.first().filter(|_| gaps.len() == GAPS_MAX);
        let from = oldest.map_or(from, |gap| from.max(gap.before));
        let is_missing = |number: u64| {
            let mut gaps = gaps.iter();
            gaps.any(|gap| number > gap.before && number - gap.before <= gap.missing)
        };
        let begin = self.sent.partition_point(|sent| sent.0 < from);
        let news = self.sent.range(begin..);
        let news = news.take_while(|sent| sent.0 <= highest);
        let arrived = news.filter(|sent| !is_missing(sent.0));
        let longest = arrived.map(|sent| sent.1).max();
        longest.into_iter().for_each(|len| mtu.on_arrived(len));
        if longest.is_some() {
            self.arrived = Some(now);
        }
        longest.is_some()
    }

    /// Passes lost datagrams to path MTU discovery, as they may have been too long.
    pub fn on_lost(&self, loss: &LossEvent, mtu: &mut Mtu) {
        let begin = self.sent.partition_point(|sent| sent.0 < loss.first);
        let lost = self.sent.range(begin..);
        let lost = lost.take_while(|sent| sent.0 - loss.first < loss.packets);
        for (_, length) in lost {
            mtu.on_lost(*length, loss.sent_at);
        }
    }
}

impl Session {
    /// Returns true if the peer accepts datagrams, as agreed at the beginning of the session.
    #[must_use]
    pub fn takes_packets(&self) -> bool {
        self.config.peer_packets
    }

    /// Returns the longest message of a datagram that fits now, in bytes. Changes with the path
    /// MTU. On the link, [`PACKET_HEADER_LEN`] and the overhead of every packet are added.
    #[must_use]
    pub fn packet_room(&self) -> usize {
        self.mtu.size() - PACKET_HEADER_LEN
    }

    /// Returns the value of [`packet_room`](Self::packet_room) expected after path MTU discovery.
    /// Announce this one to hosts, which remember it for ten minutes (RFC 8201 §4).
    #[must_use]
    pub fn expected_packet_room(&self) -> usize {
        self.mtu.expected() - PACKET_HEADER_LEN
    }

    /// Creates an idle datagram queue. It takes turns with the streams of its class and site, as
    /// part of host 0.
    ///
    /// # Errors
    ///
    /// [`QUEUES_MAX`] queues exist.
    pub fn open_packets(
        &mut self,
        class: Class,
        site: SiteId,
    ) -> Result<PacketQueue, TooManyQueues> {
        let messages = &mut self.messages;
        let next = messages.next.checked_add(1);
        let (Some(next), true) = (next, messages.open < QUEUES_MAX) else {
            return Err(TooManyQueues);
        };
        let queue = PacketQueue(std::mem::replace(&mut messages.next, next));
        messages.open += 1;
        messages.scheduler.insert(queue.pseudo(), class, site);
        self.scheduler.insert(queue.pseudo(), class, site);
        Ok(queue)
    }

    /// Removes a queue.
    pub fn close_packets(&mut self, queue: PacketQueue) {
        let messages = &mut self.messages;
        if messages.scheduler.class(queue.pseudo()).is_some() {
            messages.open -= 1;
            messages.scheduler.remove(queue.pseudo());
            self.scheduler.remove(queue.pseudo());
        }
    }

    /// Sets whether the queue has something to send, for which the store is
    /// [asked](Store::next_packet) on its turn. Ignored if the peer does not accept datagrams.
    pub fn set_packets_ready(&mut self, queue: PacketQueue, ready: bool) {
        let queue = queue.pseudo();
        if ready && self.takes_packets() {
            self.messages.scheduler.ready(queue);
            self.scheduler.ready(queue);
        } else {
            self.messages.scheduler.idle(queue);
            self.scheduler.idle(queue);
        }
    }

    /// Writes a datagram of the queue whose turn it is. If the store has none, the queue becomes
    /// idle.
    pub(super) fn write_message(
        &mut self,
        queue: PacketQueue,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        if !self.scheduler.is_ready(queue.pseudo()) {
            // Already asked in vain for something more urgent.
            return false;
        }
        let (begin, room) = (out.len(), self.packet_room());
        emit_packet_type(out);
        let next = store.next_packet(queue, now, room, out);
        let len = out.len().saturating_sub(begin);
        let fits = (PACKET_HEADER_LEN + 1..=PACKET_HEADER_LEN + room).contains(&len);
        let Some(next) = next.filter(|_| fits) else {
            out.truncate(begin);
            self.set_packets_ready(queue, false);
            return false;
        };
        out[begin + 1] = packet_channel(out[begin + 1] % PACKET_CHANNELS, next.ecn == Ecn::Ce);
        let size = len + self.config.overhead;
        self.scheduler.sent(queue.pseudo(), size);
        self.messages.scheduler.sent(queue.pseudo(), size);
        if !next.more {
            self.set_packets_ready(queue, false);
        }
        self.messages.on_sent(now, self.delivery.next_number(), len);
        self.stats.messages_sent += 1;
        self.sending = Sending::message(next.ecn);
        true
    }

    /// Handles a received datagram.
    pub(super) fn handle_message(
        &mut self,
        now: Duration,
        channel: u8,
        outer: Ecn,
        message: &[u8],
        store: &mut impl Store,
    ) {
        if !self.config.packets {
            self.stats.messages_ignored += 1;
            return;
        }
        self.stats.messages_received += 1;
        self.messages.on_received(now);
        store.packet(now, channel, outer, message);
    }
}
