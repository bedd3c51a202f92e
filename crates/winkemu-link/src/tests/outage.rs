//! Timing of outages, to the nanosecond.

use super::{super::outage::Gate, *};

fn gate(options: &str, seed: u64) -> Gate {
    Gate::new(&config(options).ab.outages, seed, 0)
}

/// Instants before `end` at which the state changes.
fn edges(gate: &mut Gate, end: Nanos) -> Vec<(Nanos, bool)> {
    let (mut now, mut up, mut edges) = (0, true, Vec::new());
    while now < end {
        let state = gate.at(now);
        assert!(state.until > now, "time stands still");
        if state.up != up {
            up = state.up;
            edges.push((now, up));
        }
        now = state.until;
    }
    edges
}

/// Indices of the zero-length packets, one per millisecond, that get through.
fn survivors(options: &str, direction: Direction, seed: u64) -> Vec<u64> {
    let mut engine = Engine::new(&config(options), seed);
    for k in 0..1000 {
        engine.handle_packet(direction, &[0; 40], k * MS);
    }
    drain(&mut engine, FOREVER)
        .iter()
        .map(|arrival| arrival.packet.index)
        .collect()
}

#[test]
fn a_wink_is_down_as_often_as_stated_and_without_memory() {
    let mut gate = gate("wink=p=0.4,i=40ms", 1);
    let down: Vec<_> = (0..100_000u64).map(|k| !gate.at(k * 40 * MS).up).collect();
    let count = |states: &[bool]| states.iter().filter(|down| **down).count() as f64;
    let n = down.len() as f64;
    assert!((count(&down) / n - 0.4).abs() < 3.0 * (0.24 / n).sqrt());
    let twice: Vec<_> = down.windows(2).map(|w| w[0] && w[1]).collect();
    assert!((count(&twice) / n - 0.16).abs() < 3.0 * (3.0 * 0.1344 / n).sqrt());
}

#[test]
fn a_wink_is_the_same_in_both_directions_and_whatever_the_traffic() {
    let options = "wink=p=0.4,i=10ms";
    let forth = survivors(options, Direction::AtoB, 1);
    assert_eq!(forth, survivors(options, Direction::BtoA, 1));
    assert_ne!(forth, survivors(options, Direction::AtoB, 2));
    // Each interval has ten packets: all arrive, or none.
    let whole = forth
        .chunk_by(|a, b| a / 10 == b / 10)
        .all(|interval| interval.len() == 10);
    assert!(whole, "{forth:?}");
    // A packet every 100 ms meets the same states as one every millisecond.
    let mut engine = engine(options);
    for k in 0..10 {
        engine.handle_packet(Direction::AtoB, &[0; 1500], k * 100 * MS);
    }
    let sparse: Vec<_> = drain(&mut engine, FOREVER)
        .iter()
        .map(|a| a.packet.index * 100)
        .collect();
    let dense: Vec<_> = forth.into_iter().filter(|k| k % 100 == 0).collect();
    assert_eq!(sparse, dense);
}

#[test]
fn a_wink_of_other_links_differs() {
    let config = config("wink=p=0.5,i=10ms");
    let states = |link: u64| -> Vec<bool> {
        let mut gate = Gate::new(&config.ab.outages, 1, link);
        (0..64).map(|k| gate.at(k * 10 * MS).up).collect()
    };
    assert_ne!(states(0), states(1));
}

#[test]
fn a_wink_changes_at_the_end_of_its_interval_and_not_before() {
    let mut gate = gate("wink=p=0.5,i=10ms", 1);
    for k in 0..100 {
        let (begin, end) = (k * 10 * MS, (k + 1) * 10 * MS);
        let state = gate.at(begin);
        assert_eq!(state, gate.at(end - 1));
        assert_eq!(state.until, end);
    }
}

#[test]
fn a_wink_that_is_never_or_always_down() {
    assert_eq!(survivors("wink=p=0,i=1ms", Direction::AtoB, 1).len(), 1000);
    assert!(survivors("wink=p=1,i=1ms", Direction::AtoB, 1).is_empty());
    let times = through("wink=p=1,i=1ms,queued=hold", &[(0, 100)]);
    assert!(
        times.is_empty(),
        "packets left a link that is never up: {times:?}"
    );
}

#[test]
fn periodic_outages_begin_and_end_on_time() {
    let found = edges(&mut gate("periodic=up=9s,down=1s", 1), 30 * SECOND);
    let expected = [9, 10, 19, 20, 29].map(|s| (s * SECOND, s % 10 == 0));
    assert_eq!(found, expected);
    let found = edges(&mut gate("periodic=up=9s,down=1s,first=0", 1), 12 * SECOND);
    assert_eq!(found, [0, 1, 10, 11].map(|s| (s * SECOND, s % 10 == 1)));
}

#[test]
fn random_outages_have_their_means() {
    let mut gate = gate("onoff=up=20s,down=2s", 1);
    let edges = edges(&mut gate, 400_000 * SECOND);
    let (mut up, mut down, mut before) = (Vec::new(), Vec::new(), 0);
    for (at, is_up) in edges {
        let list = if is_up { &mut down } else { &mut up };
        list.push((at - before) as f64 / SECOND as f64);
        before = at;
    }
    for (list, mean) in [(up, 20.0), (down, 2.0)] {
        let n = list.len() as f64;
        let found = list.iter().sum::<f64>() / n;
        assert!(
            (found - mean).abs() < 3.0 * mean / n.sqrt(),
            "{found}, not {mean}"
        );
    }
}

#[test]
fn random_outages_can_be_asked_about_the_past() {
    let mut gate = gate("onoff=up=20ms,down=2ms", 1);
    let before: Vec<_> = (0..100).map(|k| gate.at(k * 7 * MS)).collect();
    gate.at(SECOND * 100);
    let after: Vec<_> = (0..100).map(|k| gate.at(k * 7 * MS)).collect();
    assert_eq!(before, after);
}

#[test]
fn scripts_and_contacts_are_each_others_opposite() {
    let mut script = gate("outages=10s+2s,30s+500ms,11s+2s", 1);
    let expected = [
        (10_000, false),
        (13_000, true),
        (30_000, false),
        (30_500, true),
    ];
    assert_eq!(
        edges(&mut script, 60 * SECOND),
        expected.map(|(ms, up)| (ms * MS, up))
    );
    let mut contacts = gate("contacts=0s+10s,13s+17s,30500ms+29500ms", 1);
    let mut expected = edges(&mut script, 60 * SECOND);
    expected.push((60 * SECOND, false));
    assert_eq!(edges(&mut contacts, 61 * SECOND), expected);
    assert_eq!(contacts.next_up(60 * SECOND), FOREVER);
}

#[test]
fn no_outages_and_no_contacts_have_a_word() {
    assert_eq!(edges(&mut gate("outages=none", 1), 60 * SECOND), []);
    assert_eq!(
        edges(&mut gate("contacts=none", 1), 60 * SECOND),
        [(0, false)]
    );
    let none: Spans = "none".parse().unwrap();
    assert_eq!(none.to_string(), "none");
    assert!("".parse::<Spans>().is_err());
}

#[test]
fn contact_plans_and_csv_are_read_from_files() {
    let plan = "# ION\na range +0 +3600 1 2 1\na contact +10 +20 1 2 100000\n\
        a contact +10 +20 2 1 100000\na contact +15 +30 1 2 100000\na contact +50 +60.5 1 2 1\n";
    let options: LinkOptions = "contacts=@plan".parse().unwrap();
    let config = options.resolve(&mut |_| Ok(plan.to_owned())).unwrap();
    let mut gate = Gate::new(&config.ab.outages, 1, 0);
    let expected = [
        (0, false),
        (10_000, true),
        (30_000, false),
        (50_000, true),
        (60_500, false),
    ];
    assert_eq!(
        edges(&mut gate, 100 * SECOND),
        expected.map(|(ms, up)| (ms * MS, up))
    );
    let options: LinkOptions = "outages=@csv".parse().unwrap();
    let text = "from,to\n1,2\n2.5,3\n";
    let config = options.resolve(&mut |_| Ok(text.to_owned())).unwrap();
    let mut gate = Gate::new(&config.ab.outages, 1, 0);
    let expected = [(1000, false), (2000, true), (2500, false), (3000, true)];
    assert_eq!(
        edges(&mut gate, 9 * SECOND),
        expected.map(|(ms, up)| (ms * MS, up))
    );
}

#[test]
fn several_reasons_add_up() {
    let mut gate = gate("outages=10s+2s,20s+5s,periodic=up=11s,down=1s", 1);
    let expected = [10, 12, 20, 25, 35, 36].map(|s| s * SECOND);
    let found: Vec<_> = edges(&mut gate, 40 * SECOND)
        .iter()
        .map(|edge| edge.0)
        .collect();
    // The periodic schedule is down from 11 to 12, 23 to 24, 35 to 36.
    assert_eq!(found, expected);
}

#[test]
fn a_silent_outage_loses_what_leaves_the_wire_while_it_lasts() {
    // 1000 B take 1 ms; the link is down from 2 ms to 4 ms.
    let sent: Vec<_> = (0..6).map(|_| (0, 1000)).collect();
    let times = through("rate=8mbit,outages=2ms+2ms", &sent);
    assert_eq!(times, [(0, MS), (3, 4 * MS), (4, 5 * MS), (5, 6 * MS)]);
}

#[test]
fn a_known_outage_stops_the_wire_in_the_middle_of_a_packet() {
    let sent = [(0, 1000), (0, 1000), (0, 1000)];
    let times = through("rate=8mbit,outages=1500us+10ms,queued=hold", &sent);
    assert_eq!(times, [(0, MS), (1, 12 * MS), (2, 13 * MS)]);
    let lone = through(
        "outages=5ms+5ms,queued=hold",
        &[(4 * MS, 9), (6 * MS, 9), (6 * MS, 9)],
    );
    assert_eq!(
        lone,
        [(0, 4 * MS), (1, 10 * MS), (2, 10 * MS)],
        "also without a rate limit"
    );
}

#[test]
fn packets_in_flight_pass_drop_or_wait() {
    // Down from 10 to 30 ms, 8 ms of flight.
    let sent: Vec<_> = [1, 2, 5, 9, 29, 30].map(|ms| (ms * MS, 100)).to_vec();
    let run = |rule: &str| {
        let times = through(
            &format!("delay=8ms,outages=10ms+20ms,in-flight={rule}"),
            &sent,
        );
        times
            .iter()
            .map(|(k, at)| (*k, at / MS))
            .collect::<Vec<_>>()
    };
    assert_eq!(run("pass"), [(0, 9), (1, 10), (2, 13), (3, 17), (5, 38)]);
    // The second packet would arrive exactly at link-down, when nothing is in flight any more.
    assert_eq!(run("drop"), [(0, 9), (1, 10), (5, 38)]);
    assert_eq!(run("hold"), [(0, 9), (1, 30), (2, 30), (3, 30), (5, 38)]);
}

#[test]
fn one_direction_may_have_an_outage_of_its_own() {
    let mut options: LinkOptions = "delay=1ms".parse().unwrap();
    options.ba = Some("outages=0s+1s".parse().unwrap());
    let config = options.resolve_without_files().unwrap();
    let mut engine = Engine::new(&config, 1);
    for direction in Direction::BOTH {
        engine.handle_packet(direction, &[0; 100], 0);
    }
    let arrivals = drain(&mut engine, FOREVER);
    assert_eq!(arrivals.len(), 1);
    assert_eq!(arrivals[0].direction, Direction::AtoB);
    assert_eq!(engine.stats(Direction::BtoA).dropped.outage, 1);
}

#[test]
fn how_long_a_link_is_up_is_known_without_traffic() {
    let config = config("outages=2s+3s,8s+1s");
    let mut available = Availability::new(&config.ab, 1, 0);
    let second = 1000 * MS;
    assert_eq!(available.up_within(0, 10 * second), 6 * second);
    assert_eq!(available.up_within(3 * second, 6 * second), second);
    assert_eq!(
        available.last_outage(0, 10 * second),
        Some((8 * second, 9 * second))
    );
    assert_eq!(
        available.last_outage(0, 8 * second),
        Some((2 * second, 5 * second))
    );
    assert_eq!(available.last_outage(5 * second, 8 * second), None);
    let mut winking = Availability::new(&self::config("wink=p=0.4,i=40ms").ab, 1, 0);
    let up = winking.up_within(0, 4000 * second) as f64 / 4e12;
    assert!((up - 0.6).abs() < 0.01, "{up}");
}
