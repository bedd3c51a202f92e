//! Content of packets that the equations give.

use super::{
    slot::Slot,
    system::{Solved, System},
};
use crate::kernel::Kernel;

/// Packets restored at once, so that their sources are read once.
const AT_ONCE: usize = 8;

/// Maximum number of packets and repair symbols that a packet can be made of.
const SOURCES: usize = super::SPAN_MAX + super::REPAIRS_MAX + 1;

#[derive(Clone, Debug)]
pub(super) struct Restorer {
    kernel: Kernel,
    coefficients: Vec<u8>,
}

impl Restorer {
    /// Returns a restorer for rows of `cells` cells.
    pub(super) fn new(kernel: Kernel, cells: usize) -> Self {
        Self {
            kernel,
            coefficients: Vec::with_capacity(cells * AT_ONCE),
        }
    }

    /// Writes the solved packets to their places. Returns whether all of them are valid packets; if
    /// not, an equation was wrong.
    pub(super) fn restore(
        &mut self,
        system: &System,
        solved: &[Solved],
        packets: &mut [Slot],
        repairs: &[Slot],
    ) -> bool {
        solved
            .chunks(AT_ONCE)
            .all(|solved| self.restore_some(system, solved, packets, repairs))
    }

    fn restore_some(
        &mut self,
        system: &System,
        solved: &[Solved],
        packets: &mut [Slot],
        repairs: &[Slot],
    ) -> bool {
        let mut results: [Slot; AT_ONCE] = Default::default();
        for (Solved { column, .. }, result) in solved.iter().zip(&mut results) {
            std::mem::swap(result, &mut packets[*column]);
        }
        let sound = self.combine(
            system,
            solved,
            packets,
            repairs,
            &mut results[..solved.len()],
        );
        for (Solved { column, .. }, result) in solved.iter().zip(&mut results) {
            std::mem::swap(result, &mut packets[*column]);
        }
        sound
    }

    /// Computes the results: each is the sum of the other packets of its row and of the row's
    /// repair symbols.
    fn combine(
        &mut self,
        system: &System,
        solved: &[Solved],
        packets: &[Slot],
        repairs: &[Slot],
        results: &mut [Slot],
    ) -> bool {
        let mut parts = [0u16; SOURCES];
        let count = find_parts(system, solved, &mut parts);
        let parts = &parts[..count];
        let slot = |part: &u16| -> &Slot {
            let part = usize::from(*part);
            packets
                .get(part)
                .unwrap_or_else(|| &repairs[part - packets.len()])
        };
        let longest = |slots: &[u16]| slots.iter().map(|part| slot(part).symbol().len()).max();
        let split = parts.partition_point(|part| usize::from(*part) < packets.len());
        let length = longest(&parts[split..]).unwrap_or(0);
        if longest(&parts[..split]).unwrap_or(0) > length {
            return false; // a packet longer than a symbol that depends on it
        }
        self.coefficients.clear();
        for Solved { row, .. } in solved {
            let cells = system.cells(*row);
            self.coefficients
                .extend(parts.iter().map(|part| cells[usize::from(*part)]));
        }
        let mut sources: [&[u8]; SOURCES] = [&[]; SOURCES];
        for (source, part) in sources.iter_mut().zip(parts) {
            *source = slot(part).padded(length);
        }
        let mut outputs: [&mut [u8]; AT_ONCE] = Default::default();
        for (output, result) in outputs.iter_mut().zip(&mut *results) {
            *output = result.room(length);
        }
        self.kernel.combine(
            &self.coefficients,
            &sources[..count],
            &mut outputs[..solved.len()],
        );
        results.iter_mut().all(Slot::trim)
    }
}

/// Lists the known packets and the repair symbols in any of the rows, the packets first. Returns
/// their number.
fn find_parts(system: &System, solved: &[Solved], parts: &mut [u16]) -> usize {
    let mut any = [0; SOURCES];
    for Solved { row, .. } in solved {
        let cells = any.iter_mut().zip(system.cells(*row));
        cells.for_each(|(any, cell)| *any |= cell);
    }
    let known = any.iter_mut().zip(system.missing());
    known.for_each(|(any, missing)| *any &= !missing);
    let mut count = 0;
    for (part, _) in any.iter().enumerate().filter(|(_, any)| **any != 0) {
        parts[count] = part as u16;
        count += 1;
    }
    count
}
