//! Long outages: when the first new byte arrives after the link is back, when the rate is back at 90 %, and
//! what probing costs meanwhile. And an outage of the way back alone.
//!
//!     cargo run --release -p tunnel-sim --example outages

use std::time::Duration;

use tunnel::{class::Class, session::Outages};
use tunnel_sim::rig::{Rig, config};
use winkemu_link::{Direction, LinkOptions};

const BEGIN: Duration = Duration::from_secs(10);

struct Link {
    name: &'static str,
    options: &'static str,
    rate: u64,
    rtt_ms: u64,
}

fn rig(link: &Link, extra: &str) -> Rig {
    let rtt = Duration::from_millis(link.rtt_ms);
    let sides = [true, false].map(|initiator| config(initiator, link.rate, rtt));
    let mut rig = Rig::new(&format!("{}{extra}", link.options), 1, sides);
    rig.upload(Class::Bulk, 1 << 40);
    rig
}

/// What the sender has put on the link, in bits a second, within a time.
fn sent(rig: &mut Rig, until: Duration) -> f64 {
    let offered = |rig: &Rig| rig.link.stats(Direction::AtoB).offered_bytes;
    let (began, before) = (rig.now, offered(rig));
    rig.run(until, |_| false);
    (offered(rig) - before) as f64 * 8.0 / (until - began).as_secs_f64()
}

fn outage(link: &Link, seconds: u64) {
    let up = BEGIN + Duration::from_secs(seconds);
    let extra = format!(",outages={}s+{seconds}s", BEGIN.as_secs());
    let mut rig = rig(link, &extra);
    // By default sending goes on for a second after the silence has been noticed.
    let stopped = BEGIN + Duration::from_secs(5);
    let probing = if up > stopped {
        rig.run(stopped, |_| false);
        format!("{:.2} %", sent(&mut rig, up) / link.rate as f64 * 100.0)
    } else {
        rig.run(up, |_| false);
        "-".to_owned()
    };
    let before = rig.arrived();
    rig.run(up + Duration::from_secs(20), |rig| rig.arrived() > before);
    let first = rig.now - up;
    // From when on, over a round trip or 50 ms, nine tenths of what a link that was never away carries.
    let span = Duration::from_millis(link.rtt_ms.max(50));
    let full = 0.9 * 0.957 * link.rate as f64;
    let mut history = vec![(rig.now, rig.arrived())];
    let mut back = None;
    while back.is_none() && rig.now < up + Duration::from_secs(20) {
        rig.run(rig.now + Duration::from_millis(5), |_| false);
        history.push((rig.now, rig.arrived()));
        let from = history.iter().rposition(|(at, _)| *at + span <= rig.now);
        back = from.and_then(|from| {
            let (at, arrived) = history[from];
            let rate = (rig.arrived() - arrived) as f64 * 8.0 / (rig.now - at).as_secs_f64();
            (rate >= full).then_some(at)
        });
    }
    let back = back.map_or("not within 20 s".to_owned(), |at| {
        format!("{:.2}", (at - up).as_secs_f64() * 1e3 / link.rtt_ms as f64)
    });
    println!(
        "| {} | {seconds} s | {:.0} | {back} | {probing} |",
        link.name,
        first.as_secs_f64() * 1e3,
    );
}

/// The way back alone is down: what arrives, as a share of the rate, until it is back.
fn way_back(link: &Link, seconds: u64, outages: Outages) {
    let options: LinkOptions = link.options.parse().expect("options of a link");
    let mut options = options;
    let spans = format!("outages={}s+{seconds}s", BEGIN.as_secs());
    options.ba = Some(spans.parse().expect("an outage"));
    let rtt = Duration::from_millis(link.rtt_ms);
    let sides = [true, false].map(|initiator| {
        let mut config = config(initiator, link.rate, rtt);
        config.outages = outages;
        config
    });
    let mut rig = Rig::with_options(&options, 1, sides);
    rig.upload(Class::Bulk, 1 << 40);
    rig.run(BEGIN, |_| false);
    let before = rig.arrived();
    let end = BEGIN + Duration::from_secs(seconds);
    rig.run(end, |_| false);
    let share = (rig.arrived() - before) as f64 * 8.0 / seconds as f64 / link.rate as f64;
    println!("| {} | {seconds} s | {outages:?} | {share:.2} |", link.name);
}

fn main() {
    let links = [
        Link {
            name: "10 Mbit/s, 600 ms",
            options: "rate=10mbit,delay=300ms,queue=100%bdp",
            rate: 10_000_000,
            rtt_ms: 600,
        },
        Link {
            name: "100 Mbit/s, 20 ms",
            options: "rate=100mbit,delay=10ms,queue=100%bdp",
            rate: 100_000_000,
            rtt_ms: 20,
        },
        Link {
            name: "500 kbit/s, 528 ms",
            options: "rate=500kbit,delay=264ms,queue=100%bdp",
            rate: 500_000,
            rtt_ms: 528,
        },
    ];
    println!(
        "| link | outage | first new byte after ms | 90 % of the rate after RTT | probing, of the rate |"
    );
    println!("|---|---|---|---|---|");
    for link in &links {
        for seconds in [2, 20, 600] {
            outage(link, seconds);
        }
    }
    println!("\nThe way back alone is down: what arrives meanwhile, as a share of the rate\n");
    println!("| link | for | sending into silence | share |\n|---|---|---|---|");
    for link in &links[..2] {
        for outages in [Outages::After(Duration::from_secs(1)), Outages::Never] {
            for seconds in [1, 8] {
                way_back(link, seconds, outages);
            }
        }
    }
}
