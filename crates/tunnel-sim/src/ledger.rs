//! Ledger of everything requested, written, placed and reported at both ends: the model that they
//! are checked against.

use std::{cell::RefCell, collections::HashMap, ops::Range, time::Duration};

use allocation_counter::opt_out;
use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{Event, PacketQueue},
    store::{NextPacket, Store},
    wire::{ResetCode, StreamId},
};

use crate::{
    beside::Beside,
    flow::{Flow, State, index_of},
    plan::StreamPlan,
    side::End,
    violation::Violation,
};

/// All streams of a run, and the first violation.
#[derive(Debug, Default)]
pub struct Ledger {
    /// All streams, in the order of opening.
    pub flows: Vec<Flow>,
    /// Messages outside streams.
    pub beside: Beside,
    /// True if times are recorded.
    pub notes: bool,
    ids: [HashMap<StreamId, usize>; 2],
    /// Streams of a session that has not been reported to an end yet.
    next_ids: [HashMap<StreamId, usize>; 2],
    opened: [HashMap<StreamId, Vec<usize>>; 2],
    violation: RefCell<Option<(End, Violation)>>,
}

impl Ledger {
    /// Returns the first violation, if any.
    pub fn violation(&self) -> Option<(End, Violation)> {
        self.violation.borrow().clone()
    }

    /// Notes a violation; only the first counts.
    pub fn blame(&self, end: End, violation: Violation) {
        self.violation.borrow_mut().get_or_insert((end, violation));
    }

    /// Returns the flow with that number at an end, in its present session.
    pub fn flow(&self, end: End, stream: StreamId) -> Option<usize> {
        self.ids[end].get(&stream).copied()
    }

    /// Returns the stream header of the next flow.
    pub fn stream_header(&self, plan: &StreamPlan) -> Vec<u8> {
        Flow::new(self.flows.len(), 0, plan.clone(), [0; 2]).stream_header
    }

    /// Notes that a stream was opened; `credits` is the initial credit of each end.
    pub fn open(&mut self, id: StreamId, plan: StreamPlan, credits: [u64; 2], most: u32) -> usize {
        let (end, index) = (plan.opener, self.flows.len());
        let alive = |flow: &&Flow| flow.plan.opener == end && flow.at[end].state == State::Alive;
        let open = self.flows.iter().filter(alive).count() + 1;
        if open > most as usize {
            self.blame(end, Violation::ManyStreams { open, most });
        }
        self.flows.push(Flow::new(index, id, plan, credits));
        self.opened[end].entry(id).or_default().push(index);
        if self.ids[end].insert(id, index).is_some() {
            self.blame(end, Violation::NoSuchStream { stream: id });
        }
        index
    }

    /// Ends the streams of an end, with their session.
    pub fn orphan(&mut self, end: End) {
        self.beside.forget(end);
        let next = std::mem::take(&mut self.next_ids[end]);
        for (id, index) in std::mem::replace(&mut self.ids[end], next) {
            let flow = &mut self.flows[index];
            // Bytes of a new session's streams may come before the session and the streams are
            // reported.
            if !flow.at[end].known {
                self.ids[end].entry(id).or_insert(index);
            } else if flow.at[end].state == State::Alive {
                flow.at[end].state = State::Orphan;
            }
        }
    }

    /// Returns whether all streams have ended at both ends.
    pub fn is_over(&self) -> bool {
        self.flows
            .iter()
            .all(|flow| flow.is_over(0) && flow.is_over(1))
    }

    /// Returns the bytes of all streams that an end has read, or will never read because the stream
    /// has ended.
    pub fn done_with(&self, end: End) -> u64 {
        let done = |flow: &Flow| match flow.at[end].state {
            State::Alive => flow.at[end].consumed,
            State::Orphan => 0,
            _ => flow.at[1 - end].written,
        };
        self.flows.iter().map(done).sum()
    }

    /// Checks an event against the true state. Returns its flow.
    pub fn record(&mut self, now: Duration, end: End, event: &Event) -> Option<usize> {
        let stream = match event {
            Event::Opened {
                stream,
                class,
                stream_header,
            } => {
                return self.opened(end, *stream, *class, stream_header);
            }
            Event::Readable { stream, .. }
            | Event::Finished { stream }
            | Event::Acked { stream, .. }
            | Event::Reset { stream, .. }
            | Event::Closed { stream } => *stream,
            Event::LinkDown | Event::LinkUp => return None,
            Event::PeerClosed { .. } => {
                self.blame(
                    end,
                    Violation::SessionEnded {
                        event: event.clone(),
                    },
                );
                return None;
            }
        };
        let known = self
            .flow(end, stream)
            .filter(|index| self.flows[*index].at[end].known);
        let Some(index) = known else {
            self.blame(
                end,
                Violation::OutOfPlace {
                    event: event.clone(),
                },
            );
            return None;
        };
        if let Err(violation) = self.check(now, end, index, event) {
            self.blame(end, violation);
        }
        Some(index)
    }

    fn opened(
        &mut self,
        end: End,
        stream: StreamId,
        class: Class,
        stream_header: &[u8],
    ) -> Option<usize> {
        let index = index_of(stream_header).filter(|index| {
            self.flows.get(*index).is_some_and(|flow| {
                flow.plan.opener != end
                    && flow.id == stream
                    && flow.stream_header == stream_header
                    && (flow.class == class || flow.plan.reclass.is_some())
                    && !flow.at[end].known
            })
        });
        let bound = self.flow(end, stream);
        let Some(index) = index.filter(|index| bound.is_none_or(|bound| bound == *index)) else {
            self.blame(end, Violation::OpenedUnasked { stream, class });
            return None;
        };
        self.ids[end].insert(stream, index);
        self.flows[index].at[end].known = true;
        Some(index)
    }

    fn check(
        &mut self,
        now: Duration,
        end: End,
        index: usize,
        event: &Event,
    ) -> Result<(), Violation> {
        let (notes, flow) = (self.notes, &mut self.flows[index]);
        let [here, there] = if end == 0 {
            let [a, b] = &mut flow.at;
            [a, b]
        } else {
            let [a, b] = &mut flow.at;
            [b, a]
        };
        let event_of = || event.clone();
        if here.state != State::Alive {
            return Err(Violation::OutOfPlace { event: event_of() });
        }
        match *event {
            Event::Readable { stream, until } => {
                let placed = here.placed.prefix();
                if until > placed {
                    return Err(Violation::ReadableUnplaced {
                        stream,
                        until,
                        placed,
                    });
                }
                if until <= here.readable || here.reported_finished {
                    return Err(Violation::NoNews { event: event_of() });
                }
                here.readable = until;
                if notes {
                    here.readable_log.push((now, until));
                }
            }
            Event::Finished { stream } => {
                let (readable, written) = (here.readable, there.written);
                if !there.finished || readable != written {
                    let finished = there.finished;
                    return Err(Violation::FinishedEarly {
                        stream,
                        readable,
                        written,
                        finished,
                    });
                }
                if here.reported_finished {
                    return Err(Violation::NoNews { event: event_of() });
                }
                here.reported_finished = true;
            }
            Event::Acked { stream, until } => {
                let placed = there.placed.prefix();
                // A peer that has reset the stream discards the bytes; one that does not know it
                // yet keeps them itself.
                let not_kept = there.reset.is_some() || !there.known;
                if until > here.written || (until > placed && !not_kept) {
                    return Err(Violation::AckedUnplaced {
                        stream,
                        until,
                        placed,
                    });
                }
                // 0 reports that the peer knows the stream.
                if until <= here.acked && until > 0 {
                    return Err(Violation::NoNews { event: event_of() });
                }
                here.acked = here.acked.max(until);
            }
            Event::Reset { stream, code } => {
                if there.reset != Some(code) {
                    return Err(Violation::ResetUnasked { stream, code });
                }
                here.state = State::ResetByPeer;
            }
            Event::Closed { stream } => {
                let sent = here.finished && here.acked == here.written;
                if !sent || !here.reported_finished {
                    return Err(Violation::ClosedEarly { stream });
                }
                here.state = State::Closed;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the streams of an end.
    pub fn streams(&self, end: End) -> Vec<StreamId> {
        let ids = self.ids[end].iter();
        let alive = ids.filter(|(_, index)| self.flows[**index].at[end].state == State::Alive);
        alive.map(|(stream, _)| *stream).collect()
    }

    /// Checks the report to an end that the peer holds these out-of-order bytes of a stream.
    pub fn abandon(&mut self, end: End, stream: StreamId, runs: Vec<Range<u64>>) {
        let Some(index) = self.flow(end, stream) else {
            return;
        };
        let there = &self.flows[index].at[1 - end];
        let not_kept = there.reset.is_some() || !there.known;
        let written = self.flows[index].at[end].written;
        let there = &there.placed;
        let is_wrong = |run: &&Range<u64>| run.end > written || !(not_kept || there.contains(run));
        if let Some(run) = runs.iter().find(is_wrong) {
            let violation = Violation::AckedUnplaced {
                stream,
                until: run.end,
                placed: there.prefix(),
            };
            self.blame(end, violation);
        }
        let given_up = &mut self.flows[index].at[end].given_up;
        runs.into_iter().for_each(|run| given_up.insert(run));
    }

    /// Notes that an end has reset a stream.
    pub fn reset(&mut self, end: End, index: usize, code: ResetCode) {
        let local = &mut self.flows[index].at[end];
        local.reset = Some(code);
        local.state = State::Reset;
    }

    fn place(
        &mut self,
        end: End,
        stream: StreamId,
        from: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        // Bytes of a stream lost by the peer may still be in flight, or these belong to a new
        // session.
        let fits = |index: &usize| {
            let flow = &self.flows[*index];
            flow.at[1 - end].state == State::Alive
                || flow.first_wrong(1 - end, from, bytes).is_none()
        };
        let current = self.flow(end, stream).filter(fits);
        let index = current
            .or_else(|| self.next_ids[end].get(&stream).copied())
            .or_else(|| self.bind(end, stream, from, bytes));
        let flow = index.map(|index| &mut self.flows[index]);
        let Some(flow) = flow.filter(|flow| flow.at[end].state == State::Alive) else {
            return Err(Violation::NoSuchStream { stream });
        };
        let (until, written) = (from + bytes.len() as u64, flow.at[1 - end].written);
        let local = &flow.at[end];
        let (allowed, readable) = (local.allowed, local.readable);
        if until > written {
            return Err(Violation::PlacedUnwritten {
                stream,
                until,
                written,
            });
        }
        if until > allowed {
            return Err(Violation::PlacedBeyond {
                stream,
                until,
                allowed,
            });
        }
        if from < readable {
            return Err(Violation::PlacedAgain {
                stream,
                from,
                readable,
            });
        }
        if let Some(at) = flow.first_wrong(1 - end, from, bytes) {
            return Err(Violation::WrongByte { stream, at });
        }
        flow.at[end].placed.insert(from..until);
        Ok(())
    }

    /// Finds the stream of bytes that may come before it is reported opened: the bytes identify it.
    fn bind(&mut self, end: End, stream: StreamId, from: u64, bytes: &[u8]) -> Option<usize> {
        let candidates = self.opened[1 - end].get(&stream)?;
        let fits = |index: &&usize| {
            let flow = &self.flows[**index];
            !flow.at[end].known && flow.first_wrong(1 - end, from, bytes).is_none()
        };
        let index = *candidates.iter().rev().find(fits).or(candidates.last())?;
        let is_known = self.ids[end].contains_key(&stream);
        let ids = if is_known {
            &mut self.next_ids[end]
        } else {
            &mut self.ids[end]
        };
        ids.insert(stream, index);
        Some(index)
    }

    fn read(
        &self,
        now: Duration,
        end: End,
        stream: StreamId,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), Violation> {
        let flow = self.flow(end, stream).map(|index| &self.flows[index]);
        let Some(flow) = flow.filter(|flow| flow.at[end].state == State::Alive) else {
            return Err(Violation::NoSuchStream { stream });
        };
        let (until, local) = (from + into.len() as u64, &flow.at[end]);
        let (written, acked) = (local.written, local.acked);
        if until > written {
            return Err(Violation::ReadUnwritten {
                stream,
                until,
                written,
            });
        }
        if from < acked {
            return Err(Violation::ReadAcked {
                stream,
                from,
                acked,
            });
        }
        if let Some(acked) = local.given_up.overlap(&(from..until)) {
            return Err(Violation::ReadAcked {
                stream,
                from,
                acked,
            });
        }
        if self.notes {
            let mut log = local.read_log.borrow_mut();
            if log.last().is_none_or(|(_, last)| *last < until) {
                log.push((now, until));
            }
        }
        flow.fill(end, from, into);
        Ok(())
    }
}

/// Bytes of the streams at one end.
#[derive(Debug)]
pub struct View<'a> {
    /// All streams.
    pub ledger: &'a mut Ledger,
    /// End of the view.
    pub end: End,
    /// Time of the view.
    pub now: Duration,
}

impl Store for View<'_> {
    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) {
        // The model's memory does not count as the side's.
        opt_out(|| {
            if let Err(violation) = self.ledger.read(self.now, self.end, stream, from, into) {
                self.ledger.blame(self.end, violation);
            }
        });
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        opt_out(|| {
            if let Err(violation) = self.ledger.place(self.end, stream, from, bytes) {
                self.ledger.blame(self.end, violation);
            }
        });
    }

    fn next_packet(
        &mut self,
        queue: PacketQueue,
        _now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        let mut next = Ok(None);
        opt_out(|| next = self.ledger.beside.next(self.end, queue, room, out));
        next.unwrap_or_else(|violation| {
            self.ledger.blame(self.end, violation);
            None
        })
    }

    fn packet(&mut self, _now: Duration, channel: u8, _outer: Ecn, message: &[u8]) {
        opt_out(|| {
            if let Err(violation) = self.ledger.beside.take(self.end, channel, message) {
                self.ledger.blame(self.end, violation);
            }
        });
    }
}
