//! The link: how it is, and how an operator wants it to be seen.

use std::{fmt, time::Duration};

use pep_core::outage::{LinkMonitor, Now, Outage};
use serde::{Deserialize, Serialize};

/// How the link is, for programs as JSON and for people as text. Times are seconds, of Unix time where they are an
/// instant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LinkReport {
    /// Whether it is there.
    pub up: bool,
    /// Who says so: operator, carrier, plan, tunnel, probe, nobody.
    pub by: String,
    /// Since how many seconds.
    pub for_s: f64,
    /// For how many seconds an operator's word still holds, where it ends.
    pub ordered_for_s: Option<f64>,
    /// When it comes or goes next by plan.
    pub next_planned: Option<f64>,
    /// In how many seconds that is.
    pub next_planned_in_s: Option<f64>,
    /// The gateway that is asked whether it is there.
    #[serde(default)]
    pub gateway: Option<String>,
    /// It was asked often, and has not answered once: its silence says nothing.
    #[serde(default)]
    pub gateway_never_answered: bool,
    /// How many outages there have been.
    pub outages: u64,
    /// How long all of them were together.
    pub down_s: f64,
    /// The last ones, the latest first.
    pub history: Vec<OutageReport>,
}

/// An outage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutageReport {
    /// When it began.
    pub began: f64,
    /// How many seconds ago that was.
    pub ago_s: f64,
    /// Who said so.
    pub by: String,
    /// How many seconds it lasted; none while it does.
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
    /// Report of what is known at this time; nothing of it is about a gateway.
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

/// Whole seconds, as a duration.
fn span(seconds: f64) -> String {
    match seconds.round().max(0.0) as u64 {
        0 => "0s".to_owned(),
        seconds => units::duration::format(Duration::from_secs(seconds)),
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.up { "up" } else { "down" };
        writeln!(f, "link: {state} for {}, by {}", span(self.for_s), self.by)?;
        if let Some(left) = self.ordered_for_s {
            writeln!(f, "operator's word: for another {}", span(left))?;
        }
        if let Some(left) = self.next_planned_in_s {
            writeln!(f, "next change by plan: in {}", span(left))?;
        }
        if let Some(gateway) = &self.gateway {
            let answers = if self.gateway_never_answered {
                ", has never answered: is `link.gateway` right, is it reached through `link.interface`, is ICMP echo dropped?"
            } else {
                ""
            };
            writeln!(f, "gateway: {gateway}{answers}")?;
        }
        writeln!(f, "outages: {}, {} in all", self.outages, span(self.down_s))?;
        for outage in &self.history {
            let lasted = outage
                .lasted_s
                .map_or("lasts".to_owned(), |s| format!("lasted {}", span(s)));
            let ago = span(outage.ago_s);
            writeln!(f, "  began {ago} ago, {lasted}, by {}", outage.by)?;
        }
        Ok(())
    }
}

/// How an operator wants the link to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderedState {
    /// It is there.
    Up,
    /// It is away.
    Down,
    /// As others know it.
    Auto,
}

/// The body of `PUT /v1/link`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOrder {
    /// How.
    pub state: OrderedState,
    /// For so many seconds; without, until further notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<f64>,
}

/// The longest that an operator's word may last by itself: a year.
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
        let expected = "link: down for 0s, by carrier\noutages: 0, 0s in all\n  \
                        began 0s ago, lasted 0s, by operator\n";
        assert_eq!(report.to_string(), expected);
        assert_eq!([0.6, 61.0].map(span), ["1s", "61s"]);
    }
}
