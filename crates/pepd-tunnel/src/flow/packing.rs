//! A flow whose stream carries compressed bytes: what lies in its rings is what the stream carries.
//!
//! ```text
//!   leg --receive--> workshop --pack--> [ out ] --> datagrams
//!   leg <---send---- pending <--unpack- [ in  ] <-- datagrams
//! ```

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    rc::Rc,
    task::{Poll, ready},
};

use pep_core::{ring::Ranges, stats::Stats};
use tunnel::compression::{
    BLOCK_MAX, Codec, HEADER_MAX, PLAIN_MAX, Packed, Packer, UnpackError, Unpacker,
};

use crate::table::FlowBuffers;

/// A parcel is not made for less room than this while earlier ones wait for acknowledgements: those that come one by one make little
/// room each, and small parcels shrink less, and cost more for each byte.
const ROOM: u64 = 16 << 10;
/// Nor ever for less than this, which there is as soon as all is acknowledged.
const ROOM_MIN: u64 = 2 << 10;

/// Memory that is not worth giving back.
const SLACK: usize = 4 << 10;

/// What all flows that compress use in turn.
#[derive(Debug, Default)]
pub(crate) struct PackingBuffers {
    codec: Codec,
    /// From the leg, or from the ring.
    input: Vec<u8>,
    output: Vec<u8>,
}

/// How far a direction from the leg has come: so many of its bytes are in what the stream carries below a position.
#[derive(Debug, Clone, Copy)]
struct Mark {
    carried: u64,
    plain: u64,
}

/// Marks are no closer to each other than so many bytes of the stream.
const GRAIN: u64 = 4 << 10;

/// What was packed.
#[derive(Debug, Default)]
struct SiteCounters {
    plain: u64,
    packed: u64,
    blocks: u64,
    stored: u64,
}

/// The compressed bytes of a flow, both ways.
#[derive(Debug)]
pub(super) struct Packing {
    packing_buffers: Rc<RefCell<PackingBuffers>>,
    packer: Packer,
    unpacker: Unpacker,
    /// Bytes for the leg that it has not taken, and how many of them it has.
    pending: Vec<u8>,
    given: usize,
    /// Bytes that the leg gave, and took.
    plain: [u64; 2],
    /// Of what the peer may lack.
    marks: VecDeque<Mark>,
    /// Bytes of the leg that the peer is known to have.
    acked: u64,
    site_counters: SiteCounters,
    /// Why the stream cannot be unpacked.
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
            site_counters: SiteCounters::default(),
            failure: None,
        }
    }

    /// Where the next parcel goes; empty when there is too little room.
    pub(super) fn space(entry: &mut FlowBuffers) -> Ranges {
        let minimum = if entry.is_acknowledged() {
            ROOM_MIN
        } else {
            ROOM
        };
        entry.space_of(minimum, BLOCK_MAX as u64)
    }

    /// Receives what is at hand and makes a parcel of it, in that space. Returns how many bytes the stream carries more; of none
    /// the leg has come to its end.
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
        self.site_counters.plain += plain;
        self.site_counters.packed += carried;
        self.site_counters.blocks += 1;
        self.site_counters.stored += u64::from(packed == Packed::Stored);
        Poll::Ready(Ok(carried))
    }

    /// The stream carries the parcel up to this position.
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

    /// Unpacks what has come, if the leg has taken what came before. Returns how many bytes the stream carried for that; none
    /// more than once it has [failed](Self::failure).
    pub(super) fn unpack(&mut self, entry: &FlowBuffers) -> u64 {
        if !self.pending.is_empty() || self.failure.is_some() {
            return 0;
        }
        let packing_buffers = &mut *self.packing_buffers.borrow_mut();
        let input = &mut packing_buffers.input;
        let read = entry.send(|slot, direction, data| {
            input.resize(data.len().min(BLOCK_MAX as u64) as usize, 0);
            slot.read(direction, data, input);
        });
        if read.is_none() {
            return 0;
        }
        let (codec, output) = (&mut packing_buffers.codec, &mut packing_buffers.output);
        output.clear();
        let taken = self.unpacker.unpack(codec, input, output);
        if !output.is_empty() {
            self.pending = std::mem::take(output);
        }
        taken.map_or_else(
            |err| {
                self.failure = Some(err);
                0
            },
            |taken| taken as u64,
        )
    }

    /// Sends to the leg what was unpacked. Returns how many bytes it took.
    pub(super) fn send(
        &mut self,
        write: impl FnOnce(&[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<u64>> {
        let count = ready!(write(&self.pending[self.given..]))?;
        self.given += count;
        self.plain[1] += count as u64;
        if self.given == self.pending.len() {
            // Others may have the memory.
            self.packing_buffers.borrow_mut().output = std::mem::take(&mut self.pending);
            self.given = 0;
        }
        Poll::Ready(Ok(count as u64))
    }

    /// What the leg has not taken keeps no more memory than it needs.
    pub(super) fn settle(&mut self) {
        if self.pending.capacity() > self.pending.len() + SLACK {
            self.pending.shrink_to_fit();
        }
    }

    /// Whether there is something for the leg.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The stream has ended, and all of it was unpacked: it ends with a parcel, or is broken.
    pub(super) fn finish(&mut self) -> Result<(), UnpackError> {
        if !self.unpacker.is_between() {
            self.failure.get_or_insert(UnpackError::Cut);
        }
        self.failure.map_or(Ok(()), Err)
    }

    /// Why the stream cannot be unpacked any further, if so.
    pub(super) fn failure(&self) -> Option<UnpackError> {
        self.failure
    }

    /// Bytes of hosts that were passed on: from the leg to the peer, which has all below this position of the stream, and to the
    /// leg.
    pub(super) fn delivered(&mut self, acked: u64) -> [u64; 2] {
        while let Some(mark) = self.marks.front()
            && mark.carried <= acked
        {
            self.acked = mark.plain;
            self.marks.pop_front();
        }
        [self.acked, self.plain[1]]
    }

    /// Bytes that were taken from the leg but not [passed on](Self::delivered), and that were unpacked but not sent.
    pub(super) fn held(&self) -> [u64; 2] {
        let pending = self.pending.len() - self.given;
        [self.plain[0] - self.acked, pending as u64]
    }

    /// Bytes of memory that are the flow's own.
    pub(super) fn memory(&self) -> u64 {
        let pending = self.pending.capacity();
        (self.packer.memory() + self.unpacker.memory() + pending) as u64
    }

    /// Adds what was packed since the last time to the counters.
    pub(super) fn count(&mut self, stats: &mut Stats) {
        let site_counters = std::mem::take(&mut self.site_counters);
        stats.tunnel_uncompressed_bytes += site_counters.plain;
        stats.tunnel_compressed_bytes += site_counters.packed;
        stats.tunnel_compression_blocks += site_counters.blocks;
        stats.tunnel_compression_blocks_stored += site_counters.stored;
    }
}
