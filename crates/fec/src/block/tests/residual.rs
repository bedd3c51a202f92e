//! Residual loss on links with independent and bursty losses, compared with theory: a million
//! packets or more through encoder and decoder for each channel, code and depth.
//!
//! Confidence intervals. With independent losses, blocks are independent: the spread of their
//! losses gives that of the mean. Where few fail, their number is compared with its binomial
//! distribution, exactly. In bursts neighbouring blocks fail together. There the stream is cut into
//! [`BATCHES`] batches, each far longer than a burst or a group of interleaved blocks, and the
//! spread of their means gives that of the whole (batch means, Student's t).
//!
//! One in twenty cells lies outside its 95 % interval by chance. So the number of those that do is
//! compared with its own binomial distribution, and each cell with an interval that one in 16,000
//! misses (four sigma). `FEC_SEED` sets the seed; `--nocapture` shows the table.

use super::*;
use crate::{
    testing::seed,
    theory::{Channel, Draws},
};

const BATCHES: usize = 64;

/// Expected number of failed blocks below which the spread cannot be computed from them.
const FEW: f64 = 40.0;

/// Bounds of 95 % and of all but one in 16,000, in standard errors: of the normal distribution, and
/// of Student's t with 63 degrees of freedom.
const NORMAL: [f64; 2] = [1.960, 4.0];
const T: [f64; 2] = [1.998, 4.31];

/// Probabilities of lying outside these bounds.
const OUTSIDE: [f64; 2] = [0.05, 6.3e-5];

struct Cell {
    name: String,
    channel: Channel,
    bursty: bool,
    code: (usize, usize),
    depth: usize,
    packets: usize,
}

/// Counts of a run.
#[derive(Default)]
struct Outcome {
    packets: usize,
    failed: usize,
    lost: usize,
    /// Sums of squares of the packets lost in each block, and in each batch.
    squares: [f64; 2],
}

/// True for a cell in its 95 % interval, and in its four sigma interval.
type Inside = [bool; 2];

/// Sends and receives groups of interleaved blocks, one after the other.
struct Link {
    encoder: BlockEncoder,
    decoder: BlockDecoder,
    losses: Draws,
    sent: usize,
}

impl Link {
    fn new(cell: &Cell, seed: u64) -> Self {
        let (k, h) = (cell.code.0 as u8, cell.code.1 as u8);
        let config = EncoderConfig {
            depth: cell.depth,
            ..encoder(k, h)
        };
        Self {
            encoder: BlockEncoder::new(config).unwrap(),
            decoder: decoder(),
            losses: cell.channel.draws(seed),
            sent: 0,
        }
    }

    /// Number of packets passed on of each block of a group, each once and as it was sent.
    fn group(&mut self, k: usize, passed_on: &mut [usize]) {
        passed_on.fill(0);
        let (first, depth) = (self.sent, passed_on.len());
        for packet in first..first + k * depth {
            let payload = (packet as u32).to_be_bytes();
            let header = self.encoder.handle_data(&payload, T0).unwrap();
            if !self.losses.next().unwrap() {
                let arrival = self.decoder.handle(header, &payload).unwrap();
                assert_eq!(arrival, Arrival::Data);
                passed_on[(packet - first) % depth] += 1;
            }
        }
        while let Some((header, symbol)) = self.encoder.poll_repair() {
            if self.losses.next().unwrap() {
                continue;
            }
            self.decoder.handle(header, symbol).unwrap();
            while let Some((header, payload)) = self.decoder.poll_recovered() {
                let Header::BlockData { block, index } = header else {
                    panic!("{header:?} is not data");
                };
                let turn = block as usize % depth;
                let packet = first + usize::from(index) * depth + turn;
                assert_eq!(payload, (packet as u32).to_be_bytes());
                passed_on[turn] += 1;
            }
        }
        self.sent += k * depth;
    }
}

fn run(cell: &Cell, seed: u64) -> Outcome {
    let (k, depth) = (cell.code.0, cell.depth);
    let groups = cell.packets.div_ceil(BATCHES * k * depth);
    let mut link = Link::new(cell, seed);
    let mut passed_on = vec![0; depth];
    let mut outcome = Outcome::default();
    for _ in 0..BATCHES {
        let before = outcome.lost;
        for _ in 0..groups {
            link.group(k, &mut passed_on);
            for lost in passed_on.iter().map(|packets| k - packets) {
                outcome.failed += usize::from(lost > 0);
                outcome.lost += lost;
                outcome.squares[0] += (lost as f64).powi(2);
            }
        }
        outcome.squares[1] += ((outcome.lost - before) as f64).powi(2);
    }
    outcome.packets = link.sent;
    outcome
}

impl Cell {
    /// Runs the cell, prints it, and returns its place.
    fn check(&self, seed: u64) -> Inside {
        let (k, h) = self.code;
        let theory = self.channel.block(k, h, self.depth).unwrap();
        let outcome = run(self, seed);
        assert!(outcome.packets >= 1_000_000);
        let blocks = outcome.packets / k;
        let expected = theory.failure * blocks as f64;
        let measured = outcome.lost as f64 / outcome.packets as f64;
        let (inside, width) = if expected < FEW {
            assert!(!self.bursty, "the number of failing blocks is not binomial");
            let p = two_sided(blocks, theory.failure, outcome.failed);
            (OUTSIDE.map(|outside| p >= outside), format!("p = {p:.2}"))
        } else {
            let units = if self.bursty { BATCHES } else { blocks } as f64;
            let squares = outcome.squares[usize::from(self.bursty)];
            let variance = (squares - (outcome.lost as f64).powi(2) / units) / (units - 1.0);
            let error = (variance * units).sqrt() / outcome.packets as f64;
            let quantiles = if self.bursty { T } else { NORMAL };
            let off = (measured - theory.residual).abs();
            let width = format!("+- {:.1e}", quantiles[0] * error);
            (quantiles.map(|quantile| off <= quantile * error), width)
        };
        println!(
            "{:<22} ({k:2},{h}) depth {:2}: {:6} of {blocks:6} blocks failed, {expected:8.1} expected; \
             residual {measured:.3e}, theory {:.3e}, {width}{}",
            self.name,
            self.depth,
            outcome.failed,
            theory.residual,
            if inside[0] { "" } else { "  OUTSIDE" },
        );
        inside
    }
}

/// Probability that a binomial number is as far on one side as `count`, or further, doubled.
fn two_sided(n: usize, p: f64, count: usize) -> f64 {
    // Probabilities of 0, 1, ... until the remainder is negligible.
    let mut odds = vec![(n as f64 * (-p).ln_1p()).exp()];
    for i in 0..n.min(count + 1000) {
        let ratio = (n - i) as f64 / (i + 1) as f64 * p / (1.0 - p);
        odds.push(odds[i] * ratio);
    }
    let below: f64 = odds[..=count].iter().sum();
    let above: f64 = odds[count..].iter().rev().sum();
    (2.0 * below.min(above)).min(1.0)
}

fn check(cells: &[Cell]) {
    let seed = seed(0);
    println!("FEC_SEED={seed}");
    let inside: Vec<Inside> = (0..)
        .zip(cells)
        .map(|(i, cell)| cell.check(seed + i))
        .collect();
    assert!(
        inside.iter().all(|inside| inside[1]),
        "more than four sigma off"
    );
    let outside = inside.iter().filter(|inside| !inside[0]).count();
    println!(
        "{outside} of {} outside of their 95 % interval",
        cells.len()
    );
    let odds = two_sided(cells.len(), OUTSIDE[0], outside);
    let many = outside as f64 > OUTSIDE[0] * cells.len() as f64;
    assert!(!many || odds > 2e-3, "{outside} of {} outside", cells.len());
}

fn iid(percent: f64, code: (usize, usize), depth: usize) -> Cell {
    Cell {
        name: format!("independent {percent} %"),
        channel: Channel::iid(percent / 100.0).unwrap(),
        bursty: false,
        code,
        depth,
        packets: 1_000_000,
    }
}

fn bursts(name: &str, channel: Channel, code: (usize, usize), depth: usize) -> Cell {
    let name = name.to_owned();
    // Sends more where few blocks fail.
    let failure = channel.block(code.0, code.1, depth).unwrap().failure;
    let packets = (1.2 * FEW * code.0 as f64 / failure).max(1e6) as usize;
    Cell {
        name,
        channel,
        bursty: true,
        code,
        depth,
        packets,
    }
}

const CODES: [(usize, usize); 3] = [(20, 6), (50, 2), (10, 2)];
const DEPTHS: [usize; 3] = [1, 4, 16];

#[test]
fn independent_losses() {
    let percents = [0.1, 1.0, 2.0, 5.0, 10.0];
    let mut cells: Vec<Cell> = Vec::new();
    for percent in percents {
        cells.extend(CODES.map(|code| iid(percent, code, 1)));
    }
    // Interleaving makes no difference.
    cells.extend([iid(10.0, (20, 6), 4), iid(10.0, (20, 6), 16)]);
    cells.extend([iid(1.0, (50, 2), 4), iid(5.0, (10, 2), 16)]);
    check(&cells);
}

#[test]
fn losses_in_bursts() {
    let mut cells = Vec::new();
    for burst in [3.0, 8.0] {
        let name = format!("5 %, bursts of {burst}");
        let channel = Channel::gilbert(0.05, burst).unwrap();
        for code in CODES {
            cells.extend(DEPTHS.map(|depth| bursts(&name, channel, code, depth)));
        }
    }
    check(&cells);
}

#[test]
fn losses_of_the_wireless_channel_of_paul2006() {
    let mut cells = Vec::new();
    for code in CODES {
        cells.extend(DEPTHS.map(|depth| bursts("0.9913/0.8509", Channel::PAUL2006, code, depth)));
    }
    check(&cells);
}

#[test]
fn the_exact_interval_is_that_of_the_binomial_distribution() {
    // Of 10 at 0.5: 0 or 10 has 2 / 1024, 2 or fewer or 8 and more 112 / 1024.
    for (count, p) in [(0, 2.0), (10, 2.0), (2, 112.0), (8, 112.0), (5, 1024.0)] {
        let exact: f64 = p / 1024.0;
        assert!((two_sided(10, 0.5, count) - exact).abs() < 1e-12, "{count}");
    }
    assert!(two_sided(50_000, 1e-12, 1) < 1e-6, "none is expected");
}
