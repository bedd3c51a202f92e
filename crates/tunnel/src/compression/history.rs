//! Last bytes of a direction, used as a dictionary.

use super::HISTORY;

/// Additional bytes kept, so that short additions rarely move memory.
const SLACK: usize = 4 << 10;

/// The last [`HISTORY`] bytes and some before them.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// One extra byte or more at the front, not part of the history.
    bytes: Vec<u8>,
}

impl History {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0] }
    }

    /// Adds the next bytes.
    pub(super) fn push(&mut self, plain: &[u8]) {
        let plain = &plain[plain.len().saturating_sub(HISTORY)..];
        if self.bytes.len() + plain.len() > 1 + HISTORY + SLACK {
            let kept = (self.bytes.len() - 1).min(HISTORY - plain.len());
            self.bytes.drain(1..self.bytes.len() - kept);
        }
        let len = self.bytes.len() + plain.len();
        if len > self.bytes.capacity() {
            let capacity = len.next_power_of_two().min(1 + HISTORY + SLACK);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(plain);
    }

    /// Returns the last [`HISTORY`] bytes, after a zero.
    ///
    /// The zero protects against zstd's formatted dictionaries, recognised by a magic number at the
    /// beginning (RFC 8878, section 5), as hosts control the contents.
    pub(super) fn dictionary(&mut self) -> &[u8] {
        let start = self.bytes.len().saturating_sub(1 + HISTORY);
        let dictionary = &mut self.bytes[start..];
        dictionary[0] = 0;
        dictionary
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}
