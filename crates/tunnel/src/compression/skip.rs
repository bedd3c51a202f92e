//! When not to try: bytes that do not shrink are mostly followed by others that do not either.

/// So many bytes in a row that did not shrink, and nothing is tried for a while.
const PATIENCE: u64 = 128 << 10;
/// For so many bytes at first; for twice as many each time that nothing has changed.
const FIRST: u64 = 128 << 10;
const LONGEST: u64 = 4 << 20;

/// Whether to try, by what came of the last attempts.
#[derive(Debug, Clone)]
pub(super) struct Skip {
    /// Bytes in a row that did not shrink.
    failed: u64,
    /// Bytes that are not tried.
    left: u64,
    /// The next stretch.
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

    /// Whether the next `len` bytes are to be tried.
    pub(super) fn tries(&mut self, len: usize) -> bool {
        let tries = self.left == 0;
        self.left = self.left.saturating_sub(len as u64);
        tries
    }

    /// `len` bytes were tried, and have shrunk or not.
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
