use super::*;
use crate::lab::{run::Measurement, scenario::Metric};

const SCENARIO: &str = r#"
title = "A test"
path = ["client", "link", "server"]
seeds = [1, 2, 3]
baseline = "direct"

[link]
delay = "1ms"

[matrix]
"link.loss" = ["0", "1%"]

[[variant]]
name = "direct"
[[variant]]
name = "other"

[[workload]]
name = "up"
program = "bulk"
duration = "4s"
warmup = "1s"

[[check]]
variant = "other"
baseline = "direct"
mean_ratio_min = 1.5
"#;

/// Goodput in Mbit/s by variant, point and seed.
fn results(value: impl Fn(&RunSpec) -> Option<f64>) -> Results {
    results_of(SCENARIO, value)
}

fn results_of(scenario: &str, value: impl Fn(&RunSpec) -> Option<f64>) -> Results {
    let scenario = Scenario::parse(scenario, Path::new("test.toml")).unwrap();
    let specs = scenario.runs();
    let result = |spec: &RunSpec| {
        let value = value(spec);
        let series: Vec<_> = (1..5)
            .map(|t| json!({"t_s": t as f64, "bps": value.unwrap_or(0.0) * 1e6}))
            .collect();
        RunResult {
            outcome: match value {
                Some(_) => Outcome::Good,
                None => Outcome::Late {
                    reason: "busy".to_owned(),
                },
            },
            attempt: 1,
            took_s: 4.0,
            cpu_pressure: Some(0.9 * spec.point[0] as f64),
            measurements: vec![Measurement {
                workload: "up".to_owned(),
                goodput_bps: Some(value.unwrap_or(999.0) * 1e6),
                retransmitted_bytes: value.map(|value| (value * 1000.0) as u64),
                detail: json!({ "series": series }),
                ..Measurement::default()
            }],
            links: BTreeMap::new(),
            pepds: BTreeMap::new(),
        }
    };
    let planned = specs.len();
    let results: Vec<_> = specs.iter().map(result).collect();
    let runs = specs.into_iter().zip(results).collect();
    let circumstances = Circumstances {
        file: Path::new("test.toml"),
        jobs: 2,
        started: SystemTime::UNIX_EPOCH,
        took: Duration::from_secs(9),
        controls: BTreeMap::from([("hybla".to_owned(), "hybla_bpf".to_owned())]),
        planned,
    };
    Results::new(&scenario, &circumstances, runs)
}

fn double_except_last(spec: &RunSpec) -> Option<f64> {
    let base = spec.seed as f64 * (1.0 + spec.point[0] as f64);
    Some(base * (1.0 + spec.variant as f64))
}

#[test]
fn figures_are_taken_over_the_seeds() {
    let results = results(double_except_last);
    let cell = results
        .summary
        .find("up", &[1], "other", Metric::Goodput)
        .unwrap();
    assert_eq!(cell.values, [4e6, 8e6, 12e6]);
    assert_eq!(
        (cell.mean, cell.median, cell.min, cell.max),
        (8e6, 8e6, 4e6, 12e6)
    );
    assert_eq!(cell.deviation, 4e6);
    assert!(
        results
            .summary
            .find("up", &[1], "other", Metric::Seconds)
            .is_none()
    );
}

#[test]
fn the_table_shows_medians_spreads_and_ratios() {
    let text = results(double_except_last).to_text();
    for part in [
        "Goodput at the receiver, Mbit/s",
        "of 3 runs",
        "4.00 (2.00\u{2013}6.00)  \u{d7}2.00",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn runs_on_a_busy_machine_are_left_out_and_said_to_be() {
    let results = results(|spec| double_except_last(spec).filter(|_| spec.seed != 2));
    let cell = results
        .summary
        .find("up", &[0], "direct", Metric::Goodput)
        .unwrap();
    assert_eq!(cell.values, [1e6, 3e6]);
    assert_eq!(results.late(), 4);
    assert!(
        results.to_text().contains("4 of 12 runs left out"),
        "{}",
        results.to_text()
    );
}

#[test]
fn cpu_contention_is_reported_and_excuses_broken_checks() {
    let text = results(double_except_last).to_text();
    assert!(text.contains("in 6 of 12 runs"), "{text}");
    assert!(!text.contains("inconclusive"), "{text}");
    let broken = results(|_| Some(1.0));
    assert_eq!(broken.starved(), 6);
    let text = broken.to_text();
    assert!(text.contains("broken checks are inconclusive"), "{text}");
    let late = results(|_| None);
    assert_eq!(late.starved(), 0, "these are late");
}

#[test]
fn checks_hold_or_break_and_break_without_data() {
    let good = results(double_except_last);
    assert!(good.checks_hold());
    assert!(
        good.to_text().contains(
            "holds  up, link.loss 1%: mean goodput of `other` / `direct` = 2.000 (>= 1.5)"
        ),
        "{}",
        good.to_text()
    );
    let equal = results(|spec| Some(spec.seed as f64));
    assert!(!equal.checks_hold());
    assert!(equal.to_text().contains("BROKEN"), "{}", equal.to_text());
    let missing = results(|spec| (spec.variant == 0).then_some(1.0));
    assert!(!missing.checks_hold());
    assert!(
        missing.to_text().contains("no data"),
        "{}",
        missing.to_text()
    );
}

/// Results with other checks: the verdict, and its text by point.
fn checked(checks: &str) -> (bool, String) {
    let head = SCENARIO.split("[[check]]").next().unwrap();
    let results = results_of(&format!("{head}{checks}"), double_except_last);
    let words = checks::text(&results.checks).unwrap_or_default();
    (results.checks_hold(), words)
}

#[test]
fn absolute_bounds_are_of_means_and_need_no_baseline() {
    let (holds, text) = checked("[[check]]\nvariant = \"direct\"\nmin = \"3Mbit/s\"");
    assert!(!holds);
    let expected = [
        "BROKEN up, link.loss 0: mean goodput of `direct` = 2.00 Mbit/s (>= 3.00 Mbit/s)",
        "holds  up, link.loss 1%: mean goodput of `direct` = 4.00 Mbit/s (>= 3.00 Mbit/s)",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    let missing = "[[check]]\nvariant = \"direct\"\nmetric = \"share\"\nmax = 1";
    let (holds, text) = checked(missing);
    assert!(!holds && text.contains("= no data (<= 100 %)"), "{text}");
}

#[test]
fn a_check_for_some_points_says_nothing_of_others() {
    let bounds = "metric = \"retransmitted\"\nmax = \"2kB\"\nat = { \"link.loss\" = \"0\" }";
    let (holds, text) = checked(&format!("[[check]]\nvariant = \"direct\"\n{bounds}"));
    assert!(holds, "{text}");
    let expected = "holds  up, link.loss 0: mean retransmitted of `direct` = 2.00 kB (<= 2.00 kB)";
    assert_eq!(text, expected);
}

#[test]
fn a_ratio_and_a_mean_may_be_bounded_together() {
    let bounds = "mean_ratio_max = 2.0\nmax = \"5Mbit/s\"";
    let check = format!("[[check]]\nvariant = \"other\"\nbaseline = \"direct\"\n{bounds}");
    let (holds, text) = checked(&check);
    assert!(!holds, "{text}");
    let expected = [
        "holds  up, link.loss 0: mean goodput of `other` / `direct` = 2.000 (<= 2); \
         mean goodput of `other` = 4.00 Mbit/s (<= 5.00 Mbit/s)",
        "BROKEN up, link.loss 1%: mean goodput of `other` / `direct` = 2.000 (<= 2); \
         mean goodput of `other` = 8.00 Mbit/s (<= 5.00 Mbit/s)",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_json_is_complete() {
    let json = results(double_except_last).to_json();
    assert_eq!(json["text"], SCENARIO);
    assert_eq!(json["controls"]["hybla"], "hybla_bpf");
    assert_eq!(json["runs"].as_array().unwrap().len(), 12);
    assert_eq!(json["runs"][1]["variant"], "other");
    assert_eq!(json["runs"][1]["point"]["link.loss"], "0");
    assert_eq!(json["runs"][1]["outcome"], "good");
    assert_eq!(json["summary"][0]["metric"], "goodput");
    assert_eq!(json["checks"][0]["holds"], true);
    assert_eq!(json["checks"][0]["unit"], "Mbit/s");
    assert_eq!(json["checks"][0]["scale"], 1e-6);
    assert_eq!(
        json["checks"][0]["text"],
        "up, link.loss 0: mean goodput of `other` / `direct` = 2.000 (>= 1.5)"
    );
    assert_eq!(json["source"], Value::Null);
}

#[test]
fn the_json_has_what_formats_a_table_beside_a_paper() {
    let keys = "paper = \"urke2011\"\nfigure = [\"6.4\"]\nremark = \"Why.\"";
    let reference =
        "[[reference]]\nname = \"Urke\"\nmetric = \"goodput\"\nvalues = [\"none\", \"1Mbit/s\"]";
    let text = format!("{keys}\n{SCENARIO}\n{reference}");
    let json = results_of(&text, double_except_last).to_json();
    assert_eq!(
        json["source"],
        json!({"paper": "urke2011", "figures": ["6.4"], "remark": "Why."})
    );
    assert_eq!(
        json["metrics"],
        json!([{
            "name": "goodput", "label": "Goodput at the receiver", "unit": "Mbit/s", "scale": 1e-6,
        }])
    );
    assert_eq!(
        json["matrix"],
        json!([{ "key": "link.loss", "values": ["0", "1%"] }])
    );
    assert_eq!(
        json["references"],
        json!([{ "name": "Urke", "metric": "goodput", "values": [null, 1e6] }])
    );
}

#[test]
fn plots_are_written_as_svg_and_png() {
    let directory = tempfile::tempdir().unwrap();
    let paths = results(double_except_last)
        .write_plots(directory.path())
        .unwrap();
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy())
        .collect();
    let expected = [
        "test-goodput.svg",
        "test-goodput.png",
        "test-up-over-time.svg",
        "test-up-over-time.png",
    ];
    assert_eq!(names, expected);
    let svg = fs::read_to_string(&paths[0]).unwrap();
    for text in ["A test", "direct", "other", "Mbit/s", "loss"] {
        assert!(svg.contains(text), "{text}");
    }
    let png = fs::read(&paths[1]).unwrap();
    assert!(
        png.starts_with(b"\x89PNG") && png.len() > 5_000,
        "{}",
        png.len()
    );
}

#[test]
fn references_stand_in_the_table_and_cross_the_bars() {
    let reference = "[[reference]]\nname = \"a model\"\nmetric = \"goodput\"\n";
    let text = format!("{SCENARIO}\n{reference}values = [\"none\", \"123Mbit/s\"]\n");
    let results = results_of(&text, double_except_last);
    let table = results.to_text();
    assert_eq!(
        (
            table.matches("a model").count(),
            table.matches("123").count()
        ),
        (1, 1),
        "{table}"
    );
    let directory = tempfile::tempdir().unwrap();
    let paths = results.write_plots(directory.path()).unwrap();
    let svg = fs::read_to_string(&paths[0]).unwrap();
    assert!(svg.contains("a model"), "{svg}");
}

#[test]
fn references_of_one_name_share_a_column_and_stand_beside_their_workload() {
    let reference =
        |rest: &str| format!("[[reference]]\nname = \"Urke\"\nmetric = \"goodput\"\n{rest}\n");
    let more = "[[workload]]\nname = \"later\"\nprogram = \"bulk\"\nduration = \"4s\"\n";
    let text = [
        SCENARIO,
        more,
        &reference("workload = \"later\"\nvalues = [\"111Mbit/s\"]"),
        &reference("at = { \"link.loss\" = \"1%\" }\nvalues = [\"222Mbit/s\"]"),
    ]
    .concat();
    let scenario = Scenario::parse(&text, Path::new("test.toml")).unwrap();
    assert_eq!(scenario.reference_names(Metric::Goodput), ["Urke"]);
    assert!(scenario.reference_names(Metric::Seconds).is_empty());
    let value = |workload, place| scenario.reference(Metric::Goodput, "Urke", workload, &[place]);
    assert_eq!(value("up", 0), None);
    assert_eq!(value("up", 1), Some(222e6));
    assert_eq!(value("later", 0), Some(111e6));
    assert_eq!(value("later", 1), Some(111e6));
    let table = results_of(&text, double_except_last).to_text();
    let counts = ["Urke", "111", "222"].map(|text| table.matches(text).count());
    assert_eq!(counts, [1, 0, 1], "{table}");
}

#[test]
fn values_have_three_significant_digits() {
    let text: Vec<_> = [0.0123, 0.9996, 9.994, 9.996, 99.94, 123.4]
        .map(significant)
        .to_vec();
    assert_eq!(text, ["0.012", "1.00", "9.99", "10.0", "99.9", "123"]);
}
