//! State of the link for later processes.

use std::{net::IpAddr, time::Duration};

use super::name_hash;
use crate::{
    arena::{Part, Words},
    outage::{Latest, LinkMonitor, Outage, Past, Source},
};

/// [`name_hash`] of the gateway that has answered; 0 for none.
const GATEWAY: usize = 0;
/// Number of outages so far.
const COUNT: usize = 8;
const OUTAGES: usize = 16;
const OUTAGE_BYTES: usize = 32;

/// Offsets within an outage.
const BEGAN: usize = 0;
const SINCE: usize = 8;
const BEFORE: usize = 16;
const LASTED: usize = 24;

/// Bits of the time; the source is above.
const TIME_BITS: u32 = 56;

/// Bytes of the whole part.
pub(super) const KNOWN_BYTES: usize = OUTAGES + OUTAGE_BYTES * LinkMonitor::REMEMBERED;

/// State of the link in shared memory: words, where zero means unknown.
///
/// ```text
///   0  hash of the gateway that has answered | 8 outages so far
///  16  of the last 32 outages, number n at n % 32:
///      start (Unix time) and source | start (since boot)
///      | duration of earlier outages | duration, and 1
/// ```
///
/// All times are in milliseconds. There is one writer. The state is valid after every single store,
/// except for the outage that is being overwritten.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a, W> {
    words: Part<'a, W>,
}

impl<'a, W: Words> Known<'a, W> {
    /// Returns the words that start at this offset.
    pub(super) fn new(words: &'a W, start: usize) -> Self {
        let words = Part { words, start };
        Self { words }
    }

    /// Records that the gateway has answered.
    pub fn set_gateway(&self, gateway: IpAddr) {
        let hash = name_hash(&gateway.to_string());
        if self.words.load(GATEWAY) != hash {
            self.words.store(GATEWAY, hash);
        }
    }

    /// Reports whether that gateway has ever answered.
    pub fn gateway_answers(&self, gateway: IpAddr) -> bool {
        self.words.load(GATEWAY) == name_hash(&gateway.to_string())
    }

    /// Records the last outage, at its start and at its end. `since_boot` is by the clock that
    /// continues from process to process.
    pub fn write(&self, latest: &Latest, since_boot: Duration) {
        let Latest { number, outage, .. } = latest;
        let at = Self::place(*number);
        if self.words.load(COUNT) < *number {
            if let Some(lasted) = latest.previous {
                self.words
                    .store(Self::place(number - 1) + LASTED, ms(lasted) + 1);
            }
            let began = ms(outage.began) | (outage.by as u64) << TIME_BITS;
            self.words.store(at + LASTED, 0);
            self.words.store(at + BEGAN, began);
            self.words
                .store(at + SINCE, ms(since_boot.saturating_sub(latest.age)));
            self.words.store(at + BEFORE, ms(latest.before));
            self.words.store(COUNT, *number);
        }
        if let Some(lasted) = outage.lasted {
            self.words.store(at + LASTED, ms(lasted) + 1);
        }
    }

    /// Returns the recorded state.
    pub fn read(&self, since_boot: Duration) -> Past {
        let count = self.words.load(COUNT);
        let first = (count + 1)
            .saturating_sub(LinkMonitor::REMEMBERED as u64)
            .max(1);
        let mut past = Past {
            count,
            ..Past::default()
        };
        for number in first..=count {
            let at = Self::place(number);
            let began = self.words.load(at + BEGAN);
            let lasted = self.words.load(at + LASTED).checked_sub(1);
            let lasted = lasted.map(Duration::from_millis);
            let Some(by) = Source::from_code(began >> TIME_BITS) else {
                continue;
            };
            if number == count {
                let since = Duration::from_millis(self.words.load(at + SINCE));
                let before = Duration::from_millis(self.words.load(at + BEFORE));
                let age = since_boot.saturating_sub(since);
                past.lasting = lasted.is_none().then_some(age);
                past.ended = lasted.map(|lasted| age.saturating_sub(lasted));
                past.down = before + lasted.unwrap_or_default();
            }
            // An outage without a recorded end that another one followed is unusable.
            if lasted.is_some() || number == count {
                let began = Duration::from_millis(began & ((1 << TIME_BITS) - 1));
                past.outages.push(Outage { began, by, lasted });
            }
        }
        past
    }

    fn place(number: u64) -> usize {
        OUTAGES + OUTAGE_BYTES * (number % LinkMonitor::REMEMBERED as u64) as usize
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .min((1 << TIME_BITS) - 1)
}
