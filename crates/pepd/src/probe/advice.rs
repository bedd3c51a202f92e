//! Figures in, a configuration and remarks out.

use std::{fmt::Write as _, time::Duration};

use pepd_api::probe::{Direction, Report, Suggestion};
use units::Rate;

/// From this round trip on, in seconds, a link is likely to have a geostationary satellite in it.
const GEO: f64 = 0.45;
/// Below this rate, in bit/s, compressing and classes pay.
const NARROW: u64 = 256_000;
/// A queue that is longer than this part of the round trip, and than this in seconds, is felt.
const QUEUE: (f64, f64) = (0.25, 0.02);
/// Losses that are worth a word, and bursts.
const LOSS: f64 = 0.001;
const BURST: f64 = 1.5;
/// Of a stated rate at least so much ought to arrive, what the link loses left out.
const ARRIVES: f64 = 0.85;
/// Bytes of headers and seals may be such a part of what is on the link.
const HEADERS: f64 = 0.08;
/// Hosts' flows that were such a part of what was on the link are worth a word.
const HOSTS: f64 = 0.2;
/// A datagram that is shorter than those of an Ethernet all the way.
const SHORT: u64 = 1400;
/// So many moments of silence are no accident.
const OUTAGES: u64 = 3;
/// Part of losses that full queues have.
const CONGESTED: f64 = 0.2;

/// What a report suggests.
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

/// What the key `rate` is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Rate(u64),
    Auto,
    /// What it says already: nothing is known.
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
            "rate: too little was sent to say anything of it. --for and --bytes give a probe more time"
                .to_owned(),
        );
        return Said::AsBefore;
    }
    let measured = report
        .link_rate
        .filter(|_| report.steady && report.carrier == "udp" && congested(report) < CONGESTED);
    let Some(measured) = measured else {
        remarks.push(
            "rate: it did not stand still long enough, or was not tried for long enough, to be stated: \"auto\" follows it. \
             --for and --bytes give a probe more time"
                .to_owned(),
        );
        return Said::Auto;
    };
    let rate = rounded(measured);
    remarks.push(format!(
        "rate: the link carried {} all the time. If it always does, and you may use all of it, state it: senders are paced at it and the \
         queue stays empty. If it changes, or others use it too, say \"auto\"",
        shown(rate)
    ));
    Said::Rate(rate)
}

/// The rates of the report are of what hosts left.
fn hosts(report: &Report, remarks: &mut Vec<String>) {
    let (Some(on_link), Some(own)) = (report.on_link, report.up.rate) else {
        return;
    };
    let own = on_link_of(own, report.up.loss) * (1.0 + report.fec_overhead);
    if on_link - own > HOSTS * on_link {
        remarks.push(format!(
            "hosts: of {} that pepd sent meanwhile about {} were theirs: the rate above is what they left. Probe while it is quiet, or \
             with `--load bulk`, at their cost",
            shown(rounded(on_link as u64)),
            shown(rounded((on_link - own) as u64)),
        ));
    }
}

/// What so much of arriving bytes takes on the link, in bit/s.
fn on_link_of(arrived: f64, loss: Option<f64>) -> f64 {
    arrived / (1.0 - loss.unwrap_or(0.0)).max(0.1) / (1.0 - HEADERS)
}

fn stated_rate(report: &Report, stated: u64, remarks: &mut Vec<String>) -> Said {
    let Some(arrived) = report.up.rate else {
        remarks
            .push("rate: too little was sent to tell whether the stated rate is right".to_owned());
        return Said::AsBefore;
    };
    let came = 1.0 - report.up.loss.unwrap_or(0.0);
    let own = on_link_of(arrived, report.up.loss);
    // Those of hosts came through as well, unless the link lost them.
    let all = report
        .on_link
        .map_or(own, |on_link| own.max(on_link * came));
    if all >= ARRIVES * stated as f64 {
        remarks.push(format!(
            "rate: the stated {} arrive. Whether the link carries more is not known, as pepd does not send faster than stated: \
             probe with `rate = \"auto\"` to find out",
            shown(stated)
        ));
        return Said::Rate(stated);
    }
    let less = rounded(all as u64);
    remarks.push(format!(
        "rate: {} are stated, and about {} came through, hosts' counted. The link carries less than is stated, or others use it too: then \
         state {}, or say \"auto\"",
        shown(stated),
        shown(less),
        shown(less),
    ));
    Said::Auto
}

/// To two digits, downward.
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
            "UDP: does not get through, or `carrier = \"tcp\"` is set: the figures are of a TCP connection, whose losses and queues nobody \
             sees, and which stands still for each loss. Let UDP pass, to the port of the hub's `identity.listen`, in the firewalls \
             between; pepd tries again by itself"
                .to_owned(),
        );
    } else if report.datagram < SHORT {
        remarks.push(format!(
            "UDP: gets through; datagrams of more than {} bytes do not, so some link or tunnel on the way has a short MTU: nothing to do, \
             but each packet costs more",
            report.datagram
        ));
    }
}

fn kind(report: &Report, remarks: &mut Vec<String>) {
    let Some(idle) = report.idle else { return };
    if idle.median_s >= GEO {
        remarks.push(
            "kind: a round trip as of a geostationary satellite, or of two hops by satellite: see \"GEO satellite\" in docs/tuning.md"
                .to_owned(),
        );
    }
    let narrow = |rate: &u64| *rate < NARROW;
    if report.link_rate.as_ref().is_some_and(narrow) {
        remarks.push(
            "kind: a narrow band: in the sites of this peer, `compress = true` for text and mail, `class = \"interactive\"` for what is \
             short and `class = \"delay_tolerant\"` for what can wait"
                .to_owned(),
        );
    }
}

fn losses(report: &Report, remarks: &mut Vec<String>) {
    let lossy = |way: &Direction| way.loss.is_some_and(|loss| loss >= LOSS);
    let bursty = |way: &Direction| lossy(way) && way.burst.is_some_and(|burst| burst >= BURST);
    let ways = [report.up, report.down];
    if congested(report) >= CONGESTED {
        remarks.push(
            "loss: packets met a full queue: the rate is above what the link has for us, or others use it too".to_owned(),
        );
    }
    if !ways.iter().any(lossy) {
        return;
    }
    let bursts = if ways.iter().any(bursty) {
        ", and comes in bursts, over which `class = \"interactive\"` spreads what repairs its messages"
    } else {
        ", one by one"
    };
    remarks.push(format!(
        "loss: the link loses packets by itself{bursts}. FEC follows it by itself ({:.1} % now, for `class = \"normal\"`); `class = \
         \"bulk\"` sends lost packets again instead, which costs less and takes a round trip. `mode = \"tunnel\"` repairs this, \
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
            "queue: round trips grew by {:.0} ms under load: what others send stands in a buffer, or ours does. A stated rate a little \
             below that of the link keeps it empty",
            longest * 1e3
        ));
    }
}

fn outages(report: &Report, remarks: &mut Vec<String>) {
    if report.outages >= OUTAGES {
        remarks.push(format!(
            "outages: {} meanwhile, of moments at least: if nobody else uses the link, `dedicated = true` with a stated rate sends through \
             them",
            report.outages
        ));
    }
}

fn unknown(report: &Report) -> Vec<String> {
    let mut unknown = vec![
        "why packets from the peer were lost: probe from there".to_owned(),
        "whether others use the link at other times, and how it is then".to_owned(),
    ];
    if report.carrier == "tcp" {
        unknown.push("loss, bursts and the longest datagram: TCP hides them".to_owned());
    }
    if report.idle.is_none() {
        unknown.push("the round trip of the idle link: nothing was heard".to_owned());
    }
    if let (Some(rate), true) = (report.down.rate, report.carrier == "udp") {
        let on_link = on_link_of(rate, report.down.loss);
        unknown.push(format!(
            "what the far end has stated for its direction, of which about {} was seen on the link",
            shown(rounded(on_link as u64))
        ));
    }
    unknown
}
