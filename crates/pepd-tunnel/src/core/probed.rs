//! Probes of the path: streams without a flow, opened by either end.

use pep_core::{pace::Line, stream_header::Opening};
use tunnel::{
    class::Class,
    session::TooManyStreams,
    wire::{ResetCode, StreamId},
};

use super::{Core, Kind};
use crate::{
    peers::SessionFacts,
    probe::{Look, Seen},
};

/// Site number of probes for the scheduler.
const SITE: u32 = 0;

impl Core {
    /// Opens a probe that requests `down` bytes in return. Sends no bytes of its own yet.
    pub(crate) fn open_probe(
        &mut self,
        index: usize,
        class: Class,
        down: u64,
    ) -> Result<(), TooManyStreams> {
        let peer = &mut self.peers.list[index];
        let session = self.endpoint.session(peer.id).ok_or(TooManyStreams)?;
        let stream = session.open(class, SITE, &Opening::Probe(down).emit())?;
        if down > 0 {
            session.finish(stream);
        }
        peer.table.begin_probe(stream);
        self.wake_driver();
        Ok(())
    }

    /// Sends bytes by the open probe.
    pub(crate) fn load_probe(&mut self, index: usize, bytes: u64) {
        let peer = &mut self.peers.list[index];
        let stream = peer.table.probed();
        if let (Some(stream), Some(session)) = (stream, self.endpoint.session(peer.id)) {
            session.written(stream, bytes);
            self.wake_driver();
        }
    }

    /// Ends the open probe, if there is one.
    pub(crate) fn end_probe(&mut self, index: usize) {
        let peer = &mut self.peers.list[index];
        let stream = peer.table.end_probe();
        if let (Some(stream), Some(session)) = (stream, self.endpoint.session(peer.id)) {
            session.reset(stream, ResetCode::Ended);
            self.wake_driver();
        }
    }

    /// Returns the state of the path and the probe; `None` without a session.
    pub(crate) fn sample(&mut self, index: usize) -> Option<Look> {
        let peer = &mut self.peers.list[index];
        let session = self.endpoint.session(peer.id)?;
        let beyond = peer.table.probed().map_or(0, |stream| {
            let runs = session.acked_beyond(stream);
            runs.map(|run| run.end - run.start).sum()
        });
        let probe = peer.table.probe();
        Some(Look {
            facts: SessionFacts {
                carrier: peer.carrier,
                path: session.path(),
                stats: session.stats(),
                causes: session.causes(),
            },
            measures: session.measures(),
            seen: Seen {
                known: probe.known,
                arrived: probe.acked + beyond,
                came: probe.came,
                ended: probe.ended,
            },
        })
    }

    /// Answers a probe of the peer: drops its bytes and sends `down` bytes.
    pub(super) fn on_probed(&mut self, index: usize, stream: StreamId, down: u64) {
        if let Some(Line { left_out }) = self.line(index, Kind::Probed) {
            let peer = self.peer_name(index);
            tracing::info!(peer, down, left_out, "peer probes the path");
        }
        let over = self.peers.list[index].table.take_probe(stream);
        if let Some(over) = over {
            self.refuse(index, over, ResetCode::Limit);
        }
        if over == Some(stream) {
            return;
        }
        let peer = &mut self.peers.list[index];
        if let Some(session) = self.endpoint.session(peer.id) {
            session.written(stream, down);
            session.finish(stream);
        }
        self.grant(index);
        self.wake_driver();
    }

    /// Grants credit for a probe's stream.
    pub(super) fn allow(&mut self, index: usize, stream: StreamId, until: u64) {
        let peer = &self.peers.list[index];
        if let Some(session) = self.endpoint.session(peer.id) {
            session.allow(stream, until);
        }
    }
}
