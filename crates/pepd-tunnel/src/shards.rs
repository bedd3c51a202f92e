//! The threads of the tunnels: each has a part of the peers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

/// Latest sign of life of the peers that have sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    /// There is no session.
    Nothing,
    /// All peers are silent.
    Silent,
    /// Time, on the local clock, at which one was heard.
    At(Duration),
}

impl Heard {
    fn to_u64(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Silent => 1,
            Self::At(at) => u64::try_from(at.as_micros()).unwrap_or(u64::MAX).max(2),
        }
    }

    fn from_u64(number: u64) -> Self {
        match number {
            0 => Self::Nothing,
            1 => Self::Silent,
            at => Self::At(Duration::from_micros(at)),
        }
    }
}

/// State that the threads share.
#[derive(Debug)]
struct Common {
    /// Start of the local clock: times of different threads compare.
    base: Instant,
    /// Reports of the threads.
    heard: Box<[AtomicU64]>,
}

/// The place of one thread among all.
#[derive(Debug)]
pub(crate) struct Member {
    number: usize,
    common: Arc<Common>,
}

impl Member {
    /// Returns the places of `count` threads.
    pub(crate) fn all(count: usize) -> Vec<Self> {
        let common = Arc::new(Common {
            base: Instant::now(),
            heard: (0..count).map(|_| AtomicU64::new(0)).collect(),
        });
        let member = |number| Self {
            number,
            common: Arc::clone(&common),
        };
        (0..count).map(member).collect()
    }

    /// Returns the place of the only thread.
    #[cfg(test)]
    pub(crate) fn alone() -> Self {
        Self::all(1).remove(0)
    }

    /// Returns the start of the local clock.
    pub(crate) fn base(&self) -> Instant {
        self.common.base
    }

    /// Reports when peers of this thread were last heard. Returns the latest report of all.
    pub(crate) fn latest(&self, here: Heard) -> Heard {
        self.common.heard[self.number].store(here.to_u64(), Relaxed);
        let all = self.common.heard.iter().map(|heard| heard.load(Relaxed));
        Heard::from_u64(all.max().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_sign_of_life_of_all_threads_counts() {
        let [one, other] = Member::all(2).try_into().expect("two");
        let at = |seconds| Heard::At(Duration::from_secs(seconds));
        assert_eq!(one.latest(Heard::Nothing), Heard::Nothing);
        assert_eq!(other.latest(Heard::Silent), Heard::Silent);
        assert_eq!(one.latest(Heard::Nothing), Heard::Silent);
        assert_eq!(one.latest(at(3)), at(3));
        assert_eq!(other.latest(at(2)), at(3));
        assert_eq!(one.latest(Heard::Silent), at(2));
        assert_eq!(other.latest(Heard::Nothing), Heard::Silent);
    }
}
