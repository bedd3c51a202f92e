use super::*;
use crate::code::SYMBOLS_MAX;

/// A few channels of every sort.
fn channels() -> Vec<Channel> {
    vec![
        Channel::iid(0.0).unwrap(),
        Channel::iid(0.1).unwrap(),
        Channel::iid(1.0).unwrap(),
        Channel::gilbert(0.05, 3.0).unwrap(),
        Channel::gilbert(0.6, 1.6).unwrap(),
        Channel::gilbert_elliott(0.05, 0.3, 0.01, 0.7).unwrap(),
        Channel::gilbert_elliott(0.9, 0.8, 0.1, 0.4).unwrap(),
        Channel::gilbert_elliott(0.0, 0.2, 0.03, 0.9).unwrap(),
        Channel::gilbert_elliott(1.0, 1.0, 0.0, 0.5).unwrap(),
        Channel::PAUL2006,
    ]
}

/// Probability that exactly the packets in `lost` are lost, of `n`: forward over all states.
fn pattern(channel: &Channel, depth: usize, n: usize, lost: usize) -> f64 {
    let (step, loss) = (channel.transition(1), channel.loss_by_state());
    let mut odds = channel.stationary();
    for packet in 0..n {
        for (state, odds) in odds.iter_mut().enumerate() {
            let is_lost = lost >> packet & 1 == 1;
            *odds *= if is_lost {
                loss[state]
            } else {
                1.0 - loss[state]
            };
        }
        for _ in 0..depth {
            odds = [0, 1].map(|to| odds[0] * step[0][to] + odds[1] * step[1][to]);
        }
    }
    odds[0] + odds[1]
}

fn by_enumeration(channel: &Channel, k: usize, h: usize, depth: usize) -> BlockOdds {
    let (mut failure, mut residual) = (0.0, 0.0);
    for lost in 0..1usize << (k + h) {
        if lost.count_ones() as usize > h {
            let odds = pattern(channel, depth, k + h, lost);
            let data = (lost & ((1 << k) - 1)).count_ones();
            failure += odds;
            residual += odds * f64::from(data) / k as f64;
        }
    }
    BlockOdds { failure, residual }
}

fn same(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * a.abs().max(b.abs())
}

#[test]
fn a_block_does_as_all_its_patterns_of_loss_say() {
    for channel in channels() {
        for (k, h) in [(1, 0), (1, 1), (2, 5), (6, 0), (7, 3), (10, 4), (9, 1)] {
            for depth in [1, 2, 7] {
                let odds = channel.block(k, h, depth).unwrap();
                let all = by_enumeration(&channel, k, h, depth);
                let what = format!("{channel:?} ({k}, {h}) {depth}: {odds:?} {all:?}");
                assert!(same(odds.failure, all.failure, 1e-12), "{what}");
                assert!(same(odds.residual, all.residual, 1e-12), "{what}");
            }
        }
    }
}

/// ln n!, as a sum.
fn ln_factorial(n: usize) -> f64 {
    (1..=n).map(|i| (i as f64).ln()).sum()
}

/// Binomial formula with logarithms, small terms first.
fn by_formula(p: f64, k: usize, h: usize) -> BlockOdds {
    let n = k + h;
    let (mut failure, mut residual) = (0.0, 0.0);
    for i in (h + 1..=n).rev() {
        let combinations = ln_factorial(n) - ln_factorial(i) - ln_factorial(n - i);
        let term = (combinations + i as f64 * p.ln() + (n - i) as f64 * (-p).ln_1p()).exp();
        failure += term;
        residual += term * i as f64 / n as f64;
    }
    BlockOdds { failure, residual }
}

#[test]
fn independent_losses_follow_the_binomial_formula_down_to_very_unlikely_ones() {
    let mut minimum: f64 = 1.0;
    for p in [1e-4, 1e-3, 0.02, 0.1, 0.4] {
        for (k, h) in [
            (20, 6),
            (50, 2),
            (1, 10),
            (200, 56),
            (128, 128),
            (250, 6),
            (64, 10),
        ] {
            let odds = Channel::iid(p).unwrap().block(k, h, 3).unwrap();
            let formula = by_formula(p, k, h);
            let what = format!("{p} ({k}, {h}): {odds:?} {formula:?}");
            assert!(same(odds.failure, formula.failure, 1e-9), "{what}");
            assert!(same(odds.residual, formula.residual, 1e-9), "{what}");
            minimum = minimum.min(odds.failure);
        }
    }
    assert!(minimum < 1e-200, "{minimum}");
}

#[test]
fn blocks_on_drawn_channels_fail_as_often_as_theory_says() {
    let elliott = Channel::gilbert_elliott(0.02, 0.2, 0.005, 0.6).unwrap();
    for (seed, channel, k, h, depth) in [
        (1, Channel::PAUL2006, 20, 6, 1),
        (2, Channel::PAUL2006, 20, 6, 8),
        (3, elliott, 10, 2, 3),
        (4, Channel::iid(0.05).unwrap(), 50, 2, 1),
    ] {
        let odds = channel.block(k, h, depth).unwrap();
        let groups = drawn(&channel, seed, (k, h, depth), 100_000 / depth);
        let (failed, lost): (Vec<f64>, Vec<f64>) = groups.into_iter().unzip();
        let what = format!("seed {seed}");
        assert_mean(&failed, odds.failure * depth as f64, &what);
        assert_mean(&lost, odds.residual * (depth * k) as f64, &what);
    }
}

/// Asserts that the samples' mean is `expected`, within four standard errors, and that these are
/// small enough for a meaningful test.
fn assert_mean(samples: &[f64], expected: f64, what: &str) {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let square = samples
        .iter()
        .map(|sample| (sample - mean).powi(2))
        .sum::<f64>();
    let error = (square / (count - 1.0) / count).sqrt();
    let what = format!("{what}: {mean} +- {error}, expected {expected}");
    assert!(error < expected / 8.0, "{what}");
    assert!((mean - expected).abs() < 4.0 * error, "{what}");
}

/// For each group of interleaved blocks the number of failed blocks, and of data packets lost in
/// those. The channel continues between groups, so that they are nearly independent.
fn drawn(
    channel: &Channel,
    seed: u64,
    (k, h, depth): (usize, usize, usize),
    groups: usize,
) -> Vec<(f64, f64)> {
    let mut draws = channel.draws(seed);
    let mut group = || {
        let losses: Vec<bool> = draws.by_ref().take((k + h) * depth + 50).collect();
        let lost = |block, from: usize, to| {
            let of_block = |i: &usize| losses[i * depth + block];
            (from..to).filter(of_block).count()
        };
        let failed = (0..depth).filter(|&block| lost(block, 0, k + h) > h);
        failed.fold((0.0, 0.0), |(blocks, data), block| {
            (blocks + 1.0, data + lost(block, 0, k) as f64)
        })
    };
    (0..groups).map(|_| group()).collect()
}

#[test]
fn rows_needed_are_the_least_that_meet_the_target() {
    for channel in channels() {
        for (target, depth) in [(1e-3, 1), (1e-5, 4)] {
            let needed = rows_needed(&channel, depth, target, 60);
            for (k, needed) in (1..).zip(&needed) {
                let failure = |h| channel.block(k, h, depth).unwrap().failure;
                let what = format!("{channel:?} k {k} target {target}: {needed}");
                if needed.is_infinite() {
                    assert!(failure(SYMBOLS_MAX - k) > target, "{what}");
                    continue;
                }
                let h = needed.ceil() as usize;
                // Some meet it exactly, up to rounding.
                assert!(failure(h) < target * (1.0 + 1e-9), "{what}");
                assert!(h == 0 || failure(h - 1) > target * (1.0 - 1e-9), "{what}");
            }
        }
    }
}

#[test]
fn rows_needed_lie_between_whole_numbers_where_failure_does() {
    // Failure with 3 rows is just above 1e-3 at 2 %, with 2 just below at 0.9 %.
    let at = |loss| rows_needed(&Channel::iid(loss).unwrap(), 1, 1e-3, 20)[19];
    assert!((3.0..3.05).contains(&at(0.02)), "{}", at(0.02));
    assert!((1.95..2.0).contains(&at(0.009)), "{}", at(0.009));
    let steps = [0.01, 0.012, 0.014, 0.016, 0.018].map(at);
    assert!(steps.is_sorted(), "{steps:?}");
}

#[test]
fn rows_are_unbounded_where_the_field_has_not_enough_symbols() {
    let needed = rows_needed(&Channel::iid(0.3).unwrap(), 1, 1e-3, 255);
    let fits = needed.iter().take_while(|rows| rows.is_finite()).count();
    assert!((100..200).contains(&fits), "{fits}");
    assert!(needed[fits..].iter().all(|rows| rows.is_infinite()));
    assert_eq!(needed.len(), 255);
}

#[test]
fn a_channel_has_the_loss_and_the_bursts_it_was_made_of() {
    for (loss, burst) in [(0.001, 1.5), (0.02, 3.0), (0.055, 6.7), (0.5, 2.0)] {
        let channel = Channel::gilbert(loss, burst).unwrap();
        assert!(same(channel.loss(), loss, 1e-12), "{channel:?}");
        assert!(same(channel.burst(), burst, 1e-12), "{channel:?}");
    }
    let independent = Channel::iid(0.2).unwrap();
    assert!(same(independent.burst(), 1.25, 1e-12));
    assert!(same(independent.capacity_overhead(), 0.25, 1e-12));
    assert!(same(Channel::PAUL2006.loss(), 0.05513, 1e-3));
    assert!(same(Channel::PAUL2006.burst(), 6.707, 1e-3));
    assert_eq!(Channel::iid(0.0).unwrap().burst(), 0.0);
    assert_eq!(Channel::iid(1.0).unwrap().burst(), f64::INFINITY);
}

#[test]
fn drawn_losses_have_the_rate_and_the_bursts_of_their_channel() {
    for channel in channels() {
        let losses: Vec<bool> = channel.draws(7).take(400_000).collect();
        let lost = losses.iter().filter(|&&lost| lost).count();
        let bursts = losses.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let rate = lost as f64 / losses.len() as f64;
        assert!((rate - channel.loss()).abs() < 0.004, "{channel:?}: {rate}");
        if bursts > 0 {
            let burst = lost as f64 / bursts as f64;
            assert!(same(burst, channel.burst(), 0.04), "{channel:?}: {burst}");
        }
    }
}

#[test]
fn a_transition_of_many_packets_is_that_of_one_many_times() {
    for channel in channels() {
        let mut power = [[1.0, 0.0], [0.0, 1.0]];
        for packets in 1..40 {
            let step = channel.transition(1);
            power = power
                .map(|row: [f64; 2]| [0, 1].map(|to| row[0] * step[0][to] + row[1] * step[1][to]));
            let direct = channel.transition(packets);
            for (a, b) in power.iter().flatten().zip(direct.iter().flatten()) {
                assert!(
                    (a - b).abs() < 1e-12,
                    "{channel:?} {packets}: {power:?} {direct:?}"
                );
            }
        }
    }
}

#[test]
fn what_makes_no_channel_or_block_is_refused() {
    let probability = |result| matches!(result, Err(ChannelError::Probability { .. }));
    assert!(probability(Channel::iid(-0.1)));
    assert!(probability(Channel::iid(f64::NAN)));
    assert!(probability(Channel::gilbert(1.1, 3.0)));
    assert!(probability(Channel::gilbert_elliott(0.1, 2.0, 0.0, 1.0)));
    assert!(probability(Channel::gilbert_elliott(
        0.1,
        0.1,
        0.0,
        f64::INFINITY
    )));
    let burst = |result| matches!(result, Err(ChannelError::Burst { .. }));
    assert!(burst(Channel::gilbert(0.1, 0.9)));
    assert!(burst(Channel::gilbert(0.1, f64::INFINITY)));
    assert!(burst(Channel::gilbert(0.1, f64::NAN)));
    assert!(burst(Channel::gilbert(0.9, 2.0)));
    assert!(burst(Channel::gilbert(1.0, 5.0)));
    let frozen = Channel::gilbert_elliott(0.0, 0.0, 0.1, 0.2);
    assert_eq!(frozen, Err(ChannelError::Frozen));

    let channel = Channel::PAUL2006;
    let size = |k, h| Err(BlockError::Size { k, h });
    assert_eq!(channel.block(0, 3, 1), size(0, 3));
    assert_eq!(channel.block(200, 57, 1), size(200, 57));
    assert_eq!(channel.block(20, 6, 0), Err(BlockError::Depth));
    assert!(channel.block(200, 56, 1).is_ok());
}

#[test]
fn sizes_beyond_all_measure_are_refused_too() {
    let channel = Channel::iid(0.1).unwrap();
    for (k, h) in [(usize::MAX, 1), (1, usize::MAX), (usize::MAX, usize::MAX)] {
        let refused = Err(BlockError::Size { k, h });
        assert_eq!(channel.block(k, h, 1), refused);
    }
}
