use super::*;

/// Loss in percent, one step after the other; 1,000 packets per second.
const STEPS: [f64; 5] = [0.0, 2.0, 8.0, 1.0, 0.0];
const SETTLING: u64 = 3_000;
const SETTLED: u64 = 27_000;

/// Over all seeds, with the number of seeds that never had wrong rows.
#[derive(Clone, Copy, Default)]
struct Step {
    span: Span,
    perfect: u64,
}

/// Performs the steps, and returns the spans from three seconds after each of them on.
fn steps(config: ControlConfig, seeds: Range<u64>) -> [Step; 5] {
    let mut steps = [Step::default(); 5];
    for seed in seeds {
        let mut link = Link::new(&Channel::iid(0.0).unwrap(), config, seed);
        for (loss, step) in STEPS.into_iter().zip(&mut steps) {
            let channel = Channel::iid(loss / 100.0).unwrap();
            link.change(&channel);
            let optimum = optimum(&channel, &config);
            let right = optimum..=optimum + usize::from(loss > 0.0);
            let span_settling = link.send(SETTLING, right.clone());
            let span = link.send(SETTLED, right);
            step.span += span;
            step.perfect += u64::from(span.right == span.packets);
            // Nothing was lost so far.
            let clean = link.control.estimate().counts().lost() == 0 && link.number < 100_000;
            assert!(
                !clean || span_settling.overhead + span.overhead == 0,
                "seed {seed}"
            );
            if span.right < span.packets {
                let share = span.share_right();
                println!("seed {seed}, {loss} %: right {share:.3} of the time");
            }
        }
    }
    steps
}

fn print(config: &ControlConfig, steps: &[Step; 5], seeds: u64) {
    for (loss, step) in STEPS.iter().zip(steps) {
        let (span, perfect) = (step.span, step.perfect as f64 / seeds as f64);
        println!(
            "{loss} %: optimum {}, right {:.4} of the time, always with {perfect:.3} of the seeds; \
             overhead {:.4}, {} of {} blocks failed: {:.1e}; {} changes",
            optimum(&Channel::iid(loss / 100.0).unwrap(), config),
            span.share_right(),
            span.overhead as f64 / (span.packets - span.overhead) as f64,
            span.failed,
            span.blocks,
            span.share_failed(),
            span.changes,
        );
    }
}

#[test]
fn rows_settle_at_the_optimum_or_one_above_within_3_s_of_each_step() {
    let config = ControlConfig::default();
    let seeds = seeds(100);
    let count = seeds.end - seeds.start;
    let steps = steps(config, seeds);
    print(&config, &steps, count);
    for (loss, step) in STEPS.iter().zip(&steps) {
        assert!(step.perfect as f64 >= 0.95 * count as f64, "{loss} %");
        assert!(step.span.share_right() >= 0.99, "{loss} %");
        assert!(step.span.share_failed() <= config.target, "{loss} %");
    }
}

#[test]
fn rows_settle_for_packets_too() {
    let config = ControlConfig {
        target: TARGET_PACKETS,
        ..ControlConfig::default()
    };
    let seeds = seeds(30);
    let count = seeds.end - seeds.start;
    let steps = steps(config, seeds);
    print(&config, &steps, count);
    let perfect: u64 = steps.iter().map(|step| step.perfect).sum();
    assert!(perfect as f64 >= 0.9 * (5 * count) as f64);
    for (loss, step) in STEPS.iter().zip(&steps) {
        assert!(step.span.share_right() >= 0.97, "{loss} %");
        // Ten would exceed the target, with 95 %.
        assert!(step.span.failed < 10, "{loss} %");
    }
}

#[test]
fn single_losses_on_a_clean_link_start_no_repair() {
    for seed in seeds(5) {
        let channel = Channel::iid(1e-4).unwrap();
        let mut link = Link::new(&channel, ControlConfig::default(), seed);
        let span = link.send(1_000_000, 0..=0);
        assert!(link.control.estimate().counts().lost() > 0, "seed {seed}");
        assert_eq!(span.overhead, 0, "seed {seed}");
        assert_eq!(span.changes, 0, "seed {seed}");
    }
}

#[test]
fn a_link_at_the_threshold_does_not_make_the_rows_flutter() {
    for (loss, changes_max) in [(5e-4, 5), (1e-3, 5), (0.02, 10), (0.1, 30)] {
        for seed in seeds(3) {
            let channel = Channel::iid(loss).unwrap();
            let mut link = Link::new(&channel, ControlConfig::default(), seed);
            link.send(20_000, 0..=0);
            // Ten minutes.
            let span = link.send(600_000, 0..=0);
            println!("seed {seed}, {loss}: {} changes", span.changes);
            assert!(
                span.changes <= changes_max,
                "seed {seed}, {loss}: {}",
                span.changes
            );
        }
    }
}

/// Number of packets after a step until the rows satisfy `done`, for each seed, sorted; on a link
/// that was stable for 20 s.
fn delays(from: f64, to: f64, done: impl Fn(usize) -> bool) -> Vec<u64> {
    let delay = |seed| {
        let before = Channel::iid(from).unwrap();
        let mut link = Link::new(&before, ControlConfig::default(), seed);
        link.send(20_000, 0..=0);
        link.change(&Channel::iid(to).unwrap());
        let mut packets = 0;
        while !done(link.rows()) {
            link.send(1, 0..=0);
            packets += 1;
            assert!(packets < 100_000, "seed {seed}");
        }
        packets
    };
    let mut delays: Vec<u64> = seeds(100).map(delay).collect();
    delays.sort_unstable();
    delays
}

#[test]
fn overhead_rises_quickly_and_falls_slowly() {
    for (from, to, rows, minimum, most) in [
        (0.0, 0.02, 1, 0, 500),
        (0.0, 0.02, 4, 0, 1_000),
        (0.01, 0.08, 7, 0, 700),
        (0.02, 0.08, 7, 0, 1_000),
        (0.08, 0.01, 4, 1_500, 3_000),
        (0.01, 0.0, 0, 1_500, 3_000),
    ] {
        let reached = |now: usize| if to > from { now >= rows } else { now <= rows };
        let delays = delays(from, to, reached);
        let [first, median, late] = [0, 50, 95].map(|i| delays[i * delays.len() / 100]);
        println!("{from} to {to}, {rows} rows: after {first}, {median}, {late} packets");
        assert!(first >= minimum, "{from} to {to}: {first}");
        assert!(late <= most, "{from} to {to}: {late}");
    }
}
