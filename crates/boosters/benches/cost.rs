//! CPU cost of each booster for a packet of 200 and of 1400 bytes, down and up.
//!
//! `cargo bench -p boosters --bench cost`

use std::{hint::black_box, time::Duration};

use boosters::{
    ack_filter, ack_reconstruction, arq,
    booster::{Booster, Out},
    compress, congestion, data_filter, divacks, fec, jitter,
    packet::Packet,
    queue::{AtQueue, Queue},
    rule::Path,
    snoop, udp_checksum,
};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use etherparse::PacketBuilder;

/// Packets per measurement, so that the cost of reading the clock is negligible.
const BATCH: u64 = 256;
/// Spacing of packets: about 100 Mbit/s of long ones.
const SPACING: Duration = Duration::from_micros(100);

/// Row of the table: name, traffic, the booster, and its far end, which takes its messages. Without
/// a far end, the packets that come up are acknowledgements of those that went down.
type Row = (&'static str, Traffic, Make, Option<Make>);
type Traffic = fn(u64, usize) -> Vec<u8>;
type Make = fn() -> Box<dyn Booster>;

/// Row for a booster at the queue: name, traffic, the booster.
type QueueRow = (&'static str, Traffic, fn() -> Box<dyn AtQueue>);

macro_rules! row {
    ($name:literal, $traffic:ident, $near:expr) => {
        ($name, $traffic, || Box::new($near), None)
    };
    ($name:literal, $traffic:ident, $near:expr, $far:expr) => {
        ($name, $traffic, || Box::new($near), Some(|| Box::new($far)))
    };
}

/// Rows for boosters of a stack.
#[rustfmt::skip]
const BOOSTERS: &[Row] = &[
    row!("none", data, Nothing, Nothing),
    row!("jitter", data, jitter::Sender::new(Default::default()), jitter::Receiver::default()),
    row!("compress headers", data, compress::Sender::new(HEADERS), compress::Receiver::new()),
    row!("compress random", data, compress::Sender::new(Default::default()), compress::Receiver::new()),
    row!("compress text", text, compress::Sender::new(Default::default()), compress::Receiver::new()),
    row!("fec window 10 %", data, fec_overhead(WINDOW, fec::Backend::default()), fec::Receiver::new(1500)),
    row!("fec block 10 %", data, fec_overhead(BLOCKS, fec::Backend::default()), fec::Receiver::new(1500)),
    row!("fec block 10 %, reed-solomon-erasure", data, fec_overhead(BLOCKS, fec::Backend::Reference), fec::Receiver::new(1500)),
    row!("arq", data, arq::Sender::new(Default::default()), arq::Receiver::new()),
    row!("checksum", datagram, udp_checksum::UdpChecksum::new()),
    row!("data_filter", data, data_filter::DataFilter::new()),
    row!("snoop", data, snoop::Snoop::new(Default::default())),
    row!("divacks", data, divacks::DivAcks::new(Default::default())),
];

/// Rows for boosters at the queue.
#[rustfmt::skip]
const AT_QUEUE: &[QueueRow] = &[
    ("none", data, || Box::new(Nothing)),
    ("none, acks", acks, || Box::new(Nothing)),
    ("ack_reconstruction", data, || Box::new(ack_reconstruction::Collapse::new(Default::default()))),
    ("ack_reconstruction, acks", acks, || Box::new(ack_reconstruction::Collapse::new(Default::default()))),
    ("ack_filter", data, || Box::new(ack_filter::AckFilter::new(Default::default()))),
    ("ack_filter, acks", acks, || Box::new(ack_filter::AckFilter::new(Default::default()))),
    ("congestion", data, || Box::new(congestion::Congestion::new(Default::default()))),
];

const HEADERS: compress::Config = compress::Config {
    level: 3,
    headers: true,
    payload: false,
    flows_max: 256,
};

const WINDOW: fec::Scheme = fec::Scheme::Window { window: 64 };
const BLOCKS: fec::Scheme = fec::Scheme::Block { k: 20, depth: 1 };

/// With 10 % FEC overhead: not enough for the loss.
fn fec_overhead(scheme: fec::Scheme, code: fec::Backend) -> fec::Sender {
    let mut sender = fec::Sender::new(fec::Config {
        scheme,
        code,
        overhead_max: 0.1,
        ..Default::default()
    });
    for round in 1..10 {
        let path = Path {
            loss: 0.1,
            counts: [10_000, 1000, 900].map(|count| count * round),
            room: 1500,
            ..Path::default()
        };
        sender.set_path(Duration::ZERO, &path);
    }
    sender
}

/// Baseline that does nothing.
#[derive(Debug)]
struct Nothing;

impl Booster for Nothing {}

impl AtQueue for Nothing {
    fn arriving(
        &mut self,
        _: Duration,
        packet: Packet,
        _: &mut Queue,
        _: &mut Out,
    ) -> Option<Packet> {
        Some(packet)
    }
}

/// Returns a pseudorandom number derived from another.
fn mix(n: u64) -> u64 {
    splitmix::nth(n.wrapping_sub(1))
}

const HEADER: usize = 52;

/// Returns the n-th segment of one of 16 connections, with timestamps, around these bytes.
fn segment(n: u64, payload: &[u8], flip: bool) -> Vec<u8> {
    use etherparse::TcpOptionElement::{Noop, Timestamp};
    let (host, number) = ((n % 16) as u8, (n / 16) as u32);
    let (from, to) = ([10, 0, 0, host], [10, 0, 1, 1]);
    let options = [Noop, Noop, Timestamp(number, 1)];
    let builder = if flip {
        let seq = number.wrapping_mul(1348);
        PacketBuilder::ipv4(to, from, 64)
            .tcp(80, 40_000, 77, 501)
            .ack(seq)
    } else {
        let seq = number.wrapping_mul(payload.len() as u32);
        PacketBuilder::ipv4(from, to, 64)
            .tcp(40_000, 80, seq, 501)
            .ack(77)
    };
    let mut out = Vec::new();
    let builder = builder.options(&options).expect("fits");
    builder.write(&mut out, payload).expect("fits");
    out
}

/// Returns an incompressible segment.
fn data(n: u64, size: usize) -> Vec<u8> {
    let words = (0..).flat_map(|i| mix(n * 1000 + i).to_be_bytes());
    segment(n, &words.take(size - HEADER).collect::<Vec<_>>(), false)
}

/// Returns a segment with part of a web page.
fn text(n: u64, size: usize) -> Vec<u8> {
    let line = |i| {
        format!(
            "<li><a href=\"/archive/{}/item-{i}.html\">Entry {n}</a></li>\r\n",
            mix(n + i) % 1000
        )
    };
    let page: Vec<u8> = (0..40).flat_map(|i| line(i).into_bytes()).collect();
    segment(n, &page[..size - HEADER], false)
}

/// Returns a UDP datagram without a checksum.
fn datagram(n: u64, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let builder =
        PacketBuilder::ipv4([10, 0, 0, (n % 16) as u8], [10, 0, 1, 1], 64).udp(40_000, 53);
    builder
        .write(&mut out, &vec![n as u8; size - 28])
        .expect("fits");
    out[26..28].fill(0);
    out
}

/// Returns the packets of a receiving host: acknowledgements of one length, each for more data than
/// the one before.
fn acks(n: u64, _size: usize) -> Vec<u8> {
    let mut out = segment(n, &[], false);
    boosters::tcp::set_ack(&mut out, (n / 16) as u32 * 1448);
    out
}

/// Returns the acknowledgement of the n-th segment.
fn ack(n: u64) -> Vec<u8> {
    segment(n, &[], true)
}

/// Booster under test, with its clock.
struct End {
    booster: Box<dyn Booster>,
    now: Duration,
    out: Out,
}

impl End {
    fn new(make: Make) -> Self {
        Self {
            booster: make(),
            now: Duration::ZERO,
            out: Out::default(),
        }
    }

    fn pass(&mut self, packets: Vec<Packet>, down: bool) -> Vec<Packet> {
        for packet in packets {
            self.now += SPACING;
            if self.booster.deadline().is_some_and(|at| at <= self.now) {
                self.booster.on_time(self.now, &mut self.out);
            }
            if down {
                let before = self.out.down.len();
                self.booster.down(self.now, packet, &mut self.out);
                for packet in &self.out.down[before..] {
                    self.booster.leaving(self.now, packet);
                }
            } else {
                self.booster.up(self.now, packet, &mut self.out);
            }
        }
        self.out.up.clear();
        std::mem::take(&mut self.out.down)
    }
}

/// Returns the next packets, as hosts send them.
fn next(n: &mut u64, make: impl Fn(u64) -> Vec<u8>) -> Vec<Packet> {
    let one = |n: u64| Packet::new(make(n), SPACING * n as u32);
    let packets = (*n..*n + BATCH).map(one).collect();
    *n += BATCH;
    packets
}

fn boosters(c: &mut Criterion) {
    for (name, traffic, near, far) in BOOSTERS {
        let mut group = c.benchmark_group(*name);
        group.throughput(Throughput::Elements(BATCH));
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(500));
        for size in [200, 1400] {
            group.bench_function(BenchmarkId::new("down", size), |b| {
                let (mut end, mut n) = (End::new(*near), 0);
                let setup = || next(&mut n, |n| traffic(n, size));
                b.iter_batched(
                    setup,
                    |packets| black_box(end.pass(packets, true)),
                    BatchSize::PerIteration,
                );
            });
            group.bench_function(BenchmarkId::new("up", size), |b| {
                let (mut sender, mut n) = (End::new(*near), 0);
                let Some(far) = far else {
                    let acks = |sender: &mut End, n: &mut u64| {
                        let first = *n;
                        sender.pass(next(n, |n| traffic(n, size)), true);
                        (first..*n)
                            .map(|n| Packet::new(ack(n), sender.now))
                            .collect()
                    };
                    b.iter_custom(|rounds| {
                        (0..rounds)
                            .map(|_| {
                                let packets: Vec<Packet> = acks(&mut sender, &mut n);
                                let start = std::time::Instant::now();
                                black_box(sender.pass(packets, false));
                                start.elapsed()
                            })
                            .sum()
                    });
                    return;
                };
                let mut receiver = End::new(*far);
                let setup = || sender.pass(next(&mut n, |n| traffic(n, size)), true);
                b.iter_batched(
                    setup,
                    |messages| black_box(receiver.pass(messages, false)),
                    BatchSize::PerIteration,
                );
            });
        }
        group.finish();
    }
}

/// Measures a queue in which some 64 packets wait.
fn at_queue(c: &mut Criterion) {
    for (name, traffic, make) in AT_QUEUE {
        let mut group = c.benchmark_group(format!("queue, {name}"));
        group.throughput(Throughput::Elements(BATCH));
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(500));
        for size in [200, 1400] {
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                let (mut booster, mut queue, mut out) =
                    (make(), Queue::new(1 << 20, None), Out::default());
                let (mut n, mut now) = (0, Duration::ZERO);
                let setup = || next(&mut n, |n| traffic(n, size));
                b.iter_batched(
                    setup,
                    |packets| {
                        for packet in packets {
                            now += SPACING;
                            if let Some(packet) =
                                booster.arriving(now, packet, &mut queue, &mut out)
                                && let Some(number) = queue.push(packet)
                                && let Some(packet) = queue.get(number)
                            {
                                booster.queued(number, packet);
                            }
                            if queue.len() > 64
                                && let Some((number, packet)) = queue.pop(now)
                            {
                                black_box(booster.leaving(now, number, packet, &queue, &mut out));
                            }
                        }
                        out.down.clear();
                        out.up.clear();
                    },
                    BatchSize::PerIteration,
                );
            });
        }
        group.finish();
    }
}

criterion_group!(benches, boosters, at_queue);
criterion_main!(benches);
