//! Evaluation of a probe: figures from samples.

use std::time::Duration;

use pepd_api::probe::{Causes, Direction, Phase, Report, Spread, Suggestion};
use pepd_tunnel::probe::Sample;

use super::{Known, advice::advise};

/// Time window of rates.
const WINDOW: Duration = Duration::from_millis(500);
/// Fraction (one part in this many) of a direction's time that is its start, while the rate is
/// still being found.
const BEGINNING: u32 = 4;
/// Minimum time for a rate.
const MIN: Duration = Duration::from_millis(300);
/// Minimum number of packets for a ratio.
const PACKETS_MIN: u64 = 50;
/// Tolerance of a steady rate, above and below.
const STEADY: f64 = 0.1;
/// Time for which a steady rate has to be observed.
const STEADY_AFTER: Duration = Duration::from_secs(2);

/// Evaluates the samples of a probe, given in order.
pub fn judge(known: &Known, samples: &[Sample]) -> Report {
    let of = |phase| -> Vec<&Sample> {
        let samples = samples.iter();
        samples.filter(|sample| sample.phase == phase).collect()
    };
    let [idle, up, down] = [Phase::Idle, Phase::Up, Phase::Down].map(of);
    let spread = spread(&idle);
    let loaded: Vec<_> = up.iter().chain(&down).copied().collect();
    let last = samples.last();
    let (link_rate, steady) = link_rate(known, &up);
    let by_tcp = last.is_some_and(|last| last.by_tcp);
    let mut report = Report {
        peer: known.peer.clone(),
        carrier: if by_tcp { "tcp" } else { "udp" }.to_owned(),
        datagram: last.map_or(0, |last| last.datagram),
        stated_rate: known.stated,
        link_rate,
        steady,
        on_link: rate(settled(&up), |sample| sample.on_link),
        idle: spread,
        up: figures(&up, 0, spread, by_tcp),
        down: figures(&down, 1, spread, by_tcp),
        causes: causes(&up),
        retransmitted: resent(&up),
        fec_overhead: last.map_or(0.0, |last| last.fec_overhead),
        outages: grown(&loaded, |sample| sample.outages),
        suggestion: Suggestion::default(),
    };
    report.suggestion = advise(&report);
    report
}

fn grown(samples: &[&Sample], count: impl Fn(&Sample) -> u64) -> u64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return 0;
    };
    count(last).saturating_sub(count(first))
}

fn spread(samples: &[&Sample]) -> Option<Spread> {
    let mut rtts: Vec<_> = samples
        .iter()
        .map(|sample| sample.rtt.as_secs_f64())
        .collect();
    rtts.sort_by(f64::total_cmp);
    Some(Spread {
        min_s: *rtts.first()?,
        median_s: quantile(&rtts, 0.5)?,
        p95_s: quantile(&rtts, 0.95)?,
    })
}

/// Returns the quantile of sorted numbers for this fraction.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn figures(samples: &[&Sample], direction: usize, idle: Option<Spread>, by_tcp: bool) -> Direction {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Direction::default();
    };
    let settled = settled(samples);
    let mut rates = rates(settled);
    rates.sort_by(f64::total_cmp);
    let count = |which: usize| grown(samples, |sample| sample.packets[direction][which]);
    let [packets, lost, bursts] = [0, 1, 2].map(count);
    // TCP hides losses.
    let counts = !by_tcp && packets >= PACKETS_MIN;
    let rtt = spread(settled);
    Direction {
        seconds: (last.at - first.at).as_secs_f64(),
        bytes: last.bytes,
        rate: rate(settled, |sample| sample.bytes),
        rate_median: quantile(&rates, 0.5),
        rate_p95: quantile(&rates, 0.95),
        packets,
        loss: counts.then(|| lost as f64 / packets as f64),
        burst: (counts && bursts > 0).then(|| lost as f64 / bursts as f64),
        rtt,
        queue_s: idle
            .zip(rtt)
            .map(|(idle, rtt)| (rtt.median_s - idle.median_s).max(0.0)),
    }
}

/// Returns the samples without the start.
fn settled<'a>(samples: &'a [&'a Sample]) -> &'a [&'a Sample] {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return samples;
    };
    let from = first.at + (last.at - first.at) / BEGINNING;
    &samples[samples.partition_point(|sample| sample.at < from)..]
}

/// Returns the rate of a byte counter, in bit/s.
fn rate(samples: &[&Sample], bytes: impl Fn(&Sample) -> u64) -> Option<f64> {
    let time = samples.last()?.at - samples.first()?.at;
    let bytes = grown(samples, bytes);
    (time >= MIN).then(|| bytes as f64 * 8.0 / time.as_secs_f64())
}

/// Returns rates of half seconds.
fn rates(samples: &[&Sample]) -> Vec<f64> {
    let mut rates = Vec::new();
    let mut from = 0;
    for until in 0..samples.len() {
        if samples[until].at - samples[from].at >= WINDOW {
            rates.extend(rate(&samples[from..=until], |sample| sample.bytes));
            from = until;
        }
    }
    rates
}

/// Returns the rate that the link carries for pepd, and true if it was steady for long enough.
fn link_rate(known: &Known, up: &[&Sample]) -> (Option<u64>, bool) {
    let settled = settled(up);
    let mut rates: Vec<_> = settled.iter().map(|sample| sample.link_rate).collect();
    rates.sort_unstable();
    let (Some(first), Some(last)) = (settled.first(), settled.last()) else {
        return (known.stated, false);
    };
    let median = rates[rates.len() / 2];
    let off = |rate: u64| (rate as f64 / median as f64 - 1.0).abs();
    let within = rates.iter().all(|rate| off(*rate) <= STEADY);
    let time = last.at - first.at;
    let long = time >= STEADY_AFTER && time >= settled[0].rtt * 4;
    // A rate that was never used is a guess.
    let sent = grown(settled, |sample| sample.on_link) as f64 * 8.0 / time.as_secs_f64().max(1e-3);
    let tried = sent >= (1.0 - 2.0 * STEADY) * median as f64;
    (Some(median), within && long && tried)
}

fn causes(up: &[&Sample]) -> Causes {
    let count = |which: usize| grown(up, |sample| sample.causes[which]);
    Causes {
        link: count(0),
        congestion: count(1),
        outage: count(2),
    }
}

fn resent(up: &[&Sample]) -> Option<f64> {
    let packets = grown(up, |sample| sample.packets[0][0]);
    let resent = grown(up, |sample| sample.retransmitted);
    (packets >= PACKETS_MIN).then(|| resent as f64 / packets as f64)
}
