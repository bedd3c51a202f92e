//! Spacing of reports. Both ends apply the same rules, so each knows when a report is missing.

use std::time::Duration;

/// Maximum reports per round trip. Each costs both ends as much CPU time as many packets of data,
/// so on short paths there are half as many, unless they are rare anyway.
const PER_ROUND_TRIP: u32 = 16;
const PER_SHORT_ROUND_TRIP: u32 = 8;
const SPACING_RARE: Duration = Duration::from_millis(5);
const SPACING_MIN: Duration = Duration::from_millis(1);
/// Assumed cost of a report on the link, in bytes: the real cost varies, but both ends must agree.
const REPORT_BYTES: u64 = 160;
/// Assumed cost of a beacon, a short report.
const BEACON_BYTES: u64 = 100;
/// Maximum share of the return path's rate that reports take.
const REPORT_SHARE: f64 = 0.5;
/// Maximum share for reports about datagrams, which are never retransmitted. Their number per round
/// trip is limited, too, unless that is less than both.
const PATIENT_SHARE: f64 = 0.02;
const PATIENT_PER_ROUND_TRIP: u32 = 4;
const PATIENT_MAX: Duration = Duration::from_millis(250);
const PATIENT_ROUND_TRIPS: u32 = 2;
/// Maximum share for beacons.
const BEACON_SHARE: f64 = 0.01;
const BEACON_MIN: Duration = Duration::from_millis(1);
const BEACON_MAX: Duration = Duration::from_millis(50);
/// Beacon interval without streams, when no data waits for the link.
pub const IDLE_BEACON: Duration = Duration::from_secs(1);
/// Beacon interval of a session at rest. At 100 bytes each way, beacons once a second would take
/// half a gigabyte a month.
pub const REST_BEACON: Duration = Duration::from_secs(5);

/// Time without streams before the session is idle, or three round trips: until then the peer may
/// still wait for the last report.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Time without streams and datagrams before a session is at rest.
pub const REST_AFTER: Duration = Duration::from_secs(60);
/// Time after which an end takes the peer to be at rest. The peer may have been idle for longer.
pub const PEER_RESTS_AFTER: Duration = Duration::from_secs(30);

/// Parameters of the pace of one direction's reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Round trip time.
    pub rtt: Duration,
    /// Rate of the path that the reports take, in bits per second, if known.
    pub rate: Option<u64>,
}

/// Times derived from a [`Timing`].
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

    /// Returns the time between two reports while packets arrive: the longest of RTT/16, RTT/8 up
    /// to 5 ms, 1 ms, and 160 bytes at half the rate.
    pub fn spacing(&self) -> Duration {
        let rare = (self.rtt / PER_SHORT_ROUND_TRIP).min(SPACING_RARE);
        (self.rtt / PER_ROUND_TRIP)
            .max(rare)
            .max(self.min_spacing())
    }

    /// Returns the time between two reports while only datagrams arrive and both ends state their
    /// rates. A quarter of the round trip, or 160 bytes at a fiftieth of the rate, whichever is
    /// more; at most 250 ms or two round trips. Never less than [`spacing`](Self::spacing).
    pub fn patient(&self) -> Duration {
        let most = PATIENT_MAX.max(self.rtt * PATIENT_ROUND_TRIPS);
        let wanted = self.time(REPORT_BYTES, PATIENT_SHARE).min(most);
        wanted.max(self.measuring())
    }

    /// Returns the same if one end measures its rate: a quarter of the round trip. Measurements
    /// need a report within a round trip, and a rate that is not stated may be the guess of an end
    /// that sends only reports.
    pub fn measuring(&self) -> Duration {
        (self.rtt / PATIENT_PER_ROUND_TRIP).max(self.spacing())
    }

    /// Returns the minimum time between two reports.
    pub fn min_spacing(&self) -> Duration {
        SPACING_MIN.max(self.time(REPORT_BYTES, REPORT_SHARE))
    }

    /// Returns the time between two beacons while nothing arrives that asks for a report: RTT/4,
    /// from 1 ms to 50 ms, limited to a hundredth of the rate for `bytes` each.
    pub fn beacon(&self, bytes: u64) -> Duration {
        let wanted = (self.rtt / 4).clamp(BEACON_MIN, BEACON_MAX);
        wanted
            .max(self.time(bytes, BEACON_SHARE))
            .max(self.min_spacing())
    }

    /// Returns the time between two reports about packets that ask for none, e.g. reports, while
    /// other data is sent.
    pub fn unasked(&self) -> Duration {
        (self.rtt * 2).max(self.beacon(BEACON_BYTES))
    }

    /// Returns the longest regular silence of a peer that reports at this pace.
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

/// Returns the initial estimate of a beacon's cost on the link.
pub(super) const fn beacon_bytes() -> u64 {
    BEACON_BYTES
}
