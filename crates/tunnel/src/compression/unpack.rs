//! Decompression at the receiving end. The input is untrusted.

use super::{Codec, HEADER_MAX, PACKED, PLAIN_MAX, history::History};

/// Error of decompression; the rest of the stream is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// A compression block is empty, too long, or has an eight-byte length.
    #[error("invalid length of a compression block")]
    Length,
    /// A compression block is not a single frame of 1 to [`PLAIN_MAX`] bytes.
    #[error("compression block cannot be decompressed")]
    Frame,
    /// The stream ends within a compression block. Reported by the caller, from
    /// [`is_between`](Unpacker::is_between).
    #[error("the stream ends within a compression block")]
    Cut,
    /// No memory for zstd.
    #[error("out of memory during decompression")]
    Memory,
}

/// The compression block being received.
#[derive(Debug, Clone, Copy)]
struct CompressionBlock {
    packed: bool,
    /// Bytes not received yet; all of them for a compressed block.
    left: usize,
}

/// Receiving side of one direction of a stream.
#[derive(Debug, Clone)]
pub struct Unpacker {
    history: History,
    compression: Option<CompressionBlock>,
    /// Incomplete block header, or incomplete compressed block.
    held: Vec<u8>,
}

impl Default for Unpacker {
    fn default() -> Self {
        Self::new()
    }
}

impl Unpacker {
    /// Creates the state of a new stream.
    #[must_use]
    pub fn new() -> Self {
        Self {
            history: History::new(),
            compression: None,
            held: Vec::new(),
        }
    }

    /// Decompresses the next bytes of the stream and appends the result to `plain`. Stops when all
    /// are consumed or `plain` has [`PLAIN_MAX`] bytes or more, fewer than twice as many. Returns
    /// the number of bytes consumed.
    ///
    /// # Errors
    ///
    /// The input is not what a [`Packer`](super::Packer) writes. No further input may follow.
    pub fn unpack(
        &mut self,
        codec: &mut Codec,
        bytes: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<usize, UnpackError> {
        let mut rest = bytes;
        while !rest.is_empty() && plain.len() < PLAIN_MAX {
            rest = match self.compression {
                None => self.begin(rest)?,
                Some(compression) if compression.packed => {
                    self.packed(codec, compression.left, rest, plain)?
                }
                Some(compression) => self.stored(compression.left, rest, plain),
            };
        }
        Ok(bytes.len() - rest.len())
    }

    /// Returns true if the input so far ends with a complete block: only here may a stream end.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.compression.is_none() && self.held.is_empty()
    }

    /// Returns the bytes consumed of an incomplete block header, or of an incomplete compressed
    /// block after its header.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.held.len()
    }

    /// Returns the allocated memory in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.history.memory() + self.held.capacity()
    }

    /// Reads the header of a compression block, as far as it has arrived.
    fn begin<'b>(&mut self, rest: &'b [u8]) -> Result<&'b [u8], UnpackError> {
        let first = self.held.first().or(rest.first());
        let len = first.map_or(0, |first| 1_usize << (first >> 6));
        if len > HEADER_MAX {
            return Err(UnpackError::Length);
        }
        let rest = self.hold(len, rest);
        if self.held.len() == len {
            self.compression = Some(compression(&self.held)?);
            self.held.clear();
        }
        Ok(rest)
    }

    fn stored<'b>(&mut self, left: usize, rest: &'b [u8], plain: &mut Vec<u8>) -> &'b [u8] {
        let (bytes, rest) = rest.split_at(left.min(rest.len()));
        plain.extend_from_slice(bytes);
        self.history.push(bytes);
        let left = left - bytes.len();
        self.compression = (left > 0).then_some(CompressionBlock {
            packed: false,
            left,
        });
        rest
    }

    fn packed<'b>(
        &mut self,
        codec: &mut Codec,
        len: usize,
        rest: &'b [u8],
        plain: &mut Vec<u8>,
    ) -> Result<&'b [u8], UnpackError> {
        if self.held.is_empty()
            && let Some((frame, rest)) = rest.split_at_checked(len)
        {
            let bytes = codec.decompress(frame, self.history.dictionary())?;
            plain.extend_from_slice(bytes);
            self.history.push(bytes);
            self.compression = None;
            return Ok(rest);
        }
        let rest = self.hold(len, rest);
        if self.held.len() == len {
            let frame = std::mem::take(&mut self.held);
            self.packed(codec, len, &frame, plain)?;
        }
        Ok(rest)
    }

    /// Holds the next bytes until `len` are held. Returns the rest.
    fn hold<'b>(&mut self, len: usize, rest: &'b [u8]) -> &'b [u8] {
        let missing = len - self.held.len();
        let (bytes, rest) = rest.split_at(missing.min(rest.len()));
        self.held.reserve_exact(missing);
        self.held.extend_from_slice(bytes);
        rest
    }
}

fn compression(header: &[u8]) -> Result<CompressionBlock, UnpackError> {
    let value = header
        .iter()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte));
    // The two highest bits encode the header's own length.
    let value = value & (u64::MAX >> (66 - 8 * header.len()));
    let (left, packed) = ((value >> 1) as usize, value & 1 == PACKED);
    if !(1..=PLAIN_MAX).contains(&left) {
        return Err(UnpackError::Length);
    }
    Ok(CompressionBlock { packed, left })
}
