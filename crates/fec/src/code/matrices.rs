//! Cache of the coefficients of the last few patterns of loss.

use super::{SYMBOLS_MAX, numbers::Numbers, points};

/// Number of cached patterns. With interleaving, a burst hits a few blocks at the same places.
const PATTERNS: usize = 4;

/// Coefficients by pattern of loss; at most 64 KiB.
///
/// Computing them takes a tenth of the time of decoding a block of packets (`cargo bench -p fec
/// --bench erasure`), so a larger cache would gain little.
#[derive(Clone, Debug, Default)]
pub(super) struct Matrices {
    patterns: [Pattern; PATTERNS],
    /// Index of the entry to replace next.
    next: usize,
}

#[derive(Clone, Debug, Default)]
struct Pattern {
    known: Numbers,
    wanted: Vec<u8>,
    coefficients: Vec<u8>,
}

impl Matrices {
    /// Returns the coefficients of the symbols `known`, also given as a `list`, in each of the
    /// `wanted` data symbols. A block has as many data symbols as are known.
    pub(super) fn get(&mut self, known: &Numbers, list: &[u8], wanted: &[u8]) -> &[u8] {
        let same = |pattern: &Pattern| pattern.known == *known && pattern.wanted == wanted;
        let place = self.patterns.iter().position(same).unwrap_or_else(|| {
            let place = self.next;
            self.next = (place + 1) % PATTERNS;
            self.patterns[place].set(known, list, wanted);
            place
        });
        &self.patterns[place].coefficients
    }
}

impl Pattern {
    fn set(&mut self, known: &Numbers, list: &[u8], wanted: &[u8]) {
        let k = list.len();
        self.known = *known;
        self.wanted.clear();
        self.wanted.extend_from_slice(wanted);
        self.coefficients.clear();
        self.coefficients.resize(wanted.len() * k, 0);
        let mut missing = [0; SYMBOLS_MAX];
        let missing = known.missing(k).list(&mut missing);
        points::interpolate(list, missing, wanted, &mut self.coefficients);
    }
}
