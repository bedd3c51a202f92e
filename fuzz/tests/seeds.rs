//! The bodies of the fuzz targets over bytes drawn at random: quick, and with any compiler.
//! `FUZZ_TIMES` multiplies the number of cases.

use arbitrary::{Arbitrary, Unstructured};
use splitmix::SplitMix64;

/// Bytes drawn from a seed.
fn bytes(seed: u64) -> Vec<u8> {
    let mut draws = SplitMix64::new(seed);
    let length = draws.below(4000);
    draws.bytes(length as usize)
}

fn cases<C: for<'a> Arbitrary<'a>>(run: impl Fn(&C)) {
    some_cases(3000, run);
}

fn some_cases<C: for<'a> Arbitrary<'a>>(count: u64, run: impl Fn(&C)) {
    let times = std::env::var("FUZZ_TIMES").ok();
    let times: u64 = times.map_or(1, |times| times.parse().expect("a number"));
    for seed in 0..count * times {
        let bytes = bytes(seed);
        let case = C::arbitrary_take_rest(Unstructured::new(&bytes));
        if let Ok(case) = case {
            run(&case);
        }
    }
}

#[test]
fn headers() {
    for seed in 0..3000 {
        let mut packet = bytes(seed);
        if let Some(kind) = packet.first_mut() {
            *kind &= 0x31;
        }
        pepd_fuzz::header(&packet);
    }
}

#[test]
fn blocks() {
    cases(pepd_fuzz::block::run);
}

#[test]
fn windows() {
    cases(pepd_fuzz::window::run);
}

#[test]
fn frames() {
    for seed in 0..3000 {
        let mut packet = bytes(seed);
        // A small alphabet makes more of it frames and parts.
        for byte in &mut packet {
            *byte &= [0xff, 0x0f, 0x47, 0x03, 0x23, 0x67][seed as usize % 6];
        }
        pepd_fuzz::frames::run(&packet);
    }
}

#[test]
fn carried() {
    cases(pepd_fuzz::carried::run);
}

#[test]
fn compression() {
    cases(pepd_fuzz::compression::run);
}

#[test]
fn boosters() {
    cases(pepd_fuzz::boosters::run);
}

#[test]
fn admission() {
    cases(pepd_fuzz::admission::run);
}

#[test]
fn chains() {
    some_cases(1000, pepd_fuzz::chains::run);
}

#[test]
fn conversations() {
    some_cases(400, pepd_fuzz::conversation::run);
}

/// Fewer, as each begins with a handshake.
#[test]
fn endpoints() {
    some_cases(300, pepd_fuzz::endpoint::run);
}

#[test]
fn sessions() {
    cases(pepd_fuzz::session::run);
}

#[test]
fn packets() {
    cases(pepd_fuzz::packets::run);
}
