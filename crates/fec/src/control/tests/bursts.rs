use super::*;

/// Rows from half a minute on, over all seeds.
struct Settled {
    /// Sorted, one for each 100 packets.
    rows: Vec<usize>,
    /// Directly after three seconds, sorted.
    early: Vec<usize>,
    /// Mean probability of failure, by theory.
    failure: f64,
    span: Span,
}

impl Settled {
    fn quantile(&self, share: f64) -> usize {
        self.rows[(share * (self.rows.len() - 1) as f64) as usize]
    }
}

/// Changes from a clean link to this channel.
fn settle(channel: &Channel, config: ControlConfig, count: u64) -> Settled {
    let k = usize::from(config.block);
    let failures: Vec<f64> = (0..=200)
        .map(|h| channel.block(k, h, config.depth).unwrap().failure)
        .collect();
    let (mut rows, mut early, mut span) = (vec![], vec![], Span::default());
    for seed in seeds(count) {
        let mut link = Link::new(&Channel::iid(0.0).unwrap(), config, seed);
        link.send(10_000, 0..=0);
        link.change(channel);
        link.send(3_000, 0..=0);
        early.push(link.rows());
        link.send(27_000, 0..=0);
        for _ in 0..1_000 {
            span += link.send(100, 0..=0);
            rows.push(link.rows());
        }
    }
    let failure = rows.iter().map(|&rows| failures[rows]).sum::<f64>() / rows.len() as f64;
    rows.sort_unstable();
    early.sort_unstable();
    Settled {
        rows,
        early,
        failure,
        span,
    }
}

#[test]
fn in_bursts_rows_settle_near_the_optimum_and_blocks_meet_the_target() {
    let short = Channel::gilbert(0.02, 3.0).unwrap();
    for (channel, depth, target) in [
        (short, 1, TARGET_STREAMS),
        (short, 8, TARGET_STREAMS),
        (short, 8, TARGET_PACKETS),
        (Channel::PAUL2006, 1, TARGET_STREAMS),
        (Channel::PAUL2006, 8, TARGET_STREAMS),
    ] {
        let config = ControlConfig {
            depth,
            target,
            overhead_max: 5.0,
            ..ControlConfig::default()
        };
        let optimum = optimum(&channel, &config);
        let settled = settle(&channel, config, 10);
        let [low, median, high] = [0.05, 0.5, 0.95].map(|share| settled.quantile(share));
        let early = &settled.early;
        println!(
            "bursts of {:.1}, depth {depth}, target {target:.0e}: optimum {optimum}, \
             at 3 s {} to {}, later {low} {median} {high} (5, 50, 95 %); \
             failure by theory {:.1e}, {} of {} blocks; {} changes",
            channel.burst(),
            early[0],
            early[early.len() - 1],
            settled.failure,
            settled.span.failed,
            settled.span.blocks,
            settled.span.changes,
        );
        let tenth = (optimum as f64 / 10.0).ceil() as usize;
        assert!(low >= optimum - tenth, "{low}");
        assert!((optimum..=optimum + tenth).contains(&median), "{median}");
        assert!(high <= optimum + 2 * tenth, "{high}");
        assert!(settled.failure <= target, "{}", settled.failure);
        // Blocks fail together in bursts: a few of 30,000 prove little for a target of 1e-5.
        let failed_max = (target * settled.span.blocks as f64).max(4.0);
        assert!(settled.span.failed as f64 <= failed_max);
        assert!(early[0] * 2 >= optimum, "{early:?}");
        assert!(early[early.len() - 1] <= 2 * optimum, "{early:?}");
    }
}
