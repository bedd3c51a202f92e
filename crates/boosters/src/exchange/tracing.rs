//! Trace events of boosters: the growth of each counter, with its time.

use std::time::Duration;

use trace::{Event, Trace};

use crate::chain::{Chain, Receiver};

/// States among the counters, which also fall.
const STATES: [&str; 4] = ["on", "kept_bytes", "connections", "held"];

/// Counters of all boosters at the last call.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub trace: Trace,
    known: Vec<(Place, u64)>,
}

/// Position of a counter.
type Place = (&'static str, u64, &'static str, &'static str);

impl Counted {
    /// Pushes an event for each counter that has grown since the last call.
    pub fn note<'a>(
        &mut self,
        now: Duration,
        chains: &[Chain],
        receivers: impl Iterator<Item = (u8, &'a Receiver)>,
    ) {
        if !self.trace.is_on() {
            self.known.clear();
            return;
        }
        self.trace.at(now);
        let mut counted = Vec::new();
        for (index, chain) in chains.iter().enumerate() {
            chain.counters(&mut |booster, counter, value| {
                counted.push((("sender", index as u64, booster, counter), value));
            });
        }
        for (index, receiver) in receivers {
            receiver.counters(&mut |booster, counter, value| {
                counted.push((("receiver", index.into(), booster, counter), value));
            });
        }
        // Receivers appear as the peer's chains do; the first look only records their counters.
        let before = std::mem::replace(&mut self.known, counted);
        if before.is_empty() {
            return;
        }
        let mut before = before.into_iter().peekable();
        for (place, value) in &self.known {
            let known = before.next_if(|(known, _)| known == place);
            let by = value.saturating_sub(known.map_or(0, |(_, known)| known));
            if by > 0 && !STATES.contains(&place.3) {
                let (place, chain, booster, counter) = *place;
                self.trace.push(|| Event::Booster {
                    place,
                    chain,
                    booster,
                    counter,
                    by,
                });
            }
        }
    }
}
