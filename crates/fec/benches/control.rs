//! Cost of theory and control: a table of rows, and each packet.
//!
//! `cargo bench -p fec --bench control`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fec::{
    control::{Control, ControlConfig, LossMeter, MeterConfig},
    theory::{Channel, rows_needed},
};

/// Enough packets for a control to settle.
const PACKETS: u64 = 100_000;

fn theory(c: &mut Criterion) {
    let mut group = c.benchmark_group("theory");
    let channel = Channel::gilbert(0.02, 3.0).expect("a channel");
    for k_max in [20, 100, 255] {
        group.bench_function(BenchmarkId::new("rows_needed", k_max), |b| {
            b.iter(|| rows_needed(black_box(&channel), 1, 1e-3, k_max));
        });
    }
    for (k, h) in [(20, 6), (200, 56)] {
        group.bench_function(BenchmarkId::new("block", format!("({k}, {h})")), |b| {
            b.iter(|| black_box(&channel).block(k, h, 1));
        });
    }
    group.finish();
}

/// Path from packet numbers to rows, one packet at a time.
fn packets(c: &mut Criterion) {
    let mut group = c.benchmark_group("packet");
    group.throughput(Throughput::Elements(PACKETS));
    group.sample_size(20);
    let lossy = Channel::iid(0.02).expect("a channel");
    for (name, channel, block) in [
        ("clean", Channel::iid(0.0).expect("a channel"), 20),
        ("2 %", lossy, 20),
        ("2 %", lossy, 100),
        ("bursts", Channel::PAUL2006, 20),
        ("bursts", Channel::PAUL2006, 100),
    ] {
        let losses: Vec<bool> = channel.draws(1).take(PACKETS as usize).collect();
        let config = ControlConfig {
            block,
            ..ControlConfig::default()
        };
        group.bench_function(BenchmarkId::new(name, block), |b| {
            let mut control = Control::new(config).expect("a configuration in range");
            let mut meter = LossMeter::new(MeterConfig::default());
            let mut number = 0;
            b.iter(|| {
                for &lost in &losses {
                    if !lost {
                        meter.on_packet(number, |run| control.on_counts(run));
                    }
                    number += 1;
                }
                control.overhead().rows(20)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, theory, packets);
criterion_main!(benches);
