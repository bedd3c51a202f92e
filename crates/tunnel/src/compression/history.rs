//! The last bytes of a direction, as a dictionary.

use super::HISTORY;

/// So many bytes more are kept, so that little is moved when a few come.
const SLACK: usize = 4 << 10;

/// The last [`HISTORY`] bytes and some before them.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// At least one, which is not part of it.
    bytes: Vec<u8>,
}

impl History {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0] }
    }

    /// These are next.
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

    /// The last [`HISTORY`] bytes, behind a zero.
    ///
    /// The zero is for zstd, which would take a dictionary that begins with a certain number for one of another form
    /// (RFC 8878, section 5), and what begins this one is for hosts to say.
    pub(super) fn dictionary(&mut self) -> &[u8] {
        let start = self.bytes.len().saturating_sub(1 + HISTORY);
        let dictionary = &mut self.bytes[start..];
        dictionary[0] = 0;
        dictionary
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}
