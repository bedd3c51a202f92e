//! Measured rate over emulated links in virtual time, with a margin. The example `rates` prints all
//! results.

mod emulated;

use std::time::Duration;

use emulated::{PACKET, Run, Setup};
use tunnel::session::Rate;

fn setup(rate: f64, rtt_ms: u64, buffer: f64, options: &str) -> Setup {
    Setup {
        rates: vec![(0.0, rate)],
        rtt: Duration::from_millis(rtt_ms),
        buffer,
        options: options.to_owned(),
        cubic: vec![],
        start: vec![0.0],
        rate: Rate::Auto,
        rounds: 60.0,
    }
}

#[test]
fn a_link_of_its_own_is_used_within_six_round_trips_and_without_a_standing_queue() {
    for (rate, rtt) in [(1e7, 20), (1e7, 100), (1e7, 600), (1e8, 20), (5e5, 528)] {
        for (buffer, loss) in [(0.25, 0.0), (1.0, 0.02), (1.0, 0.05)] {
            let options = format!(",loss={}%", loss * 100.0);
            let run = Run::new(&setup(rate, rtt, buffer, &options), 1);
            let good = rate * (1.0 - loss);
            let what = format!("{rate} bit/s, {rtt} ms, buffer {buffer}, loss {loss}");
            assert!(
                run.reaches(0.0, 0.85 * good) < 6.0,
                "{what}: {}",
                run.reaches(0.0, 0.85 * good)
            );
            assert!(
                run.rate(0, 12.0, 60.0) > 0.93 * good,
                "{what}: {}",
                run.rate(0, 12.0, 60.0)
            );
            assert!(
                run.queue(12.0, 60.0).1 < 0.5,
                "{what}: {:?}",
                run.queue(12.0, 60.0)
            );
            assert!(
                run.overflow(0.0, 60.0) < 0.02,
                "{what}: {}",
                run.overflow(0.0, f64::MAX)
            );
        }
    }
}

#[test]
fn steps_down_and_up_are_followed_within_ten_round_trips() {
    for (rtt, seed) in [(100, 1), (100, 2), (600, 1)] {
        let setup = Setup {
            rates: vec![(0.0, 1e7), (60.0, 2e6), (120.0, 8e6)],
            rounds: 160.0,
            ..setup(1e7, rtt, 1.0, ",loss=2%")
        };
        let run = Run::new(&setup, seed);
        assert!(
            run.queue(70.0, 120.0).1 < 0.5,
            "{rtt} ms: {:?}",
            run.queue(70.0, 120.0)
        );
        assert!(run.rate(0, 70.0, 120.0) > 0.9 * 2e6, "{rtt} ms");
        let up = run.reaches(120.0, 0.85 * 8e6 * 0.98);
        assert!(up < 10.0, "{rtt} ms: {up}");
    }
}

#[test]
fn what_is_lost_right_behind_the_train_does_not_stop_it() {
    for (rate, rtt) in [(1e7, 20), (2e6, 100)] {
        for seed in 0..10 {
            let run = Run::new(&setup(rate, rtt, 1.0, ",loss=5%"), seed);
            let share = run.rate(0, 12.0, 60.0) / (0.95 * rate);
            assert!(share > 0.93, "{rate} bit/s, {rtt} ms, seed {seed}: {share}");
        }
    }
}

#[test]
fn where_a_round_trip_is_three_packets_as_many_stand_in_the_queue_at_most() {
    for (loss, seed) in [(0, 1), (2, 1), (2, 2), (2, 3)] {
        let setup = Setup {
            rates: vec![(0.0, 1e7), (60.0, 2e6), (120.0, 8e6)],
            rounds: 160.0,
            ..setup(1e7, 20, 1.0, &format!(",loss={loss}%"))
        };
        let run = Run::new(&setup, seed);
        let what = format!("{loss} %, seed {seed}");
        let packets = run.queue(80.0, 120.0).1 * 2e6 * 0.02 / 8.0 / PACKET as f64;
        assert!(packets < 3.1, "{what}: {packets} packets");
        assert!(run.rate(0, 80.0, 120.0) > 0.9 * 2e6, "{what}");
        let up = run.reaches(120.0, 0.85 * 8e6 * 0.98);
        assert!(up < 10.0, "{what}: {up}");
    }
}

#[test]
fn beside_cubic_neither_starves() {
    for (rtt, buffer) in [(20, 1.0), (100, 0.25), (100, 1.0), (100, 4.0), (600, 0.25)] {
        let setup = Setup {
            cubic: vec![(30.0, 330.0)],
            rounds: 330.0,
            ..setup(1e7, rtt, buffer, "")
        };
        let run = Run::new(&setup, 1);
        let shares = [0, 1].map(|flow| run.rate(flow, 60.0, 330.0) / 1e7);
        assert!(
            shares.iter().all(|share| *share > 0.18),
            "{rtt} ms, {buffer}: {shares:?}"
        );
        assert!(
            shares[0] + shares[1] > 0.9,
            "{rtt} ms, {buffer}: {shares:?}"
        );
    }
}

#[test]
fn a_run_is_the_same_for_the_same_seed() {
    let setup = setup(1e7, 100, 1.0, ",loss=2%");
    assert_eq!(Run::new(&setup, 3).log, Run::new(&setup, 3).log);
    assert_ne!(Run::new(&setup, 3).log, Run::new(&setup, 4).log);
}

/// Sets a stated rate in Mbit/s.
fn with_stated_rate(rate: f64, setup: Setup) -> Setup {
    Setup {
        rate: Rate::Stated((rate * 1e6) as u64),
        ..setup
    }
}

#[test]
fn a_stated_rate_that_is_true_is_sent_at_from_the_first_packet_on() {
    for (rate, rtt) in [(0.5, 600), (10.0, 20), (10.0, 600), (50.0, 100)] {
        for loss in [0.0, 2.0, 8.0] {
            let options = format!(",loss={loss}%");
            let setup = with_stated_rate(rate, setup(rate * 1e6, rtt, 1.0, &options));
            let run = Run::new(&setup, 1);
            let share = run.rate(0, 1.0, 60.0) / (rate * 1e6 * (1.0 - loss / 100.0));
            assert!(share > 0.985, "{rate} Mbit/s, {rtt} ms, {loss} %: {share}");
            let first = run.reaches(0.0, 0.9 * rate * 1e6 * (1.0 - loss / 100.0));
            assert!(first < 7.0, "{rate} Mbit/s, {rtt} ms, {loss} %: {first}");
        }
    }
}

#[test]
fn a_stated_rate_that_the_link_does_not_pass_is_a_first_guess() {
    for (stated, rtt, buffer, loss) in [
        (10.0, 40, 1.0, 0.0),
        (10.0, 300, 0.5, 2.0),
        (10.0, 600, 4.0, 0.0),
        (6.0, 40, 0.5, 2.0),
        (6.0, 600, 1.0, 2.0),
        (5.1, 300, 1.0, 0.0),
    ] {
        let options = format!(",loss={loss}%");
        let setup = with_stated_rate(stated, setup(5e6, rtt, buffer, &options));
        let run = Run::new(&setup, 1);
        let what = format!("{stated} on 5 Mbit/s, {rtt} ms, {buffer} BDP, {loss} %");
        let share = run.rate(0, 3.0, 60.0) / (5e6 * (1.0 - loss / 100.0));
        assert!(share > 0.97, "{what}: {share}");
        assert!(run.overflow(3.0, 60.0) < 0.01, "{what}");
        let queue = run.queue(6.0, 60.0).1;
        assert!(queue < 0.5, "{what}: {queue}");
    }
}

#[test]
fn a_stated_rate_comes_back_once_the_link_passes_it_again() {
    for (rtt, loss) in [(40, 2.0), (300, 0.0), (600, 2.0)] {
        let setup = Setup {
            rates: vec![(0.0, 1e7), (60.0, 3e6), (120.0, 1e7)],
            rounds: 160.0,
            ..with_stated_rate(10.0, setup(1e7, rtt, 1.0, &format!(",loss={loss}%")))
        };
        let run = Run::new(&setup, 1);
        let good = 1.0 - loss / 100.0;
        assert!(run.rate(0, 63.0, 120.0) > 0.97 * 3e6 * good, "{rtt} ms");
        assert!(run.overflow(63.0, 120.0) < 0.01, "{rtt} ms");
        assert!(run.queue(66.0, 120.0).1 < 0.5, "{rtt} ms");
        let up = run.reaches(120.0, 0.93 * 1e7 * good);
        assert!(up < 10.0, "{rtt} ms: {up}");
    }
}

#[test]
fn who_states_a_rate_shares_the_link_as_others_do() {
    for (cubics, rtt, buffer) in [(1, 40, 1.0), (1, 100, 0.5), (1, 100, 4.0), (3, 100, 1.0)] {
        let fair = 1e7 / (cubics + 1) as f64;
        // What a run gives depends on the phase in which the others begin.
        let shares = (0..4).map(|start| {
            let setup = Setup {
                cubic: vec![(20.0 + 0.37 * f64::from(start), 1e6); cubics],
                rounds: 900.0,
                ..with_stated_rate(10.0, setup(1e7, rtt, buffer, ""))
            };
            let share = Run::new(&setup, 1).rate(0, 300.0, 900.0) / fair;
            assert!((0.4..1.6).contains(&share), "{cubics} CUBIC: {share}");
            share
        });
        let share = shares.sum::<f64>() / 4.0;
        let what = format!("{cubics} CUBIC, {rtt} ms, {buffer} BDP");
        assert!((0.7..1.3).contains(&share), "{what}: {share}");
    }
    let setup = Setup {
        start: vec![0.0, 20.0],
        rounds: 900.0,
        ..with_stated_rate(10.0, setup(1e7, 100, 1.0, ""))
    };
    let run = Run::new(&setup, 1);
    let share = run.rate(0, 300.0, 900.0) / 1e7;
    assert!((0.45..0.55).contains(&share), "two flows of pepd: {share}");
}
