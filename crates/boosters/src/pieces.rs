//! Fragmentation of messages that are too long for the link.

use std::time::Duration;

use crate::{
    ecn::Ecn,
    wire::{PIECE, Reader},
};

/// Length of a piece's header.
pub const HEADER: usize = 5;

/// Cuts messages into pieces.
#[derive(Debug, Default)]
pub struct Cutter {
    next: u16,
}

impl Cutter {
    /// Cuts a message into pieces of up to `room` bytes each. Returns none if it would take more
    /// than 255, or nothing fits.
    pub fn cut(&mut self, message: &[u8], room: usize) -> Vec<Vec<u8>> {
        let Some(part) = room.checked_sub(HEADER).filter(|part| *part > 0) else {
            return Vec::new();
        };
        let count = message.len().div_ceil(part);
        let Ok(last) = u8::try_from(count.saturating_sub(1)) else {
            return Vec::new();
        };
        // Of equal length, so that none is needlessly long.
        let part = message.len().div_ceil(count.max(1)).max(1);
        self.next = self.next.wrapping_add(1);
        let [high, low] = self.next.to_be_bytes();
        let pieces = message.chunks(part).enumerate();
        let piece = |(index, bytes): (usize, &[u8])| {
            let header = [PIECE, high, low, index as u8, last];
            [&header, bytes].concat()
        };
        pieces.map(piece).collect()
    }
}

/// Maximum incomplete messages at a time.
const OPEN_MAX: usize = 32;
/// Maximum length of a joined message.
const MESSAGE_MAX: usize = 65_535 + 64;
/// Time after which a missing piece is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of later messages after which a missing piece is given up: the 16-bit number would soon
/// be reused.
const BEHIND_MAX: u16 = 1 << 13;

/// Joins pieces to messages.
#[derive(Debug)]
pub struct Joiner {
    open: std::collections::VecDeque<Open>,
    /// Messages given up because pieces were missing or malformed.
    pub given_up: u64,
}

#[derive(Debug)]
struct Open {
    id: u16,
    since: Duration,
    pieces: Vec<Option<Vec<u8>>>,
    /// Combined mark of their datagrams.
    outer: Ecn,
    bytes: usize,
}

impl Open {
    /// Returns whether this piece may belong to the message.
    fn takes(&self, index: u8, last: u8, bytes: &[u8]) -> bool {
        let held = self.pieces.get(usize::from(index));
        let fits = match held.and_then(Option::as_ref) {
            Some(held) => held == bytes,
            None => self.bytes + bytes.len() <= MESSAGE_MAX,
        };
        fits && self.pieces.len() == usize::from(last) + 1
    }
}

impl Default for Joiner {
    fn default() -> Self {
        Self {
            open: std::collections::VecDeque::with_capacity(OPEN_MAX),
            given_up: 0,
        }
    }
}

impl Joiner {
    /// Takes a piece, with the mark of its datagram. Returns the message that it completes, with
    /// the combined mark of all pieces.
    pub fn take(&mut self, now: Duration, piece: &[u8], outer: Ecn) -> Option<(Vec<u8>, Ecn)> {
        let mut reader = Reader(piece.get(1..)?);
        let (id, index, last) = (reader.u16()?, reader.u8()?, reader.u8()?);
        let bytes = reader.0;
        if index > last || bytes.is_empty() {
            return None;
        }
        self.expire(now, id);
        let mut at = self.open.iter().position(|open| open.id == id);
        // Pieces of two messages with one number must not be mixed.
        if let Some(another) = at.filter(|at| !self.open[*at].takes(index, last, bytes)) {
            self.open.remove(another);
            self.given_up += 1;
            at = None;
        }
        let at = at.unwrap_or_else(|| self.begin(now, id, last, outer));
        let open = self.open.get_mut(at)?;
        open.outer = open.outer.joined(outer);
        let slot = &mut open.pieces[usize::from(index)];
        if slot.is_none() {
            open.bytes += bytes.len();
            *slot = Some(bytes.to_vec());
        }
        if open.pieces.iter().any(Option::is_none) {
            return None;
        }
        let done = self.open.remove(at)?;
        let bytes = done.pieces.into_iter().flatten().flatten().collect();
        Some((bytes, done.outer))
    }

    fn begin(&mut self, now: Duration, id: u16, last: u8, outer: Ecn) -> usize {
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
            self.given_up += 1;
        }
        self.open.push_back(Open {
            id,
            since: now,
            pieces: vec![None; usize::from(last) + 1],
            outer,
            bytes: 0,
        });
        self.open.len() - 1
    }

    /// Gives up messages that can no longer be completed, now that a piece of message `id` has
    /// come.
    fn expire(&mut self, now: Duration, id: u16) {
        while let Some(open) = self.open.front()
            && (now.saturating_sub(open.since) > PATIENCE
                || (BEHIND_MAX..=1 << 15).contains(&id.wrapping_sub(open.id)))
        {
            self.open.pop_front();
            self.given_up += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_message_in_any_order_and_twice() {
        let message: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
        let (mut cutter, mut joiner) = (Cutter::default(), Joiner::default());
        for room in [6, 7, 100, 1200, 3005] {
            let mut pieces = cutter.cut(&message, room);
            if room == 6 || room == 7 {
                assert!(pieces.is_empty(), "too many pieces");
                continue;
            }
            assert!(pieces.iter().all(|piece| piece.len() <= room));
            pieces.reverse();
            let last = pieces.pop().unwrap();
            for piece in pieces.iter().chain(&pieces) {
                assert_eq!(joiner.take(Duration::ZERO, piece, Ecn::Ce), None);
            }
            // Congestion of one piece marks the message.
            let joined = joiner.take(Duration::ZERO, &last, Ecn::Ect0);
            let outer = if pieces.is_empty() {
                Ecn::Ect0
            } else {
                Ecn::Ce
            };
            assert_eq!(joined, Some((message.clone(), outer)));
        }
        assert!(cutter.cut(&message, HEADER).is_empty());
        for piece in cutter.cut(&message, 100).iter().skip(1) {
            assert_eq!(joiner.take(Duration::ZERO, piece, Ecn::NotEct), None);
        }
        assert_eq!((joiner.open.len(), joiner.given_up), (1, 0));
        joiner.expire(Duration::from_secs(60), 0);
        assert_eq!((joiner.open.len(), joiner.given_up), (0, 1));
    }

    #[test]
    fn no_message_gets_a_piece_of_one_that_had_its_number_before() {
        let (mut cutter, mut joiner) = (Cutter::default(), Joiner::default());
        let (now, mark) = (Duration::ZERO, Ecn::NotEct);
        let (old, new) = ([1; 2000], [2; 2000]);
        let first = cutter.cut(&old, 1200);
        assert_eq!(joiner.take(now, &first[0], mark), None);
        // 65,536 messages later, all within a moment.
        for _ in 1..=u16::MAX {
            for piece in cutter.cut(&[3; 1300], 1200) {
                joiner.take(now, &piece, mark);
            }
        }
        let again = cutter.cut(&new, 1200);
        assert_eq!(again[0][..HEADER], first[0][..HEADER]);
        assert_eq!(joiner.take(now, &again[1], mark), None);
        assert_eq!(
            joiner.take(now, &again[0], mark),
            Some((new.to_vec(), mark))
        );
        assert_eq!(joiner.given_up, 1);
        // Without others between them, as from a restarted sender: the same piece with other bytes.
        let (mut one, mut other) = (Cutter::default(), Cutter::default());
        let (one, other) = (one.cut(&old, 1200), other.cut(&new, 1200));
        assert_eq!(joiner.take(now, &one[0], mark), None);
        assert_eq!(joiner.take(now, &other[0], mark), None);
        let joined = joiner.take(now, &other[1], mark);
        assert_eq!(joined, Some((new.to_vec(), mark)));
        assert_eq!(joiner.given_up, 2);
    }
}
