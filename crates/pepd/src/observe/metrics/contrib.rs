//! Test: the dashboard and the alerts of `contrib` refer to existing metrics, labels and commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use clap::CommandFactory as _;
use pepd_api::testing::status;
use pepd_control::cli::Cli;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use super::*;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    fs::read_to_string(path.join(name)).expect("the file exists")
}

/// Returns the labels of each metric, by its name in a scrape.
fn known() -> BTreeMap<String, Vec<&'static str>> {
    let known = metrics().map(|metric| {
        let total = if metric.kind == Kind::Total {
            "_total"
        } else {
            ""
        };
        (format!("pepd_{}{total}", metric.name), metric.of.labels())
    });
    known.collect()
}

/// Returns the words of an expression that are, or look like, metrics of pepd.
fn named(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("pepd_")).collect()
}

#[track_caller]
fn assert_known(expression: &str) {
    let (named, known) = (named(expression), known());
    for name in &named {
        assert!(
            known.contains_key(*name),
            "there is no {name}: {expression}"
        );
    }
    assert!(
        !named.is_empty() || expression.contains("up{"),
        "{expression}"
    );
    let labels = known
        .iter()
        .filter(|(name, _)| named.contains(name.as_str()));
    let labels: BTreeSet<_> = labels.flat_map(|(_, labels)| labels).copied().collect();
    for label in labels_of(expression) {
        let is_known = labels.contains(label) || ["instance", "job"].contains(&label);
        assert!(is_known, "no label {label}: {expression}");
    }
}

/// Returns the labels that an expression selects or groups by.
fn labels_of(expression: &str) -> BTreeSet<&str> {
    let after = |opening: &'static str, closing: char| {
        let parts = expression.split(opening).skip(1);
        parts.filter_map(move |part| part.split(closing).next())
    };
    let selected = after("{", '}').flat_map(|part| part.split(','));
    let selected = selected.filter_map(|part| part.split(['=', '!']).next());
    let grouped = ["by (", "on ("]
        .into_iter()
        .flat_map(|word| after(word, ')'));
    let grouped = grouped.flat_map(|part| part.split(','));
    selected.chain(grouped).map(str::trim).collect()
}

/// Collects all values of a key, at any depth.
fn deep<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key));
            fields.values().for_each(|value| deep(value, key, found));
        }
        Value::Array(values) => values.iter().for_each(|value| deep(value, key, found)),
        _ => {}
    }
}

fn all<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    deep(value, key, &mut found);
    found
}

#[test]
fn the_dashboard_shows_metrics_that_there_are_from_a_source_that_is_chosen() {
    let dashboard: Value = serde_json::from_str(&read("grafana/pepd.json")).expect("JSON");
    let expressions: Vec<_> = all(&dashboard, "expr")
        .into_iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(expressions.len() > 30, "{}", expressions.len());
    expressions
        .iter()
        .for_each(|expression| assert_known(expression));
    for target in all(&dashboard, "targets")
        .into_iter()
        .flat_map(|all| all.as_array())
        .flatten()
    {
        // A legend refers to labels of the result.
        let (expression, legend) = (target["expr"].as_str(), target["legendFormat"].as_str());
        let (expression, legend) = (expression.expect("one"), legend.expect("one"));
        let known = known();
        for label in legend
            .split("{{")
            .skip(1)
            .filter_map(|part| part.split("}}").next())
        {
            let mut metrics = named(expression).into_iter().map(|name| &known[name]);
            let is_known = label == "instance" || metrics.any(|labels| labels.contains(&label));
            assert!(is_known, "{label}: {expression}");
        }
    }
    let sources = all(&dashboard, "datasource");
    assert!(
        !sources.is_empty()
            && sources
                .iter()
                .all(|source| source["uid"] == "${datasource}")
    );
    let variables = dashboard["templating"]["list"].as_array().expect("a list");
    let of_sources = |variable: &&Value| variable["type"] == "datasource";
    assert_eq!(
        variables.iter().find(of_sources).expect("one")["name"],
        "datasource"
    );
    let panels = dashboard["panels"].as_array().expect("a list");
    let numbers: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(numbers.len(), panels.len());
    let shown = |panel: &&Value| panel["type"] != "row";
    for panel in panels.iter().filter(shown) {
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{panel}"
        );
    }
}

#[test]
fn alerts_are_of_metrics_that_there_are_and_say_what_to_do() {
    let rules = YamlLoader::load_from_str(&read("prometheus/pepd.rules.yml")).expect("YAML");
    let groups = rules[0]["groups"].as_vec().expect("a list");
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_vec().expect("a list"));
    let rules: Vec<&Yaml> = rules.collect();
    assert!(rules.len() > 8, "{}", rules.len());
    let names: BTreeSet<_> = rules
        .iter()
        .map(|rule| rule["alert"].as_str().expect("a name"))
        .collect();
    assert_eq!(names.len(), rules.len());
    let commands = Cli::command();
    for rule in rules {
        let text = |value: &Yaml| {
            value
                .as_str()
                .unwrap_or_else(|| panic!("{rule:?}"))
                .to_owned()
        };
        let expression = text(&rule["expr"]);
        assert_known(&expression);
        assert!(
            ["info", "warning", "critical"].contains(&text(&rule["labels"]["severity"]).as_str())
        );
        let annotations = &rule["annotations"];
        let reported = text(&annotations["summary"]) + " " + &text(&annotations["description"]);
        let known = known();
        for label in reported.split("$labels.").skip(1) {
            let label = label.split(|c: char| !c.is_ascii_alphanumeric()).next();
            let label = label.expect("a word");
            let mut metrics = named(&expression).into_iter().map(|name| &known[name]);
            let is_known = label == "instance" || metrics.any(|labels| labels.contains(&label));
            assert!(is_known, "{label}: {expression}");
        }
        named(&reported)
            .iter()
            .for_each(|name| assert!(known.contains_key(*name), "{name}"));
        for command in reported.split("`pepd ").skip(1) {
            let word = command.split([' ', '`']).next().expect("a word");
            assert!(commands.find_subcommand(word).is_some(), "pepd {word}");
        }
    }
}

#[test]
fn a_metric_that_is_not_there_would_be_found() {
    assert_eq!(
        named("rate(pepd_a_total{b=\"pepd\"}[5m]) / pepd_c"),
        BTreeSet::from(["pepd_a_total", "pepd_c"])
    );
    assert_eq!(
        labels_of("sum by (a, b) (x{c=~\"d\", e!=\"f\"})"),
        BTreeSet::from(["a", "b", "c", "e"])
    );
    let page = render(status()).expect("memory");
    assert!(known().keys().all(|name| page.contains(name.as_str())));
}
