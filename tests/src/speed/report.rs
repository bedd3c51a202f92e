//! Tables, targets and JSON of the measurements.

use std::fmt;

use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde_json::{Value, json};

use super::{Summary, Variant};

/// The comparison of a figure of pepd with the direct one of the same round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// The ratio.
    Ratio,
    /// The difference.
    Added,
    /// No direct figure exists.
    Nothing,
}

/// A measured quantity with its unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quantity {
    name: String,
    unit: &'static str,
    compare: Compare,
}

impl Quantity {
    pub(super) fn new(name: String, unit: &'static str, compare: Compare) -> Self {
        Self {
            name,
            unit,
            compare,
        }
    }
}

/// The values of one quantity: a list per variant, in order of the rounds.
#[derive(Debug, Clone)]
struct Series {
    quantity: Quantity,
    values: Vec<(Variant, Vec<f64>)>,
}

impl Series {
    fn of(&self, variant: Variant) -> Option<&[f64]> {
        let found = self.values.iter().find(|(of, _)| *of == variant);
        found.map(|(_, values)| values.as_slice())
    }

    fn summary(&self, variant: Variant) -> Option<Summary> {
        self.of(variant).map(Summary::from_values)
    }

    /// Returns a variant relative to the direct path, or if that was not measured to itself without
    /// custody; round by round.
    fn compared(&self, variant: Variant) -> Option<Summary> {
        let measured: Vec<_> = self.values.iter().map(|(of, _)| *of).collect();
        let base = self.of(base(&measured, variant)?)?;
        let (direct, ours) = (base, self.of(variant)?);
        match self.quantity.compare {
            Compare::Ratio => Some(Summary::of_pairs(ours, direct, |ours, direct| {
                ours / direct
            })),
            Compare::Added => Some(Summary::of_pairs(ours, direct, |ours, direct| {
                ours - direct
            })),
            Compare::Nothing => None,
        }
    }

    fn row(&self, variants: &[Variant]) -> Vec<String> {
        let Quantity { name, unit, .. } = &self.quantity;
        let mut row = vec![name.clone(), (*unit).to_owned()];
        row.extend(variants.iter().map(|v| cell(self.summary(*v))));
        let compared = variants.iter().filter(|v| base(variants, **v).is_some());
        row.extend(compared.map(|v| cell(self.compared(*v))));
        row
    }

    fn json(&self) -> Value {
        let variants = self.values.iter().map(|(variant, values)| {
            let entry = json!({
                "summary": Summary::from_values(values),
                "values": values,
                "compared": self.compared(*variant),
            });
            (variant.name().to_owned(), entry)
        });
        let Quantity { name, unit, .. } = &self.quantity;
        json!({
            "quantity": name,
            "unit": unit,
            "variants": variants.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Returns the baseline of a variant: the direct path, or if that was not measured itself without
/// custody.
fn base(measured: &[Variant], variant: Variant) -> Option<Variant> {
    let is_there = |base: &Variant| measured.contains(base) && *base != variant;
    let direct = Some(Variant::Direct).filter(is_there);
    direct.or_else(|| variant.without_custody().filter(is_there))
}

/// All measured values.
#[derive(Debug, Clone, Default)]
pub struct Report {
    series: Vec<Series>,
    variants: Vec<Variant>,
}

impl Report {
    /// Adds the value of one more round.
    pub(super) fn record(&mut self, quantity: Quantity, variant: Variant, value: f64) {
        if !self.variants.contains(&variant) {
            self.variants.push(variant);
        }
        let known = self
            .series
            .iter()
            .position(|series| series.quantity == quantity);
        let index = known.unwrap_or_else(|| {
            let values = Vec::new();
            self.series.push(Series { quantity, values });
            self.series.len() - 1
        });
        let values = &mut self.series[index].values;
        match values.iter_mut().find(|(of, _)| *of == variant) {
            Some((_, values)) => values.push(value),
            None => values.push((variant, vec![value])),
        }
    }

    /// Returns whether all measured targets are met.
    pub fn meets_its_targets(&self) -> bool {
        self.targets().iter().all(Target::is_met)
    }

    /// Returns each measured target, with its figure.
    fn targets(&self) -> Vec<Target> {
        let pepd = self.variants.iter().filter(|v| **v != Variant::Direct);
        pepd.flat_map(|variant| self.targets_of(*variant)).collect()
    }

    /// Returns the report as JSON: every value, the summaries and the targets.
    pub fn json(&self) -> Value {
        json!({
            "quantities": self.series.iter().map(Series::json).collect::<Vec<_>>(),
            "targets": self.targets().iter().map(Target::json).collect::<Vec<_>>(),
        })
    }

    fn targets_of(&self, variant: Variant) -> Vec<Target> {
        let mut targets = Vec::new();
        for Series { quantity, .. } in &self.series {
            let against = base(&self.variants, variant);
            let limits = if against.is_some_and(|base| base != Variant::Direct) {
                limits_of_custody(quantity)
            } else {
                limits(variant, &quantity.name)
            };
            for limit in limits {
                let figure = self.figure(&quantity.name, variant, limit.figure);
                targets.extend(figure.map(|figure| Target {
                    what: format!(
                        "{}: {}{}",
                        variant.name(),
                        quantity.name,
                        limit.figure.words(against)
                    ),
                    bound: limit.bound,
                    unit: limit.figure.unit(quantity.unit),
                    figure,
                }));
            }
        }
        targets
    }

    fn figure(&self, name: &str, variant: Variant, figure: Figure) -> Option<f64> {
        let series = self.series.iter().find(|s| s.quantity.name == name)?;
        match figure {
            Figure::Itself => series.summary(variant).map(|s| s.median),
            Figure::Compared | Figure::Added => series.compared(variant).map(|s| s.median),
            Figure::AgainstOneFlow => {
                let one = name.replace("64 flows", "one flow");
                let one = self.figure(&one, variant, Figure::Itself)?;
                Some(series.summary(variant)?.median / one)
            }
        }
    }
}

impl fmt::Display for Report {
    /// Writes a table of medians with their spread, and one of targets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = markdown();
        let mut header = vec!["".to_owned(), "unit".to_owned()];
        header.extend(self.variants.iter().map(|v| v.name().to_owned()));
        let bases = self.variants.iter();
        let bases = bases.filter_map(|v| Some((v, base(&self.variants, *v)?)));
        header.extend(bases.map(|(v, base)| format!("{} to {}", v.name(), base.name())));
        table.set_header(header);
        table.add_rows(self.series.iter().map(|series| series.row(&self.variants)));
        writeln!(f, "{table}\n")?;

        let mut table = markdown();
        table.set_header(["target", "bound", "measured", ""]);
        table.add_rows(self.targets().iter().map(Target::row));
        writeln!(f, "{table}")
    }
}

/// A target and the figure that decides whether it is met.
#[derive(Debug, Clone, PartialEq)]
struct Target {
    what: String,
    bound: Bound,
    unit: &'static str,
    figure: f64,
}

impl Target {
    /// Returns whether the figure meets the bound.
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(minimum) => self.figure >= minimum,
            Bound::AtMost(most) => self.figure <= most,
        }
    }

    fn row(&self) -> [String; 4] {
        let bound = match self.bound {
            Bound::AtLeast(minimum) => format!(">= {minimum} {}", self.unit),
            Bound::AtMost(most) => format!("<= {most} {}", self.unit),
        };
        let met = if self.is_met() { "met" } else { "MISSED" };
        [
            self.what.clone(),
            bound.trim_end().to_owned(),
            format!("{:.3}", self.figure),
            met.to_owned(),
        ]
    }

    fn json(&self) -> Value {
        let (at_least, at_most) = match self.bound {
            Bound::AtLeast(minimum) => (Some(minimum), None),
            Bound::AtMost(most) => (None, Some(most)),
        };
        json!({
            "target": self.what, "at_least": at_least, "at_most": at_most,
            "unit": self.unit, "measured": self.figure, "met": self.is_met(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// The figure of a quantity that a target uses; always a median of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Itself,
    /// Share of the direct path's.
    Compared,
    /// Difference from the direct path's.
    Added,
    /// Share of one flow's.
    AgainstOneFlow,
}

impl Figure {
    fn words(self, base: Option<Variant>) -> String {
        let base = base.map_or("nothing", Variant::name);
        match self {
            Self::Itself => String::new(),
            Self::Compared => format!(", share of {base}"),
            Self::Added => format!(", added to {base}"),
            Self::AgainstOneFlow => ", share of one flow".to_owned(),
        }
    }

    fn unit(self, unit: &'static str) -> &'static str {
        match self {
            Self::Itself | Self::Added => unit,
            Self::Compared | Self::AgainstOneFlow => "",
        }
    }
}

struct Limit {
    figure: Figure,
    bound: Bound,
}

/// Returns the limits on the cost of custody while the link is good.
fn limits_of_custody(quantity: &Quantity) -> Vec<Limit> {
    let bound = match quantity.compare {
        Compare::Ratio if quantity.name.ends_with(", CPU") => Bound::AtMost(1.03),
        Compare::Ratio => Bound::AtLeast(0.97),
        _ => return Vec::new(),
    };
    let figure = Figure::Compared;
    vec![Limit { figure, bound }]
}

/// Returns the targets of a quantity.
fn limits(variant: Variant, name: &str) -> Vec<Limit> {
    let limit = |figure, bound| Limit { figure, bound };
    if variant.has_tunnel() {
        return match name {
            "datagrams of 200 B" | "datagrams of 200 B, 16 flows" => {
                vec![limit(Figure::Itself, Bound::AtLeast(150_000.0))]
            }
            // 1 Gbit/s.
            "datagrams of 1400 B" => vec![limit(Figure::Itself, Bound::AtLeast(89_300.0))],
            _ if name.ends_with(", CPU") => vec![limit(Figure::Itself, Bound::AtMost(2.0))],
            "strangers, goodput left" => vec![limit(Figure::Itself, Bound::AtLeast(0.8))],
            "strangers, sent" => vec![limit(Figure::Itself, Bound::AtLeast(95_000.0))],
            "strangers, bytes answered" => vec![limit(Figure::Itself, Bound::AtMost(1.0))],
            _ if name.contains("flow") && !name.contains("memory") && !name.contains("time") => {
                vec![limit(Figure::Itself, Bound::AtLeast(1.0))]
            }
            _ => Vec::new(),
        };
    }
    match name {
        "one flow up" | "one flow down" => vec![
            limit(Figure::Compared, Bound::AtLeast(0.4)),
            limit(Figure::Itself, Bound::AtLeast(10.0)),
        ],
        "64 flows up" | "64 flows down" => vec![limit(Figure::AgainstOneFlow, Bound::AtLeast(1.0))],
        "connect and echo" => vec![limit(Figure::Added, Bound::AtMost(150.0))],
        "memory, 1000 idle flows" => vec![limit(Figure::Itself, Bound::AtMost(8.0))],
        _ if name.ends_with(", CPU") => vec![limit(Figure::Itself, Bound::AtMost(0.2))],
        _ if name.starts_with("ping-pong") => vec![limit(Figure::Added, Bound::AtMost(60.0))],
        _ if name.starts_with("short") => vec![limit(Figure::Itself, Bound::AtLeast(3000.0))],
        _ => Vec::new(),
    }
}

fn markdown() -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table
}

fn cell(summary: Option<Summary>) -> String {
    summary.map_or(String::new(), |summary| summary.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, compare: Compare, direct: f64, spoof: f64) -> Report {
        let mut report = Report::default();
        for (variant, value) in [(Variant::Direct, direct), (Variant::Spoof, spoof)] {
            let quantity = Quantity::new(name.to_owned(), "us", compare);
            report.record(quantity, variant, value);
        }
        report
    }

    #[test]
    fn an_added_time_within_its_bound_meets_the_target() {
        let report = measured("ping-pong of 1 B", Compare::Added, 10.0, 69.0);
        let targets = report.targets();
        assert_eq!(targets.len(), 1);
        assert!(targets[0].is_met(), "{targets:?}");
    }

    #[test]
    fn an_added_time_beyond_its_bound_misses_the_target() {
        let report = measured("ping-pong of 1 B", Compare::Added, 10.0, 71.0);
        assert!(!report.targets()[0].is_met());
        assert!(report.to_string().contains("MISSED"));
    }

    #[test]
    fn without_a_direct_path_custody_is_set_against_itself_without() {
        let mut report = Report::default();
        for (variant, value) in [(Variant::SpoofAlone, 10.0), (Variant::Spoof, 9.5)] {
            let quantity = Quantity::new("one flow up".to_owned(), "Gbit/s", Compare::Ratio);
            report.record(quantity, variant, value);
        }
        let shares: Vec<f64> = report
            .targets_of(Variant::Spoof)
            .iter()
            .map(|t| t.figure)
            .collect();
        assert_eq!(shares, [0.95]);
        let table = report.to_string();
        assert!(table.contains("spoof to spoof, no custody"), "{table}");
    }

    #[test]
    fn a_share_is_of_the_direct_path() {
        let report = measured("one flow up", Compare::Ratio, 30.0, 15.0);
        let shares: Vec<f64> = report.targets().iter().map(|t| t.figure).collect();
        assert_eq!(shares, [0.5, 15.0]);
    }
}
