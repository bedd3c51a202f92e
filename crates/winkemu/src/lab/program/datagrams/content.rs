//! What stands in a datagram.

use std::time::Duration;

/// The least that a datagram may hold.
pub(in crate::lab) const BYTES_MIN: usize = 64;

/// The number of a datagram and when it was sent; all other bytes follow from these, so that a bit that
/// flipped anywhere shows.
///
/// ```text
/// 0        8         16
/// | number | sent ns | filler ...
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub number: u64,
    /// Since the beginning.
    pub sent: Duration,
}

impl Content {
    pub fn emit(self, buffer: &mut [u8]) {
        let nanos = u64::try_from(self.sent.as_nanos()).unwrap_or(u64::MAX);
        let (head, rest) = buffer.split_at_mut(16);
        head[..8].copy_from_slice(&self.number.to_be_bytes());
        head[8..].copy_from_slice(&nanos.to_be_bytes());
        let mut filler = Filler::new(self.number, nanos);
        for piece in rest.chunks_mut(8) {
            piece.copy_from_slice(&filler.next_word().to_be_bytes()[..piece.len()]);
        }
    }

    /// `None` when it is not as it was sent.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |from: usize| {
            let bytes = bytes.get(from..from + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        let (number, nanos) = (word(0)?, word(8)?);
        let mut filler = Filler::new(number, nanos);
        let mut pieces = bytes[16..].chunks(8);
        let whole = pieces.all(|piece| *piece == filler.next_word().to_be_bytes()[..piece.len()]);
        whole.then_some(Self {
            number,
            sent: Duration::from_nanos(nanos),
        })
    }
}

/// Bytes that nothing compresses: splitmix64.
struct Filler(u64);

impl Filler {
    fn new(number: u64, nanos: u64) -> Self {
        Self(number.rotate_left(32) ^ nanos)
    }

    fn next_word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_emitted_is_parsed_and_any_flipped_bit_shows() {
        let content = Content {
            number: 7,
            sent: Duration::from_nanos(1_234_567_890),
        };
        for size in [64, 65, 160, 1472] {
            let mut bytes = vec![0; size];
            content.emit(&mut bytes);
            assert_eq!(Content::parse(&bytes), Some(content));
            for bit in 0..size * 8 {
                let mut broken = bytes.clone();
                broken[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Content::parse(&broken), None, "{size} {bit}");
            }
        }
    }

    #[test]
    fn what_is_too_short_is_nothing() {
        for size in 0..16 {
            assert_eq!(Content::parse(&vec![0; size]), None);
        }
    }
}
