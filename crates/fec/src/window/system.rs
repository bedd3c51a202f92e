//! System of linear equations from the stored repair packets, solved as far as possible.
//!
//! Every repair packet is an equation: its symbol is the sum of the packets of its window, each
//! with its coefficient. Only a row of coefficients is stored here; the symbols stay as received
//! until a packet can be restored. A row is
//!
//! ```text
//!   coefficients of the packets, one column each  |  of the repair symbols, one column each
//! ```
//!
//! and means that the sums of the two parts are equal. The rows are in reduced form: each has a
//! pivot, a missing packet whose coefficient is one there and zero in every other row. So a packet
//! can be restored exactly when its row has no other missing packet. There are always as many rows
//! as repair symbols in them. A redundant equation serves to eliminate its oldest symbol from the
//! others, so that the symbols that stay useful longest are kept.

use crate::{gf256, kernel::Kernel, serial};

/// Mark of a missing packet; as a mask for its column.
const MISSING: u8 = 0xff;
const KNOWN: u8 = 0;

/// Unit of the length of rows in bytes, for the benefit of the kernels.
const ROW_UNIT: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct System {
    kernel: Kernel,
    /// Number of packets with a column.
    span: usize,
    /// For each packet, a mark if it is missing.
    missing: Box<[u8]>,
    /// For each packet, the row whose pivot it is.
    pivots: Box<[Option<u16>]>,
    /// Rows; the first `used` are in use.
    rows: Vec<Row>,
    used: usize,
    /// For each repair symbol in use, the first packet of its window.
    firsts: Box<[Option<u32>]>,
    /// Repair symbols not in use.
    free: Vec<u16>,
    /// Lower bound of the first packets of all repair symbols in use.
    oldest: u32,
    /// Scratch space for a row.
    room: Box<[u8]>,
}

#[derive(Clone, Debug)]
struct Row {
    pivot: u16,
    cells: Box<[u8]>,
}

/// A row with one missing packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Solved {
    pub(super) row: usize,
    pub(super) column: usize,
}

impl System {
    /// Returns a system for `span` packets, all missing, and at most `repairs` equations.
    pub(super) fn new(span: usize, repairs: usize, kernel: Kernel) -> Self {
        // One more, so that a new one can be added before one is dropped.
        let places = repairs + 1;
        let row = Row {
            pivot: 0,
            cells: vec![0; (span + places).next_multiple_of(ROW_UNIT)].into_boxed_slice(),
        };
        Self {
            kernel,
            room: row.cells.clone(),
            span,
            missing: vec![MISSING; span].into_boxed_slice(),
            pivots: vec![None; span].into_boxed_slice(),
            rows: vec![row; places],
            used: 0,
            firsts: vec![None; places].into_boxed_slice(),
            free: (0..places as u16).rev().collect(),
            oldest: 0,
        }
    }

    /// Number of equations.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// For each column a byte that is all ones if its packet is missing, else zero.
    pub(super) fn missing(&self) -> &[u8] {
        &self.missing
    }

    pub(super) fn is_missing(&self, column: usize) -> bool {
        self.missing[column] != KNOWN
    }

    /// Reports whether any of the columns is that of a missing packet.
    pub(super) fn any_missing(&self, columns: std::ops::Range<usize>) -> bool {
        self.missing[columns].iter().any(|state| *state != KNOWN)
    }

    /// Assigns the column to another packet, which is missing. No equation may contain it.
    pub(super) fn renew(&mut self, column: usize) {
        self.missing[column] = MISSING;
    }

    /// Coefficients of a row: of the packets, then of the repair symbols.
    pub(super) fn cells(&self, row: usize) -> &[u8] {
        &self.rows[row].cells
    }

    /// Drops the equations.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.pivots.fill(None);
        self.firsts.fill(None);
        self.free.clear();
        self.free.extend((0..self.firsts.len() as u16).rev());
    }

    /// Drops everything: all packets are missing.
    pub(super) fn reset(&mut self) {
        self.clear();
        self.missing.fill(MISSING);
    }

    /// Takes an equation over a window whose first packet is `first`. Returns the place of its
    /// symbol, or `None` if it has no new information. [`Self::make_room`] before the next one.
    pub(super) fn insert(
        &mut self,
        first: u32,
        coefficients: impl Iterator<Item = (usize, u8)>,
    ) -> Option<usize> {
        let symbol = self.free.pop()? as usize;
        if self.used == 0 || serial::before(first, self.oldest) {
            self.oldest = first;
        }
        self.firsts[symbol] = Some(first);
        let (rows, rest) = self.rows.split_at_mut(self.used);
        let cells = &mut rest[0].cells;
        cells.fill(0);
        coefficients.for_each(|(column, coefficient)| cells[column] = coefficient);
        cells[self.span + symbol] = 1;
        for row in rows {
            let factor = cells[row.pivot as usize];
            add(self.kernel, cells, &row.cells, factor);
        }
        self.used += 1;
        self.settle(self.used - 1);
        self.firsts[symbol].map(|_| symbol)
    }

    /// Marks a packet as known.
    pub(super) fn known(&mut self, column: usize) {
        self.missing[column] = KNOWN;
        if let Some(row) = self.pivots[column].take() {
            self.settle(row.into());
        }
    }

    /// Drops repair symbols whose windows start before `kept`, with the information that depends on
    /// them. Returns their number.
    pub(super) fn expire(&mut self, kept: u32) -> u64 {
        let mut expired = 0;
        if self.used == 0 || !serial::before(self.oldest, kept) {
            return expired;
        }
        for symbol in 0..self.firsts.len() {
            if self.firsts[symbol].is_some_and(|first| serial::before(first, kept)) {
                self.drop(symbol);
                expired += 1;
            }
        }
        let firsts = self.firsts.iter().flatten().copied();
        self.oldest = firsts.reduce(older).unwrap_or(kept);
        expired
    }

    /// Lists the rows with a single missing packet, which can be restored.
    pub(super) fn solved(&self, solved: &mut Vec<Solved>) {
        solved.clear();
        for (row, Row { pivot, cells }) in self.rows[..self.used].iter().enumerate() {
            let cells = cells.iter().zip(&self.missing);
            let missing: u16 = cells.map(|(cell, mask)| u16::from(cell & mask != 0)).sum();
            if missing == 1 {
                let column = usize::from(*pivot);
                solved.push(Solved { row, column });
            }
        }
    }

    /// Gives a row that is reduced by all others its pivot, or removes it if it has no missing
    /// packet.
    fn settle(&mut self, row: usize) {
        let cells = &mut self.rows[row].cells;
        let mut columns = cells.iter().zip(&self.missing);
        let Some(pivot) = columns.position(|(cell, mask)| cell & mask != 0) else {
            self.retire(row);
            return;
        };
        let factor = gf256::inv(cells[pivot]);
        if factor != 1 {
            self.kernel
                .combine(&[factor], &[cells], &mut [&mut self.room]);
            std::mem::swap(cells, &mut self.room);
        }
        self.rows[row].pivot = pivot as u16;
        self.pivots[pivot] = Some(row as u16);
        self.eliminate(row, pivot);
    }

    /// Removes a row without missing packets, and the oldest symbol in it.
    fn retire(&mut self, row: usize) {
        let symbols = &self.rows[row].cells[self.span..];
        let symbols = symbols.iter().zip(&self.firsts).enumerate();
        let in_row = symbols.filter_map(|(symbol, (cell, first))| {
            first.filter(|_| *cell != 0).map(|first| (symbol, first))
        });
        if let Some((symbol, _)) = in_row.reduce(|a, b| if a.1 == older(a.1, b.1) { a } else { b })
        {
            self.release(row, symbol);
        }
    }

    /// Makes room for another equation; returns whether one was dropped. To be called after
    /// solving, as that makes room too.
    pub(super) fn make_room(&mut self) -> bool {
        let full = self.free.is_empty();
        if full {
            self.drop_oldest();
        }
        full
    }

    fn drop_oldest(&mut self) {
        let symbols = self.firsts.iter().enumerate();
        let symbols = symbols.filter_map(|(symbol, first)| first.map(|first| (symbol, first)));
        if let Some((symbol, _)) = symbols.reduce(|a, b| if a.1 == older(a.1, b.1) { a } else { b })
        {
            self.drop(symbol);
        }
    }

    /// Drops a symbol: one of the rows that have it eliminates it from the others, and is removed.
    fn drop(&mut self, symbol: usize) {
        let cell = self.span + symbol;
        let mut rows = self.rows[..self.used].iter();
        if let Some(row) = rows.position(|row| row.cells[cell] != 0) {
            self.release(row, symbol);
        }
    }

    /// Removes a row and a symbol in it.
    fn release(&mut self, row: usize, symbol: usize) {
        self.eliminate(row, self.span + symbol);
        self.firsts[symbol] = None;
        self.free.push(symbol as u16);
        let pivot = &mut self.pivots[self.rows[row].pivot as usize];
        if *pivot == Some(row as u16) {
            *pivot = None;
        }
        self.used -= 1;
        self.rows.swap(row, self.used);
        if row < self.used {
            self.pivots[self.rows[row].pivot as usize] = Some(row as u16);
        }
    }

    /// Makes a cell, which is not zero in `row`, zero in all other rows.
    fn eliminate(&mut self, row: usize, cell: usize) {
        let by = std::mem::take(&mut self.rows[row].cells);
        let inverse = gf256::inv(by[cell]);
        for (i, other) in self.rows[..self.used].iter_mut().enumerate() {
            if i != row {
                let factor = gf256::mul(other.cells[cell], inverse);
                add(self.kernel, &mut other.cells, &by, factor);
            }
        }
        self.rows[row].cells = by;
    }
}

/// Returns the number that comes first; `a` if they are the same.
fn older(a: u32, b: u32) -> u32 {
    if serial::before(b, a) { b } else { a }
}

/// Adds `factor` times `row` to `sum`.
fn add(kernel: Kernel, sum: &mut [u8], row: &[u8], factor: u8) {
    if factor != 0 {
        kernel.accumulate(&[factor], &[row], &mut [sum]);
    }
}
