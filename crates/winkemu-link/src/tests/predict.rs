//! Predicted times against the paper's figures, explicit sums, and simulation.

use std::time::Duration;

use proptest::prelude::*;
use splitmix::mix;

use crate::{
    Wink,
    predict::{Model, PredictError, Prediction, in_seconds},
};

/// Duration of the paper's transfer over a link that is always up.
const PERFECT: Duration = Duration::from_millis(1860);

/// Columns of table 3.3 as printed: cumulated waits.
const TO_200_MS: [f64; 15] = [
    0.2, 0.7, 2.2, 5.2, 11.2, 23.2, 47.2, 95.2, 159.2, 223.2, 287.2, 351.2, 415.2, 479.2, 543.2,
];
const TO_500_MS: [f64; 14] = [
    0.5, 2.0, 5.0, 11.0, 23.0, 47.0, 95.0, 159.0, 223.0, 287.0, 351.0, 415.0, 479.0, 543.0,
];
const ABOVE: [f64; 13] = [
    1.5, 4.5, 10.5, 22.5, 46.5, 94.5, 158.5, 222.5, 286.5, 350.5, 414.5, 478.5, 542.5,
];

fn costs(interval: Duration) -> &'static [f64] {
    match interval.as_millis() {
        0..=200 => &TO_200_MS,
        201..=500 => &TO_500_MS,
        _ => &ABOVE,
    }
}

fn wink(p: f64, interval: Duration) -> Wink {
    Wink {
        probability: units::Ratio::new(p).unwrap(),
        interval,
    }
}

fn prediction(p: f64, interval_ms: u64) -> Prediction {
    Prediction::new(PERFECT, wink(p, Duration::from_millis(interval_ms))).unwrap()
}

/// Equation 3.11 as printed, with logarithms of factorials to avoid overflow.
fn equation_3_11(n: u64, p: f64, interval: Duration) -> f64 {
    let log_factorial = |n: u64| libm::lgamma(n as f64 + 1.0);
    let mut sum = 0.0;
    for r in 0..=n {
        let log_choose = log_factorial(n) - log_factorial(r) - log_factorial(n - r);
        for (h, cost) in (1..).zip(costs(interval)) {
            let log = log_choose
                + (r + h) as f64 * libm::log(p)
                + (n - r + 1) as f64 * libm::log(1.0 - p);
            sum += libm::exp(log) * r as f64 * (cost + h as f64 * in_seconds(interval));
        }
    }
    sum
}

#[test]
fn the_sum_is_that_of_equation_3_11() {
    for p in [0.05, 0.2, 0.4] {
        for interval in [1, 40, 200, 220, 500, 520, 1100, 5000] {
            let prediction = prediction(p, interval);
            let n = prediction.intervals() as u64;
            let delay = prediction.seconds(Model::Tcp) - in_seconds(PERFECT);
            let printed = equation_3_11(n, p, Duration::from_millis(interval));
            // The difference comes from transfers that TCP gives up, and from the logarithms.
            let off = delay / printed - 1.0;
            assert!(off.abs() < 2e-6, "p={p}, i={interval} ms: {off}");
        }
    }
}

#[test]
fn intervals_are_rounded_up_and_scaled_before_that() {
    // Section 3.3.7: "If it takes 46.25 intervals to send the file, then 46.25 is rounded up to
    // 47."
    let interval = Duration::from_millis(40);
    let n = |ms: f64, p: f64| {
        let perfect = Duration::from_secs_f64(ms / 1e3);
        let prediction = Prediction::new(perfect, wink(p, interval)).unwrap();
        let delay = |model| prediction.seconds(model) - in_seconds(perfect);
        let scaled = delay(Model::TcpScaled) / delay(Model::Tcp) * prediction.intervals();
        (prediction.intervals(), (scaled * 1e6).round() / 1e6)
    };
    assert_eq!(n(46.25 * 40.0, 0.4), (47.0, 65.0));
    assert_eq!(n(1860.0, 0.4), (47.0, 66.0));
    assert_eq!(n(400.0, 0.1), (10.0, 11.0));
    assert_eq!(n(400.0, 0.001), (10.0, 11.0));
    assert_eq!(n(1.0, 0.4), (1.0, 1.0));
}

#[test]
fn one_interval_that_is_lost_once_costs_tcps_first_wait() {
    // Section 3.3.6: 1.86 + 1.5 s, at a p so low that hardly an interval is lost twice; plus an
    // interval (equation 3.9).
    let p = 1e-6;
    for (interval, first) in [(200, 0.2), (500, 0.5), (1860, 1.5)] {
        let prediction = prediction(p, interval);
        let lost = prediction.intervals() * p;
        let cost = |model| (prediction.seconds(model) - in_seconds(PERFECT)) / lost;
        let expected = first + interval as f64 / 1e3;
        let charged = cost(Model::TcpCharged);
        assert!((charged - expected).abs() < 1e-3, "{interval}: {charged}");
        // Equation 3.11 charges nothing for it.
        assert!(cost(Model::Tcp) < 1e-3);
    }
}

#[test]
fn the_bound_is_the_perfect_schemes() {
    // Figure 3.7: 1 / (1 - p) for every interval; 3.1 s at 0.4.
    for (p, expected) in [(0.0, 1.86), (0.05, 1.957_895), (0.25, 2.48), (0.4, 3.1)] {
        for interval in [1, 40, 333, 1100] {
            let bound = prediction(p, interval).seconds(Model::Bound);
            assert!((bound - expected).abs() < 1e-6, "{p}: {bound}");
        }
    }
}

#[test]
fn without_a_wink_nothing_is_delayed() {
    for model in Model::ALL {
        assert_eq!(prediction(0.0, 40).seconds(model), 1.86, "{model:?}");
    }
    assert_eq!(prediction(0.0, 40).gives_up(), 0.0);
}

#[test]
fn it_has_valleys_at_200_and_500_ms_and_is_worst_where_intervals_are_short() {
    // Figure 3.6, on the paper's grid at its highest p.
    let grid: Vec<u64> = (40..=1100).step_by(20).collect();
    for model in [Model::Tcp, Model::TcpScaled, Model::TcpCharged] {
        let at = |interval: u64| prediction(0.4, interval).seconds(model);
        for valley in [200, 500] {
            assert!(at(valley + 20) > 1.4 * at(valley), "{model:?} {valley}");
            assert!(at(valley - 100) > at(valley), "{model:?} {valley}");
        }
        let worst = grid
            .iter()
            .copied()
            .max_by(|a, b| at(*a).total_cmp(&at(*b)));
        assert_eq!(worst, Some(40), "{model:?}");
    }
    // Section 4.6: "The values in the low i, and high p region are an order of magnitude short", of
    // BIC's 217 s.
    assert!((10.0..22.0).contains(&prediction(0.4, 40).seconds(Model::Tcp)));
    // Section 4.7: Reno took 27 s there.
    let charged = prediction(0.4, 40).seconds(Model::TcpCharged);
    assert!((25.0..30.0).contains(&charged), "{charged}");
}

#[test]
fn with_custody_the_interval_matters_little() {
    // Figure 3.8: stable across intervals, except that rounding up adds less than an interval to
    // the data.
    for interval in (40..=1100).step_by(20) {
        let prediction = prediction(0.4, interval);
        let data = prediction.intervals() * interval as f64 / 1e3;
        let expected = 1.86 + data * 0.16 / 0.6;
        let found = prediction.seconds(Model::Custody);
        assert!((found - expected).abs() < 1e-9, "{interval}: {found}");
    }
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let new = |p, interval_ms, perfect| {
        Prediction::new(perfect, wink(p, Duration::from_millis(interval_ms)))
    };
    assert_eq!(new(1.0, 40, PERFECT), Err(PredictError::NeverUp));
    assert_eq!(new(0.4, 0, PERFECT), Err(PredictError::NoInterval));
    assert_eq!(
        new(0.4, 40, Duration::ZERO),
        Err(PredictError::NothingToSend)
    );
}

/// Simulates a transfer interval by interval. `None` if TCP gives up.
fn roll(n: u64, p: f64, interval: Duration, first_is_free: bool, dice: &mut u64) -> Option<f64> {
    let mut lost = || {
        *dice = mix(*dice);
        ((*dice >> 11) as f64) < p * (1u64 << 53) as f64
    };
    let mut seconds = 0.0;
    for _ in 0..n {
        if !lost() {
            continue;
        }
        let mut retries = 1;
        while lost() {
            retries += 1;
        }
        retries -= usize::from(first_is_free);
        if retries > 0 {
            let waited = costs(interval).get(retries - 1)?;
            seconds += waited + retries as f64 * in_seconds(interval);
        }
    }
    Some(seconds)
}

#[test]
fn means_are_those_of_dice() {
    const ROLLS: usize = 200_000;
    for (seed, (p, interval)) in [(0.05, 40), (0.4, 200), (0.4, 300), (0.5, 1100), (0.8, 1860)]
        .into_iter()
        .enumerate()
    {
        let prediction = prediction(p, interval);
        let n = prediction.intervals() as u64;
        for (model, first_is_free) in [(Model::Tcp, true), (Model::TcpCharged, false)] {
            let mut dice = mix(seed as u64);
            let interval = Duration::from_millis(interval);
            let rolls = (0..ROLLS).map(|_| roll(n, p, interval, first_is_free, &mut dice));
            let rolls: Vec<_> = rolls.collect();
            let through: Vec<f64> = rolls.iter().flatten().copied().collect();
            let count = through.len() as f64;
            let mean = through.iter().sum::<f64>() / count;
            let squares: f64 = through.iter().map(|seconds| (seconds - mean).powi(2)).sum();
            let error = (squares / count / count).sqrt();
            let predicted = prediction.seconds(model) - in_seconds(PERFECT);
            assert!(
                (predicted - mean).abs() < 4.0 * error,
                "seed {seed}, p={p}, {interval:?}, {model:?}: predicted {predicted}, simulated {mean} +- {error}"
            );
            if first_is_free {
                let broke_off = 1.0 - count / ROLLS as f64;
                let error = (broke_off * (1.0 - broke_off) / ROLLS as f64).sqrt();
                let predicted = prediction.gives_up();
                assert!(
                    (predicted - broke_off).abs() <= 4.0 * error + 1e-5,
                    "seed {seed}, p={p}, {interval:?}: {predicted}, but {broke_off}"
                );
            }
        }
    }
}

fn any_time() -> impl Strategy<Value = Duration> {
    // From a nanosecond to three years, log-uniform.
    (0.0..17.0).prop_map(|log: f64| Duration::from_nanos(10f64.powf(log) as u64))
}

proptest! {
    #[test]
    fn a_worse_link_is_never_faster(
        perfect in any_time(), interval in any_time(), p in 0.0..1.0, q in 0.0..1.0,
    ) {
        let (p, q) = if p < q { (p, q) } else { (q, p) };
        let [better, worse] = [p, q].map(|p| Prediction::new(perfect, wink(p, interval)).unwrap());
        for model in Model::ALL {
            let [better, worse] = [better, worse].map(|prediction| prediction.seconds(model));
            prop_assert!(worse >= better * (1.0 - 1e-12), "{model:?}: {better} {worse}");
        }
        prop_assert!(better.gives_up() <= worse.gives_up() + 1e-12);
    }

    #[test]
    fn times_are_numbers_at_any_size(
        perfect in any_time(), interval in any_time(), left in 0.0..16.0f64,
    ) {
        // Up to the last p before 1.
        let p = 1.0 - 10f64.powf(-left);
        let prediction = Prediction::new(perfect, wink(p, interval)).unwrap();
        for model in Model::ALL {
            let seconds = prediction.seconds(model);
            prop_assert!(seconds.is_finite() && seconds >= in_seconds(perfect), "{model:?}: {seconds}");
        }
        prop_assert!((0.0..=1.0).contains(&prediction.gives_up()));
    }

    #[test]
    fn who_pays_for_every_retry_is_never_below_the_bound(
        perfect in any_time(), interval in any_time(), p in 0.0..0.4,
    ) {
        let prediction = Prediction::new(perfect, wink(p, interval)).unwrap();
        let [bound, charged, tcp, scaled, custody] = [
            Model::Bound, Model::TcpCharged, Model::Tcp, Model::TcpScaled, Model::Custody,
        ].map(|model| prediction.seconds(model));
        // Transfers that TCP gives up are left out; they would have taken longest: a share of 14
        // p^14 or less.
        let minimum = 1.0 - 1e-4;
        prop_assert!(charged >= bound * minimum, "{charged} {bound}");
        prop_assert!(charged >= tcp * minimum && scaled >= tcp * minimum);
        prop_assert!(tcp >= custody * minimum, "{tcp} {custody}");
        // The other models charge nothing for the first retry: p T0 below the bound, plus rounding
        // up.
        let perfect = in_seconds(perfect);
        prop_assert!(custody >= (bound - p * perfect) * minimum, "{custody} {bound}");
        let rounded = prediction.intervals() * in_seconds(interval) - perfect;
        let exact = bound - p * perfect + rounded * p * p / (1.0 - p);
        prop_assert!((custody / exact - 1.0).abs() < 1e-9, "{custody} {exact}");
    }
}
