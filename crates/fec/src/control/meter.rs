use std::ops::Range;

use super::Run;

/// Loss meter of the receiver, by the numbers of arriving packets.
///
/// A packet is lost when `reorder` later ones have been sent and it has not arrived; a later
/// arrival changes nothing. Two kinds of loss are beyond FEC, and are left out:
///
/// - packets sent during a silence that the caller reports ([`leave_out`](Self::leave_out));
/// - more than [`outage_packets`](MeterConfig::outage_packets) lost in a row.
///
/// Memory is a byte or two for each packet of `reorder`. A packet takes constant time, or at most
/// `reorder` steps when numbers jump, however far.
///
/// ```
/// use fec::control::{Counts, LossMeter, MeterConfig};
///
/// let mut meter = LossMeter::new(MeterConfig { reorder: 3, outage_packets: 256 });
/// let mut counts = Counts::default();
/// for number in [0, 1, 2, 5, 4, 6, 6, 9, 10, 11, 12] {
///     meter.on_packet(number, |run| counts += run.into());
/// }
/// // Of 0 to 9, packet 3 was lost, and 7 and 8 together.
/// assert_eq!(counts, Counts::new(10, 3, 2)?);
/// assert_eq!(meter.stats().duplicates, 1);
/// # Ok::<(), fec::control::CountsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LossMeter {
    config: MeterConfig,
    /// Fates of the numbers from `settled` to `end`, by number modulo its length: a power of two.
    window: Box<[Fate]>,
    settled: u64,
    end: u64,
    started: bool,
    /// Consecutive lost packets just before `settled`.
    lost: u64,
    stats: MeterStats,
}

/// Configuration of a [`LossMeter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// Number of later packets that may overtake one before it counts as lost.
    pub reorder: u16,
    /// Longest run of lost packets that counts as loss and not as an outage.
    pub outage_packets: u64,
}

impl Default for MeterConfig {
    /// 64 packets, more than a link itself ever reorders by, and 256, the longest block.
    fn default() -> Self {
        Self {
            reorder: 64,
            outage_packets: 256,
        }
    }
}

/// Packets that a [`LossMeter`] has not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterStats {
    /// Packets that had arrived before.
    pub duplicates: u64,
    /// Packets that arrived after they counted as lost or left out, or their duplicates.
    pub late: u64,
    /// Packets left out, arrived or not.
    pub left_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Missing,
    Received,
    LeftOut,
}

impl LossMeter {
    /// Returns a meter that starts with the first packet that arrives.
    #[must_use]
    pub fn new(config: MeterConfig) -> Self {
        // One more, as a number is entered before the oldest one is settled.
        let length = (usize::from(config.reorder) + 1).next_power_of_two();
        let window = vec![Fate::Missing; length];
        Self {
            config,
            window: window.into_boxed_slice(),
            settled: 0,
            end: 0,
            started: false,
            lost: 0,
            stats: MeterStats::default(),
        }
    }

    /// Handles the arrival of packet `number`. Passes settled runs to `runs`.
    ///
    /// Numbers are of a single sender. A number far ahead makes all before it late, so the caller
    /// must check numbers that it cannot trust.
    pub fn on_packet(&mut self, number: u64, mut runs: impl FnMut(Run)) {
        if !self.started {
            self.started = true;
            (self.settled, self.end) = (number, number);
        }
        if number < self.settled || number == u64::MAX {
            self.stats.late += 1;
        } else if number < self.end {
            self.mark_received(number);
        } else {
            self.extend(number, Fate::Missing, &mut runs);
            self.extend(number + 1, Fate::Received, &mut runs);
        }
    }

    /// Excludes the packets with these numbers, unless counted already: they were sent during a
    /// silence. All numbers up to the end of the range count as sent. Does nothing before the first
    /// packet.
    pub fn leave_out(&mut self, numbers: Range<u64>, mut runs: impl FnMut(Run)) {
        if !self.started || numbers.is_empty() {
            return;
        }
        for number in numbers.start.max(self.settled)..numbers.end.min(self.end) {
            *self.fate(number) = Fate::LeftOut;
        }
        if numbers.end > self.end {
            self.extend(numbers.start.max(self.end), Fate::Missing, &mut runs);
            self.extend(numbers.end, Fate::LeftOut, &mut runs);
        }
    }

    /// Packets not counted so far.
    #[must_use]
    pub fn stats(&self) -> MeterStats {
        self.stats
    }

    fn mark_received(&mut self, number: u64) {
        let fate = self.fate(number);
        match *fate {
            Fate::Missing => *fate = Fate::Received,
            Fate::Received => self.stats.duplicates += 1,
            Fate::LeftOut => {}
        }
    }

    fn fate(&mut self, number: u64) -> &mut Fate {
        let mask = self.window.len() - 1;
        &mut self.window[number as usize & mask]
    }

    /// Records all numbers up to `end` as sent; new ones get this fate.
    fn extend(&mut self, end: u64, fate: Fate, runs: &mut impl FnMut(Run)) {
        let reorder = u64::from(self.config.reorder);
        // Numbers that settle at once, as later ones fill the window.
        let at_once = end.saturating_sub(reorder);
        if at_once > self.end {
            self.settle_before(self.end, runs);
            self.settle(fate, at_once - self.end, runs);
            (self.settled, self.end) = (at_once, at_once);
        }
        while self.end < end {
            self.end += 1;
            self.settle_before(self.end.saturating_sub(reorder), runs);
            *self.fate(self.end - 1) = fate;
        }
        self.settle_before(end.saturating_sub(reorder), runs);
    }

    fn settle_before(&mut self, number: u64, runs: &mut impl FnMut(Run)) {
        while self.settled < number {
            let fate = *self.fate(self.settled);
            self.settled += 1;
            self.settle(fate, 1, runs);
        }
    }

    /// Settles the fate of the next `packets` packets.
    fn settle(&mut self, fate: Fate, packets: u64, runs: &mut impl FnMut(Run)) {
        if fate == Fate::Missing {
            self.lost += packets;
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        if lost > self.config.outage_packets {
            self.stats.left_out += lost;
        } else if lost > 0 {
            runs(Run::Lost(lost));
        }
        match fate {
            Fate::Received => runs(Run::Received(packets)),
            _ => self.stats.left_out += packets,
        }
    }
}
