//! Delay and rate.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    Effort, Outcome,
    probe::{HEADERS, Place, wall_clock},
};

/// Signed nanoseconds, as microseconds.
fn us(ns: i64) -> String {
    format!("{:+.0} us", ns as f64 / 1000.0)
}

/// By how much each packet's way took longer than `expected`, sorted.
fn errors(place: &Place, count: u32, gap: Duration, bytes: usize, expected: i64) -> Vec<i64> {
    let (sender, receiver) = place.sockets();
    let begin = Instant::now();
    let mut errors: Vec<i64> = thread::scope(|scope| {
        scope.spawn(move || {
            let mut packet = vec![0; bytes - HEADERS];
            for number in 0..count {
                let due = begin + gap * number;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                packet[..8].copy_from_slice(&wall_clock().to_be_bytes());
                sender.send(&packet).expect("the interface is up");
            }
        });
        let errors = (0..count).map_while(|_| receiver.receive());
        errors
            .map(|(sent, came)| came as i64 - sent as i64 - expected)
            .collect()
    });
    assert_eq!(errors.len(), count as usize, "all packets arrive");
    errors.sort_unstable();
    errors
}

fn quantile(sorted: &[i64], quantile: f64) -> i64 {
    sorted[((sorted.len() - 1) as f64 * quantile).round() as usize]
}

fn delay_outcomes(effort: Effort, realtime: bool) -> Vec<Outcome> {
    const DELAY: i64 = 264_000_000;
    let place = Place::new("delay=264ms", realtime);
    let gap = Duration::from_millis(10);
    let errors = errors(&place, effort.count(1000), gap, 128, DELAY);
    place.stop();
    let (p50, p99) = (quantile(&errors, 0.5), quantile(&errors, 0.99));
    let (least, most) = (errors[0], errors[errors.len() - 1]);
    let (name, target, p99_max) = if realtime {
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
    vec![Outcome {
        name: name.to_owned(),
        measured: format!(
            "p50 {}, p99 {}, least {}, most {}",
            us(p50),
            us(p99),
            us(least),
            us(most)
        ),
        target,
        met: p50 <= 100_000 && p99 <= p99_max && least >= 0,
        mahimahi: "p50 +104 us, p99 +10.4 ms, 980 us early at worst",
        rattan: "p50 +82 us, p99 +1.2 ms",
    }]
}

pub(crate) fn delay(effort: Effort) -> Vec<Outcome> {
    delay_outcomes(effort, false)
}

pub(crate) fn delay_realtime(effort: Effort) -> Vec<Outcome> {
    delay_outcomes(effort, true)
}

/// The rate at which a burst of 1000 packets leaves, against the one stated.
pub(crate) fn rate(effort: Effort) -> Vec<Outcome> {
    const COUNT: u32 = 1000;
    let measure = |name: &str, bits_per_second: f64, peers: (&'static str, &'static str)| {
        let bytes = if effort.short { 300 } else { 1500 };
        let place = Place::new(&format!("rate={name},queue=2000p"), false);
        let (sender, receiver) = place.sockets();
        for _ in 0..COUNT {
            sender
                .send(&vec![0; bytes - HEADERS])
                .expect("the interface is up");
        }
        let came: Vec<u64> = (0..COUNT)
            .map_while(|_| receiver.receive())
            .map(|p| p.1)
            .collect();
        place.stop();
        assert_eq!(came.len(), COUNT as usize, "all packets arrive");
        let seconds = (came[came.len() - 1] - came[0]) as f64 / 1e9;
        let error = (COUNT - 1) as f64 * bytes as f64 * 8.0 / seconds / bits_per_second - 1.0;
        Outcome {
            name: format!("{name}, 1000 packets of {bytes} B"),
            measured: format!("{:+.4} %", error * 100.0),
            target: "within 0.02 %",
            met: error.abs() <= 0.0002,
            mahimahi: peers.0,
            rattan: peers.1,
        }
    };
    vec![
        measure("500kbit/s", 5e5, ("-0.23 %", "-0.006 %")),
        measure("10Mbit/s", 1e7, ("", "")),
    ]
}

/// Packets of 200 B that find a link of 10 Mbit/s idle.
pub(crate) fn lone_packet(effort: Effort) -> Vec<Outcome> {
    let place = Place::new("rate=10mbit", false);
    let errors = errors(
        &place,
        effort.count(1000),
        Duration::from_millis(5),
        200,
        160_000,
    );
    place.stop();
    let p50 = quantile(&errors, 0.5);
    vec![Outcome {
        name: "lone 200 B at 10 Mbit/s: 160 us".to_owned(),
        measured: format!("p50 {}, least {}", us(p50), us(errors[0])),
        target: "p50 <= +100 us, never early",
        met: p50 <= 100_000 && errors[0] >= 0,
        mahimahi: "as long as a 1500 B packet",
        rattan: "",
    }]
}
