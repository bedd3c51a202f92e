//! History of ten minutes: the last responses, and values derived from them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pepd_api::{
    flows::{FlowStatus, FlowsReport},
    status::{PacketStatus, PeerStatus, Status},
};

/// Seconds for which points are kept.
pub(super) const KEPT_S: f64 = 600.0;
/// Seconds over which losses after FEC are counted, since these are few and come in bursts.
const LOST_OVER_S: f64 = 10.0;
/// Seconds beyond the interval of queries after which a response counts as missing.
const LATE_S: f64 = 3.0;

/// Response of a running pepd, or its error.
#[derive(Debug)]
pub(super) struct Answer {
    /// Status.
    pub(super) status: Result<Status, String>,
    /// Flows, if requested.
    pub(super) flows: Option<Result<FlowsReport, String>>,
}

/// Values of one response.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Point {
    /// Time in seconds since the first query.
    pub(super) at: f64,
    /// Seconds before that time which the values cover.
    pub(super) for_s: f64,
    /// Rate up, in bit/s.
    pub(super) up: f64,
    /// Rate down, in bit/s.
    pub(super) down: f64,
    /// Maximum loss of all peers before FEC, 0 to 1; none without a session.
    pub(super) loss: Option<f64>,
    /// Maximum loss of all peers after FEC.
    pub(super) after: Option<f64>,
    /// Maximum FEC overhead of all peers.
    pub(super) fec_overhead: Option<f64>,
    /// Bytes held for hosts, in memory, on disk and in the kernel.
    pub(super) held: f64,
}

/// Rates of the packets of a site between the last two responses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PacketRates {
    /// Packets from hosts, per second.
    pub(super) taken: f64,
    /// Rate of packets from hosts, in bit/s.
    pub(super) taken_bits: f64,
    /// Packets to hosts, per second.
    pub(super) given: f64,
}

/// Peer, if any, and site.
type PacketKey = (Option<String>, String);

/// Data for drawing a frame.
#[derive(Debug)]
pub(super) struct History {
    /// Admin socket that is queried.
    pub(super) source: String,
    interval_s: f64,
    points: VecDeque<Point>,
    status: Option<(f64, Status)>,
    /// Time of the last response before a failure, and the error.
    silence: Option<(f64, String)>,
    /// Packets with hosts' bytes and retransmitted segments, by peer.
    counts: VecDeque<(f64, BTreeMap<String, [u64; 2]>)>,
    /// Packets from hosts, their bytes, and packets to hosts, in the previous response.
    packets: Option<(f64, BTreeMap<PacketKey, [u64; 3]>)>,
    flows: Option<Flows>,
    flows_refused: Option<String>,
}

/// Flows of the last response.
#[derive(Debug)]
pub(super) struct Flows {
    at: f64,
    /// Report as received.
    pub(super) report: FlowsReport,
    /// Rates of both directions together in bit/s, in the same order; none for flows that were not
    /// listed before.
    pub(super) rates: Vec<Option<f64>>,
}

/// Identity of a flow in successive responses.
type FlowKey = (String, String, String);

impl History {
    /// Creates an empty history of a source, queried at this interval.
    pub(super) fn new(source: String, interval_s: f64) -> Self {
        Self {
            source,
            interval_s,
            points: VecDeque::new(),
            status: None,
            silence: None,
            counts: VecDeque::new(),
            packets: None,
            flows: None,
            flows_refused: None,
        }
    }

    /// Adds a response or error received at this time.
    pub(super) fn take(&mut self, now: f64, answer: Answer) {
        match answer.status {
            Ok(status) => self.take_status(now, status),
            Err(why) => {
                let since = self.silence.as_ref().map(|(since, _)| *since);
                let since = since.or(self.heard_at()).unwrap_or(now);
                self.silence = Some((since, why));
                return;
            }
        }
        match answer.flows {
            Some(Ok(report)) => self.take_flows(now, report),
            Some(Err(why)) => (self.flows, self.flows_refused) = (None, Some(why)),
            // Flows that are not shown would become stale.
            None => (self.flows, self.flows_refused) = (None, None),
        }
    }

    fn take_status(&mut self, now: f64, status: Status) {
        let before = self.heard_at();
        let for_s = match before {
            // The time without responses remains a gap.
            Some(before) if self.silence.is_none() => (now - before).min(2.0 * self.interval_s),
            _ => self.interval_s,
        };
        self.silence = None;
        let counts = status.peers.iter().filter_map(|peer| {
            let session = peer.session.as_ref()?;
            let data = session.packets_sent.saturating_sub(session.repairs_sent);
            Some((peer.name.clone(), [data, session.segments_retransmitted]))
        });
        self.counts.push_back((now, counts.collect()));
        while (self.counts.front()).is_some_and(|(at, _)| now - at > LOST_OVER_S + self.interval_s)
        {
            self.counts.pop_front();
        }
        let sessions = || status.peers.iter().filter_map(|peer| peer.session.as_ref());
        let held = status.total.held;
        self.points.push_back(Point {
            at: now,
            for_s,
            up: status.total.up_rate,
            down: status.total.down_rate,
            loss: sessions().map(|session| session.loss).reduce(f64::max),
            after: status
                .peers
                .iter()
                .filter_map(|peer| self.lost_after(peer))
                .reduce(f64::max),
            fec_overhead: sessions()
                .map(|session| session.fec_overhead)
                .reduce(f64::max),
            held: (held.memory + held.disk + held.kernel) as f64,
        });
        while (self.points.front()).is_some_and(|point| now - point.at > KEPT_S) {
            self.points.pop_front();
        }
        let before = self.status.replace((now, status));
        self.packets = before.map(|(at, status)| (at, packets(&status)));
    }

    fn take_flows(&mut self, now: f64, report: FlowsReport) {
        let before = self.flows.take();
        let before = before.map(|flows| {
            let bytes = flows.report.flows.iter().map(|flow| (key(flow), sum(flow)));
            (flows.at, bytes.collect::<HashMap<FlowKey, u64>>())
        });
        let rate = |flow: &FlowStatus| {
            let (at, bytes) = before.as_ref()?;
            let before = bytes.get(&key(flow))?;
            let seconds = now - at;
            let more = sum(flow).checked_sub(*before)?;
            (seconds > 0.0).then(|| 8.0 * more as f64 / seconds)
        };
        self.flows = Some(Flows {
            at: now,
            rates: report.flows.iter().map(rate).collect(),
            report,
        });
        self.flows_refused = None;
    }

    /// Returns the last status.
    pub(super) fn status(&self) -> Option<&Status> {
        self.status.as_ref().map(|(_, status)| status)
    }

    /// Returns the last point.
    pub(super) fn last(&self) -> Option<&Point> {
        self.points.back()
    }

    /// Returns the flows of the last response, or the error if pepd refused them.
    pub(super) fn flows(&self) -> Result<Option<&Flows>, &str> {
        match &self.flows_refused {
            Some(why) => Err(why),
            None => Ok(self.flows.as_ref()),
        }
    }

    /// Returns the time of the last response.
    fn heard_at(&self) -> Option<f64> {
        self.status.as_ref().map(|(at, _)| *at)
    }

    /// Returns the seconds without a response and the cause, if one is missing.
    pub(super) fn silence(&self, now: f64) -> Option<(f64, &str)> {
        if let Some((since, why)) = &self.silence {
            return Some((now - since, why));
        }
        let quiet = now - self.heard_at().unwrap_or(0.0);
        (quiet > LATE_S + self.interval_s).then_some((quiet, "slow response"))
    }

    /// Returns the share of packets with hosts' bytes lost in spite of FEC, 0 to 1, over the last
    /// ten seconds; in the first response since the session began. None without a session or
    /// packets.
    pub(super) fn lost_after(&self, peer: &PeerStatus) -> Option<f64> {
        let of = |(_, counts): &(f64, BTreeMap<String, [u64; 2]>)| counts.get(&peer.name).copied();
        let (first, last) = (of(self.counts.front()?), of(self.counts.back()?)?);
        let first = if self.counts.len() > 1 {
            first?
        } else {
            [0; 2]
        };
        // A new session resets the counts.
        let sent = last[0].checked_sub(first[0]).filter(|sent| *sent > 0)?;
        let again = last[1].checked_sub(first[1])?;
        Some((again as f64 / sent as f64).min(1.0))
    }

    /// Returns the rates of a site's packets from and to hosts; none without an earlier response,
    /// or after a reset of the counts.
    pub(super) fn packet_rates(
        &self,
        peer: Option<&PeerStatus>,
        site: &PacketStatus,
    ) -> Option<PacketRates> {
        let (before, counts) = self.packets.as_ref()?;
        let seconds = self.heard_at()? - before;
        let key = packet_key(peer, site);
        let [taken, bytes, given] = *counts.get(&key)?;
        let rate = |now: u64, before: u64| {
            let more = now.checked_sub(before)?;
            (seconds > 0.0).then(|| more as f64 / seconds)
        };
        Some(PacketRates {
            taken: rate(site.packets, taken)?,
            taken_bits: 8.0 * rate(site.bytes, bytes)?,
            given: rate(site.delivered, given)?,
        })
    }

    /// Returns the last ten minutes in this number of columns, each with its maximum; none if
    /// unknown.
    pub(super) fn columns(
        &self,
        width: usize,
        value: impl Fn(&Point) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let mut columns = vec![None; width];
        let (Some(last), true) = (self.points.back(), width > 0) else {
            return columns;
        };
        // Columns begin at multiples of their length, so that a point stays in its column.
        let each = KEPT_S / width as f64;
        let newest = (last.at / each).floor();
        for point in &self.points {
            let Some(value) = value(point) else { continue };
            let begin = ((point.at - point.for_s) / each).floor();
            // A point that ends at the start of a column belongs to the previous one.
            let end = (point.at / each).floor();
            let end = if begin < end && end * each >= point.at {
                end - 1.0
            } else {
                end
            };
            for place in (newest - end).max(0.0) as usize..=(newest - begin).max(0.0) as usize {
                let Some(place) = width.checked_sub(place + 1) else {
                    break;
                };
                let column = &mut columns[place];
                *column = Some(column.map_or(value, |before: f64| before.max(value)));
            }
        }
        columns
    }
}

fn packets(status: &Status) -> BTreeMap<PacketKey, [u64; 3]> {
    let sites = status.packet_sites().map(|(peer, site)| {
        let counts = [site.packets, site.bytes, site.delivered];
        (packet_key(peer, site), counts)
    });
    sites.collect()
}

fn packet_key(peer: Option<&PeerStatus>, site: &PacketStatus) -> PacketKey {
    (peer.map(|peer| peer.name.clone()), site.site.clone())
}

fn key(flow: &FlowStatus) -> FlowKey {
    let flow = &flow.flow;
    (
        flow.kind.clone(),
        flow.client.clone(),
        flow.destination.clone(),
    )
}

/// Returns the bytes of both directions.
pub(super) fn sum(flow: &FlowStatus) -> u64 {
    flow.up_bytes + flow.down_bytes
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    #[test]
    fn columns_have_the_highest_value_and_keep_gaps() {
        let mut history = History::new("x".to_owned(), 1.0);
        for second in 0..20 {
            let mut status = status();
            status.total.up_rate = f64::from(second);
            history.take(f64::from(second), answer(status));
        }
        // pepd does not answer for a while.
        history.take(
            20.0,
            Answer {
                status: Err("gone".to_owned()),
                flows: None,
            },
        );
        let mut again = status();
        again.total.up_rate = 5.0;
        history.take(100.0, answer(again));
        // Ten seconds each.
        let columns = history.columns(60, |point| Some(point.up));
        assert_eq!(columns.len(), 60);
        assert_eq!(columns[59 - 10], Some(10.0), "from 0 to 10: {columns:?}");
        assert_eq!(columns[59 - 9], Some(19.0));
        assert!(
            columns[59 - 8..58].iter().all(Option::is_none),
            "{columns:?}"
        );
        assert_eq!(columns[59 - 1], Some(5.0), "from 99 on");
        assert_eq!(history.columns(0, |point| Some(point.up)), []);
        // After ten minutes the earlier points are gone.
        history.take(2000.0, answer(status()));
        assert_eq!(history.points.len(), 1);
    }

    #[test]
    fn silence_is_reported_with_its_cause_until_the_next_response() {
        let mut history = History::new("x".to_owned(), 1.0);
        assert_eq!(history.silence(0.5), None);
        assert!(history.silence(5.0).is_some(), "no answer at all");
        history.take(6.0, answer(status()));
        assert_eq!(history.silence(9.0), None);
        assert_eq!(history.silence(12.0), Some((6.0, "slow response")));
        let gone = || Answer {
            status: Err("gone".to_owned()),
            flows: None,
        };
        history.take(13.0, gone());
        history.take(14.0, gone());
        assert_eq!(history.silence(16.0), Some((10.0, "gone")));
        assert!(history.status().is_some(), "what was seen last");
        history.take(17.0, answer(status()));
        assert_eq!(history.silence(18.0), None);
    }

    #[test]
    fn loss_after_fec_covers_the_last_seconds() {
        let mut history = History::new("x".to_owned(), 1.0);
        let seen = |sent: u64, repairs: u64, retransmitted: u64| {
            let mut status = status();
            let session = status.peers[0].session.as_mut().expect("a session");
            (session.packets_sent, session.repairs_sent) = (sent, repairs);
            session.segments_retransmitted = retransmitted;
            status
        };
        let lost = |history: &History| history.lost_after(&history.status().unwrap().peers[0]);
        history.take(0.0, answer(seen(1100, 100, 500)));
        assert_eq!(lost(&history), Some(0.5), "since the session began");
        history.take(1.0, answer(seen(2200, 200, 510)));
        assert_eq!(lost(&history), Some(0.01));
        for second in 2..30 {
            history.take(f64::from(second), answer(seen(2200, 200, 510)));
        }
        assert_eq!(lost(&history), None, "nothing was sent");
        history.take(30.0, answer(seen(10, 0, 0)));
        assert_eq!(lost(&history), None, "another session");
        assert_eq!(history.lost_after(&status().peers[1]), None, "no session");
    }

    #[test]
    fn rates_of_packets_are_from_one_answer_to_the_next() {
        let mut history = History::new("x".to_owned(), 1.0);
        let seen = |taken: u64, bytes: u64, given: u64| {
            let mut status = status();
            let site = &mut status.peers[0].packets[0];
            (site.packets, site.bytes, site.delivered) = (taken, bytes, given);
            status
        };
        let rates = |history: &History| {
            let peer = &history.status().expect("seen").peers[0];
            history.packet_rates(Some(peer), &peer.packets[0])
        };
        history.take(0.0, answer(seen(10, 1000, 5)));
        assert_eq!(rates(&history), None);
        history.take(2.0, answer(seen(30, 5000, 9)));
        let expected = PacketRates {
            taken: 10.0,
            taken_bits: 16_000.0,
            given: 2.0,
        };
        assert_eq!(rates(&history), Some(expected));
        history.take(3.0, answer(seen(1, 100, 0)));
        assert_eq!(rates(&history), None, "another process");
    }

    #[test]
    fn rates_of_flows_are_from_one_answer_to_the_next() {
        let mut history = History::new("x".to_owned(), 1.0);
        let seen = |bytes: &[(&str, u64)]| Answer {
            status: Ok(status()),
            flows: Some(Ok(flows(bytes))),
        };
        let rates = |history: &History| history.flows().unwrap().unwrap().rates.clone();
        history.take(0.0, seen(&[("a", 100), ("b", 100)]));
        assert_eq!(rates(&history), [None, None]);
        history.take(2.0, seen(&[("b", 1100), ("c", 7), ("a", 100)]));
        assert_eq!(rates(&history), [Some(4000.0), None, Some(0.0)]);
        history.take(
            3.0,
            Answer {
                status: Ok(status()),
                flows: Some(Err("no site".to_owned())),
            },
        );
        assert_eq!(history.flows().err(), Some("no site"));
        history.take(4.0, answer(status()));
        assert!(matches!(history.flows(), Ok(None)));
    }
}
