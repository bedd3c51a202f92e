//! Content of a datagram.

use std::time::Duration;

use splitmix::SplitMix64;

/// Minimum payload of a datagram.
pub(in crate::lab) const BYTES_MIN: usize = 64;

/// Number and send time of a datagram. All other bytes follow from these two, so that a bit flipped
/// anywhere shows.
///
/// ```text
/// 0        8         16
/// | number | sent ns | filler ...
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub number: u64,
    /// Send time since the start.
    pub sent: Duration,
}

impl Content {
    pub fn emit(self, buffer: &mut [u8]) {
        let nanos = u64::try_from(self.sent.as_nanos()).unwrap_or(u64::MAX);
        let (head, rest) = buffer.split_at_mut(16);
        head[..8].copy_from_slice(&self.number.to_be_bytes());
        head[8..].copy_from_slice(&nanos.to_be_bytes());
        let mut filler = filler(self.number, nanos);
        for piece in rest.chunks_mut(8) {
            piece.copy_from_slice(&filler.next_u64().to_be_bytes()[..piece.len()]);
        }
    }

    /// Parses a payload; `None` if it differs from what was sent.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |from: usize| {
            let bytes = bytes.get(from..from + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        let (number, nanos) = (word(0)?, word(8)?);
        let mut filler = filler(number, nanos);
        let mut pieces = bytes[16..].chunks(8);
        let whole = pieces.all(|piece| *piece == filler.next_u64().to_be_bytes()[..piece.len()]);
        whole.then_some(Self {
            number,
            sent: Duration::from_nanos(nanos),
        })
    }
}

/// Incompressible filler words.
fn filler(number: u64, nanos: u64) -> SplitMix64 {
    SplitMix64::new(number.rotate_left(32) ^ nanos)
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
