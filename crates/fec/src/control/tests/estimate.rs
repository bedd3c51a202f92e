use super::*;

/// Counts of `packets` packets of a channel.
fn counted(channel: &Channel, packets: usize, seed: u64) -> Counts {
    let (mut counts, mut run) = (Counts::default(), 0);
    for lost in channel.draws(seed).take(packets) {
        if lost {
            run += 1;
        } else {
            counts += Run::Lost(run).into();
            counts += Run::Received(1).into();
            run = 0;
        }
    }
    counts
}

fn covers(interval: Measured, value: f64) -> bool {
    assert!(interval.low <= interval.value && interval.value <= interval.high);
    interval.low <= value && value <= interval.high
}

#[test]
fn intervals_hold_the_true_value_in_95_of_100_cases() {
    let seeds = seeds(400);
    let count = (seeds.end - seeds.start) as f64;
    for channel in [
        Channel::iid(0.002).unwrap(),
        Channel::iid(0.05).unwrap(),
        Channel::gilbert(0.02, 3.0).unwrap(),
        Channel::PAUL2006,
    ] {
        let (mut loss, mut burst) = (0.0, 0.0);
        for seed in seeds.clone() {
            let estimate = Estimate::new(counted(&channel, 10_000, seed));
            loss += f64::from(covers(estimate.loss(), channel.loss()));
            burst += f64::from(covers(estimate.burst().unwrap(), channel.burst()));
        }
        let (loss, burst) = (loss / count, burst / count);
        println!("{channel:?}: loss {loss:.3}, burst {burst:.3} covered");
        assert!(loss > 0.92 && loss < 0.98, "{channel:?}: {loss}");
        assert!(burst > 0.92, "{channel:?}: {burst}");
    }
}

#[test]
fn bursts_are_seen_where_there_are_some_and_only_there() {
    let bursty = |channel: &Channel, packets| {
        let of = |seed| Estimate::new(counted(channel, packets, seed)).is_bursty();
        seeds(300).filter(|&seed| of(seed)).count()
    };
    for loss in [0.001, 0.02, 0.2] {
        let seen = bursty(&Channel::iid(loss).unwrap(), 5_000);
        println!("independent losses of {loss}: {seen} of 300 taken for bursts");
        assert!(seen <= 6, "{loss}: {seen}");
    }
    assert!(bursty(&Channel::gilbert(0.02, 3.0).unwrap(), 3_000) >= 299);
    assert!(bursty(&Channel::PAUL2006, 3_000) >= 299);
}

#[test]
fn an_estimate_is_what_the_counts_say() {
    for (packets, lost, bursts, loss, burst, bursty) in [
        (0, 0, 0, 0.0, None, false),
        (1000, 0, 0, 0.0, None, false),
        (1000, 20, 20, 0.02, Some(1.0), false),
        (1000, 50, 10, 0.05, Some(5.0), true),
        (10, 10, 1, 1.0, Some(10.0), false),
    ] {
        let estimate = Estimate::new(Counts::new(packets, lost, bursts).unwrap());
        assert_eq!(estimate.loss().value, loss);
        assert_eq!(estimate.burst().map(|burst| burst.value), burst);
        assert_eq!(estimate.is_bursty(), bursty);
        let (better, worse) = (estimate.channel_at(-2.0), estimate.channel_at(2.0));
        let channel = estimate.channel();
        assert!(better.loss() <= channel.loss() && channel.loss() <= worse.loss());
        assert!((channel.loss() - loss).abs() < 1e-12);
    }
    // Wilson's interval for 20 of 1000, computed manually.
    let loss = Estimate::new(Counts::new(1000, 20, 20).unwrap()).loss();
    assert!((loss.low - 0.01298).abs() < 1e-5, "{loss:?}");
    assert!((loss.high - 0.03069).abs() < 1e-5, "{loss:?}");
}

#[test]
fn impossible_counts_are_refused_and_huge_ones_bear_no_harm() {
    let lost = Err(CountsError::Lost {
        packets: 1,
        lost: 2,
    });
    assert_eq!(Counts::new(1, 2, 1), lost);
    for (packets, lost, bursts) in [(10, 3, 4), (10, 8, 4), (u64::MAX, 0, 1)] {
        let counts = Counts::new(packets, lost, bursts);
        assert!(
            matches!(counts, Err(CountsError::Bursts { .. })),
            "{counts:?}"
        );
    }
    let mut control = Control::new(ControlConfig::default()).unwrap();
    for (lost, bursts) in [
        (0, 0),
        (u64::MAX, 1),
        (u64::MAX / 2, 1),
        (u64::MAX / 2, u64::MAX / 2),
    ] {
        control.on_counts(Counts::new(u64::MAX, lost, bursts).unwrap());
        let loss = control.estimate().loss();
        assert!((0.0..=1.0).contains(&loss.value), "{loss:?}");
    }
}

#[test]
fn an_absurd_number_of_errors_is_still_a_channel() {
    for counts in [Counts::default(), Counts::new(1000, 60, 10).unwrap()] {
        let estimate = Estimate::new(counts);
        for errors in [f64::NAN, f64::INFINITY, -1e308, 1e308, 1e3] {
            assert!((0.0..=1.0).contains(&estimate.channel_at(errors).loss()));
        }
    }
}
