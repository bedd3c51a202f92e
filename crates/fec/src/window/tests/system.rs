//! Equations with coefficients of zero and one only, which are often dependent, while packets come
//! and go. The solution is that of all equations that have not expired.

use std::collections::{BTreeMap, BTreeSet};

use super::{model::reduce, *};
use crate::{kernel::Kernel, testing::for_seeds, window::system::System};

const SPAN: u32 = 16;

struct Both {
    system: System,
    solved: Vec<crate::window::system::Solved>,
    /// First packet with a column.
    base: u32,
    known: BTreeSet<u32>,
    equations: Vec<(u32, BTreeMap<u32, u8>)>,
}

impl Both {
    fn insert(&mut self, draw: &mut Draw) {
        let first = self.base + draw.below(8) as u32;
        let ids = first..first + draw.between(1, 8) as u32;
        let row: BTreeMap<u32, u8> = ids.map(|id| (id, draw.below(2) as u8)).collect();
        let cells = row.iter().map(|(id, cell)| ((id % SPAN) as usize, *cell));
        self.system.insert(first, cells);
        self.system.make_room();
        self.equations.push((first, row));
    }

    fn know(&mut self, id: u32) {
        if self.known.insert(id) {
            self.system.known((id % SPAN) as usize);
        }
    }

    fn advance(&mut self, by: u32) {
        let base = self.base + by;
        self.system.expire(base);
        (self.base..base).for_each(|id| self.system.renew((id % SPAN) as usize));
        self.base = base;
        self.equations.retain(|(first, _)| *first >= base);
        self.known.retain(|id| *id >= base);
    }

    /// Packets that can be solved now; both sides learn them.
    fn solve(&mut self) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let missing: Vec<u32> = (self.base..self.base + SPAN)
            .filter(|id| !self.known.contains(id))
            .collect();
        let cells = |(_, row): &(u32, BTreeMap<u32, u8>)| {
            let cell = |id| row.get(id).copied().unwrap_or(0);
            missing.iter().map(cell).collect()
        };
        let mut rows: Vec<Vec<u8>> = self.equations.iter().map(cells).collect();
        reduce(&mut rows);
        let mut expected = BTreeSet::new();
        for row in rows {
            let mut cells = row.iter().zip(&missing).filter(|(cell, _)| **cell != 0);
            if let (Some((_, id)), None) = (cells.next(), cells.next()) {
                expected.insert(*id);
            }
        }
        self.system.solved(&mut self.solved);
        let offset = |column: usize| (column as u32).wrapping_sub(self.base) % SPAN;
        let columns = self.solved.iter().map(|solved| solved.column);
        let solved: BTreeSet<u32> = columns.map(|column| self.base + offset(column)).collect();
        solved.iter().for_each(|id| self.know(*id));
        (solved, expected)
    }
}

#[test]
fn nothing_that_could_be_solved_later_is_given_up() {
    for_seeds(300, |draw| {
        let mut both = Both {
            system: System::new(SPAN as usize, 60, Kernel::detect()),
            solved: Vec::new(),
            base: 0,
            known: BTreeSet::new(),
            equations: Vec::new(),
        };
        for _ in 0..150 {
            match draw.below(8) {
                0..5 => both.insert(draw),
                5 => both.know(both.base + draw.below(SPAN as usize) as u32),
                _ => both.advance(draw.between(1, 2) as u32),
            }
            let (solved, expected) = both.solve();
            assert_eq!(solved, expected, "from {}", both.base);
            assert!(both.system.len() < SPAN as usize, "each has a pivot");
        }
    });
}
