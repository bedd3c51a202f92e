//! Order in which the vector kernels process sources and outputs.
//!
//! ```text
//!              strip   strip   strip ...            tail
//!            +-------+-------+-------+-         -+-------+-+
//!  source 0  |   |   |       |       |           |       | |
//!            +---|---+-------+-------+-         -+-------+-+
//!  source 1  |   |   |       |       |           |       | |
//!            +---|---+-------+-------+-         -+-------+-+
//!    ...         v                                 |-------|
//!            +-------+-------+-------+-         -+-------+-+
//!  outputs   |       |       |       |           |       | |   a pass makes up to six
//! ```
//!
//! Outputs are computed in passes of up to six, a pass in strips of a few vectors. A strip goes
//! through all sources while the sums stay in registers. So a source is read once per pass, the
//! output is only written, and the reads of a pass fit in the second level cache for all sizes of
//! packets. Before a pass, the tables of its coefficients are gathered in the order of use. That
//! takes a few percent of the time, less than a look-up in every strip. There is room for 192 of
//! them; more sources (32 with six outputs) are added in groups.
//!
//! The last strip overlaps the one before where the length is no multiple of a vector. Its sum is
//! computed first, from the previous contents of the outputs, and written last.

use std::mem::MaybeUninit;

use super::scalar;

/// Maximum number of outputs of a pass.
const OUTPUTS_MAX: usize = 6;

/// Coefficients that a pass gathers at once: 6 KiB of [`super::tables::Nibbles`].
const GATHERED: usize = 192;

/// Longest vector, in bytes, of the kernels whose strips overlap.
const WIDTH_MAX: usize = 32;

/// A group of sources with their coefficients, one per source.
pub(super) struct Group<'a, T, const P: usize> {
    /// For each source its coefficient in each of the outputs; all of them are initialised.
    tables: &'a [[MaybeUninit<T>; P]],
    /// All as long as the outputs.
    sources: &'a [&'a [u8]],
    /// True if the sums are added to the contents of the outputs.
    pub(super) accumulate: bool,
}

impl<'a, T, const P: usize> Group<'a, T, P> {
    /// Sources with their coefficients in the outputs.
    #[inline(always)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a [u8], [&'a T; P])> {
        let sources = self.sources.iter().copied();
        sources.zip(self.tables).map(|(source, tables)| {
            // SAFETY: all tables of a group are initialised.
            let tables = tables
                .each_ref()
                .map(|table| unsafe { table.assume_init_ref() });
            (source, tables)
        })
    }
}

/// A vector kernel.
pub(super) trait Lanes {
    /// Table entry of a coefficient.
    type Table: Copy + 'static;

    /// Table entries of all coefficients.
    fn tables() -> &'static [Self::Table; 256];

    /// Minimum length that the kernel handles.
    const LENGTH_MIN: usize;

    /// Makes `P` outputs from a group of sources, `V` vectors at a time.
    ///
    /// # Safety
    ///
    /// The machine has the kernel's instructions, the sources are as long as the outputs, and that
    /// is no less than [`LENGTH_MIN`](Self::LENGTH_MIN).
    unsafe fn strips<const P: usize, const V: usize>(
        group: &Group<'_, Self::Table, P>,
        outputs: &mut [&mut [u8]; P],
    );
}

/// A kernel whose last strip overlaps.
pub(super) trait Overlapping: Lanes {
    /// Makes one strip of `P` outputs: `V` vectors of [`LENGTH_MIN`](Lanes::LENGTH_MIN) bytes, from
    /// byte `at` of the sources. Writes them to `outputs`, and reads those first if they are to be
    /// added to.
    ///
    /// # Safety
    ///
    /// The machine has the kernel's instructions, the sources reach to the end of the strip, and
    /// each output is the beginning of a strip that belongs to the caller alone.
    unsafe fn strip<const P: usize, const V: usize>(
        group: &Group<'_, Self::Table, P>,
        at: usize,
        outputs: [*mut u8; P],
    );
}

/// Sets each output to its linear combination of the sources, or adds that to it.
///
/// # Safety
///
/// The machine has the kernel's instructions, all strings are of one length, and there is a
/// coefficient for each pair of an output and a source.
pub(super) unsafe fn combine<L: Lanes>(
    coefficients: &[u8],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    accumulate: bool,
) {
    let Some(length) = outputs.first().map(|output| output.len()) else {
        return;
    };
    if length < L::LENGTH_MIN {
        return scalar::combine(coefficients, sources, outputs, accumulate);
    }
    let passes = outputs.len().div_ceil(OUTPUTS_MAX);
    let outputs_each = outputs.len().div_ceil(passes);
    let rows = coefficients.chunks(outputs_each * sources.len());
    for (outputs, rows) in outputs.chunks_mut(outputs_each).zip(rows) {
        // SAFETY: the caller's word, of some of the outputs.
        unsafe { dispatch::<L>(rows, sources, outputs, accumulate) };
    }
}

/// Dispatches by the number of outputs, with as many vectors at a time as there are registers for.
///
/// # Safety
///
/// As [`combine`], with at most [`OUTPUTS_MAX`] outputs no shorter than the kernel's minimum.
unsafe fn dispatch<L: Lanes>(
    rows: &[u8],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    accumulate: bool,
) {
    // SAFETY: the caller's word.
    unsafe {
        match outputs {
            [a] => pass::<L, 1, 6>(rows, sources, &mut [a], accumulate),
            [a, b] => pass::<L, 2, 3>(rows, sources, &mut [a, b], accumulate),
            [a, b, c] => pass::<L, 3, 3>(rows, sources, &mut [a, b, c], accumulate),
            [a, b, c, d] => pass::<L, 4, 2>(rows, sources, &mut [a, b, c, d], accumulate),
            [a, b, c, d, e] => pass::<L, 5, 2>(rows, sources, &mut [a, b, c, d, e], accumulate),
            [a, b, c, d, e, f] => {
                pass::<L, 6, 2>(rows, sources, &mut [a, b, c, d, e, f], accumulate);
            }
            _ => unreachable!("passes of 1 to {OUTPUTS_MAX} outputs"),
        }
    }
}

/// Makes `P` outputs.
///
/// # Safety
///
/// As [`dispatch`].
unsafe fn pass<L: Lanes, const P: usize, const V: usize>(
    rows: &[u8],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]; P],
    accumulate: bool,
) {
    let mut room = [const { MaybeUninit::uninit() }; GATHERED];
    let (tables, _) = room.as_chunks_mut::<P>();
    let group_max = tables.len();
    for (number, group) in sources.chunks(group_max).enumerate() {
        let tables = &mut tables[..group.len()];
        for (p, row) in rows.chunks_exact(sources.len()).enumerate() {
            let row = &row[number * group_max..][..group.len()];
            for (tables, coefficient) in tables.iter_mut().zip(row) {
                tables[p].write(L::tables()[usize::from(*coefficient)]);
            }
        }
        let group = Group {
            tables,
            sources: group,
            accumulate: accumulate || number > 0,
        };
        // SAFETY: the caller's word. There are `P` rows, so all tables are initialised.
        unsafe { L::strips::<P, V>(&group, outputs) };
    }
}

/// Processes strips where the last one overlaps.
///
/// # Safety
///
/// As [`Lanes::strips`].
#[inline(always)]
pub(super) unsafe fn overlapping<L: Overlapping, const P: usize, const V: usize>(
    group: &Group<'_, L::Table, P>,
    outputs: &mut [&mut [u8]; P],
) {
    const { assert!(L::LENGTH_MIN <= WIDTH_MAX) };
    let width = L::LENGTH_MIN;
    let length = outputs[0].len();
    let whole = length - length % width;
    let mut tails = [[0; WIDTH_MAX]; P];
    if whole < length {
        for (tail, output) in tails.iter_mut().zip(&*outputs) {
            tail[..width].copy_from_slice(&output[length - width..]);
        }
        let tails = tails.each_mut().map(|tail| tail.as_mut_ptr());
        // SAFETY: the sources end where this strip ends, and a tail has room for a vector.
        unsafe { L::strip::<P, 1>(group, length - width, tails) };
    }
    let starts = outputs.each_mut().map(|output| output.as_mut_ptr());
    let mut at = 0;
    while at + V * width <= whole {
        // SAFETY: the strip ends within sources and outputs.
        unsafe { L::strip::<P, V>(group, at, starts.map(|start| start.add(at))) };
        at += V * width;
    }
    while at < whole {
        // SAFETY: as above: `at` and `whole` are multiples of the width.
        unsafe { L::strip::<P, 1>(group, at, starts.map(|start| start.add(at))) };
        at += width;
    }
    if whole < length {
        for (tail, output) in tails.iter().zip(outputs) {
            output[length - width..].copy_from_slice(&tail[..width]);
        }
    }
}
