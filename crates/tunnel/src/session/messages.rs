//! Packets beside streams: sent once, each in a packet of its own, and handed on as they come.
//!
//! ```text
//!   set_packets_ready                     it is its turn: next_packet
//!   -----------------> queue in the scheduler ------------------------> packet
//!                      among the streams
//! ```
//!
//! In the scheduler a queue is a stream with a number that no stream can have, so that classes, weights of sites and turns hold
//! among queues and streams. Only the window is not theirs, as nothing of them is kept that could fill it: where it holds streams
//! back, a scheduler that knows of queues alone says which one is next.

use std::{collections::VecDeque, time::Duration};

use super::{PacketQueue, Session, TooManyQueues, send::Sending};
use crate::{
    arrival::IDLE_AFTER,
    cause::LossEvent,
    class::Class,
    ecn::Ecn,
    path::Mtu,
    schedule::{Scheduler, SiteId},
    store::Store,
    wire::{GAPS_MAX, Gap, PACKET_CHANNELS, PACKET_HEADER_LEN, emit_packet_type, packet_channel},
};

/// Queues that there may be at a time, of a session.
pub const QUEUES_MAX: usize = 64;

/// The lengths of so many of the last packets are known, 32 KiB: to tell that long ones do not come through takes a few dozen.
const SENT_MAX: usize = 2048;

/// What a session knows of packets beside streams.
#[derive(Debug, Default)]
pub(super) struct Messages {
    next: u32,
    open: usize,
    /// Of the queues alone.
    pub scheduler: Scheduler,
    /// Numbers and lengths of packets that carried one, rising.
    sent: VecDeque<(u64, usize)>,
    /// The peer has said of what is below this whether it has arrived.
    reported: u64,
    /// When the last one was sent or came, and when the last one came.
    spoken: Option<Duration>,
    heard: Option<Duration>,
}

impl Messages {
    /// Packet `number` carries one, and is so long.
    fn on_sent(&mut self, now: Duration, number: u64, len: usize) {
        self.spoken = Some(now);
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((number, len));
    }

    pub fn on_received(&mut self, now: Duration) {
        self.spoken = Some(now);
        self.heard = Some(now);
    }

    /// Since when there has been no talk.
    pub fn silent_since(&self) -> Duration {
        self.spoken.unwrap_or_default()
    }

    /// Whether the peer knows that there is talk: what it sends shows it. What we send may be lost, so it shows nothing.
    pub fn is_talking(&self, now: Duration) -> bool {
        self.heard.is_some_and(|heard| now < heard + IDLE_AFTER)
    }

    /// The highest number that has arrived is `highest` now, and these are missing: whether packets that are news now carried any. The longest of
    /// them counts for the path, whichever was last: the last one of a burst is often a short one.
    pub fn on_arrived(&mut self, highest: u64, gaps: &[Gap], mtu: &mut Mtu) -> bool {
        let from = std::mem::replace(&mut self.reported, highest.saturating_add(1));
        // Of what is before as many gaps as a report has room for there may be more.
        let told = gaps.first().filter(|_| gaps.len() == GAPS_MAX);
        let from = told.map_or(from, |gap| from.max(gap.before));
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
        longest.is_some()
    }

    /// Of these packets some may have been too long for the path.
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
    /// Whether the peer takes packets beside streams: as it was agreed when the session began.
    #[must_use]
    pub fn takes_packets(&self) -> bool {
        self.config.peer_packets
    }

    /// The longest message of a packet beside streams that fits now, in bytes. It changes with what is known of the path. On the link it takes
    /// [`PACKET_HEADER_LEN`] and what every packet takes more.
    #[must_use]
    pub fn packet_room(&self) -> usize {
        self.mtu.size() - PACKET_HEADER_LEN
    }

    /// What [`packet_room`](Self::packet_room) is expected to be when the search that goes on for the path's longest packet has ended. Who is told
    /// the room and remembers it, as hosts do for ten minutes (RFC 8201 §4), is to be told this.
    #[must_use]
    pub fn expected_packet_room(&self) -> usize {
        self.mtu.expected() - PACKET_HEADER_LEN
    }

    /// A queue of packets beside streams, with nothing to send. It takes turns with streams of its class and site, where it is one of those of
    /// host 0.
    ///
    /// # Errors
    /// If there are [`QUEUES_MAX`].
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

    /// The queue is no more.
    pub fn close_packets(&mut self, queue: PacketQueue) {
        let messages = &mut self.messages;
        if messages.scheduler.class(queue.pseudo()).is_some() {
            messages.open -= 1;
            messages.scheduler.remove(queue.pseudo());
            self.scheduler.remove(queue.pseudo());
        }
    }

    /// Whether the queue has something to send, for which it is [asked](Store::next_packet) when it is its turn. Of no effect where the peer
    /// does not take packets.
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

    /// A packet of that queue, whose turn it is. There may be none after all; the queue is idle then.
    pub(super) fn write_message(
        &mut self,
        queue: PacketQueue,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        if !self.scheduler.is_ready(queue.pseudo()) {
            // It was asked for something more urgent, in vain.
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

    /// A packet of a queue has arrived.
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
