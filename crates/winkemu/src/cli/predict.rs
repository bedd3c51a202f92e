//! `winkemu predict`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;
use units::{Ratio, duration::Span};
use winkemu::{
    link::{
        Wink,
        predict::{Model, PredictError, Prediction, in_seconds},
    },
    write_stdout,
};

use super::{common::write_json, exit::Failure, values::Values};

pub(super) const HELP: &str = "\
The model is that of Reynolds 2006, section 3.3. Columns, in expected seconds:
  bound        sender that knows when the link is up: PERFECT / (1 - p)
  custody      node ahead of the link that holds the data and retransmits a lost interval in the
               next (equation 3.12); the first retry is free, hence less than the bound
  tcp          end-to-end TCP with its timers (equation 3.11)
  tcp-scaled   tcp with 1 + p times the intervals (equation 4.3): closer to measurements
  tcp-charged  tcp that also pays for the successful retry (as section 3.3.6 counts)
  gives up     share of transfers that TCP gives up after nine minutes; the times leave them out

Examples:
  # 20 MB over 100 Mbit/s (1.86 s without outages), down with probability 0.4, drawn every 40 ms
  winkemu predict --p 0.4 --interval 40ms --perfect 1.86s

  # lists, and ranges FROM..TO/STEP
  winkemu predict --p 0.1,0.4 --interval 40ms..1100ms/20ms --perfect 1.86s

  # the paper's grid, as JSON
  winkemu predict --p 0..0.4/0.05 --interval 40ms..1100ms/20ms --perfect 1.86s --json -";

/// Predict the duration of a transfer over a link with short outages.
#[derive(Debug, Args)]
pub(super) struct PredictCommand {
    /// Probability that an interval is down, from 0 to below 1; a value, a list or a range
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    p: Values<Ratio>,
    /// Length of an interval; a value, a list or a range
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    interval: Values<Span>,
    /// Duration of the transfer over a link that is always up
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    perfect: Span,
    /// Show only the columns bound and custody
    #[arg(long)]
    custody: bool,
    /// Write all predictions to this JSON file as well (`-` is stdout, without the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Limit of combinations, far more than a reader can use.
const PLACES_MAX: usize = 100_000;

/// Predictions for one combination of p and interval.
#[derive(Debug, Serialize)]
struct Place {
    #[serde(skip)]
    wink: Wink,
    p: f64,
    interval_s: f64,
    intervals: f64,
    bound_s: f64,
    custody_s: f64,
    tcp_s: f64,
    tcp_scaled_s: f64,
    tcp_charged_s: f64,
    tcp_gives_up: f64,
}

impl Place {
    fn new(Span(perfect): Span, wink: Wink) -> Result<Self, PredictError> {
        let prediction = Prediction::new(perfect, wink)?;
        Ok(Self {
            wink,
            p: wink.probability.get(),
            interval_s: in_seconds(wink.interval),
            intervals: prediction.intervals(),
            bound_s: prediction.seconds(Model::Bound),
            custody_s: prediction.seconds(Model::Custody),
            tcp_s: prediction.seconds(Model::Tcp),
            tcp_scaled_s: prediction.seconds(Model::TcpScaled),
            tcp_charged_s: prediction.seconds(Model::TcpCharged),
            tcp_gives_up: prediction.gives_up(),
        })
    }
}

impl PredictCommand {
    pub(super) fn execute(&self) -> Result<ExitCode, Failure> {
        let places = self.places()?;
        let mut to_stdout = false;
        if let Some(path) = &self.json {
            let report = serde_json::json!({
                "perfect_s": in_seconds(self.perfect.0),
                "predictions": places,
            });
            to_stdout = path.as_os_str() == "-";
            write_json(path, &report)?;
        }
        if !to_stdout {
            let written = write_stdout(&(self.table(&places) + "\n"));
            written
                .map_err(|error| Failure::Running(format!("cannot write to stdout: {error}")))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// All combinations, in the order of the command line.
    fn places(&self) -> Result<Vec<Place>, Failure> {
        let count = self.p.0.len() * self.interval.0.len();
        if count > PLACES_MAX {
            let text =
                format!("{count} combinations of p and interval; the maximum is {PLACES_MAX}");
            return Err(Failure::Usage(text));
        }
        let winks = self.p.0.iter().flat_map(|&probability| {
            self.interval.0.iter().map(move |&Span(interval)| Wink {
                probability,
                interval,
            })
        });
        let places: Result<_, PredictError> =
            winks.map(|wink| Place::new(self.perfect, wink)).collect();
        Ok(places?)
    }

    fn table(&self, places: &[Place]) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let custody = ["p", "interval", "bound", "custody"];
        let tcp = ["tcp", "tcp-scaled", "tcp-charged", "gives up"];
        let shown = if self.custody { &[][..] } else { &tcp };
        table.set_header(custody.iter().chain(shown));
        for place in places {
            let seconds = |seconds: f64| format!("{seconds:.2}");
            let mut row = vec![
                place.p.to_string(),
                Span(place.wink.interval).to_string(),
                seconds(place.bound_s),
                seconds(place.custody_s),
            ];
            if !self.custody {
                let times = [place.tcp_s, place.tcp_scaled_s, place.tcp_charged_s];
                row.extend(times.map(seconds));
                row.push(share(place.tcp_gives_up));
            }
            table.add_row(row);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!(
            "Expected seconds of a transfer that takes {} s over a link that is always up\n{table}",
            in_seconds(self.perfect.0)
        )
    }
}

/// Formats a probability in percent; `-` if it is negligible.
fn share(probability: f64) -> String {
    match probability * 100.0 {
        percent if percent < 0.005 => "-".to_owned(),
        percent => format!("{percent:.2}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_too_small_to_matter_are_not_shown() {
        let shares = [0.0, 0.000_049, 0.000_051, 0.5, 1.0].map(share);
        assert_eq!(shares, ["-", "-", "0.01%", "50.00%", "100.00%"]);
    }
}
