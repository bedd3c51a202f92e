use super::*;
use crate::{
    lab::{run::link_use::QueueUse, scenario::Scenario},
    link::{Direction, Occupancy},
};

const TWO: &str = r#"
path = ["client", "server"]
[[workload]]
name = "a"
program = "bulk"
duration = "4s"
group = "both"
[[workload]]
name = "b"
program = "bulk"
duration = "4s"
group = "both"
[[workload]]
name = "c"
program = "command"
command = ["true"]
group = "both"
"#;

fn shares(goodputs: &[(&str, Option<f64>)]) -> Vec<Option<f64>> {
    let scenario = Scenario::parse(TWO, Path::new("two.toml")).unwrap();
    let measured = |(name, goodput_bps): &(&str, Option<f64>)| Measurement {
        workload: (*name).to_owned(),
        goodput_bps: *goodput_bps,
        ..Measurement::default()
    };
    let mut measured: Vec<_> = goodputs.iter().map(measured).collect();
    divide(&scenario.groups[0].workloads, &mut measured);
    measured
        .iter()
        .map(|measured| measured.value(Metric::Share))
        .collect()
}

#[test]
fn bulk_transfers_share_and_others_do_not() {
    let some = [("a", Some(3e6)), ("b", Some(1e6)), ("c", None)];
    assert_eq!(shares(&some), [Some(0.75), Some(0.25), None]);
    assert_eq!(shares(&some[..1]), [None], "alone");
    let nothing = [("a", Some(0.0)), ("b", Some(0.0))];
    assert_eq!(shares(&nothing), [None, None], "no goodput to share");
}

#[test]
fn overhead_is_what_the_first_link_had_beyond_the_datagrams_that_were_alone() {
    let sent = DatagramsResult {
        began: Instant::now(),
        one_way_s: 0.0,
        sent: 10,
        arrived: 9,
        loss: 0.1,
        on_time: 0.9,
        delays: None,
        jitter_s: None,
        duplicates: 0.0,
        reordered: 0.0,
        corrupt: 0.0,
        goodput_bps: 1e6,
        refused: 0,
        packet_bytes: 1000,
    };
    let queue = |offered_bytes| QueueUse {
        link: "link".to_owned(),
        direction: Direction::AtoB,
        bdp_bytes: 0,
        bytes: Occupancy::default(),
        bdp: None,
        whole_bytes: Occupancy::default(),
        offered: 10,
        offered_bytes,
        dropped: 0,
        series: Vec::new(),
    };
    let links = LinkUse {
        ceiling_bps: None,
        available_bps: None,
        one_way_s: None,
        outage: None,
        queues: vec![queue(1250), queue(900)],
    };
    let overhead = |alone| {
        let mut measured = Measurement {
            datagrams: Some(sent.clone()),
            ..Measurement::default()
        };
        measured.look_at_links(links.clone(), alone);
        assert_eq!(measured.value(Metric::Loss), Some(0.1));
        assert_eq!(measured.value(Metric::DelayP99), None);
        measured.value(Metric::Overhead)
    };
    assert_eq!(overhead(true), Some(0.25));
    assert_eq!(overhead(false), None);
}

/// Ten intervals of 100 ms: five before the outage, two without data, and three after it.
fn series(bps: [f64; 10]) -> Vec<Point> {
    let point = |(index, bps)| Point {
        t_s: (index + 1) as f64 * 0.1,
        bps,
    };
    bps.into_iter().enumerate().map(point).collect()
}

#[test]
fn after_an_outage_there_is_a_first_byte_and_the_goodput_from_before() {
    let outage = OutageUse {
        began_s: 0.5,
        ended_s: 0.65,
    };
    let series = series([9.0, 9.0, 9.0, 9.0, 9.0, 0.0, 0.0, 1.0, 8.5, 9.0]);
    let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-9;
    assert!(near(resumed(&series, outage), 0.15));
    assert!(near(recovered(&series, 0.1, 0.0, outage), 0.15));
    // Two adjacent intervals carry as much only from the third on.
    assert!(near(recovered(&series, 0.1, 0.2, outage), 0.15));
    assert_eq!(recovered(&series, 0.1, 0.3, outage), None);
    assert!(near(between(&series, 0.0, outage.began_s), 9.0));
    let after = between(&series, outage.ended_s, f64::INFINITY);
    assert!(near(after, (1.0 + 8.5 + 9.0) / 4.0));
    assert_eq!(between(&series, 1.0, f64::INFINITY), None);
    let late = OutageUse {
        ended_s: 1.0,
        ..outage
    };
    assert_eq!(
        (resumed(&series, late), recovered(&series, 0.1, 0.0, late)),
        (None, None)
    );
}
