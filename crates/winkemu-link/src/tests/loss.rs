//! Frequency and burstiness of loss.

use super::{super::loss::Loss, *};

const COUNT: u64 = 1_000_000;

/// Verdicts on a million packets of `bytes` each.
fn verdicts(options: &str, bytes: u64, seed: u64) -> Vec<bool> {
    let config = config(options);
    let mut loss = Loss::new(&config.ab.loss, seed, 0, Direction::AtoB);
    (0..COUNT)
        .map(|k| loss.verdict(k, bytes).is_some())
        .collect()
}

fn share(lost: &[bool]) -> f64 {
    lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
}

/// Asserts that the share is within three standard errors of `p`. Correlation multiplies the
/// variance by `inflation`.
fn assert_share(lost: &[bool], p: f64, inflation: f64) {
    let sigma = (p * (1.0 - p) * inflation / lost.len() as f64).sqrt();
    let found = share(lost);
    assert!(
        (found - p).abs() <= 3.0 * sigma,
        "{found}, not {p} +- {sigma}"
    );
}

#[test]
fn packet_errors_are_as_frequent_as_stated_and_independent() {
    for (options, p) in [("loss=1%", 0.01), ("loss=0.0001", 1e-4), ("loss=40%", 0.4)] {
        for seed in 1..=3 {
            let lost = verdicts(options, 1500, seed);
            assert_share(&lost, p, 1.0);
            let pairs: Vec<_> = lost.windows(2).map(|w| w[0] && w[1]).collect();
            // Overlapping pairs are correlated: their variance is below 3 times that of single
            // packets.
            assert_share(&pairs, p * p, 3.0);
        }
    }
}

#[test]
fn certainties_are_certain() {
    assert_eq!(share(&verdicts("loss=100%", 20, 1)), 1.0);
    assert_eq!(share(&verdicts("loss=0", 20, 1)), 0.0);
    assert_eq!(share(&verdicts("ber=1", 20, 1)), 1.0);
}

#[test]
fn bit_errors_strike_by_size() {
    for bytes in [40u64, 156, 1522] {
        let p = 1.0 - (1.0f64 - 1e-5).powi(8 * bytes as i32);
        assert_share(&verdicts("ber=1e-5", bytes, 1), p, 1.0);
    }
    // 8.25e-7 loses 1 % of packets of 1522 B (Urke 2011, equation 5.1).
    assert_share(&verdicts("ber=8.254e-7", 1522, 1), 0.01, 1.0);
}

#[test]
fn a_packet_lost_to_bit_errors_would_be_lost_if_it_were_longer() {
    let (short, long) = (verdicts("ber=1e-5", 100, 1), verdicts("ber=1e-5", 1500, 1));
    assert!(short.iter().zip(&long).all(|(short, long)| !short || *long));
}

#[test]
fn bit_errors_count_the_overhead() {
    let mut engine = engine("ber=1e-3,overhead=1000");
    for _ in 0..1000 {
        engine.handle_packet(Direction::AtoB, &[0; 20], 0);
    }
    // 1 - (1 - 1e-3)^8160 = 0.9997; without the overhead it would be 0.15.
    assert!(engine.stats(Direction::AtoB).dropped.bit_errors > 980);
}

#[test]
fn bursts_are_as_frequent_and_as_long_as_stated() {
    // Paul 2006, section 6.1: 5.5 % in bursts of 6.7.
    let (p, q) = (0.0087, 0.1491);
    for seed in 1..=3 {
        let lost = verdicts("gilbert=p=0.0087,q=0.1491", 1500, seed);
        let memory = 1.0 - p - q;
        assert_share(&lost, p / (p + q), (1.0 + memory) / (1.0 - memory));
        let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
        let mean = lost.iter().filter(|l| **l).count() as f64 / bursts;
        // Geometric: variance (1 - q) / q^2.
        let sigma = (1.0 - q).sqrt() / q / bursts.sqrt();
        assert!((mean - 1.0 / q).abs() <= 3.0 * sigma, "{mean} +- {sigma}");
        // Steps from good to bad, as often as configured.
        let good = lost.iter().filter(|l| !**l).count() as f64;
        let sigma = (p * (1.0 - p) / good).sqrt();
        assert!((bursts / good - p).abs() <= 3.0 * sigma);
    }
}

#[test]
fn each_state_has_its_own_loss() {
    let lost = verdicts("gilbert=p=0.01,q=0.03,bad=50%,good=2%", 1500, 5);
    let p: f64 = 0.25 * 0.5 + 0.75 * 0.02;
    // Variance above that of independent draws, from the memory of the state.
    let between = 0.25 * 0.75 * (0.5f64 - 0.02).powi(2) / (p * (1.0 - p));
    let memory: f64 = 0.96;
    assert_share(&lost, p, 1.0 + between * 2.0 * memory / (1.0 - memory));
}

#[test]
fn the_first_packet_is_as_likely_bad_as_any() {
    let config = config("gilbert=0.1,0.1");
    let first = |seed| Loss::new(&config.ab.loss, seed, 0, Direction::AtoB).verdict(0, 100);
    let lost: Vec<_> = (0..10_000).map(|seed| first(seed).is_some()).collect();
    assert_share(&lost, 0.5, 1.0);
}

#[test]
fn burst_states_pass_over_packets_that_never_reach_them() {
    let config = config("gilbert=0.05,0.2");
    let mut all = Loss::new(&config.ab.loss, 1, 0, Direction::AtoB);
    let mut some = Loss::new(&config.ab.loss, 1, 0, Direction::AtoB);
    for k in 0..10_000 {
        let verdict = all.verdict(k, 100);
        if k % 7 == 3 {
            assert_eq!(some.verdict(k, 100), verdict);
        }
    }
}

#[test]
fn a_loss_trace_names_the_packets_and_repeats() {
    let options: LinkOptions = "loss=@trace".parse().unwrap();
    let config = options
        .resolve(&mut |_| Ok("0 1\n001\n".to_owned()))
        .unwrap();
    let mut engine = Engine::new(&config, 1);
    for _ in 0..10 {
        engine.handle_packet(Direction::AtoB, &[0; 100], 0);
    }
    let indices: Vec<_> = drain(&mut engine, FOREVER)
        .iter()
        .map(|a| a.packet.index)
        .collect();
    assert_eq!(indices, [0, 2, 3, 5, 7, 8]);
    assert_eq!(engine.stats(Direction::AtoB).dropped.loss_trace, 4);
}

#[test]
fn the_engine_delivers_what_the_models_leave() {
    let mut engine = engine("loss=2%,ber=1e-6,gilbert=0.01,0.5");
    for _ in 0..COUNT / 10 {
        engine.handle_packet(Direction::AtoB, &[0; 1000], 0);
        while let Some((_, packet)) = engine.poll_deliver(0) {
            engine.recycle(packet);
        }
    }
    let stats = engine.stats(Direction::AtoB);
    let dropped = stats.dropped;
    assert_eq!(stats.offered, stats.delivered + dropped.total());
    for (count, p) in [
        (dropped.packet_loss, 0.02),
        (dropped.bit_errors, 0.98 * 0.00797),
    ] {
        let found = count as f64 / stats.offered as f64;
        let sigma = (p * (1.0 - p) / stats.offered as f64).sqrt();
        assert!((found - p).abs() <= 3.0 * sigma, "{found}, not {p}");
    }
    assert!(dropped.burst_loss > 0);
}
