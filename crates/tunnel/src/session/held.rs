//! Parts that came before the opening of their stream.
//!
//! Held parts count as received and are not retransmitted. A lost opening therefore delays only its
//! own stream.

use std::collections::BTreeMap;

use crate::wire::{Part, Parts, StreamId};

/// Maximum number of held bytes.
const BYTES_MAX: usize = 1 << 20;

/// Maximum number of held parts: as many as full segments have the bytes.
const PARTS_MAX: usize = 1024;

/// Waiting parts, by stream, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_stream: BTreeMap<StreamId, Vec<Box<[u8]>>>,
    parts: usize,
    bytes: usize,
}

impl Held {
    /// Returns true if these parts of a segment fit. A segment that is not held must not count as
    /// received.
    pub fn has_room(&self, parts: &[u8]) -> bool {
        let room = PARTS_MAX - self.parts.min(PARTS_MAX);
        self.bytes + parts.len() <= BYTES_MAX && Parts::new(parts).take(room + 1).count() <= room
    }

    /// Holds a part of that stream.
    pub fn push(&mut self, stream: StreamId, part: &Part<'_>) {
        let mut bytes = Vec::with_capacity(part.len(true));
        part.emit(true, &mut bytes);
        self.bytes += bytes.len();
        self.parts += 1;
        self.by_stream
            .entry(stream)
            .or_default()
            .push(bytes.into_boxed_slice());
    }

    /// Removes and returns the parts of a stream.
    pub fn take(&mut self, stream: StreamId) -> Vec<Box<[u8]>> {
        let parts = self.by_stream.remove(&stream).unwrap_or_default();
        self.parts -= parts.len();
        self.bytes -= parts.iter().map(|part| part.len()).sum::<usize>();
        parts
    }

    /// Returns the number of parts.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(stream: StreamId) -> Part<'static> {
        Part::Credit { stream, until: 9 }
    }

    fn emitted(part: &Part<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        part.emit(true, &mut bytes);
        bytes
    }

    #[test]
    fn an_opening_takes_the_parts_of_its_own_stream() {
        let mut held = Held::default();
        for round in 0..3 {
            for stream in [1, 3, 5] {
                let until = round;
                held.push(stream, &Part::Credit { stream, until });
            }
        }
        assert_eq!(held.take(7).len(), 0);
        let taken = held.take(3);
        let stream = 3;
        let expected = (0..3).map(|until| emitted(&Part::Credit { stream, until }));
        assert!(taken.iter().map(|part| part.to_vec()).eq(expected));
        assert_eq!(held.len(), 6);
        assert_eq!(held.take(3).len(), 0);
    }

    #[test]
    fn parts_and_bytes_are_bounded() {
        let mut held = Held::default();
        let one = emitted(&credit(1));
        for stream in 0..PARTS_MAX as u64 {
            assert!(held.has_room(&one));
            assert!(!held.has_room(&one.repeat(PARTS_MAX + 1 - stream as usize)));
            held.push(stream, &credit(stream));
        }
        assert!(!held.has_room(&one));
        assert_eq!(held.take(0).len(), 1);
        assert!(held.has_room(&one));

        let mut held = Held::default();
        let bytes = [0; 8000];
        let data = Part::Data {
            stream: 1,
            from: 0,
            bytes: &bytes,
            fin: false,
        };
        let segment = emitted(&data);
        while held.has_room(&segment) {
            held.push(1, &data);
        }
        assert_eq!(held.len(), BYTES_MAX / segment.len());
    }
}
