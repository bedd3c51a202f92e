//! Long outages: when the first new byte can be read after the link is back, when nine tenths of the rate can be read in
//! order and are sent, and what probing costs meanwhile. And an outage of the way back alone.
//!
//!     cargo run --release -p tunnel-sim --example outages

use std::time::Duration;

use tunnel::{class::Class, session::Outages, wire::StreamId};
use tunnel_sim::rig::{Rig, config, spread};
use winkemu_link::{Direction, LinkOptions};

const BEGIN: Duration = Duration::from_secs(10);
/// Outages that begin at different times, these apart: nothing else is left to chance.
const RUNS: u32 = 5;
const APART: Duration = Duration::from_millis(137);
/// For how long it is looked whether the rate is back.
const LOOK: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(5);
/// The hosts' share of a link that was never away.
const SHARE: f64 = 0.957;
/// What both ends keep of a stream, in bandwidth-delay products, as pepd does; and at least.
const RING_BDP: f64 = 4.0;
const RING_MIN: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Link {
    name: &'static str,
    options: &'static str,
    rate: u64,
    /// What the tunnel is told.
    stated: u64,
    rtt_ms: u64,
}

impl Link {
    fn ring(&self) -> u64 {
        let product = (self.rate / 8) as f64 * self.rtt_ms as f64 / 1e3;
        ((RING_BDP * product) as u64)
            .max(RING_MIN)
            .next_power_of_two()
    }

    fn rig(&self, options: &LinkOptions, outages: Outages) -> (Rig, StreamId) {
        let rtt = Duration::from_millis(self.rtt_ms);
        let sides = [true, false].map(|initiator| {
            let mut config = config(initiator, self.stated, rtt);
            config.outages = outages;
            config
        });
        let mut rig = Rig::with_options(options, 1, sides);
        let stream = rig.feed(Class::Bulk, self.ring());
        (rig, stream)
    }
}

/// What the sender has put on the link, in bits a second, within a time.
fn sent(rig: &mut Rig, until: Duration) -> f64 {
    let offered = |rig: &Rig| rig.link.stats(Direction::AtoB).offered_bytes;
    let (began, before) = (rig.now, offered(rig));
    rig.run(until, |_| false);
    (offered(rig) - before) as f64 * 8.0 / (until - began).as_secs_f64()
}

/// From when on, over `span`, so many bytes a second came.
fn back(history: &[(Duration, u64)], span: Duration, wanted: f64) -> Option<Duration> {
    history.iter().find_map(|(from, had)| {
        let end = history.iter().find(|(at, _)| *at >= *from + span)?;
        let rate = (end.1 - had) as f64 / (end.0 - *from).as_secs_f64();
        (rate >= wanted).then_some(*from)
    })
}

#[derive(Default)]
struct Outcome {
    /// Milliseconds to the first new byte, and to nine tenths of the rate in order.
    first: f64,
    in_order: f64,
    /// The same for what arrives, in order or not.
    arriving: f64,
    /// Sent meanwhile, as a share of the rate.
    probing: f64,
}

fn outage(link: &Link, seconds: u64, outages: Outages, run: u32) -> Outcome {
    let begin = BEGIN + APART * run;
    let up = begin + Duration::from_secs(seconds);
    let extra = format!(",outages={}ms+{seconds}s", begin.as_millis());
    let options = format!("{}{extra}", link.options);
    let options = options.parse().expect("options of a link");
    let (mut rig, stream) = link.rig(&options, outages);
    // By default sending goes on for a second after the silence has been noticed.
    let stopped = begin + Duration::from_secs(5);
    let mut outcome = Outcome::default();
    if up > stopped {
        rig.run(stopped, |_| false);
        outcome.probing = sent(&mut rig, up) / link.rate as f64;
    }
    rig.run(up, |_| false);
    let mut histories = [vec![], vec![]];
    let before = rig.readable(stream);
    let mut first = None;
    while rig.now < up + LOOK {
        for (history, bytes) in histories
            .iter_mut()
            .zip([rig.readable(stream), rig.arrived()])
        {
            history.push((rig.now - up, bytes));
        }
        rig.run(rig.now + STEP, |rig| {
            let new = rig.readable(stream) > before;
            first = first.or(new.then_some(rig.now));
            false
        });
    }
    let ms = |time: Option<Duration>| time.map_or(f64::INFINITY, |at| at.as_secs_f64() * 1e3);
    let span = Duration::from_millis(link.rtt_ms.max(50));
    let wanted = 0.9 * SHARE * link.rate as f64 / 8.0;
    outcome.first = ms(first.map(|at| at - up));
    [outcome.in_order, outcome.arriving] = histories.map(|h| ms(back(&h, span, wanted)));
    outcome
}

fn row(link: &Link, seconds: u64, outages: Outages) {
    let outcomes: Vec<_> = (0..RUNS)
        .map(|run| outage(link, seconds, outages, run))
        .collect();
    let all = |of: fn(&Outcome) -> f64| {
        let (median, least, most) = spread(&mut outcomes.iter().map(of).collect::<Vec<_>>());
        format!("{median:.0} ({least:.0}..{most:.0})")
    };
    let dedicated = if outages == Outages::Never {
        ", dedicated"
    } else {
        ""
    };
    println!(
        "| {}{dedicated} | {seconds} s | {} | {} | {} | {:.2} % |",
        link.name,
        all(|outcome| outcome.first),
        all(|outcome| outcome.in_order),
        all(|outcome| outcome.arriving),
        outcomes[0].probing * 100.0,
    );
}

/// The way back alone is down: what can be read in order, as a share of the rate, until it is back.
fn way_back(link: &Link, seconds: u64, outages: Outages) {
    let mut options: LinkOptions = link.options.parse().expect("options of a link");
    let spans = format!("outages={}s+{seconds}s", BEGIN.as_secs());
    options.ba = Some(spans.parse().expect("an outage"));
    let (mut rig, stream) = link.rig(&options, outages);
    rig.window = 1 << 32;
    rig.ring = 1 << 32;
    rig.run(BEGIN, |_| false);
    let before = rig.readable(stream);
    let end = BEGIN + Duration::from_secs(seconds);
    rig.run(end, |_| false);
    let share = (rig.readable(stream) - before) as f64 * 8.0 / seconds as f64 / link.rate as f64;
    println!("| {} | {seconds} s | {outages:?} | {share:.2} |", link.name);
}

fn main() {
    let default = Outages::After(Duration::from_secs(1));
    let geo = Link {
        name: "10 Mbit/s, 600 ms",
        options: "rate=10mbit,delay=300ms,queue=100%bdp",
        rate: 10_000_000,
        stated: 10_000_000,
        rtt_ms: 600,
    };
    let links = [
        Link {
            name: "10 Mbit/s, 600 ms, told of 11: a full queue",
            stated: 11_000_000,
            ..geo
        },
        geo,
        Link {
            name: "100 Mbit/s, 20 ms",
            options: "rate=100mbit,delay=10ms,queue=100%bdp",
            rate: 100_000_000,
            stated: 100_000_000,
            rtt_ms: 20,
        },
        Link {
            name: "500 kbit/s, 528 ms",
            options: "rate=500kbit,delay=264ms,queue=100%bdp",
            rate: 500_000,
            stated: 500_000,
            rtt_ms: 528,
        },
    ];
    println!("After an outage, milliseconds; median (least..most) of {RUNS} beginnings\n");
    println!(
        "| link | outage | first new byte | nine tenths of the rate, in order | on the link | probing, of the rate |"
    );
    println!("|---|---|---|---|---|---|");
    for link in &links {
        for seconds in [2, 20, 600] {
            row(link, seconds, default);
        }
        row(link, 20, Outages::Never);
    }
    println!("\nThe way back alone is down: what arrives meanwhile, as a share of the rate\n");
    println!("| link | for | sending into silence | share |\n|---|---|---|---|");
    for link in &links[1..3] {
        for outages in [default, Outages::Never] {
            for seconds in [1, 8] {
                way_back(link, seconds, outages);
            }
        }
    }
}
