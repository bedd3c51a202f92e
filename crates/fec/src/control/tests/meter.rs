use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// The next packet, after this many others that were sent and have not arrived yet, or never
    /// do.
    After(u64),
    /// A packet from this many before.
    Again(u64),
    /// A silence that started this many packets ago, and lasted that long.
    Silence(u64, u64),
}

/// Slow reference of the meter's rules: the numbers settled, and their fate.
#[derive(Default)]
struct Model {
    reorder: u64,
    first: Option<u64>,
    /// Highest known number plus one.
    end: u64,
    received: BTreeSet<u64>,
    left_out: BTreeSet<u64>,
}

impl Model {
    fn settled(&self) -> u64 {
        let first = self.first.unwrap_or(self.end);
        self.end.saturating_sub(self.reorder).max(first)
    }

    fn on_packet(&mut self, number: u64) {
        if self.first.is_none() {
            self.first = Some(number);
            self.end = number;
        }
        if number >= self.settled() && !self.left_out.contains(&number) {
            self.received.insert(number);
        }
        self.end = self.end.max(number + 1);
    }

    fn leave_out(&mut self, numbers: Range<u64>) {
        if self.first.is_none() || numbers.is_empty() {
            return;
        }
        let settled = self.settled();
        for number in numbers.clone().filter(|&number| number >= settled) {
            self.left_out.insert(number);
            self.received.remove(&number);
        }
        self.end = self.end.max(numbers.end);
    }

    /// Counts, and the number of packets left out.
    fn counts(&self, outage_packets: u64) -> (Counts, u64) {
        let (mut counts, mut left_out, mut lost) = (Counts::default(), 0, 0);
        for number in self.first.unwrap_or(self.end)..self.settled() {
            let received = self.received.contains(&number);
            if !received && !self.left_out.contains(&number) {
                lost += 1;
                continue;
            }
            match std::mem::take(&mut lost) {
                burst if burst > outage_packets => left_out += burst,
                burst => counts += Run::Lost(burst).into(),
            }
            match received {
                true => counts += Run::Received(1).into(),
                false => left_out += 1,
            }
        }
        (counts, left_out)
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => Just(Event::After(0)),
        4 => (1u64..4).prop_map(Event::After),
        1 => (4u64..60).prop_map(Event::After),
        4 => (0u64..12).prop_map(Event::Again),
        1 => (0u64..12, 0u64..30).prop_map(|(ago, length)| Event::Silence(ago, length)),
    ]
}

proptest! {
    #[test]
    fn a_meter_counts_as_its_rules_say(
        reorder in 0u16..10,
        outage_packets in 3u64..40,
        first in prop_oneof![Just(0), Just(100u64), Just(1 << 60)],
        events in prop::collection::vec(event(), 0..200),
    ) {
        let mut meter = LossMeter::new(MeterConfig { reorder, outage_packets });
        let mut model = Model { reorder: reorder.into(), end: first, ..Model::default() };
        let mut counts = Counts::default();
        for event in events {
            let add = |run: Run| counts += run.into();
            match event {
                Event::After(more) => {
                    let number = model.end + more;
                    model.on_packet(number);
                    meter.on_packet(number, add);
                }
                Event::Again(ago) => {
                    let number = model.end.saturating_sub(ago);
                    model.on_packet(number);
                    meter.on_packet(number, add);
                }
                Event::Silence(ago, length) => {
                    let start = model.end.saturating_sub(ago);
                    model.leave_out(start..start + length);
                    meter.leave_out(start..start + length, add);
                }
            }
            let (expected, left_out) = model.counts(outage_packets);
            prop_assert_eq!(counts, expected);
            prop_assert_eq!(meter.stats().left_out, left_out);
        }
    }
}

#[test]
fn a_jump_of_numbers_takes_no_time_and_is_an_outage() {
    let mut meter = LossMeter::new(MeterConfig::default());
    let mut counts = Counts::default();
    for number in (0..100).chain(1 << 60..(1 << 60) + 200) {
        meter.on_packet(number, |run| counts += run.into());
    }
    meter.on_packet(u64::MAX, |run| counts += run.into());
    meter.on_packet(u64::MAX - 1, |run| counts += run.into());
    assert_eq!(counts, Counts::new(300, 0, 0).unwrap());
    assert!(meter.stats().left_out > (1 << 60) - 200);
    assert_eq!(meter.stats().late, 1);
}

#[test]
fn a_silence_that_is_left_out_leaves_the_estimate_as_it_was() {
    let mut meter = LossMeter::new(MeterConfig::default());
    let mut control = Control::new(ControlConfig::default()).unwrap();
    let mut number = 0;
    for _ in 0..50 {
        for _ in 0..1000 {
            meter.on_packet(number, |run| control.on_counts(run));
            number += 1;
        }
        // Too short to be an outage by itself.
        meter.leave_out(number..number + 100, |run| control.on_counts(run));
        number += 100;
    }
    assert_eq!(control.estimate().loss().value, 0.0);
    assert_eq!(control.standing(), Standing::Clean);
    assert_eq!(meter.stats().left_out, 5000 - 100 + 36);
}
