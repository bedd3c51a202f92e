//! Datagrams carried by TCP, as a stream of bytes; a length precedes each datagram.
//!
//! ```text
//!  +------------+--------------------+------------+---------
//!  | length: 16 | a datagram         | length: 16 | ...
//!  +------------+--------------------+------------+---------
//! ```

/// Bytes of the length field.
const HEADER: usize = 2;
/// Length of the shortest possible datagram.
const SHORTEST: usize = 21;
/// Longest datagram accepted; some links have packets of 9000 bytes.
const LONGEST: usize = 9 << 10;
/// Bytes read at once, from unauthenticated senders and from peers.
const READ_UNPROVEN: usize = 1 << 10;
const READ: usize = 16 << 10;

/// A length that no datagram can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid datagram length {0}")]
pub struct NoLength(pub usize);

/// Appends a datagram. Drops one whose length does not fit into the length field.
pub fn append_carried(datagram: &[u8], out: &mut Vec<u8>) {
    if let Ok(length) = u16::try_from(datagram.len()) {
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(datagram);
    }
}

/// Parser for datagrams in a stream of bytes that arrives in pieces.
#[derive(Debug, Default)]
pub struct Carried {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    proven: bool,
}

impl Carried {
    /// Most bytes that a parser holds between two readings, if all complete datagrams were taken.
    pub const HELD_MAX: usize = HEADER + LONGEST;

    /// Reads more at once from now on: the sender is a peer.
    pub fn prove(&mut self) {
        self.proven = true;
    }

    /// Returns the space for arriving bytes. Never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        let wanted = self.length().map_or(0, |length| HEADER + length);
        let read = if self.proven { READ } else { READ_UNPROVEN };
        if self.buffer.len() < wanted.max(read) {
            self.buffer.resize(wanted.max(read), 0);
        }
        // `next` has taken all complete datagrams, so less than one is left.
        &mut self.buffer[self.end..]
    }

    /// Adds `count` bytes that the caller put at the beginning of the [`space`](Self::space).
    pub fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// Gives memory back: keeps that of the bytes that have not been taken.
    pub fn shrink(&mut self) {
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        self.buffer.truncate(self.end);
        self.buffer.shrink_to_fit();
    }

    fn length(&self) -> Option<usize> {
        let header = self.buffer[self.begin..self.end].first_chunk()?;
        Some(u16::from_be_bytes(*header).into())
    }

    /// Returns the next complete datagram. Call until it returns `None`.
    ///
    /// # Errors
    /// Invalid length: the sender is not a peer.
    #[expect(
        clippy::should_implement_trait,
        reason = "the item borrows from the parser"
    )]
    pub fn next(&mut self) -> Result<Option<&mut [u8]>, NoLength> {
        let Some(length) = self.length() else {
            return Ok(None);
        };
        if !(SHORTEST..=LONGEST).contains(&length) {
            return Err(NoLength(length));
        }
        let (begin, end) = (self.begin + HEADER, self.begin + HEADER + length);
        if end > self.end {
            return Ok(None);
        }
        self.begin = end;
        Ok(Some(&mut self.buffer[begin..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the datagrams parsed from bytes that arrive in pieces of this size.
    fn read(
        frames: &mut Carried,
        mut bytes: &[u8],
        piece: usize,
    ) -> Result<Vec<Vec<u8>>, NoLength> {
        let mut datagrams = Vec::new();
        while !bytes.is_empty() {
            let space = frames.space();
            let count = piece.min(bytes.len()).min(space.len());
            assert!(count > 0, "there is always space");
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            frames.filled(count);
            while let Some(datagram) = frames.next()? {
                datagrams.push(datagram.to_vec());
            }
            frames.shrink();
            assert!(frames.buffer.capacity() <= Carried::HELD_MAX);
        }
        Ok(datagrams)
    }

    fn datagrams(lengths: &[usize]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let numbered = lengths.iter().enumerate();
        let datagrams: Vec<_> = numbered.map(|(n, length)| vec![n as u8; *length]).collect();
        let mut bytes = Vec::new();
        for datagram in &datagrams {
            append_carried(datagram, &mut bytes);
        }
        (datagrams, bytes)
    }

    #[test]
    fn datagrams_come_out_as_they_went_in_however_they_are_cut() {
        let (sent, bytes) = datagrams(&[21, 1400, 181, 9000, 22, 1400, 1400, 5000]);
        for piece in [1, 2, 3, 7, 1000, 1024, 1400, 100_000] {
            for proven in [false, true] {
                let mut frames = Carried {
                    proven,
                    ..Carried::default()
                };
                let received = read(&mut frames, &bytes, piece);
                assert_eq!(received.as_ref(), Ok(&sent), "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn the_longest_comes_through_and_what_is_longer_is_an_error_at_once() {
        for proven in [false, true] {
            let (sent, bytes) = datagrams(&[21, 9216, 21]);
            let parser = || Carried {
                proven,
                ..Carried::default()
            };
            assert_eq!(read(&mut parser(), &bytes, 5000), Ok(sent));
            for length in [0u16, 1, 20, 9217, 65_535] {
                let result = read(&mut parser(), &length.to_be_bytes(), 1);
                assert_eq!(result, Err(NoLength(length.into())));
            }
        }
    }

    #[test]
    fn memory_is_that_of_the_record_in_progress() {
        for (proven, piece) in [(false, 100), (true, 100), (true, 16_000)] {
            let mut frames = Carried {
                proven,
                ..Carried::default()
            };
            let (sent, mut bytes) = datagrams(&[1400, 21]);
            bytes.extend_from_slice(&9216u16.to_be_bytes());
            bytes.extend_from_slice(&[0; 9000]);
            assert_eq!(read(&mut frames, &bytes, piece), Ok(sent));
            assert_eq!(frames.buffer.capacity(), HEADER + 9000);
            assert_eq!(read(&mut frames, &[0; 216], piece), Ok(vec![vec![0; 9216]]));
            assert_eq!(frames.buffer.capacity(), 0, "nothing is in progress");
        }
    }

    #[test]
    fn what_is_too_long_for_a_length_is_left_out() {
        let mut bytes = Vec::new();
        append_carried(&vec![0; 65_536], &mut bytes);
        assert!(bytes.is_empty());
    }
}
