//! The flows of one peer, and their bytes: where the session's [`Store`] is.
//!
//! ```text
//!   leg --receive--> [ out ring ] --Store::read--> datagrams       head: acknowledged, tail: received
//!   leg <---send---- [ in ring  ] <--Store::place- datagrams       head: sent,         tail: readable
//! ```
//!
//! A ring has its full size from the beginning, so that a byte may be placed wherever it belongs; what
//! it costs is the pages that were touched, and only those are taken from the budget.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    task::Waker,
};

use pep_core::{
    relay::Direction,
    ring::{Ranges, RingMap},
};
use tunnel::{
    store::Store,
    wire::{ResetCode, StreamId},
};

use crate::flow::{FlowContext, FlowMemory};

/// A flow of a peer, which no other ever is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowId(u64);

/// A flow as its session sees it.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its stream, as long as the session knows it.
    pub(super) stream: Option<StreamId>,
    /// The peer's last byte is readable.
    pub(super) finished: bool,
    /// The stream was reset, by the peer or with its session.
    pub(super) reset: Option<ResetCode>,
    /// Whom to tell that something of this has changed.
    pub(super) waker: Option<Waker>,
    memory: FlowMemory,
    outward: Direction,
    out: RingMap,
    inn: RingMap,
    /// Bytes of each extent that were taken from the budget.
    charged: [u64; 2],
}

/// How much of a ring is taken from the budget at a time.
const STEP: u64 = 64 << 10;

impl Entry {
    fn new(memory: FlowMemory, outward: Direction, ring: u64, initial: u64) -> Self {
        Self {
            stream: None,
            finished: false,
            reset: None,
            waker: None,
            memory,
            outward,
            out: RingMap::new(ring, ring),
            inn: RingMap::new(ring, ring),
            charged: [initial; 2],
        }
    }

    /// Where the next bytes from the leg go; empty when there is no space, or no memory for it. At most
    /// `most` bytes.
    pub(super) fn space(&mut self, most: u64) -> Ranges {
        let space = self.out.space().up_to(most);
        let charged = &mut self.charged[self.outward as usize];
        let end = space.first.end.max(space.second.end);
        let more = end.saturating_sub(*charged).next_multiple_of(STEP);
        if end <= *charged {
            return space;
        }
        if self.memory.share.try_grow(more) {
            *charged += more;
            return space;
        }
        let room = charged.saturating_sub(space.first.start);
        space.up_to(room)
    }

    /// The leg's bytes are received by this.
    pub(super) fn receive<T>(
        &mut self,
        receive: impl FnOnce(&mut crate::arena::Slot, Direction) -> T,
    ) -> T {
        receive(&mut self.memory.slot, self.outward)
    }

    /// The leg has given `count` bytes. Returns the position after them.
    pub(super) fn on_received(&mut self, count: u64) -> u64 {
        self.out.fill(count);
        self.out.tail()
    }

    /// Bytes for the leg, and what sends them.
    pub(super) fn send<T>(
        &self,
        send: impl FnOnce(&crate::arena::Slot, Direction, &Ranges) -> T,
    ) -> Option<T> {
        let data = self.inn.data();
        (!data.is_empty()).then(|| send(&self.memory.slot, self.outward.other(), &data))
    }

    /// The leg took `count` bytes. Returns the position up to which the peer may send.
    pub(super) fn on_sent(&mut self, count: u64) -> u64 {
        self.inn.drain(count);
        self.allowed()
    }

    fn allowed(&self) -> u64 {
        self.inn.head() + self.inn.size()
    }

    /// Whether the peer has everything that the leg gave.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether the leg has everything that the peer gave so far.
    pub(super) fn is_delivered(&self) -> bool {
        self.inn.is_empty()
    }

    /// Bytes that were passed on: from the leg to the peer, from the peer to the leg.
    pub(super) fn delivered(&self) -> [u64; 2] {
        let mut delivered = [0; 2];
        delivered[self.outward as usize] = self.out.head();
        delivered[self.outward.other() as usize] = self.inn.head();
        delivered
    }

    /// Bytes up and down that are held.
    pub(super) fn held(&self) -> [u64; 2] {
        let mut held = [0; 2];
        held[self.outward as usize] = self.out.len();
        held[self.outward.other() as usize] = self.inn.len();
        held
    }

    /// Nothing has moved for a while: empty rings give their pages back.
    pub(super) fn give_memory_back(&mut self, initial: u64) {
        for (direction, ring) in [(self.outward, &self.out), (self.outward.other(), &self.inn)] {
            if !ring.is_clear() {
                continue;
            }
            let charged = &mut self.charged[direction as usize];
            self.memory.share.give_back(*charged - initial);
            *charged = initial;
            self.memory.slot.punch(direction);
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// What the leg is still owed goes first, where the peer's host has ended the flow.
    fn end(&mut self, code: ResetCode) {
        self.reset.get_or_insert(code);
        self.stream = None;
        self.wake();
    }

    /// The bytes have arrived, however little memory is left.
    fn place(&mut self, from: u64, bytes: &[u8]) {
        let known = self.inn.tail().saturating_sub(from);
        let Some(bytes) = usize::try_from(known)
            .ok()
            .and_then(|known| bytes.get(known..))
        else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        let Some(space) = self
            .inn
            .place(from.max(self.inn.tail()), bytes.len() as u64)
        else {
            // Beyond what was allowed, which the session does not let through.
            tracing::error!(
                from,
                len = bytes.len(),
                "a byte has arrived that was not allowed"
            );
            self.end(ResetCode::Internal);
            return;
        };
        let inward = self.outward.other();
        let charged = &mut self.charged[inward as usize];
        let end = space.first.end.max(space.second.end);
        if end > *charged {
            let more = (end - *charged).next_multiple_of(STEP);
            self.memory.share.grow(more);
            *charged += more;
        }
        self.memory.slot.write(inward, &space, bytes);
    }
}

/// All flows of a peer.
#[derive(Debug)]
pub(super) struct Table {
    context: Arc<FlowContext>,
    /// Bytes of each ring.
    ring: u64,
    /// What may be on its way to us of all streams together.
    session_credit: u64,
    entries: HashMap<FlowId, Entry>,
    streams: HashMap<StreamId, FlowId>,
    /// Streams of the peer for which there was no memory.
    refused: BTreeSet<StreamId>,
    next: u64,
    /// Bytes that legs took in this session, and those that may have come for flows that are gone.
    consumed: u64,
}

impl Table {
    pub(super) fn new(context: &Arc<FlowContext>, ring: u64, session_credit: u64) -> Self {
        Self {
            context: Arc::clone(context),
            ring,
            session_credit,
            entries: HashMap::new(),
            streams: HashMap::new(),
            refused: BTreeSet::new(),
            next: 0,
            consumed: 0,
        }
    }

    /// A flow without a stream, whose leg's bytes go in direction `outward`.
    pub(super) fn add(&mut self, memory: FlowMemory, outward: Direction) -> FlowId {
        let id = FlowId(self.next);
        self.next += 1;
        let initial = self.context.limits.ring_initial;
        self.entries
            .insert(id, Entry::new(memory, outward, self.ring, initial));
        id
    }

    /// The flow's stream was opened.
    pub(super) fn bind(&mut self, flow: FlowId, stream: StreamId) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.stream = Some(stream);
            self.streams.insert(stream, flow);
        }
    }

    /// The flow of a stream that the peer has opened, or `None` where there is no memory for it.
    pub(super) fn opened(&mut self, stream: StreamId) -> Option<FlowId> {
        if self.refused.remove(&stream) {
            return None;
        }
        self.adopt(stream)
    }

    fn adopt(&mut self, stream: StreamId) -> Option<FlowId> {
        if let Some(flow) = self.streams.get(&stream) {
            return Some(*flow);
        }
        let memory = self.context.take_memory()?;
        let flow = self.add(memory, Direction::Down);
        self.bind(flow, stream);
        Some(flow)
    }

    pub(super) fn get(&mut self, flow: FlowId) -> Option<&mut Entry> {
        self.entries.get_mut(&flow)
    }

    fn of_stream(&mut self, stream: StreamId) -> Option<&mut Entry> {
        let flow = self.streams.get(&stream)?;
        self.entries.get_mut(flow)
    }

    /// The flow has ended. Its stream, where the session may still have it.
    pub(super) fn remove(&mut self, flow: FlowId) -> Option<StreamId> {
        let entry = self.entries.remove(&flow)?;
        let stream = entry.stream?;
        self.streams.remove(&stream);
        // What the peer may have sent and nobody will take.
        self.consumed += entry.inn.size();
        Some(stream)
    }

    /// A leg took `count` bytes of the session's credit.
    pub(super) fn on_consumed(&mut self, count: u64) {
        self.consumed += count;
    }

    /// Bytes of all streams together that the peer may send since the session began.
    pub(super) fn session_allowed(&self) -> u64 {
        self.consumed.saturating_add(self.session_credit)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn on_readable(&mut self, stream: StreamId, until: u64) {
        if let Some(entry) = self.of_stream(stream) {
            let fresh = until.saturating_sub(entry.inn.tail());
            let space = entry.inn.size() - entry.inn.len();
            entry.inn.fill(fresh.min(space));
            entry.wake();
        }
    }

    pub(super) fn on_acked(&mut self, stream: StreamId, until: u64) {
        if let Some(entry) = self.of_stream(stream) {
            let fresh = until.saturating_sub(entry.out.head());
            entry.out.drain(fresh.min(entry.out.len()));
            entry.wake();
        }
    }

    pub(super) fn on_finished(&mut self, stream: StreamId) {
        if let Some(entry) = self.of_stream(stream) {
            entry.finished = true;
            entry.wake();
        }
    }

    /// The stream is no more; without a code because both ends have finished it.
    pub(super) fn on_gone(&mut self, stream: StreamId, code: Option<ResetCode>) {
        self.refused.remove(&stream);
        let Some(flow) = self.streams.remove(&stream) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&flow) else {
            return;
        };
        match code {
            Some(code) => {
                entry.end(code);
                self.consumed += entry.inn.size();
            }
            None => {
                entry.stream = None;
                entry.wake();
            }
        }
    }

    /// All streams are gone with their session. Flows that had none yet stay.
    pub(super) fn on_restart(&mut self) {
        for flow in self.streams.drain().map(|(_, flow)| flow) {
            if let Some(entry) = self.entries.get_mut(&flow) {
                entry.end(ResetCode::Restarted);
            }
        }
        self.refused.clear();
        self.consumed = 0;
        self.wake_waiting();
    }

    /// Those that wait for a session, or for a stream of it, may try again.
    pub(super) fn wake_waiting(&mut self) {
        let waiting = self.entries.values_mut();
        waiting
            .filter(|entry| entry.stream.is_none())
            .for_each(Entry::wake);
    }
}

impl Store for Table {
    fn renew(&mut self) {
        self.on_restart();
    }

    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) {
        let flow = self.streams.get(&stream);
        let entry = flow.and_then(|flow| self.entries.get(flow));
        let held = entry.and_then(|entry| {
            let data = entry.out.held(from, into.len() as u64)?;
            Some((entry, data))
        });
        match held {
            Some((entry, data)) => entry.memory.slot.read(entry.outward, &data, into),
            // Of a flow that is gone; the session has been told, and the peer drops it.
            None => into.fill(0),
        }
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        if self.refused.contains(&stream) {
            return;
        }
        let Some(flow) = self.adopt(stream) else {
            self.refused.insert(stream);
            return;
        };
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.place(from, bytes);
        }
    }
}

#[cfg(test)]
mod tests;
