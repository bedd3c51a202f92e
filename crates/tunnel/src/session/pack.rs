//! Filling segments: what is said first, then bytes of the streams whose turn it is.

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

/// What a credit is taken to need: it may have grown when it is written again.
const CREDIT_LEN: usize = 1 + 8 + 8;

/// A segment in the making.
pub(super) struct Packing<'a> {
    pub segment: Segment,
    out: &'a mut Vec<u8>,
    /// How long `out` may become.
    end: usize,
    /// Nothing fits behind what is there.
    closed: bool,
}

impl<'a> Packing<'a> {
    /// One of at most `max` bytes behind what is in `out`, with its header, which is completed by [`number`].
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

    /// Adds as much of the data as there is room for; how much that was, or `None` if there is no room.
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
    /// Writes a new segment of at most `max` bytes for streams of a channel, and what is to be said first, to the end of
    /// `out`; its number, or `None` if there is nothing.
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
        let size = segment.len;
        let seq = self.delivery.push(segment, size);
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

    /// Adds what was sent before, or is to be said; returns what did not fit.
    fn pack_sent(
        &mut self,
        sent: Sent,
        packing: &mut Packing<'_>,
        store: &impl Store,
    ) -> Option<Sent> {
        if let Sent::Data(data) = sent {
            return self.pack_again(data, packing, store).map(Sent::Data);
        }
        let part = self.part_of(sent)?;
        let len = match sent {
            Sent::Credit(_) | Sent::SessionCredit => CREDIT_LEN,
            _ => part.len(false),
        };
        if len > packing.room() {
            return Some(sent);
        }
        packing.push(&part, sent);
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

    /// What a part says now; `None` if there is nothing to say any more.
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
            Sent::SessionCredit => Part::SessionCredit {
                until: self.streams.session_allowed(),
            },
            Sent::Reclass(stream) => Part::Reclass {
                stream,
                class: self.streams.class(stream)?,
            },
        })
    }

    /// Adds new bytes of the streams whose turn it is, as long as they are of the segment's channel.
    fn pack_streams(&mut self, packing: &mut Packing<'_>, now: Duration, store: &impl Store) {
        while let Some(stream) = self.scheduler.next() {
            let is_queue = PacketQueue::from_stream(stream).is_some();
            if is_queue || self.channel_of(stream) != packing.segment.channel {
                return;
            }
            let before = packing.out.len();
            let fits = self.pack_stream(stream, packing, store);
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

    /// What the stream was queued for is sent.
    fn unqueue_sent(&mut self, stream: StreamId) {
        let until = self.queued.get(&stream).copied();
        if until.is_some_and(|until| self.streams.sent(stream).is_none_or(|sent| sent >= until)) {
            self.queued.remove(&stream);
            self.scheduler.unqueue(stream);
        }
    }

    /// Adds new bytes of a stream, and its opening before them; whether everything fitted.
    fn pack_stream(
        &mut self,
        stream: StreamId,
        packing: &mut Packing<'_>,
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
        packed.len == data.len
    }

    /// What is to be said of a stream first, if the peer has not been told of it.
    pub(super) fn opening(&self, stream: StreamId) -> Option<Sent> {
        let class = self.streams.class(stream)?;
        let unannounced = self.streams.is_unannounced(stream);
        unannounced.then_some(Sent::Open(stream, class))
    }

    /// Writes a segment anew to the end of `out`, to be sent again; it may be longer than packets may be now.
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
