//! Speed of fec's block code beside a copy of the same data and reed-solomon-erasure with its
//! simd-accel, and the required ratios. Needs no root.
//!
//! All jobs take turns of a few milliseconds, so that other load of the machine affects them alike.
//! Each ratio is taken within a turn; the output is its median and quartiles over all turns.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use benches::{Needs, run};
use fec::kernel::Kernel;
use jobs::{Block, Job, Losses};

#[path = "../crates/fec/benches/shared/mod.rs"]
mod jobs;

/// Turns in a full run, and in a quick one.
const ROUNDS: [usize; 2] = [200, 40];

const TURN: Duration = Duration::from_millis(2);

/// A job and the times of its turns, in seconds per byte of data.
struct Runner<'a> {
    job: Job<'a>,
    bytes: u64,
    calls: u32,
    times: Vec<f64>,
}

impl<'a> Runner<'a> {
    fn new(block: &Block, mut job: Job<'a>) -> Self {
        let began = Instant::now();
        let mut calls = 0;
        while began.elapsed() < 10 * TURN {
            job();
            calls += 1;
        }
        Self {
            job,
            bytes: block.bytes(),
            calls: (calls / 10).max(1),
            times: Vec::new(),
        }
    }

    fn turn(&mut self) {
        let began = Instant::now();
        for _ in 0..self.calls {
            (self.job)();
        }
        let bytes = self.bytes as f64 * f64::from(self.calls);
        self.times.push(began.elapsed().as_secs_f64() / bytes);
    }

    /// Bytes of this job's data coded in the time of one byte of the other's.
    fn against(&self, other: &Self) -> Quartiles {
        let ratios = self.times.iter().zip(&other.times);
        Quartiles::from_values(ratios.map(|(ours, theirs)| theirs / ours))
    }

    fn speed(&self) -> Quartiles {
        Quartiles::from_values(self.times.iter().map(|time| 1e-9 / time))
    }
}

struct Quartiles([f64; 3]);

impl Quartiles {
    fn from_values(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self([1, 2, 3].map(|quarter| values[values.len() * quarter / 4]))
    }
}

impl std::fmt::Display for Quartiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, median, high] = self.0;
        write!(f, "{median:7.2} ({low:.2} to {high:.2})")
    }
}

/// Required minimum ratio of a kernel; `None` for kernels without a requirement.
fn wanted(kernel: Kernel, gfni: f64, avx2: f64) -> Option<f64> {
    match kernel.name() {
        "gfni-avx512" | "gfni-avx2" => Some(gfni),
        "avx2" => Some(avx2),
        _ => None,
    }
}

/// Prints a row of the table; returns whether its target is met.
fn report(what: &str, ratio: &Quartiles, wanted: Option<f64>) -> bool {
    let verdict = match wanted {
        Some(wanted) if ratio.0[1] >= wanted => format!("  wanted {wanted}: reached"),
        Some(wanted) => format!("  wanted {wanted}: MISSED"),
        None => String::new(),
    };
    println!("{what:58}{ratio}{verdict}");
    wanted.is_none_or(|wanted| ratio.0[1] >= wanted)
}

/// Runs the jobs of one kernel in turns with the jobs compared with. Returns whether all targets
/// are met.
fn compare(kernel: Kernel, blocks: &[Block; 3], rounds: usize) -> bool {
    let [short, long, wide] = blocks;
    let mut runners = [
        Runner::new(short, short.memcpy()),
        Runner::new(short, short.encode(kernel)),
        Runner::new(short, short.encode_reference()),
        Runner::new(long, long.encode(kernel)),
        Runner::new(short, short.decode(kernel, Losses::Random)),
        Runner::new(short, short.decode_reference(Losses::Random)),
        Runner::new(wide, wide.encode(kernel)),
        Runner::new(wide, wide.encode_reference()),
        Runner::new(wide, wide.decode(kernel, Losses::Random)),
        Runner::new(wide, wide.decode_reference(Losses::Random)),
        Runner::new(short, short.decode(kernel, Losses::Repeating)),
    ];
    for _ in 0..rounds {
        runners.iter_mut().for_each(Runner::turn);
    }
    let [
        copy,
        encode,
        encode_rse,
        encode_long,
        decode,
        decode_rse,
        rest @ ..,
    ] = &runners;
    let [
        encode_wide,
        encode_wide_rse,
        decode_wide,
        decode_wide_rse,
        again,
    ] = rest;
    println!("{kernel}: GB/s of data, median (quartiles) of {rounds} turns");
    for (what, job) in [
        ("memcpy of 20 x 1344 B", copy),
        ("encode (20,6)", encode),
        ("encode (20,6), reed-solomon-erasure", encode_rse),
        ("encode (50,2)", encode_wide),
        ("encode (50,2), reed-solomon-erasure", encode_wide_rse),
        ("decode (20,6), random losses", decode),
        ("decode (20,6), reed-solomon-erasure", decode_rse),
        ("decode (50,2), random losses", decode_wide),
        ("decode (50,2), reed-solomon-erasure", decode_wide_rse),
    ] {
        report(&format!("  {what}"), &job.speed(), None);
    }
    println!("{kernel}: ratios");
    let half = wanted(kernel, 0.5, 0.0).filter(|wanted| *wanted > 0.0);
    let met = [
        ("encode (20,6) / memcpy", encode.against(copy), half),
        (
            "encode (20,6) / reed-solomon-erasure",
            encode.against(encode_rse),
            wanted(kernel, 4.0, 1.2),
        ),
        (
            "encode (50,2) / reed-solomon-erasure",
            encode_wide.against(encode_wide_rse),
            None,
        ),
        (
            "decode (20,6) / reed-solomon-erasure, random losses",
            decode.against(decode_rse),
            wanted(kernel, 5.0, 5.0),
        ),
        (
            "decode (50,2) / reed-solomon-erasure, random losses",
            decode_wide.against(decode_wide_rse),
            wanted(kernel, 10.0, 10.0),
        ),
        (
            "encode (20,6) of 1400 B / of 1344 B",
            encode_long.against(encode),
            Some(0.95),
        ),
        (
            "decode (20,6), losses that repeat / random",
            again.against(decode),
            None,
        ),
    ]
    .map(|(what, ratio, wanted)| report(&format!("  {what}"), &ratio, wanted));
    println!();
    met.iter().all(|met| *met)
}

fn main() -> ExitCode {
    let names: Vec<&str> = Kernel::available().map(Kernel::name).collect();
    run("codes", &names, Needs::Nothing, |run| {
        let blocks = [
            Block::new(20, 6, 1344),
            Block::new(20, 6, 1400),
            Block::new(50, 2, 1344),
        ];
        let rounds = ROUNDS[usize::from(run.quick)];
        let kernels = Kernel::available().filter(|kernel| run.has(kernel.name()));
        // All of them, also after a missed target.
        let met: Vec<bool> = kernels
            .map(|kernel| compare(kernel, &blocks, rounds))
            .collect();
        Ok(met.iter().all(|met| *met))
    })
}
