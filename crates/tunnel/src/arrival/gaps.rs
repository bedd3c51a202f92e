//! Packet numbers missing between two that arrived.

use std::collections::VecDeque;

use crate::wire::Gap;

/// Maximum number of gaps in a report.
const GAPS_MAX: usize = 16;
/// Reports that list each gap, as one may be lost.
const TIMES: u8 = 2;
/// Maximum number of gaps kept until they are reported.
const KEPT_MAX: usize = GAPS_MAX * TIMES as usize;

#[derive(Clone, Copy, Debug)]
struct Kept {
    gap: Gap,
    times: u8,
}

/// The newest gaps, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    kept: VecDeque<Kept>,
    /// Gaps found since the last report.
    new: usize,
}

impl Gaps {
    /// Returns true if more gaps could not all be reported in time.
    pub(super) fn pressing(&self) -> bool {
        self.new >= GAPS_MAX / usize::from(TIMES)
    }

    pub(super) fn push(&mut self, gap: Gap) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Kept { gap, times: 0 });
        self.new += 1;
    }

    /// Handles a late packet. It splits its gap in two, shortens it, or closes it; the remains keep
    /// the gap's report count.
    pub(super) fn fill(&mut self, number: u64, arrived_us: u64) {
        let index = self.kept.partition_point(|kept| kept.gap.before < number);
        let Some(index) = index.checked_sub(1) else {
            return;
        };
        let Kept { gap, times } = self.kept[index];
        let before = number - gap.before - 1;
        let Some(after) = gap.missing.checked_sub(before + 1) else {
            return;
        };
        self.kept.remove(index);
        let left = Gap {
            missing: before,
            ..gap
        };
        let right = Gap {
            before: number,
            missing: after,
            // By number it belongs before the packet after the gap, though it came later.
            before_us: arrived_us.min(gap.after_us),
            ..gap
        };
        for gap in [right, left] {
            if gap.missing > 0 {
                self.kept.insert(index, Kept { gap, times });
            }
        }
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }

    /// Returns the gaps for a report.
    pub(super) fn take(&mut self) -> Vec<Gap> {
        self.new = 0;
        let from = self.kept.len().saturating_sub(GAPS_MAX);
        let reported = self.kept.range_mut(from..).map(|kept| {
            kept.times += 1;
            kept.gap
        });
        let reported = reported.collect();
        self.kept.retain(|kept| kept.times < TIMES);
        reported
    }
}
