//! Counts of datagrams by fate.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Datagrams, content::Content};
use crate::lab::program::delays::Delays;

/// Result for the datagrams sent after the warm-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DatagramsResult {
    /// Due time of the first datagram; not part of files.
    #[serde(skip)]
    pub began: Instant,
    /// One-way delay of the links.
    pub one_way_s: f64,
    /// Datagrams that count.
    pub sent: u64,
    /// Datagrams of these that arrived intact.
    pub arrived: u64,
    /// Share of `sent` that did not arrive.
    pub loss: f64,
    /// Share of `sent` that arrived within the links' one-way delay and `within`.
    pub on_time: f64,
    /// Delays of the arrived datagrams from sending, beyond the links' one-way delay.
    #[serde(flatten)]
    pub delays: Option<Delays>,
    /// Jitter estimate of RFC 3550 (section 6.4.1), averaged over all arrivals.
    pub jitter_s: Option<f64>,
    /// Copies beyond the first, as a share of `sent`.
    pub duplicates: f64,
    /// Share of the arrivals that came after a datagram sent later (RFC 4737, section 3).
    pub reordered: f64,
    /// Share of all arrivals with altered content.
    pub corrupt: f64,
    /// Payload of the arrived datagrams, in bit/s.
    pub goodput_bps: f64,
    /// Datagrams that the sender's kernel refused to send; they count as lost.
    pub refused: u64,
    /// Bytes of all sent packets, warm-up included: payload and headers.
    pub packet_bytes: u64,
}

/// Counter of arrivals.
#[derive(Debug)]
pub(super) struct Tally<'a> {
    flow: &'a Datagrams,
    one_way: Duration,
    /// Number of the first datagram that counts.
    from: u64,
    /// Arrivals by number, from `from` on.
    seen: Vec<bool>,
    /// Delays in the order of arrival.
    took: Vec<Duration>,
    highest: Option<u64>,
    duplicates: u64,
    reordered: u64,
    corrupt: u64,
}

impl<'a> Tally<'a> {
    pub fn new(flow: &'a Datagrams, one_way: Duration) -> Self {
        let from = flow.warmup.as_nanos().div_ceil(flow.interval.as_nanos());
        let from = u64::try_from(from).expect("checked when the scenario was read");
        Self {
            flow,
            one_way,
            from,
            seen: vec![false; usize::try_from(flow.count() - from).unwrap_or(0)],
            took: Vec::new(),
            highest: None,
            duplicates: 0,
            reordered: 0,
            corrupt: 0,
        }
    }

    /// Records an arrival at a time since the start.
    pub fn note(&mut self, payload: &[u8], at: Duration) {
        let whole = payload.len() == self.flow.bytes;
        let content = Content::parse(payload).filter(|_| whole);
        let Some(content) = content.filter(|content| content.number < self.flow.count()) else {
            self.corrupt += 1;
            return;
        };
        let Some(place) = content.number.checked_sub(self.from) else {
            return;
        };
        let place = usize::try_from(place).expect("below the count");
        if std::mem::replace(&mut self.seen[place], true) {
            self.duplicates += 1;
            return;
        }
        self.reordered += u64::from(self.highest > Some(content.number));
        self.highest = self.highest.max(Some(content.number));
        self.took.push(at.saturating_sub(content.sent));
    }

    /// Reports whether every datagram has arrived.
    pub fn is_complete(&self) -> bool {
        self.took.len() == self.seen.len()
    }

    pub fn result(&self, began: Instant, refused: u64) -> DatagramsResult {
        let (sent, arrived) = (self.seen.len() as u64, self.took.len() as u64);
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        let one_way_s = self.one_way.as_secs_f64();
        let beyond = |took: &Duration| took.as_secs_f64() - one_way_s;
        let mut beyond: Vec<_> = self.took.iter().map(beyond).collect();
        let in_time = |seconds: &&f64| **seconds <= self.flow.within.as_secs_f64();
        let in_time = beyond.iter().filter(in_time).count() as u64;
        let window = (self.flow.duration - self.flow.warmup).as_secs_f64();
        let packet = (self.flow.bytes + self.flow.header_bytes()) as u64;
        DatagramsResult {
            began,
            one_way_s,
            sent,
            arrived,
            loss: 1.0 - share(arrived, sent),
            on_time: share(in_time, sent),
            delays: Delays::from_seconds(&mut beyond),
            jitter_s: jitter(&self.took),
            duplicates: share(self.duplicates, sent),
            reordered: share(self.reordered, arrived),
            corrupt: share(self.corrupt, arrived + self.corrupt),
            goodput_bps: (arrived * self.flow.bytes as u64 * 8) as f64 / window,
            refused,
            packet_bytes: (self.flow.count() - refused) * packet,
        }
    }
}

/// Jitter of RFC 3550, section 6.4.1, averaged over all arrivals. The last value alone would depend
/// on the last sixteen.
fn jitter(took: &[Duration]) -> Option<f64> {
    let (mut estimate, mut sum) = (0.0, 0.0);
    for pair in took.windows(2) {
        estimate += (pair[1].abs_diff(pair[0]).as_secs_f64() - estimate) / 16.0;
        sum += estimate;
    }
    let steps = took.len().checked_sub(1).filter(|steps| *steps > 0)?;
    Some(sum / steps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::program::datagrams::tests::flow;

    const MS: Duration = Duration::from_millis(1);

    /// Counts datagrams, given as pairs of number and delay.
    fn counted(arrivals: &[(u64, u32)]) -> DatagramsResult {
        let flow = flow();
        let mut tally = Tally::new(&flow, 300 * MS);
        for (number, took) in arrivals {
            let sent = flow.due(*number);
            let mut payload = vec![0; flow.bytes];
            let number = *number;
            Content { number, sent }.emit(&mut payload);
            tally.note(&payload, sent + MS * *took);
        }
        tally.result(Instant::now(), 0)
    }

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn what_was_sent_in_the_warm_up_does_not_count() {
        // Twenty datagrams in a second, ten of them in the warm-up.
        let all: Vec<_> = (0..20).map(|number| (number, 301)).collect();
        let result = counted(&all);
        assert_eq!((result.sent, result.arrived), (10, 10));
        assert!(near(result.loss, 0.0) && near(result.on_time, 1.0));
        assert!(near(result.delays.unwrap().p50_s, 0.001), "{result:?}");
        assert!(near(result.goodput_bps, 10.0 * 160.0 * 8.0 / 0.5));
        assert_eq!(result.packet_bytes, 20 * 188);
        assert_eq!(result.jitter_s, Some(0.0));
    }

    #[test]
    fn what_is_lost_has_no_delay() {
        let result = counted(&[(10, 310), (12, 400)]);
        assert_eq!((result.sent, result.arrived), (10, 2));
        assert!(near(result.loss, 0.8) && near(result.on_time, 0.1));
        assert!(near(result.delays.unwrap().max_s, 0.1), "{result:?}");
        let nothing = counted(&[]);
        assert!(near(nothing.loss, 1.0), "{nothing:?}");
        assert_eq!((nothing.delays, nothing.jitter_s), (None, None));
    }

    #[test]
    fn duplicates_and_reordered_datagrams_are_distinguished() {
        let result = counted(&[(10, 301), (12, 301), (11, 301), (12, 350), (13, 301)]);
        assert_eq!(result.arrived, 4);
        assert!(near(result.duplicates, 0.1) && near(result.reordered, 0.25));
    }

    #[test]
    fn jitter_is_a_sixteenth_of_each_difference() {
        let result = counted(&[(10, 300), (11, 316), (12, 316)]);
        // 1 ms, then fifteen sixteenths of it.
        assert!(near(result.jitter_s.unwrap(), 0.001 * (1.0 + 0.9375) / 2.0));
    }

    #[test]
    fn what_was_not_sent_so_is_corrupt() {
        let flow = flow();
        let mut tally = Tally::new(&flow, MS);
        let mut payload = vec![0; flow.bytes];
        let content = Content {
            number: 15,
            sent: MS,
        };
        content.emit(&mut payload);
        tally.note(&payload, 2 * MS);
        tally.note(&payload[..159], 2 * MS);
        payload[80] ^= 4;
        tally.note(&payload, 2 * MS);
        let beyond = Content {
            number: 20,
            sent: MS,
        };
        beyond.emit(&mut payload);
        tally.note(&payload, 2 * MS);
        let result = tally.result(Instant::now(), 0);
        assert!(near(result.corrupt, 0.75) && result.arrived == 1);
    }
}
