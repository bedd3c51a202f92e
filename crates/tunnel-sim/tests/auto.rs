//! Measured rates: nothing but the link lowers a right estimate, and pages take as long as with a
//! stated rate.

use std::{cell::Cell, rc::Rc, time::Duration};

use tunnel::{class::Class, session::Rate};
use tunnel_sim::rig::{Rig, config};
use winkemu_link::Direction;

/// Most packets of a page of which each is lost once.
const PLACES: u64 = 40;

/// Link of a rate in bit/s and a round trip, and further options.
#[derive(Clone, Copy, Debug)]
struct Link {
    rate: u64,
    rtt: Duration,
    more: &'static str,
}

const fn link(rate: u64, rtt_ms: u64) -> Link {
    Link {
        rate,
        rtt: Duration::from_millis(rtt_ms),
        more: "",
    }
}

const LINKS: [Link; 6] = [
    link(500_000, 528),
    link(2_000_000, 60),
    link(20_000_000, 10),
    link(50_000_000, 40),
    link(100_000_000, 1),
    link(5_000_000, 1),
];

impl Link {
    /// Returns both ends, which know the rate or not, after transfers that measure it.
    fn rig(&self, rate: Rate, seed: u64) -> Rig {
        let queue = (self.rate as f64 * self.rtt.as_secs_f64() / 8.0) as u64 + (64 << 10);
        let half = self.rtt.as_micros() / 2;
        let options = format!("rate={}bit,delay={half}us,queue={queue}B", self.rate);
        let ends = [true, false].map(|initiator| {
            let mut config = config(initiator, self.rate, self.rtt);
            config.rate = rate;
            config
        });
        let mut rig = Rig::new(&format!("{options}{}", self.more), seed, ends);
        for _ in 0..6 {
            self.page(&mut rig, 200_000);
            pause(&mut rig, 400);
        }
        rig
    }

    /// Uploads a page. Returns its duration in seconds, and the lowest estimate of the link's rate
    /// meanwhile, as a share.
    fn page(&self, rig: &mut Rig, bytes: u64) -> (f64, f64) {
        let begin = rig.now;
        let stream = rig.upload(Class::Normal, bytes);
        let lowest = Cell::new(f64::INFINITY);
        rig.run(begin + Duration::from_secs(60), |rig| {
            lowest.set(lowest.get().min(self.estimate(rig)));
            rig.finished(stream).is_some()
        });
        let finished = rig.finished(stream).expect("finished page");
        ((finished - begin).as_secs_f64(), lowest.get())
    }

    fn estimate(&self, rig: &Rig) -> f64 {
        rig.sessions[0].path().link_rate as f64 / self.rate as f64
    }
}

fn pause(rig: &mut Rig, ms: u64) {
    rig.run(rig.now + Duration::from_millis(ms), |_| false);
}

#[test]
fn no_lost_packet_lowers_a_right_estimate() {
    for link in LINKS {
        for side in [0, 1] {
            let mut rig = link.rig(Rate::Auto, 1);
            assert!(
                link.estimate(&rig) > 0.9,
                "{link:?}: {}",
                link.estimate(&rig)
            );
            let lost = Rc::new(Cell::new(u64::MAX));
            let which = Rc::clone(&lost);
            rig.loses = Box::new(move |of, number| of == side && number == which.get());
            for place in 0..PLACES {
                lost.set(rig.packets[side] + place);
                for bytes in [100_000, 30_000] {
                    let (_, lowest) = link.page(&mut rig, bytes);
                    let what = format!("packet {place} of side {side} lost over {link:?}");
                    assert!(lowest > 0.75, "{what}: {lowest}");
                    pause(&mut rig, 400);
                }
            }
        }
    }
}

#[test]
fn pages_take_as_long_as_with_a_stated_rate() {
    let noises = [
        (",loss=1%", 0),
        (",loss=5%", 0),
        ("", 8),
        ("", 30),
        (",jitter=3ms", 0),
        (",loss=1%,jitter=2ms", 8),
    ];
    for (more, busy_ms) in noises {
        for link in LINKS {
            let link = Link { more, ..link };
            let time = |rate, seed| {
                let mut rig = link.rig(rate, seed);
                if busy_ms > 0 {
                    let most = Duration::from_millis(busy_ms);
                    rig.keep_busy(seed, most, Duration::from_millis(60));
                }
                let pages = (0..40).map(|page| {
                    let (took, _) = link.page(&mut rig, [100_000, 10_000][page as usize % 2]);
                    pause(&mut rig, 100 + 37 * (page % 9));
                    took
                });
                pages.sum::<f64>()
            };
            let [auto, stated] = [Rate::Auto, Rate::Stated(link.rate)]
                .map(|rate| (1..4).map(|seed| time(rate, seed)).sum::<f64>());
            let times = auto / stated;
            // Where a packet takes 0.1 ms and a round trip 1 ms, reports at the rate that is safe
            // before any is measured delay the repair of losses.
            let most = if link.rtt.as_millis() > 1 { 1.1 } else { 1.7 };
            let what = format!("{link:?}, busy for {busy_ms} ms");
            assert!(times < most, "{what}: {times:.2} times as long");
        }
    }
}

/// A queue so short that its losses look like the link's must not let the estimate grow for ever.
#[test]
fn behind_a_short_queue_most_packets_arrive() {
    for (rate, rtt_ms, queue) in [(50_000_000, 2, 14_000), (20_000_000, 4, 10_000)] {
        for seed in 0..4 {
            let options = format!(
                "rate={rate}bit,delay={}us,queue={queue}B,loss=0.5%",
                rtt_ms * 500
            );
            let ends = [true, false].map(|initiator| {
                let mut config = config(initiator, rate, Duration::from_millis(rtt_ms));
                config.rate = Rate::Auto;
                config
            });
            let mut rig = Rig::new(&options, seed, ends);
            rig.upload(Class::Bulk, 1 << 40);
            rig.run(Duration::from_secs(3), |_| false);
            let share = rig.arrived() as f64 * 8.0 / 3.0 / rate as f64;
            let stats = rig.link.stats(Direction::AtoB);
            let dropped = stats.dropped.queue_full as f64 / stats.offered as f64;
            let what = format!("{options}, seed {seed}");
            assert!(share > 0.8, "{what}: {share:.2} of the link");
            // A third is lost as the link's, so that up to this share does not slow the sender.
            assert!(dropped < 0.3, "{what}: {dropped:.2} dropped");
        }
    }
}
