//! Sliding window against blocks at the same FEC overhead, over the same links. `FEC_SEED` sets the
//! seed; `--nocapture` shows the figures.

#[path = "../examples/codes/link.rs"]
mod link;

use fec::theory::Channel;
use link::{Code, Outcome, run};

const PACKETS: usize = 80_000;

fn seed() -> u64 {
    let seed = std::env::var("FEC_SEED").ok();
    seed.map_or(1, |seed| seed.parse().expect("a number"))
}

/// Results of blocks and of a window.
fn compare(channel: &Channel, blocks: (u8, u8), window: u8) -> (Outcome, Outcome) {
    let ((k, h), seed) = (blocks, seed());
    let codes = [
        Code::Block { k, h, depth: 1 },
        Code::Window { window, k, h },
    ];
    let [blocks, window] = codes.map(|code| {
        let outcome = run(code, channel, PACKETS, seed);
        println!("FEC_SEED={seed} {}: {outcome:?}", code.name());
        outcome
    });
    assert!((blocks.overhead - window.overhead).abs() < 1e-3);
    assert!((blocks.lost / window.lost - 1.0).abs() < 0.2, "links alike");
    (blocks, window)
}

/// Overhead that blocks of 100 need for 1e-3 at 2 % (tunnel: 10 Mbit/s, 600 ms). In order, packets
/// are present many times sooner, and fewer stay lost (none of a million, against 80).
#[test]
fn at_the_overhead_of_long_blocks() {
    let (blocks, window) = compare(&Channel::iid(0.02).unwrap(), (100, 7), 128);
    assert!(window.residual <= blocks.residual + 2e-4);
    assert!(window.recovery.mean * 2.5 < blocks.recovery.mean);
    assert!(window.in_order.mean * 7.0 < blocks.in_order.mean);
    assert!(window.in_order.p95 * 4 < blocks.in_order.p95);
}

#[test]
fn with_a_large_overhead() {
    let (blocks, window) = compare(&Channel::iid(0.05).unwrap(), (50, 10), 50);
    assert!(window.residual <= blocks.residual + 1e-4);
    assert!(window.recovery.mean * 4.0 < blocks.recovery.mean);
    assert!(window.in_order.p95 * 5 < blocks.in_order.p95);
}

/// In bursts both have to wait for as many repair packets as were lost; the window, whose length
/// costs no time where it is not needed, loses less.
#[test]
fn in_bursts_a_long_window_loses_less() {
    let (blocks, window) = compare(&Channel::gilbert(0.02, 4.0).unwrap(), (50, 10), 128);
    assert!(window.residual * 5.0 < blocks.residual);
    assert!(window.in_order.p95 <= blocks.in_order.p95);
}

/// Sent with each message, over the last three: a repair packet replaces any of three losses, a
/// copy only one.
#[test]
fn over_the_last_three_messages() {
    let (copies, window) = compare(&Channel::iid(0.05).unwrap(), (1, 1), 3);
    assert!(window.residual * 20.0 < copies.residual);
    assert!(window.recovery.p99 <= 5);
}
