//! Reno sender over a lossy link, with and without a booster, in virtual time: with one, its
//! goodput is about as high or higher. A run is determined by its seed; `BOOSTERS_TEST_SEED`
//! repeats one.

mod sender;
mod world;

use std::time::Duration;

use world::{Boost, Plan, run};

const RANDOM: (f64, f64) = (0.01, 0.99);
const BURSTS: (f64, f64) = (0.0087, 0.1491);
const NONE: (f64, f64) = (0.0, 1.0);

fn seeds() -> Vec<u64> {
    let one = std::env::var("BOOSTERS_TEST_SEED").ok();
    let one = one.map(|seed| seed.parse().expect("a number"));
    one.map_or_else(|| (1..=4).collect(), |seed| vec![seed])
}

/// Returns the goodput of all seeds together, in bit/s.
fn goodput(plan: Plan, boost: Boost) -> f64 {
    let seeds = seeds();
    let runs = seeds.iter().map(|&seed| {
        let plan = Plan { seed, ..plan };
        let outcome = run(plan, boost);
        let (sender, counters) = (&outcome.sender, &outcome.counters);
        println!(
            "{boost:?} {plan:?}: {} bytes; {sender};{counters}",
            outcome.bytes
        );
        outcome.bytes as f64 * 8.0 / plan.seconds as f64
    });
    runs.sum::<f64>() / seeds.len() as f64
}

/// Checks for each delay before the near end that a booster costs no more than this share of the
/// goodput, with these losses.
fn is_no_worse(sack: bool, gilbert: (f64, f64), boost: Boost) {
    for wired in [5, 50, 250] {
        let plan = Plan {
            sack,
            wired_delay: Duration::from_millis(wired),
            gilbert,
            seed: 0,
            seconds: 60,
        };
        let (with, without) = (goodput(plan, boost), goodput(plan, Boost::None));
        assert!(with >= 0.97 * without, "{with} {without}");
    }
}

#[test]
fn random_loss_costs_no_more_with_filters() {
    is_no_worse(true, RANDOM, Boost::Filters);
    is_no_worse(false, RANDOM, Boost::Filters);
}

#[test]
fn random_loss_costs_no_more_with_snoop() {
    is_no_worse(true, RANDOM, Boost::Snoop);
}

/// All losses here are drops of the local queue, which senders must notice.
#[test]
fn a_full_queue_costs_no_more_with_filters_or_snoop() {
    is_no_worse(true, NONE, Boost::Filters);
    is_no_worse(false, NONE, Boost::Filters);
    is_no_worse(true, NONE, Boost::Snoop);
}

#[test]
fn bursts_cost_much_less_with_snoop() {
    for wired in [5, 50, 250] {
        let plan = Plan {
            sack: true,
            wired_delay: Duration::from_millis(wired),
            gilbert: BURSTS,
            seed: 0,
            seconds: 60,
        };
        let (with, without) = (goodput(plan, Boost::Snoop), goodput(plan, Boost::None));
        assert!(with >= 3.0 * without, "{with} {without}");
    }
}
