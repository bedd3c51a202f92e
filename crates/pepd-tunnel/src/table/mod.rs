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

mod binding;
mod ended;
mod entry;
mod inventory;
mod kept;
mod probing;
mod published;
mod resuming;
mod session;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use pep_core::{
    arena::name_hash, custody::Bounds, hosts::Host, relay::Direction, site::KeepWhen,
    stream_header::Resume,
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

/// A flow of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) peer: usize,
    pub(crate) flow: FlowId,
}

/// A flow of a peer, which no other ever is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowId(u64);

impl FlowId {
    /// Its number among those of its peer.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// How many bytes flows of a peer may hold, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// That the peer may have on its way before it is known what it needs.
    pub(super) first: u64,
    /// That may wait to be sent for the first time.
    pub(super) unsent: u64,
    /// For how long a flow waits for the next session once one is gone.
    pub(super) hold: Duration,
}

/// A flow of a predecessor that goes on here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adopted {
    pub(super) flow: FlowId,
    /// Its leg has got the end.
    pub(super) shut: bool,
    /// Bytes that had moved without having been written down.
    pub(super) repaired: u64,
}

/// All flows of a peer.
#[derive(Debug)]
pub(super) struct Table {
    context: Arc<FlowContext>,
    sizes: Sizes,
    /// How many flows the peer may have open here, and has.
    flows_max: u32,
    far: u32,
    entries: BTreeMap<FlowId, FlowBuffers>,
    streams: BTreeMap<StreamId, FlowId>,
    /// Streams of the peer for which there was no memory, or of which it has too many.
    refused: BTreeSet<StreamId>,
    /// Flows of the peer, by what it calls them.
    tokens: BTreeMap<u128, FlowId>,
    ended: Ended,
    probes: Probes,
    inventory: Inventory,
    next: u64,
    /// Bytes of all flows that the peer has sent and that are here, up to the last one of each: the room for what is
    /// missing before it is taken too.
    taken: u64,
    /// Those of them that legs may take.
    waiting: u64,
    custody: Rc<Custody>,
    /// The flow that was last looked up by its slot.
    looked_up: Cell<Option<FlowId>>,
    /// Which of the peers it is.
    peer: usize,
    /// Of flows that the peer opens.
    policy: Policy,
    /// The link to the peer is away.
    away: bool,
}

/// Checksums of chunks that are made in a second.
const SUMS: usize = 256;

impl Table {
    /// The stream of the flow in that slot of the arena, as long as its session knows it.
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
            taken: 0,
            waiting: 0,
            custody: Custody::new(Bounds::NONE, &[Bounds::NONE], None, &context.counters),
            peer: 0,
            policy: Policy {
                site: 0,
                when: KeepWhen::Never,
                hold: sizes.hold,
            },
            away: false,
        }
    }

    /// What its flows hold is held by this custody, of those that the peer opens by this policy; they are those of the `peer`th
    /// peer. To be said before there are any.
    pub(super) fn keep_in(&mut self, custody: &Rc<Custody>, peer: usize, policy: Policy) {
        self.custody = Rc::clone(custody);
        (self.peer, self.policy) = (peer, policy);
    }

    /// The flows are those of a peer of this name: what is written down of those that have ended counts. To be said before there are any.
    pub(super) fn belong_to(&mut self, name: &str) {
        self.ended = Ended::for_peer(&self.context.arena, name_hash(name));
    }

    /// The link is away, or is back. Returns whether that is news.
    pub(super) fn set_link_down(&mut self, away: bool) -> bool {
        let entries = self.entries.values_mut();
        entries.for_each(|entry| entry.set_link_down(away));
        std::mem::replace(&mut self.away, away) != away
    }

    /// A flow without a stream, whose leg's bytes go in direction `outward`.
    pub(super) fn add(&mut self, memory: FlowMemory, outward: Direction) -> FlowId {
        self.add_kept(memory, outward, self.policy)
    }

    /// The same, with a policy of its own.
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
        let mut entry = FlowBuffers::new(memory, outward, self.sizes, initial, keeper);
        entry.set_link_down(self.away);
        self.entries.insert(flow, entry);
        flow
    }

    /// A flow's client is on this host. To be said once.
    pub(super) fn set_host(&mut self, flow: FlowId, host: Host) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.belong_to(host);
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

    /// The flow of a predecessor, which waits for a stream that goes on with it, or for its first. What there is of it otherwise. It is kept by this
    /// policy, or by that of flows that the peer opens. Of the chunks that are `on_disk` those that it does not need are deleted.
    ///
    /// # Errors
    /// When it cannot go on.
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
        entry.belong_to(host);
        self.next += 1;
        self.taken += entry.taken();
        self.waiting += entry.waiting();
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

    /// The flow's stream was opened.
    pub(super) fn bind(&mut self, flow: FlowId, stream: StreamId) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.binding.bind(stream);
            self.streams.insert(stream, flow);
        }
    }

    /// A flow goes on with another stream, which was opened here. How far the peer may send of that.
    pub(super) fn reopen(&mut self, flow: FlowId, stream: StreamId) -> Option<u64> {
        self.streams.insert(stream, flow);
        Some(self.entries.get_mut(&flow)?.reopen(stream))
    }

    /// A flow goes on with another stream, which the peer has opened.
    pub(super) fn rejoin(
        &mut self,
        flow: FlowId,
        stream: StreamId,
        resume: &Resume,
    ) -> Option<Result<Terms, Disagreement>> {
        self.streams.insert(stream, flow);
        Some(self.entries.get_mut(&flow)?.rejoin(stream, resume))
    }

    /// All flows.
    pub(super) fn flows(&self) -> Vec<FlowId> {
        self.entries.keys().copied().collect()
    }

    /// Flows that wait for a stream that goes on with them, which is for us to open.
    pub(super) fn to_reopen(&self) -> Vec<FlowId> {
        let entries = self.entries.iter();
        let waiting = entries.filter(|(_, entry)| !entry.is_far() && entry.is_suspended());
        waiting.map(|(flow, _)| *flow).collect()
    }

    /// The peer calls a flow of its by this token.
    pub(super) fn introduce(&mut self, flow: FlowId, token: u128) {
        if let Some(entry) = self.entries.get_mut(&flow) {
            entry.binding.token = token;
            self.tokens.insert(token, flow);
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

    pub(super) fn get(&mut self, flow: FlowId) -> Option<&mut FlowBuffers> {
        self.entries.get_mut(&flow)
    }

    /// The flow of a stream, which is not to go on. Whatever came of it first is nobody's.
    pub(super) fn abandon(&mut self, stream: StreamId) {
        self.refused.remove(&stream);
        if let Some(flow) = self.streams.get(&stream).copied() {
            self.remove(flow);
        }
    }

    fn of_stream(&mut self, stream: StreamId) -> Option<&mut FlowBuffers> {
        let flow = self.streams.get(&stream)?;
        self.entries.get_mut(flow)
    }

    /// The flow has ended. Its stream, where the session may still have it.
    pub(super) fn remove(&mut self, flow: FlowId) -> Option<StreamId> {
        let entry = self.entries.remove(&flow)?;
        self.taken -= entry.taken();
        self.waiting -= entry.waiting();
        self.far -= u32::from(entry.is_far());
        self.tokens.remove(&entry.binding.token);
        let stream = entry.stream()?;
        self.streams.remove(&stream);
        Some(stream)
    }

    /// A flow ends like this, and its leg is about to be closed: should the peer come back to it, it is told.
    pub(super) fn conclude(&mut self, flow: FlowId, code: ResetCode) {
        if let Some(entry) = self.entries.get(&flow) {
            if entry.is_far() {
                self.ended.insert(entry.binding.token, code);
            }
            entry.publish_closed();
        }
    }

    /// A flow of the peer, by this token, was lost with the process before.
    pub(super) fn on_lost(&mut self, token: u128) {
        self.ended.insert(token, ResetCode::Restarted);
    }

    /// A leg took `count` bytes.
    pub(super) fn on_consumed(&mut self, count: u64) {
        self.taken -= count;
        self.waiting -= count;
    }

    /// Bytes that are here for legs, with those that are missing before others.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Those of them that legs may take, and have not.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether some flow does not take so many more bytes from its leg.
    #[cfg(test)]
    pub(super) fn is_full(&mut self, minimum: u64) -> bool {
        let mut entries = self.entries.values_mut();
        entries.any(|entry| entry.space_of(minimum, minimum).is_empty())
    }

    /// Of each flow, by its token, how much of what we send is given up, as the peer has it; and in which direction it goes.
    #[cfg(test)]
    pub(super) fn given_up(&self) -> Vec<(u128, Direction, u64)> {
        let entries = self.entries.values();
        entries
            .map(|entry| (entry.binding.token, entry.outward, entry.outgoing.head()))
            .collect()
    }

    /// How far what the peer sends of a flow is written down here.
    #[cfg(test)]
    pub(super) fn written_down(&self, token: u128, direction: Direction) -> Option<u64> {
        let mut entries = self.entries.values();
        let entry = entries.find(|entry| entry.binding.token == token)?;
        let record = entry.memory.slot.record()?;
        // One that has ended well has everything, whatever is written down.
        (!entry.closed).then_some(record.halves[direction as usize].tail)
    }

    /// A flow that there is.
    #[cfg(test)]
    pub(super) fn some_flow(&self) -> FlowId {
        *self.entries.keys().next().unwrap()
    }

    /// A second has passed, and it is that late.
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
