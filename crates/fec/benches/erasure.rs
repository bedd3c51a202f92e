//! Encoding and decoding of blocks of packets, by every kernel of this machine, beside a copy of
//! the same data and reed-solomon-erasure with its simd-accel. In bytes of data per second.
//!
//! The first kernel of each group is the default.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fec::{
    code::{ErasureCode, ReedSolomon},
    kernel::Kernel,
};
use shared::{Block, Job, Losses};

mod shared;

/// k, h and the length of packets.
const ENCODE: [(usize, usize, usize); 4] =
    [(20, 6, 1344), (20, 6, 1400), (50, 2, 1344), (50, 2, 1400)];

const DECODE: [(usize, usize, usize); 2] = [(20, 6, 1344), (50, 2, 1344)];

const REFERENCE: &str = "reed-solomon-erasure";

fn measure(criterion: &mut Criterion, what: &str, block: &Block, jobs: Vec<(&str, Job<'_>)>) {
    let mut group = criterion.benchmark_group(what);
    group.throughput(Throughput::Bytes(block.bytes()));
    for (name, mut job) in jobs {
        group.bench_function(name, |bencher| bencher.iter(&mut job));
    }
    group.finish();
}

fn encode(criterion: &mut Criterion) {
    for (k, h, length) in ENCODE {
        let block = Block::new(k, h, length);
        let kernels = Kernel::available().map(|kernel| (kernel.name(), block.encode(kernel)));
        let mut jobs: Vec<_> = kernels.collect();
        jobs.push((REFERENCE, block.encode_reference()));
        jobs.push(("memcpy", block.memcpy()));
        measure(
            criterion,
            &format!("encode ({k},{h}) {length} B"),
            &block,
            jobs,
        );
    }
}

fn decode(criterion: &mut Criterion) {
    for (k, h, length) in DECODE {
        let block = Block::new(k, h, length);
        for (pattern, losses) in [("random", Losses::Random), ("repeating", Losses::Repeating)] {
            let mut jobs: Vec<_> = Kernel::available()
                .map(|kernel| (kernel.name(), block.decode(kernel, losses)))
                .collect();
            jobs.push((REFERENCE, block.decode_reference(losses)));
            let what = format!("decode ({k},{h}) {length} B, {pattern} losses");
            measure(criterion, &what, &block, jobs);
        }
    }
}

/// Cost of coding without the bytes: checks and coefficients, of empty packets.
fn coefficients(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("coefficients");
    for (k, h) in [(20, 6), (50, 2)] {
        let data = vec![&[][..]; k];
        group.bench_function(format!("first rows ({k},{h})"), |bencher| {
            bencher.iter(|| {
                let mut rows: [&mut [u8]; 8] = std::array::from_fn(|_| &mut [][..]);
                ReedSolomon::new().encode(&data, 0, &mut rows[..h])
            });
        });
        let block = Block::new(k, h, 0);
        for (name, mut job) in [
            ("encode again", block.encode(Kernel::detect())),
            (
                "decode random",
                block.decode(Kernel::detect(), Losses::Random),
            ),
            (
                "decode repeating",
                block.decode(Kernel::detect(), Losses::Repeating),
            ),
        ] {
            group.bench_function(format!("{name} ({k},{h})"), |bencher| {
                bencher.iter(&mut job);
            });
        }
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500))
}

criterion_group!(name = benches; config = quick(); targets = encode, decode, coefficients);
criterion_main!(benches);
