//! Cost of the sliding window code, with packets of 1,400 bytes.
//!
//! `cargo bench -p fec --bench window`

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fec::{
    overhead::Overhead,
    scheme::{Decoder, Encoder},
    window::{DecoderConfig, EncoderConfig, WindowDecoder, WindowEncoder, coefficients},
    wire::Header,
};

const LENGTH: usize = 1400;
const WINDOW: u8 = 128;

fn packet(id: u32) -> Vec<u8> {
    let mut state = u64::from(id) << 32 | 1;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..LENGTH).map(|_| byte()).collect()
}

fn encoder(window: u8, overhead: Overhead) -> WindowEncoder {
    let config = EncoderConfig {
        window,
        overhead,
        ..EncoderConfig::default()
    };
    WindowEncoder::new(config).expect("a configuration in range")
}

fn decoder() -> WindowDecoder {
    let config = DecoderConfig::for_window(WINDOW);
    WindowDecoder::new(&config).expect("a configuration in range")
}

fn draw(c: &mut Criterion) {
    let mut group = c.benchmark_group("coefficients");
    for count in [3, 128] {
        let mut coefficients = [0; WINDOW as usize];
        let mut key = 0;
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| {
                key += 1;
                coefficients::draw(black_box(key & 0xfff), &mut coefficients[..count]);
                coefficients[0]
            });
        });
    }
}

/// A data packet and a repair packet over the window that ends with it.
fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode_repair");
    for window in [3, 32, 128u8] {
        group.throughput(Throughput::Bytes(u64::from(window) * LENGTH as u64));
        let mut encoder = encoder(window, Overhead::of_block(1, 1));
        let packets: Vec<Vec<u8>> = (0..256).map(packet).collect();
        let mut next = 0;
        let mut step = || {
            next = (next + 1) % packets.len();
            let _ = black_box(encoder.handle_data(&packets[next], Duration::ZERO));
            encoder.poll_repair().map(|(_, symbol)| symbol[0])
        };
        (0..window).for_each(|_| {
            step();
        });
        group.bench_function(BenchmarkId::from_parameter(window), |b| b.iter(&mut step));
    }
}

fn data(c: &mut Criterion) {
    let mut group = c.benchmark_group("data_only");
    group.throughput(Throughput::Bytes(LENGTH as u64));
    let mut encoder = encoder(WINDOW, Overhead::none());
    let packet = packet(0);
    group.bench_function("encoder", |b| {
        b.iter(|| {
            encoder
                .handle_data(black_box(&packet), Duration::ZERO)
                .is_ok()
        });
    });
    let mut decoder = decoder();
    let mut id = 0u32;
    group.bench_function("decoder", |b| {
        b.iter(|| {
            id = id.wrapping_add(1);
            decoder
                .handle(Header::WindowData { id }, black_box(&packet))
                .is_ok()
        });
    });
}

/// A link that loses `lost` of 128 packets, and then delivers as many repair packets over them.
struct Link {
    encoder: WindowEncoder,
    decoder: WindowDecoder,
    packets: Vec<Vec<u8>>,
    lost: usize,
}

impl Link {
    fn new(lost: usize) -> Self {
        let overhead = Overhead::from_fn(|k| lost.max(1) * usize::from(k == 128));
        Self {
            encoder: encoder(WINDOW, overhead),
            decoder: decoder(),
            packets: (0..WINDOW.into()).map(packet).collect(),
            lost,
        }
    }

    /// Time of the decoder for repair packet number `timed` of a window.
    fn window(&mut self, timed: usize) -> Duration {
        let every = self.packets.len() / self.lost.max(1);
        for (i, data) in self.packets.iter().enumerate() {
            let arrives = i % every != 0 || i / every >= self.lost;
            if let (Ok(header), true) = (self.encoder.handle_data(data, Duration::ZERO), arrives) {
                let _ = self.decoder.handle(header, data);
            }
        }
        self.encoder.handle_drained(Duration::ZERO);
        let (mut number, mut time) = (0, Duration::ZERO);
        while let Some((header, symbol)) = self.encoder.poll_repair() {
            let start = Instant::now();
            let _ = black_box(self.decoder.handle(header, symbol));
            if number == timed {
                time = start.elapsed();
            }
            number += 1;
        }
        while self.decoder.poll_recovered().is_some() {}
        time
    }
}

fn repairs(c: &mut Criterion, name: &str, lost: &[usize], timed: impl Fn(usize) -> usize) {
    let mut group = c.benchmark_group(name);
    for lost in lost.iter().copied() {
        let mut link = Link::new(lost);
        group.bench_function(BenchmarkId::from_parameter(lost), |b| {
            b.iter_custom(|windows| (0..windows).map(|_| link.window(timed(lost))).sum());
        });
        let stats = link.decoder.stats();
        // In one of 255 cases the repair packets are one too few.
        assert!(stats.lost * 100 <= stats.recovered, "{stats:?}");
    }
}

/// The repair packet that completes the equations: all missing packets are restored.
fn last_repair(c: &mut Criterion) {
    repairs(c, "last_repair_restores", &[0, 1, 4, 16, 32], |lost| {
        lost.saturating_sub(1)
    });
}

/// The repair packet before it, which is only stored.
fn other_repair(c: &mut Criterion) {
    repairs(c, "other_repair", &[4, 16, 32], |lost| lost - 2);
}

criterion_group!(benches, draw, encode, data, last_repair, other_repair);
criterion_main!(benches);
