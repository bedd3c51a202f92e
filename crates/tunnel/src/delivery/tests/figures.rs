//! Results of the policy against the theoretical optimum. `cargo test -p tunnel figures --
//! --nocapture` prints them.

use std::time::Duration;

use super::{
    bare::{Bare, CEILING, PACKET, ms},
    setup::Setup,
};
use crate::{outage::Change, session::Outages};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Endless segments in one direction, over a link that is the same in both.
fn bulk(rate: u64, rtt: u64, more: &str) -> Setup {
    Setup {
        link: format!("rate={rate}bit/s,delay={}us,queue=100%bdp{more}", rtt * 500),
        back: String::new(),
        rates: [rate; 2],
        rtt: ms(rtt),
        outages: Outages::After(s(1)),
        segments: [u64::MAX, 0],
        seed: 1,
    }
}

#[test]
fn selective_repeat_is_at_the_bound() {
    for (rate, rtt, secs) in [(10_000_000, 600, 15), (500_000, 528, 185)] {
        for per in [0.0, 1.0, 2.0, 8.0] {
            let mut bare = Bare::new(&bulk(rate, rtt, &format!(",loss={per}%")));
            bare.run(s(secs));
            let goodput = bare.goodput(s(5), s(secs)) / (1.0 - per / 100.0);
            let duplicates = bare.ends[1].duplicates;
            println!("{rate} bit/s, {rtt} ms, {per} %: {goodput:.3}, {duplicates} duplicates");
            let bounds = CEILING - 0.015..CEILING + 0.02;
            assert!(
                bounds.contains(&goodput),
                "{rate} bit/s, {per} %: {goodput:.3}"
            );
            assert_eq!(duplicates, 0, "{rate} bit/s, {per} %");
            assert_eq!(bare.ends[0].changes, [], "{rate} bit/s, {per} %");
        }
    }
}

#[test]
fn bursts_and_bit_errors_cost_no_more_than_they_take() {
    let mut gilbert = bulk(1_000_000, 10, ",gilbert=p=0.0087,q=0.1491");
    gilbert.seed = 3;
    let mut bare = Bare::new(&gilbert);
    bare.run(s(60));
    let came = 1.0 - bare.lost_share();
    let goodput = bare.goodput(s(5), s(60)) / came;
    println!("bursts: {goodput:.3} of the packets not lost");
    assert!(goodput > 0.92, "{goodput}");
}

#[test]
fn reordering_is_learnt_and_not_taken_for_loss() {
    for (rate, rtt) in [(10_000_000, 600), (10_000_000, 40)] {
        let mut bare = Bare::new(&bulk(rate, rtt, ",jitter=20ms,reorder=true,loss=1%"));
        bare.run(s(20));
        let goodput = bare.goodput(s(5), s(20)) / 0.99;
        let end = &bare.ends[0];
        let share = bare.ends[1].duplicates as f64 / end.acked.len() as f64;
        let time = end.delivery.reorder_time();
        println!("{rtt} ms: {goodput:.3}, {share:.4} retransmitted needlessly, waits {time:?}");
        assert!(goodput > 0.93, "{rtt} ms: {goodput}");
        assert!(share < 0.005, "{rtt} ms: {share}");
        assert!((ms(15)..ms(100)).contains(&time), "{rtt} ms: {time:?}");
    }
}

#[test]
fn a_return_path_of_a_five_hundredth_is_enough() {
    for (rate, rtt, secs) in [
        (10_000_000, 600, 30),
        (100_000_000, 20, 8),
        (500_000, 528, 185),
    ] {
        let mut setup = bulk(rate, rtt, ",loss=2%");
        setup.back = format!("rate={}bit/s,queue=3000B", rate / 500);
        setup.rates[1] = rate / 500;
        let mut bare = Bare::new(&setup);
        bare.run(s(secs));
        let goodput = bare.goodput(s(5), s(secs)) / 0.98;
        let used = rate as f64 / (bare.ends[1].report_bytes as f64 * 8.0 / secs as f64);
        println!("{rate} bit/s, {rtt} ms: {goodput:.3}, used 1/{used:.0}");
        assert!(goodput > 0.93, "{rate} bit/s, {rtt} ms: {goodput}");
        assert!(used > 500.0, "{rate} bit/s, {rtt} ms: {used}");
    }
}

/// Returns the bytes delivered, relative to the capacity of the link while it was up.
fn wink(rtt: u64, p: f64, i: u64, outages: Outages, seed: u64) -> f64 {
    let mut setup = bulk(100_000_000, rtt, &format!(",wink=p={p},i={i}ms"));
    setup.outages = outages;
    setup.seed = seed;
    setup.segments[0] = 20_000_000 / 1400;
    let mut bare = Bare::new(&setup);
    bare.run_to_the_end(s(2000));
    let end = bare.ends[1].new_at.values().max().copied().unwrap();
    bare.check_done();
    let bits = (setup.segments[0] * 1400 * 8) as f64;
    bits / (1e8 * end.as_secs_f64() * setup.up_share(end))
}

#[test]
fn short_outages_cost_the_return_path_and_nothing_where_sending_never_stops() {
    let cells = [
        (1, 0.4, 40, 0.90),
        (20, 0.4, 100, 0.78),
        (20, 0.4, 500, 0.86),
        (20, 0.8, 200, 0.80),
    ];
    for (rtt, p, i, minimum) in cells {
        for (outages, more) in [
            (Outages::AtOnce, 0.0),
            (Outages::After(s(1)), 0.02),
            (Outages::Never, 0.02),
        ] {
            let ratios = [1].map(|seed| wink(rtt, p, i, outages, seed));
            println!("RTT {rtt} ms, ({p}, {i} ms), {outages:?}: {ratios:.3?}");
            for ratio in ratios {
                assert!(
                    (minimum + more..1.0).contains(&ratio),
                    "({p}, {i}), {outages:?}: {ratio}"
                );
            }
        }
    }
}

#[test]
fn the_first_new_byte_comes_a_round_trip_after_the_link() {
    for (rate, rtt) in [(10_000_000, 600), (100_000_000, 20), (500_000, 528)] {
        for (length, modem, outages) in [
            (2, "drop", Outages::After(s(1))),
            (600, "drop", Outages::AtOnce),
            (20, "hold", Outages::After(s(1))),
        ] {
            {
                let more = format!(",outages=10s+{length}s,queued={modem}");
                let mut setup = bulk(rate, rtt, &more);
                setup.outages = outages;
                outage(&setup, s(10 + length), rtt);
            }
        }
    }
}

fn outage(setup: &Setup, up: Duration, rtt: u64) {
    let mut bare = Bare::new(setup);
    bare.run(s(12));
    let before = bare.ends[0].sent_bytes;
    bare.run(up);
    let probing = (bare.ends[0].sent_bytes - before) as f64 * 8.0 / (up - s(11)).as_secs_f64();
    let duplicates = bare.ends[1].duplicates;
    bare.run(up + s(3));
    let first = bare.ends[1].new_at.values().filter(|at| **at >= up).min();
    let first = *first.unwrap() - up;
    let duplicates = bare.ends[1].duplicates - duplicates;
    let goodput = bare.goodput(up + ms(2 * rtt + 100), up + s(3));
    let what = format!("{}, {:?}", setup.link, setup.outages);
    println!("{what}: {first:?}, {goodput:.3}, {duplicates} duplicates");
    // A segment takes its time, too.
    let segment = Duration::from_secs_f64(PACKET as f64 * 8.0 / setup.rates[0] as f64);
    assert!(first <= ms(rtt + 100) + segment * 2, "{what}: {first:?}");
    assert!(goodput > 0.9 * CEILING, "{what}: {goodput}");
    assert!(
        probing <= 0.011 * setup.rates[0] as f64,
        "{what}: {probing}"
    );
    let changes: Vec<_> = bare.ends[0].changes.iter().map(|change| change.1).collect();
    assert_eq!(changes, [Change::Down, Change::Up], "{what}");
}

#[test]
fn a_dead_return_path_does_not_stop_the_forward_path() {
    let mut setup = bulk(10_000_000, 600, ",loss=1%");
    setup.back = "outages=10s+8s".to_owned();
    setup.outages = Outages::Never;
    let mut bare = Bare::new(&setup);
    bare.run(s(20));
    let goodput = bare.goodput(s(10), s(18)) / 0.99;
    println!("only the return path is down: {goodput:.3}");
    assert!(goodput > 0.93, "{goodput}");
}

#[test]
fn a_dead_forward_path_is_noticed_though_the_peer_is_heard() {
    let mut setup = bulk(10_000_000, 100, "");
    setup.outages = Outages::AtOnce;
    setup.link += ",outages=5s+5s";
    setup.back = "outages=1000s+1s".to_owned();
    let mut bare = Bare::new(&setup);
    bare.run(s(6));
    let before = bare.ends[0].sent_bytes;
    bare.run(s(10));
    let probing = (bare.ends[0].sent_bytes - before) * 8 / 4;
    assert!(probing < 100_000, "{probing} bit/s");
    bare.run(s(11));
    let first = bare.ends[1]
        .new_at
        .values()
        .filter(|at| **at >= s(10))
        .min();
    assert!(*first.unwrap() < s(10) + ms(200), "{first:?}");
}
