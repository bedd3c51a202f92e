//! Variable-length integers (RFC 9000 §16) and primitives of the packet format.
//!
//! ```text
//! 00vvvvvv                               to 2^6 - 1
//! 01vvvvvv vvvvvvvv                      to 2^14 - 1
//! 10vvvvvv vvvvvvvv vvvvvvvv vvvvvvvv    to 2^30 - 1
//! 11vvvvvv and seven more bytes          to 2^62 - 1
//! ```
//!
//! Written in the shortest form; any form is read.

use super::FrameError;

/// Maximum value, beyond any real position, number or count. Larger values are written as this one.
pub const MAX: u64 = (1 << 62) - 1;

/// Returns the encoded length of a value in bytes.
#[must_use]
pub const fn len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends a value.
pub fn emit(value: u64, out: &mut Vec<u8>) {
    let value = value.min(MAX);
    let len = len(value);
    let prefix = (len.trailing_zeros() as u64) << (8 * len - 2);
    out.extend_from_slice(&(value | prefix).to_be_bytes()[8 - len..]);
}

/// Zigzag-encodes a signed number: 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4. Magnitudes must be below
/// 2^61.
pub(super) fn fold(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

/// Reverses [`fold`].
pub(super) fn unfold(folded: u64) -> i64 {
    (folded >> 1).cast_signed() ^ -((folded & 1).cast_signed())
}

/// Sequential reader of bytes.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Skips zero bytes, many at once.
    pub fn skip_zeros(&mut self) {
        while let Some((bytes, rest)) = self.rest.split_first_chunk::<16>()
            && u128::from_ne_bytes(*bytes) == 0
        {
            self.rest = rest;
        }
        let zeros = self.rest.iter().take_while(|byte| **byte == 0);
        self.rest = &self.rest[zeros.count()..];
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(FrameError::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(FrameError::Short)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn varint(&mut self) -> Result<u64, FrameError> {
        let first = *self.rest.first().ok_or(FrameError::Short)?;
        let bytes = self.bytes(1 << (first >> 6))?;
        let value = bytes
            .iter()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte));
        // The two length bits are the highest ones.
        Ok(value & (u64::MAX >> (66 - 8 * bytes.len())))
    }

    /// Reads a length, at most `max`, and that many bytes.
    pub fn counted(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], FrameError> {
        let len = self.at_most(field, max as u64)?;
        self.bytes(len as usize)
    }

    /// Reads a value, at most `max`.
    pub fn at_most(&mut self, field: &'static str, max: u64) -> Result<u64, FrameError> {
        let value = self.varint()?;
        in_range(field, value <= max, value)?;
        Ok(value)
    }
}

/// Returns an error unless `inside`.
pub(super) fn in_range(field: &'static str, inside: bool, value: u64) -> Result<(), FrameError> {
    if inside {
        Ok(())
    } else {
        Err(FrameError::Range { field, value })
    }
}

/// Returns the sum, unless it exceeds the maximum of a varint.
pub(super) fn sum(field: &'static str, a: u64, b: u64) -> Result<u64, FrameError> {
    let sum = a.saturating_add(b);
    in_range(field, sum <= MAX, sum)?;
    Ok(sum)
}
