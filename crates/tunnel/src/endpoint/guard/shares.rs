//! Equal shares of a rate for all active sources.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// Sources that are counted separately. One beyond them counts as new each time.
const SOURCES: usize = 4096;

/// Time within which active sources are counted. A source whose turn has come for as long is new.
const EPOCH: Duration = Duration::from_secs(16);

/// Turns that a source may take at once.
const BURST: u32 = 3;

/// Turn of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was admitted lately.
    New,
    /// The turn has come.
    Due,
    /// The turn has not come.
    Early,
}

#[derive(Debug)]
struct Source {
    /// Epoch of its last visit.
    epoch: u64,
    /// Time of its next turn; `None` if nothing was admitted.
    next: Option<Duration>,
}

/// Turns of sources: each gets the same share of the rate.
#[derive(Debug)]
pub struct Shares {
    /// Time between two turns of the only source.
    interval: Duration,
    sources: BTreeMap<IpAddr, Source>,
    epoch: u64,
    /// Sources that were active in the present epoch, and in the one before.
    active: [u32; 2],
}

impl Shares {
    /// Divides four fifths of a rate per second: the rest keeps turns punctual.
    pub fn new(per_second: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) * 5 / 4 / per_second.max(1),
            sources: BTreeMap::new(),
            epoch: 0,
            active: [0; 2],
        }
    }

    /// Counts a source as active. Returns whether it is its turn.
    pub fn visit(&mut self, now: Duration, source: IpAddr) -> Standing {
        self.turn(now);
        let (epoch, is_full) = (self.epoch, self.sources.len() >= SOURCES);
        let Some(found) = self.sources.get_mut(&source) else {
            if !is_full {
                self.sources.insert(source, Source { epoch, next: None });
                self.active[0] += 1;
            }
            return Standing::New;
        };
        if found.epoch != epoch {
            found.epoch = epoch;
            self.active[0] += 1;
        }
        let Some(next) = found.next else {
            return Standing::New;
        };
        if next + EPOCH <= now {
            Standing::New
        } else if next <= now + self.tolerance() {
            Standing::Due
        } else {
            Standing::Early
        }
    }

    /// Charges a source for a turn.
    pub fn pay(&mut self, now: Duration, source: IpAddr) {
        let share = self.share();
        if let Some(found) = self.sources.get_mut(&source) {
            found.next = Some(found.next.unwrap_or_default().max(now) + share);
        }
    }

    /// Time between two turns of one source.
    fn share(&self) -> Duration {
        self.interval * self.active[0].max(self.active[1]).max(1)
    }

    fn tolerance(&self) -> Duration {
        let second = Duration::from_secs(1).saturating_sub(self.share());
        second.max(self.share() * (BURST - 1))
    }

    /// Begins the next epoch, if it is time, and forgets sources of the past.
    fn turn(&mut self, now: Duration) {
        let epoch = now.as_secs() / EPOCH.as_secs();
        if epoch == self.epoch {
            return;
        }
        let before = if epoch == self.epoch + 1 {
            self.active[0]
        } else {
            0
        };
        (self.epoch, self.active) = (epoch, [0, before]);
        self.sources.retain(|_, source| {
            let is_charged = source.next.is_some_and(|next| next + EPOCH > now);
            is_charged || source.epoch + 1 >= epoch
        });
    }
}
