//! Properties of whole links, checked against naive models.

mod codel;
mod conservation;
mod loss;
mod options;
mod outage;
mod predict;
mod queue;
mod rate;
mod seeds;

use super::*;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = NANOS_PER_SECOND;

/// Parses the configuration of a link from valid options.
fn config(options: &str) -> LinkConfig {
    let options: LinkOptions = options.parse().unwrap();
    options.resolve_without_files().unwrap()
}

fn engine(options: &str) -> Engine {
    Engine::new(&config(options), 1)
}

/// Polls every packet due by `until`, with its time of delivery.
fn drain(engine: &mut Engine, until: Nanos) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    while let Some(at) = engine.poll_timeout().filter(|at| *at <= until) {
        while let Some((direction, packet)) = engine.poll_deliver(at) {
            arrivals.push(Arrival {
                at,
                direction,
                packet,
            });
        }
    }
    arrivals
}

/// Sends packets from A to B at these times and returns their times of delivery.
fn through(options: &str, sent: &[(Nanos, usize)]) -> Vec<(u64, Nanos)> {
    let mut engine = engine(options);
    let mut arrivals = Vec::new();
    for (at, bytes) in sent {
        arrivals.extend(drain(&mut engine, at - at.min(&1)));
        engine.handle_packet(Direction::AtoB, &vec![0; *bytes], *at);
    }
    arrivals.extend(drain(&mut engine, FOREVER));
    arrivals
        .iter()
        .map(|arrival| (arrival.packet.index, arrival.at))
        .collect()
}
