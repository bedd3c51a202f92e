//! Events of the session and its streams, and access to their bytes.

use tunnel::{
    store::Store,
    wire::{ResetCode, StreamId},
};

use super::{FlowBuffers, FlowId, Inventory, Table};

impl Table {
    /// Handles the arrival of all bytes below that position. Returns the flow if they complete the
    /// peer's answer.
    pub(crate) fn on_readable(&mut self, stream: StreamId, until: u64) -> Option<FlowId> {
        let flow = *self.streams.get(&stream)?;
        let entry = self.entries.get_mut(&flow)?;
        let (answered, more) = entry.on_readable(until);
        self.waiting.add(entry.host, more);
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

    /// Handles the end of a stream; without a code, both ends have finished it.
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
        if entry.is_only_bytes() {
            self.remove(flow);
            return;
        }
        let client = entry.client();
        match code {
            Some(code) => {
                entry.on_reset(code);
                let ends_well = entry.closed;
                tracing::debug!(?client, stream, ?code, ends_well, "flow reset by the peer");
            }
            None => entry.close(),
        }
    }

    /// Breaks off a flow. Returns its stream, to be reset.
    pub(crate) fn abort(&mut self, flow: FlowId, code: ResetCode) -> Option<StreamId> {
        let entry = self.entries.get_mut(&flow)?;
        let stream = entry.stream();
        entry.end(code);
        self.streams.remove(&stream?);
        stream
    }

    /// Drops all streams with their session. Their flows wait for the next session, and flows
    /// without a stream for their first.
    pub(crate) fn on_restart(&mut self) {
        for flow in std::mem::take(&mut self.streams).into_values() {
            if let Some(entry) = self.entries.get_mut(&flow) {
                self.taken -= entry.suspend();
                if entry.is_only_bytes() {
                    self.remove(flow);
                }
            }
        }
        self.refused.clear();
        self.came = 0;
        self.probes.on_restart();
        self.inventory = Inventory::default();
        self.wake_waiting();
    }

    /// Ends the flows with streams, because the peer has closed the session. Flows without a stream
    /// keep waiting.
    pub(crate) fn on_peer_closed(&mut self) {
        self.on_restart();
        let entries = self.entries.values_mut();
        entries
            .filter(|entry| entry.is_suspended())
            .for_each(|entry| entry.end(ResetCode::Restarted));
    }

    /// Wakes flows that wait for a session or a stream of it.
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
            // Stream of a removed flow: the session will reset it, and the peer drops the bytes.
            into.fill(0);
        }
    }

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        self.came += bytes.len() as u64;
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
