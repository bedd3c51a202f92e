//! How a connection gets going again once its link is back, when nobody has said that it is.
//!
//! TCP alone takes its time: it sends again only when its timer says so, which may be two minutes away. So as long as
//! nothing is acknowledged a probe, which is an empty segment, asks the far end now and then how far it has got.
//!
//! What the answer acknowledges first had arrived before the outage though its acknowledgement had not. TCP then takes
//! its timeouts for mistakes (RFC 3522) and all else for still under way, and finds out when its timer goes off once
//! more. That cannot be hastened beyond a cap on the timer of 1 s, the least that Linux takes, which is for
//! connections that are cared for.

use std::time::Duration;

/// What a connection's kernel says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vitals {
    /// Since something came from the far end that acknowledges, new bytes or not.
    pub silent: Duration,
    /// The round trip.
    pub rtt: Duration,
    /// Bytes that the far end has acknowledged, ever.
    pub acked: u64,
    /// Packets of which it is not known that they have arrived.
    pub unacked: u32,
    /// True where bytes wait to be sent though none are under way: the far end's window is closed.
    pub waits_for_window: bool,
}

impl Vitals {
    /// Beyond two round trips, an acknowledgement may be late for so long.
    const LATE: Duration = Duration::from_millis(400);

    /// Whether it may be that its link is away, where it was just the same a moment ago.
    pub fn seem_stuck(&self) -> bool {
        self.unacked > 0 && self.silent >= 2 * self.rtt + Self::LATE
    }
}

/// What to do for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Nothing now.
    Wait,
    /// Make it send a probe now.
    Probe,
    /// No more: it goes on by itself, or is over.
    Leave,
}

/// A connection that was found to be stuck.
#[derive(Debug, Clone, Copy)]
pub struct Revival {
    /// When it was last looked at, and what was acknowledged then.
    looked: Duration,
    acked: u64,
    /// When it was last made to send.
    probed: Option<Duration>,
    /// When something was heard, for the first time since it was stuck.
    answered: Option<Duration>,
}

impl Revival {
    /// Between two probes: the link is back for so long at most before it is noticed.
    pub const PERIOD: Duration = Duration::from_millis(250);
    /// How often to look at connections that are stuck.
    pub const LOOK: Duration = Duration::from_millis(50);
    /// It has gone on by itself if more is acknowledged within so long of the first answer.
    const SETTLING: Duration = Duration::from_secs(5);

    /// Begins to care for a connection that seems stuck.
    pub fn new(now: Duration, vitals: &Vitals) -> Self {
        Self {
            looked: now,
            acked: vitals.acked,
            probed: None,
            answered: None,
        }
    }

    /// What to do now. `period` is what lies between probes: [`PERIOD`](Self::PERIOD), or longer where there are
    /// many such connections.
    pub fn care(&mut self, now: Duration, vitals: &Vitals, period: Duration) -> Care {
        let heard = vitals.silent < now.saturating_sub(self.looked);
        let progress = vitals.acked > self.acked;
        (self.looked, self.acked) = (now, vitals.acked);
        if vitals.unacked == 0 {
            return Care::Leave;
        }
        match self.answered {
            None if heard => {
                self.answered = Some(now);
                return self.probe(now);
            }
            Some(_) if progress => return Care::Leave,
            Some(answered) if now >= answered + Self::SETTLING => {
                if !vitals.seem_stuck() {
                    return Care::Leave;
                }
                self.answered = None;
            }
            _ => {}
        }
        if self.probed.is_none_or(|probed| now >= probed + period) {
            self.probe(now)
        } else {
            Care::Wait
        }
    }

    fn probe(&mut self, now: Duration) -> Care {
        self.probed = Some(now);
        Care::Probe
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Duration = Revival::PERIOD;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn vitals(acked: u64, silent: u64) -> Vitals {
        Vitals {
            silent: ms(silent),
            rtt: ms(600),
            acked,
            unacked: 7,
            waits_for_window: false,
        }
    }

    #[test]
    fn one_that_is_stuck_is_probed_until_it_goes_on() {
        let mut revival = Revival::new(ms(1000), &vitals(100, 2000));
        let mut care = |at, vitals: Vitals| revival.care(ms(at), &vitals, PERIOD);
        assert_eq!(care(1050, vitals(100, 2050)), Care::Probe);
        assert_eq!(care(1250, vitals(100, 2250)), Care::Wait);
        assert_eq!(care(1300, vitals(100, 2300)), Care::Probe);
        assert_eq!(care(1350, vitals(200, 10)), Care::Probe, "it was answered");
        assert_eq!(care(1400, vitals(200, 60)), Care::Wait);
        assert_eq!(care(1600, vitals(200, 260)), Care::Probe);
        assert_eq!(care(1900, vitals(300, 20)), Care::Leave);
    }

    #[test]
    fn an_answer_that_acknowledges_nothing_new_is_one() {
        let mut revival = Revival::new(ms(1000), &vitals(100, 2000));
        assert_eq!(
            revival.care(ms(1050), &vitals(100, 20), PERIOD),
            Care::Probe
        );
        assert_eq!(revival.care(ms(1100), &vitals(100, 20), PERIOD), Care::Wait);
        assert_eq!(
            revival.care(ms(1150), &vitals(101, 20), PERIOD),
            Care::Leave
        );
    }

    #[test]
    fn only_one_that_waits_for_longer_than_round_trips_take_is_stuck() {
        assert!(vitals(1, 1600).seem_stuck() && !vitals(1, 1599).seem_stuck());
        let done = Vitals {
            unacked: 0,
            ..vitals(9, 5000)
        };
        assert!(!done.seem_stuck());
        let mut revival = Revival::new(ms(1000), &vitals(1, 2000));
        assert_eq!(revival.care(ms(2000), &done, PERIOD), Care::Leave);
    }

    #[test]
    fn a_link_that_is_back_for_a_moment_only_is_waited_for_again() {
        let mut revival = Revival::new(ms(1000), &vitals(100, 2000));
        assert_eq!(revival.care(ms(1050), &vitals(200, 5), PERIOD), Care::Probe);
        assert_eq!(
            revival.care(ms(6050), &vitals(200, 5005), PERIOD),
            Care::Probe
        );
        assert_eq!(
            revival.care(ms(6100), &vitals(300, 5), PERIOD),
            Care::Probe,
            "an answer again"
        );
        let slow = vitals(300, 1500);
        assert_eq!(revival.care(ms(12_000), &slow, PERIOD), Care::Leave);
    }

    proptest! {
        /// Whatever the kernel says, there is never more than a probe per period and answer, and none that is stuck
        /// is without for longer than a period.
        #[test]
        fn probes_are_neither_too_many_nor_too_few(
            steps in prop::collection::vec((1..200u64, 0..3u64, 0..300u64), 1..200),
        ) {
            let mut revival = Revival::new(ms(1000), &vitals(0, 2000));
            let (mut now, mut acked, mut last, mut answers, mut probes) = (1000, 0, None, 0, 0u64);
            for (step, progress, silent) in steps {
                now += step;
                acked += progress / 2;
                answers += u64::from(silent < step);
                match revival.care(ms(now), &vitals(acked, silent), PERIOD) {
                    Care::Probe => (probes, last) = (probes + 1, Some(now)),
                    Care::Wait => prop_assert!(last.is_some_and(|last| now - last < 250)),
                    Care::Leave => return Ok(()),
                }
                prop_assert!(probes <= 1 + (now - 1000) / 250 + answers);
            }
        }
    }
}
