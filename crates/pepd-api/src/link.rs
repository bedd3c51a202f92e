//! State of the link, and an operator's override.

use std::{fmt, time::Duration};

use pep_core::outage::{LinkMonitor, Now, Outage};
use serde::{Deserialize, Serialize};

/// State of the link, as JSON or text. Times are in seconds; instants are Unix time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LinkReport {
    /// True if the link is up.
    pub up: bool,
    /// Source of the state: operator, carrier (of the interface), plan, tunnel, probe; assumed if
    /// no source reports it.
    pub by: String,
    /// Seconds since the last change, of earlier processes, too; without any, since this process
    /// began.
    pub for_s: f64,
    /// Remaining seconds of an operator's override, if it expires.
    pub ordered_for_s: Option<f64>,
    /// Next change by the contact plan.
    pub next_planned: Option<f64>,
    /// Seconds until that change.
    pub next_planned_in_s: Option<f64>,
    /// Gateway that pepd probes.
    #[serde(default)]
    pub gateway: Option<String>,
    /// True if the gateway has never answered, so that its silence proves nothing.
    #[serde(default)]
    pub gateway_never_answered: bool,
    /// Number of outages.
    pub outages: u64,
    /// Total duration of all outages.
    pub down_s: f64,
    /// Last outages, the latest first.
    pub history: Vec<OutageReport>,
}

/// Outage of the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutageReport {
    /// Start of the outage.
    pub began: f64,
    /// Seconds since its start.
    pub ago_s: f64,
    /// Source that reported it.
    pub by: String,
    /// Duration in seconds; none while it continues.
    pub lasted_s: Option<f64>,
}

impl OutageReport {
    fn from_outage(outage: &Outage, now: Now) -> Self {
        Self {
            began: outage.began.as_secs_f64(),
            ago_s: now.wall.saturating_sub(outage.began).as_secs_f64(),
            by: outage.by.as_str().to_owned(),
            lasted_s: outage.lasted.map(|lasted| lasted.as_secs_f64()),
        }
    }
}

impl LinkReport {
    /// Creates the report of the monitor's state at a time, without the gateway.
    pub fn from_monitor(monitor: &LinkMonitor, now: Now) -> Self {
        let since = |at: Duration| now.steady.saturating_sub(at).as_secs_f64();
        let until = |at: Duration| at.saturating_sub(now.steady).as_secs_f64();
        let (state, (outages, down)) = (monitor.state(), monitor.totals(now));
        let history = monitor.outages();
        let mut history: Vec<_> = history
            .map(|outage| OutageReport::from_outage(outage, now))
            .collect();
        history.reverse();
        let next_planned = monitor.next_planned(now);
        Self {
            up: state.up,
            by: state.by.as_str().to_owned(),
            for_s: since(state.since),
            ordered_for_s: monitor.ordered_until().map(until),
            next_planned: next_planned.map(|at| at.as_secs_f64()),
            next_planned_in_s: next_planned.map(|at| at.saturating_sub(now.wall).as_secs_f64()),
            gateway: None,
            gateway_never_answered: false,
            outages,
            down_s: down.as_secs_f64(),
            history,
        }
    }
}

/// Returns the text for the source of the link's state.
pub fn source(by: &str) -> String {
    match by {
        "assumed" => by.to_owned(),
        "operator" => "set by operator".to_owned(),
        // A tunnel has a carrier, too: UDP or TCP.
        "carrier" => "reported by interface".to_owned(),
        _ => format!("reported by {by}"),
    }
}

/// Formats whole seconds as a duration.
fn span(seconds: f64) -> String {
    match seconds.round().max(0.0) as u64 {
        0 => "0s".to_owned(),
        seconds => units::duration::format(Duration::from_secs(seconds)),
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.up { "up" } else { "down" };
        writeln!(
            f,
            "link: {state} for {}, {}",
            span(self.for_s),
            source(&self.by)
        )?;
        if let Some(left) = self.ordered_for_s {
            writeln!(f, "operator's override: {} left", span(left))?;
        }
        if let Some(left) = self.next_planned_in_s {
            writeln!(f, "next planned change: in {}", span(left))?;
        }
        if let Some(gateway) = &self.gateway {
            let answers = if self.gateway_never_answered {
                ", never answered: check `link.gateway` and `link.interface`; is ICMP echo dropped?"
            } else {
                ""
            };
            writeln!(f, "gateway: {gateway}{answers}")?;
        }
        writeln!(
            f,
            "outages: {}, {} in total",
            self.outages,
            span(self.down_s)
        )?;
        for outage in &self.history {
            let lasted = outage
                .lasted_s
                .map_or("ongoing".to_owned(), |s| format!("lasted {}", span(s)));
            let ago = span(outage.ago_s);
            writeln!(f, "  began {ago} ago, {lasted}, {}", source(&outage.by))?;
        }
        Ok(())
    }
}

/// Operator's override of the link state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderedState {
    /// Forces the link up.
    Up,
    /// Forces the link down.
    Down,
    /// Detects the state automatically.
    Auto,
}

/// Body of `PUT /v1/link`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOrder {
    /// State to set.
    pub state: OrderedState,
    /// Duration in seconds; until further notice if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<f64>,
}

/// Maximum duration of an operator's override: a year.
pub const ORDER_MAX: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_at_all_has_a_unit() {
        let report = LinkReport {
            by: "carrier".to_owned(),
            history: vec![OutageReport {
                began: 0.0,
                ago_s: 0.2,
                by: "operator".to_owned(),
                lasted_s: Some(0.4),
            }],
            ..LinkReport::default()
        };
        let expected = "link: down for 0s, reported by interface\noutages: 0, 0s in total\n  \
                        began 0s ago, lasted 0s, set by operator\n";
        assert_eq!(report.to_string(), expected);
        assert_eq!([0.6, 61.0].map(span), ["1s", "61s"]);
    }
}
