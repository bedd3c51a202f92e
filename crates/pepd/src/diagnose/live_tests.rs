use super::{super::State, *};

fn config(text: &str) -> Config {
    pep_core::config::parse(text).expect("a valid configuration")
}

fn plain() -> Config {
    config("[intercept]\nlan = [\"lan0\"]\n[link]\ninterface = \"wan0\"\n")
}

fn traffic() -> Traffic {
    Traffic {
        span: Duration::from_secs(60),
        since: "since pepd started 1min ago".to_owned(),
        pid: 7,
        syns: Some(0),
        ..Traffic::default()
    }
}

fn seen(interfaces: &[(&str, u64)]) -> BTreeMap<String, u64> {
    interfaces
        .iter()
        .map(|(name, ago)| ((*name).to_owned(), *ago))
        .collect()
}

#[test]
fn connections_that_arrive_elsewhere_fail_with_the_name_of_that_interface() {
    let elsewhere = Traffic {
        seen: seen(&[("lan1", 2), ("wan0", 9), ("lo", 1)]),
        ..traffic()
    };
    let found = arrivals(&plain(), &elsewhere);
    assert_eq!(found.state, State::Fail);
    let remedy = found.remedy.unwrap();
    assert!(remedy.contains("intercept.lan = [\"lan1\"]"), "{remedy}");
}

#[test]
fn no_arrivals_are_a_warning_that_does_not_suggest_the_link() {
    let found = arrivals(&plain(), &traffic());
    assert_eq!(found.state, State::Warn);
    assert!(
        found
            .seen
            .contains("no SYN has arrived by lan0 since pepd started")
    );
    let beyond = Traffic {
        seen: seen(&[("wan0", 9)]),
        ..traffic()
    };
    let found = arrivals(&plain(), &beyond);
    assert_eq!(found.state, State::Warn);
    assert!(!found.remedy.unwrap().contains("wan0"));
}

#[test]
fn arriving_connections_are_reported_by_interface() {
    let arrived = Traffic {
        syns: Some(5),
        seen: seen(&[("lan0", 3), ("lan1", 2)]),
        ..traffic()
    };
    let found = arrivals(&plain(), &arrived);
    assert_eq!(found.state, State::Ok);
    assert!(
        found.seen.ends_with("by lan0 (the last one 3 s ago)"),
        "{found}"
    );
    let old = Traffic {
        syns: None,
        ..traffic()
    };
    assert_eq!(arrivals(&plain(), &old).state, State::Unknown);
}

#[test]
fn handshakes_that_never_end_fail_once_there_are_some() {
    let of = |intercepted, accepted, half_open| {
        let traffic = Traffic {
            syns: Some(intercepted),
            intercepted,
            accepted,
            ..traffic()
        };
        interception(&plain(), &traffic, half_open).state
    };
    assert_eq!(of(0, 0, 0), State::Ok);
    assert_eq!(of(SOME - 1, 0, 1), State::Ok);
    assert_eq!(of(SOME, 0, 0), State::Fail);
    assert_eq!(of(SOME, 1, 1), State::Ok);
    assert_eq!(of(1000, 65, 65), State::Ok);
    assert_eq!(of(1000, 65, 66), State::Warn);
}

#[test]
fn connections_that_are_not_redirected_are_reported_by_cause() {
    let of = |syns, passed, held| {
        let traffic = Traffic {
            syns: Some(syns),
            passed,
            held,
            ..traffic()
        };
        interception(&plain(), &traffic, 0).state
    };
    assert_eq!(of(SOME, 0, 0), State::Warn);
    assert_eq!(of(SOME, 1, 0), State::Fail);
    assert_eq!(of(SOME, 0, 1), State::Ok);
    let left_alone = Traffic {
        syns: Some(SOME),
        left_alone: SOME,
        ..traffic()
    };
    let finding = interception(&plain(), &left_alone, 0);
    assert_eq!(finding.state, State::Info, "{finding}");
}

#[test]
fn servers_none_of_which_answers_are_a_return_path_that_is_not_there() {
    let of = |called, answered, refused, timed_out, silent| {
        let traffic = Traffic {
            called,
            answered,
            refused,
            timed_out,
            silent,
            ..traffic()
        };
        servers(&traffic).state
    };
    assert_eq!(of(0, 0, 0, 0, 0), State::Ok);
    assert_eq!(of(1, 0, 0, 0, 0), State::Ok);
    assert_eq!(of(1, 0, 0, 1, 0), State::Fail);
    assert_eq!(of(SOME, 0, 0, 0, 0), State::Fail);
    // A refusal is an answer, too.
    assert_eq!(of(SOME, 0, 1, 0, 0), State::Ok);
    assert_eq!(of(SOME, 2, 0, 0, 0), State::Ok);
    assert_eq!(of(9, 2, 0, 2, 1), State::Warn);
}

#[test]
fn what_has_come_since_is_counted_unless_another_process_counts() {
    let before = Traffic {
        syns: Some(10),
        called: 4,
        seen: seen(&[("lan0", 50)]),
        ..traffic()
    };
    let now = Traffic {
        syns: Some(12),
        called: 7,
        seen: seen(&[("lan0", 3), ("lan1", 60)]),
        ..traffic()
    };
    let watched = Duration::from_secs(10);
    let since = now.clone().since(&before, watched);
    assert_eq!((since.syns, since.called), (Some(2), 3));
    assert_eq!(since.seen, seen(&[("lan0", 3)]));
    assert!(since.since.starts_with("within 10s"), "{}", since.since);
    let another = Traffic { pid: 8, ..now };
    assert_eq!(another.clone().since(&before, watched), another);
}

#[test]
fn missing_rules_fail_and_a_closed_gate_does() {
    let none: [Vec<String>; 2] = Default::default();
    let found = rules_finding("x", 7, true, &none);
    assert!(
        found.state == State::Fail && found.seen.contains("gate"),
        "{found}"
    );
    assert_eq!(rules_finding("x", 7, false, &none).state, State::Ok);
    let one = vec!["sites: a".to_owned()];
    let missing = [one.clone(), Vec::new()];
    assert_eq!(rules_finding("x", 7, false, &missing).state, State::Fail);
    let more = [Vec::new(), one];
    assert_eq!(rules_finding("x", 7, false, &more).state, State::Warn);
}

#[test]
fn unmatched_answers_from_a_tunnel_are_no_asymmetric_path() {
    let traffic = Traffic {
        called: 9,
        unmatched: 9,
        ..traffic()
    };
    let found = servers(&traffic);
    assert_eq!(found.state, State::Fail);
    let remedy = found.remedy.unwrap();
    assert!(remedy.contains("site of mode \"packet\"") && !remedy.contains("asymmetric"));
    let answered = Traffic {
        answered: 1,
        ..traffic
    };
    assert_eq!(servers(&answered).state, State::Ok, "of something else");
}

#[test]
fn urgent_data_is_reported() {
    assert!(urgent(&traffic()).is_none());
    let some = Traffic {
        urgent: 3,
        ..traffic()
    };
    let found = urgent(&some).expect("a finding");
    assert_eq!(found.state, State::Warn);
}
