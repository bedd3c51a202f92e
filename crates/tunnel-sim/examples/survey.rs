//! Failing schedules of a range, one per line, with their violations.
//!
//!     cargo run -p tunnel-sim --example survey -- FROM UNTIL [session|unknown-rate|endpoint]

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use parking_lot::Mutex;
use tunnel_sim::{Plan, Side, World, endpoint::Sealed, plan::Scope, session::Plain};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (from, until): (u64, u64) = (number(0, 0)?, number(1, 1000)?);
    match arguments.get(2).map(String::as_str) {
        None | Some("session") => survey::<Plain>(from, until, &Scope::SESSION),
        Some("unknown-rate") => survey::<Plain>(from, until, &Scope::UNKNOWN_RATE),
        Some("endpoint") => survey::<Sealed>(from, until, &Scope::ENDPOINT),
        Some(other) => {
            return Err(format!(
                "{other}: unknown kind, expected session, unknown-rate or endpoint"
            )
            .into());
        }
    }
    Ok(())
}

fn survey<S: Side>(from: u64, until: u64, scope: &Scope) {
    let next = AtomicU64::new(from);
    let kinds = Mutex::new(BTreeMap::<String, u64>::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= until {
                return;
            }
            let Err(failure) = World::<S>::run(Plan::draw(seed, scope), false) else {
                continue;
            };
            let (end, at, what) = (failure.end, failure.at, &failure.violation);
            let mut text = format!("{what:?}");
            text.truncate(200);
            println!("{seed}: end {end} after {at:?}: {text}");
            *kinds.lock().entry(what.kind()).or_default() += 1;
        }
    };
    thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            threads.spawn(work);
        }
    });
    println!("{from}..{until}: {:?}", kinds.into_inner());
}
