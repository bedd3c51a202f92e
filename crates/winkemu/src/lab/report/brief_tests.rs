//! Tests of brief results.

use super::*;
use crate::lab::{
    program::Arrival,
    run::{Incomplete, Measurement},
};

const SCENARIO: &str = r#"
title = "A test"
path = ["client", "link", "server"]
baseline = "direct"

[link]
delay = "1ms"

[matrix]
"link.outages" = ["none", "2s+1s"]

[labels]
"2s+1s" = "an outage of 1 s"

[[variant]]
name = "direct"
[[variant]]
name = "fast"

[[workload]]
name = "up"
program = "curl"
size = "10MB"
partial = true

[[check]]
variant = "fast"
metric = "seconds"
max = "9s"
"#;

/// Results whose times are `seconds` by variant and point; `Err` is the part that arrived in 100 s.
fn results(seconds: [[Result<f64, u64>; 2]; 2]) -> Results {
    let scenario = Scenario::parse(SCENARIO, Path::new("test.toml")).unwrap();
    let specs = scenario.runs();
    let result = |spec: &RunSpec| {
        let time = seconds[spec.variant][spec.point[0]];
        let cut = |arrived_bytes| Incomplete {
            after_s: 100.0,
            arrived_bytes,
            bytes: 10_000_000,
        };
        let arrivals = [(1.0, 1_000_000), (5.0, 10_000_000)];
        RunResult {
            outcome: Outcome::Good,
            attempt: 1,
            took_s: 4.0,
            cpu_pressure: None,
            measurements: vec![Measurement {
                workload: "up".to_owned(),
                goodput_bps: Some(1e6),
                seconds: time.ok(),
                incomplete: time.err().map(cut),
                arrivals: arrivals.map(|(t_s, bytes)| Arrival { t_s, bytes }).into(),
                ..Measurement::default()
            }],
            links: BTreeMap::new(),
            pepds: BTreeMap::new(),
        }
    };
    let runs: Vec<_> = specs.iter().map(result).collect();
    let circumstances = Circumstances {
        file: Path::new("test.toml"),
        jobs: 2,
        started: SystemTime::UNIX_EPOCH,
        took: Duration::from_secs(9),
        controls: BTreeMap::new(),
        planned: specs.len(),
    };
    Results::new(
        &scenario,
        &circumstances,
        specs.into_iter().zip(runs).collect(),
    )
}

#[test]
fn a_table_and_a_sentence_compare_times() {
    let text = results([[Ok(20.0), Ok(22.0)], [Ok(5.0), Ok(8.0)]]).to_brief_text();
    for part in [
        "an outage of 1 s",
        "5.00 s  \u{d7}4.00",
        "8.00 s  \u{d7}2.75",
        "direct: 2.0 s longer with an outage of 1 s.",
        "fast: 4.00 times as fast as `direct`; 3.0 s longer with an outage of 1 s.",
        "All 2 checks of the scenario hold.",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_transfer_that_was_cut_off_has_a_part_and_bounds_the_gain() {
    let results = results([[Err(2_000_000), Err(1_040_000)], [Ok(5.0), Err(9_900_000)]]);
    let text = results.to_brief_text();
    for part in [
        "1.04 MB in 100 s",
        "2.00 MB in 100 s",
        "9.90 MB in 100 s",
        "5.00 s  \u{2265}\u{d7}20.0",
        "direct: no transfer complete after 100 s, when 10 to 20 % had arrived.",
        "fast: 1 of 2 transfers not complete after 100 s, when 99 % had arrived.",
        "BROKEN up, link.outages 2s+1s: mean seconds of `fast` = no data (<= 9.00 s)",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("holds"), "{text}");
    let long = results.to_text();
    assert!(
        long.contains("3 transfers incomplete at the time limit"),
        "{long}"
    );
}

#[test]
fn one_plot_shows_what_arrived() {
    let directory = tempfile::tempdir().unwrap();
    let results = results([[Ok(20.0), Ok(22.0)], [Ok(5.0), Ok(8.0)]]);
    let paths = results.write_brief_plot(directory.path()).unwrap();
    let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
    assert_eq!(names, ["test-arrived.svg", "test-arrived.png"]);
    let svg = fs::read_to_string(&paths[0]).unwrap();
    for text in ["up, outages none", "up, an outage of 1 s", "MB", "fast"] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn long_sentences_are_broken_at_words() {
    assert_eq!(transfers::wrapped("one two three", 8), "one two\n    three");
    assert_eq!(transfers::wrapped("one two", 7), "one two");
}
