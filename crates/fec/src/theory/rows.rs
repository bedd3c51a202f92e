use super::{Channel, block::Walk};
use crate::code::SYMBOLS_MAX;

/// Rows that blocks of 1, 2, ... `k_max` data packets need, so that no more than a share `target`
/// of them fails, each with its packets `depth` packets apart.
///
/// Real numbers, which show how close a whole number is: the minimum number of rows is the value
/// rounded up. Between two whole numbers the logarithm of the probability of failure is taken to be
/// linear. Infinite where a code over GF(2^8) has too few symbols.
///
/// One pass over the block's length, at most 256 steps of at most 256 additions. k packets never
/// need more rows than k + 1 do, so each step adds either a data packet or a row.
///
/// ```
/// use fec::theory::{Channel, rows_needed};
///
/// for (loss, k, streams, packets) in [
///     (0.01, 10, 2, 3), (0.01, 20, 3, 4), (0.01, 50, 4, 6),
///     (0.02, 10, 3, 4), (0.02, 20, 4, 5), (0.02, 50, 5, 8),
///     (0.08, 10, 5, 8), (0.08, 20, 7, 11), (0.08, 50, 13, 17),
/// ] {
///     let channel = Channel::iid(loss)?;
///     let rows = |target| rows_needed(&channel, 1, target, k)[k - 1].ceil() as usize;
///     assert_eq!([rows(1e-3), rows(1e-5)], [streams, packets], "{k} packets at {loss}");
/// }
/// # Ok::<(), fec::theory::ChannelError>(())
/// ```
///
/// # Panics
///
/// If `depth` or `target` is zero, or `target` negative or not a number.
#[must_use]
pub fn rows_needed(channel: &Channel, depth: usize, target: f64, k_max: usize) -> Vec<f64> {
    let mut needed = vec![f64::INFINITY; k_max];
    rows_needed_into(channel, depth, target, &mut needed);
    needed
}

/// As [`rows_needed`], for as many lengths as `needed` has room for.
pub(crate) fn rows_needed_into(channel: &Channel, depth: usize, target: f64, needed: &mut [f64]) {
    assert!(depth > 0, "packets of a block are one packet apart or more");
    assert!(target > 0.0, "no number of rows makes failure impossible");
    needed.fill(f64::INFINITY);
    let mut walk = Walk::new(channel, depth);
    let mut blocks = needed.iter_mut().peekable();
    let mut h = 0;
    // For a block of the current data packets and one row less than h.
    let mut failure_before = 1.0;
    for _ in 0..SYMBOLS_MAX {
        let Some(block) = blocks.peek_mut() else {
            return;
        };
        walk.step();
        let failure = walk.tail(h);
        if failure <= target {
            **block = between(h, failure_before, failure, target);
            blocks.next();
            // The next block has one packet more, and was this long with one row less.
            failure_before = match h {
                0 => 1.0,
                _ => failure + walk.exactly(h),
            };
        } else {
            h += 1;
            failure_before = failure;
        }
    }
}

/// Returns the point between `h - 1` and `h` rows at which the probability of failure meets the
/// target.
fn between(h: usize, before: f64, failure: f64, target: f64) -> f64 {
    if h == 0 || before <= target {
        return h as f64;
    }
    // Failure may be impossible within floating-point precision.
    let failure = failure.max(f64::MIN_POSITIVE);
    (h as f64 - 1.0) + (before / target).ln() / (before / failure).ln()
}

/// Length of the blocks whose overhead, as a share of data, suffices for a sliding window of
/// `window` packets: 100 for 128, others in proportion, within 1 and 255.
///
/// Found by simulation, with independent losses of 0.1 to 8 %: goodput and losses as with blocks of
/// 100, and a seventh of their delay. For bursts it is only a guess.
#[must_use]
pub fn block_of_window(window: usize) -> usize {
    let packets = window.saturating_mul(100).div_euclid(128);
    packets.clamp(1, SYMBOLS_MAX - 1)
}
