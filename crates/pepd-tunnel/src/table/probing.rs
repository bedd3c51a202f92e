//! Streams of probes, which belong to no flow. Sent bytes are generated, received bytes are counted
//! and dropped, so probes take no memory.

use tunnel::wire::{ResetCode, StreamId};

use super::Table;

/// State of a local probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Received bytes.
    pub(crate) came: u64,
    /// Position below which the peer has all sent bytes.
    pub(crate) acked: u64,
    /// The peer has acknowledged the stream.
    pub(crate) known: bool,
    /// End of the stream: finished by both ends, or reset with this code.
    pub(crate) ended: Option<Option<ResetCode>>,
}

/// Probes with a peer. An ended stream leaves nothing that the next session could mistake for its
/// own.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// The open probe of the local end.
    local: Option<StreamId>,
    /// State of the last local probe.
    progress: Probe,
    /// The open probe of the peer.
    remote: Option<StreamId>,
}

impl Probes {
    fn is(&self, stream: StreamId) -> bool {
        self.remote == Some(stream) || self.local == Some(stream)
    }

    /// Generates bytes of a stream. Returns whether it is a probe's.
    pub(super) fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) -> bool {
        let is = self.is(stream);
        if is {
            fill(from, into);
        }
        is
    }

    /// Counts bytes of a stream. Returns whether it is a probe's.
    pub(super) fn place(&mut self, stream: StreamId, len: u64) -> bool {
        if self.local == Some(stream) {
            self.progress.came += len;
        }
        self.is(stream)
    }

    /// Records that the peer has all bytes of a stream below that position.
    pub(super) fn on_acked(&mut self, stream: StreamId, until: u64) {
        if self.local == Some(stream) {
            (self.progress.known, self.progress.acked) = (true, until);
        }
    }

    /// Handles the end of a stream. Returns whether it is a probe's.
    pub(super) fn on_stream_end(&mut self, stream: StreamId, code: Option<ResetCode>) -> bool {
        if self.local.take_if(|local| *local == stream).is_some() {
            self.progress.ended = Some(code);
            return true;
        }
        self.remote.take_if(|remote| *remote == stream).is_some()
    }

    /// Drops all streams with their session.
    pub(super) fn on_restart(&mut self) {
        self.remote = None;
        if self.local.take().is_some() {
            self.progress.ended = Some(Some(ResetCode::Restarted));
        }
    }
}

impl Table {
    /// Takes a probe of the peer. Only one is open at a time: an earlier one is over at the peer,
    /// although its end has not arrived yet. Returns that one, to be reset.
    pub(crate) fn take_probe(&mut self, stream: StreamId) -> Option<StreamId> {
        // Bytes that came before the stream header have created a flow.
        self.abandon(stream);
        let other = self.probes.remote.replace(stream)?;
        self.probes.remote = Some(other.max(stream));
        Some(other.min(stream))
    }

    /// Records a local probe. There must be no other.
    pub(crate) fn begin_probe(&mut self, stream: StreamId) {
        self.probes.local = Some(stream);
        self.probes.progress = Probe::default();
    }

    /// Returns the open local probe.
    pub(crate) fn probed(&self) -> Option<StreamId> {
        self.probes.local
    }

    /// Returns the state of the last local probe.
    pub(crate) fn probe(&self) -> Probe {
        self.probes.progress
    }

    /// Ends the local probe. Returns its stream, to be reset.
    pub(crate) fn end_probe(&mut self) -> Option<StreamId> {
        self.probes.local.take()
    }

    /// Handles the arrival of all bytes of a stream below that position. Returns how far the peer
    /// may send, if it is a probe's.
    pub(crate) fn drop_probed(&self, stream: StreamId, until: u64) -> Option<u64> {
        let window = pep_core::chunks::window(self.context.arena.layout().extent_bytes());
        self.probes.is(stream).then(|| until.saturating_add(window))
    }
}

/// Fills the buffer with incompressible bytes, each determined by its position.
fn fill(from: u64, into: &mut [u8]) {
    let mut at = from;
    let mut rest = into;
    while !rest.is_empty() {
        let block = splitmix::nth(at / 8).to_le_bytes();
        let skipped = (at % 8) as usize;
        let len = rest.len().min(8 - skipped);
        let (now, later) = rest.split_at_mut(len);
        now.copy_from_slice(&block[skipped..skipped + len]);
        at += len as u64;
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_the_same_wherever_a_packet_begins() {
        let mut whole = [0; 4000];
        fill(0, &mut whole);
        for (from, until) in [(0, 1), (1, 9), (7, 8), (8, 16), (13, 1413), (3999, 4000)] {
            let mut part = vec![0; until - from];
            fill(from as u64, &mut part);
            assert_eq!(part, whole[from..until], "{from}..{until}");
        }
        let mut seen = [false; 256];
        whole
            .iter()
            .for_each(|byte| seen[usize::from(*byte)] = true);
        assert!(seen.iter().all(|seen| *seen), "they repeat");
    }
}
