//! Exchange of abilities and rates between two ends.

use std::time::Duration;

use crate::wire::{ABILITIES, Abilities, Reader};

/// Interval of announcements until the peer has acknowledged one.
const AGAIN: Duration = Duration::from_secs(1);
/// Minimum interval between announcements of a changed rate.
const RATE_AGAIN: Duration = Duration::from_secs(5);
/// Minimum factor of a change that is announced.
const RATE_STEP: f64 = 1.25;
/// Number of announcements of a rate, since one may be lost.
const RATE_TIMES: u8 = 2;

/// State of the announcements in both directions.
#[derive(Debug, Default)]
pub(super) struct Introduction {
    /// Abilities of the peer, if announced.
    pub abilities: Option<u32>,
    /// Sending rate of the peer in bit/s, if it knows and has announced it.
    pub peer_rate: Option<u64>,
    /// True if the peer knows the local abilities.
    heard: bool,
    /// Time of the next announcement.
    due: Option<Duration>,
    /// Local rate as last announced, its time, and the number of announcements.
    reported: (u64, Duration, u8),
    /// Current local rate.
    rate: u64,
}

impl Introduction {
    /// Creates the state without announcements; the first one is due `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            due: Some(now),
            ..Self::default()
        }
    }

    /// Returns when the next announcement is due.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Sets the local rate, which the peer cannot measure. From the ratio of both rates it knows
    /// how slow the return path is.
    pub fn set_rate(&mut self, now: Duration, rate: u64) {
        self.rate = rate;
        let (reported, at, _) = self.reported;
        let ratio = rate.max(1) as f64 / reported.max(1) as f64;
        let is_news = !(1.0 / RATE_STEP..=RATE_STEP).contains(&ratio);
        if is_news && self.abilities.is_some() && now >= at + RATE_AGAIN {
            self.reported = (rate, now, 0);
            self.due = Some(self.due.map_or(now, |due| due.min(now)));
        }
    }

    /// Appends the announcement to `out`.
    pub fn write(&mut self, now: Duration, out: &mut Vec<u8>) {
        let (_, _, times) = self.reported;
        self.reported = (self.rate, now, times.saturating_add(1));
        let knows = self.heard && self.abilities.is_some() && self.reported.2 >= RATE_TIMES;
        self.due = (!knows).then_some(now + AGAIN);
        out.push(ABILITIES);
        out.extend_from_slice(&Abilities::ALL.to_be_bytes());
        out.push(self.abilities.is_some().into());
        out.extend_from_slice(&self.rate.to_be_bytes());
    }

    /// Reads the peer's announcement. Returns whether it contains news; `None` if it is malformed.
    /// Older peers announce no rate.
    pub fn read(&mut self, now: Duration, message: &[u8]) -> Option<bool> {
        let mut reader = Reader(message);
        let (kind, abilities, heard) = (reader.u8()?, reader.u32()?, reader.u8()?);
        (kind == ABILITIES).then_some(())?;
        let rate = reader.0.first_chunk().copied().map(u64::from_be_bytes);
        let rate = rate.filter(|rate| *rate > 0);
        let is_new = self.abilities != Some(abilities);
        let news = is_new || self.peer_rate != rate;
        (self.abilities, self.peer_rate) = (Some(abilities), rate);
        self.heard = heard & 1 != 0;
        if is_new || !self.heard {
            self.due = Some(now);
        } else if self.reported.2 >= RATE_TIMES {
            self.due = None;
        }
        Some(news)
    }
}
