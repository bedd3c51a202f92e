//! Advice of a probe: suggested configuration and remarks from figures.

use std::{fmt::Write as _, time::Duration};

use pepd_api::probe::{Direction, Report, Suggestion};
use units::Rate;

/// Round trip, in seconds, from which the link probably has a geostationary satellite.
const GEO: f64 = 0.45;
/// Rate, in bit/s, below which compression and classes pay off.
const NARROW: u64 = 256_000;
/// Queueing delay that is noticeable: above this fraction of the round trip, and above this in
/// seconds.
const QUEUE: (f64, f64) = (0.25, 0.02);
/// Loss ratio that is worth a remark, and loss in bursts.
const LOSS: f64 = 0.001;
const BURST: f64 = 1.5;
/// Fraction of a configured rate that should arrive, apart from losses of the link.
const ARRIVES: f64 = 0.85;
/// Maximum acceptable fraction of headers and authentication tags on the link.
const HEADERS: f64 = 0.08;
/// Fraction of hosts' traffic on the link that is worth a remark.
const HOSTS: f64 = 0.2;
/// Size below which datagrams indicate a path with an MTU smaller than Ethernet's.
const SHORT: u64 = 1400;
/// Number of silent periods that are no coincidence.
const OUTAGES: u64 = 3;
/// Fraction of losses that full queues cause.
const CONGESTED: f64 = 0.2;

/// Returns the suggestion for a report.
pub(super) fn advise(report: &Report) -> Suggestion {
    let mut remarks = Vec::new();
    let rate = rate(report, &mut remarks);
    carrier(report, &mut remarks);
    kind(report, &mut remarks);
    losses(report, &mut remarks);
    queues(report, &mut remarks);
    outages(report, &mut remarks);
    Suggestion {
        toml: toml(report, rate),
        remarks,
        unknown: unknown(report),
    }
}

/// Suggested value of the key `rate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Rate(u64),
    Auto,
    /// The present value: nothing is known.
    AsBefore,
}

fn toml(report: &Report, rate: Said) -> String {
    let mut text = format!("[peer.{}]\n", report.peer);
    let rate = match rate {
        Said::Rate(rate) => Rate::from_bits_per_second(rate).map(|rate| rate.to_string()),
        Said::Auto => Some("auto".to_owned()),
        Said::AsBefore => None,
    };
    if let Some(rate) = rate {
        let _ = writeln!(text, "rate = \"{rate}\"");
    }
    if let Some(idle) = report.idle {
        let rtt = Duration::from_millis((idle.median_s * 1e3).ceil().max(1.0) as u64);
        let _ = writeln!(text, "rtt = \"{}\"", units::duration::format(rtt));
    }
    text
}

fn rate(report: &Report, remarks: &mut Vec<String>) -> Said {
    hosts(report, remarks);
    if let Some(stated) = report.stated_rate {
        return stated_rate(report, stated, remarks);
    }
    if report.up.rate.is_none() {
        remarks.push(
            "rate: too little was sent for a measurement. --for and --bytes give a probe more time"
                .to_owned(),
        );
        return Said::AsBefore;
    }
    let measured = report
        .link_rate
        .filter(|_| report.steady && report.carrier == "udp" && congested(report) < CONGESTED);
    let Some(measured) = measured else {
        remarks.push(
            "rate: not stable for long enough, or not tested for long enough, for a fixed value: \"auto\" follows it. \
             --for and --bytes give a probe more time"
                .to_owned(),
        );
        return Said::Auto;
    };
    let rate = rounded(measured);
    remarks.push(format!(
        "rate: the link carried a steady {}. If it always does, and pepd may use all of it, set it: senders are paced at it and the \
         queue stays empty. If it varies, or other traffic shares it, use \"auto\"",
        shown(rate)
    ));
    Said::Rate(rate)
}

/// Adds a remark if hosts' traffic reduced the measured rates.
fn hosts(report: &Report, remarks: &mut Vec<String>) {
    let (Some(on_link), Some(own)) = (report.on_link, report.up.rate) else {
        return;
    };
    let own = on_link_of(own, report.up.loss) * (1.0 + report.fec_overhead);
    if on_link - own > HOSTS * on_link {
        remarks.push(format!(
            "hosts: of {} sent during the probe about {} were theirs: the rate above is the remainder. Probe at a quiet time, or \
             with `--load bulk`, which slows their flows",
            shown(rounded(on_link as u64)),
            shown(rounded((on_link - own) as u64)),
        ));
    }
}

/// Returns the rate on the link, in bit/s, for this rate of arriving bytes.
fn on_link_of(arrived: f64, loss: Option<f64>) -> f64 {
    arrived / (1.0 - loss.unwrap_or(0.0)).max(0.1) / (1.0 - HEADERS)
}

fn stated_rate(report: &Report, stated: u64, remarks: &mut Vec<String>) -> Said {
    let Some(arrived) = report.up.rate else {
        remarks.push("rate: too little was sent to verify the configured rate".to_owned());
        return Said::AsBefore;
    };
    let came = 1.0 - report.up.loss.unwrap_or(0.0);
    let own = on_link_of(arrived, report.up.loss);
    // Hosts' bytes arrived as well, apart from losses of the link.
    let all = report
        .on_link
        .map_or(own, |on_link| own.max(on_link * came));
    if all >= ARRIVES * stated as f64 {
        remarks.push(format!(
            "rate: the configured {} arrive. pepd does not send faster than configured, so the link may carry more: \
             probe with `rate = \"auto\"` to find out",
            shown(stated)
        ));
        return Said::Rate(stated);
    }
    let less = rounded(all as u64);
    remarks.push(format!(
        "rate: {} are configured, and about {} arrived, including hosts' traffic. The link carries less, or other traffic shares it: \
         set {}, or \"auto\"",
        shown(stated),
        shown(less),
        shown(less),
    ));
    Said::Auto
}

/// Rounds down to two digits.
fn rounded(rate: u64) -> u64 {
    let digits = rate.max(1).ilog10();
    let step = 10_u64.pow(digits.saturating_sub(1));
    (rate / step * step).max(1)
}

fn shown(rate: u64) -> String {
    Rate::from_bits_per_second(rate).map_or_else(|| "0".to_owned(), |rate| rate.to_string())
}

fn congested(report: &Report) -> f64 {
    let causes = report.causes;
    let all = causes.link + causes.congestion + causes.outage;
    let minimum = report.up.packets as f64 * LOSS;
    if (causes.congestion as f64) < minimum {
        return 0.0;
    }
    causes.congestion as f64 / all.max(1) as f64
}

fn carrier(report: &Report, remarks: &mut Vec<String>) {
    if report.carrier == "tcp" {
        remarks.push(
            "UDP: blocked, or `carrier = \"tcp\"` is set: the figures are of a TCP connection, whose losses and queues are \
             hidden, and which stalls at each loss. Allow UDP to the port of the hub's `identity.listen` in the firewalls \
             between; pepd retries by itself"
                .to_owned(),
        );
    } else if report.datagram < SHORT {
        remarks.push(format!(
            "UDP: works, but not for datagrams of more than {} bytes: a link or tunnel on the path has a small MTU; no action needed, \
             but each packet costs more",
            report.datagram
        ));
    }
}

fn kind(report: &Report, remarks: &mut Vec<String>) {
    let Some(idle) = report.idle else { return };
    if idle.median_s >= GEO {
        remarks.push(
            "kind: the round trip of a geostationary satellite, or of two satellite hops: see \"GEO satellite\" in docs/tuning.md"
                .to_owned(),
        );
    }
    let narrow = |rate: &u64| *rate < NARROW;
    if report.link_rate.as_ref().is_some_and(narrow) {
        remarks.push(
            "kind: narrow band: in the sites of this peer, `compress = true` for text and mail, `class = \"interactive\"` for what is \
             short and `class = \"delay_tolerant\"` for what can wait"
                .to_owned(),
        );
    }
}

fn losses(report: &Report, remarks: &mut Vec<String>) {
    let lossy = |direction: &Direction| direction.loss.is_some_and(|loss| loss >= LOSS);
    let bursty = |direction: &Direction| {
        lossy(direction) && direction.burst.is_some_and(|burst| burst >= BURST)
    };
    let directions = [report.up, report.down];
    if congested(report) >= CONGESTED {
        remarks.push(
            "loss: packets were dropped at a full queue: the rate is above pepd's share of the link, or other traffic shares it".to_owned(),
        );
    }
    if !directions.iter().any(lossy) {
        return;
    }
    let bursts = if directions.iter().any(bursty) {
        ", in bursts, over which `class = \"interactive\"` spreads the repair packets of its messages"
    } else {
        ", one by one"
    };
    remarks.push(format!(
        "loss: the link loses packets by itself{bursts}. FEC follows it by itself ({:.1} % now, for `class = \"normal\"`); `class = \
         \"bulk\"` retransmits lost packets instead, which costs less and takes a round trip. `mode = \"tunnel\"` repairs this, \
         `\"split\"` would slow down",
        report.fec_overhead * 100.0
    ));
}

fn queues(report: &Report, remarks: &mut Vec<String>) {
    let Some(idle) = report.idle else { return };
    let longest = [report.up.queue_s, report.down.queue_s];
    let longest = longest.into_iter().flatten().fold(0.0, f64::max);
    if longest > QUEUE.1.max(QUEUE.0 * idle.median_s) {
        remarks.push(format!(
            "queue: round trips grew by {:.0} ms under load: packets of pepd, or of other traffic, wait in a buffer. A configured rate a little \
             below that of the link keeps it empty",
            longest * 1e3
        ));
    }
}

fn outages(report: &Report, remarks: &mut Vec<String>) {
    if report.outages >= OUTAGES {
        remarks.push(format!(
            "outages: {} during the probe, at least of moments: if no other traffic uses the link, `dedicated = true` with a fixed rate sends through \
             them",
            report.outages
        ));
    }
}

fn unknown(report: &Report) -> Vec<String> {
    let mut unknown = vec![
        "causes of losses from the peer: probe from there".to_owned(),
        "other traffic on the link at other times, and its effects".to_owned(),
    ];
    if report.carrier == "tcp" {
        unknown.push("loss, bursts and the largest datagram: TCP hides them".to_owned());
    }
    if report.idle.is_none() {
        unknown.push("the round trip of the idle link: no answer".to_owned());
    }
    if let (Some(rate), true) = (report.down.rate, report.carrier == "udp") {
        let on_link = on_link_of(rate, report.down.loss);
        unknown.push(format!(
            "the rate configured at the far end; about {} was seen on the link",
            shown(rounded(on_link as u64))
        ));
    }
    unknown
}
