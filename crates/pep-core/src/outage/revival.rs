//! Revival of a connection once its link is up again, without a notification that it is.
//!
//! TCP alone is slow: it retransmits only when its timer fires, which may be in two minutes. So
//! while nothing is acknowledged, a probe, an empty segment, asks the far end now and then for its
//! position.
//!
//! The first answer acknowledges bytes that had arrived before the outage but whose ACK was lost.
//! TCP then takes its timeouts for spurious (RFC 3522) and all other bytes for still in flight. It
//! finds out when its timer fires once more. Only a cap on the timer shortens that: 1 s, Linux's
//! minimum, for connections under care.

use std::time::Duration;

/// Kernel's state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vitals {
    /// Time since the far end last sent an ACK, of new bytes or not.
    pub silent: Duration,
    /// Round-trip time.
    pub rtt: Duration,
    /// Total bytes that the far end has acknowledged.
    pub acked: u64,
    /// Packets sent and not known to have arrived.
    pub unacked: u32,
    /// True where bytes wait and none are in flight: the far end's window is closed.
    pub waits_for_window: bool,
}

impl Vitals {
    /// Tolerated delay of an ACK beyond two round trips.
    const LATE: Duration = Duration::from_millis(400);

    /// Reports whether the link may be down, if a moment ago the same was true.
    pub fn seem_stuck(&self) -> bool {
        self.unacked > 0 && self.silent >= 2 * self.rtt + Self::LATE
    }
}

/// Action for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// None now.
    Wait,
    /// Send a probe now.
    Probe,
    /// Stop: the connection continues by itself, or is over.
    Leave,
}

/// A connection that was found to be stuck.
#[derive(Debug, Clone, Copy)]
pub struct Revival {
    /// Time of the last check, and bytes acknowledged then.
    looked: Duration,
    acked: u64,
    /// Time of the last probe.
    probed: Option<Duration>,
    /// Time of the first answer since it was stuck.
    answered: Option<Duration>,
}

impl Revival {
    /// Interval between two probes, the maximum time before pepd notices that the link is up.
    pub const PERIOD: Duration = Duration::from_millis(250);
    /// Interval between checks of stuck connections.
    pub const LOOK: Duration = Duration::from_millis(50);
    /// Time after the first answer in which more ACKs mean that the connection has recovered by
    /// itself.
    const SETTLING: Duration = Duration::from_secs(5);

    /// Returns the care of a connection that seems stuck.
    pub fn new(now: Duration, vitals: &Vitals) -> Self {
        Self {
            looked: now,
            acked: vitals.acked,
            probed: None,
            answered: None,
        }
    }

    /// Returns the action to take now. `period` is the interval between probes:
    /// [`PERIOD`](Self::PERIOD), or longer with many such connections.
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
        /// Whatever the kernel reports, there is never more than a probe per period and answer, and
        /// no stuck connection is without one for longer than a period.
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
