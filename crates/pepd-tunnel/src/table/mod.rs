//! The flows of one peer and their bytes: the session's [`Store`].
//!
//! ```text
//!   leg --receive--> [ out ] --Store::read--> datagrams       head: acknowledged, tail: received
//!   leg <---send---- [ in  ] <--Store::place- datagrams       head: sent,         tail: readable
//! ```
//!
//! Each direction of a flow is a [`ChunkMap`](pep_core::chunks::ChunkMap): bytes may be placed in
//! any order, and only held bytes are charged to the budget. From a leg pepd takes no more than may
//! soon be sent, and keeps the bytes until the peer has acknowledged them. A flow over a lossy
//! link, or with delayed acknowledgements, therefore takes more of the budget for a while.

mod binding;
mod ended;
mod entry;
mod inventory;
mod kept;
mod probing;
mod published;
mod resuming;
mod session;
mod waiting;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use pep_core::{
    arena::name_hash, budget::MemoryPart, custody::Bounds, hosts::Host, parties::Party,
    relay::Direction, site::KeepWhen, stream_header::Resume,
};
use pepd_relay::{
    flow::{FlowContext, FlowMemory},
    survive::Survivor,
};
use tunnel::wire::{ResetCode, StreamId};

use ended::Ended;
use entry::CustodyHandle;

pub(super) use binding::StreamOpening;
pub(super) use entry::{FlowBuffers, Loss, Policy};
use inventory::Inventory;
pub(super) use inventory::Known;
pub(super) use kept::Custody;
use probing::Probes;
use published::OnDisk;
pub(super) use published::RecoverError;
pub(super) use resuming::{Disagreement, Terms};
use waiting::Waiting;

/// Key of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) peer: usize,
    pub(crate) flow: FlowId,
}

/// Number of a flow of a peer; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowId(u64);

impl FlowId {
    /// Returns the bare number.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// Limits of a peer's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes that the peer may have in flight while its need is unknown.
    pub(super) first: u64,
    /// Maximum of bytes that wait for their first transmission.
    pub(super) unsent: u64,
    /// Time that a flow waits for the next session.
    pub(super) hold: Duration,
}

/// A recovered flow of a predecessor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adopted {
    pub(super) flow: FlowId,
    /// The FIN was sent to the leg.
    pub(super) shut: bool,
    /// Bytes that had moved before their record was written.
    pub(super) repaired: u64,
}

/// All flows of a peer.
#[derive(Debug)]
pub(super) struct Table {
    context: Arc<FlowContext>,
    sizes: Sizes,
    /// Maximum and current number of flows that the peer has opened.
    flows_max: u32,
    far: u32,
    entries: BTreeMap<FlowId, FlowBuffers>,
    streams: BTreeMap<StreamId, FlowId>,
    /// Streams of the peer whose bytes are dropped: without memory for a flow, beyond the maximum,
    /// or of no flow.
    refused: BTreeSet<StreamId>,
    /// Flows of the peer, by token.
    tokens: BTreeMap<u128, FlowId>,
    ended: Ended,
    probes: Probes,
    inventory: Inventory,
    next: u64,
    /// Bytes that have come in the session.
    came: u64,
    /// Received bytes of all flows, up to the last byte of each: gaps count as well.
    taken: u64,
    /// Part of them that legs may take.
    waiting: Waiting,
    custody: Rc<Custody>,
    /// Memory that the flows share.
    memory: Arc<MemoryPart>,
    /// The flow last looked up by its slot.
    looked_up: Cell<Option<FlowId>>,
    /// Index of the peer.
    peer: usize,
    /// Policy of flows that the peer opens.
    policy: Policy,
    /// The link to the peer is down.
    link_down: bool,
}

/// Maximum of chunk checksums computed per second.
const SUMS: usize = 256;

impl Table {
    /// Returns the stream of the flow in that slot of the arena while its session knows it.
    pub(super) fn stream_of_slot(&self, slot: u32) -> Option<StreamId> {
        let is_there = |entry: &FlowBuffers| entry.memory.slot.index() == slot;
        let known = self.looked_up.get();
        let known = known.and_then(|flow| self.entries.get(&flow));
        if let Some(entry) = known.filter(|entry| is_there(entry)) {
            return entry.stream();
        }
        let mut entries = self.entries.iter();
        let (flow, entry) = entries.find(|(_, entry)| is_there(entry))?;
        self.looked_up.set(Some(*flow));
        entry.stream()
    }

    pub(super) fn new(context: &Arc<FlowContext>, sizes: Sizes, flows_max: u32) -> Self {
        Self {
            context: Arc::clone(context),
            sizes,
            flows_max,
            far: 0,
            entries: BTreeMap::new(),
            looked_up: Cell::new(None),
            streams: BTreeMap::new(),
            refused: BTreeSet::new(),
            tokens: BTreeMap::new(),
            ended: Ended::new(&context.arena),
            probes: Probes::default(),
            inventory: Inventory::default(),
            next: 0,
            came: 0,
            taken: 0,
            waiting: Waiting::default(),
            custody: Custody::within(Bounds::NONE, None, &context.counters),
            memory: context.memory_part(Party::Peer(0)),
            peer: 0,
            policy: Policy {
                site: 0,
                when: KeepWhen::Never,
                hold: sizes.hold,
            },
            link_down: false,
        }
    }

    /// Sets the custody, the index of the peer, and the policy of flows that the peer opens. To be
    /// called before any flow is added.
    pub(super) fn keep_in(&mut self, custody: &Rc<Custody>, peer: usize, policy: Policy) {
        self.custody = Rc::clone(custody);
        (self.peer, self.policy) = (peer, policy);
    }

    /// Sets the name of the peer: its flows share a part of memory, and its published end codes are
    /// loaded. To be called before any flow is added.
    pub(super) fn belong_to(&mut self, name: &str) {
        let name = name_hash(name);
        self.memory = self.context.memory_part(Party::Peer(name));
        self.ended = Ended::for_peer(&self.context.arena, name);
    }

    /// Returns the memory that the flows of the peer share.
    pub(super) fn memory(&self) -> &Arc<MemoryPart> {
        &self.memory
    }

    /// Sets whether the link is down. Returns whether that is a change.
    pub(super) fn set_link_down(&mut self, link_down: bool) -> bool {
        let entries = self.entries.values_mut();
        entries.for_each(|entry| entry.set_link_down(link_down));
        std::mem::replace(&mut self.link_down, link_down) != link_down
    }

    /// Adds a flow without a stream, whose leg's bytes go in direction `outward`.
    pub(super) fn add(&mut self, memory: FlowMemory, outward: Direction) -> FlowId {
        self.add_kept(memory, outward, self.policy)
    }

    /// Adds a flow with a policy of its own.
    pub(super) fn add_kept(
        &mut self,
        memory: FlowMemory,
        outward: Direction,
        policy: Policy,
    ) -> FlowId {
        let flow = FlowId(self.next);
        self.next += 1;
        self.far += u32::from(outward == Direction::Down);
        let initial = self.context.limits.ring_initial;
        let keeper = self.keeper(flow, policy);
        let memory = memory.of(&self.context, &self.memory);
        let mut entry = FlowBuffers::new(memory, outward, self.sizes, initial, keeper);
        entry.set_link_down(self.link_down);
        self.entries.insert(flow, entry);
        flow
    }

    /// Sets the host of a flow's client. To be called once.
    pub(super) fn set_host(&mut self, flow: FlowId, host: Host) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            self.waiting.remove(entry.host, entry.waiting());
            entry.belong_to(host);
            self.waiting.add(entry.host, entry.waiting());
        }
    }

    fn keeper(&self, flow: FlowId, policy: Policy) -> CustodyHandle {
        let peer = self.peer;
        CustodyHandle {
            custody: Rc::clone(&self.custody),
            key: Key { peer, flow },
            policy,
        }
    }

    /// Recovers a flow of a predecessor, which waits for its first stream or one that resumes it.
    /// Its custody follows the given policy, or that of flows that the peer opens. Deletes the
    /// chunks of `on_disk` that it does not need. Returns the state of its leg.
    ///
    /// # Errors
    /// If the flow cannot resume.
    pub(super) fn recover<L>(
        &mut self,
        survivor: Survivor<L>,
        policy: Option<Policy>,
        mut on_disk: OnDisk,
    ) -> Result<Adopted, RecoverError> {
        let (budget, initial) = (&self.context.budget, self.context.limits.ring_initial);
        let id = FlowId(self.next);
        let keeper = self.keeper(id, policy.unwrap_or(self.policy));
        let host = Host::from_address(survivor.record.identity.client.ip());
        let recovered = FlowBuffers::recover(
            survivor,
            self.sizes,
            (initial, budget),
            keeper,
            &mut on_disk,
        );
        on_disk
            .into_values()
            .for_each(|spot| self.custody.forget(spot));
        let recovered = recovered?;
        let mut entry = recovered.entry;
        entry.memory.share.belong(&self.memory, 2 * initial);
        entry.belong_to(host);
        self.next += 1;
        self.taken += entry.taken();
        self.waiting.add(entry.host, entry.waiting());
        if entry.is_far() {
            self.far += 1;
            self.tokens.insert(entry.binding.token, id);
        }
        self.entries.insert(id, entry);
        Ok(Adopted {
            flow: id,
            shut: recovered.shut,
            repaired: recovered.repaired,
        })
    }

    /// Binds the flow's first stream.
    pub(super) fn bind(&mut self, flow: FlowId, stream: StreamId) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.binding.bind(stream);
            self.streams.insert(stream, flow);
        }
    }

    /// Resumes a flow on another stream of the local end. Returns the position up to which the peer
    /// may send.
    pub(super) fn reopen(&mut self, flow: FlowId, stream: StreamId) -> Option<u64> {
        self.streams.insert(stream, flow);
        Some(self.entries.get_mut(&flow)?.reopen(stream))
    }

    /// Resumes a flow on another stream of the peer. Drops bytes that came before its stream
    /// header: the peer may send none before the answer.
    pub(super) fn rejoin(
        &mut self,
        flow: FlowId,
        stream: StreamId,
        resume: &Resume,
    ) -> Option<Result<Terms, Disagreement>> {
        if self.flow_of(stream) != Some(flow) {
            self.abandon(stream);
        }
        self.streams.insert(stream, flow);
        Some(self.entries.get_mut(&flow)?.rejoin(stream, resume))
    }

    /// Returns all flows.
    pub(super) fn flows(&self) -> Vec<FlowId> {
        self.entries.keys().copied().collect()
    }

    /// Returns suspended flows that the local end has to reopen.
    pub(super) fn to_reopen(&self) -> Vec<FlowId> {
        let entries = self.entries.iter();
        let waiting = entries.filter(|(_, entry)| !entry.is_far() && entry.is_suspended());
        waiting.map(|(flow, _)| *flow).collect()
    }

    /// Sets the peer's token of a flow.
    pub(super) fn introduce(&mut self, flow: FlowId, token: u128) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.binding.token = token;
            self.tokens.insert(token, flow);
        }
    }

    /// Returns the flow of a new stream of the peer, or `None` without memory for it or [beyond the
    /// maximum](Self::is_at_cap).
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
        let memory = self.context.take_memory_beside(self.far)?;
        let flow = self.add(memory, Direction::Down);
        self.bind(flow, stream);
        Some(flow)
    }

    #[cfg(test)]
    pub(super) const fn set_flows_max(&mut self, flows_max: u32) {
        self.flows_max = flows_max;
    }

    /// Returns whether the peer has its maximum of open flows.
    pub(super) fn is_at_cap(&self) -> bool {
        self.far >= self.flows_max
    }

    pub(super) fn get(&mut self, flow: FlowId) -> Option<&mut FlowBuffers> {
        self.entries.get_mut(&flow)
    }

    /// Drops the flow of a stream together with its bytes.
    pub(super) fn abandon(&mut self, stream: StreamId) {
        self.refused.remove(&stream);
        if let Some(flow) = self.streams.get(&stream).copied() {
            self.remove(flow);
        }
    }

    /// Drops all bytes of a stream that belongs to no flow.
    pub(super) fn ignore(&mut self, stream: StreamId) {
        self.abandon(stream);
        self.refused.insert(stream);
    }

    /// Returns the flow of a stream.
    pub(super) fn flow_of(&self, stream: StreamId) -> Option<FlowId> {
        self.streams.get(&stream).copied()
    }

    fn of_stream(&mut self, stream: StreamId) -> Option<&mut FlowBuffers> {
        let flow = self.streams.get(&stream)?;
        self.entries.get_mut(flow)
    }

    /// Removes an ended flow. Returns its stream, which the session may still have.
    pub(super) fn remove(&mut self, flow: FlowId) -> Option<StreamId> {
        let entry = self.entries.remove(&flow)?;
        self.taken -= entry.taken();
        self.waiting.remove(entry.host, entry.waiting());
        self.far -= u32::from(entry.is_far());
        self.tokens.remove(&entry.binding.token);
        let stream = entry.stream()?;
        self.streams.remove(&stream);
        Some(stream)
    }

    /// Records the end code of a flow whose leg is about to be closed, in case the peer asks for
    /// the flow again.
    pub(super) fn conclude(&mut self, flow: FlowId, code: ResetCode) {
        if let Some(entry) = self.entries.get(&flow) {
            if entry.is_far() {
                self.ended.insert(entry.binding.token, code);
            }
            entry.publish_closed();
        }
    }

    /// Records that a flow of the peer was lost with the previous process.
    pub(super) fn on_lost(&mut self, token: u128) {
        self.ended.insert(token, ResetCode::Restarted);
    }

    /// Records `count` bytes taken by a flow's leg.
    pub(super) fn on_consumed(&mut self, flow: FlowId, count: u64) {
        if let Some(entry) = self.entries.get(&flow) {
            self.taken -= count;
            self.waiting.remove(entry.host, count);
        }
    }

    /// Sets how many bytes may wait for the legs of all hosts together.
    pub(super) fn set_waiting_part(&mut self, part: u64) {
        self.waiting.set_part(part);
    }

    /// Returns whether a flow is to be [held](waiting), or to stay so.
    pub(super) fn is_to_be_held(&self, flow: FlowId, is_held: bool) -> bool {
        let entry = self.entries.get(&flow);
        entry.is_some_and(|entry| {
            let own = entry.waiting();
            self.waiting.is_to_be_held(entry.host, own, is_held)
        })
    }

    /// Returns the bytes that have come in the session.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// Returns the bytes received for legs, including gaps before later ones.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the part of them that legs may take and have not.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.all()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether some flow does not take `minimum` more bytes from its leg.
    #[cfg(test)]
    pub(super) fn is_full(&mut self, minimum: u64) -> bool {
        let mut entries = self.entries.values_mut();
        entries.any(|entry| entry.space_of(minimum, minimum).is_empty())
    }

    /// Returns each flow's token and direction, and how many of its sent bytes were dropped as
    /// acknowledged.
    #[cfg(test)]
    pub(super) fn given_up(&self) -> Vec<(u128, Direction, u64)> {
        let entries = self.entries.values();
        entries
            .map(|entry| (entry.binding.token, entry.outward, entry.outgoing.head()))
            .collect()
    }

    /// Returns the published position of received bytes of a flow.
    #[cfg(test)]
    pub(super) fn written_down(&self, token: u128, direction: Direction) -> Option<u64> {
        let mut entries = self.entries.values();
        let entry = entries.find(|entry| entry.binding.token == token)?;
        let record = entry.memory.slot.record()?;
        // A flow that ended in order has everything, whatever its record contains.
        (!entry.closed).then_some(record.directions[direction as usize].tail)
    }

    /// Returns any flow.
    #[cfg(test)]
    pub(super) fn some_flow(&self) -> FlowId {
        *self.entries.keys().next().unwrap()
    }

    /// Does the work of every second.
    pub(super) fn age(&mut self, now: Duration) {
        let mut sums = SUMS;
        for entry in self.entries.values_mut() {
            entry.age();
            entry.wait();
            entry.keep(now, &mut sums);
        }
    }
}

#[cfg(test)]
mod custody;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;
