//! Hybla's formulas (Caini and Firrincieli 2004): initial window rho, 2^rho - 1 segments for each
//! acknowledgement in slow start, rho^2 / W in congestion avoidance.

use std::time::Duration;

use super::{
    Figure, Result,
    bed::{Acknowledging, Bed, Look},
};

/// The maximum rho^2 for exact checks. The kernel's Hybla, and pepd's under its name, count in
/// 1/128 of a segment per acknowledgement and truncate. Up to this value truncation costs less than
/// a tenth of the increment.
const EXACT_UP_TO: f64 = 12.8;
/// The maximum window of the kernel's Hybla.
const WINDOW_MAX: u32 = 65_535;
/// The maximum duration of a measurement.
const TIME_MAX: Duration = Duration::from_secs(40);
/// Fast enough for windows of 12.8 rho^2 at a rho of 24.
const RATE: &str = "200mbit";

const RTT0_MS: f64 = 25.0;

/// Measures the growth of `congestion`, which should follow Hybla's formulas, at a round-trip time.
///
/// # Errors
/// When the link or the namespaces cannot be made, or the kernel has no such control.
pub fn formulas(congestion: &str, rtt: Duration) -> Result<Vec<Figure>> {
    let ms = rtt.as_secs_f64() * 1e3;
    let mut figures = begin(congestion, ms)?;
    figures.push(avoidance(congestion, ms)?);
    Ok(figures)
}

fn link(ms: f64) -> String {
    format!("delay={}ms,rate={RATE},queue=100%bdp", ms / 2.0)
}

/// Returns rho as Hybla computes it: in eighths, from the minimum smoothed round trip, which is a
/// little longer than the link's.
fn rho(looks: &[Look]) -> f64 {
    let minimum = looks.iter().map(|look| look.tcp.srtt_us).min();
    (f64::from(minimum.unwrap_or_default()) / 1e3 / RTT0_MS * 8.0).floor() / 8.0
}

/// Measures the initial window and slow start.
fn begin(congestion: &str, ms: f64) -> Result<Vec<Figure>> {
    let bed = Bed::new(&link(ms), Acknowledging::EachSegment)?;
    let first = std::cell::OnceCell::new();
    let looks = bed.watch(congestion, |look| {
        let first = first.get_or_init(|| *look);
        let acks = look.tcp.segs_in - first.tcp.segs_in;
        acks >= first.tcp.snd_cwnd || look.tcp.snd_cwnd >= WINDOW_MAX || look.at > TIME_MAX
    })?;
    let (first, last) = (looks[0], looks[looks.len() - 1]);
    let acks = f64::from(last.tcp.segs_in - first.tcp.segs_in);
    let grown = f64::from(last.tcp.snd_cwnd - first.tcp.snd_cwnd);
    let rho = rho(&looks[..1]);
    let room = f64::from(WINDOW_MAX - first.tcp.snd_cwnd);
    let increment = (rho.exp2() - 1.0).min(room / acks);
    Ok(vec![
        Figure::within(
            format!("{ms} ms: initial window, segments"),
            f64::from(first.tcp.snd_cwnd),
            rho.floor(),
            0.0,
        ),
        Figure::within(
            format!("{ms} ms: slow start, segments per acknowledgement"),
            grown / acks,
            increment,
            0.1,
        ),
    ])
}

/// Measures congestion avoidance: rho^2 segments per window of acknowledgements, from a small
/// window on.
fn avoidance(congestion: &str, ms: f64) -> Result<Figure> {
    let bed = Bed::new(&link(ms), Acknowledging::EachSegment)?;
    bed.drop_first_segment()?;
    let most = EXACT_UP_TO * (ms / RTT0_MS).powi(2);
    let looks = bed.watch(congestion, |look| {
        f64::from(look.tcp.snd_cwnd) >= most || look.at > TIME_MAX
    })?;
    let avoiding: Vec<_> = looks
        .iter()
        .filter(|look| look.tcp.total_retrans > 0 && look.tcp.ca_state == 0)
        .collect();
    let (Some(first), Some(last)) = (avoiding.first(), avoiding.last()) else {
        return Err("the dropped segment was not retransmitted".into());
    };
    let squared = |look: &Look| f64::from(look.tcp.snd_cwnd).powi(2);
    // dW = rho^2 / W for each acknowledgement, so W^2 grows by 2 rho^2.
    let acks = f64::from(last.tcp.segs_in - first.tcp.segs_in);
    let slope = (squared(last) - squared(first)) / (2.0 * acks);
    Ok(Figure::within(
        format!(
            "{ms} ms: congestion avoidance, segments per window and round trip ({} to {})",
            first.tcp.snd_cwnd, last.tcp.snd_cwnd
        ),
        slope,
        rho(&looks).powi(2),
        0.1,
    ))
}
