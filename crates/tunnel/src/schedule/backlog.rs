//! Detection of streams that fill the link.

use std::time::Duration;

/// Round trips for which a full stream must stay calm before it counts as short, at first and at
/// most. Doubles each time the stream fills the link again soon.
const CALM_ROUNDS: (u32, u32) = (1, 64);
/// A stream is calm while its bytes wait no longer than this part of a round trip.
const CALM_PARTS: u32 = 4;
/// "Soon" is within this many times the calm period.
const SOON: u32 = 4;

/// Backlog of a stream: the time for which its bytes wait to be sent.
///
/// ```text
///             bytes wait for a round trip, never none
///   +-------+ --------------------------------------------> +------+
///   | short |                                               | full |
///   +-------+ <-------------------------------------------- +------+
///             nothing to send for a round trip, or for some
///             round trips never much for long
/// ```
///
/// While bytes wait for longer than a round trip, restoring them by FEC instead of retransmission
/// brings no gain, and the repair packets delay all other bytes. A stream that fills the link only
/// with FEC would alternate between both states, so it is tried more and more rarely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Start of the current period with data to send.
    run: Option<Duration>,
    /// Time at which the stream ran out of data, if it has none.
    drained: Option<Duration>,
    full: Option<Full>,
    /// Time at which the stream was last full, and the round trips required then.
    left: Option<(Duration, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    /// Start of the current calm period.
    calm: Duration,
    /// Round trips for which the stream must stay calm.
    rounds: u32,
}

impl Backlog {
    /// Returns true if the stream fills the link.
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Records a turn; `more` is true if the stream has more to send, and may.
    pub fn on_turn(&mut self, now: Duration, rtt: Duration, more: bool) {
        let idle = self.drained.take().map(|at| now.saturating_sub(at));
        if idle.is_some_and(|idle| idle > rtt) {
            *self = Self::default();
        }
        let run = now.saturating_sub(*self.run.get_or_insert(now));
        self.judge(now, rtt, run);
        if !more {
            self.run = None;
            self.drained = Some(now);
        }
    }

    fn judge(&mut self, now: Duration, rtt: Duration, run: Duration) {
        let Some(full) = &mut self.full else {
            if run > rtt {
                let rounds = self.rounds(now, rtt);
                self.full = Some(Full { calm: now, rounds });
            }
            return;
        };
        if run * CALM_PARTS > rtt {
            full.calm = now;
        } else if now.saturating_sub(full.calm) > rtt * full.rounds {
            self.left = Some((now, full.rounds));
            self.full = None;
        }
    }

    /// Returns the round trips of calm required if the stream becomes full now.
    fn rounds(&self, now: Duration, rtt: Duration) -> u32 {
        match self.left {
            Some((at, rounds)) if now.saturating_sub(at) <= rtt * (rounds * SOON) => {
                (rounds * 2).min(CALM_ROUNDS.1)
            }
            _ => CALM_ROUNDS.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = ms(100);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Takes a turn each millisecond; `more` returns whether data remains. Returns how often the
    /// stream became full.
    fn turns(
        backlog: &mut Backlog,
        from: u64,
        until: u64,
        mut more: impl FnMut(&Backlog, u64) -> bool,
    ) -> u32 {
        (from..until)
            .map(|at| {
                let was = backlog.is_full();
                let more = more(backlog, at);
                backlog.on_turn(ms(at), RTT, more);
                u32::from(backlog.is_full() && !was)
            })
            .sum()
    }

    #[test]
    fn what_waits_for_a_round_trip_is_full() {
        let mut backlog = Backlog::default();
        turns(&mut backlog, 0, 101, |_, _| true);
        assert!(!backlog.is_full());
        turns(&mut backlog, 101, 102, |_, _| true);
        assert!(backlog.is_full());
    }

    #[test]
    fn what_has_nothing_left_now_and_then_is_not() {
        let mut backlog = Backlog::default();
        assert_eq!(turns(&mut backlog, 0, 10_000, |_, at| at % 99 != 0), 0);
    }

    #[test]
    fn a_pause_resets_the_state_and_so_does_calm() {
        let mut backlog = Backlog::default();
        turns(&mut backlog, 0, 300, |_, at| at < 299);
        assert!(backlog.is_full());
        backlog.on_turn(ms(400), RTT, true);
        assert!(!backlog.is_full(), "after a pause");
        turns(&mut backlog, 401, 700, |_, _| true);
        turns(&mut backlog, 700, 799, |_, at| at % 20 != 0);
        assert!(backlog.is_full(), "not calm for long enough");
        turns(&mut backlog, 799, 900, |_, at| at % 20 != 0);
        assert!(!backlog.is_full(), "calm");
    }

    #[test]
    fn a_stream_that_only_fec_makes_full_is_tried_more_and_more_rarely() {
        let mut backlog = Backlog::default();
        // With FEC bytes wait, without it they do not.
        let fills = turns(&mut backlog, 0, 60_000, |backlog, at| {
            !backlog.is_full() || at % 10 != 0
        });
        assert!((5..20).contains(&fills), "{fills} times in 600 round trips");
    }
}
