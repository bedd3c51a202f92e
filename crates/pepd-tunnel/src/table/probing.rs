//! Streams of probes, which are of no flow: what is sent by them is made up as it goes, and what comes is counted and dropped. So
//! they take no memory, and nothing of them is kept for anybody.

use tunnel::wire::{ResetCode, StreamId};

use super::Table;

/// A stream of ours by which the path to the peer is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Bytes that have come by it.
    pub(crate) came: u64,
    /// The peer has all that we have sent below this.
    pub(crate) acked: u64,
    /// The peer has heard of it.
    pub(crate) known: bool,
    /// It is over: both ends have finished, or it was reset like this.
    pub(crate) ended: Option<Option<ResetCode>>,
}

/// All of a peer. Of a stream that is no more nothing is left that the next session could take for one of its own.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// The one that we may have open.
    ours: Option<StreamId>,
    /// How far that is, or was.
    progress: Probe,
    /// The one that the peer may have open here.
    theirs: Option<StreamId>,
}

impl Probes {
    fn is(&self, stream: StreamId) -> bool {
        self.theirs == Some(stream) || self.ours == Some(stream)
    }

    /// Makes up what is sent of a stream there. Whether it is one of these.
    pub(super) fn read(&self, stream: StreamId, from: u64, into: &mut [u8]) -> bool {
        let is = self.is(stream);
        if is {
            fill(from, into);
        }
        is
    }

    /// Bytes of a stream have come. Whether it is one of these.
    pub(super) fn place(&mut self, stream: StreamId, len: u64) -> bool {
        if self.ours == Some(stream) {
            self.progress.came += len;
        }
        self.is(stream)
    }

    /// The peer has heard of a stream, and has all below that position.
    pub(super) fn on_acked(&mut self, stream: StreamId, until: u64) {
        if self.ours == Some(stream) {
            (self.progress.known, self.progress.acked) = (true, until);
        }
    }

    /// A stream is no more. Whether it was one of these.
    pub(super) fn on_stream_end(&mut self, stream: StreamId, code: Option<ResetCode>) -> bool {
        if self.ours.take_if(|ours| *ours == stream).is_some() {
            self.progress.ended = Some(code);
            return true;
        }
        self.theirs.take_if(|theirs| *theirs == stream).is_some()
    }

    /// All streams are gone with their session.
    pub(super) fn on_restart(&mut self) {
        self.theirs = None;
        if self.ours.take().is_some() {
            self.progress.ended = Some(Some(ResetCode::Restarted));
        }
    }
}

impl Table {
    /// The peer has opened a probe. It has one at a time, so of two the earlier is over, though the word of that is not here yet: which one is
    /// to be reset.
    pub(crate) fn take_probe(&mut self, stream: StreamId) -> Option<StreamId> {
        // What came before the opening was looked at made a flow, as it seemed.
        self.abandon(stream);
        let other = self.probes.theirs.replace(stream)?;
        self.probes.theirs = Some(other.max(stream));
        Some(other.min(stream))
    }

    /// We have opened one. There is no other of ours.
    pub(crate) fn begin_probe(&mut self, stream: StreamId) {
        self.probes.ours = Some(stream);
        self.probes.progress = Probe::default();
    }

    /// The one of ours, as long as it is open.
    pub(crate) fn probed(&self) -> Option<StreamId> {
        self.probes.ours
    }

    /// How far the last one of ours is.
    pub(crate) fn probe(&self) -> Probe {
        self.probes.progress
    }

    /// Nobody wants to know of the one of ours any more: what is to be reset, if it is not over.
    pub(crate) fn end_probe(&mut self) -> Option<StreamId> {
        self.probes.ours.take()
    }

    /// All of a stream below that position has come: as far as the peer may send now, if it is a probe's.
    pub(crate) fn drop_probed(&self, stream: StreamId, until: u64) -> Option<u64> {
        let window = pep_core::chunks::window(self.context.arena.layout().extent_bytes());
        self.probes.is(stream).then(|| until.saturating_add(window))
    }
}

/// Bytes that do not compress, each by its position alone.
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
