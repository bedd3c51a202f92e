//! Writing of packets.

use std::time::Duration;

use super::{PacketQueue, Session, Written, segment::Segment};
use crate::{
    arrival::{IDLE_AFTER, PEER_RESTS_AFTER, REST_AFTER},
    class::Class,
    coding::{CODED_OVERHEAD, Channel},
    ecn::Ecn,
    outage::{State, UNANSWERED_PACKETS},
    store::Store,
    wire::{Frame, SEGMENT_HEADER_LEN, StreamId},
};

/// Additional time for the answer to an MTU probe, beyond some round trips.
const PROBE_PATIENCE: Duration = Duration::from_millis(100);
/// Bytes of a CLOSE before its reason.
const CLOSE_LEN: usize = 4;

/// Contents of the packet being written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sending {
    seq: Option<u64>,
    coded: bool,
    /// Mark of a datagram, if the packet carries one.
    message: Option<Ecn>,
}

impl Sending {
    /// Packet with a segment.
    fn segment(seq: Option<u64>, coded: bool) -> Self {
        Self {
            seq,
            coded,
            message: None,
        }
    }

    /// Packet with a datagram that has this mark.
    pub fn message(ecn: Ecn) -> Self {
        Self {
            message: Some(ecn),
            ..Self::default()
        }
    }

    /// Returns the mark for the UDP datagram.
    fn ecn(&self) -> Ecn {
        // A datagram's mark is copied outwards (normal mode, RFC 6040 §4.1).
        self.message.unwrap_or(Ecn::Ect0)
    }
}

impl Session {
    /// Writes the next packet to the end of `out`, if one may be sent now.
    ///
    /// Reports are sent as soon as they are due; everything else is paced, in this order:
    ///
    /// 1. repair packets of interactive streams
    /// 2. probes of the path MTU
    /// 3. control parts, and bytes of interactive streams
    /// 4. copies of retransmissions
    /// 5. lost segments
    /// 6. repair packets of normal streams
    /// 7. new bytes of the other streams, as far as the window allows, and datagrams
    /// 8. during a silence, repeats of segments in flight
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
            let paced = self.has_room_for_data() && self.may_send(now);
            let sent = paced && self.write_paced(now, out, begin, store);
            if !sent {
                self.note_idleness(now);
                return None;
            }
        }
        let size = out.len() - begin + self.config.overhead;
        let sending = std::mem::take(&mut self.sending);
        let Sending { seq, coded, .. } = sending;
        // What the first reports and bursts measure has no gaps.
        let may_skip = self.delivery.is_reported() && !self.controller.is_in_burst();
        let packet = self.delivery.on_sent(now, seq, size, coded);
        let number = self.skips.next(packet, may_skip);
        // Beacons accompany repeats into a silence, as the repeats may be too long for the path.
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

    /// Returns when to call [`poll_packet`](Self::poll_packet) again if nothing else happens.
    pub fn deadline(&mut self) -> Option<Duration> {
        let report = Some(self.report_deadline());
        report.into_iter().chain(self.deadline_but_report()).min()
    }

    /// Returns when a report is due; [`Duration::MAX`] without [room](Self::set_room) for one.
    pub fn report_deadline(&self) -> Duration {
        if self.has_room_for_report(0) {
            self.arrivals.deadline()
        } else {
            Duration::MAX
        }
    }

    /// Returns the [deadline](Self::deadline) of everything but a report.
    pub fn deadline_but_report(&mut self) -> Option<Duration> {
        let from = self.silence.sends_from();
        let from = from.filter(|_| self.has_room_for_data());
        let paced = from.and_then(|from| {
            let due = self.next_work()?;
            let paced = if self.is_urgent() {
                self.pacer.next()
            } else {
                self.pacer.deadline()
            };
            Some(due.max(from).max(paced))
        });
        [self.silence_deadline(), paced].into_iter().flatten().min()
    }

    /// Updates silence detection while nothing can be sent. Returns when to call again.
    pub fn wait(&mut self, now: Duration) -> Option<Duration> {
        self.update_estimates(now);
        self.silence_deadline()
    }

    /// Returns when there is something to send, subject to pacing.
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
        let copy = self.delivery.copy_at();
        [interactive, normal, copy, repeat, probe]
            .into_iter()
            .flatten()
            .min()
    }

    /// Marks the session as application-limited if it may send and has nothing: arrivals then do
    /// not measure the link's rate.
    fn note_idleness(&mut self, now: Duration) {
        if self.may_send(now) {
            self.delivery.set_app_limited();
        }
    }

    fn may_send(&mut self, now: Duration) -> bool {
        let from = self.silence.sends_from();
        from.is_some_and(|from| now >= from)
            && (self.pacer.may_send(now) || now >= self.pacer.next() && self.is_urgent())
    }

    /// Returns true if an interactive stream's bytes are next, which wait for no batch.
    fn is_urgent(&mut self) -> bool {
        let next = self.next_turn();
        self.is_interactive(next)
    }

    /// Updates the state of the link.
    fn update_estimates(&mut self, now: Duration) {
        let idle = self.streams.is_empty() && self.delivery.is_empty();
        let rtt = self.delivery.smoothed_rtt();
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
        let messages_at = self.messages.silent_since();
        let passed = |since: Duration, time| now >= since + time;
        let since = self.idle_since.map(|since| since.max(messages_at));
        let idle_for = |time| since.is_some_and(|since| passed(since, time));
        let rests = self.config.peer_rests && idle_for(REST_AFTER);
        self.arrivals.set_idle(idle_for(IDLE_AFTER.max(rtt * 3)));
        self.arrivals.set_rests(rests);
        let quiet = idle && !self.messages.is_talking(now);
        self.silence.set_idle(now, quiet, rtt);
        let without_streams = self
            .idle_since
            .is_some_and(|since| passed(since, PEER_RESTS_AFTER));
        let peer_rests = without_streams && self.messages.may_peer_rest(now);
        self.silence.set_rests(self.config.peer_rests && peer_rests);
        let unanswered = self.delivery.unanswered_since(UNANSWERED_PACKETS);
        let change = self.silence.on_time(now, unanswered, self.patience());
        self.report_change(now, change);
    }

    /// Returns when the link counts as silent, unless a packet arrives before.
    pub fn silence_deadline(&self) -> Option<Duration> {
        let unanswered = self.delivery.unanswered_since(UNANSWERED_PACKETS);
        self.silence.deadline(unanswered, self.patience())
    }

    /// Writes frames that are not paced. Returns true if a report is among them.
    fn write_unpaced(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if std::mem::take(&mut self.asks) {
            Frame::Probe.emit(out);
        }
        if let Some(id) = self.mtu_arrived.take() {
            Frame::MtuAck { id }.emit(out);
        }
        if let Some((code, reason)) = self.closing.take() {
            let fits = CLOSE_LEN + reason.len() <= self.validation.left(out.len() - begin);
            let reason = if fits { &reason } else { "" };
            Frame::Close { code, reason }.emit(out);
        }
        self.write_path_frames(begin, out);
        let report =
            self.arrivals.wants_report(now) && self.has_room_for_report(out.len() - begin + 1);
        if report && self.arrivals.is_beacon(now) && self.awaits_reports() {
            // Everything sent may be lost, so the peer may see no need for a report.
            Frame::Probe.emit(out);
        }
        if report {
            let mut report = self.arrivals.report(now);
            let written = out.len() - begin;
            let left = self.mtu.size().saturating_sub(written);
            report.shorten(left.min(self.validation.left(written)));
            Frame::Report(report).emit(out);
            self.stats.reports_sent += 1;
        }
        report
    }

    /// Returns true if reports matter that the peer may see no need for. While the link is not up,
    /// streams may have begun of which the peer does not know.
    fn awaits_reports(&self) -> bool {
        let is_up = self.silence.state() == State::Up;
        !self.delivery.is_empty() || !is_up && !self.streams.is_empty()
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
            // A queue that turned out to be empty is idle now; try the next one.
            if next.and_then(PacketQueue::from_stream).is_none() || self.next_turn() == next {
                return false;
            }
        }
    }

    /// Returns the stream or queue whose turn it is, among those that the window does not block.
    fn next_turn(&mut self) -> Option<StreamId> {
        self.wake_blocked();
        let next = self.scheduler.next();
        let is_free = next.is_none_or(|next| PacketQueue::from_stream(next).is_some());
        if is_free || self.is_interactive(next) && self.may_bypass() || self.window_is_open() {
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
            || self.write_copy(now, out, store)
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
            // The path MTU has become too small for the repair packet; retransmission replaces it.
            out.truncate(begin);
            return false;
        }
        self.stats.repairs_sent += 1;
        true
    }

    /// Writes repair packets for the last packets when no new data waits.
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

    /// Writes control parts and bytes of interactive streams, which may exceed the window a little.
    fn write_urgent(
        &mut self,
        now: Duration,
        next: Option<StreamId>,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        let interactive = self.is_interactive(next);
        if interactive {
            self.urgent_at = Some(now);
        }
        let urgent = interactive || !self.control.is_empty();
        urgent && self.may_bypass() && self.write_new(now, next, out, store)
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

    /// Writes a segment that begins with bytes of the stream whose turn it is, or a datagram of the
    /// queue whose turn it is. Control parts go first.
    fn write_new(
        &mut self,
        now: Duration,
        next: Option<StreamId>,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> bool {
        if (self.control.is_empty() || !self.may_bypass())
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

    /// Writes a new FEC-protected segment; returns its number.
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

    /// Writes a copy of a retransmission, as all data waits for it.
    fn write_copy(&mut self, now: Duration, out: &mut Vec<u8>, store: &impl Store) -> bool {
        let Some((seq, segment, _)) = self.delivery.next_copy(now) else {
            return false;
        };
        let segment = std::mem::take(segment);
        self.stats.segments_repeated += 1;
        self.write_old(seq, segment, out, store);
        true
    }

    /// Retransmits the oldest lost segment.
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

    /// Repeats the oldest unacknowledged segment during a silence, as it may be lost.
    fn write_into_silence(&mut self, now: Duration, out: &mut Vec<u8>, store: &impl Store) -> bool {
        if !self.silence.may_repeat() {
            return false;
        }
        let Some((seq, segment, sent_at)) = self.delivery.repeat_oldest(now) else {
            return false;
        };
        let segment = std::mem::take(segment);
        // Repeated segments are never found lost; short packets tell whether it is an outage.
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

    /// Replaces a segment that has become too long for the path. Its contents move to new segments,
    /// and it is sent empty, so that its number is acknowledged.
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

    /// Returns true if urgent segments may be sent, whether or not the window is open.
    fn may_bypass(&self) -> bool {
        let rate = self.controller.link_rate() / 8;
        let blind = self.silence.is_blind();
        self.delivery.may_bypass(rate, self.spacing, blind)
    }

    /// Returns true if there is something to send, subject to pacing.
    fn has_work(&mut self) -> bool {
        let fresh = match self.next_turn() {
            Some(next) if PacketQueue::from_stream(next).is_some() => true,
            next @ Some(_) => {
                self.is_interactive(next) && self.may_bypass() || self.window_is_open()
            }
            None => false,
        };
        let control = !self.control.is_empty() && self.may_bypass();
        fresh || control || self.delivery.has_lost()
    }

    /// Returns the FEC channel of a stream at present. A normal stream that fills the link has
    /// none: its bytes wait for longer than retransmission takes.
    pub(super) fn channel_of(&self, stream: StreamId) -> Option<Channel> {
        let channel = Channel::for_class(self.streams.class(stream)?)?;
        let normal = channel == Channel::Normal;
        let idle = normal && self.encoding.share() == 0.0;
        let plain = self.reliable || idle || normal && self.scheduler.fills_link(stream);
        (!plain).then_some(channel)
    }
}
