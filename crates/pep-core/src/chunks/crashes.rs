//! Crash test after every single store: recovery finds all bytes that were there.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const EXTENT: u64 = 5 * CHUNK;
/// Step between checked positions.
const GRAIN: u64 = 1 << 12;
/// Maximum bytes held, most of them on disk.
const WINDOW: u64 = 40 * CHUNK;

/// State that outlives the process.
#[derive(Clone, Default)]
struct Shared {
    words: [u64; (EXTENT / CHUNK) as usize],
    head: u64,
    tail: u64,
    /// Stream position at each offset.
    memory: BTreeMap<u64, u64>,
    /// Starts of chunks on disk.
    disk: BTreeSet<u64>,
}

/// A process with one direction of a flow, and the state after each store.
struct Process {
    map: ChunkMap,
    shared: Shared,
    /// Counts of the other end of a socket: bytes taken from the source, bytes given to the sink.
    moved: [u64; 2],
    instants: Vec<(Shared, [u64; 2])>,
    /// Uses the wrong order on purpose: stores a chunk's word before the bytes that come back into
    /// it, or before they are on disk.
    wrong_order: bool,
}

#[derive(Debug, Clone)]
enum Op {
    /// Receive from a leg.
    Receive(u64),
    /// Place bytes from the peer, this far beyond the tail.
    Place(u64, u64),
    /// Deliver to the leg, or acknowledge.
    Drain(u64),
    ForgetAhead,
    Reset,
    Spare,
    /// Move the last full chunk to disk.
    Leave,
    /// Load the first chunk on disk.
    ComeBack,
    /// End the process, and start a successor.
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
        3 => Just(Op::Leave),
        2 => Just(Op::ComeBack),
        1 => Just(Op::Crash),
    ]
}

impl Process {
    fn new() -> Self {
        Self {
            map: ChunkMap::new(EXTENT).with_window(WINDOW),
            shared: Shared::default(),
            moved: [0; 2],
            instants: Vec::new(),
            wrong_order: false,
        }
    }

    /// Records the state after a change that outlives the process.
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

    /// Moves the tail past placed bytes.
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

    fn leave(&mut self) {
        let Some(start) = self.map.full_chunks(0).next() else {
            return;
        };
        let is_late = self.wrong_order;
        if !is_late {
            self.shared.disk.insert(start);
            self.stored();
        }
        self.map.release(start..start + CHUNK);
        self.store_changes();
        self.shared.disk.insert(start);
        self.stored();
    }

    fn come_back(&mut self) {
        let Some(start) = self.map.on_disk().next() else {
            return;
        };
        if !self.map.promise() {
            return;
        }
        let space = self.map.restore(start);
        if self.wrong_order {
            self.store_changes();
        }
        self.write(start, space);
        self.store_changes();
        // A copy that is still on disk, or there again, has the same bytes.
        if !start.is_multiple_of(3 * CHUNK) {
            self.shared.disk.remove(&start);
            self.stored();
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            // A map either receives in order or places.
            Op::Receive(_) | Op::Leave if self.map.highest() > self.map.tail() => {}
            Op::Place(..) if !self.shared.disk.is_empty() => {}
            Op::Leave => self.leave(),
            Op::ComeBack => self.come_back(),
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
                let end = self.map.head() + window(EXTENT);
                if from + len > end {
                    return;
                }
                if let Some(ranges) = self.map.place(from, len) {
                    self.store_changes();
                    self.write(from, ranges);
                    self.fill();
                }
            }
            Op::Drain(count) => {
                // Bytes on disk come back before their turn.
                let until = self.map.on_disk().next().unwrap_or(self.map.tail());
                let count = count.min(until - self.map.head());
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
    let map = ChunkMap::recover(EXTENT, shared.words, &shared.disk, (head, tail));
    let map = map
        .expect("valid records at every instant")
        .with_window(WINDOW);
    assert_eq!((map.head(), map.tail(), map.highest()), (head, tail, tail));
    let on_disk: BTreeSet<_> = map.on_disk().collect();
    assert!(on_disk.is_subset(&shared.disk));
    for position in (head..tail).step_by(GRAIN as usize) {
        let is_on_disk = |start: &u64| (*start..start + CHUNK).contains(&position);
        let Some(at) = map.held(position, GRAIN) else {
            assert!(on_disk.iter().any(is_on_disk), "{position}");
            continue;
        };
        assert_eq!(shared.memory.get(&at.first.start), Some(&position));
    }
    map
}

/// Checks the state after each store of a process.
fn check_process(process: &mut Process) {
    for (shared, [tail, head]) in std::mem::take(&mut process.instants) {
        // With the kernel's counts, or with the recorded ones.
        recovered(&shared, head, tail);
        let head = shared.head.max(head);
        recovered(&shared, head, shared.tail.max(head));
    }
}

proptest! {
    #[test]
    fn whenever_a_process_ends_its_successor_finds_every_byte(ops in prop::collection::vec(op(), 0..60)) {
        let mut process = Process::new();
        for op in &ops {
            process.apply(op);
            check_process(&mut process);
        }
    }

    #[test]
    fn whatever_is_found_is_a_map_or_refused(
        words in prop::collection::vec(prop_oneof![0..6 * CHUNK, (0..6_u64).prop_map(|n| n * CHUNK + 1)], (EXTENT / CHUNK) as usize),
        disk in prop::collection::btree_set(prop_oneof![0..6 * CHUNK, (0..6_u64).prop_map(|n| n * CHUNK), Just(u64::MAX)], 0..6),
        head in 0..4 * CHUNK, len in 0..4 * CHUNK,
    ) {
        let tail = head + len;
        if let Ok(map) = ChunkMap::recover(EXTENT, words, &disk, (head, tail)) {
            for position in [head, (head + tail) / 2, tail.saturating_sub(1)] {
                if (head..tail).contains(&position) {
                    match map.held(position, 1) {
                        Some(at) => prop_assert!(at.first.end <= EXTENT),
                        None => {
                            let start = map.on_disk().filter(|start| *start <= position).last().expect("a chunk on disk");
                            prop_assert!(disk.contains(&start) && start + CHUNK <= tail);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_overlaps_lacks_something_or_is_too_long_is_refused() {
    let recover = |words: [u64; 5], head, tail| {
        ChunkMap::recover(EXTENT, words, &BTreeSet::new(), (head, tail)).is_ok()
    };
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

#[test]
fn bytes_that_are_elsewhere_are_left_out_and_nothing_else() {
    let recover = |words: [u64; 5], disk: &[u64], head, tail| {
        let disk = disk.iter().copied().collect();
        let map = ChunkMap::recover(EXTENT, words, &disk, (head, tail));
        map.map(|map| map.on_disk().collect::<Vec<_>>()).ok()
    };
    let at = |chunk: u64| chunk * CHUNK + 7;
    let [first, second, third] = [0, 1, 2].map(at);
    // Chunks that are in memory as well are not needed.
    let words = [first + 1, 0, third + 1, 0, 0];
    let disk = [first, second, third];
    assert_eq!(recover(words, &disk, 9, third + 5), Some(vec![second]));
    // All chunks, without one in memory to count from.
    assert_eq!(recover([0; 5], &disk, 9, at(3)), Some(disk.to_vec()));
    assert_eq!(
        recover([0; 5], &disk, second, at(3)),
        Some(vec![second, third])
    );
    // The first one on disk, and the last one in memory.
    let last = [0, 0, 0, 0, third + 1];
    assert_eq!(
        recover(last, &disk, 9, third + 1),
        Some(vec![first, second])
    );
    // An incomplete chunk never counted, nor one that starts elsewhere.
    assert_eq!(recover([0; 5], &disk, 9, third + 5), None);
    assert_eq!(recover(last, &[first, second + 1], 9, third + 1), None);
    assert_eq!(recover(last, &[second], 9, third + 1), None);
}

/// Counter-test: with stores in the wrong order the properties above fail.
#[test]
fn the_order_of_stores_matters() {
    // A chunk that comes back takes the place of other bytes.
    let before = [Op::Leave, Op::Leave, Op::Receive(CHUNK)];
    for (last, before) in [(Op::Leave, &[][..]), (Op::ComeBack, &before)] {
        let mut process = Process::new();
        process.apply(&Op::Receive(2 * CHUNK));
        before.iter().for_each(|op| process.apply(op));
        check_process(&mut process);
        process.wrong_order = true;
        process.apply(&last);
        let found = std::panic::AssertUnwindSafe(|| check_process(&mut process));
        assert!(std::panic::catch_unwind(found).is_err(), "{last:?}");
    }
}
