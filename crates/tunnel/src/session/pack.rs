//! Filling of segments: control parts first, then bytes of the streams whose turn it is.

use std::time::Duration;

use super::{
    PacketQueue, Session,
    segment::{Segment, Sent},
};
use crate::{
    coding::Channel,
    store::Store,
    wire::{Data, Part, SEGMENT_HEADER_LEN, StreamId, emit_segment_header},
};

/// Space reserved for a credit part, which may have grown when it is rewritten.
const CREDIT_LEN: usize = 1 + 8 + 8;

/// A segment being written.
pub(super) struct Packing<'a> {
    pub segment: Segment,
    out: &'a mut Vec<u8>,
    /// Maximum length of `out`.
    end: usize,
    /// No part fits after the current ones.
    closed: bool,
}

impl<'a> Packing<'a> {
    /// Creates a segment of at most `max` bytes after the contents of `out`. [`number`] completes
    /// its header.
    fn new(channel: Option<Channel>, max: usize, out: &'a mut Vec<u8>) -> Self {
        let end = out.len() + max;
        emit_segment_header(0, out);
        Self {
            segment: Segment {
                channel,
                ..Segment::default()
            },
            end,
            out,
            closed: false,
        }
    }

    fn room(&self) -> usize {
        if self.closed {
            return 0;
        }
        self.end.saturating_sub(self.out.len())
    }

    fn push(&mut self, part: &Part<'_>, sent: Sent) {
        part.emit(false, self.out);
        self.segment.parts.push(sent);
    }

    /// Adds as much data as fits; returns the added part, or `None` if there is no room.
    fn push_data(&mut self, data: Data, store: &impl Store) -> Option<Data> {
        let fit = Data::fit(data.stream, data.from, data.len, self.room())?;
        let fitting = Data {
            len: fit.len,
            fin: data.fin && fit.len == data.len,
            ..data
        };
        self.closed = fit.last;
        self.segment.parts.push(Sent::Data(fitting));
        write_data(fitting, fit.last, self.out, store);
        Some(fitting)
    }
}

/// Writes the number of a segment into its header.
fn number(seq: u64, segment: &mut [u8]) {
    segment[1..SEGMENT_HEADER_LEN].copy_from_slice(&(seq as u32).to_be_bytes());
}

fn write_data(data: Data, last: bool, out: &mut Vec<u8>, store: &impl Store) {
    data.emit_header(last, out);
    let begin = out.len();
    out.resize(begin + data.len, 0);
    store.read(data.stream, data.from, &mut out[begin..]);
}

impl Session {
    /// Writes a new segment of at most `max` bytes to the end of `out`: control parts, then streams
    /// of a channel. Returns its number, or `None` if there is nothing to send.
    pub(super) fn pack(
        &mut self,
        channel: Option<Channel>,
        max: usize,
        now: Duration,
        out: &mut Vec<u8>,
        store: &impl Store,
    ) -> Option<u64> {
        let begin = out.len();
        let mut packing = Packing::new(channel, max, out);
        self.pack_control(&mut packing, store);
        self.pack_streams(&mut packing, now, store);
        let mut segment = packing.segment;
        if segment.parts.is_empty() {
            out.truncate(begin);
            return None;
        }
        segment.len = out.len() - begin;
        // Its memory grew by doubling, and lasts until the peer acknowledges the segment.
        segment.parts.shrink_to_fit();
        let (size, beyond) = (segment.len, segment.beyond());
        let seq = self.delivery.push(segment, size, beyond);
        number(seq, &mut out[begin..]);
        Some(seq)
    }

    fn pack_control(&mut self, packing: &mut Packing<'_>, store: &impl Store) {
        while let Some(sent) = self.control.pop_front() {
            if let Some(rest) = self.pack_sent(sent, packing, store) {
                self.control.push_front(rest);
                return;
            }
        }
    }

    /// Adds a retransmitted or control part; returns what did not fit.
    fn pack_sent(
        &mut self,
        sent: Sent,
        packing: &mut Packing<'_>,
        store: &impl Store,
    ) -> Option<Sent> {
        if let Sent::Data(data) = sent {
            return self.pack_again(data, packing, store).map(Sent::Data);
        }
        let Some(part) = self.part_of(sent) else {
            if let Sent::Hold(stream) = sent {
                self.streams.hold_sent(stream);
            }
            return None;
        };
        let len = match sent {
            Sent::Credit(_) | Sent::Hold(_) | Sent::SessionCredit => CREDIT_LEN,
            _ => part.len(false),
        };
        if len > packing.room() {
            return Some(sent);
        }
        packing.push(&part, sent);
        match sent {
            Sent::Credit(stream) => self.streams.credit_sent(stream),
            Sent::Hold(stream) => self.streams.hold_sent(stream),
            Sent::SessionCredit => self.streams.session_credit_sent(),
            _ => {}
        }
        None
    }

    fn pack_again(
        &self,
        data: Data,
        packing: &mut Packing<'_>,
        store: &impl Store,
    ) -> Option<Data> {
        if !self.streams.contains(data.stream) {
            return None;
        }
        let Some(packed) = packing.push_data(data, store) else {
            return Some(data);
        };
        let rest = Data {
            from: packed.from + packed.len as u64,
            len: data.len - packed.len,
            ..data
        };
        (rest.len > 0).then_some(rest)
    }

    /// Returns the current content of a part; `None` if it is obsolete.
    pub(super) fn part_of(&self, sent: Sent) -> Option<Part<'_>> {
        Some(match sent {
            Sent::Open(stream, class) => Part::Open {
                stream,
                class,
                stream_header: self.openings.get(&stream)?,
            },
            Sent::Data(_) => return None,
            Sent::Reset(stream, code, sent) => Part::Reset { stream, code, sent },
            Sent::Credit(stream) => Part::Credit {
                stream,
                until: self.streams.allowed(stream)?,
            },
            Sent::Hold(stream) => Part::Hold {
                stream,
                until: self.streams.held_at(stream)?,
            },
            Sent::SessionCredit => Part::SessionCredit {
                until: self.streams.session_allowed(),
            },
            Sent::Reclass(stream) => Part::Reclass {
                stream,
                class: self.streams.class(stream)?,
            },
        })
    }

    /// Adds new bytes of the streams whose turn it is, as long as they belong to the segment's
    /// channel.
    fn pack_streams(&mut self, packing: &mut Packing<'_>, now: Duration, store: &impl Store) {
        while let Some(stream) = self.scheduler.next() {
            let is_queue = PacketQueue::from_stream(stream).is_some();
            if is_queue || self.channel_of(stream) != packing.segment.channel {
                return;
            }
            let before = packing.out.len();
            let fits = self.pack_stream(stream, packing, now, store);
            self.scheduler.sent(stream, packing.out.len() - before);
            self.unqueue_sent(stream);
            self.update_readiness(stream);
            let rtt = self.delivery.smoothed_rtt();
            self.scheduler.on_turn(stream, now, rtt);
            if !fits {
                return;
            }
        }
    }

    /// Ends the priority of a stream when the bytes it was queued for are sent.
    fn unqueue_sent(&mut self, stream: StreamId) {
        let until = self.queued.get(&stream).copied();
        if until.is_some_and(|until| self.streams.sent(stream).is_none_or(|sent| sent >= until)) {
            self.queued.remove(&stream);
            self.scheduler.unqueue(stream);
        }
    }

    /// Adds new bytes of a stream, and its opening before them; returns true if everything fitted.
    fn pack_stream(
        &mut self,
        stream: StreamId,
        packing: &mut Packing<'_>,
        now: Duration,
        store: &impl Store,
    ) -> bool {
        if let Some(opening) = self.opening(stream) {
            if self.pack_sent(opening, packing, store).is_some() {
                return false;
            }
            self.streams.announced(stream);
        }
        let Some(data) = self.streams.unsent(stream) else {
            return true;
        };
        let Some(packed) = packing.push_data(data, store) else {
            return false;
        };
        self.streams.on_sent(packed);
        let is_steady = self.streams.sends_steadily(stream, now);
        self.steady[0].on_piece(now, stream, is_steady);
        packed.len == data.len
    }

    /// Returns the opening of a stream, if it has not been sent yet.
    pub(super) fn opening(&self, stream: StreamId) -> Option<Sent> {
        let class = self.streams.class(stream)?;
        let unannounced = self.streams.is_unannounced(stream);
        unannounced.then_some(Sent::Open(stream, class))
    }

    /// Rewrites a segment for retransmission to the end of `out`; it may exceed the current maximum
    /// packet.
    pub(super) fn repack(
        &self,
        seq: u64,
        segment: &Segment,
        out: &mut Vec<u8>,
        store: &impl Store,
    ) {
        emit_segment_header(seq as u32, out);
        for (i, sent) in segment.parts.iter().enumerate() {
            match *sent {
                Sent::Data(data) if self.streams.contains(data.stream) => {
                    let last = i + 1 == segment.parts.len();
                    write_data(data, last, out, store);
                }
                sent => {
                    if let Some(part) = self.part_of(sent) {
                        part.emit(false, out);
                    }
                }
            }
        }
    }
}
