//! The receiver's side. What comes may be anything.

use super::{Codec, HEADER_MAX, PACKED, PLAIN_MAX, history::History};

/// Why a stream cannot be unpacked. Nothing that follows can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// A parcel of no bytes, of too many, or whose length is written in eight bytes.
    #[error("a parcel of a length that none has")]
    Length,
    /// What is in a parcel is not one frame, or not one of 1 to [`PLAIN_MAX`] bytes.
    #[error("a parcel that cannot be decompressed")]
    Frame,
    /// The stream ends within a parcel; for callers to say, by [`is_between`](Unpacker::is_between).
    #[error("the stream ends within a parcel")]
    Cut,
    /// There is no memory for zstd.
    #[error("no memory to decompress")]
    Memory,
}

/// The parcel of which bytes come.
#[derive(Debug, Clone, Copy)]
struct CompressionBlock {
    packed: bool,
    /// Bytes that have not come; of packed ones all.
    left: usize,
}

/// The receiver's side of a direction.
#[derive(Debug, Clone)]
pub struct Unpacker {
    history: History,
    compression: Option<CompressionBlock>,
    /// The beginning of what stands before a parcel, or of a packed one.
    held: Vec<u8>,
}

impl Default for Unpacker {
    fn default() -> Self {
        Self::new()
    }
}

impl Unpacker {
    /// For a stream that nothing has come of.
    #[must_use]
    pub fn new() -> Self {
        Self {
            history: History::new(),
            compression: None,
            held: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream and appends what they say, until all are taken or `plain` has [`PLAIN_MAX`] bytes or more,
    /// fewer than twice as many. Returns how many were taken.
    ///
    /// # Errors
    /// When they are not what a [`Packer`](super::Packer) writes. Nothing more is to be given then.
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

    /// Whether what came so far ends with a parcel: only here may a stream end.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.compression.is_none() && self.held.is_empty()
    }

    /// Bytes of memory that it has.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.history.memory() + self.held.capacity()
    }

    /// Reads what stands before a parcel, as far as it has come.
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

    /// Keeps the next bytes, until `len` are held. Returns the others.
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
    // The two highest bits are those of the header's own length.
    let value = value & (u64::MAX >> (66 - 8 * header.len()));
    let (left, packed) = ((value >> 1) as usize, value & 1 == PACKED);
    if !(1..=PLAIN_MAX).contains(&left) {
        return Err(UnpackError::Length);
    }
    Ok(CompressionBlock { packed, left })
}
