//! History of recent hours: sampled once a second from the status.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    extract::{Query, State},
};
use pep_core::history::{self, COARSE, COLUMNS, FINE, History, STEPS, Sample};
use pepd_api::{
    history::{HistoryQuery, HistoryReport, Outage, Row, Series},
    status::{SessionStatus, Status},
};

use super::Observer;

/// Difference, in seconds, above which Unix time was set; earlier samples are then reported by the
/// new time.
const SET: f64 = 2.0;
/// Significant digits of values; means would have any number.
const DIGITS: i32 = 6;

/// Samples so far.
#[derive(Debug)]
pub(super) struct Past {
    history: History,
    began: Instant,
    /// Time of the last sample, in whole seconds of Unix time.
    anchor: u64,
    /// Packets of all peers, and retransmitted ones, at the last sample.
    packets: Option<[u64; 2]>,
}

impl Past {
    pub(super) fn new((began, wall): (Instant, SystemTime)) -> Self {
        Self {
            history: History::default(),
            began,
            anchor: unix(wall).round() as u64,
            packets: None,
        }
    }

    /// Records a status. Returns the row of this second.
    pub(super) fn take(&mut self, status: &Status) -> Row {
        self.take_at(self.began.elapsed(), unix(SystemTime::now()), status)
    }

    /// Records a status at this time since the start, and of Unix.
    fn take_at(&mut self, now: Duration, wall: f64, status: &Status) -> Row {
        let began = wall - now.as_secs_f64();
        if (began - self.anchor as f64).abs() > SET {
            self.anchor = began.max(0.0).round() as u64;
        }
        let sample = self.sample(status);
        self.history.on_sample(now.as_secs(), &sample);
        let outages = status.link.report.history.iter().rev();
        let outages = outages.map(|outage| history::Outage {
            began: outage.began,
            lasted: outage.lasted_s,
        });
        self.history.on_outages(wall, outages);
        self.row((now.as_secs(), sample))
    }

    fn sample(&mut self, status: &Status) -> Sample {
        let sessions = || (status.peers.iter()).filter_map(|peer| peer.session.as_ref());
        let highest = |value: fn(&SessionStatus) -> f64| sessions().map(value).reduce(f64::max);
        let packets = sessions().fold(None, |sum: Option<[u64; 2]>, session| {
            let data = session.packets_sent.saturating_sub(session.repairs_sent);
            let [sent, resent] = sum.unwrap_or_default();
            Some([sent + data, resent + session.segments_retransmitted])
        });
        let before = std::mem::replace(&mut self.packets, packets);
        let more = |place: usize| {
            // Counters restart with another session.
            let (now, before) = (packets?[place], before?[place]);
            Some(now.saturating_sub(before) as f64)
        };
        let link = &status.link.report;
        let reported = link.by != pep_core::outage::Source::Assumed.as_str();
        let custody = &status.custody;
        [
            Some(status.total.up_rate),
            Some(status.total.down_rate),
            Some(status.total.flows_open as f64),
            reported.then(|| f64::from(u8::from(link.up))),
            highest(|session| session.loss),
            highest(|session| session.fec_overhead),
            more(0),
            more(1),
            Some(custody.memory.used as f64),
            Some(custody.disk.used as f64),
            highest(|session| session.rtt_s),
        ]
    }

    fn row(&self, (second, sample): (u64, Sample)) -> Row {
        let values = sample.into_iter().map(|value| value.map(rounded));
        (self.anchor + second, values.collect())
    }

    /// Returns all intervals that had not ended at that second of Unix time.
    fn report(&self, pid: u32, since: u64) -> HistoryReport {
        let first = since.saturating_sub(self.anchor);
        let series = [FINE, COARSE].into_iter().enumerate();
        let series = series.map(|(which, kept)| Series {
            step_s: STEPS[which],
            kept_s: kept.as_secs(),
            rows: self
                .history
                .spans(which, first)
                .map(|span| self.row(span))
                .collect(),
        });
        let lasted = |outage: &&history::Outage| {
            let end = outage.lasted.map(|lasted| outage.began + lasted);
            end.is_none_or(|end| end > since as f64)
        };
        let outages = self.history.outages().filter(lasted);
        HistoryReport {
            pid,
            began: self.anchor,
            columns: COLUMNS.map(|(name, _)| name.to_owned()).into(),
            series: series.collect(),
            outages: outages
                .map(|outage| Outage {
                    began: outage.began,
                    lasted_s: outage.lasted,
                })
                .collect(),
            outages_forgotten: self.history.forgotten(),
        }
    }
}

fn unix(wall: SystemTime) -> f64 {
    let since = wall.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let places = DIGITS - 1 - value.abs().log10().floor() as i32;
    let scale = 10f64.powi(places.abs());
    if places >= 0 {
        (value * scale).round() / scale
    } else {
        (value / scale).round() * scale
    }
}

/// Serves `GET /v1/history`.
pub(super) async fn show(
    State(observer): State<Arc<Observer>>,
    Query(query): Query<HistoryQuery>,
) -> Json<HistoryReport> {
    let report = observer.past().report(std::process::id(), query.since);
    Json(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pepd_api::link::OutageReport;
    use pepd_api::testing::status;

    const WALL: f64 = 1_000_000.0;

    fn past() -> Past {
        let wall = UNIX_EPOCH + Duration::from_secs_f64(WALL);
        Past::new((Instant::now(), wall))
    }

    fn column(row: &Row, name: &str) -> Option<f64> {
        let place = COLUMNS.iter().position(|(column, _)| *column == name);
        row.1[place.expect("there is such a column")]
    }

    fn at(past: &mut Past, second: u64, status: &Status) -> Row {
        let now = Duration::from_secs(second);
        past.take_at(now, WALL + now.as_secs_f64(), status)
    }

    fn session(status: &mut Status) -> &mut SessionStatus {
        let mut sessions = status.peers.iter_mut();
        let session = sessions.find_map(|peer| peer.session.as_mut());
        session.expect("there is one")
    }

    #[test]
    fn every_column_is_of_the_status() {
        let mut past = past();
        let mut status = status();
        status.link.report.by = "probe".to_owned();
        status.link.report.up = false;
        let first = at(&mut past, 1, &status);
        assert_eq!(first.0, 1_000_001);
        for (name, expected) in [
            ("up_rate", Some(status.total.up_rate)),
            ("down_rate", Some(status.total.down_rate)),
            ("flows", Some(status.total.flows_open as f64)),
            ("link_up", Some(0.0)),
            ("packets", None),
            ("retransmitted", None),
            ("custody_memory", Some(status.custody.memory.used as f64)),
            ("custody_disk", Some(status.custody.disk.used as f64)),
        ] {
            assert_eq!(column(&first, name), expected.map(rounded), "{name}");
        }
        let session = session(&mut status);
        let (loss, fec_overhead, rtt) = (session.loss, session.fec_overhead, session.rtt_s);
        session.packets_sent += 30;
        session.repairs_sent += 10;
        session.segments_retransmitted += 3;
        let second = at(&mut past, 2, &status);
        assert_eq!(column(&second, "packets"), Some(20.0));
        assert_eq!(column(&second, "retransmitted"), Some(3.0));
        for (name, expected) in [
            ("loss", loss),
            ("fec_overhead", fec_overhead),
            ("rtt_s", rtt),
        ] {
            assert_eq!(column(&second, name), Some(rounded(expected)), "{name}");
        }
        // Another session has sent less.
        let session = self::session(&mut status);
        session.packets_sent = 3;
        session.repairs_sent = 0;
        session.segments_retransmitted = 0;
        assert_eq!(column(&at(&mut past, 3, &status), "packets"), Some(0.0));
        status.peers.clear();
        status.link.report.by = "assumed".to_owned();
        let alone = at(&mut past, 4, &status);
        for name in [
            "loss",
            "fec_overhead",
            "packets",
            "retransmitted",
            "rtt_s",
            "link_up",
        ] {
            assert_eq!(column(&alone, name), None, "{name}");
        }
    }

    #[test]
    fn reports_start_at_any_time_and_follow_changes_of_unix_time() {
        let mut past = past();
        let mut status = status();
        let outage = |began, lasted_s| OutageReport {
            began: WALL + began,
            ago_s: 0.0,
            by: "probe".to_owned(),
            lasted_s,
        };
        status.link.report.history = vec![outage(30.0, None), outage(5.0, Some(2.0))];
        for second in 1..=60 {
            at(&mut past, second, &status);
        }
        let reported = past.report(7, 0);
        assert_eq!((reported.pid, reported.began), (7, 1_000_000));
        assert_eq!(reported.columns.len(), COLUMNS.len());
        let kept: Vec<_> = (reported.series.iter())
            .map(|series| (series.step_s, series.rows.len()))
            .collect();
        assert_eq!(kept, [(1, 60), (10, 7)]);
        let spans: Vec<_> = (reported.outages.iter())
            .map(|outage| (outage.began - WALL, outage.lasted_s))
            .collect();
        assert_eq!(spans, [(5.0, Some(2.0)), (30.0, None)]);
        let late = past.report(7, 1_000_055);
        let begins: Vec<_> = late.series.iter().map(|series| series.rows[0].0).collect();
        assert_eq!(begins, [1_000_055, 1_000_050]);
        assert_eq!(late.outages.len(), 1, "the one that lasts");
        // A clock that was wrong by an hour is set.
        let now = Duration::from_secs(61);
        let row = past.take_at(now, WALL + 3661.0, &status);
        assert_eq!(row.0, 1_003_661);
        let reported = past.report(7, 0);
        assert_eq!(reported.began, 1_003_600);
        assert_eq!(reported.series[0].rows[0].0, 1_003_601);
    }

    #[test]
    fn values_have_six_digits() {
        for (value, expected) in [
            (0.0, 0.0),
            (1.0 / 3.0, 0.333333),
            (123_456_789.0, 123_457_000.0),
            (0.000_012_345_678, 0.000_012_345_7),
            (999_999.9, 1_000_000.0),
        ] {
            assert_eq!(rounded(value), expected);
        }
        assert_eq!(rounded(1e-5 / 3.0).to_string().len(), "0.00000333333".len());
    }
}
