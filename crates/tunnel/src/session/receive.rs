//! Handling of received packets.

use std::time::Duration;

use trace::Event as TraceEvent;

use super::{EVENTS_MAX, Event, PacketError, Session};
use crate::{
    arrival::{Arrived, Asks},
    coding::Origin,
    ecn::Ecn,
    store::Store,
    wire::{Data, FRAMES_MAX, Frame, Frames, Part, Parts, StreamId, expand},
};

impl Session {
    /// Handles a packet that has arrived for the first time, with its number and the mark of its
    /// datagram. `datagram` is its length on the wire, without IP and UDP.
    ///
    /// # Errors
    ///
    /// The packet is invalid; close the session.
    pub fn handle_packet(
        &mut self,
        now: Duration,
        number: u64,
        packet: &[u8],
        datagram: usize,
        ecn: Ecn,
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
        self.stats.packets_received += 1;
        self.trace.at(now);
        self.trace_received(number, packet, datagram, ecn);
        self.looked = None;
        self.arrived_at = now;
        let follows = |highest: u64| number == highest.saturating_add(1);
        self.is_gapless &= self.arrivals.highest().is_none_or(follows);
        if self.silence.has_drained(now) {
            self.delivery.expect_drained();
        }
        if packet.len() > self.config.packet_max {
            return Err(PacketError::Length);
        }
        let (mut progress, mut asks) = (false, Asks::Nothing);
        let mut marked = ecn == Ecn::Ce;
        for (count, frame) in Frames::with_padding_joined(packet).enumerate() {
            if count >= FRAMES_MAX {
                return Err(PacketError::Frames);
            }
            let frame = frame?;
            asks = asks.max(match frame {
                Frame::Report(_) | Frame::Padding | Frame::Later { .. } => Asks::Nothing,
                Frame::Packet { .. } => Asks::Later,
                _ => Asks::Soon,
            });
            if let Frame::Packet { marked: before, .. } = frame {
                marked &= !before;
            }
            progress |= self.handle_frame(now, frame, ecn, store)?;
        }
        let arrived = Arrived {
            number,
            datagram,
            marked,
            asks,
        };
        let limit = self.silence.limit();
        self.arrivals.on_packet(now, &arrived, limit);
        let change = self.silence.on_packet(now, progress);
        self.report_change(now, change);
        Ok(())
    }

    /// Handles a frame. Returns true if it raises the highest packet number that has arrived at the
    /// peer.
    fn handle_frame(
        &mut self,
        now: Duration,
        frame: Frame<'_>,
        ecn: Ecn,
        store: &mut impl Store,
    ) -> Result<bool, PacketError> {
        match frame {
            Frame::Padding | Frame::Later { .. } => {}
            Frame::Probe => self.arrivals.ask(),
            Frame::Report(report) => return self.handle_report(now, report),
            Frame::MtuProbe { id } => self.mtu_arrived = Some(id),
            Frame::MtuAck { id } => self.mtu.on_ack(id),
            Frame::PathChallenge { token } => self.validation.challenged = Some(token),
            Frame::PathResponse { token } => self.validation.answer = Some(token),
            Frame::Close { code, reason } => {
                if !std::mem::replace(&mut self.peer_closed, true) {
                    let reason = reason.to_owned();
                    self.events.push_back(Event::PeerClosed { code, reason });
                }
            }
            Frame::Segment { seq, parts } => {
                self.handle_segment(seq, parts, store)?;
            }
            Frame::Coded { channel, protected } => self.handle_coded(channel, protected, store)?,
            Frame::Packet {
                channel, message, ..
            } => self.handle_message(now, channel, ecn, message, store),
        }
        Ok(false)
    }

    fn handle_coded(
        &mut self,
        channel: u8,
        protected: &[u8],
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
        // Taken out while in use, so that restored segments can be handled meanwhile.
        let Some(mut decoding) = self.decoding.take() else {
            return Ok(());
        };
        let mut outcome = Ok(());
        let mut restored = 0;
        let decoded = decoding.handle(channel, protected, |packet, from| {
            if outcome.is_ok() {
                let is_new = self.handle_content(packet, store);
                restored += u64::from(is_new == Ok(true) && from == Origin::Restored);
                outcome = is_new.map(|_| ());
            }
        });
        self.decoding = Some(decoding);
        if restored > 0 {
            self.stats.segments_restored += restored;
            self.trace
                .push(|| TraceEvent::Restored { segments: restored });
        }
        decoded?;
        outcome
    }

    /// Handles an FEC-protected payload, which must be a single segment. Returns true if that is
    /// taken.
    fn handle_content(
        &mut self,
        content: &[u8],
        store: &mut impl Store,
    ) -> Result<bool, PacketError> {
        match Frames::new(content).next() {
            Some(Ok(Frame::Segment { seq, parts })) => self.handle_segment(seq, parts, store),
            Some(Err(error)) => Err(error.into()),
            _ => Err(PacketError::Content),
        }
    }

    /// Handles a segment. Returns true if it is taken: new, and there is room for what it causes.
    fn handle_segment(
        &mut self,
        seq: u32,
        parts: &[u8],
        store: &mut impl Store,
    ) -> Result<bool, PacketError> {
        let seq = expand(seq, self.arrivals.below());
        let wait = self.lacks_opening(parts)?;
        if !self.has_room(parts, wait) {
            // The peer retransmits it.
            self.stats.segments_not_held += 1;
            return Ok(false);
        }
        self.arrivals.set_ranges_max(self.streams.runs_max());
        if !self.arrivals.on_segment(seq) {
            self.stats.segments_doubled += 1;
            return Ok(false);
        }
        self.handle_parts(parts, wait, store)?;
        Ok(true)
    }

    /// Returns true if there is room for what a segment causes; `wait` tells that it must be held.
    fn has_room(&self, parts: &[u8], wait: bool) -> bool {
        let fits = |part: Part<'_>| match part {
            Part::Data {
                stream,
                from,
                bytes,
                fin,
            } => !self
                .streams
                .adds_piece(Data::new(stream, from, bytes.len(), fin)),
            _ => true,
        };
        // Bytes are taken nevertheless, whose answers are coalesced: two ends that wait for each
        // other to take segments would wait for ever.
        let adds = |part: Part<'_>| matches!(part, Part::Open { .. } | Part::Reset { .. });
        let is_quiet = !self.is_backed_up() || !Parts::new(parts).flatten().any(adds);
        is_quiet
            && self.events.len() < EVENTS_MAX
            && (!wait || self.held.has_room(parts))
            && (!self.streams.is_scattered() || Parts::new(parts).flatten().all(fits))
    }

    /// Returns true if a segment refers to a stream whose opening has not arrived, nor is in the
    /// segment.
    fn lacks_opening(&self, parts: &[u8]) -> Result<bool, PacketError> {
        let mut opened = None;
        for part in Parts::new(parts) {
            let part = part?;
            if let Part::Open { stream, .. } = part {
                opened = Some(stream);
            } else if part.stream() != opened && self.is_early(&part)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if a part refers to a stream whose opening has not arrived yet.
    fn is_early(&self, part: &Part<'_>) -> Result<bool, PacketError> {
        let stream = match part {
            Part::Open { .. } => None,
            part => part.stream(),
        };
        Ok(stream.map_or(Ok(false), |stream| self.streams.may_be_opened(stream))?)
    }

    /// Handles parts. If `wait`, parts that lack an opening are held, and others do not wait for
    /// them. An opening releases the held parts of its stream.
    fn handle_parts(
        &mut self,
        parts: &[u8],
        wait: bool,
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
        let mut parts = Parts::new(parts);
        while let Some(part) = parts.next() {
            let part = part?;
            if wait
                && let Some(stream) = part.stream()
                && self.is_early(&part)?
            {
                self.held.push(stream, &part);
                continue;
            }
            self.handle_part(part, parts.is_whole(), store)?;
            if let Part::Open { stream, .. } = part {
                self.handle_held(stream, store)?;
            }
        }
        Ok(())
    }

    /// Handles the held parts of a stream that has been opened. No opening is among them.
    fn handle_held(&mut self, stream: StreamId, store: &mut impl Store) -> Result<(), PacketError> {
        for part in self.held.take(stream) {
            for part in Parts::new(&part) {
                self.handle_part(part?, false, store)?;
            }
        }
        Ok(())
    }
}
