//! How often there are reports. Both ends reckon with the same rules, so each knows when it may miss one.

use std::time::Duration;

/// Reports in a round trip, at most.
const PER_ROUND_TRIP: u32 = 16;
const SPACING_MIN: Duration = Duration::from_millis(1);
/// What a report is taken to cost on the link, in bytes: it varies, but both ends must agree.
const REPORT_BYTES: u64 = 160;
/// A beacon is a report with little to say.
const BEACON_BYTES: u64 = 100;
/// Reports take this share of the way they go, at most.
const REPORT_SHARE: f64 = 0.5;
/// Where they are about packets that do not go again they take this one, and there are so many in a round trip, unless that is less
/// than both of these.
const PATIENT_SHARE: f64 = 0.02;
const PATIENT_PER_ROUND_TRIP: u32 = 4;
const PATIENT_MAX: Duration = Duration::from_millis(250);
const PATIENT_ROUND_TRIPS: u32 = 2;
/// And beacons this one.
const BEACON_SHARE: f64 = 0.01;
const BEACON_MIN: Duration = Duration::from_millis(1);
const BEACON_MAX: Duration = Duration::from_millis(50);
/// Without streams nobody waits for the link to be back.
pub const IDLE_BEACON: Duration = Duration::from_secs(1);

/// That is so once there have been none for so long, or for three round trips: until then the peer may still wait for
/// the last report.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);

/// What the pace of one direction's reports follows from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The round trip time.
    pub rtt: Duration,
    /// How fast the way is that the reports go, in bits a second, as far as known.
    pub rate: Option<u64>,
}

/// The times that follow from a [`Timing`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Paces {
    pub minimum: Duration,
    pub spacing: Duration,
    pub patient: Duration,
    pub measuring: Duration,
    pub unasked: Duration,
    pub beacon: Duration,
}

impl Timing {
    pub(super) fn paces(&self, beacon_bytes: u64) -> Paces {
        Paces {
            minimum: self.min_spacing(),
            spacing: self.spacing(),
            patient: self.patient(),
            measuring: self.measuring(),
            unasked: self.unasked(),
            beacon: self.beacon(beacon_bytes),
        }
    }

    /// The time between two reports while packets arrive: max(RTT/16, 1 ms, 160 bytes at half the rate).
    pub fn spacing(&self) -> Duration {
        (self.rtt / PER_ROUND_TRIP).max(self.min_spacing())
    }

    /// The time between two reports while hosts' packets arrive and nothing else, where both ends state their rates: a quarter of the round
    /// trip, or 160 bytes at a fiftieth of the rate, whichever is more; but no more than 250 ms or two round trips. Never less than
    /// [`spacing`](Self::spacing).
    pub fn patient(&self) -> Duration {
        let most = PATIENT_MAX.max(self.rtt * PATIENT_ROUND_TRIPS);
        let wanted = self.time(REPORT_BYTES, PATIENT_SHARE).min(most);
        wanted.max(self.measuring())
    }

    /// The same where one end measures: a quarter of the round trip. What is measured has to be seen within a round trip, and a rate that is
    /// not stated may be a guess of who sends nothing but reports.
    pub fn measuring(&self) -> Duration {
        (self.rtt / PATIENT_PER_ROUND_TRIP).max(self.spacing())
    }

    /// There is never less time between two reports.
    pub fn min_spacing(&self) -> Duration {
        SPACING_MIN.max(self.time(REPORT_BYTES, REPORT_SHARE))
    }

    /// The time between two beacons while nothing arrives that asks for a report: RTT/4, from 1 ms to 50 ms, and no more
    /// than a hundredth of the rate for `bytes` each.
    pub fn beacon(&self, bytes: u64) -> Duration {
        let wanted = (self.rtt / 4).clamp(BEACON_MIN, BEACON_MAX);
        wanted
            .max(self.time(bytes, BEACON_SHARE))
            .max(self.min_spacing())
    }

    /// The time between two reports of packets that ask for none, as reports are, while something else is sent all the time.
    pub fn unasked(&self) -> Duration {
        (self.rtt * 2).max(self.beacon(BEACON_BYTES))
    }

    /// The longest time for which a peer that reports at this pace is silent of its own accord.
    pub fn pause(&self) -> Duration {
        // Reports wait for a second packet for as long again.
        (self.spacing() * 2).max(self.beacon(BEACON_BYTES))
    }

    fn time(&self, bytes: u64, share: f64) -> Duration {
        let seconds = self.rate.map_or(0.0, |rate| {
            bytes as f64 * 8.0 / (rate.max(1) as f64 * share)
        });
        Duration::from_secs_f64(seconds)
    }
}

/// What a beacon costs on the link, until one has been measured.
pub(super) const fn beacon_bytes() -> u64 {
    BEACON_BYTES
}
