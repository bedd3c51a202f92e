//! Delay until bytes can be read in order: messages of an interactive stream beside bulk, and
//! normal streams of half and of nine tenths of the link's rate. 10 Mbit/s, 600 ms.
//!
//!     cargo run --release -p tunnel-sim --example delays [SEEDS [WORD]]
//!
//! With WORD only the rows that contain it.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, time::Duration};

use tunnel::{class::Class, wire::StreamId};
use tunnel_sim::rig::{Rig, config, spread};

const RATE: u64 = 10_000_000;
const RTT: Duration = Duration::from_millis(600);
const ONE_WAY: Duration = Duration::from_millis(300);
const TIME: Duration = Duration::from_secs(300);
const GILBERT: &str = "gilbert=0.0087,0.1491";

/// Stream with writes of a given size and interval.
struct Writes {
    class: Class,
    bytes: u64,
    every: Duration,
}

const MESSAGES: Writes = Writes {
    class: Class::Interactive,
    bytes: 200,
    every: Duration::from_millis(50),
};

/// 5 Mbit/s.
const NORMAL: Writes = Writes {
    class: Class::Normal,
    bytes: 1250,
    every: Duration::from_millis(2),
};

/// 3 Mbit/s: less than its half of the link beside another stream.
const BESIDE: Writes = Writes {
    class: Class::Normal,
    bytes: 750,
    every: Duration::from_millis(2),
};

/// 9 Mbit/s: with repair packets this would exceed the link's rate.
const NEARLY_ALL: Writes = Writes {
    class: Class::Normal,
    bytes: 2250,
    every: Duration::from_millis(2),
};

/// Returns the delays beyond the one-way delay, in the order of writing. Bytes that have not come
/// are left out.
fn delays(loss: &str, writes: &Writes, bulk: bool, seed: u64) -> Vec<Duration> {
    let link = format!("rate=10mbit,delay=300ms,queue=100%bdp{loss}");
    let mut rig = Rig::new(&link, seed, [true, false].map(|i| config(i, RATE, RTT)));
    if bulk {
        rig.upload(Class::Bulk, 1 << 40);
    }
    // Loss is known by then, as from an earlier session.
    rig.run(Duration::from_secs(20), |_| false);
    let stream: StreamId = rig.sessions[0]
        .open(writes.class, 0, b"")
        .expect("below the limit");
    let due: Rc<RefCell<VecDeque<(u64, Duration)>>> = Rc::default();
    let taken: Rc<RefCell<Vec<Duration>>> = Rc::default();
    let (waiting, delays) = (Rc::clone(&due), Rc::clone(&taken));
    rig.on_readable = Box::new(move |_, of, _, until, now| {
        let mut waiting = waiting.borrow_mut();
        while of == stream && waiting.front().is_some_and(|(end, _)| *end <= until) {
            let (_, at) = waiting.pop_front().expect("front just checked");
            delays.borrow_mut().push((now - at).saturating_sub(ONE_WAY));
        }
    });
    let begin = rig.now;
    for turn in 1..=(TIME.as_nanos() / writes.every.as_nanos()) as u32 {
        // Not synchronised with the pacing of bulk.
        let at =
            begin + writes.every * turn + Duration::from_nanos(u64::from(turn) * 7_300 % 1_000_000);
        rig.run(at, |_| false);
        let end = u64::from(turn) * writes.bytes;
        due.borrow_mut().push_back((end, rig.now));
        rig.sessions[0].written(stream, end);
    }
    rig.run(rig.now + Duration::from_secs(10), |_| false);
    rig.on_readable = Box::new(|_, _, _, _, _| {});
    taken.take()
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let seeds: u64 = seeds.unwrap_or(5);
    let word = std::env::args().nth(2).unwrap_or_default();
    println!(
        "| loss | stream | within one-way delay + 60 ms, % | min..max | p50 ms | p95 ms | p99 ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, loss) in [
        ("0", String::new()),
        ("2 %", ",loss=2%".to_owned()),
        ("8 %", ",loss=8%".to_owned()),
        ("bursts", format!(",{GILBERT}")),
    ] {
        for (stream, writes, bulk) in [
            ("200 B every 50 ms beside bulk", &MESSAGES, true),
            ("normal, 5 Mbit/s", &NORMAL, false),
            ("normal, 3 Mbit/s, beside bulk", &BESIDE, true),
            ("normal, 9 Mbit/s", &NEARLY_ALL, false),
        ] {
            if !format!("{name}: {stream}").contains(&word) {
                continue;
            }
            let mut within = Vec::new();
            let mut all = Vec::new();
            for seed in 0..seeds {
                let delays = delays(&loss, writes, bulk, seed);
                let soon = delays.iter().filter(|d| d.as_millis() < 60).count();
                within.push(soon as f64 / delays.len() as f64 * 100.0);
                all.extend(delays);
            }
            all.sort();
            let at =
                |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
            let (median, minimum, most) = spread(&mut within);
            println!(
                "| {name} | {stream} | {median:.2} | {minimum:.2}..{most:.2} | {:.0} | {:.0} | {:.0} |",
                at(0.5),
                at(0.95),
                at(0.99)
            );
        }
    }
}
