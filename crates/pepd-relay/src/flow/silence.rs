//! Detection of servers that do not answer over IPv6.
//!
//! Many networks have IPv6 routes that lead nowhere. A host notices an unanswered SYN and falls
//! back to IPv4 (RFC 8305); a SYN that pepd answers at once defeats this. So while no server
//! answers over IPv6, pepd passes its SYNs to the kernel until one does.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_sys::leg::Family;
use tokio::sync::watch;

/// Minimum time without an answer from any server of the family: the kernel has sent two SYNs by
/// then, and a satellite path takes 0.6 s.
const PATIENCE_MIN: Duration = Duration::from_secs(3);
/// Round trips of the link without an answer, if that is longer.
const ROUND_TRIPS: u32 = 3;

/// Maximum duration of a false alarm, caused by one dead server or by a host that dials dead
/// addresses. The next false alarm needs twice the patience, up to [this number of
/// doublings](DOUBLINGS_MAX).
const FALSE_ALARM: Duration = Duration::from_secs(60);
const DOUBLINGS_MAX: u32 = 4;

/// Recent answers and silences of servers.
#[derive(Debug)]
pub struct Silence {
    began: Instant,
    patience: Duration,
    doublings: AtomicU32,
    families: [Answers; 2],
    /// Set while IPv6 SYNs pass.
    passing: Mutex<Passing>,
    passes: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Passing {
    began: Option<Instant>,
    /// Answers counted by the rules when passing began.
    counted: Option<u64>,
}

#[derive(Debug, Default)]
struct Answers {
    /// Time of the last one since the start, in ms; 0 before the first.
    last: AtomicU64,
    silent: AtomicBool,
}

impl Default for Silence {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Silence {
    /// Creates the initial state. `rtt` is the round trip configured for the link.
    pub fn new(rtt: Option<Duration>) -> Self {
        let patience = rtt.map_or(PATIENCE_MIN, |rtt| PATIENCE_MIN.max(ROUND_TRIPS * rtt));
        Self {
            began: Instant::now(),
            patience,
            doublings: AtomicU32::new(0),
            families: Default::default(),
            passing: Mutex::default(),
            passes: watch::Sender::new(false),
        }
    }

    /// Returns the time after which an unanswered server counts as silent.
    pub fn patience(&self) -> Duration {
        self.patience * 2_u32.pow(self.doublings.load(Relaxed))
    }

    /// Notes an answer of a server.
    pub fn on_answer(&self, family: Family) {
        self.on_answer_at(family, Instant::now());
    }

    fn on_answer_at(&self, family: Family, now: Instant) {
        let answers = &self.families[family as usize];
        answers.last.store(self.ms(now), Relaxed);
        if answers.silent.swap(false, Relaxed) {
            self.update();
        }
    }

    /// Notes that a server contacted at `since` has not answered for its
    /// [patience](Self::patience).
    pub fn on_silence(&self, family: Family, since: Instant) {
        let answers = &self.families[family as usize];
        let has_answered = answers.last.load(Relaxed) > self.ms(since);
        if !has_answered && !answers.silent.swap(true, Relaxed) {
            self.update();
        }
    }

    /// Returns a receiver for whether new IPv6 flows pass, and for its changes.
    pub fn passes(&self) -> watch::Receiver<bool> {
        self.passes.subscribe()
    }

    /// Takes the count of IPv6 SYN-ACKs seen by the rules. An increase while IPv6 SYNs pass shows
    /// that servers answer.
    pub fn on_count(&self, count: u64) {
        if !*self.passes.borrow() {
            return;
        }
        let mut passing = self.passing.lock();
        // Reinstalled rules count from 0 again.
        let before = passing.counted.replace(count).unwrap_or(count);
        let has_grown = count > before;
        drop(passing);
        if has_grown {
            self.on_answer(Family::V6);
        }
    }

    /// Updates the decision. If nothing answers over IPv4 either, the link is down, and IPv6 is not
    /// to blame.
    fn update(&self) {
        let [v4, v6] = &self.families;
        let passes = v6.silent.load(Relaxed) && !v4.silent.load(Relaxed);
        self.passes.send_if_modified(|sent| {
            let is_change = *sent != passes;
            if is_change {
                // Sent under the lock, so that no earlier count is taken for a new one.
                self.on_change(passes, Instant::now());
            }
            *sent = passes;
            is_change
        });
    }

    fn on_change(&self, passes: bool, now: Instant) {
        let mut passing = self.passing.lock();
        if let Some(began) = passing.began.take() {
            let doublings = match now.saturating_duration_since(began) < FALSE_ALARM {
                true => (self.doublings.load(Relaxed) + 1).min(DOUBLINGS_MAX),
                false => 0,
            };
            self.doublings.store(doublings, Relaxed);
        }
        *passing = Passing {
            began: passes.then_some(now),
            counted: None,
        };
    }

    fn ms(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.began).as_millis();
        u64::try_from(passed).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(silence: &Silence) -> bool {
        *silence.passes().borrow()
    }

    #[test]
    fn ipv6_passes_while_none_of_its_servers_answers() {
        let silence = Silence::default();
        let at = |ms| silence.began + Duration::from_millis(ms);
        silence.on_answer_at(Family::V6, at(500));
        silence.on_silence(Family::V6, at(400));
        assert!(!passes(&silence), "another server has answered since");
        silence.on_silence(Family::V6, at(600));
        assert!(passes(&silence));
        // The first count is the baseline.
        for (count, still) in [(7, true), (7, true), (0, true), (1, false)] {
            silence.on_count(count);
            assert_eq!(passes(&silence), still, "{count}");
        }
        silence.on_silence(Family::V6, at(3_600_000));
        silence.on_count(1);
        assert!(passes(&silence), "answers counted before do not count");
        silence.on_answer(Family::V6);
        assert!(!passes(&silence));
    }

    #[test]
    fn over_a_slow_link_servers_have_more_time() {
        let patience = |rtt| Silence::new(Some(Duration::from_millis(rtt))).patience();
        assert_eq!(patience(600), PATIENCE_MIN);
        assert_eq!(patience(10_000), Duration::from_secs(30));
    }

    #[test]
    fn false_alarms_make_it_patient() {
        let silence = Silence::default();
        let at = |s| silence.began + Duration::from_secs(s);
        for (now, passes, patience) in [
            (0, true, 3),
            (2, false, 6),
            (10, true, 6),
            (20, false, 12),
            (30, true, 12),
            (120, false, 3),
        ] {
            silence.on_change(passes, at(now));
            assert_eq!(silence.patience(), Duration::from_secs(patience), "{now}");
        }
        for now in 0..40 {
            silence.on_change(now % 2 == 0, at(200 + now));
        }
        assert_eq!(silence.patience(), Duration::from_secs(48));
    }

    #[test]
    fn a_link_that_is_down_is_no_fault_of_ipv6() {
        let silence = Silence::default();
        let later = Instant::now() + Duration::from_secs(1);
        silence.on_silence(Family::V4, later);
        silence.on_silence(Family::V6, later);
        assert!(!passes(&silence));
        silence.on_answer(Family::V4);
        assert!(passes(&silence), "only IPv4 answers again");
    }
}
