//! Text form of probe events and reports.

use std::fmt;

use super::{Causes, Direction, Phase, Progress, Report, Spread};
use crate::text::{bits, bytes, percent};

/// Widths of the first column and of the others.
const WIDTHS: (usize, usize) = (26, 24);
/// Maximum length of a line of prose.
const LINE: usize = 96;

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Idle => "idle",
            Phase::Up => "up",
            Phase::Down => "down",
        };
        let (rate, rtt) = (bits(self.rate), precise(self.rtt_s));
        write!(f, "{:>4.0} s  {phase:<5}", self.seconds.floor())?;
        if self.phase == Phase::Idle {
            write!(f, "{:>15}{:>12}", "", "")?;
        } else {
            write!(f, "{rate:>15}{:>12}", bytes(self.bytes))?;
        }
        write!(f, "   round trip {rtt}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let carrier = self.carrier.to_uppercase();
        writeln!(
            f,
            "{}: by {carrier}, datagrams of up to {} bytes\n",
            self.peer, self.datagram
        )?;
        let directions = [&self.up, &self.down];
        line(f, "", ["up", "down"].map(ToOwned::to_owned))?;
        line(
            f,
            "rate",
            directions.map(|direction| or_dash(direction.rate, bits)),
        )?;
        let median = directions.map(|direction| or_dash(direction.rate_median, bits));
        line(f, "  median of half seconds", median)?;
        let p95 = directions.map(|direction| or_dash(direction.rate_p95, bits));
        line(f, "  95th percentile", p95)?;
        let arrived = |direction: &Direction| {
            format!("{} in {:.1} s", bytes(direction.bytes), direction.seconds)
        };
        line(f, "arrived", directions.map(arrived))?;
        line(
            f,
            "packets lost",
            directions.map(|direction| or_dash(direction.loss, percent)),
        )?;
        let burst = |direction: &Direction| or_dash(direction.burst, |burst| format!("{burst:.1}"));
        line(f, "  in a row, on average", directions.map(burst))?;
        let [up, down] = directions.map(|direction| direction.rtt);
        line(f, "round trip, idle", [spread(self.idle), String::new()])?;
        line(f, "round trip, loaded", [spread(up), spread(down)])?;
        line(
            f,
            "  queue",
            directions.map(|direction| or_dash(direction.queue_s, precise)),
        )?;
        write!(f, "\n{}", self.causes)?;
        if let Some(share) = self.retransmitted {
            writeln!(f, "retransmitted: {} of the packets up", percent(share))?;
        }
        writeln!(f, "outages meanwhile: {}", self.outages)?;
        if let Some(rate) = self.link_rate {
            let how = match self.stated_rate {
                Some(_) => "as stated",
                None if self.steady => "measured, and steady",
                None => "measured, not steady",
            };
            writeln!(f, "rate of the link up: {} ({how})", bits(rate as f64))?;
        }
        writeln!(f, "\nSuggested:\n")?;
        for line in self.suggestion.toml.lines() {
            writeln!(f, "    {line}")?;
        }
        writeln!(f)?;
        list(f, "- ", &self.suggestion.remarks)?;
        writeln!(f, "\nNot known:\n")?;
        list(f, "- ", &self.suggestion.unknown)
    }
}

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "packets lost up: {} by the link, {} at a full queue, {} by outages",
            self.link, self.congestion, self.outage
        )
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, values: [String; 2]) -> fmt::Result {
    let (first, other) = WIDTHS;
    let [up, down] = values;
    let text = format!("{name:<first$}{up:<other$}{down}");
    writeln!(f, "{}", text.trim_end())
}

fn or_dash(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Formats the median and the 95th percentile.
fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |spread| {
            let p95 = precise(spread.p95_s);
            format!("{:.1} (p95 {p95})", spread.median_s * 1e3)
        },
    )
}

fn precise(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

/// Writes each item as a paragraph, wrapped between words.
fn list(f: &mut fmt::Formatter<'_>, mark: &str, items: &[String]) -> fmt::Result {
    for item in items {
        let mut column = mark.len();
        write!(f, "{mark}")?;
        for (at, word) in item.split(' ').enumerate() {
            let len = word.chars().count() + 1;
            if at > 0 && column + len > LINE {
                write!(f, "\n{:width$}", "", width = mark.len())?;
                column = mark.len();
            } else if at > 0 {
                write!(f, " ")?;
            }
            write!(f, "{word}")?;
            column += len;
        }
        writeln!(f)?;
    }
    Ok(())
}
