//! Lookups of a name: times of queries, and results worth a log line.

use std::time::Duration;

/// Minimum time between two queries.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Maximum time between two queries. Queries to a resolver across a link that is down are lost.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time after which pepd reports failed lookups of a name whose addresses are known from before.
/// Failures in a short outage are no news.
const FAILS_FOR: Duration = Duration::from_secs(60);

/// Lookups of one name. Times are of one clock that never goes back.
#[derive(Debug, Default)]
pub struct Lookups {
    asked: Option<Duration>,
    /// Time from the last query to the next.
    pause: Duration,
    /// True after the first answer.
    known: bool,
    /// Time of the first unanswered query.
    failing: Option<Duration>,
    reported: bool,
}

impl Lookups {
    /// Returns whether to query now, and counts that as a query. `heard` means that the host of
    /// that name is heard, so that no query is needed. The first query of a silence is immediate.
    /// Pauses then double from 10 s to 60 s; before the first answer they are 5 s.
    pub fn is_due(&mut self, now: Duration, heard: bool) -> bool {
        if heard {
            // The next silence starts afresh.
            self.pause = PAUSE_MIN;
            return false;
        }
        if self.asked.is_some_and(|asked| now < asked + self.pause) {
            return false;
        }
        let pause = if self.known {
            self.pause * 2
        } else {
            PAUSE_MIN
        };
        self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
        self.asked = Some(now);
        true
    }

    /// Records an answer with an address. Returns whether to log it, which is so when a failure was
    /// logged before.
    pub fn on_answer(&mut self) -> bool {
        self.known = true;
        self.failing = None;
        std::mem::take(&mut self.reported)
    }

    /// Records a failed query. Returns whether to log it: once until there is an answer; where
    /// addresses are known, only after a minute of failures.
    pub fn on_failure(&mut self, now: Duration) -> bool {
        let since = *self.failing.get_or_insert(now);
        let lasts = !self.known || since + FAILS_FOR <= now;
        lasts && !std::mem::replace(&mut self.reported, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Returns the seconds from `from` to `until` with a query. Each query is answered, or none is.
    fn asks(
        lookups: &mut Lookups,
        (from, until): (u32, u32),
        heard: bool,
        answer: bool,
    ) -> Vec<u32> {
        let due = |second: &u32| {
            let due = lookups.is_due(*second * S, heard);
            if due && answer {
                lookups.on_answer();
            } else if due {
                lookups.on_failure(*second * S);
            }
            due
        };
        (from..until).filter(due).collect()
    }

    #[test]
    fn without_an_address_it_asks_every_five_seconds() {
        let mut lookups = Lookups::default();
        let asked = asks(&mut lookups, (100, 120), false, false);
        assert_eq!(asked, [100, 105, 110, 115]);
    }

    #[test]
    fn in_a_silence_it_asks_at_once_and_then_more_and_more_seldom() {
        let mut lookups = Lookups::default();
        assert_eq!(asks(&mut lookups, (0, 3), false, true), [0]);
        assert_eq!(asks(&mut lookups, (3, 1000), true, true), [0; 0]);
        let asked = asks(&mut lookups, (1000, 1300), false, true);
        assert_eq!(asked, [1000, 1010, 1030, 1070, 1130, 1190, 1250]);
        let later = asks(&mut lookups, (1300, 1400), true, true);
        assert_eq!(later, [0; 0]);
        // Answered or not: the addresses are known.
        let asked = asks(&mut lookups, (1400, 1500), false, false);
        assert_eq!(asked, [1400, 1410, 1430, 1470]);
    }

    #[test]
    fn a_peer_that_comes_and_goes_is_asked_for_every_five_seconds_at_most() {
        let mut lookups = Lookups::default();
        let due = |second: &u32| {
            let due = lookups.is_due(*second * S, second.is_multiple_of(2));
            if due {
                lookups.on_answer();
            }
            due
        };
        let asked: Vec<_> = (0..60).filter(due).collect();
        assert!(asked.len() >= 8, "{asked:?}");
        assert!(
            asked.windows(2).all(|pair| pair[1] >= pair[0] + 5),
            "{asked:?}"
        );
    }

    #[test]
    fn an_unresolved_name_is_reported_at_once_and_once() {
        let mut lookups = Lookups::default();
        assert!(lookups.on_failure(S));
        assert!(!lookups.on_failure(1000 * S));
        assert!(lookups.on_answer());
        assert!(!lookups.on_answer());
    }

    #[test]
    fn a_known_name_is_reported_after_a_minute_of_failures() {
        let mut lookups = Lookups::default();
        assert!(!lookups.on_answer());
        assert!(!lookups.on_failure(10 * S));
        assert!(!lookups.on_failure(69 * S));
        assert!(!lookups.on_answer(), "no failure was logged");
        assert!(!lookups.on_failure(100 * S));
        assert!(lookups.on_failure(160 * S));
        assert!(!lookups.on_failure(300 * S));
        assert!(lookups.on_answer());
    }
}
