use super::*;

const RTT: Duration = Duration::from_millis(600);
const HOUR: Duration = Duration::from_secs(3600);

fn memory() -> PathMemory {
    let mut memory = PathMemory::default();
    memory.note(HOUR, 10_000_000, RTT, 0.02, 1400);
    memory
}

#[test]
fn trust_fades_with_age() {
    let memory = memory();
    assert_eq!(memory.trust(HOUR, Some(RTT)), Trust::Full);
    assert_eq!(memory.rate_after_outage(HOUR + FRESH), Some(10_000_000));
    assert_eq!(memory.trust(2 * HOUR, Some(RTT)), Trust::Half);
    assert_eq!(memory.rate_after_outage(2 * HOUR), Some(5_000_000));
    assert_eq!(memory.trust(26 * HOUR, Some(RTT)), Trust::None);
    assert_eq!(memory.rate_after_outage(26 * HOUR), None);
}

#[test]
fn another_round_trip_is_another_path() {
    let memory = memory();
    for (rtt, rate) in [
        (RTT, Some(5_000_000)),
        (RTT / 3, None),
        (3 * RTT, None),
        (RTT * 3 / 2, Some(5_000_000)),
    ] {
        assert_eq!(memory.first_rate(HOUR, Some(rtt)), rate, "{rtt:?}");
    }
    assert_eq!(memory.first_rate(HOUR, None), Some(5_000_000));
}

#[test]
fn nothing_known_and_a_clock_set_back_give_nothing() {
    assert_eq!(PathMemory::default().first_rate(HOUR, None), None);
    assert_eq!(memory().first_rate(Duration::ZERO, None), None);
}

#[test]
fn absurd_loss_is_bounded() {
    let mut memory = memory();
    memory.note(HOUR, 1, RTT, f64::NAN, 0);
    assert_eq!(memory.loss, 0.0);
    memory.note(HOUR, 1, RTT, 7.0, 0);
    assert_eq!(memory.loss, 1.0);
}
