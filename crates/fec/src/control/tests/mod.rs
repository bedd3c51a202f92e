mod bursts;
mod estimate;
mod meter;
mod policy;
mod steps;

use std::ops::{Range, RangeInclusive};

use super::*;
use crate::theory::{Channel, Draws, rows_needed};

/// Range of the seeds of a test: from 1, or just `FEC_SEED`.
#[expect(clippy::disallowed_methods, reason = "a test's settings")]
fn seeds(count: u64) -> Range<u64> {
    match std::env::var("FEC_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("FEC_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 1..1 + count,
    }
}

/// Sender of blocks over a drawn channel, with a meter and a control.
struct Link {
    draws: Draws,
    meter: LossMeter,
    control: Control,
    k: usize,
    number: u64,
    /// Interleaved blocks, which take turns.
    blocks: Vec<Block>,
}

/// A block that is being sent.
#[derive(Clone, Default)]
struct Block {
    sent: usize,
    lost: usize,
    /// Known as soon as all data is sent.
    rows: usize,
}

/// Events of a span of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    packets: u64,
    overhead: u64,
    /// Packets sent while the rows were right.
    right: u64,
    blocks: u64,
    failed: u64,
    /// Number of changes of the rows of full blocks.
    changes: u64,
}

impl std::ops::AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.overhead += other.overhead;
        self.right += other.right;
        self.blocks += other.blocks;
        self.failed += other.failed;
        self.changes += other.changes;
    }
}

impl Span {
    fn share_right(&self) -> f64 {
        self.right as f64 / self.packets as f64
    }

    fn share_failed(&self) -> f64 {
        self.failed as f64 / self.blocks as f64
    }
}

impl Link {
    fn new(channel: &Channel, config: ControlConfig, seed: u64) -> Self {
        Self {
            draws: channel.draws(seed),
            meter: LossMeter::new(MeterConfig::default()),
            control: Control::new(config).unwrap(),
            k: config.block.into(),
            number: 0,
            blocks: vec![Block::default(); config.depth],
        }
    }

    fn rows(&self) -> usize {
        self.control.overhead().rows(self.k)
    }

    /// Changes the link to this channel.
    fn change(&mut self, channel: &Channel) {
        self.draws = self.draws.clone().change(channel);
    }

    /// Sends `packets` packets, data and repair, and compares the rows with the right ones.
    fn send(&mut self, packets: u64, right: RangeInclusive<usize>) -> Span {
        let mut span = Span::default();
        for _ in 0..packets {
            let before = self.rows();
            self.send_packet(&mut span);
            span.packets += 1;
            span.right += u64::from(right.contains(&self.rows()));
            span.changes += u64::from(self.rows() != before);
        }
        span
    }

    fn send_packet(&mut self, span: &mut Span) {
        let lost = self.draws.next().unwrap();
        if !lost {
            let control = &mut self.control;
            self.meter
                .on_packet(self.number, |run| control.on_counts(run));
        }
        let rows = self.rows();
        let turn = self.number as usize % self.blocks.len();
        self.blocks[turn].go_on(lost, self.k, rows, span);
        self.number += 1;
    }
}

impl Block {
    fn go_on(&mut self, lost: bool, k: usize, rows: usize, span: &mut Span) {
        span.overhead += u64::from(self.sent >= k);
        self.lost += usize::from(lost);
        self.sent += 1;
        if self.sent == k {
            self.rows = rows;
        }
        if self.sent >= k && self.sent == k + self.rows {
            span.blocks += 1;
            span.failed += u64::from(self.lost > self.rows);
            *self = Self::default();
        }
    }
}

/// Minimum rows by theory.
fn optimum(channel: &Channel, config: &ControlConfig) -> usize {
    let k = usize::from(config.block);
    let needed = rows_needed(channel, config.depth, config.target, k);
    needed[k - 1].ceil() as usize
}
