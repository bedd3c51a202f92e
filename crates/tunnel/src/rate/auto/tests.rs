use proptest::prelude::*;

use super::{window::Window, *};
use crate::rate::Rate;

fn config(remembered: Option<u64>) -> ControllerConfig {
    ControllerConfig {
        rate: Rate::Auto,
        rtt: Duration::from_millis(100),
        packet: 1468,
        overhead: 0,
        remembered,
    }
}

/// Creates a sample of a path without queue, at that time in milliseconds.
fn sample(ms: u64, packets: u64) -> PathSample {
    PathSample {
        now: Duration::from_millis(ms + 100),
        number: packets - 1,
        sent_at: Duration::from_millis(ms),
        received_us: (ms + 50) * 1000,
        rtt: Duration::from_millis(100),
        packets,
        bytes: packets * 1468,
        marked: 0,
        sent_packets: packets,
        app_limited: false,
    }
}

#[test]
fn a_train_leaves_at_once_and_its_spread_is_the_first_rate() {
    let mut auto = Auto::new(&config(None), Duration::ZERO);
    let first = auto.link_rate();
    for _ in 0..16 {
        assert!(auto.rate() > 1_000_000_000_000);
        auto.on_sent(Duration::from_millis(10));
    }
    assert!(auto.rate() < 1_000_000);
    // 15 packets in 18 ms: 10 Mbit/s.
    for (us, packets) in [(60_000, 1), (77_616, 16)] {
        let sample = PathSample {
            received_us: us,
            sent_at: Duration::from_millis(10),
            ..sample(10, packets)
        };
        auto.on_sample(&sample, &[]);
    }
    assert!(auto.link_rate() > 5 * first);
    assert!(
        (7_900_000..8_100_000).contains(&auto.rate()),
        "{}",
        auto.rate()
    );
}

#[test]
fn packets_that_leave_now_and_then_are_no_train() {
    let mut auto = Auto::new(&config(None), Duration::ZERO);
    for i in 0..100 {
        auto.on_sent(Duration::from_millis(50 * i));
    }
    assert_eq!(auto.rate(), u64::MAX);
}

#[test]
fn where_a_round_trip_takes_many_seconds_little_is_dared() {
    let slow = ControllerConfig {
        rtt: Duration::from_secs(10),
        ..config(None)
    };
    let mut auto = Auto::new(&slow, Duration::ZERO);
    for _ in 0..6 {
        assert_eq!(auto.rate(), u64::MAX);
        auto.on_sent(Duration::ZERO);
    }
    assert!(auto.rate() < 10_000);
    assert_eq!(auto.safe_rate(), 2400);
}

#[test]
fn a_remembered_rate_needs_no_train() {
    let auto = Auto::new(&config(Some(10_000_000)), Duration::ZERO);
    assert_eq!(auto.rate(), 10_000_000);
}

#[test]
fn after_an_outage_the_rate_is_what_it_was_unless_that_is_long_ago() {
    let mut auto = Auto::new(&config(Some(8_000_000)), Duration::ZERO);
    for i in 1..200 {
        auto.on_sample(&sample(i * 6, i * 5), &[]);
    }
    let rate = auto.link_rate();
    assert!(rate > 9_000_000, "{rate}");
    let down = Duration::from_secs(2);
    auto.on_outage(down);
    auto.on_resume(down + Duration::from_secs(600));
    assert_eq!(auto.link_rate(), rate);
    assert!(auto.rate() >= rate);
    // Hours later it is no longer trusted: half of it, climbing.
    auto.on_outage(down);
    auto.on_resume(down + Duration::from_secs(7200));
    assert!(auto.rate().abs_diff(rate / 2) < 10, "{}", auto.rate());
}

#[test]
fn what_the_flows_limit_is_not_the_links_rate() {
    let mut auto = Auto::new(&config(Some(8_000_000)), Duration::ZERO);
    for i in 1..1000 {
        let limited = PathSample {
            app_limited: true,
            ..sample(i * 20, i)
        };
        auto.on_sample(&limited, &[]);
    }
    assert!(auto.link_rate() >= 4_000_000, "{}", auto.link_rate());
}

#[test]
fn a_window_grows_as_cubic_does() {
    // RFC 9438 §4.2: at 100 packets the maximum is reached again after cbrt(30 / 0.4) = 4.2 s,
    // after the round trip of TCP's recovery.
    let mut window = Window::new(0.0, 100.0);
    assert!(window.congestion(1.0, 0.5, 0.1));
    assert!((window.packets - 70.0).abs() < 1e-9);
    let at = |seconds: f64| {
        let mut grown = window;
        let mut now = 1.0;
        while now < 1.0 + seconds {
            now += 0.01;
            grown.grow(now, 0.1, 0.1);
        }
        grown.packets
    };
    assert_eq!(at(0.09), window.packets);
    assert!((97.0..100.5).contains(&at(4.3)), "{}", at(4.3));
    assert!(at(8.0) > 110.0);
    assert!(!window.congestion(1.05, 0.9, 0.1), "once a round trip");
}

proptest! {
    /// For any input from a peer, the rate stays in the range of the pacer.
    #[test]
    fn absurd_samples_do_no_harm(
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>(), 0..4u8), 1..200)
    ) {
        let mut auto = Auto::new(&config(None), Duration::ZERO);
        for (a, b, c, ms, app_limited, kind) in steps {
            auto.on_sent(Duration::from_millis(u64::from(ms)));
            let sample = PathSample {
                now: Duration::from_millis(u64::from(ms)),
                number: a,
                sent_at: Duration::from_micros(b >> 20),
                received_us: c,
                rtt: Duration::from_nanos(a >> 10),
                packets: b,
                bytes: a,
                marked: u64::from(kind),
                sent_packets: c,
                app_limited,
            };
            let cause = [Cause::Link, Cause::Congestion, Cause::Outage][usize::from(kind % 3)];
            let loss = LossEvent { first: a, packets: b, sent_at: sample.sent_at, cause };
            auto.on_sample(&sample, &[loss]);
            if kind == 3 {
                auto.on_outage(sample.now);
                auto.on_resume(sample.now);
            }
            let rate = auto.rate();
            prop_assert!(rate >= 1 && (rate == u64::MAX || rate <= 1_000_000_000_000), "{rate}");
            prop_assert!(auto.link_rate() >= 1);
        }
    }
}
