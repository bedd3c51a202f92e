use super::{Channel, block::Walk};
use crate::code::SYMBOLS_MAX;

/// How many rows of overcode blocks of 1, 2, ... `k_max` data packets need, so that no more than a
/// share `target` of them fails, each with its packets `depth` packets apart.
///
/// As a real number, for the sake of those who want to know how close it is: the least whole number
/// is it rounded up. Between two whole numbers the logarithm of the probability of failure is taken
/// to be linear. Infinite where a code over GF(2^8) has not enough symbols.
///
/// It is one pass over the block's length, at most 256 steps of at most 256 additions: what k
/// packets need with h rows is never more than what k + 1 need, so either the data or the
/// overcode grows by one with each packet.
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
/// If `depth` or `target` is zero, or `target` negative or no number.
#[must_use]
pub fn rows_needed(channel: &Channel, depth: usize, target: f64, k_max: usize) -> Vec<f64> {
    let mut needed = vec![f64::INFINITY; k_max];
    rows_needed_into(channel, depth, target, &mut needed);
    needed
}

/// The same, for as many lengths as there is room for.
pub(crate) fn rows_needed_into(channel: &Channel, depth: usize, target: f64, needed: &mut [f64]) {
    assert!(
        depth > 0,
        "packets of a block are one packet apart at least"
    );
    assert!(target > 0.0, "no overcode makes failure impossible");
    needed.fill(f64::INFINITY);
    let mut walk = Walk::new(channel, depth);
    let mut blocks = needed.iter_mut().peekable();
    let mut h = 0;
    // Of a block of the data packets that are looked at and one row less than h.
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

/// Where between `h - 1` and `h` rows the probability of failure meets the target.
fn between(h: usize, before: f64, failure: f64, target: f64) -> f64 {
    if h == 0 || before <= target {
        return h as f64;
    }
    // Failure may be impossible, as far as numbers go.
    let failure = failure.max(f64::MIN_POSITIVE);
    (h as f64 - 1.0) + (before / target).ln() / (before / failure).ln()
}

/// The length of the blocks whose overcode, as a share of data, does for a sliding window of
/// `window` packets: 100 for 128, others in proportion, at least 1 and at most 255.
///
/// Found by simulation, with independent losses of 0.1 to 8 %: goodput and losses as with blocks of
/// 100, and a seventh of their delay. In bursts it is only a guess.
#[must_use]
pub fn block_of_window(window: usize) -> usize {
    let packets = window.saturating_mul(100).div_euclid(128);
    packets.clamp(1, SYMBOLS_MAX - 1)
}
