//! Spare descriptors for when the limit is reached.

use std::{fs::File, os::fd::OwnedFd};

use pepd_relay::limits::descriptors::SPARE;

/// Spare descriptors for nft: pipes to it, and one to await it. Closing the gate is most urgent
/// when flows have used up all others.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<OwnedFd>);

impl Spare {
    /// Opens missing spares, as far as possible.
    pub(super) fn fill(&mut self) {
        while self.0.len() < SPARE {
            match File::open("/dev/null") {
                Ok(file) => self.0.push(file.into()),
                Err(_) => return,
            }
        }
    }

    /// Closes the spares, for use by the next operation.
    pub(super) fn release(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_up_and_lets_go() {
        let mut spare = Spare::default();
        spare.fill();
        assert_eq!(spare.0.len(), SPARE);
        spare.0.truncate(3);
        spare.fill();
        assert_eq!(spare.0.len(), SPARE);
        spare.release();
        assert!(spare.0.is_empty());
    }
}
