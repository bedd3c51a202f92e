//! A flow with a compressed stream: its rings hold the stream's bytes, compressed.
//!
//! ```text
//!   leg --receive--> buffers --pack--> [ out ] --> datagrams
//!   leg <---send---- pending <--unpack- [ in  ] <-- datagrams
//! ```

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pep_core::{ring::Ranges, stats::Stats};
use tokio::time::{Sleep, sleep};
use tunnel::compression::{
    BLOCK_MAX, Codec, HEADER_MAX, PLAIN_MAX, Packed, Packer, UnpackError, Unpacker,
};

use crate::table::FlowBuffers;

/// Minimum of free room for a compression block while earlier blocks wait for acknowledgement.
/// Acknowledged blocks free little room each, and small blocks compress worse and cost more per
/// byte.
const ROOM: u64 = 16 << 10;
/// Minimum of free room in any case; available as soon as everything is acknowledged.
const ROOM_MIN: u64 = 2 << 10;

/// Memory below which giving back is not worthwhile.
const SLACK: usize = 4 << 10;

/// Buffers that all compressing flows use in turn.
#[derive(Debug, Default)]
pub(crate) struct PackingBuffers {
    codec: Codec,
    /// Bytes from the leg or the ring.
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Progress of the direction from the leg: the number of its bytes below a position of the stream.
#[derive(Debug, Clone, Copy)]
struct Mark {
    carried: u64,
    plain: u64,
}

/// Minimum distance between marks in bytes of the stream.
const GRAIN: u64 = 4 << 10;

/// Counts of compressed bytes.
#[derive(Debug, Default)]
struct PackedCounts {
    plain: u64,
    packed: u64,
    blocks: u64,
    stored: u64,
}

/// Compressed bytes of a flow, in both directions.
#[derive(Debug)]
pub(super) struct Packing {
    packing_buffers: Rc<RefCell<PackingBuffers>>,
    packer: Packer,
    unpacker: Unpacker,
    /// Bytes for the leg, and how many of them it has taken.
    pending: Vec<u8>,
    given: usize,
    /// Bytes received from and sent to the leg.
    plain: [u64; 2],
    /// Marks of bytes that the peer may lack.
    marks: VecDeque<Mark>,
    /// Bytes of the leg that the peer has acknowledged.
    acked: u64,
    counts: PackedCounts,
    /// Bytes of the stream from which no bytes for the leg have come yet.
    unyielding: u64,
    /// Pause before the leg gets the bytes for it.
    pause: Option<Pin<Box<Sleep>>>,
    /// Reason for which the stream cannot be decompressed.
    failure: Option<UnpackError>,
}

impl Packing {
    pub(super) fn new(packing_buffers: Rc<RefCell<PackingBuffers>>) -> Self {
        Self {
            packing_buffers,
            packer: Packer::new(),
            unpacker: Unpacker::new(),
            pending: Vec::new(),
            given: 0,
            plain: [0; 2],
            marks: VecDeque::new(),
            acked: 0,
            counts: PackedCounts::default(),
            unyielding: 0,
            pause: None,
            failure: None,
        }
    }

    /// Returns the room for the next compression block; empty if there is too little.
    pub(super) fn space(entry: &mut FlowBuffers) -> Ranges {
        let minimum = if entry.is_acknowledged() {
            ROOM_MIN
        } else {
            ROOM
        };
        entry.space_of(minimum, BLOCK_MAX as u64)
    }

    /// Receives available bytes and compresses them into that room. Returns the length of the
    /// block; 0 at the leg's end.
    pub(super) fn receive(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
        entry: &mut FlowBuffers,
        space: &Ranges,
    ) -> Poll<io::Result<u64>> {
        let packing_buffers = &mut *self.packing_buffers.borrow_mut();
        packing_buffers.input.resize(PLAIN_MAX, 0);
        let room = space.len() as usize - HEADER_MAX;
        let room = &mut packing_buffers.input[..room.min(PLAIN_MAX)];
        let count = ready!(read(room))?;
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        let (plain, out) = (&room[..count], &mut packing_buffers.output);
        out.clear();
        let packed = self.packer.pack(&mut packing_buffers.codec, plain, out);
        entry.write(space, out);
        let (plain, carried) = (count as u64, out.len() as u64);
        self.plain[0] += plain;
        self.counts.plain += plain;
        self.counts.packed += carried;
        self.counts.blocks += 1;
        self.counts.stored += u64::from(packed == Packed::Stored);
        Poll::Ready(Ok(carried))
    }

    /// Records that the stream holds the block up to this position.
    pub(super) fn on_written(&mut self, until: u64) {
        let mark = Mark {
            carried: until,
            plain: self.plain[0],
        };
        let before = self.marks.iter().nth_back(1);
        let from = before.map_or(0, |mark| mark.carried);
        match self.marks.back_mut() {
            Some(last) if until - from < GRAIN => *last = mark,
            _ => self.marks.push_back(mark),
        }
    }

    /// Keeps the bytes for the leg for that time.
    pub(super) fn pause(&mut self, wait: Duration) {
        self.pause = (!wait.is_zero()).then(|| Box::pin(sleep(wait)));
    }

    /// Ready once the [pause](Self::pause) is over.
    pub(super) fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// Decompresses received bytes once the leg has taken the previous ones. Returns the bytes of
    /// the stream used, none after a [failure](Self::failure). With bytes for the leg, also those
    /// of the stream from which they come, and their own number.
    pub(super) fn unpack(&mut self, entry: &FlowBuffers) -> (u64, Option<(u64, u64)>) {
        if !self.pending.is_empty() || self.failure.is_some() {
            return (0, None);
        }
        let packing_buffers = &mut *self.packing_buffers.borrow_mut();
        let input = &mut packing_buffers.input;
        let read = entry.send(|slot, direction, data| {
            input.resize(data.len().min(BLOCK_MAX as u64) as usize, 0);
            slot.read(direction, data, input);
        });
        if read.is_none() {
            return (0, None);
        }
        let (codec, output) = (&mut packing_buffers.codec, &mut packing_buffers.output);
        output.clear();
        let taken = self.unpacker.unpack(codec, input, output);
        if !output.is_empty() {
            self.pending = std::mem::take(output);
        }
        let taken = match taken {
            Ok(taken) => taken as u64,
            Err(err) => {
                self.failure = Some(err);
                0
            }
        };
        self.unyielding += taken;
        let plain = self.pending.len() as u64;
        let became = (plain > 0).then(|| {
            let incomplete = self.unpacker.incomplete() as u64;
            let packed = self.unyielding.saturating_sub(incomplete);
            self.unyielding = incomplete;
            (packed, plain)
        });
        (taken, became)
    }

    /// Sends decompressed bytes to the leg. Returns how many it took.
    pub(super) fn send(
        &mut self,
        write: impl FnOnce(&[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<u64>> {
        let count = ready!(write(&self.pending[self.given..]))?;
        self.given += count;
        self.plain[1] += count as u64;
        if self.given == self.pending.len() {
            // Returns the memory to the shared buffers.
            self.packing_buffers.borrow_mut().output = std::mem::take(&mut self.pending);
            self.given = 0;
        }
        Poll::Ready(Ok(count as u64))
    }

    /// Shrinks the memory of bytes that the leg has not taken.
    pub(super) fn settle(&mut self) {
        if self.pending.capacity() > self.pending.len() + SLACK {
            self.pending.shrink_to_fit();
        }
    }

    /// Returns whether there are bytes for the leg.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Checks that a finished stream ends at a block boundary.
    pub(super) fn finish(&mut self) -> Result<(), UnpackError> {
        if !self.unpacker.is_between() {
            self.failure.get_or_insert(UnpackError::Cut);
        }
        self.failure.map_or(Ok(()), Err)
    }

    /// Returns the reason for which the stream cannot be decompressed, if so.
    pub(super) fn failure(&self) -> Option<UnpackError> {
        self.failure
    }

    /// Returns the bytes of hosts that were delivered, to the peer and to the leg. The peer has
    /// everything below this position of the stream.
    pub(super) fn delivered(&mut self, acked: u64) -> [u64; 2] {
        while let Some(mark) = self.marks.front()
            && mark.carried <= acked
        {
            self.acked = mark.plain;
            self.marks.pop_front();
        }
        [self.acked, self.plain[1]]
    }

    /// Returns the bytes received from the leg but not [delivered](Self::delivered), and those
    /// decompressed but not sent.
    pub(super) fn held(&self) -> [u64; 2] {
        let pending = self.pending.len() - self.given;
        [self.plain[0] - self.acked, pending as u64]
    }

    /// Returns the bytes of memory that the flow owns.
    pub(super) fn memory(&self) -> u64 {
        let pending = self.pending.capacity();
        (self.packer.memory() + self.unpacker.memory() + pending) as u64
    }

    /// Adds the counts since the last call to the counters.
    pub(super) fn count(&mut self, stats: &mut Stats) {
        let counts = std::mem::take(&mut self.counts);
        stats.tunnel_uncompressed_bytes += counts.plain;
        stats.tunnel_compressed_bytes += counts.packed;
        stats.tunnel_compression_blocks += counts.blocks;
        stats.tunnel_compression_blocks_stored += counts.stored;
    }
}
