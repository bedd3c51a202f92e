//! Pace of decompressed bytes.
//!
//! 15 bytes of a block may become 32,768. A peer of a slow link could thus make this end write at
//! any rate. Blocks within a ratio never wait. What exceeds it waits in the order of decompression;
//! nothing is refused.
//!
//! ```text
//!   a flow within the ratio     --------------------------> host   at once
//!   flows beyond it             --> [ c ][ b ][ a ] ------> host   4 MiB at once, then 1 MiB/s
//! ```
//!
//! Each flow decompresses more only once its host has the last bytes. So flows beyond the ratio
//! take turns, and delay no other.

use std::time::Duration;

/// Bytes that may come from one compressed byte without waiting.
const RATIO: u64 = 64;
/// Bytes beyond the ratio that may come at once.
const BURST: u64 = 4 << 20;
/// Bytes beyond the ratio that may come per second.
const PER_SECOND: u64 = 1 << 20;

/// Pace of one peer, for all of its streams: a virtual scheduling algorithm (ITU-T I.371) for the
/// bytes beyond the ratio.
#[derive(Debug, Clone, Default)]
pub struct Expansion {
    /// Time at which all bytes beyond the ratio are paid for by the rate.
    paid: Duration,
    /// Latest time at which bytes were permitted.
    last: Duration,
}

impl Expansion {
    /// Counts decompressed bytes: `packed` in complete blocks of a stream became `plain`. Returns
    /// the time from `now` until a host may get them. Times do not decrease.
    pub fn wait(&mut self, now: Duration, packed: u64, plain: u64) -> Duration {
        let earned = packed.saturating_mul(RATIO);
        if plain <= earned {
            // Turns that were given stay. While bytes wait, nothing is earned: others would come
            // beside them.
            if self.last <= now {
                self.paid = self.paid.saturating_sub(time(earned - plain));
            }
            return Duration::ZERO;
        }
        self.paid = self.paid.max(now) + time(plain - earned);
        let at = self.paid.saturating_sub(time(BURST)).max(now);
        self.last = self.last.max(at);
        at - now
    }
}

/// Returns the time in which that many bytes beyond the ratio may come.
fn time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / PER_SECOND)
        + Duration::from_nanos((bytes % PER_SECOND * 1_000_000_000).div_ceil(PER_SECOND))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compression::PLAIN_MAX;

    const ZEROS: (u64, u64) = (15, PLAIN_MAX as u64);
    const TEXT: (u64, u64) = (4 << 10, PLAIN_MAX as u64);

    /// A flow with endless blocks of some lengths, and what its host got.
    struct Flow {
        block: (u64, u64),
        due: Duration,
        waited: Duration,
        got: u64,
    }

    /// Lets flows decompress as fast as permitted, one of each millisecond. Returns the bytes that
    /// each host got within that time, and the longest wait of each.
    fn run(lasting: Duration, blocks: &[(u64, u64)]) -> Vec<(u64, Duration)> {
        let flow = |block: &(u64, u64)| Flow {
            block: *block,
            due: Duration::ZERO,
            waited: Duration::ZERO,
            got: 0,
        };
        let mut flows: Vec<_> = blocks.iter().map(flow).collect();
        let (mut pace, mut now) = (Expansion::default(), Duration::ZERO);
        while now < lasting {
            for flow in flows.iter_mut().filter(|flow| flow.due <= now) {
                let (packed, plain) = flow.block;
                let wait = pace.wait(now, packed, plain);
                flow.due = now + wait;
                flow.waited = flow.waited.max(wait);
                flow.got += if flow.due < lasting { plain } else { 0 };
            }
            now += Duration::from_millis(1);
        }
        let got = flows.iter().map(|flow| (flow.got, flow.waited));
        got.collect()
    }

    #[test]
    fn ordinary_compression_never_waits() {
        let block = (512, PLAIN_MAX as u64);
        let [(got, waited)] = run(Duration::from_secs(1), &[block])[..] else {
            panic!("one flow");
        };
        assert_eq!((got, waited), (1000 * block.1, Duration::ZERO));
    }

    #[test]
    fn a_block_of_zeros_is_slowed_to_the_base_rate() {
        let [(got, _)] = run(Duration::from_secs(10), &[ZEROS])[..] else {
            panic!("one flow");
        };
        let most = got / ZEROS.1 * ZEROS.0 * RATIO + BURST + 10 * PER_SECOND;
        assert!((most - (64 << 10)..=most).contains(&got), "{got} of {most}");
    }

    #[test]
    fn flows_of_zeros_get_equal_shares_and_delay_no_other_flow() {
        for rogues in [1_u32, 3, 100] {
            let mut blocks = vec![ZEROS; rogues as usize];
            blocks.push((40, 2000));
            let flows = run(Duration::from_secs(20), &blocks);
            let (innocent, rogue) = flows.split_last().expect("flows");
            assert_eq!(
                *innocent,
                (20_000 * 2000, Duration::ZERO),
                "{rogues} rogues"
            );
            let most = rogue.iter().map(|flow| flow.0).max().unwrap();
            let least = rogue.iter().map(|flow| flow.0).min().unwrap();
            assert!(most - least <= most / 10 + 2 * ZEROS.1, "{most} {least}");
        }
    }

    #[test]
    fn a_flow_of_text_pays_for_its_zeros() {
        let mut pace = Expansion::default();
        for turn in 0..1000 {
            let now = Duration::from_millis(turn);
            for (packed, plain) in [TEXT, ZEROS, ZEROS] {
                assert_eq!(pace.wait(now, packed, plain), Duration::ZERO, "{turn}");
            }
        }
    }

    /// Bytes far beyond the ratio, about at it, and far within it.
    fn step() -> impl Strategy<Value = (u64, u64)> {
        prop_oneof![
            (1_u64..40, 30_000_u64..65_536),
            (1_u64..2000, 1_u64..65_536),
            (10_000_u64..40_000, 1_u64..65_536),
        ]
    }

    proptest! {
        #[test]
        fn no_interval_has_more_than_the_ratio_the_burst_and_the_base_rate(
            runs in prop::collection::vec((1_usize..150, 0_u64..3000, step()), 1..10),
            from in any::<prop::sample::Index>(),
        ) {
            let (mut pace, mut now, mut done) = (Expansion::default(), Duration::ZERO, Vec::new());
            let steps = runs.into_iter().flat_map(|(count, pause, step)| {
                std::iter::repeat_n((pause, step), count)
            });
            for (pause, (packed, plain)) in steps {
                now += Duration::from_micros(pause);
                let wait = pace.wait(now, packed, plain);
                prop_assert!(wait.is_zero() || plain > packed * RATIO, "within the ratio");
                done.push((now + wait, packed, plain));
            }
            done.sort_unstable();
            let done = &done[from.index(done.len())..];
            let (mut packed, mut plain) = (0, 0);
            for step in done {
                (packed, plain) = (packed + step.1, plain + step.2);
                let rate = PER_SECOND as f64 * (step.0 - done[0].0).as_secs_f64();
                let most = RATIO * packed + BURST + rate as u64 + 1;
                prop_assert!(plain <= most, "{} bytes from {}, at most {}", plain, packed, most);
            }
        }
    }
}
