//! Every schedule of a range that fails, a line each, and what they violate.
//!
//!     cargo run -p tunnel-sim --example survey -- FROM UNTIL

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tunnel_sim::{Plan, World, plan::Scope, session::Plain};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Result<Vec<u64>, _> = std::env::args().skip(1).map(|n| n.parse()).collect();
    let arguments = arguments?;
    let (from, until) = (
        arguments.first().copied().unwrap_or(0),
        arguments.get(1).copied().unwrap_or(1000),
    );
    let next = AtomicU64::new(from);
    let kinds = Mutex::new(BTreeMap::<String, u64>::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= until {
                return;
            }
            let Err(failure) = World::<Plain>::run(Plan::draw(seed, &Scope::SESSION), false) else {
                continue;
            };
            let (end, at, what) = (failure.end, failure.at, &failure.violation);
            let mut text = format!("{what:?}");
            text.truncate(200);
            println!("{seed}: end {end} after {at:?}: {text}");
            if let Ok(mut kinds) = kinds.lock() {
                *kinds.entry(what.kind()).or_default() += 1;
            }
        }
    };
    thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            threads.spawn(work);
        }
    });
    println!(
        "{from}..{until}: {:?}",
        kinds.lock().map(|kinds| kinds.clone())
    );
    Ok(())
}
