//! Header in front of each packet, for the decoder.
//!
//! The upper four bits of the first byte are the scheme, the lower four the kind of packet (0 data,
//! 1 repair). All numbers are in network byte order. The payload follows the header: in a data
//! packet the unchanged data, in a repair packet a repair symbol ([`crate::symbol`]).
//!
//! A block's data packet:
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+-------------------------------+
//! |   1   |   0   |     index     |             block             |
//! +-------+-------+---------------+-------------------------------+
//! |             block             |   data ...
//! +-------------------------------+
//! ```
//!
//! A block's repair packet, row `row` of a block of `k` data packets, of `h` rows that are sent:
//!
//! ```text
//! +-------+-------+---------------+-------------------------------+
//! |   1   |   1   |      row      |             block             |
//! +-------+-------+---------------+---------------+---------------+
//! |             block             |       k       |       h       |
//! +-------------------------------+---------------+---------------+
//! |   repair symbol ...
//! +-------
//! ```
//!
//! A sliding window's data packet:
//!
//! ```text
//! +-------+-------+-----------------------------------------------+
//! |   2   |   0   |                      id                       |
//! +-------+-------+-----------------------------------------------+
//! |      id       |   data ...
//! +---------------+
//! ```
//!
//! A sliding window's repair packet, over the `count` data packets from `first` on, with
//! coefficients generated from `key`:
//!
//! ```text
//! +-------+-------+-----------------------------------------------+
//! |   2   |   1   |                     first                     |
//! +-------+-------+-------------------------------+---------------+
//! |     first     |             count             |      key      |
//! +---------------+-------------------------------+---------------+
//! |      key      |   repair symbol ...
//! +---------------+
//! ```

#[cfg(test)]
mod tests;

/// Header of a packet. Parsing checks all that it can without other packets; [`Header::emit`]
/// writes what [`Header::parse`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// Data packet `index` of block `block`.
    BlockData {
        /// Blocks are numbered consecutively, modulo 2^32.
        block: u32,
        /// From 0 to 254.
        index: u8,
    },
    /// A repair packet of block `block`.
    BlockRepair {
        /// Block that the repair packet belongs to.
        block: u32,
        /// Number of the row; `k + row` is at most 255.
        row: u8,
        /// Number of data packets of the block, from 1 to 255.
        k: u8,
        /// Number of rows sent when the block closed; for information.
        h: u8,
    },
    /// Data packet `id` of a sliding window code.
    WindowData {
        /// Data packets are numbered consecutively, modulo 2^32.
        id: u32,
    },
    /// A repair packet of a sliding window code.
    WindowRepair {
        /// First data packet of the window.
        first: u32,
        /// Number of data packets in the window, 1 or more.
        count: u16,
        /// Seed of the coefficients.
        key: u16,
    },
}

/// Reason why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The packet ends within its header.
    #[error("a packet of {0} bytes ends within its header")]
    Short(usize),
    /// Scheme or kind unknown here; perhaps that of a later version.
    #[error("unknown scheme and kind {0:#04x}")]
    Unknown(u8),
    /// A field with a value that no encoder writes.
    #[error("{field} {value} out of range")]
    Range {
        /// Name of the field in the drawings above.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
}

const BLOCK_DATA: u8 = 0x10;
const BLOCK_REPAIR: u8 = 0x11;
const WINDOW_DATA: u8 = 0x20;
const WINDOW_REPAIR: u8 = 0x21;

impl Header {
    /// Longest header, in bytes.
    pub const LEN_MAX: usize = 9;

    /// Splits a packet into header and payload.
    ///
    /// # Errors
    ///
    /// If the packet is too short, of an unknown scheme, or a field is out of range.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let short = HeaderError::Short(packet.len());
        let (kind, rest) = packet.split_first().ok_or(short)?;
        match *kind {
            BLOCK_DATA => {
                let (&[index, b0, b1, b2, b3], payload) = rest.split_first_chunk().ok_or(short)?;
                let block = u32::from_be_bytes([b0, b1, b2, b3]);
                in_range("index", index < u8::MAX, index.into())?;
                Ok((Self::BlockData { block, index }, payload))
            }
            BLOCK_REPAIR => {
                let (&[row, b0, b1, b2, b3, k, h], payload) =
                    rest.split_first_chunk().ok_or(short)?;
                let block = u32::from_be_bytes([b0, b1, b2, b3]);
                in_range("k", k > 0, k.into())?;
                in_range("row", k.checked_add(row).is_some(), row.into())?;
                Ok((Self::BlockRepair { block, row, k, h }, payload))
            }
            WINDOW_DATA => {
                let (id, payload) = rest.split_first_chunk().ok_or(short)?;
                let id = u32::from_be_bytes(*id);
                Ok((Self::WindowData { id }, payload))
            }
            WINDOW_REPAIR => {
                let (&[f0, f1, f2, f3, c0, c1, k0, k1], payload) =
                    rest.split_first_chunk().ok_or(short)?;
                let first = u32::from_be_bytes([f0, f1, f2, f3]);
                let count = u16::from_be_bytes([c0, c1]);
                let key = u16::from_be_bytes([k0, k1]);
                in_range("count", count > 0, count.into())?;
                Ok((Self::WindowRepair { first, count, key }, payload))
            }
            unknown => Err(HeaderError::Unknown(unknown)),
        }
    }

    /// Length of the header in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no header is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::BlockData { .. } => 6,
            Self::BlockRepair { .. } => 8,
            Self::WindowData { .. } => 5,
            Self::WindowRepair { .. } => 9,
        }
    }

    /// Appends the header to a packet.
    pub fn emit(&self, packet: &mut impl Extend<u8>) {
        match *self {
            Self::BlockData { block, index } => {
                packet.extend([BLOCK_DATA, index]);
                packet.extend(block.to_be_bytes());
            }
            Self::BlockRepair { block, row, k, h } => {
                packet.extend([BLOCK_REPAIR, row]);
                packet.extend(block.to_be_bytes());
                packet.extend([k, h]);
            }
            Self::WindowData { id } => {
                packet.extend([WINDOW_DATA]);
                packet.extend(id.to_be_bytes());
            }
            Self::WindowRepair { first, count, key } => {
                packet.extend([WINDOW_REPAIR]);
                packet.extend(first.to_be_bytes());
                packet.extend(count.to_be_bytes());
                packet.extend(key.to_be_bytes());
            }
        }
    }

    /// Reports whether this is the header of a data packet.
    #[must_use]
    pub fn is_data(&self) -> bool {
        matches!(self, Self::BlockData { .. } | Self::WindowData { .. })
    }
}

fn in_range(field: &'static str, inside: bool, value: u32) -> Result<(), HeaderError> {
    if inside {
        Ok(())
    } else {
        Err(HeaderError::Range { field, value })
    }
}
