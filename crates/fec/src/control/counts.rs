use std::ops::{Add, AddAssign};

/// Packets in a row that fared alike, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// As many packets arrived. Such runs may come in pieces.
    Received(u64),
    /// As many packets were lost, between two that arrived: a whole burst.
    Lost(u64),
}

/// What became of some packets: all that an estimate needs, and short enough for a report.
///
/// Counts of one span and the next can be added; a burst is counted in the span where it ends or
/// where it begins, as long as it is always the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    packets: u64,
    lost: u64,
    bursts: u64,
}

/// Why numbers from elsewhere are no [`Counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CountsError {
    /// No more packets are lost than were sent.
    #[error("{lost} of {packets} packets lost")]
    Lost {
        /// How many were sent.
        packets: u64,
        /// How many of them were lost.
        lost: u64,
    },
    /// A burst has at least one packet, and one that arrived lies between two of them.
    #[error("{bursts} bursts, of {lost} lost and {received} received packets")]
    Bursts {
        /// How many packets were lost.
        lost: u64,
        /// How many packets arrived.
        received: u64,
        /// In how many bursts they were lost.
        bursts: u64,
    },
}

impl Counts {
    /// Of `packets` that were sent `lost` did not arrive, in `bursts` runs of one or more.
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

    /// How many packets were sent.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// How many of them were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// In how many runs of one or more they were lost.
    #[must_use]
    pub fn bursts(&self) -> u64 {
        self.bursts
    }

    /// How many arrived.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.packets - self.lost
    }

    /// The share that was lost; zero if nothing was sent.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }

    /// As many packets at most, with the same share of losses and bursts.
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

    /// Without a part of these.
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

    /// Of more packets than there are numbers the rest is not counted.
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
