//! Accuracy of delay and rate.

use std::{
    thread,
    time::{Duration, Instant},
};

use winkemu::shell::Priority;

use super::{
    Effort, Outcome, floor,
    probe::{HEADERS, Place, wall_clock},
};

/// Formats signed nanoseconds as microseconds.
fn us(ns: i64) -> String {
    format!("{:+.0} us", ns as f64 / 1000.0)
}

/// Excess times in nanoseconds over the expected ones, in ascending order.
pub(crate) struct Errors(Vec<i64>);

impl Errors {
    pub(crate) fn new(mut errors: Vec<i64>) -> Self {
        errors.sort_unstable();
        Self(errors)
    }

    fn at(&self, quantile: f64) -> i64 {
        self.0[((self.0.len() - 1) as f64 * quantile).round() as usize]
    }

    fn quantiles(&self) -> String {
        format!("p50 {}, p99 {}", us(self.at(0.5)), us(self.at(0.99)))
    }
}

/// Calls `act` `count` times, at even intervals.
pub(crate) fn at_intervals(count: u32, gap: Duration, mut act: impl FnMut()) {
    let begin = Instant::now();
    for number in 0..count {
        let due = begin + gap * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        act();
    }
}

/// Delay of each packet beyond `expected`.
fn errors(place: &Place, count: u32, gap: Duration, bytes: usize, expected: i64) -> Errors {
    let (sender, receiver) = place.sockets();
    let errors: Vec<i64> = thread::scope(|scope| {
        scope.spawn(move || {
            let mut packet = vec![0; bytes - HEADERS];
            at_intervals(count, gap, || {
                packet[..8].copy_from_slice(&wall_clock().to_be_bytes());
                sender.send(&packet).expect("the interface is up");
            });
        });
        let errors = (0..count).map_while(|_| receiver.receive());
        errors
            .map(|(sent, came)| came as i64 - sent as i64 - expected)
            .collect()
    });
    assert_eq!(errors.len(), count as usize, "all packets arrive");
    Errors::new(errors)
}

fn delay_outcomes(effort: Effort, priority: Priority) -> Vec<Outcome> {
    const DELAY: i64 = 264_000_000;
    let floor = floor::sleeper(effort, priority);
    let place = Place::new("delay=264ms", priority);
    let gap = Duration::from_millis(10);
    let errors = errors(&place, effort.count(400), gap, 128, DELAY);
    place.stop();
    let (name, target, p99_max) = if priority == Priority::Realtime {
        (
            "264 ms one way, --rt",
            "p50 <= 100 us, p99 <= 250 us, never early",
            250_000,
        )
    } else {
        (
            "264 ms one way",
            "p50 <= 100 us, p99 <= 1 ms, never early",
            1_000_000,
        )
    };
    let (minimum, most) = (errors.at(0.0), errors.at(1.0));
    vec![Outcome {
        name: name.to_owned(),
        measured: format!(
            "{}, min {}, max {}",
            errors.quantiles(),
            us(minimum),
            us(most)
        ),
        target,
        met: errors.at(0.5) <= 100_000 && errors.at(0.99) <= p99_max && minimum >= 0,
        floor: floor.quantiles(),
        mahimahi: "p50 +104 us, p99 +10.4 ms, 980 us early at worst",
        rattan: "p50 +82 us, p99 +1.2 ms",
    }]
}

pub(crate) fn delay(effort: Effort) -> Vec<Outcome> {
    delay_outcomes(effort, Priority::Ordinary)
}

pub(crate) fn delay_realtime(effort: Effort) -> Vec<Outcome> {
    delay_outcomes(effort, Priority::Realtime)
}

/// Rate at which a burst of packets leaves, compared with the configured rate.
pub(crate) fn rate(effort: Effort) -> Vec<Outcome> {
    const BYTES: usize = 1500;
    let measure =
        |name: &str, bits_per_second: f64, count: u32, peers: (&'static str, &'static str)| {
            let place = Place::new(&format!("rate={name},queue=2000p"), Priority::Ordinary);
            let (sender, receiver) = place.sockets();
            for _ in 0..count {
                sender
                    .send(&[0; BYTES - HEADERS])
                    .expect("the interface is up");
            }
            let came: Vec<u64> = (0..count)
                .map_while(|_| receiver.receive())
                .map(|p| p.1)
                .collect();
            place.stop();
            assert_eq!(came.len(), count as usize, "all packets arrive");
            let seconds = (came[came.len() - 1] - came[0]) as f64 / 1e9;
            let error = f64::from(count - 1) * BYTES as f64 * 8.0 / seconds / bits_per_second - 1.0;
            Outcome {
                name: format!("{name}, {count} packets of {BYTES} B"),
                measured: format!("{:+.4} %", error * 100.0),
                target: "within 0.02 %",
                met: error.abs() <= 0.0002,
                floor: String::new(),
                mahimahi: peers.0,
                rattan: peers.1,
            }
        };
    vec![
        measure("500kbit/s", 5e5, effort.count(400), ("-0.23 %", "-0.006 %")),
        measure("10Mbit/s", 1e7, 1000, ("", "")),
    ]
}

/// Single packets of 200 B that find a link of 10 Mbit/s idle.
pub(crate) fn lone_packet(effort: Effort) -> Vec<Outcome> {
    let place = Place::new("rate=10mbit", Priority::Ordinary);
    let errors = errors(
        &place,
        effort.count(400),
        Duration::from_millis(5),
        200,
        160_000,
    );
    place.stop();
    let (p50, minimum) = (errors.at(0.5), errors.at(0.0));
    vec![Outcome {
        name: "lone 200 B at 10 Mbit/s: 160 us".to_owned(),
        measured: format!("p50 {}, min {}", us(p50), us(minimum)),
        target: "p50 <= +100 us, never early",
        met: p50 <= 100_000 && minimum >= 0,
        floor: String::new(),
        mahimahi: "as long as a 1500 B packet",
        rattan: "",
    }]
}
