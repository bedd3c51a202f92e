//! Random schedules of the link: each segment is delivered once and acknowledged once.

use std::time::Duration;

use splitmix::SplitMix64;

use super::{
    bare::{Bare, ms},
    setup::Setup,
};
use crate::session::Outages;

/// Schedules that end: the link is never down for ever.
fn schedule(seed: u64) -> Setup {
    let mut draws = SplitMix64::new(seed);
    let rate = draws.one_of(&[200_000, 1_000_000, 20_000_000]);
    let rtt = draws.one_of(&[0, 1, 20, 150, 600]);
    let path = |draws: &mut SplitMix64| {
        let loss = draws.one_of(&["", "", ",loss=3%", ",loss=30%", ",gilbert=p=0.02,q=0.2"]);
        let order = draws.one_of(&[
            "",
            "",
            ",jitter=5ms,reorder=true",
            ",jitter=60ms,exponential,reorder=true",
        ]);
        let double = draws.one_of(&["", "", ",duplicate=5%"]);
        let outage = draws.one_of(&[
            "",
            "",
            ",wink=p=0.4,i=50ms",
            ",onoff=up=1s,down=400ms",
            ",outages=300ms+2s,4s+20s",
            ",periodic=up=200ms,down=90ms",
        ]);
        let held = draws.one_of(&[
            "",
            ",queued=hold",
            ",in-flight=hold,queued=hold",
            ",in-flight=drop",
        ]);
        // Packets that take longer than the link is ever up would never arrive.
        let held = if rtt > 20 {
            held.replace("drop", "pass")
        } else {
            held.to_owned()
        };
        format!("{loss}{order}{double}{outage}{held}")
    };
    let (there, back) = (path(&mut draws), path(&mut draws));
    let back = if draws.below(2) == 0 {
        String::new()
    } else {
        back[back.len().min(1)..].to_owned()
    };
    let queue = draws.one_of(&["10p", "100%bdp", "1000p"]);
    Setup {
        link: format!(
            "rate={rate}bit/s,delay={}us,queue={queue}{there}",
            rtt * 500
        ),
        back,
        rates: [
            draws.one_of(&[rate, rate / 2, rate * 5 / 4]),
            draws.one_of(&[rate, rate / 4]),
        ],
        rtt: draws.one_of(&[ms(rtt), ms(rtt), ms(100)]),
        outages: draws.one_of(&[Outages::Never, Outages::AtOnce, Outages::After(ms(200))]),
        segments: [draws.one_of(&[1, 30, 300]), draws.one_of(&[0, 1, 300])],
        seed,
    }
}

#[test]
fn each_segment_comes_once_and_is_acknowledged_once() {
    for seed in 0..150 {
        let setup = schedule(seed);
        println!("seed {seed}: {setup:?}");
        let mut bare = Bare::new(&setup);
        bare.run_to_the_end(Duration::from_secs(2000));
        bare.check_done();
    }
}
