use std::ops::{Add, AddAssign};

/// Consecutive packets, as sent, with the same fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Number of packets that arrived. Such runs may come in pieces.
    Received(u64),
    /// Number of packets lost, between two that arrived: a whole burst.
    Lost(u64),
}

/// Loss counts of some packets: sufficient for an estimate, and short enough for a report.
///
/// Counts of consecutive spans can be added. A burst counts in the span where it ends or where it
/// begins, as long as that is consistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    packets: u64,
    lost: u64,
    bursts: u64,
}

/// Reason why numbers from outside are not valid [`Counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CountsError {
    /// More packets lost than sent.
    #[error("{lost} of {packets} packets lost")]
    Lost {
        /// Packets sent.
        packets: u64,
        /// Packets lost.
        lost: u64,
    },
    /// Impossible number of bursts: a burst has one packet or more, and a received packet lies
    /// between two bursts.
    #[error("{bursts} bursts, of {lost} lost and {received} received packets")]
    Bursts {
        /// Packets lost.
        lost: u64,
        /// Packets received.
        received: u64,
        /// Bursts.
        bursts: u64,
    },
}

impl Counts {
    /// Returns counts of `packets` sent, of which `lost` did not arrive, in `bursts` runs of one or
    /// more.
    ///
    /// # Errors
    ///
    /// If that is impossible.
    pub fn new(packets: u64, lost: u64, bursts: u64) -> Result<Self, CountsError> {
        let received = packets
            .checked_sub(lost)
            .ok_or(CountsError::Lost { packets, lost })?;
        if bursts > lost || bursts > received.saturating_add(1) {
            return Err(CountsError::Bursts {
                lost,
                received,
                bursts,
            });
        }
        Ok(Self {
            packets,
            lost,
            bursts,
        })
    }

    /// Packets sent.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bursts: runs of one or more lost packets.
    #[must_use]
    pub fn bursts(&self) -> u64 {
        self.bursts
    }

    /// Packets received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.packets - self.lost
    }

    /// Share of packets lost; zero if nothing was sent.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }

    /// Scales down to at most `packets` packets, with the same share of losses and bursts.
    pub(super) fn at_most(self, packets: u64) -> Self {
        if self.packets <= packets {
            return self;
        }
        let factor = packets as f64 / self.packets as f64;
        let scaled = |count: u64| (count as f64 * factor).round() as u64;
        let lost = scaled(self.lost).min(packets);
        Self {
            packets,
            lost,
            bursts: scaled(self.bursts).min(lost),
        }
    }

    /// Subtracts a part of these counts.
    pub(super) fn minus(self, part: Self) -> Self {
        Self {
            packets: self.packets - part.packets,
            lost: self.lost - part.lost,
            bursts: self.bursts - part.bursts,
        }
    }
}

impl From<Run> for Counts {
    fn from(run: Run) -> Self {
        let (packets, lost) = match run {
            Run::Received(packets) => (packets, 0),
            Run::Lost(packets) => (packets, packets),
        };
        Self {
            packets,
            lost,
            bursts: lost.min(1),
        }
    }
}

impl Add for Counts {
    type Output = Self;

    /// Saturates: packets beyond the range of the numbers are not counted.
    fn add(self, other: Self) -> Self {
        let (Some(packets), Some(bursts)) = (
            self.packets.checked_add(other.packets),
            self.bursts.checked_add(other.bursts),
        ) else {
            return self;
        };
        Self {
            packets,
            lost: self.lost + other.lost,
            bursts,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
