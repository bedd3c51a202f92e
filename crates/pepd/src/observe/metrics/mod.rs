//! Metrics of a [`Status`], in the text format of OpenMetrics 1.0.
//!
//! `table` defines them; docs/metrics.md lists them, and a test compares the two. Labels are sites,
//! peers and words of pepd, never flows or addresses, so that the size of a scrape does not depend
//! on hosts.

mod samples;
mod table;

use std::fmt;

use pepd_api::status::Status;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};

use self::table::{Kind, Metric, metrics};

/// Content type of a scrape.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encoder of a status.
#[derive(Debug)]
struct Scrape(Status);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(status) = self;
        metrics().try_for_each(|metric| write(&mut encoder, metric, status))
    }
}

fn write(encoder: &mut DescriptorEncoder<'_>, metric: Metric, status: &Status) -> fmt::Result {
    let Metric {
        name,
        kind,
        meaning,
        of,
    } = metric;
    let of_type = match kind {
        Kind::Total => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(name, meaning, None, of_type)?;
    let names = of.labels();
    for (values, value) in of.samples(status) {
        if names.is_empty() {
            return sample(metric, kind, value);
        }
        let values = values.iter().map(String::as_str);
        let labels: Vec<(&str, &str)> = names.iter().copied().zip(values).collect();
        let labels = labels.as_slice();
        sample(metric.encode_family(&labels)?, kind, value)?;
    }
    Ok(())
}

fn sample(mut encoder: MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Kind::Total => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        Kind::Gauge => encoder.encode_gauge(&value),
    }
}

/// Returns all metrics of a status, as text.
///
/// # Errors
/// None are known: the text is written into memory.
pub fn render(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("pepd");
    registry.register_collector(Box::new(Scrape(status)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[cfg(test)]
mod contrib;

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use pepd_api::testing::status;

    use super::*;

    /// Returns a metric's row of the table in docs/metrics.md.
    fn line(metric: Metric) -> String {
        let name = metric.name;
        let (kind, total) = match metric.kind {
            Kind::Total => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let unit = ["bytes_per_second", "bytes", "seconds", "ratio"].into_iter();
        let mut unit = unit.filter(|unit| name.ends_with(unit));
        let unit = unit.next().unwrap_or("").replace("_per_second", "/s");
        let (labels, meaning) = (metric.of.labels().join(", "), plain(metric.meaning));
        format!("| `pepd_{name}{total}` | {kind} | {unit} | {labels} | {meaning} |")
    }

    /// Removes links of rustdoc.
    fn plain(meaning: &str) -> String {
        meaning.replace(['[', ']'], "")
    }

    #[test]
    fn the_page_lists_every_metric_and_no_other() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = fs::read_to_string(path).expect("the page exists");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let rows: BTreeSet<_> = rows.map(ToOwned::to_owned).collect();
        let known: BTreeSet<_> = metrics().map(line).collect();
        let missing: Vec<_> = known.difference(&rows).map(String::as_str).collect();
        let unknown: Vec<_> = rows.difference(&known).map(String::as_str).collect();
        assert!(
            missing.is_empty(),
            "missing in docs/metrics.md:\n{}",
            missing.join("\n")
        );
        assert!(
            unknown.is_empty(),
            "not known to the code:\n{}",
            unknown.join("\n")
        );
    }

    #[test]
    fn every_metric_is_written_with_its_labels() {
        let page = render(status()).expect("memory");
        for Metric { name, kind, of, .. } in metrics() {
            let total = if kind == Kind::Total { "_total" } else { "" };
            let begin = match of.labels().first() {
                Some(label) => format!("\npepd_{name}{total}{{{label}=\""),
                None => format!("\npepd_{name}{total} "),
            };
            assert!(page.contains(&begin), "{begin}: {page}");
        }
        assert!(page.contains("\npepd_flows_open 3"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names: Vec<_> = names.filter_map(|line| line.split(' ').next()).collect();
        let once: BTreeSet<_> = names.iter().collect();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }
}
