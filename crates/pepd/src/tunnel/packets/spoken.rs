//! What was put onto LANs for peers a moment ago: it is not carried back, if it comes in by another LAN.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// A bridge between LANs, or a router of groups behind them, gives back what it gets within less.
const MOMENT: Duration = Duration::from_secs(10);
/// Speakers of groups that are known at a time. One beyond them is not known: its packets' hops end what goes round.
const SPEAKERS_MAX: usize = 1024;

/// Speakers behind peers, by the groups that they speak to.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    last: BTreeMap<(IpAddr, IpAddr), Duration>,
}

impl Spoken {
    /// A packet between these goes onto LANs now.
    pub fn note(&mut self, now: Duration, between: (IpAddr, IpAddr)) {
        if let Some(last) = self.last.get_mut(&between) {
            *last = now;
            return;
        }
        if self.last.len() >= SPEAKERS_MAX {
            self.last.retain(|_, last| now < *last + MOMENT);
        }
        if self.last.len() < SPEAKERS_MAX {
            self.last.insert(between, now);
        }
    }

    /// Whether what a LAN brings between these may be what came from a peer.
    pub fn was_here(&self, now: Duration, between: (IpAddr, IpAddr)) -> bool {
        let last = self.last.get(&between);
        last.is_some_and(|last| now < *last + MOMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(number: u32) -> (IpAddr, IpAddr) {
        let from = IpAddr::V4((0x0a00_0000 + number).into());
        (from, "239.1.2.3".parse().expect("a group"))
    }

    #[test]
    fn a_speaker_is_known_for_a_moment_and_no_more_of_them_than_there_is_room_for() {
        let (mut spoken, second) = (Spoken::default(), Duration::from_secs(1));
        spoken.note(second, between(1));
        assert!(spoken.was_here(10 * second, between(1)));
        assert!(!spoken.was_here(10 * second, between(2)));
        assert!(!spoken.was_here(11 * second, between(1)));
        for number in 0..5000 {
            spoken.note(12 * second, between(number));
        }
        assert_eq!(spoken.last.len(), SPEAKERS_MAX);
        assert!(spoken.was_here(13 * second, between(7)));
        // Those that are silent give their places to others.
        spoken.note(30 * second, between(5000));
        assert_eq!(spoken.last.len(), 1);
        assert!(spoken.was_here(30 * second, between(5000)));
    }
}
