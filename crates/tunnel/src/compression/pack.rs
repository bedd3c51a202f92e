//! Compression at the sending end.

use super::{BLOCK_MAX, Codec, HEADER_MAX, PACKED, PLAIN_MAX, history::History, skip::Skip};
use crate::wire::varint;

/// Minimum number of bytes worth compressing.
const MIN: usize = 16;

/// Result of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    /// Compressed by a sixteenth or more.
    Smaller,
    /// Stored uncompressed.
    Stored,
}

/// Sending side of one direction of a stream.
#[derive(Debug, Clone)]
pub struct Packer {
    history: History,
    skip: Skip,
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

impl Packer {
    /// Creates the state of a new stream.
    #[must_use]
    pub fn new() -> Self {
        Self {
            history: History::new(),
            skip: Skip::new(),
        }
    }

    /// Appends a compression block of the next bytes, longer by [`HEADER_MAX`] at most.
    ///
    /// # Panics
    /// `plain` is empty, or longer than [`PLAIN_MAX`].
    pub fn pack(&mut self, codec: &mut Codec, plain: &[u8], out: &mut Vec<u8>) -> Packed {
        assert!((1..=PLAIN_MAX).contains(&plain.len()));
        let frame = self.try_compress(codec, plain);
        let (bytes, flag) = frame.map_or((plain, 0), |frame| (frame, PACKED));
        varint::emit(2 * bytes.len() as u64 + flag, out);
        out.extend_from_slice(bytes);
        self.history.push(plain);
        match flag {
            PACKED => Packed::Smaller,
            _ => Packed::Stored,
        }
    }

    fn try_compress<'c>(&mut self, codec: &'c mut Codec, plain: &[u8]) -> Option<&'c [u8]> {
        let len = plain.len();
        if len < MIN || !self.skip.tries(len) {
            return None;
        }
        let frame = codec.compress(plain, self.history.dictionary(), len - len / 16);
        self.skip.on_tried(len, frame.is_some());
        frame
    }

    /// Returns the allocated memory in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.history.memory()
    }
}

const _: () = assert!(varint::len(2 * PLAIN_MAX as u64 + PACKED) == HEADER_MAX);
const _: () = assert!(BLOCK_MAX == PLAIN_MAX + HEADER_MAX);
