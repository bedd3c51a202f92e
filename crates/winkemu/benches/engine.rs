//! Cost of a packet in the engine: in and out, 1500 bytes, with reused memory.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use winkemu::link::{Direction, Engine, LinkOptions, Nanos};

const LINKS: [(&str, &str); 6] = [
    ("wire", ""),
    ("geo", "rate=1Gbit/s,delay=300ms"),
    ("losses", "rate=1Gbit/s,loss=1%,ber=1e-7,gilbert=0.01,0.3"),
    (
        "outages",
        "rate=1Gbit/s,wink=p=0.2,i=40ms,onoff=up=1s,down=100ms",
    ),
    ("codel", "rate=1Gbit/s,aqm=codel"),
    (
        "everything",
        "rate=1Gbit/s,delay=300ms,jitter=5ms,reorder=true,loss=1%,ber=1e-7,gilbert=0.01,0.3,\
         wink=p=0.2,i=40ms,duplicate=1%,corrupt=1%,aqm=codel",
    ),
];

/// Gap between full packets at 900 Mbit/s.
const GAP: Nanos = 13_333;

fn carry(engine: &mut Engine, now: &mut Nanos, packet: &[u8]) {
    *now += GAP;
    engine.handle_packet(Direction::AtoB, packet, *now);
    while let Some((_, packet)) = engine.poll_deliver(*now) {
        engine.recycle(packet);
    }
    std::hint::black_box(engine.poll_timeout());
}

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packet");
    group.throughput(Throughput::Elements(1));
    for (name, options) in LINKS {
        let options: LinkOptions = options.parse().expect("valid options");
        let config = options.resolve_without_files().expect("no files");
        group.bench_function(name, |bencher| {
            let (mut engine, mut now, packet) = (Engine::new(&config, 1), 0, [0; 1500]);
            // Fill the pipe first, so that the benchmark measures the steady state.
            for _ in 0..50_000 {
                carry(&mut engine, &mut now, &packet);
            }
            bencher.iter(|| carry(&mut engine, &mut now, &packet));
        });
    }
}

criterion_group!(benches, packets);
criterion_main!(benches);
