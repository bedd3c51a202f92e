use std::ops::Range;

use super::Run;

/// Finds out at the receiver which packets were lost, from the numbers of those that arrive.
///
/// A packet is lost when `reorder` later ones have been sent and it has not arrived; what arrives
/// even later changes nothing any more. Two things are no loss in the sense of overcode, which
/// could not mend them, and are left out:
///
/// - what was sent during a silence, if the caller says so ([`leave_out`](Self::leave_out));
/// - more than [`outage_packets`](MeterConfig::outage_packets) lost in a row.
///
/// Memory is a byte or two for each packet of `reorder`; a packet takes constant time, unless numbers
/// jump: then `reorder` steps at most, however far.
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
    /// What is known of the numbers from `settled` to `end`, by number modulo its length: a power of two.
    window: Box<[Fate]>,
    settled: u64,
    end: u64,
    started: bool,
    /// Lost packets in a row just before `settled`.
    lost: u64,
    stats: MeterStats,
}

/// How a [`LossMeter`] judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// How many later packets may overtake one before it counts as lost.
    pub reorder: u16,
    /// The longest run of lost packets that is loss and not an outage.
    pub outage_packets: u64,
}

impl Default for MeterConfig {
    /// 64 packets, more than a link itself ever reorders by; and 256, as no block is longer.
    fn default() -> Self {
        Self {
            reorder: 64,
            outage_packets: 256,
        }
    }
}

/// What a [`LossMeter`] has not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterStats {
    /// Packets that had arrived before.
    pub duplicates: u64,
    /// Packets that arrived after they had been counted as lost or left out, or their duplicates.
    pub late: u64,
    /// Packets that were left out, whether they arrived or not.
    pub left_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Missing,
    Received,
    LeftOut,
}

impl LossMeter {
    /// A meter that starts with the first packet that arrives.
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

    /// Packet `number` has arrived. What is certain now is given to `runs`.
    ///
    /// Numbers of the same sender; one that is far ahead makes all before it late, so whoever
    /// cannot trust them must check them first.
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

    /// Does not count the packets with these numbers, as far as they are not counted yet: they
    /// were sent during a silence. All numbers up to the end of the range are taken to have been
    /// sent. Does nothing before the first packet.
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

    /// What has not been counted so far.
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

    /// All numbers up to `end` have been sent, those that are new with this fate.
    fn extend(&mut self, end: u64, fate: Fate, runs: &mut impl FnMut(Run)) {
        let reorder = u64::from(self.config.reorder);
        // Numbers that are settled at once, as later ones fill the window.
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

    /// The next `packets` packets have finally had this fate.
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
