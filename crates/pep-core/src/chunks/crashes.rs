//! A crash after every single store: what is recovered has the bytes that were there.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const EXTENT: u64 = 5 * CHUNK;
/// Positions are looked at in steps of this.
const GRAIN: u64 = 1 << 12;

/// What outlives the process.
#[derive(Clone, Default)]
struct Shared {
    words: [u64; (EXTENT / CHUNK) as usize],
    head: u64,
    tail: u64,
    /// Which position of the stream each offset has.
    memory: BTreeMap<u64, u64>,
}

/// A process with one direction of a flow, and what it has stored at each instant.
struct Process {
    map: ChunkMap,
    shared: Shared,
    /// What the process at the other end of a socket knows: bytes taken from the source, given to the sink.
    moved: [u64; 2],
    instants: Vec<(Shared, [u64; 2])>,
}

#[derive(Debug, Clone)]
enum Op {
    /// From a leg.
    Receive(u64),
    /// From the peer, so far beyond the tail.
    Place(u64, u64),
    /// To the leg, or acknowledged.
    Drain(u64),
    ForgetAhead,
    Reset,
    Spare,
    /// The process ends, and another one goes on.
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let chunk = CHUNK / GRAIN;
    prop_oneof![
        4 => (1..=3 * chunk).prop_map(|len| Op::Receive(len * GRAIN)),
        4 => (0..4 * chunk, 1..=chunk).prop_map(|(at, len)| Op::Place(at * GRAIN, len * GRAIN)),
        4 => (0..=4 * chunk).prop_map(|len| Op::Drain(len * GRAIN)),
        1 => Just(Op::ForgetAhead),
        1 => Just(Op::Reset),
        1 => Just(Op::Spare),
        1 => Just(Op::Crash),
    ]
}

impl Process {
    fn new() -> Self {
        Self {
            map: ChunkMap::new(EXTENT),
            shared: Shared::default(),
            moved: [0; 2],
            instants: Vec::new(),
        }
    }

    /// Something has changed that outlives the process.
    fn stored(&mut self) {
        self.instants.push((self.shared.clone(), self.moved));
    }

    fn store_changes(&mut self) {
        for Change { chunk, word } in self.map.changes().collect::<Vec<_>>() {
            self.shared.words[chunk as usize] = word;
            self.stored();
        }
    }

    fn write(&mut self, from: u64, ranges: Ranges) {
        let grains = [ranges.first, ranges.second].into_iter();
        let offsets = grains.flat_map(|range| range.step_by(GRAIN as usize));
        for (n, offset) in offsets.enumerate() {
            self.shared.memory.insert(offset, from + n as u64 * GRAIN);
            self.stored();
        }
    }

    fn store_tail(&mut self) {
        self.shared.tail = self.map.tail();
        self.stored();
    }

    /// What is next in the stream and has been placed.
    fn fill(&mut self) {
        let placed = |position: u64| self.shared.memory.values().any(|at| *at == position);
        let mut tail = self.map.tail();
        while tail < self.map.highest() && placed(tail) {
            tail += GRAIN;
        }
        self.map.fill(tail - self.map.tail());
        self.moved[0] = tail;
        self.store_tail();
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            // A map is of one of the two ways.
            Op::Receive(_) if self.map.highest() > self.map.tail() => {}
            Op::Receive(most) => {
                let (from, len) = (self.map.tail(), self.map.stretch(most));
                let space = self.map.space(len);
                self.store_changes();
                self.write(from, space);
                self.moved[0] += len;
                self.stored();
                self.map.fill(len);
                self.store_tail();
            }
            Op::Place(ahead, len) => {
                let from = self.map.tail() + ahead;
                if let Some(ranges) = self.map.place(from, len) {
                    self.store_changes();
                    self.write(from, ranges);
                    self.fill();
                }
            }
            Op::Drain(count) => {
                let count = count.min(self.map.len());
                self.moved[1] += count;
                self.stored();
                self.map.drain(count);
                self.shared.head = self.map.head();
                self.stored();
                self.store_changes();
            }
            Op::ForgetAhead => {
                let tail = self.map.tail();
                self.map.forget_ahead();
                self.store_changes();
                self.shared.memory.retain(|_, position| *position < tail);
            }
            Op::Reset => {
                self.map.reset();
                self.store_changes();
            }
            Op::Spare => {
                while let Some(pages) = self.map.spare() {
                    self.shared
                        .memory
                        .retain(|offset, _| !pages.contains(offset));
                }
            }
            Op::Crash => {
                let [tail, head] = self.moved;
                self.map = recovered(&self.shared, head, tail);
                (self.shared.head, self.shared.tail) = (head, tail);
                self.store_changes();
                let occupied = self.map.occupied();
                let is_kept = |offset: &u64| occupied.iter().any(|part| part.contains(offset));
                self.shared.memory.retain(|offset, _| is_kept(offset));
                let tail = self.map.tail();
                self.shared.memory.retain(|_, position| *position < tail);
            }
        }
    }
}

fn recovered(shared: &Shared, head: u64, tail: u64) -> ChunkMap {
    let map = ChunkMap::recover(EXTENT, shared.words, head, tail);
    let map = map.expect("it is whole at every instant");
    assert_eq!((map.head(), map.tail(), map.highest()), (head, tail, tail));
    for position in (head..tail).step_by(GRAIN as usize) {
        let at = map.held(position, GRAIN).expect("it is held");
        assert_eq!(shared.memory.get(&at.first.start), Some(&position));
    }
    map
}

proptest! {
    #[test]
    fn whenever_a_process_ends_its_successor_finds_every_byte(ops in prop::collection::vec(op(), 0..60)) {
        let mut process = Process::new();
        for op in &ops {
            process.apply(op);
            for (shared, [tail, head]) in std::mem::take(&mut process.instants) {
                // As the kernel has counted, or as was written down.
                recovered(&shared, head, tail);
                recovered(&shared, shared.head.max(head), shared.tail.max(shared.head.max(head)));
            }
        }
    }

    #[test]
    fn whatever_is_found_is_a_map_or_refused(
        words in prop::collection::vec(0..6 * CHUNK, (EXTENT / CHUNK) as usize),
        head in 0..4 * CHUNK, len in 0..4 * CHUNK,
    ) {
        let tail = head + len;
        if let Ok(map) = ChunkMap::recover(EXTENT, words, head, tail) {
            for position in [head, (head + tail) / 2, tail.saturating_sub(1)] {
                if (head..tail).contains(&position) {
                    let at = map.held(position, 1).expect("it is held");
                    prop_assert!(at.first.end <= EXTENT);
                }
            }
        }
    }
}

#[test]
fn what_overlaps_lacks_something_or_is_too_long_is_refused() {
    let recover =
        |words: [u64; 5], head, tail| ChunkMap::recover(EXTENT, words, head, tail).is_ok();
    assert!(recover([1, 0, CHUNK + 1, 0, 0], 5, 2 * CHUNK));
    assert!(!recover([1, 0, CHUNK + 1, 0, 0], 5, 2 * CHUNK + 1));
    assert!(!recover([1, 0, CHUNK + 2, 0, 0], 5, CHUNK + 9));
    assert!(!recover([1, 1, CHUNK + 1, 0, 0], 5, CHUNK + 9));
    assert!(!recover([7, 0, 0, 0, 0], 5, 9));
    assert!(recover([7, 0, 0, 0, 0], 9, 9));
    assert!(!recover([0; 5], 9, 8));
    assert!(!recover(
        [1, CHUNK + 1, 2 * CHUNK + 1, 3 * CHUNK + 1, 4 * CHUNK + 1],
        0,
        EXTENT + 1
    ));
}
