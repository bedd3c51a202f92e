use super::*;
use crate::testing::Draw;

fn counts(packets: u64, lost: u64) -> Counts {
    Counts::new(packets, lost, lost).unwrap()
}

/// Adds reports of 100 packets, of which `lost` are lost.
fn report(control: &mut Control, reports: u64, lost: u64) {
    for _ in 0..reports {
        control.on_counts(counts(100, lost));
    }
}

#[test]
fn overhead_never_rises_while_loss_looks_like_congestion() {
    for seed in seeds(20) {
        let config = ControlConfig {
            block: 50,
            ..ControlConfig::default()
        };
        let mut link = Link::new(&Channel::iid(0.01).unwrap(), config, seed);
        let mut dice = Channel::iid(0.5).unwrap().draws(seed + 1000);
        let (mut congested, mut falls) = (false, 0);
        for phase in 0..60 {
            let loss = [0.0, 0.005, 0.01, 0.03, 0.2][(phase * 7 + seed as usize) % 5];
            link.change(&Channel::iid(loss).unwrap());
            for _ in 0..30 {
                let before = link.control.overhead().clone();
                link.send(100, 0..=0);
                let after = link.control.overhead();
                for k in 1..256 {
                    let rises = after.rows(k) > before.rows(k);
                    assert!(!congested || !rises, "seed {seed}, phase {phase}, k {k}");
                }
                falls += u64::from(congested && after.rows(50) < before.rows(50));
            }
            congested = dice.next().unwrap();
            let before = link.rows();
            link.control.on_congestion(congested);
            assert!(!congested || link.rows() <= before, "seed {seed}");
        }
        assert!(falls > 0, "seed {seed}: falling is possible in congestion");
    }
}

#[test]
fn what_congestion_lost_is_not_held_against_the_link() {
    let mut control = Control::new(ControlConfig::default()).unwrap();
    report(&mut control, 100, 2);
    let (rows, loss) = (control.overhead().rows(20), control.estimate().loss());
    control.on_congestion(true);
    report(&mut control, 100, 20);
    assert_eq!(control.overhead().rows(20), rows);
    assert_eq!(control.standing(), Standing::Congested);
    assert!(control.estimate().loss().value > loss.value);
    assert_eq!(control.link_estimate().loss(), loss);
    control.on_congestion(false);
    assert_eq!(control.estimate().loss(), loss);
    assert_eq!(control.link_estimate().loss(), loss);
    assert_eq!(control.overhead().rows(20), rows);
    assert_eq!(control.standing(), Standing::Met);
}

#[test]
fn a_link_that_has_become_better_in_congestion_stays_so() {
    let mut control = Control::new(ControlConfig::default()).unwrap();
    report(&mut control, 100, 8);
    control.on_congestion(true);
    report(&mut control, 100, 1);
    let rows = control.overhead().rows(20);
    assert!(rows <= 4, "{rows}");
    control.on_congestion(false);
    assert_eq!(control.overhead().rows(20), rows);
}

#[test]
fn overhead_never_exceeds_its_cap_and_it_says_when_that_binds() {
    for overhead_max in [0.0, 0.05, 0.1, 0.3, 0.7, 1.0, 3.0] {
        for lost in [1, 2, 8, 30, 45] {
            let config = ControlConfig {
                overhead_max,
                ..ControlConfig::default()
            };
            let mut control = Control::new(config).unwrap();
            report(&mut control, 200, lost);
            let overhead = control.overhead();
            for k in 1..256 {
                let share = overhead.rows(k) as f64 / k as f64;
                assert!(share <= overhead_max + 1e-9, "{k}: {share}, {overhead_max}");
            }
            let channel = control.estimate().channel();
            let failure = channel.block(20, overhead.rows(20), 1).unwrap().failure;
            let standing = if failure <= config.target {
                Standing::Met
            } else {
                Standing::Capped
            };
            assert_eq!(control.standing(), standing, "{overhead_max}, {lost}");
            let full = (20.0 * overhead_max + 1e-9).floor() as usize;
            assert!(standing == Standing::Met || overhead.rows(20) == full);
        }
    }
}

#[test]
fn a_field_too_small_for_the_loss_is_a_cap_too() {
    let config = ControlConfig {
        block: 200,
        overhead_max: 10.0,
        ..ControlConfig::default()
    };
    let mut control = Control::new(config).unwrap();
    report(&mut control, 200, 40);
    assert_eq!(control.overhead().rows(200), 56);
    assert_eq!(control.standing(), Standing::Capped);
}

#[test]
fn every_length_of_blocks_gets_what_it_needs() {
    let mut control = Control::new(ControlConfig::default()).unwrap();
    report(&mut control, 600, 5);
    let channel = control.estimate().channel();
    for k in 10..=20 {
        let rows = control.overhead().rows(k);
        let failure = |h| channel.block(k, h, 1).unwrap().failure;
        assert!(failure(rows) <= TARGET_STREAMS, "{k}: {rows}");
        assert!(failure(rows - 2) > TARGET_STREAMS, "{k}: {rows}");
    }
    // Rows for longer blocks are not requested; they get the share of the longest.
    let rows = control.overhead().rows(20);
    assert_eq!(control.overhead().rows(100), 5 * rows);
}

#[test]
fn manual_overhead_stays_as_configured() {
    for manual in [Manual::LIGHT, Manual::STRONG, Manual { k: 7, h: 0 }] {
        let mut control = Control::manual(manual).unwrap();
        let rows = control.poll_overhead().unwrap().rows(manual.k.into());
        assert_eq!(rows, usize::from(manual.h));
        report(&mut control, 100, 10);
        control.on_congestion(true);
        control.on_congestion(false);
        assert_eq!(control.overhead().rows(manual.k.into()), rows);
        assert_eq!(control.poll_overhead(), None);
        assert_eq!(control.standing(), Standing::Manual);
        assert!((control.estimate().loss().value - 0.1).abs() < 1e-12);
    }
    let none = Err(ControlError::Range {
        name: "k",
        value: 0.0,
        accepted: "1 to 255",
    });
    assert_eq!(Control::manual(Manual { k: 0, h: 2 }).map(|_| ()), none);
}

#[test]
fn overhead_is_polled_once_for_each_change() {
    let mut control = Control::new(ControlConfig::default()).unwrap();
    assert_eq!(control.poll_overhead(), None);
    report(&mut control, 50, 2);
    let overhead = control.poll_overhead().cloned().unwrap();
    assert_eq!(&overhead, control.overhead());
    assert_eq!(control.poll_overhead(), None);
}

#[test]
fn one_burst_starts_no_repair() {
    let mut control = Control::new(ControlConfig::default()).unwrap();
    control.on_counts(counts(1000, 0));
    control.on_counts(Run::Lost(200));
    control.on_counts(counts(200, 0));
    assert_eq!(control.standing(), Standing::Clean);
}

#[test]
fn memory_is_bounded_whatever_the_reports() {
    let config = ControlConfig {
        memory: 10_000,
        ..ControlConfig::default()
    };
    for seed in seeds(20) {
        let mut control = Control::new(config).unwrap();
        let mut draws = Channel::PAUL2006.draws(seed);
        for report in 0..3_000 {
            let packets = 1 + report * 7919 % 300;
            let lost = draws.by_ref().take(packets).filter(|&lost| lost).count() as u64;
            let bursts = lost.min(packets as u64 - lost + 1).min(3);
            let counts = Counts::new(packets as u64, lost, bursts).unwrap();
            control.on_counts(counts);
            let kept = control.estimate().counts().packets();
            assert!(kept <= 2 * config.memory + 1000, "seed {seed}: {kept}");
        }
        assert!(control.estimate().counts().packets() > 64, "seed {seed}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let good = ControlConfig::default();
    for (name, config) in [
        (
            "target",
            ControlConfig {
                target: 0.0,
                ..good
            },
        ),
        (
            "target",
            ControlConfig {
                target: f64::NAN,
                ..good
            },
        ),
        (
            "threshold",
            ControlConfig {
                threshold: 1.0,
                ..good
            },
        ),
        (
            "overhead_max",
            ControlConfig {
                overhead_max: -0.1,
                ..good
            },
        ),
        (
            "overhead_max",
            ControlConfig {
                overhead_max: f64::NAN,
                ..good
            },
        ),
        ("block", ControlConfig { block: 0, ..good }),
        ("depth", ControlConfig { depth: 0, ..good }),
        ("memory", ControlConfig { memory: 10, ..good }),
    ] {
        let Err(ControlError::Range { name: found, .. }) = Control::new(config) else {
            panic!("{config:?} is taken");
        };
        assert_eq!(found, name);
    }
}

/// Even the smallest memory is sufficient to see that a link is clean.
#[test]
fn repair_ends_on_a_clean_link_with_any_memory() {
    for (memory, threshold) in [(1000, 5e-4), (1000, 1e-3), (1 << 16, 1e-5)] {
        let mut control = Control::new(ControlConfig {
            memory,
            threshold,
            ..ControlConfig::default()
        })
        .unwrap();
        report(&mut control, 20, 5);
        assert_eq!(control.standing(), Standing::Met);
        report(&mut control, 10_000, 0);
        assert_eq!(control.standing(), Standing::Clean, "{threshold}");
    }
}

/// Reports come from the other side, and may contain anything.
#[test]
fn reports_beyond_all_measure_are_no_trouble() {
    for seed in seeds(30) {
        let mut draw = Draw::new(seed);
        let memory = [1000, 1 << 16, u64::MAX][draw.below(3)];
        let mut control = Control::new(ControlConfig {
            memory,
            ..ControlConfig::default()
        })
        .unwrap();
        for _ in 0..300 {
            let packets = draw.next() >> draw.below(64);
            let lost = packets - packets.min(draw.next() >> draw.below(64));
            let bursts = lost.min(packets - lost).min(draw.next() >> draw.below(64));
            control.on_counts(Counts::new(packets, lost, bursts).unwrap());
            control.on_congestion(draw.chance(0.1));
            assert_ne!(control.standing(), Standing::Manual);
            assert!(control.estimate().loss().value <= 1.0);
        }
        if memory < u64::MAX {
            control.on_congestion(false);
            report(&mut control, memory / 20, 0);
            assert_eq!(control.standing(), Standing::Clean, "seed {seed}");
        }
    }
}
