//! What two ends tell each other of themselves.

use std::time::Duration;

use crate::wire::{ABILITIES, Abilities, Reader};

/// How often it is said, until the peer has said that it knows.
const AGAIN: Duration = Duration::from_secs(1);
/// A rate that has changed is told no more often than this.
const RATE_AGAIN: Duration = Duration::from_secs(5);
/// By how much it has to have changed.
const RATE_STEP: f64 = 1.25;
/// How often it is told, as what is told may be lost.
const RATE_TIMES: u8 = 2;

/// What was said, and what was heard.
#[derive(Debug, Default)]
pub(super) struct Introduction {
    /// What the peer understands, if it has said so.
    pub abilities: Option<u32>,
    /// How fast the peer sends, in bits a second, if it knows and has said so.
    pub peer_rate: Option<u64>,
    /// The peer knows what we understand.
    heard: bool,
    /// When it is to be said again.
    due: Option<Duration>,
    /// Our rate as it was last told, when, and how often.
    told: (u64, Duration, u8),
    /// Our rate now.
    rate: u64,
}

impl Introduction {
    /// Of nobody, who speaks at that time.
    pub fn new(now: Duration) -> Self {
        Self {
            due: Some(now),
            ..Self::default()
        }
    }

    /// When there is something to be said.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Our rate, which the peer cannot see: by the ratio of both it knows how much slower the way back is.
    pub fn set_rate(&mut self, now: Duration, rate: u64) {
        self.rate = rate;
        let (told, at, _) = self.told;
        let ratio = rate.max(1) as f64 / told.max(1) as f64;
        let is_news = !(1.0 / RATE_STEP..=RATE_STEP).contains(&ratio);
        if is_news && self.abilities.is_some() && now >= at + RATE_AGAIN {
            self.told = (rate, now, 0);
            self.due = Some(self.due.map_or(now, |due| due.min(now)));
        }
    }

    /// Writes it to the end of `out`.
    pub fn write(&mut self, now: Duration, out: &mut Vec<u8>) {
        let (_, _, times) = self.told;
        self.told = (self.rate, now, times.saturating_add(1));
        let knows = self.heard && self.abilities.is_some() && self.told.2 >= RATE_TIMES;
        self.due = (!knows).then_some(now + AGAIN);
        out.push(ABILITIES);
        out.extend_from_slice(&Abilities::ALL.to_be_bytes());
        out.push(self.abilities.is_some().into());
        out.extend_from_slice(&self.rate.to_be_bytes());
    }

    /// Takes the peer's. Whether it says anything new; `None` if it makes no sense. Older ones do not tell a rate.
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
        } else if self.told.2 >= RATE_TIMES {
            self.due = None;
        }
        Some(news)
    }
}
