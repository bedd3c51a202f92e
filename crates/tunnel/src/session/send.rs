//! What goes out, and when.

use std::time::Duration;

use super::{PacketQueue, Session, Written, segment::Segment};
use crate::{
    arrival::IDLE_AFTER,
    class::Class,
    coding::{CODED_OVERHEAD, Channel},
    ecn::Ecn,
    outage::{State, UNANSWERED_PACKETS},
    store::Store,
    wire::{Frame, SEGMENT_HEADER_LEN, StreamId},
};

/// How much longer than some round trips the answer to an MTU probe may take.
const PROBE_PATIENCE: Duration = Duration::from_millis(100);

/// What the packet in the making carries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sending {
    seq: Option<u64>,
    coded: bool,
    /// The mark of a packet beside streams.
    message: Option<Ecn>,
}

impl Sending {
    /// A segment.
    fn segment(seq: Option<u64>, coded: bool) -> Self {
        Self {
            seq,
            coded,
            message: None,
        }
    }

    /// A packet beside streams, with that mark.
    pub fn message(ecn: Ecn) -> Self {
        Self {
            message: Some(ecn),
            ..Self::default()
        }
    }

    /// The mark that the datagram gets.
    fn ecn(&self) -> Ecn {
        // That of a packet beside streams is its own (normal mode, RFC 6040 §4.1).
        self.message.unwrap_or(Ecn::Ect0)
    }
}

impl Session {
    /// Writes the next packet to be sent now to the end of `out`, if there is one.
    ///
    /// Reports go out whenever they are due; all else waits for its turn by the rate, and the more urgent
    /// goes first: repairs and bytes of interactive streams, what is lost, repairs of normal streams,
    /// new bytes of the others as far as the window allows, and, into silence, what may have been lost.
    pub fn poll_packet(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Written> {
        self.trace.at(now);
        if self.looked != Some(now) {
            self.update_estimates(now);
            self.looked = Some(now);
        }
        let begin = out.len();
        let report = self.write_unpaced(now, out);
        if out.len() == begin {
            let sent = self.may_send(now) && self.write_paced(now, out, begin, store);
            if !sent {
                self.note_idleness(now);
                return None;
            }
        }
        let size = out.len() - begin + self.config.overhead;
        let sending = std::mem::take(&mut self.sending);
        let Sending { seq, coded, .. } = sending;
        let number = self.delivery.on_sent(now, seq, size, coded);
        // Into silence, beacons go beside what is repeated: that may be too long for the path.
        if report || self.silence.state() == State::Up {
            self.arrivals.on_sent(now, report.then_some(size));
        }
        self.controller.on_sent(now, size as u64);
        self.pacer.set_rate(now, self.controller.rate());
        if report {
            let rate = self.controller.safe_rate();
            self.pacer.on_sent_ahead(now, size as u64, rate);
        } else {
            self.pacer.on_sent(now, size as u64);
        }
        self.stats.packets_sent += 1;
        self.stats.bytes_sent += size as u64;
        let ecn = sending.ecn();
        self.trace_sent(number, &out[begin..], size, ecn);
        Some(Written { number, ecn })
    }

    /// When to call [`poll_packet`](Self::poll_packet) again though nothing else has happened.
    pub fn deadline(&mut self) -> Option<Duration> {
        let own = [Some(self.arrivals.deadline()), self.silence_deadline()];
        let paced = self.silence.sends_from().and_then(|from| {
            let due = self.next_work()?;
            Some(due.max(from).max(self.pacer.deadline()))
        });
        own.into_iter().chain([paced]).flatten().min()
    }

    /// For when nothing can be sent whatever is due: takes note of silence all the same. When to be called again.
    pub fn wait(&mut self, now: Duration) -> Option<Duration> {
        self.update_estimates(now);
        self.silence_deadline()
    }

    /// When there is something to send, if it is our turn then.
    fn next_work(&mut self) -> Option<Duration> {
        if self.has_work() {
            return Some(Duration::ZERO);
        }
        if self.reliable {
            return None;
        }
        let [interactive, normal] = Channel::ALL.map(|channel| self.encoding.deadline(channel));
        let repeat = if self.silence.may_repeat() {
            self.delivery.repeat_at()
        } else {
            None
        };
        let probe = if self.silence.state() != State::Up {
            None
        } else {
            self.mtu.deadline()
        };
        [interactive, normal, repeat, probe]
            .into_iter()
            .flatten()
            .min()
    }

    /// Where it is our turn and there is nothing to send, what arrives says nothing of the link's rate.
    fn note_idleness(&mut self, now: Duration) {
        if self.may_send(now) {
            self.delivery.set_app_limited();
        }
    }

    fn may_send(&mut self, now: Duration) -> bool {
        let from = self.silence.sends_from();
        from.is_some_and(|from| now >= from) && self.pacer.may_send(now)
    }

    /// Looks whether the link is there.
    fn update_estimates(&mut self, now: Duration) {
        let idle = self.streams.is_empty() && self.delivery.is_empty();
        let rtt = self.delivery.smoothed_rtt();
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
        let spoken = self.messages.silent_since();
        let rests = |since: Duration| now >= since.max(spoken) + IDLE_AFTER.max(rtt * 3);
        self.arrivals.set_idle(self.idle_since.is_some_and(rests));
        let quiet = idle && !self.messages.is_talking(now);
        self.silence.set_idle(now, quiet, rtt);
        let unanswered = self.delivery.unanswered_since(UNANSWERED_PACKETS);
        let change = self.silence.on_time(now, unanswered, self.patience());
        self.report_change(now, change);
    }

    fn silence_deadline(&self) -> Option<Duration> {
        let unanswered = self.delivery.unanswered_since(UNANSWERED_PACKETS);
        self.silence.deadline(unanswered, self.patience())
    }

    /// Whether there is a report among it.
    fn write_unpaced(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if let Some((code, reason)) = self.closing.take() {
            let reason = &reason;
            Frame::Close { code, reason }.emit(out);
        }
        if let Some(id) = self.mtu_arrived.take() {
            Frame::MtuAck { id }.emit(out);
        }
        let report = self.arrivals.wants_report(now);
        if report && self.arrivals.is_beacon(now) && !self.delivery.is_empty() {
            // All that was sent may be lost, so that the peer sees no need of a report.
            Frame::Probe.emit(out);
        }
        if report {
            let mut report = self.arrivals.report(now);
            report.shorten((begin + self.mtu.size()).saturating_sub(out.len()));
            Frame::Report(report).emit(out);
            self.stats.reports_sent += 1;
        }
        report
    }

    fn write_paced(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        begin: usize,
        store: &mut impl Store,
    ) -> bool {
        loop {
            let next = self.next_turn();
            if self.write_by_urgency(now, next, out, begin, store) {
                return true;
            }
            // A queue that had nothing to send after all is idle now: somebody else is next.
            if next.and_then(PacketQueue::from_stream).is_none() || self.next_turn() == next {
                return false;
            }
        }
    }

    /// Whose turn it is, among those whom the window does not hold back.
    fn next_turn(&mut self) -> Option<StreamId> {
        let next = self.scheduler.next();
        let is_free = next.is_none_or(|next| PacketQueue::from_stream(next).is_some());
        if is_free || self.is_interactive(next) || self.window_is_open() {
            return next;
        }
        self.messages.scheduler.next().or(next)
    }

    fn write_by_urgency(
        &mut self,
        now: Duration,
        next: Option<StreamId>,
        out: &mut Vec<u8>,
        begin: usize,
        store: &mut impl Store,
    ) -> bool {
        if self.reliable {
            return self.write_urgent(now, next, out, store)
                || self.write_again(out, store)
                || self.write_fresh(now, next, out, store);
        }
        self.write_repair(Channel::Interactive, now, out)
            || self.write_mtu_probe(now, out, begin)
            || self.write_urgent(now, next, out, store)
            || self.write_second(now, out, store)
            || self.write_again(out, store)
            || self.write_repair(Channel::Normal, now, out)
            || self.write_fresh(now, next, out, store)
            || next.is_none() && self.write_tail_repair(now, out)
            || self.write_into_silence(now, out, store)
    }

    fn write_repair(&mut self, channel: Channel, now: Duration, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if !self.encoding.poll_repair(channel, now, out) {
            return false;
        }
        if out.len() - begin > self.mtu.size() {
            // The path has become too small for it; resending does its work.
            out.truncate(begin);
            return false;
        }
        self.stats.repairs_sent += 1;
        true
    }

    /// Nothing new waits: the last packets get the overcode that they lack.
    fn write_tail_repair(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        self.encoding.drained(Channel::Normal, now);
        self.write_repair(Channel::Normal, now, out)
    }

    fn write_mtu_probe(&mut self, now: Duration, out: &mut Vec<u8>, begin: usize) -> bool {
        if self.silence.state() != State::Up {
            return false;
        }
        let timeout = self.delivery.smoothed_rtt() * 3 + PROBE_PATIENCE;
        let Some(probe) = self.mtu.next_probe(now, timeout) else {
            return false;
        };
        Frame::MtuProbe { id: probe.id }.emit(out);
        out.resize(begin + probe.size, 0);
        true
    }

    /// What is to be said, and bytes of interactive streams: these do not wait for the window.
    fn write_urgent(
        &mut self,
        now: Duration,
        next: Option<StreamId>,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        let urgent = self.is_interactive(next) || !self.control.is_empty();
        urgent && self.write_new(now, next, out, store)
    }

    fn write_fresh(
        &mut self,
        now: Duration,
        next: Option<StreamId>,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        let Some(turn) = next else {
            return false;
        };
        let free = PacketQueue::from_stream(turn).is_some() || self.window_is_open();
        free && self.write_new(now, next, out, store)
    }

    fn is_interactive(&self, next: Option<StreamId>) -> bool {
        let class = next.and_then(|stream| self.scheduler.class(stream));
        class == Some(Class::Interactive)
    }

    /// A segment that begins with bytes of the stream whose turn it is, if there is one; or the packet of a queue, unless something is to
    /// be said first.
    fn write_new(
        &mut self,
        now: Duration,
        next: Option<StreamId>,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        if self.control.is_empty()
            && let Some(queue) = next.and_then(PacketQueue::from_stream)
        {
            return self.write_message(queue, now, out, store);
        }
        let channel = next.and_then(|stream| self.channel_of(stream));
        let seq = match channel {
            Some(channel) => self.write_coded(channel, now, out, store),
            None => self.pack(None, self.mtu.size(), now, out, store),
        };
        self.sending = Sending::segment(seq, channel.is_some());
        seq.is_some()
    }

    /// Writes a new segment under overcode; its number.
    fn write_coded(
        &mut self,
        channel: Channel,
        now: Duration,
        out: &mut Vec<u8>,
        store: &impl Store,
    ) -> Option<u64> {
        let (begin, max) = (out.len(), self.mtu.size() - CODED_OVERHEAD);
        let mut content = std::mem::take(&mut self.scratch);
        content.clear();
        let seq = self.pack(Some(channel), max, now, &mut content, store);
        if let Some(seq) = seq {
            self.encoding.protect(channel, &content, now, out);
            if let Some(segment) = self.delivery.content_mut(seq) {
                segment.len = out.len() - begin;
            }
        }
        self.scratch = content;
        seq
    }

    /// What all wait for after a long silence, a second time.
    fn write_second(&mut self, now: Duration, out: &mut Vec<u8>, store: &impl Store) -> bool {
        let Some((seq, segment, _)) = self.delivery.next_second(now) else {
            return false;
        };
        let segment = std::mem::take(segment);
        self.stats.segments_repeated += 1;
        self.write_old(seq, segment, out, store);
        true
    }

    /// What is lost, the oldest first.
    fn write_again(&mut self, out: &mut Vec<u8>, store: &impl Store) -> bool {
        let Some((seq, segment, sent_at)) = self.delivery.next_resend() else {
            return false;
        };
        let segment = std::mem::take(segment);
        self.mtu.on_lost(segment.len, sent_at);
        self.stats.segments_retransmitted += 1;
        self.write_old(seq, segment, out, store);
        true
    }

    /// What was sent longest ago and is not acknowledged: it may be lost, and nobody can say.
    fn write_into_silence(&mut self, now: Duration, out: &mut Vec<u8>, store: &impl Store) -> bool {
        if !self.silence.may_repeat() {
            return false;
        }
        let Some((seq, segment, sent_at)) = self.delivery.repeat_oldest(now) else {
            return false;
        };
        let segment = std::mem::take(segment);
        // While it goes again and again it is never found lost; short packets tell whether it is an outage.
        self.mtu.on_lost(segment.len, sent_at);
        self.stats.segments_repeated += 1;
        self.write_old(seq, segment, out, store);
        true
    }

    fn write_old(&mut self, seq: u64, segment: Segment, out: &mut Vec<u8>, store: &impl Store) {
        let begin = out.len();
        self.repack(seq, &segment, out, store);
        let mut segment = self.shorten(segment, out, begin);
        segment.len = out.len() - begin;
        self.delivery.replace(seq, segment);
        self.sending = Sending::segment(Some(seq), false);
    }

    /// If a segment has become too long for the path, what it held is said anew by others, and it goes
    /// without, so that its number is not missing for ever.
    fn shorten(&mut self, segment: Segment, out: &mut Vec<u8>, begin: usize) -> Segment {
        if out.len() - begin <= self.mtu.size() {
            return segment;
        }
        self.control.extend(segment.parts);
        out.truncate(begin + SEGMENT_HEADER_LEN);
        Segment::default()
    }

    pub(super) fn window_is_open(&self) -> bool {
        let rate = self.controller.link_rate() / 8;
        let blind = self.silence.is_blind();
        self.delivery.window_open(rate, self.spacing, blind)
    }

    /// Whether there is something to send as soon as it is our turn.
    fn has_work(&mut self) -> bool {
        let fresh = match self.next_turn() {
            Some(next) if PacketQueue::from_stream(next).is_some() => true,
            next @ Some(_) => self.is_interactive(next) || self.window_is_open(),
            None => false,
        };
        fresh || !self.control.is_empty() || self.delivery.has_lost()
    }

    /// What protects a stream at present. One that fills the link is sent again what it loses: its bytes wait
    /// for longer than that takes.
    pub(super) fn channel_of(&self, stream: StreamId) -> Option<Channel> {
        let channel = Channel::for_class(self.streams.class(stream)?)?;
        let normal = channel == Channel::Normal;
        let idle = normal && self.encoding.share() == 0.0;
        let plain = self.reliable || idle || normal && self.scheduler.fills_link(stream);
        (!plain).then_some(channel)
    }
}
