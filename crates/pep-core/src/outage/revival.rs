//! Revival of a connection once its link is up again, without a notification that it is.
//!
//! TCP alone is slow: it retransmits only when its timer fires, which may be in two minutes. So
//! while nothing is acknowledged, a probe, an empty segment, asks the far end now and then for its
//! position.
//!
//! The first answer acknowledges bytes that had arrived before the outage but whose ACK was lost.
//! TCP then takes its timeouts for spurious (RFC 3522) and all other bytes for still in flight. It
//! finds out when its timer fires once more. Two things shorten that: pepd's own congestion
//! controls send new segments at once, whose SACK blocks prove the others lost, and a cap on the
//! timer, 1 s, Linux's minimum, for connections under care.
//!
//! Bytes may wait with none in flight: the far end's window is closed, or the kernel cannot send
//! them (no route, no address, a rule of the packet filter). The kernel then sends probes. It gives
//! up after 15 of them without an answer (`net.ipv4.tcp_retries2`), whatever TCP_USER_TIMEOUT says.
//! A cap on its timer would make that half a minute. So when one is not answered there is none, and
//! pepd tries in the kernel's place.
//!
//! A probe that this machine drops itself (a full queue of the interface, a filter behind the
//! routing) counts too, and the next follows after half a second: the kernel gives up after eight.
//! Before that, pepd declares the bytes sent. Then they are in flight for the kernel, and it
//! retransmits them for as long as TCP_USER_TIMEOUT says.
//!
//! Over a short path, outages of tens of milliseconds count. The timer, which doubles with each
//! attempt, soon waits for many times as long as these last; so the care is quicker there.

use std::time::Duration;

/// Kernel's state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vitals {
    /// Time since the far end last sent an ACK, of new bytes or not.
    pub silent: Duration,
    /// Round-trip time, smoothed.
    pub rtt: Duration,
    /// Shortest recent round-trip time; zero while unknown.
    pub rtt_min: Duration,
    /// Total bytes that the far end has acknowledged.
    pub acked: u64,
    /// Packets sent and not known to have arrived.
    pub unacked: u32,
    /// True where bytes wait and none are in flight: the far end's window is closed, or the kernel
    /// cannot send.
    pub waits_for_window: bool,
    /// True if the far end's window has room for the bytes that wait, and the kernel has tried to
    /// send them so often that it gives up soon.
    pub gives_up_soon: bool,
    /// True if neither end has sent its FIN, so that the kernel sends a probe when asked to.
    pub is_established: bool,
}

impl Vitals {
    /// Reports whether the far end lacks bytes.
    pub fn has_bytes(&self) -> bool {
        self.unacked > 0 || self.waits_for_window
    }
}

/// Times of the care over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tempo {
    is_quick: bool,
    /// Bytes per second into the link, where they are stated.
    rate: Option<u64>,
}

/// Bytes of a full packet, and of a probe with the headers of lower layers.
const PACKET: u64 = 1500;
const PROBE: u64 = 64;
/// Part of the stated rate that probes of all connections together may take.
const PROBES_PART: u64 = 32;

impl Tempo {
    /// Returns the tempo for links on which outages last for seconds.
    pub const fn usual(rate: Option<u64>) -> Self {
        Self {
            is_quick: false,
            rate,
        }
    }

    /// Returns the tempo for short round trips, where the kernel's timer has a short minimum too.
    pub const fn quick(rate: Option<u64>) -> Self {
        Self {
            is_quick: true,
            rate,
        }
    }

    /// Reports whether it is the tempo for short round trips.
    pub const fn is_quick(self) -> bool {
        self.is_quick
    }

    /// Returns the interval between two probes of a connection, the maximum time before pepd
    /// notices that the link is up, while so many are stuck. All of them together leave nearly all
    /// of the link to others.
    pub fn period(self, stuck: u32) -> Duration {
        let alone = Duration::from_millis(if self.is_quick { 15 } else { 250 });
        alone.max(self.time_of(u64::from(stuck.max(1)) * PROBE * PROBES_PART))
    }

    /// Returns the maximum of a stuck connection's retransmission timeout. It limits the time to
    /// detect losses once the link is up again, so it is the lowest that the kernel accepts, or the
    /// time of two packets on a slow link. As a permanent value it would be harmful wherever queues
    /// are long. A stuck connection has no queue to wait in.
    pub fn rto_max(self) -> Duration {
        Duration::from_secs(1).max(self.time_of(2 * PACKET))
    }

    /// Returns the maximum of the retransmission timeout of a connection in this state; `usual` is
    /// that of normal operation. Where it is stuck and none of its bytes is in flight it is Linux's
    /// own, so that 15 probes last as long as without pepd.
    pub fn rto_max_for(self, vitals: &Vitals, is_stuck: bool, usual: Duration) -> Duration {
        match (is_stuck, vitals.waits_for_window) {
            (false, _) => usual,
            (true, false) => self.rto_max().min(usual),
            (true, true) => Duration::from_secs(120),
        }
    }

    /// Returns the interval between checks of stuck connections.
    pub const fn look(self) -> Duration {
        Duration::from_millis(if self.is_quick { 5 } else { 50 })
    }

    /// Returns the time without an ACK after which the link may be down: two round trips, a
    /// tolerated delay, and the time that the packets in flight take on a slow link. The usual
    /// tempo tolerates a delayed ACK. The quick one does not, but its probe makes the receiver send
    /// that ACK.
    ///
    /// The smoothed round trip allows for a queue. After a short outage it contains the outage, so
    /// the quick tempo goes by the shortest one.
    pub fn limit(self, vitals: &Vitals) -> Duration {
        let round_trips = if self.is_quick && !vitals.rtt_min.is_zero() {
            2 * vitals.rtt_min + Duration::from_millis(30)
        } else {
            2 * vitals.rtt + Duration::from_millis(400)
        };
        round_trips + self.time_of(u64::from(vitals.unacked.max(1)) * PACKET)
    }

    /// Returns the same for a connection with this maximum of the retransmission timeout. Without
    /// bytes in flight an answer comes after the kernel's next probe.
    pub fn limit_with(self, vitals: &Vitals, rto_max: Duration) -> Duration {
        let until_probe = match vitals.unacked {
            0 => rto_max,
            _ => Duration::ZERO,
        };
        self.limit(vitals) + until_probe
    }

    /// Reports whether the link may be down, if for [`limit`](Self::limit) the same was true.
    pub fn seem_stuck(self, vitals: &Vitals) -> bool {
        vitals.has_bytes() && vitals.silent >= self.limit(vitals)
    }

    /// Returns the time that so many bytes take at the stated rate.
    fn time_of(self, bytes: u64) -> Duration {
        let rate = self.rate.filter(|rate| *rate > 0);
        rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 / rate as f64)
        })
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
    tempo: Tempo,
    /// Time of the last check, and bytes acknowledged then.
    looked: Duration,
    acked: u64,
    /// Time of the last probe.
    probed: Option<Duration>,
    /// Time of the first answer since it was stuck.
    answered: Option<Duration>,
}

impl Revival {
    /// Time after the first answer in which more ACKs mean that the connection has recovered by
    /// itself.
    const SETTLING: Duration = Duration::from_secs(5);

    /// Returns the care of a connection that seems stuck.
    pub fn new(tempo: Tempo, now: Duration, vitals: &Vitals) -> Self {
        Self {
            tempo,
            looked: now,
            acked: vitals.acked,
            probed: None,
            answered: None,
        }
    }

    /// Returns the action to take now. `period` is the interval between probes:
    /// that of the tempo, or longer with many such connections.
    pub fn care(&mut self, now: Duration, vitals: &Vitals, period: Duration) -> Care {
        let heard = vitals.silent < now.saturating_sub(self.looked);
        let progress = vitals.acked > self.acked;
        (self.looked, self.acked) = (now, vitals.acked);
        // Who answers with a closed window is there.
        if vitals.unacked == 0 && (heard || !vitals.waits_for_window) {
            return Care::Leave;
        }
        match self.answered {
            None if heard => {
                self.answered = Some(now);
                return self.probe(now);
            }
            Some(_) if progress => return Care::Leave,
            Some(answered) if now >= answered + Self::SETTLING => {
                if !self.tempo.seem_stuck(vitals) {
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

    const USUAL: Tempo = Tempo::usual(None);
    const QUICK: Tempo = Tempo::quick(None);
    const PERIOD: Duration = Duration::from_millis(250);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn vitals(acked: u64, silent: u64) -> Vitals {
        Vitals {
            silent: ms(silent),
            rtt: ms(600),
            rtt_min: ms(600),
            acked,
            unacked: 7,
            waits_for_window: false,
            gives_up_soon: false,
            is_established: true,
        }
    }

    #[test]
    fn one_that_is_stuck_is_probed_until_it_goes_on() {
        let mut revival = Revival::new(USUAL, ms(1000), &vitals(100, 2000));
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
        let mut revival = Revival::new(USUAL, ms(1000), &vitals(100, 2000));
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
        assert!(USUAL.seem_stuck(&vitals(1, 1600)) && !USUAL.seem_stuck(&vitals(1, 1599)));
        let done = Vitals {
            unacked: 0,
            ..vitals(9, 5000)
        };
        assert!(!USUAL.seem_stuck(&done));
        let mut revival = Revival::new(USUAL, ms(1000), &vitals(1, 2000));
        assert_eq!(revival.care(ms(2000), &done, PERIOD), Care::Leave);
    }

    /// None in flight, since the window is closed, or the kernel cannot send.
    fn waiting(silent: u64) -> Vitals {
        Vitals {
            unacked: 0,
            waits_for_window: true,
            ..vitals(1, silent)
        }
    }

    #[test]
    fn one_that_cannot_send_is_probed_and_has_the_kernels_own_timer() {
        let usual = Duration::from_secs(2);
        assert_eq!(USUAL.limit_with(&waiting(0), usual), usual + ms(1600));
        assert_eq!(USUAL.limit_with(&vitals(1, 0), usual), ms(1600));
        assert_eq!(USUAL.rto_max_for(&waiting(5000), false, usual), usual);
        let most = USUAL.rto_max_for(&waiting(5000), true, usual);
        assert_eq!(most.as_secs(), 120);
        let in_flight = vitals(1, 5000);
        assert_eq!(USUAL.rto_max_for(&in_flight, false, usual), usual);
        assert_eq!(USUAL.rto_max_for(&in_flight, true, usual).as_secs(), 1);
        let mut revival = Revival::new(USUAL, ms(1000), &waiting(5000));
        let mut care = |at, vitals: Vitals| revival.care(ms(at), &vitals, PERIOD);
        assert_eq!(care(1050, waiting(5050)), Care::Probe);
        assert_eq!(care(1250, waiting(5250)), Care::Wait);
        assert_eq!(care(1300, waiting(5300)), Care::Probe);
        // The route is back: the kernel has sent.
        assert_eq!(care(1550, vitals(1, 5550)), Care::Probe);
        assert_eq!(care(1600, vitals(1, 20)), Care::Probe, "it was answered");
        assert_eq!(care(1650, vitals(9, 20)), Care::Leave);
    }

    #[test]
    fn a_receiver_that_pauses_and_answers_is_there() {
        let mut revival = Revival::new(USUAL, ms(1000), &waiting(2000));
        assert_eq!(revival.care(ms(1050), &waiting(2050), PERIOD), Care::Probe);
        assert_eq!(revival.care(ms(1100), &waiting(10), PERIOD), Care::Leave);
    }

    #[test]
    fn over_a_short_path_a_smoothed_round_trip_that_contains_an_outage_does_not_count() {
        let vitals = |silent| Vitals {
            rtt_min: ms(1),
            ..vitals(1, silent)
        };
        assert!(!USUAL.seem_stuck(&vitals(32)));
        assert!(QUICK.seem_stuck(&vitals(32)) && !QUICK.seem_stuck(&vitals(31)));
    }

    #[test]
    fn on_a_slow_link_packets_take_their_time_and_probes_little_of_it() {
        // 600 bit/s: a packet takes 20 s, a probe less than a second.
        let slow = Tempo::usual(Some(75));
        let one = |silent| Vitals {
            unacked: 1,
            ..vitals(1, silent)
        };
        assert!(slow.seem_stuck(&one(21_600)) && !slow.seem_stuck(&one(21_599)));
        assert_eq!(slow.period(0).as_secs(), 27);
        assert_eq!(slow.period(2).as_secs(), 54);
        assert_eq!(slow.rto_max().as_secs(), 40);
        assert_eq!(USUAL.rto_max().as_secs(), 1);
        let fast = Tempo::usual(Some(1_250_000));
        assert_eq!(
            (fast.period(1), fast.period(1000)),
            (PERIOD, ms(1638) + Duration::from_micros(400))
        );
    }

    #[test]
    fn a_link_that_is_back_for_a_moment_only_is_waited_for_again() {
        let mut revival = Revival::new(USUAL, ms(1000), &vitals(100, 2000));
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
            let mut revival = Revival::new(USUAL, ms(1000), &vitals(0, 2000));
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
