use std::collections::BTreeSet;

use crate::{gf256, serial, window::coefficients};

/// Upper bound of a decoder's knowledge: all packets that have come and lie within the span, solved
/// from scratch each time.
pub(super) struct Model {
    span: u32,
    newest: Option<u32>,
    known: BTreeSet<u32>,
    equations: Vec<(u32, Vec<u8>)>,
}

impl Model {
    pub(super) fn new(span: u32) -> Self {
        Self {
            span,
            newest: None,
            known: BTreeSet::new(),
            equations: Vec::new(),
        }
    }

    /// Returns the packets that can be restored now.
    pub(super) fn data(&mut self, id: u32) -> Vec<u32> {
        self.hear(id);
        if self.in_span(id) {
            self.known.insert(id);
        }
        self.solve()
    }

    pub(super) fn repair(&mut self, first: u32, count: u16, key: u16) -> Vec<u32> {
        self.hear(first.wrapping_add(u32::from(count) - 1));
        if self.in_span(first) {
            let mut row = vec![0; count.into()];
            coefficients::draw(key, &mut row);
            self.equations.push((first, row));
        }
        self.solve()
    }

    fn in_span(&self, id: u32) -> bool {
        self.newest
            .is_some_and(|newest| newest.wrapping_sub(id) < self.span)
    }

    fn hear(&mut self, id: u32) {
        if self.newest.is_none_or(|newest| serial::before(newest, id)) {
            self.newest = Some(id);
        }
        let (newest, span) = (self.newest.unwrap(), self.span);
        self.known.retain(|id| newest.wrapping_sub(*id) < span);
        self.equations
            .retain(|(first, _)| newest.wrapping_sub(*first) < span);
    }

    fn solve(&mut self) -> Vec<u32> {
        let ids = |(first, row): &(u32, Vec<u8>)| {
            let first = *first;
            (0..row.len() as u32).map(move |i| first.wrapping_add(i))
        };
        let missing: Vec<u32> = self
            .equations
            .iter()
            .flat_map(ids)
            .filter(|id| !self.known.contains(id))
            .collect::<BTreeSet<u32>>()
            .into_iter()
            .collect();
        let mut rows: Vec<Vec<u8>> = self
            .equations
            .iter()
            .map(|(first, row)| {
                let cell = |id: &u32| row.get(id.wrapping_sub(*first) as usize);
                missing
                    .iter()
                    .map(|id| cell(id).copied().unwrap_or(0))
                    .collect()
            })
            .collect();
        reduce(&mut rows);
        let mut solved: Vec<u32> = Vec::new();
        for row in rows {
            let mut cells = row.iter().zip(&missing).filter(|(cell, _)| **cell != 0);
            if let (Some((_, id)), None) = (cells.next(), cells.next()) {
                solved.push(*id);
            }
        }
        let newest = self.newest.unwrap_or(0);
        solved.sort_by_key(|id| std::cmp::Reverse(newest.wrapping_sub(*id)));
        self.known.extend(&solved);
        solved
    }
}

/// Gauss-Jordan elimination.
pub(super) fn reduce(rows: &mut [Vec<u8>]) {
    let mut done = 0;
    for column in 0..rows.first().map_or(0, Vec::len) {
        let Some(pivot) = (done..rows.len()).find(|row| rows[*row][column] != 0) else {
            continue;
        };
        rows.swap(done, pivot);
        let inverse = gf256::inv(rows[done][column]);
        rows[done]
            .iter_mut()
            .for_each(|cell| *cell = gf256::mul(*cell, inverse));
        let by = rows[done].clone();
        for (i, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if i != done && factor != 0 {
                for (cell, by) in row.iter_mut().zip(&by) {
                    *cell ^= gf256::mul(factor, *by);
                }
            }
        }
        done += 1;
    }
}
