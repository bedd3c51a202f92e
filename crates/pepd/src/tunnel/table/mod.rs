//! The flows of one peer, and their bytes: where the session's [`Store`] is.
//!
//! ```text
//!   leg --receive--> [ out ] --Store::read--> datagrams       head: acknowledged, tail: received
//!   leg <---send---- [ in  ] <--Store::place- datagrams       head: sent,         tail: readable
//! ```
//!
//! Each direction of a flow is a [`ChunkMap`](pep_core::chunks::ChunkMap): a byte may be placed wherever it belongs, and what is taken from
//! the budget is what is held. From a leg no more is taken than may soon be sent; what keeps bytes here is that the peer
//! may lack them. So a flow over a link with losses, or whose acknowledgements do not come for a while, has more of
//! the budget than another, as long as that lasts.

mod entry;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use pep_core::relay::Direction;
use tunnel::{
    store::Store,
    wire::{ResetCode, StreamId},
};

pub(super) use entry::Entry;

use crate::flow::{FlowContext, FlowMemory};

/// A flow of a peer, which no other ever is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowId(u64);

/// How many bytes flows of a peer may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of the extent of each direction.
    pub(super) extent: u64,
    /// That may wait to be sent for the first time.
    pub(super) unsent: u64,
}

/// All flows of a peer.
#[derive(Debug)]
pub(super) struct Table {
    context: Arc<FlowContext>,
    sizes: Sizes,
    /// How many flows the peer may have open here, and has.
    flows_max: u32,
    far: u32,
    entries: BTreeMap<FlowId, Entry>,
    streams: BTreeMap<StreamId, FlowId>,
    /// Streams of the peer for which there was no memory, or of which it has too many.
    refused: BTreeSet<StreamId>,
    next: u64,
    /// Bytes of all flows that the peer has sent and that are here, up to the last one of each: the room for what is
    /// missing before it is taken too.
    taken: u64,
}

impl Table {
    pub(super) fn new(context: &Arc<FlowContext>, sizes: Sizes, flows_max: u32) -> Self {
        Self {
            context: Arc::clone(context),
            sizes,
            flows_max,
            far: 0,
            entries: BTreeMap::new(),
            streams: BTreeMap::new(),
            refused: BTreeSet::new(),
            next: 0,
            taken: 0,
        }
    }

    /// A flow without a stream, whose leg's bytes go in direction `outward`.
    pub(super) fn add(&mut self, memory: FlowMemory, outward: Direction) -> FlowId {
        let id = FlowId(self.next);
        self.next += 1;
        self.far += u32::from(outward == Direction::Down);
        let initial = self.context.limits.ring_initial;
        self.entries
            .insert(id, Entry::new(memory, outward, self.sizes, initial));
        id
    }

    /// The flow's stream was opened.
    pub(super) fn bind(&mut self, flow: FlowId, stream: StreamId) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.stream = Some(stream);
            self.streams.insert(stream, flow);
        }
    }

    /// The flow of a stream that the peer has opened, or `None` where there is no memory for it, or it
    /// [has as many as it may](Self::is_at_cap).
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
        if self.is_at_cap() {
            return None;
        }
        let memory = self.context.take_memory()?;
        let flow = self.add(memory, Direction::Down);
        self.bind(flow, stream);
        Some(flow)
    }

    /// Whether the peer has as many flows open here as it may have.
    pub(super) fn is_at_cap(&self) -> bool {
        self.far >= self.flows_max
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
        self.taken -= entry.taken();
        self.far -= u32::from(entry.is_far());
        let stream = entry.stream?;
        self.streams.remove(&stream);
        Some(stream)
    }

    /// A leg took `count` bytes.
    pub(super) fn on_consumed(&mut self, count: u64) {
        self.taken -= count;
    }

    /// Bytes that are here for legs, with those that are missing before others.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether some flow does not take so many more bytes from its leg.
    #[cfg(test)]
    pub(super) fn is_full(&mut self, least: u64) -> bool {
        let mut entries = self.entries.values_mut();
        entries.any(|entry| entry.space_of(least, least).is_empty())
    }

    /// A flow that there is.
    #[cfg(test)]
    pub(super) fn some_flow(&self) -> FlowId {
        *self.entries.keys().next().unwrap()
    }

    /// A second has passed.
    pub(super) fn age(&mut self) {
        self.entries.values_mut().for_each(Entry::age);
    }

    pub(super) fn on_readable(&mut self, stream: StreamId, until: u64) {
        if let Some(entry) = self.of_stream(stream) {
            entry.on_readable(until);
        }
    }

    pub(super) fn on_acked(&mut self, stream: StreamId, until: u64) {
        if let Some(entry) = self.of_stream(stream) {
            entry.on_acked(until);
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
            Some(code) => entry.end(code),
            None => {
                entry.stream = None;
                entry.wake();
            }
        }
    }

    /// All streams are gone with their session. Flows that had none yet stay.
    pub(super) fn on_restart(&mut self) {
        for flow in std::mem::take(&mut self.streams).into_values() {
            if let Some(entry) = self.entries.get_mut(&flow) {
                entry.end(ResetCode::Restarted);
            }
        }
        self.refused.clear();
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
        if !entry.is_some_and(|entry| entry.read(from, into)) {
            // Of a flow that is gone; the session has been told, and the peer drops it.
            into.fill(0);
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
            self.taken += entry.place(from, bytes);
        }
    }
}

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;
