use super::*;

/// Packets of a millisecond each: sent at its number in ms, arrived 50 ms and a queue later.
struct Path {
    classifier: Classifier,
    events: Vec<LossEvent>,
}

fn sent(number: u64) -> Option<Duration> {
    (number < 1_000_000).then(|| Duration::from_millis(number))
}

fn arrived(number: u64, queue_ms: u64) -> u64 {
    (number + 50 + queue_ms) * 1000
}

impl Path {
    fn new() -> Self {
        Self {
            classifier: Classifier::new(),
            events: Vec::new(),
        }
    }

    fn sample(&mut self, number: u64, queue_ms: u64) {
        self.classifier.on_sample(&PathSample {
            now: Duration::from_millis(number + 100 + queue_ms),
            number,
            sent_at: Duration::from_millis(number),
            received_us: arrived(number, queue_ms),
            rtt: Duration::from_millis(100 + queue_ms),
            packets: number,
            bytes: number,
            marked: 0,
            sent_packets: number + 1,
            app_limited: false,
        });
    }

    /// Sends 2000 packets. The queue fills to 40 ms within 400 packets, stays for 100, and drains.
    fn fill(&mut self, from: u64) {
        for i in 0..2000 {
            let queue = match i {
                0..400 => i / 10,
                400..500 => 40,
                500..900 => (900 - i) / 10,
                _ => 0,
            };
            self.sample(from + i, queue);
        }
    }

    fn gap(before: u64, missing: u64, queue_ms: u64) -> Gap {
        Gap {
            before,
            missing,
            before_us: arrived(before, queue_ms),
            after_us: arrived(before + missing + 1, queue_ms),
        }
    }

    fn judge(&mut self, gap: Gap) -> Option<Cause> {
        self.events.clear();
        let events = &mut self.events;
        self.classifier
            .on_gaps(&[gap], None, u64::MAX, sent, |event| events.push(event));
        self.events.first().map(|event| event.cause)
    }
}

#[test]
fn a_short_queue_at_the_gap_is_the_link_and_a_full_one_is_congestion() {
    let mut path = Path::new();
    path.fill(0);
    assert_eq!(path.judge(Path::gap(2000, 1, 0)), Some(Cause::Link));
    assert_eq!(path.judge(Path::gap(2010, 2, 39)), Some(Cause::Congestion));
    assert_eq!(path.judge(Path::gap(2020, 1, 20)), Some(Cause::Link));
    let counts = path.classifier.counts();
    assert_eq!((counts.link, counts.congestion, counts.outage), (2, 2, 0));
}

#[test]
fn a_queue_that_grows_beyond_all_was_not_full() {
    let mut path = Path::new();
    path.fill(0);
    assert_eq!(path.judge(Path::gap(2000, 1, 60)), Some(Cause::Link));
}

#[test]
fn many_missing_for_long_are_an_outage_even_at_a_full_queue() {
    let mut path = Path::new();
    path.fill(0);
    assert_eq!(path.judge(Path::gap(2000, 60, 0)), Some(Cause::Outage));
    assert_eq!(path.judge(Path::gap(2100, 60, 40)), Some(Cause::Congestion));
    assert_eq!(path.judge(Path::gap(2200, 100, 40)), Some(Cause::Outage));
}

#[test]
fn the_gap_rule_finds_the_link_at_a_full_queue() {
    for (time_ms, cause) in [(2, Cause::Link), (1, Cause::Congestion)] {
        let mut path = Path::new();
        path.fill(0);
        let mut gap = Path::gap(2000, 1, 40);
        gap.after_us = gap.before_us + time_ms * 1000;
        let packet = Some(Duration::from_millis(1));
        let mut events = Vec::new();
        path.classifier
            .on_gaps(&[gap], packet, u64::MAX, sent, |event| {
                events.push(event.cause);
            });
        assert_eq!(events, [cause], "{time_ms} ms");
    }
}

#[test]
fn each_gap_is_reported_once_and_not_before_it_is_settled() {
    let mut path = Path::new();
    path.fill(0);
    let gap = Path::gap(2000, 1, 0);
    let mut events = 0;
    for settled in [0, gap.after_us - 1, gap.after_us, u64::MAX] {
        path.classifier
            .on_gaps(&[gap], None, settled, sent, |_| events += 1);
        assert_eq!(events, usize::from(settled >= gap.after_us));
    }
}

#[test]
fn what_was_never_sent_and_what_overflows_is_ignored() {
    let mut path = Path::new();
    for (before, missing) in [(2_000_000, 1), (u64::MAX, u64::MAX), (5, u64::MAX), (7, 0)] {
        let gap = Gap {
            before,
            missing,
            before_us: u64::MAX,
            after_us: 0,
        };
        assert_eq!(path.judge(gap), None, "{before} {missing}");
    }
}

#[test]
fn a_queue_that_stands_for_minutes_is_still_one() {
    let mut path = Path::new();
    path.fill(0);
    for i in 0..3000 {
        path.sample(2000 + 100 * i, 40);
    }
    assert_eq!(
        path.judge(Path::gap(310_000, 1, 40)),
        Some(Cause::Congestion)
    );
}
