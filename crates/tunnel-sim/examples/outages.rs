//! Recovery after long outages: the time from link up until the first new byte can be read, and
//! until nine tenths of the rate are sent and can be read in order. Also the cost of probing. Then
//! the same for outages of many lengths, with loss and on machines that pause. Finally an outage of
//! the return path alone.
//!
//!     cargo run --release -p tunnel-sim --example outages [all|lengths|late|back [LENGTHS]]

use std::time::Duration;

use tunnel::{class::Class, session::Outages, wire::StreamId};
use tunnel_sim::rig::{Rig, config, spread};
use winkemu_link::{Direction, LinkOptions};

const BEGIN: Duration = Duration::from_secs(10);
/// Number of outages per row; they begin at different times, and nothing else is random.
const RUNS: u32 = 5;
const APART: Duration = Duration::from_millis(137);
/// Time for which the recovery of the rate is observed.
const LOOK: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(5);
/// Share of a link without outages that hosts get.
const SHARE: f64 = 0.957;
/// Ring of both ends per stream, in bandwidth-delay products as in pepd, and its minimum.
const RING_BDP: f64 = 4.0;
const RING_MIN: u64 = 1 << 20;
/// Ring on a dedicated link.
const RING_DEDICATED: u64 = 16 << 20;
/// Maximum pause of the machines, and maximum time between pauses.
const LATE: Duration = Duration::from_millis(60);
const LATE_APART: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Link {
    name: &'static str,
    options: &'static str,
    rate: u64,
    /// Rate configured at the tunnel.
    stated: u64,
    rtt_ms: u64,
}

impl Link {
    fn ring(&self, outages: Outages) -> u64 {
        if outages == Outages::Never {
            return RING_DEDICATED;
        }
        let product = (self.rate / 8) as f64 * self.rtt_ms as f64 / 1e3;
        ((RING_BDP * product) as u64)
            .max(RING_MIN)
            .next_power_of_two()
    }

    fn rig(&self, options: &LinkOptions, outages: Outages, seed: u64) -> (Rig, StreamId) {
        let rtt = Duration::from_millis(self.rtt_ms);
        let sides = [true, false].map(|initiator| {
            let mut config = config(initiator, self.stated, rtt);
            config.outages = outages;
            config
        });
        let mut rig = Rig::with_options(options, seed, sides);
        let stream = rig.feed(Class::Bulk, self.ring(outages));
        (rig, stream)
    }
}

/// Returns the rate at which the sender puts bits on the link, until a given time.
fn sent(rig: &mut Rig, until: Duration) -> f64 {
    let offered = |rig: &Rig| rig.link.stats(Direction::AtoB).offered_bytes;
    let (began, before) = (rig.now, offered(rig));
    rig.run(until, |_| false);
    (offered(rig) - before) as f64 * 8.0 / (until - began).as_secs_f64()
}

/// Returns the time from which on `wanted` bytes per second came, over `span`.
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
    /// Milliseconds to nine tenths of the rate on arrival, in order or not.
    arriving: f64,
    /// Probing during the outage, as a share of the rate.
    probing: f64,
}

/// Outage, and its other parameters.
#[derive(Clone, Copy)]
struct Case {
    begin: Duration,
    length: Duration,
    /// True if both machines pause.
    late: bool,
    seed: u64,
}

impl Case {
    fn new(seconds: u64, run: u32) -> Self {
        Self {
            begin: BEGIN + APART * run,
            length: Duration::from_secs(seconds),
            late: false,
            seed: 1,
        }
    }
}

fn outage(link: &Link, loss: &str, outages: Outages, case: &Case) -> Outcome {
    let (begin, length) = (case.begin, case.length);
    let up = begin + length;
    let extra = format!(",outages={}ms+{}ms", begin.as_millis(), length.as_millis());
    let options = format!("{}{loss}{extra}", link.options);
    let options = options.parse().expect("options of a link");
    let (mut rig, stream) = link.rig(&options, outages, case.seed);
    if case.late {
        rig.keep_busy(case.seed, LATE, LATE_APART);
    }
    // By default sending goes on for a second after the silence has been detected.
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
        .map(|run| outage(link, "", outages, &Case::new(seconds, run)))
        .collect();
    println!(
        "| {}{} | {seconds} s | {} | {:.2} % |",
        link.name,
        name_of(outages),
        times(&outcomes),
        outcomes[0].probing * 100.0,
    );
}

fn name_of(outages: Outages) -> &'static str {
    match outages {
        Outages::Never => ", dedicated",
        _ => "",
    }
}

fn times(outcomes: &[Outcome]) -> String {
    let all = |of: fn(&Outcome) -> f64| {
        let (median, minimum, most) = spread(&mut outcomes.iter().map(of).collect::<Vec<_>>());
        format!("{median:.0} ({minimum:.0}..{most:.0})")
    };
    let of: [fn(&Outcome) -> f64; 3] = [|o| o.first, |o| o.in_order, |o| o.arriving];
    of.map(all).join(" | ")
}

/// Measures `seeds` lengths within a range, none synchronised with any interval.
fn lengths(link: &Link, outages: Outages, (from, to): (f64, f64), late: bool, seeds: u64) {
    for loss in ["", ",loss=2%"] {
        let case = |seed| Case {
            begin: BEGIN + APART * (seed % 7) as u32,
            length: Duration::from_secs_f64(from + (to - from) * seed as f64 / seeds as f64),
            late,
            seed,
        };
        let outcomes: Vec<_> = (0..seeds)
            .map(|seed| outage(link, loss, outages, &case(seed)))
            .collect();
        println!(
            "| {}{} | {from} to {to} s | {} | {} |",
            link.name,
            name_of(outages),
            if loss.is_empty() { "0" } else { "2 %" },
            times(&outcomes),
        );
    }
}

/// Measures an outage of the return path alone: the share of the rate that can be read in order
/// meanwhile.
fn return_path(link: &Link, seconds: u64, outages: Outages) {
    let mut options: LinkOptions = link.options.parse().expect("options of a link");
    let spans = format!("outages={}s+{seconds}s", BEGIN.as_secs());
    options.ba = Some(spans.parse().expect("an outage"));
    let (mut rig, stream) = link.rig(&options, outages, 1);
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
            name: "10 Mbit/s, 600 ms, configured as 11: a full queue",
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
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next();
    let wants = |name| part.as_deref().is_none_or(|part| part == name);
    let seeds = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(20);
    if wants("all") {
        all(&links, default);
    }
    for (name, late) in [("lengths", false), ("late", true)] {
        if wants(name) {
            many(&links[1], default, late, seeds);
        }
    }
    if wants("back") {
        back_alone(&links[1..3], default);
    }
}

fn all(links: &[Link], default: Outages) {
    println!("After an outage, milliseconds; median (min..max) of {RUNS} beginnings\n");
    println!(
        "| link | outage | first new byte | nine tenths of the rate, in order | on the link | probing, of the rate |"
    );
    println!("|---|---|---|---|---|---|");
    for link in links {
        for seconds in [2, 20, 600] {
            row(link, seconds, default);
        }
        row(link, 20, Outages::Never);
    }
}

fn many(link: &Link, default: Outages, late: bool, seeds: u64) {
    let machines = if late { ", on machines that pause" } else { "" };
    println!("\nThe same, {seeds} lengths each{machines}\n");
    println!(
        "| link | outage | loss | first new byte | nine tenths of the rate, in order | on the link |"
    );
    println!("|---|---|---|---|---|---|");
    for outages in [Outages::Never, default] {
        for span in [(1.5, 3.0), (12.0, 16.0), (19.0, 21.0)] {
            lengths(link, outages, span, late, seeds);
        }
    }
}

fn back_alone(links: &[Link], default: Outages) {
    println!("\nReturn path alone down: data arriving meanwhile, as a share of the rate\n");
    println!("| link | for | sending into silence | share |\n|---|---|---|---|");
    for link in links {
        for outages in [default, Outages::Never] {
            for seconds in [1, 8] {
                return_path(link, seconds, outages);
            }
        }
    }
}
