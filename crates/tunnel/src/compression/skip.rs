//! Skipping of incompressible data: such bytes are mostly followed by more.

/// Consecutive incompressible bytes after which compression pauses.
const PATIENCE: u64 = 128 << 10;
/// Length of the first pause in bytes; doubles each time the data is still incompressible.
const FIRST: u64 = 128 << 10;
const LONGEST: u64 = 4 << 20;

/// Decision to try compression, based on the last attempts.
#[derive(Debug, Clone)]
pub(super) struct Skip {
    /// Consecutive bytes that did not shrink.
    failed: u64,
    /// Bytes left of the pause.
    left: u64,
    /// Length of the next pause.
    stretch: u64,
}

impl Skip {
    pub(super) fn new() -> Self {
        Self {
            failed: 0,
            left: 0,
            stretch: FIRST,
        }
    }

    /// Returns true if the next `len` bytes are to be tried.
    pub(super) fn tries(&mut self, len: usize) -> bool {
        let tries = self.left == 0;
        self.left = self.left.saturating_sub(len as u64);
        tries
    }

    /// Records that `len` bytes were tried, and whether they shrank.
    pub(super) fn on_tried(&mut self, len: usize, shrunk: bool) {
        if shrunk {
            *self = Self::new();
            return;
        }
        self.failed = self.failed.saturating_add(len as u64);
        if self.failed >= PATIENCE {
            self.left = self.stretch;
            self.stretch = (2 * self.stretch).min(LONGEST);
        }
    }
}
