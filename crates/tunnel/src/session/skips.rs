//! Packet numbers left out at random.
//!
//! A peer that reports packets without receiving them, so that the local end sends more, does not
//! know these numbers (RFC 9000 §21.4). Sooner or later it reports one as received, or none of its
//! reports names the gap:
//!
//! ```text
//!   number 5 left out    report: 3   report: 9, gap 5   report: 12, gap 5   received 4, 6 and on
//!                        report: 3   report: 9          report: 12          a lie
//! ```
//!
//! A truthful peer names each gap in the first two reports after it, or newer ones if there is no
//! room. Where one of its packets is missing, that may have contained such a report; and newer gaps
//! may be made up. Then only many such cases in a row are a lie.
//!
//! Everything else in a session counts the packets that were sent, from 0 without gaps. So numbers
//! left out are no losses:
//!
//! ```text
//!   packets sent            0  1  2  3     4  5  6
//!   numbers on the wire     0  1  2  3  -  5  6  7
//! ```

use std::{collections::VecDeque, iter};

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::SkipConfig;
use crate::{delivery::ReportError, wire::Report};

/// Numbers below the newest one for which those left out are remembered: twice the window's maximum
/// of segments. A report that lags further would be translated wrongly.
const KEPT: u64 = 1 << 21;
/// Later numbers after which a receiver has judged one: its loss meter's limit of reordering.
const JUDGED_AFTER: u64 = 64;
/// Reports that a truthful peer lets name a gap.
const REPORTS: u8 = 2;
/// Maximum of gaps, and of bytes, of a report in which none was omitted for lack of room.
const WHOLE_GAPS: usize = 8;
const WHOLE_BYTES: usize = 400;
/// Weights of reports that name no number left out: one after a missing packet of the peer, and one
/// in which all gaps are newer. At a loss of one half, a truthful peer makes 16 of the first kind
/// in a row once in four billion times. Where it has room for a quarter of its gaps only, it makes
/// 64 of the second kind once in a hundred million times.
const MISSED: u8 = 4;
const OMITTED: u8 = 1;
/// Sum of weights that a truthful peer does not reach in a row.
const UNNAMED_MAX: u8 = 64;

/// Numbers left out so far, and the mapping between packets and numbers.
#[derive(Clone, Debug)]
pub(super) struct Skips {
    every: u64,
    random: ChaCha20Rng,
    /// Lowest number to leave out next.
    due: u64,
    /// The newest numbers left out, in rising order.
    recent: VecDeque<Skip>,
    /// Number of earlier ones, all below these.
    forgotten: u64,
    /// The first of the recent ones that are in the peer's counts.
    counted: usize,
    /// Position before which the peer has named all, or might have.
    settled: usize,
    /// Weights of reports in a row that should have named one.
    unnamed: u8,
    /// Numbers in the peer's counts that were left out, and bursts of these alone.
    in_counts: [u64; 2],
}

/// A number that was left out.
#[derive(Clone, Copy, Debug)]
struct Skip {
    number: u64,
    /// The next number that has arrived, as far as known.
    after: u64,
    /// No lost packet is next to it, as far as known.
    is_alone: bool,
    /// The peer has named it, or might have.
    is_settled: bool,
    /// Reports that had to name it and did not.
    omitted: u8,
}

impl Skips {
    pub fn new(config: &SkipConfig) -> Self {
        let every = config.every.into();
        let mut random = ChaCha20Rng::from_seed(config.seed);
        Self {
            every,
            due: random.next_u64().checked_rem(every).unwrap_or(0),
            random,
            recent: VecDeque::new(),
            forgotten: 0,
            counted: 0,
            settled: 0,
            unnamed: 0,
            in_counts: [0; 2],
        }
    }

    /// Returns the number of the next packet, of which `packet` were sent before. May leave out a
    /// number before it if `may_skip`.
    pub fn next(&mut self, packet: u64, may_skip: bool) -> u64 {
        let number = packet + self.forgotten + self.recent.len() as u64;
        if self.every == 0 || !may_skip || number < self.due {
            return number;
        }
        self.skip(number);
        number + 1
    }

    fn skip(&mut self, number: u64) {
        while let Some(front) = self.recent.front()
            && front.number + KEPT < number
        {
            self.recent.pop_front();
            self.forgotten += 1;
            self.counted = self.counted.saturating_sub(1);
            self.settled = self.settled.saturating_sub(1);
        }
        self.recent.push_back(Skip {
            number,
            after: number + 1,
            is_alone: true,
            is_settled: false,
            omitted: 0,
        });
        // One of the next `every` numbers after the current ones, and never two in a row.
        let block = (number / self.every + 1) * self.every;
        let place = self.random.next_u64() % self.every;
        self.due = (block + place).max(number + 2);
    }

    /// Returns the count of packets sent before the one with this number.
    fn packet(&self, number: u64) -> Result<u64, ReportError> {
        let index = self.recent.partition_point(|skip| skip.number < number);
        if self
            .recent
            .get(index)
            .is_some_and(|skip| skip.number == number)
        {
            return Err(ReportError::LeftOut(number));
        }
        Ok(number.saturating_sub(self.forgotten + index as u64))
    }

    /// Returns the number on the wire of a packet, by the count of those sent before.
    pub fn number(&self, packet: u64) -> u64 {
        let number = packet.saturating_add(self.forgotten);
        let skips = self.recent.iter();
        skips.fold(number, |number, skip| {
            number.saturating_add(u64::from(skip.number <= number))
        })
    }

    /// Replaces numbers of a report by counts of packets sent, and takes the numbers left out from
    /// its gaps and counts. `is_next` tells that no packet of the peer is missing between the
    /// previous report and this one.
    ///
    /// # Errors
    ///
    /// The peer claims to have received a number that was left out.
    pub fn take_out(&mut self, report: &mut Report, is_next: bool) -> Result<(), ReportError> {
        if self.forgotten == 0 && self.recent.is_empty() {
            return Ok(());
        }
        let named = self.expect_names(report, is_next);
        self.note_gaps(report);
        if let Some(highest) = &mut report.highest {
            self.count(highest.number);
            highest.number = self.packet(highest.number)?;
        }
        for gap in &mut report.gaps {
            let after = gap.before.saturating_add(gap.missing).saturating_add(1);
            let (before, after) = (self.packet(gap.before)?, self.packet(after)?);
            gap.before = before;
            gap.missing = after.saturating_sub(before).saturating_sub(1);
        }
        let [skipped, bursts] = self.in_counts;
        for (count, skipped) in iter::zip(&mut report.counts, [skipped, skipped, bursts]) {
            *count = count.saturating_sub(skipped);
        }
        named
    }

    /// Checks that the numbers left out below the highest one that has arrived are in gaps.
    fn expect_names(&mut self, report: &Report, is_next: bool) -> Result<(), ReportError> {
        let Some(highest) = report.highest else {
            return Ok(());
        };
        let is_full = report.gaps.len() > WHOLE_GAPS || report.len() > WHOLE_BYTES;
        // The oldest gaps are omitted first.
        let oldest = report.gaps.iter().map(|gap| gap.before).min();
        let oldest = oldest.filter(|_| is_full).unwrap_or(u64::MAX);
        let (mut is_named, mut is_unnamed) = (false, None);
        let from = self.settled.min(self.recent.len());
        let passed = self.recent.range_mut(from..);
        let passed = passed.take_while(|skip| skip.number < highest.number);
        for skip in passed.filter(|skip| !skip.is_settled) {
            let mut gaps = report.gaps.iter();
            if gaps.any(|gap| skip.number > gap.before && skip.number - gap.before <= gap.missing) {
                (is_named, skip.is_settled) = (true, true);
            } else if is_next && (!is_full || skip.number > oldest) {
                skip.omitted += 1;
                if skip.omitted == REPORTS {
                    return Err(ReportError::NotNamed(skip.number));
                }
            } else {
                skip.is_settled = true;
                let weight = if is_full { OMITTED } else { MISSED };
                is_unnamed = is_unnamed.max(Some((weight, skip.number)));
            }
        }
        let settled = self.recent.range(from..);
        self.settled = from + settled.take_while(|skip| skip.is_settled).count();
        match is_unnamed {
            _ if is_named => self.unnamed = 0,
            None => {}
            Some((weight, number)) => {
                self.unnamed += weight;
                if self.unnamed >= UNNAMED_MAX {
                    return Err(ReportError::NotNamed(number));
                }
            }
        }
        Ok(())
    }

    /// Notes which packets around the numbers left out have arrived.
    fn note_gaps(&mut self, report: &Report) {
        for gap in &report.gaps {
            let from = self.counted;
            let from = from.max(
                self.recent
                    .partition_point(|skip| skip.number <= gap.before),
            );
            let last = gap.before.saturating_add(gap.missing);
            let inside = self.recent.range_mut(from.min(self.recent.len())..);
            for skip in inside.take_while(|skip| skip.number <= last) {
                skip.after = last.saturating_add(1);
                skip.is_alone = gap.missing == 1;
            }
        }
    }

    /// Adds the numbers left out that a receiver of packets up to `highest` has judged.
    fn count(&mut self, highest: u64) {
        while let Some(skip) = self.recent.get(self.counted)
            && skip.after.saturating_add(JUDGED_AFTER) <= highest
        {
            self.in_counts[0] += 1;
            self.in_counts[1] += u64::from(skip.is_alone);
            self.counted += 1;
        }
    }
}
