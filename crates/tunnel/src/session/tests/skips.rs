//! Packet numbers left out: no decision depends on them, and a peer that reports one is found out.

use std::time::Duration;

use splitmix::SplitMix64;

use super::{DELAY, Pair, config};
use crate::{
    arrival::{Arrivals, Arrived, Asks, Timing},
    cause::{Cause, Classifier, LossEvent},
    coding::Encoding,
    delivery::ReportError,
    path::PathSample,
    rate::{Controller, ControllerConfig, Rate},
    session::{SkipConfig, skips::Skips},
    wire::{Gap, Report},
};

const MS: Duration = Duration::from_millis(1);
const BYTES: usize = 1250;
/// Packets, one each millisecond. The last ones are not lost.
const PACKETS: u64 = 30_000;
const TAIL: u64 = 300;

fn skips(every: u32) -> SkipConfig {
    let seed = [7; 32];
    SkipConfig { every, seed }
}

/// Sender and receiver of packets whose fate depends on their count alone.
struct World {
    skips: Skips,
    arrivals: Arrivals,
    classifier: Classifier,
    controller: Controller,
    encoding: Encoding,
    counts: [u64; 3],
    left_out: u64,
}

/// Conclusions of the sender from a report: highest packet, losses, rate, packets.
type Decisions = (Option<u64>, Vec<LossEvent>, u64, u64);

impl World {
    fn new(every: u32) -> Self {
        let timing = Timing {
            rtt: 2 * DELAY,
            rate: Some(10_000_000),
        };
        let controller = ControllerConfig {
            rate: Rate::Auto,
            rtt: 2 * DELAY,
            packet: BYTES as u64,
            overhead: 28,
            remembered: None,
        };
        Self {
            skips: Skips::new(&skips(every)),
            arrivals: Arrivals::new(timing, Duration::ZERO),
            classifier: Classifier::new(),
            controller: Controller::new(&controller, Duration::ZERO),
            encoding: Encoding::new(1400, 1.0),
            counts: [0; 3],
            left_out: 0,
        }
    }

    /// Sends a packet, which arrives at that time unless it is lost.
    fn send(&mut self, packet: u64, arrives: Option<Duration>) {
        self.controller.on_sent(sent_at(packet), BYTES as u64);
        let number = self.skips.next(packet, packet > 0);
        self.left_out = number - packet;
        if let Some(now) = arrives {
            let arrived = Arrived {
                number,
                datagram: BYTES,
                marked: false,
                asks: Asks::Soon,
            };
            self.arrivals
                .on_packet(now, &arrived, Duration::from_secs(1));
        }
    }

    fn report(&mut self, now: Duration) -> Decisions {
        let mut report = self.arrivals.report(now);
        self.skips.take_out(&mut report, true).expect("honest");
        let sample = sample(now, &report);
        let mut losses = Vec::new();
        let settled = sample.as_ref().map_or(0, |sample| sample.received_us);
        let known = |number| Some(sent_at(number));
        self.classifier
            .on_gaps(&report.gaps, None, settled, known, |loss| losses.push(loss));
        if let Some(sample) = &sample {
            self.classifier.on_sample(sample);
            self.controller.on_sample(sample, &losses);
        }
        let congested = losses.iter().any(|loss| loss.cause == Cause::Congestion);
        self.encoding.on_counts(report.counts, congested, MS);
        self.counts = report.counts;
        let highest = report.highest.map(|highest| highest.number);
        (highest, losses, self.controller.rate(), report.packets)
    }
}

fn sent_at(packet: u64) -> Duration {
    MS * u32::try_from(packet).expect("few")
}

fn sample(now: Duration, report: &Report) -> Option<PathSample> {
    let highest = report.highest?;
    let held = Duration::from_micros(highest.held_us);
    Some(PathSample {
        now: now + DELAY,
        number: highest.number,
        sent_at: sent_at(highest.number),
        received_us: highest.arrived_us,
        rtt: now + DELAY - held - sent_at(highest.number),
        packets: report.packets,
        bytes: report.bytes,
        marked: 0,
        sent_packets: highest.number + 1,
        app_limited: false,
    })
}

/// Returns the queueing delay of a packet: every two seconds a queue builds up, stands and drains.
fn queue(packet: u64) -> Duration {
    let ms = match packet % 2000 {
        at @ 0..400 => at / 10,
        400..500 => 40,
        at @ 500..900 => (900 - at) / 10,
        _ => 0,
    };
    MS * ms as u32
}

/// Returns when a packet arrives: the link loses some, alone and in bursts, and so does the queue
/// when it is full, if there is one.
fn arrives(packet: u64, with_queue: bool) -> Option<Duration> {
    let draw = splitmix::nth(packet);
    let queue = if with_queue {
        queue(packet)
    } else {
        Duration::ZERO
    };
    let full = queue == 40 * MS && draw.is_multiple_of(5);
    let link = draw % 50 == 7 || packet % 1000 < 3;
    let is_lost = packet < PACKETS - TAIL && packet > 0 && (full || link);
    (!is_lost).then(|| sent_at(packet) + DELAY + queue)
}

/// Sends the same packets with no number left out, and with one in `every`. Compares what the
/// senders conclude from each report, and returns them with the packets lost by cause.
fn compare(every: u32, with_queue: bool) -> ([World; 2], [u64; 3]) {
    let mut worlds = [0, every].map(World::new);
    let mut causes = [0; 3];
    for packet in 0..PACKETS {
        let arrives = arrives(packet, with_queue);
        for world in &mut worlds {
            world.send(packet, arrives);
        }
        if let Some(now) = arrives.filter(|_| packet % 10 == 9) {
            let [plain, skipping] = worlds.each_mut().map(|world| world.report(now));
            assert_eq!(plain, skipping, "packet {packet}");
            for loss in plain.1 {
                causes[loss.cause as usize] += loss.packets;
            }
        }
    }
    (worlds, causes)
}

/// Losses have the same causes, rates and counts. Only the time at which the receiver judges a
/// packet differs, by some numbers.
#[test]
fn ten_percent_skips_change_no_decision() {
    let ([plain, skipping], causes) = compare(10, true);
    assert_eq!(plain.left_out, 0);
    assert!(skipping.left_out > PACKETS / 11, "{}", skipping.left_out);
    assert!(
        causes[..2].iter().all(|packets| *packets > 100),
        "{causes:?}"
    );
    assert_eq!(plain.counts[1..], skipping.counts[1..]);
    assert!(plain.counts[0].abs_diff(skipping.counts[0]) <= 64);
}

#[test]
fn ten_percent_skips_change_no_overhead() {
    let ([plain, skipping], _) = compare(10, false);
    assert_eq!(plain.counts[1..], skipping.counts[1..]);
    assert!(plain.encoding.share() > 0.0);
    assert_eq!(plain.encoding.share(), skipping.encoding.share());
}

/// FEC takes no notice of losses during congestion, whose bounds depend on the time of judgement,
/// too. One number in 4,096 moves that by a packet at most.
#[test]
fn as_many_skips_as_pepd_makes_change_no_overhead_after_congestion() {
    let ([plain, skipping], _) = compare(4096, true);
    assert!(skipping.left_out >= PACKETS / 4096);
    assert_eq!(plain.counts[1..], skipping.counts[1..]);
    assert!(plain.encoding.share() > 0.0);
    assert_eq!(plain.encoding.share(), skipping.encoding.share());
}

/// A transfer over a lossy link retransmits what was lost, and nothing for numbers left out.
#[test]
fn numbers_left_out_are_not_retransmitted() {
    let mut pair = Pair::with(|initiator| super::SessionConfig {
        skips: skips(10),
        stream_credit: 1 << 30,
        ..config(initiator)
    });
    let stream = pair.sides[0]
        .session
        .open(crate::class::Class::Bulk, 0, b"")
        .expect("few");
    pair.sides[0].write(stream, &[1; 2_000_000]);
    pair.run(Duration::from_secs(4));
    assert_eq!(pair.sides[1].readable(stream), 2_000_000);
    let session = &pair.sides[0].session;
    assert!(
        session.skips.number(session.stats().packets_sent) > session.stats().packets_sent + 100
    );
    assert_eq!(session.stats().segments_retransmitted, 0);
    assert_eq!(session.path().loss, 0.0);
    assert_eq!(session.causes(), crate::cause::CauseCounts::default());
}

/// Kinds of peers that report.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reporter {
    /// Truthful; this share of its packets is lost.
    Honest(f64),
    /// Names nothing.
    Smooth,
    /// Names nothing, and leaves out numbers of its own between reports.
    Broken,
    /// Names as many gaps as it may, at random.
    Random,
    /// Names as many gaps as leave no room for others, always the same old ones.
    Old,
}

/// Returns the packets sent until a lie is found, if one is, of these at most.
fn found_after(reporter: Reporter, seed: u64, packets: u64) -> Option<(u64, ReportError)> {
    let mut random = SplitMix64::new(seed);
    let timing = Timing {
        rtt: Duration::from_millis(50),
        rate: None,
    };
    let mut arrivals = Arrivals::new(timing, Duration::ZERO);
    let mut skips = Skips::new(&skips(100));
    let (mut is_next, mut held) = (true, None::<u64>);
    for packet in 0..packets {
        let now = MS * u32::try_from(packet).expect("few");
        let number = skips.next(packet, packet > 0);
        let mut arrive = |number| {
            let arrived = Arrived {
                number,
                datagram: BYTES,
                marked: false,
                asks: Asks::Soon,
            };
            arrivals.on_packet(now, &arrived, Duration::from_secs(1));
        };
        let is_lost = random.chance(0.05);
        if !is_lost && random.chance(0.02) {
            // It comes after the next one.
            if let Some(late) = held.replace(number) {
                arrive(late);
            }
        } else if !is_lost {
            arrive(number);
            held.take().into_iter().for_each(&mut arrive);
        }
        if packet == 0 || !random.chance(0.1) {
            continue;
        }
        let mut report = arrivals.report(now);
        match reporter {
            Reporter::Honest(lost) if random.chance(lost) => {
                is_next = false;
                continue;
            }
            Reporter::Honest(_) => {}
            Reporter::Smooth => report.gaps.clear(),
            Reporter::Old => {
                let gap = |before| Gap {
                    before,
                    missing: 1,
                    before_us: 0,
                    after_us: 0,
                };
                report.gaps = (0..9).map(|at| gap(2 * at)).collect();
            }
            Reporter::Broken => {
                report.gaps.clear();
                is_next = false;
            }
            Reporter::Random => {
                let most = report.highest.map_or(0, |highest| highest.number);
                let gap = |before| Gap {
                    before,
                    missing: 1,
                    before_us: 0,
                    after_us: 0,
                };
                let befores = (0..16).map(|_| random.below(most.saturating_sub(2).max(1)));
                report.gaps = befores.map(gap).collect();
            }
        }
        if let Err(error) = skips.take_out(&mut report, is_next) {
            return Some((packet, error));
        }
        is_next = true;
    }
    None
}

#[test]
fn a_truthful_peer_is_believed_whatever_its_losses() {
    for (seed, lost) in (1..).zip([0.0, 0.01, 0.1, 0.3, 0.5]) {
        let found = found_after(Reporter::Honest(lost), seed, 300_000);
        assert_eq!(found, None, "losses {lost}, seed {seed}");
    }
}

#[test]
fn a_peer_that_does_not_know_what_was_left_out_is_found_soon() {
    for seed in 1..20 {
        for (reporter, within) in [
            (Reporter::Smooth, 300),
            (Reporter::Broken, 2400),
            (Reporter::Random, 300),
            (Reporter::Old, 400),
        ] {
            let (packets, _) = found_after(reporter, seed, 5000).expect("a lie");
            assert!(packets <= within, "{reporter:?}: {packets}, seed {seed}");
        }
    }
}
