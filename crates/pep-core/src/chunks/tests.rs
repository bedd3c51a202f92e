use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const EXTENT: u64 = 6 * CHUNK;

/// An extent with bytes in it, and a plain map of positions as a reference.
struct Model {
    map: ChunkMap,
    /// Position last written at each offset.
    memory: BTreeMap<u64, u64>,
    held: BTreeMap<u64, ()>,
    /// Positions no longer needed, although some before them are.
    released: BTreeSet<u64>,
}

#[derive(Debug, Clone)]
enum Op {
    /// Distance behind the tail, and length.
    Place(u64, u64),
    /// Next bytes, from the leg.
    Receive(u64),
    Drain(u64),
    /// Distance behind the head, and length.
    Release(u64, u64),
    Ahead,
    Spare,
    Age,
    Reset,
}

/// Step between checked positions, to limit their number.
const GRAIN: u64 = 1 << 12;

fn op() -> impl Strategy<Value = Op> {
    let chunk = CHUNK / GRAIN;
    prop_oneof![
        4 => (0..6 * chunk, 1..=chunk).prop_map(|(at, len)| Op::Place(at * GRAIN, len * GRAIN)),
        2 => (1..=3 * chunk).prop_map(|len| Op::Receive(len * GRAIN)),
        4 => (0..=6 * chunk).prop_map(|len| Op::Drain(len * GRAIN)),
        4 => (0..6 * chunk, 1..=4 * chunk).prop_map(|(at, len)| Op::Release(at * GRAIN, len * GRAIN)),
        1 => Just(Op::Ahead),
        1 => Just(Op::Spare),
        1 => Just(Op::Age),
        1 => Just(Op::Reset),
    ]
}

fn grains(ranges: Ranges) -> impl Iterator<Item = u64> {
    let step = |range: Range<u64>| range.step_by(GRAIN as usize);
    step(ranges.first).chain(step(ranges.second))
}

impl Model {
    fn new() -> Self {
        Self {
            map: ChunkMap::new(EXTENT),
            memory: BTreeMap::new(),
            held: BTreeMap::new(),
            released: BTreeSet::new(),
        }
    }

    fn write(&mut self, from: u64, ranges: Ranges) {
        for (n, offset) in grains(ranges).enumerate() {
            let position = from + n as u64 * GRAIN;
            self.memory.insert(offset, position);
            self.held.insert(position, ());
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Place(ahead, len) => self.place(self.map.tail() + ahead, len),
            Op::Receive(most) => {
                let (from, expected) = (self.map.tail(), self.map.stretch(most));
                let in_order = self.map.highest() == from;
                let reserved = self.map.reserved_for(from + expected);
                let space = self.map.space(expected);
                assert_eq!(space.len(), expected);
                assert!(!in_order || self.map.reserved() == reserved);
                self.write(from, space);
                self.fill();
            }
            Op::Drain(count) => {
                let count = count.min(self.map.len());
                self.map.drain(count);
                let head = self.map.head();
                self.held.retain(|position, ()| *position >= head);
                self.released.retain(|position| *position >= head);
            }
            Op::Release(at, len) => self.release(self.map.head() + at, len),
            Op::Ahead => {
                self.map.forget_ahead();
                let tail = self.map.tail();
                self.held.retain(|position, ()| *position < tail);
            }
            Op::Spare => {
                while let Some(pages) = self.map.spare() {
                    self.memory.retain(|offset, _| !pages.contains(offset));
                }
            }
            Op::Age => self.map.age(),
            Op::Reset => {
                let was_clear = self.map.is_clear();
                self.map.reset();
                if was_clear {
                    self.memory.clear();
                    assert_eq!(self.map.reserved(), 0);
                }
            }
        }
    }

    fn place(&mut self, from: u64, len: u64) {
        let allowed = from + len <= self.map.allowed();
        let placed = self.map.place(from, len);
        assert_eq!(placed.is_some(), allowed);
        if let Some(ranges) = placed {
            assert_eq!(ranges.len(), len);
            self.write(from, ranges);
            self.fill();
        }
    }

    fn release(&mut self, from: u64, len: u64) {
        let (before, tail) = (self.map.reserved(), self.map.tail());
        self.map.release(from..from + len);
        assert_eq!(self.map.reserved(), before, "its pages are there");
        for position in (from..tail.min(from + len)).step_by(GRAIN as usize) {
            self.held.remove(&position);
            self.released.insert(position);
        }
    }

    /// Moves the tail past the bytes that are next in the stream, as a session does.
    fn fill(&mut self) {
        let mut tail = self.map.tail();
        while self.held.contains_key(&tail) {
            tail += GRAIN;
        }
        self.map.fill(tail - self.map.tail());
    }

    fn check(&self) {
        let map = &self.map;
        let is_clear = self.held.is_empty() && self.released.is_empty();
        assert_eq!(map.is_clear(), is_clear);
        let last = self.held.last_key_value().map(|(at, ())| at + GRAIN);
        assert_eq!(map.highest(), last.unwrap_or(map.head()).max(map.tail()));
        let data = map.data();
        let all = data.len() == map.len() || !data.second.is_empty() || !self.released.is_empty();
        assert!(all, "two pieces, or everything");
        let mut position = map.head();
        for offset in grains(data) {
            assert_eq!(self.memory.get(&offset), Some(&position));
            position += GRAIN;
        }
        for position in (position..map.tail()).step_by(GRAIN as usize) {
            let ranges = map.held(position, GRAIN);
            if self.released.contains(&position) && ranges.is_none() {
                continue;
            }
            let ranges = ranges.expect("below the tail");
            assert_eq!(self.memory.get(&ranges.first.start), Some(&position));
        }
        // Bytes ahead are still where they were placed.
        let written: Vec<_> = self.memory.values().copied().collect();
        assert!(self.held.keys().all(|position| written.contains(position)));
        assert!(self.memory.keys().all(|offset| *offset < EXTENT));
        let span = map.highest() - map.head();
        let free = map.free.len() as u64;
        // The first and the last chunk, and one without bytes.
        assert!(map.reserved() <= (span / CHUNK + 3 + free) * CHUNK);
        let pages = self.memory.len() as u64 * GRAIN;
        assert!(pages <= map.reserved(), "{pages} in {map:?}");
    }
}

proptest! {
    #[test]
    fn bytes_stay_where_they_were_placed_until_they_leave(ops in prop::collection::vec(op(), 0..150)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
            model.check();
        }
    }
}

#[test]
fn bytes_that_pass_in_order_use_the_same_chunks_again_and_again() {
    let mut map = ChunkMap::new(EXTENT);
    for _ in 0..1000 {
        for _ in 0..3 {
            let space = map.space(map.stretch(CHUNK / 2));
            assert!(space.first.end <= 3 * CHUNK && space.second.end <= 3 * CHUNK);
            map.fill(space.len());
        }
        map.drain(map.len() - 100);
    }
    assert!(map.reserved() <= 3 * CHUNK);
}

#[test]
fn a_byte_far_ahead_costs_the_room_of_what_is_missing_and_touches_one_chunk() {
    let mut map = ChunkMap::new(EXTENT);
    let at = map.place(4 * CHUNK + 5, 10).expect("it is allowed");
    assert_eq!(at.first, 5..15);
    assert_eq!(map.reserved(), 5 * CHUNK);
    assert_eq!(map.place(4 * CHUNK, 2 * CHUNK), None, "more than a chunk");
    assert_eq!(map.place(window(EXTENT), 1), None, "beyond the window");
    assert_eq!(map.place(u64::MAX, 2), None);
    assert_eq!(map.held(4 * CHUNK + 5, 10), None, "not next");
}

/// As where the peer has all but one packet of every so many.
#[test]
fn chunks_whose_bytes_are_not_needed_are_used_again_though_some_before_them_are() {
    let mut map = ChunkMap::new(2 * EXTENT);
    for _ in 0..4 {
        let len = map.space(CHUNK).len();
        map.fill(len);
    }
    map.release(10..CHUNK + 10);
    assert!(!map.grows_by(0) && map.grows_by(CHUNK), "no whole chunk");
    map.release(CHUNK - 1..3 * CHUNK + 7);
    map.release(CHUNK..3 * CHUNK);
    assert_eq!(map.held(CHUNK, 1), None);
    assert_eq!(map.held(CHUNK - 1, 2), None);
    for (position, chunk) in [(CHUNK - 1, 0), (3 * CHUNK, 3)] {
        let at = map.held(position, 1).expect("it is needed");
        assert_eq!(at.first.start / CHUNK, chunk);
    }
    assert!(!map.grows_by(2 * CHUNK));
    let space = map.space(map.stretch(2 * CHUNK));
    assert_eq!(space.first, 2 * CHUNK..3 * CHUNK);
    assert_eq!(space.second, CHUNK..2 * CHUNK);
    map.fill(space.len());
    assert_eq!(map.reserved(), 4 * CHUNK);
    map.drain(map.len());
    assert_eq!(map.reserved(), 4 * CHUNK);
    map.reset();
    assert_eq!(map.reserved(), 0);
}

#[test]
fn pages_of_chunks_that_are_not_needed_any_more_are_given_back_once() {
    let mut map = ChunkMap::new(EXTENT);
    for _ in 0..5 {
        let len = map.space(map.stretch(CHUNK)).len();
        map.fill(len);
    }
    map.drain(map.len());
    assert_eq!(map.spare(), None, "in use recently");
    map.age();
    assert_eq!(map.spare(), None, "nor in the period before");
    let len = map.space(CHUNK).len();
    map.fill(len);
    map.drain(len);
    map.age();
    let mut spare: Vec<_> = std::iter::from_fn(|| map.spare()).collect();
    spare.sort_by_key(|pages| pages.start);
    // One at a time was in use, and two more may be kept.
    assert_eq!(spare.len(), 2);
    assert_eq!(map.reserved(), 3 * CHUNK);
    assert!(spare.windows(2).all(|two| two[0].end <= two[1].start));
    // They are reused when needed.
    for _ in 0..5 {
        let space = map.space(map.stretch(CHUNK));
        assert!(space.first.end <= EXTENT && space.second.end <= EXTENT);
        map.fill(space.len());
    }
    assert!(map.spare().is_none());
}

#[test]
fn for_want_of_memory_all_that_is_kept_for_later_is_given_back() {
    let mut map = ChunkMap::new(EXTENT);
    for _ in 0..3 {
        let len = map.space(CHUNK).len();
        map.fill(len);
    }
    map.drain(map.len());
    assert_eq!((map.spare(), map.reserved()), (None, 3 * CHUNK));
    let given = std::iter::from_fn(|| map.last_spare()).count();
    assert_eq!((given, map.reserved()), (3, 0));
    assert_eq!(map.space(CHUNK).len(), CHUNK, "and taken again");
}

/// As on a fast link with a short round trip: everything leaves, and as much comes.
#[test]
fn what_swings_between_nothing_and_much_gives_no_pages_back() {
    let mut map = ChunkMap::new(EXTENT);
    for _ in 0..100 {
        for _ in 0..4 {
            let len = map.space(CHUNK).len();
            map.fill(len);
        }
        map.drain(map.len());
        assert_eq!(map.spare(), None);
        map.age();
    }
    assert_eq!(map.reserved(), 4 * CHUNK);
}

/// A flow that may have no more than its initial memory continues with that.
#[test]
fn what_is_reserved_of_the_first_chunk_is_what_is_used_of_it() {
    let mut map = ChunkMap::new(EXTENT);
    assert_eq!(map.stretch_within(CHUNK, 8192), 8192);
    map.space(5000);
    map.fill(5000);
    assert_eq!(map.reserved(), 8192);
    assert_eq!(map.stretch_within(CHUNK, 8192), 3192);
    map.fill(3192);
    assert_eq!(map.stretch_within(CHUNK, 8192), 0);
    map.drain(8191);
    assert_eq!(map.stretch_within(CHUNK, 8192), 0);
    map.drain(1);
    assert_eq!(map.stretch_within(CHUNK, 8192), 8192);
    assert_eq!(map.reserved(), 8192);
    map.place(8192 + CHUNK, 1);
    assert_eq!(
        map.reserved(),
        2 * CHUNK,
        "one that nothing came of, and one"
    );
}

#[test]
#[should_panic(expected = "out of")]
fn does_not_drain_more_than_it_holds() {
    ChunkMap::new(EXTENT).drain(1);
}

#[test]
#[should_panic(expected = "into")]
fn does_not_fill_beyond_what_is_allowed() {
    ChunkMap::new(EXTENT).fill(EXTENT);
}
