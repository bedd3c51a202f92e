//! What becomes of the session, and of its streams; and the bytes of these.

use tunnel::{
    store::Store,
    wire::{ResetCode, StreamId},
};

use super::{FlowBuffers, FlowId, Inventory, Table};

impl Table {
    /// All below that position has come. The flow, if with that the peer has said where it goes on.
    pub(crate) fn on_readable(&mut self, stream: StreamId, until: u64) -> Option<FlowId> {
        let flow = *self.streams.get(&stream)?;
        let (answered, more) = self.entries.get_mut(&flow)?.on_readable(until);
        self.waiting += more;
        answered.then_some(flow)
    }

    pub(crate) fn on_acked(&mut self, stream: StreamId, until: u64) {
        self.probes.on_acked(stream, until);
        if let Some(entry) = self.of_stream(stream) {
            entry.on_acked(until);
        }
    }

    pub(crate) fn on_finished(&mut self, stream: StreamId) {
        if let Some(entry) = self.of_stream(stream) {
            entry.on_finished();
        }
    }

    /// The stream is no more; without a code because both ends have finished it.
    pub(crate) fn on_stream_end(&mut self, stream: StreamId, code: Option<ResetCode>) {
        self.refused.remove(&stream);
        if self.probes.on_stream_end(stream, code) {
            return;
        }
        let Some(flow) = self.streams.remove(&stream) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&flow) else {
            return;
        };
        let client = entry.client();
        match code {
            Some(code) => {
                entry.on_reset(code);
                let ends_well = entry.closed;
                tracing::debug!(
                    ?client,
                    stream,
                    ?code,
                    ends_well,
                    "the peer has reset a flow"
                );
            }
            None => entry.close(),
        }
    }

    /// A flow does not go on: its stream, which is to be reset.
    pub(crate) fn break_off(&mut self, flow: FlowId, code: ResetCode) -> Option<StreamId> {
        let entry = self.entries.get_mut(&flow)?;
        let stream = entry.stream();
        entry.end(code);
        self.streams.remove(&stream?);
        stream
    }

    /// All streams are gone with their session. Their flows wait for the next one, and those that had none yet for their first.
    pub(crate) fn on_restart(&mut self) {
        for flow in std::mem::take(&mut self.streams).into_values() {
            if let Some(entry) = self.entries.get_mut(&flow) {
                self.taken -= entry.suspend();
                if entry.is_far() && entry.binding.token == 0 {
                    // Nobody has heard of it but that a byte came.
                    self.remove(flow);
                }
            }
        }
        self.refused.clear();
        self.probes.on_restart();
        self.inventory = Inventory::default();
        self.wake_waiting();
    }

    /// The peer has ended the session, and the flows with it. Those that had no stream yet wait on.
    pub(crate) fn on_farewell(&mut self) {
        self.on_restart();
        let entries = self.entries.values_mut();
        entries
            .filter(|entry| entry.is_suspended())
            .for_each(|entry| entry.end(ResetCode::Restarted));
    }

    /// Those that wait for a session, or for a stream of it, may try again.
    pub(crate) fn wake_waiting(&mut self) {
        let waiting = self.entries.values_mut();
        waiting
            .filter(|entry| entry.stream().is_none())
            .for_each(FlowBuffers::wake);
    }
}

impl Store for Table {
    fn renew(&mut self) {
        self.on_restart();
    }

    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) {
        if self.probes.read(stream, from, into) {
            return;
        }
        let flow = self.streams.get(&stream);
        let entry = flow.and_then(|flow| self.entries.get(flow));
        if !entry.is_some_and(|entry| entry.read(from, into)) {
            // Of a flow that is gone; the session has been told, and the peer drops it.
            into.fill(0);
        }
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        if self.refused.contains(&stream) || self.probes.place(stream, bytes.len() as u64) {
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
