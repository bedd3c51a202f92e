use super::*;

const RTT: Duration = Duration::from_millis(20);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn expected() -> Expected {
    Expected {
        reports: Timing {
            rtt: RTT,
            rate: Some(100_000_000),
        },
        packet: Duration::from_micros(117),
        queue: Duration::ZERO,
    }
}

/// Creates a state in which a packet was last heard at 1000 ms.
fn silence(mode: Outages) -> Silence {
    let mut silence = Silence::new(mode, &expected(), Duration::ZERO);
    assert_eq!(silence.on_packet(ms(1000), true), None);
    silence
}

#[test]
fn the_limit_is_three_missing_reports_or_packets_and_never_short() {
    assert_eq!(expected().limit(), ms(20));
    let of = |rtt, rate, packet| Expected {
        reports: Timing {
            rtt: ms(rtt),
            rate: Some(rate),
        },
        packet: ms(packet),
        queue: Duration::ZERO,
    };
    assert_eq!(
        of(600, 10_000_000, 2).limit(),
        ms(226),
        "three times twice 37.5 ms, and 1 ms"
    );
    assert_eq!(
        of(10, 1_000_000, 12).limit(),
        ms(241),
        "three beacons of 80 ms"
    );
    assert_eq!(of(10, 100_000_000, 12).limit(), ms(36), "three packets");
}

#[test]
fn each_mode_stops_when_it_says() {
    for (mode, stops_after) in [
        (Outages::AtOnce, Some(0)),
        (Outages::After(ms(300)), Some(300)),
        (Outages::Never, None),
    ] {
        let mut silence = silence(mode);
        assert_eq!(silence.on_time(ms(1020), None, RTT), None, "{mode:?}");
        let down = silence.deadline(None, RTT).unwrap();
        assert!(down > ms(1020) && down < ms(1021), "{mode:?}: {down:?}");
        assert_eq!(
            silence.on_time(down, None, RTT),
            Some(Change::Down),
            "{mode:?}"
        );
        assert_eq!(silence.on_time(down, None, RTT), None, "reported once");
        assert_eq!(
            silence.sends_from().is_some(),
            stops_after != Some(0),
            "{mode:?}"
        );
        assert_eq!(silence.is_blind(), mode == Outages::Never);
        assert_eq!(silence.may_repeat(), silence.sends_from().is_some());
        if stops_after == Some(300) {
            let stop = silence.deadline(None, RTT).unwrap();
            assert_eq!(stop, down + ms(300));
            assert_eq!(silence.on_time(stop, None, RTT), None);
        }
        silence.on_time(ms(1_000_000), None, RTT);
        assert_eq!(
            silence.sends_from().is_some(),
            stops_after.is_none(),
            "{mode:?}"
        );
        assert_eq!(silence.deadline(None, RTT), None, "{mode:?}");
        assert_eq!(
            silence.on_packet(ms(1_000_001), false),
            Some(Change::Up),
            "{mode:?}"
        );
        assert_eq!(silence.state(), State::Up);
        assert!(silence.sends_from().is_some() && !silence.is_blind());
    }
}

#[test]
fn a_peer_that_is_heard_but_does_not_hear_is_silent_too() {
    let mut silence = silence(Outages::AtOnce);
    let unanswered = Some(ms(1010));
    let by = silence.deadline(unanswered, RTT).unwrap().max(ms(1021));
    for now in 1001..2000 {
        silence.on_packet(ms(now), false);
        let due = silence.deadline(unanswered, RTT).unwrap();
        let change = silence.on_time(ms(now), unanswered, RTT);
        assert_eq!(change.is_some(), ms(now) >= due, "at {now}");
        if change.is_some() {
            // Round trip, two more in which others are reported, and the limit.
            assert_eq!(now, 1010 + 20 + 40 + 20 + 1);
            break;
        }
    }
    assert!(by > ms(1020) && silence.sends_from().is_none());
    assert_eq!(
        silence.on_packet(ms(3000), false),
        None,
        "heard, but no answer"
    );
    assert_eq!(silence.on_packet(ms(3001), true), Some(Change::Up));
    assert_eq!(
        silence.on_time(ms(3002), Some(ms(1010)), RTT),
        None,
        "the timer restarts"
    );
}

#[test]
fn hints_count_at_once() {
    for mode in [Outages::Never, Outages::AtOnce] {
        let mut silence = silence(mode);
        assert_eq!(
            silence.hint(ms(1001), LinkHint::Down, RTT),
            Some(Change::Down)
        );
        assert!(silence.sends_from().is_none());
        assert_eq!(silence.hint(ms(1002), LinkHint::Down, RTT), None);
        assert_eq!(silence.on_packet(ms(1010), true), None, "was on its way");
        assert_eq!(silence.hint(ms(9000), LinkHint::Up, RTT), Some(Change::Up));
        assert!(silence.sends_from().is_some());
        assert_eq!(
            silence.on_time(ms(9039), None, RTT),
            None,
            "nothing can have come yet"
        );
        assert_eq!(silence.on_time(ms(9041), None, RTT), Some(Change::Down));
    }
}

#[test]
fn a_link_that_is_off_stays_so_whatever_is_heard() {
    for mode in [Outages::Never, Outages::After(ms(300)), Outages::AtOnce] {
        let mut silence = silence(mode);
        let change = silence.hint(ms(1001), LinkHint::Off, RTT);
        assert_eq!(change, Some(Change::Down));
        for now in 1002..9000 {
            assert_eq!(silence.on_packet(ms(now), true), None, "{mode:?}");
            assert_eq!(silence.on_time(ms(now), None, RTT), None, "{mode:?}");
            assert!(silence.sends_from().is_none() && !silence.may_repeat());
        }
        assert_eq!(silence.hint(ms(9000), LinkHint::Up, RTT), Some(Change::Up));
        assert!(silence.sends_from().is_some());
        silence.hint(ms(9001), LinkHint::Off, RTT);
        silence.hint(ms(9002), LinkHint::Down, RTT);
        let heard = silence.on_packet(ms(9100), true);
        assert_eq!(heard, Some(Change::Up), "a hint of down may be wrong");
    }
}

#[test]
fn a_hint_that_packets_contradict_is_wrong() {
    let mut silence = silence(Outages::Never);
    silence.hint(ms(1001), LinkHint::Down, RTT);
    assert_eq!(silence.on_packet(ms(1041), false), None);
    assert_eq!(silence.on_packet(ms(1042), false), Some(Change::Up));
}

#[test]
fn without_streams_beacons_are_rare_and_with_some_the_peer_must_hear_of_it_first() {
    let mut silence = silence(Outages::AtOnce);
    silence.set_idle(ms(1000), true, RTT);
    assert_eq!(silence.on_time(ms(4000), None, RTT), None);
    silence.set_idle(ms(2000), false, RTT);
    assert_eq!(silence.on_time(ms(2040), None, RTT), None);
    assert_eq!(silence.on_time(ms(2041), None, RTT), Some(Change::Down));
}

#[test]
fn into_silence_nothing_is_sent_until_the_queue_has_drained() {
    let mut silence = silence(Outages::After(ms(1000)));
    let full = Expected {
        queue: ms(600),
        ..expected()
    };
    silence.set_expected(&full);
    assert_eq!(silence.sends_from(), Some(Duration::ZERO), "up");
    assert_eq!(silence.on_time(ms(1100), None, RTT), Some(Change::Down));
    assert_eq!(silence.sends_from(), Some(ms(1700)));
    silence.set_expected(&expected());
    assert_eq!(silence.sends_from(), Some(ms(1100)), "a short one");
    assert_eq!(silence.on_time(ms(2100), None, RTT), None);
    assert_eq!(silence.sends_from(), None, "stopped");
}

#[test]
fn packets_contradict_a_hint_as_soon_though_the_peer_rests() {
    let mut silence = silence(Outages::Never);
    silence.set_idle(ms(1000), true, RTT);
    silence.set_rests(true);
    silence.hint(ms(1001), LinkHint::Down, RTT);
    assert_eq!(silence.on_packet(ms(1042), false), Some(Change::Up));
}

#[test]
fn a_peer_at_rest_may_be_silent_for_eighteen_seconds() {
    let mut silence = silence(Outages::AtOnce);
    silence.set_idle(ms(1000), true, RTT);
    silence.set_rests(true);
    assert_eq!(silence.limit(), ms(18_000));
    silence.set_idle(ms(1000), false, RTT);
    assert_eq!(silence.limit(), expected().limit());
}
