use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const EXTENT: u64 = 64;

/// An extent with bytes in it, and a plain queue as a reference.
struct Model {
    map: RingMap,
    memory: [u8; EXTENT as usize],
    queue: VecDeque<u8>,
    next: u8,
}

#[derive(Debug, Clone)]
enum Op {
    Fill(u64),
    Drain(u64),
    Grow,
    Shrink,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..=EXTENT).prop_map(Op::Fill),
        4 => (0..=EXTENT).prop_map(Op::Drain),
        1 => Just(Op::Grow),
        1 => Just(Op::Shrink),
    ]
}

impl Model {
    fn new() -> Self {
        Self {
            map: RingMap::new(4, EXTENT),
            memory: [0; EXTENT as usize],
            queue: VecDeque::new(),
            next: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Fill(count) => self.fill(*count),
            Op::Drain(count) => self.drain(*count),
            Op::Grow if self.map.can_grow() => self.map.grow(),
            Op::Shrink if self.map.is_empty() => self.map.shrink(4),
            Op::Grow | Op::Shrink => {}
        }
    }

    fn fill(&mut self, count: u64) {
        let space = self.map.space();
        let count = count.min(space.len());
        for offset in space.first.chain(space.second).take(count as usize) {
            self.memory[offset as usize] = self.next;
            self.queue.push_back(self.next);
            self.next = self.next.wrapping_add(1);
        }
        self.map.fill(count);
    }

    fn drain(&mut self, count: u64) {
        let count = count.min(self.map.len());
        let expected: Vec<u8> = self.queue.drain(..count as usize).collect();
        assert_eq!(self.contents()[..count as usize], expected);
        self.map.drain(count);
    }

    fn contents(&self) -> Vec<u8> {
        let data = self.map.data();
        data.first
            .chain(data.second)
            .map(|offset| self.memory[offset as usize])
            .collect()
    }

    fn check(&self) {
        assert_eq!(self.queue, self.contents());
        assert_eq!(self.map.len(), self.queue.len() as u64);
        assert_eq!(self.map.space().len(), self.map.size() - self.map.len());
        let data = self.map.data();
        let space = self.map.space();
        for range in [&data.first, &data.second, &space.first, &space.second] {
            assert!(range.end <= self.map.size());
        }
        let offset_in_space =
            |offset| space.first.contains(&offset) || space.second.contains(&offset);
        assert!(
            !data.first.chain(data.second).any(offset_in_space),
            "{:?}",
            self.map
        );
    }
}

proptest! {
    #[test]
    fn behaves_as_a_queue(ops in prop::collection::vec(op(), 0..200)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
            model.check();
        }
    }

    /// A process may die between the two stores of a growth: base first, then size.
    #[test]
    fn half_published_growth_is_the_old_map(ops in prop::collection::vec(op(), 0..100)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
            if model.map.can_grow() {
                let mut grown = model.map.clone();
                grown.grow();
                let torn = RingMap { base: grown.base, ..model.map.clone() };
                prop_assert_eq!(torn.data(), model.map.data());
                prop_assert_eq!(torn.space(), model.map.space());
                prop_assert_eq!(grown.data(), model.map.data());
            }
        }
    }
}

#[test]
fn an_empty_ring_starts_at_offset_0() {
    let mut map = RingMap::new(8, 8);
    map.fill(5);
    map.drain(5);
    assert_eq!(
        map.space(),
        Ranges {
            first: 0..8,
            second: 0..0
        }
    );
    assert_eq!((map.head(), map.tail(), map.base()), (5, 5, 5));
}

#[test]
fn a_wrapped_ring_does_not_grow() {
    let mut map = RingMap::new(8, 16);
    map.fill(8);
    map.drain(4);
    assert!(map.can_grow());
    map.fill(4);
    assert_eq!(
        map.data(),
        Ranges {
            first: 4..8,
            second: 0..4
        }
    );
    assert!(!map.can_grow());
}

#[test]
#[should_panic(expected = "into")]
fn does_not_fill_beyond_its_space() {
    RingMap::new(8, 8).fill(9);
}

#[test]
#[should_panic(expected = "out of")]
fn does_not_drain_more_than_it_holds() {
    RingMap::new(8, 8).drain(1);
}
