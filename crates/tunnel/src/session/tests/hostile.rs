//! A peer with a valid key that keeps no rule: what it sends costs little work and memory.

use std::time::Duration;

use proptest::prelude::*;

use super::{Bytes, config};
use crate::{
    class::Class,
    delivery::ReportError,
    ecn::Ecn,
    session::{
        CONTROL_MAX, EVENTS_MAX, Event, Outages, PacketError, Rate, Session, SessionConfig,
        SkipConfig,
    },
    wire::{CloseCode, FRAMES_MAX, Frame, Gap, Highest, Part, Report, ResetCode, StreamId},
};

const MS: Duration = Duration::from_millis(1);

/// Maximum number of parts in a packet of these tests, and of events that one causes.
pub const PARTS: usize = 400;

/// A session, and the hostile peer's numbers.
pub struct Victim {
    pub session: Session,
    pub bytes: Bytes,
    now: Duration,
    number: u64,
    pub seq: u32,
    /// Numbers of the packets that the session has sent.
    pub sent: Vec<u64>,
}

impl Victim {
    pub fn new(config: SessionConfig) -> Self {
        Self {
            session: Session::new(config, Duration::ZERO),
            bytes: Bytes::default(),
            now: Duration::ZERO,
            number: 0,
            seq: 0,
            sent: Vec::new(),
        }
    }

    pub fn packet(&mut self, packet: &[u8]) -> Result<(), PacketError> {
        self.number += 1;
        let (now, number) = (self.now, self.number);
        let (session, bytes) = (&mut self.session, &mut self.bytes);
        session.handle_packet(now, number, packet, packet.len() + 25, Ecn::NotEct, bytes)
    }

    fn frames(&mut self, frames: &[Frame<'_>]) -> Result<(), PacketError> {
        let mut packet = Vec::new();
        frames.iter().for_each(|frame| frame.emit(&mut packet));
        self.packet(&packet)
    }

    /// Sends a new segment.
    fn segment(&mut self, parts: &[Part<'_>]) -> Result<(), PacketError> {
        let seq = self.seq;
        self.seq += 1;
        self.segment_again(seq, parts)
    }

    /// Sends a new segment; returns true if it is taken. The next one has its number otherwise.
    fn offer(&mut self, parts: &[Part<'_>]) -> Result<bool, PacketError> {
        let refused = self.session.stats().segments_not_held;
        self.segment(parts)?;
        let is_taken = self.session.stats().segments_not_held == refused;
        self.seq -= u32::from(!is_taken);
        Ok(is_taken)
    }

    fn segment_again(&mut self, seq: u32, parts: &[Part<'_>]) -> Result<(), PacketError> {
        let mut bytes = Vec::new();
        parts.iter().for_each(|part| part.emit(false, &mut bytes));
        let parts = &bytes;
        self.frames(&[Frame::Segment { seq, parts }])
    }

    /// Returns a report of all packets up to this number, and of no segment.
    fn report(&self, number: u64) -> Frame<'static> {
        let arrived_us = u64::try_from(self.now.as_micros()).expect("soon");
        let highest = Some(Highest {
            number,
            arrived_us,
            held_us: 0,
        });
        Frame::Report(Report {
            highest,
            ..Report::default()
        })
    }

    /// Takes all events; returns their number.
    pub fn events(&mut self) -> usize {
        std::iter::from_fn(|| self.session.poll_event()).count()
    }

    /// Lets the session send for this time; returns the number of packets.
    pub fn run(&mut self, time: Duration) -> usize {
        let end = self.now + time;
        let mut packets = 0;
        while self.now < end {
            let mut out = Vec::new();
            let (session, bytes) = (&mut self.session, &mut self.bytes);
            if let Some(written) = session.poll_packet(self.now, &mut out, bytes) {
                self.sent.push(written.number);
                packets += 1;
            } else {
                self.now += MS;
            }
        }
        packets
    }

    /// Returns the number of parts handled during a call.
    fn parts_of(&mut self, call: impl FnOnce(&mut Self)) -> u64 {
        let before = self.session.stats().parts_handled;
        call(self);
        self.session.stats().parts_handled - before
    }
}

fn many_streams(initiator: bool) -> SessionConfig {
    SessionConfig {
        streams_max: 4096,
        // It also sends when it hears nothing.
        outages: Outages::Never,
        ..config(initiator)
    }
}

fn open(stream: StreamId) -> Part<'static> {
    Part::Open {
        stream,
        class: Class::Normal,
        stream_header: b"header",
    }
}

fn reset(stream: StreamId) -> Part<'static> {
    let code = ResetCode::Host;
    Part::Reset {
        stream,
        code,
        sent: 0,
    }
}

/// Parts held for a stream that never opens cost nothing when others do.
#[test]
fn an_opening_does_not_retry_what_is_held_for_other_streams() {
    let mut victim = Victim::new(many_streams(true));
    let never = 8191;
    let credit = |until| Part::Credit {
        stream: never,
        until,
    };
    for packet in 0..154 {
        let parts: Vec<_> = (0..125).map(|i| credit(125 * packet + i)).collect();
        victim.segment(&parts).expect("held, or ignored");
    }
    assert!(victim.session.held.len() <= 1024);
    assert!(victim.session.stats().segments_not_held > 70);
    for stream in (1..2001).step_by(2) {
        let steps = victim.parts_of(|victim| victim.segment(&[open(stream)]).expect("a stream"));
        assert_eq!(steps, 1, "for an opening");
        let steps = victim.parts_of(|victim| victim.segment(&[open(stream)]).expect("known"));
        assert_eq!(steps, 1, "for one that is repeated");
        victim.events();
    }
    let held = victim.session.held.len() as u64;
    let steps = victim.parts_of(|victim| victim.segment(&[open(never)]).expect("a stream"));
    assert_eq!((steps, victim.session.held.len()), (1 + held, 0));
}

/// A packet of the smallest frames costs no more than one of any others.
#[test]
fn a_packet_has_few_frames_and_any_padding() {
    let mut victim = Victim::new(config(true));
    let max = FRAMES_MAX;
    let padded = |frames: usize| [vec![0; 1000], vec![3; frames]].concat();
    victim.packet(&padded(max - 1)).expect("a run is one frame");
    let answered = [vec![4, 1, 2], vec![0; 1300]].concat();
    victim.packet(&answered).expect("an MTU probe");
    let error = victim.packet(&padded(max)).expect_err("too many");
    assert_eq!(error, PacketError::Frames);
    let alternating = [0, 3].repeat(max);
    assert_eq!(victim.packet(&alternating), Err(PacketError::Frames));
    let later = [0x20, 0].repeat(max + 1);
    assert_eq!(victim.packet(&later), Err(PacketError::Frames));
    // Nothing behind the maximum is read.
    let broken = [vec![3; max + 1], vec![0x1f]].concat();
    assert_eq!(victim.packet(&broken), Err(PacketError::Frames));
}

#[test]
fn a_packet_is_no_longer_than_the_terms_permit() {
    let mut victim = Victim::new(config(true));
    let max = victim.session.config.packet_max;
    victim.packet(&vec![0; max]).expect("the longest");
    let error = victim.packet(&vec![0; max + 1]).expect_err("too long");
    assert_eq!(error, PacketError::Length);
}

/// A byte of session credit lets one stream send, and wakes few.
#[test]
fn credit_for_a_byte_does_not_visit_all_streams() {
    let mut victim = Victim::new(SessionConfig {
        session_credit: 0,
        ..many_streams(true)
    });
    for _ in 0..4096 {
        let stream = victim.session.open(Class::Bulk, 0, b"").expect("4096");
        victim.bytes.written.insert(stream, vec![0; 100]);
        victim.session.written(stream, 100);
    }
    let turns = |victim: &Victim| victim.session.blocked.len();
    victim.run(Duration::from_secs(2));
    assert_eq!(
        turns(&victim),
        4096,
        "all have sent their opening, and wait"
    );
    for until in 1..200 {
        let before = victim.session.stats().streams_woken;
        victim
            .segment(&[Part::SessionCredit { until }])
            .expect("credit");
        victim.run(20 * MS);
        assert_eq!(victim.session.stats().streams_woken - before, 1);
        assert_eq!(turns(&victim), 4096);
    }
    let sent = |stream| victim.session.streams.sent(stream).expect("open");
    let sent: Vec<_> = (0..8192).step_by(2).map(sent).collect();
    assert_eq!(sent.iter().sum::<u64>(), 199);
    assert!(sent.iter().all(|sent| *sent <= 1), "each in its turn");
}

/// Reader of what the session has for it.
#[derive(Clone, Copy, Debug)]
enum Reads {
    Nobody,
    Caller,
    Peer,
}

/// Checks that parts to send and events are bounded for any sequence of segments. Once both are
/// read, segments are taken again.
fn floods(seed: u64, reads: Reads) -> Result<(), TestCaseError> {
    let valid = |error: PacketError| TestCaseError::fail(error.to_string());
    let mut victim = Victim::new(many_streams(true));
    let mut rng = splitmix::SplitMix64::new(seed);
    victim.segment(&[open(1)]).map_err(valid)?;
    let mut next = 3;
    for _ in 0..1000 {
        let mut parts = Vec::new();
        for _ in 0..rng.next_u64() % 60 {
            match rng.next_u64() % 4 {
                0 => parts.push(Part::Reclass {
                    stream: 1,
                    class: Class::Bulk,
                }),
                1 => parts.push(Part::Data {
                    stream: 1,
                    from: rng.next_u64() % 100,
                    bytes: b"x",
                    fin: false,
                }),
                _ => {
                    parts.extend([open(next), reset(next)]);
                    next += 2;
                }
            }
        }
        if !victim.offer(&parts).map_err(valid)? {
            let opens = parts
                .iter()
                .filter(|part| matches!(part, Part::Open { .. }));
            next -= 2 * opens.count() as u64;
        }
        match reads {
            Reads::Caller => _ = victim.events(),
            Reads::Peer => _ = victim.run(MS),
            Reads::Nobody => {}
        }
        let streams = victim.session.streams.len();
        prop_assert!(victim.session.control.len() <= CONTROL_MAX + 2 * streams + PARTS);
        prop_assert!(victim.session.events.len() <= EVENTS_MAX + PARTS);
    }
    prop_assert!(
        victim.session.stats().segments_not_held > 0,
        "seed {}",
        seed
    );
    victim.events();
    victim.run(Duration::from_secs(1));
    prop_assert!(victim.session.control.is_empty());
    prop_assert!(victim.offer(&[open(next)]).map_err(valid)?);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn what_is_not_read_fills_no_memory(seed: u64) {
        for reads in [Reads::Nobody, Reads::Caller, Reads::Peer] {
            floods(seed, reads)?;
        }
    }
}

/// A peer that hears everything and acknowledges nothing: answers wait once the window, and what
/// may exceed it, are full.
#[test]
fn a_peer_that_acknowledges_nothing_fills_no_memory() {
    let mut victim = Victim::new(many_streams(true));
    let mut next: StreamId = 1;
    for _ in 0..20_000 {
        let resets = (0..30).flat_map(|i| [open(next + 2 * i), reset(next + 2 * i)]);
        let resets: Vec<_> = resets.collect();
        next += 60 * u64::from(victim.offer(&resets).expect("valid"));
        victim.events();
        victim.run(MS);
        let last = *victim.sent.last().expect("it sends");
        victim.frames(&[victim.report(last)]).expect("valid");
        let (segments, bytes) = victim.session.delivery.span();
        let is_bounded = segments <= 64 + 4096 || bytes < (1 << 20) + 100_000;
        assert!(is_bounded, "{segments} segments of {bytes} bytes");
        assert!(victim.session.control.len() <= CONTROL_MAX + PARTS);
    }
    let refused = victim.session.stats().segments_not_held;
    assert!(refused > 5000, "{refused}");
}

/// A peer that acknowledges all segments but the first, for ever: what the session keeps of the
/// others is little, and the window closes in the end.
#[test]
fn a_peer_that_never_acknowledges_one_segment_fills_no_memory() {
    let mut victim = Victim::new(SessionConfig {
        rate: Rate::Stated(1_000_000_000),
        // As if it had delayed its answers.
        rtt: Duration::from_millis(100),
        ..many_streams(true)
    });
    let stream = victim.session.open(Class::Bulk, 0, b"").expect("one");
    let total = 200_000_000;
    victim.bytes.written.insert(stream, vec![0; total as usize]);
    victim.session.written(stream, total);
    let first = victim.report(0);
    let mut most = (0, 0);
    for _ in 0..2000 {
        victim.run(MS);
        victim
            .segment(&[Part::Credit {
                stream,
                until: total,
            }])
            .expect("credit");
        let (segments, bytes) = victim.session.delivery.span();
        let Frame::Report(first) = &first else {
            panic!("a report");
        };
        let behind = (segments > 1).then_some(1..segments as u64);
        let ranges = behind.into_iter().collect();
        let report = Report {
            ranges,
            ..first.clone()
        };
        victim.frames(&[Frame::Report(report)]).expect("valid");
        most = most.max((segments, bytes));
        let memory = victim.session.delivery.memory();
        assert!(memory < 16 * segments + (1 << 20), "{memory} for {most:?}");
    }
    let (segments, bytes) = most;
    assert!(segments > 10_000 && bytes < total, "{most:?}");
    assert!(!victim.session.window_is_open());
}

/// Bytes in single pieces, in every other segment: what the session notes of them is in proportion
/// to credit. Nothing ends the session, and the bytes in between are taken.
#[test]
fn scattered_bytes_and_segments_take_memory_in_proportion_to_credit() {
    let credit = 4 << 20;
    let mut victim = Victim::new(SessionConfig {
        packet_max: 8000,
        stream_credit: credit,
        session_credit: credit,
        ..many_streams(true)
    });
    let piece = |from| Part::Data {
        stream: 1,
        from,
        bytes: b"x",
        fin: false,
    };
    victim.segment(&[open(1)]).expect("a stream");
    let max = 4096 + 4096;
    for packet in 0..20_000 {
        // Every other position, 200 of them in a segment, and every other segment.
        victim.seq += 1;
        let parts: Vec<_> = (0..200).map(|i| piece(400 * packet + 2 * i + 1)).collect();
        if 400 * (packet + 1) < credit {
            victim.offer(&parts).expect("ignored, or taken");
        } else {
            let credit = Part::Credit {
                stream: 1,
                until: 1,
            };
            victim.offer(&[credit]).expect("ignored, or taken");
        }
        assert!(victim.session.streams.pieces() <= max + PARTS);
        assert!(victim.session.arrivals.ranges_len() <= max + 1);
    }
    assert!(victim.session.streams.is_scattered());
    assert_eq!(victim.session.arrivals.ranges_len(), max);
    let pieces = victim.session.streams.pieces();
    victim
        .segment_again(1, &[piece(0)])
        .expect("the first that is missing");
    assert_eq!(victim.session.streams.pieces(), pieces - 1);
    assert_eq!(victim.session.arrivals.ranges_len(), max - 1);
}

#[test]
fn a_session_is_closed_once() {
    let mut victim = Victim::new(config(true));
    let (code, reason) = (CloseCode::Limit, "again and again");
    let closes = vec![Frame::Close { code, reason }; FRAMES_MAX];
    for _ in 0..3 {
        victim.frames(&closes).expect("valid");
    }
    let event = victim.session.poll_event();
    assert!(matches!(event, Some(Event::PeerClosed { .. })));
    assert_eq!(victim.events(), 0);
}

#[test]
fn more_packets_than_were_sent_are_not_counted() {
    let counted = |counts, packets| {
        let mut victim = Victim::new(many_streams(true));
        victim.run(Duration::from_secs(1));
        let last = *victim.sent.last().expect("beacons");
        let Frame::Report(report) = victim.report(last) else {
            panic!("no report");
        };
        let report = Report {
            counts: [last + counts, 1, 1],
            packets: last + packets,
            ..report
        };
        victim.frames(&[Frame::Report(report)])
    };
    assert_eq!(counted(1, 1), Ok(()), "all that were sent");
    assert!(counted(2, 1).is_err());
    assert!(counted(1, 2).is_err());
}

/// A peer that reports everything as received, to make the local end send more (RFC 9000 §21.4).
#[test]
fn a_report_of_a_number_left_out_ends_the_session() {
    let begun = || {
        let mut victim = Victim::new(SessionConfig {
            skips: SkipConfig {
                every: 50,
                seed: [3; 32],
            },
            ..many_streams(true)
        });
        victim.run(200 * MS);
        let first = *victim.sent.last().expect("beacons");
        victim.frames(&[victim.report(first)]).expect("received");
        while victim.sent.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            victim.run(100 * MS);
            let last = *victim.sent.last().expect("beacons");
            victim.frames(&[victim.report(last)]).expect("received");
        }
        victim.run(Duration::from_secs(1));
        let pair = victim.sent.windows(2).find(|pair| pair[1] > pair[0] + 1);
        let left_out = pair.expect("one is left out")[0] + 1;
        (victim, left_out)
    };
    let error = |number| Err(PacketError::Report(ReportError::LeftOut(number)));
    let (mut victim, left_out) = begun();
    assert_eq!(victim.frames(&[victim.report(left_out - 1)]), Ok(()));
    assert_eq!(victim.frames(&[victim.report(left_out)]), error(left_out));
    // The second report that does not name it.
    let (mut victim, left_out) = begun();
    let not_named = ReportError::NotNamed(left_out);
    let outcome = victim.frames(&[victim.report(left_out + 1)]);
    assert_eq!(outcome, Err(PacketError::Report(not_named)));
    let (mut victim, left_out) = begun();
    let Frame::Report(report) = victim.report(left_out + 1) else {
        panic!("no report");
    };
    let gaps = vec![Gap {
        before: left_out - 1,
        missing: 1,
        before_us: 0,
        after_us: 0,
    }];
    let named = Frame::Report(Report { gaps, ..report });
    assert_eq!(victim.frames(&[named]), Ok(()));
    assert_eq!(victim.frames(&[victim.report(left_out + 1)]), Ok(()));
    for (before, missing) in [(left_out, 1), (left_out - 3, 2)] {
        let (mut victim, left_out) = begun();
        let Frame::Report(report) = victim.report(left_out + 2) else {
            panic!("no report");
        };
        let gap = Gap {
            before,
            missing,
            before_us: 0,
            after_us: 0,
        };
        let gaps = vec![gap];
        let report = Frame::Report(Report { gaps, ..report });
        assert_eq!(victim.frames(&[report]), error(left_out));
    }
}
