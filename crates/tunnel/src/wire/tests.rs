use proptest::{collection::vec, prelude::*};

use super::{varint::MAX, *};
use crate::class::Class;

/// Of any magnitude.
fn number() -> impl Strategy<Value = u64> {
    (0..62u32, any::<u64>()).prop_map(|(bits, number)| number & (MAX >> bits))
}

fn class() -> impl Strategy<Value = Class> {
    prop::sample::select(Class::ALL.to_vec())
}

fn highest() -> impl Strategy<Value = Highest> {
    (number(), number(), number()).prop_map(|(number, arrived_us, held_us)| Highest {
        number,
        arrived_us,
        held_us,
    })
}

/// Positions and lengths that stay below what can be said, whatever is added up.
fn small() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number >> 8)
}

fn ranges() -> impl Strategy<Value = (u64, Vec<std::ops::Range<u64>>)> {
    (small(), vec((small(), small()), 0..=RANGES_MAX)).prop_map(|(below, steps)| {
        let mut next = below;
        let range = |(skipped, len)| {
            let start = next + skipped;
            next = start + len + 2;
            start..next - 1
        };
        (below, steps.into_iter().map(range).collect())
    })
}

fn gap() -> impl Strategy<Value = Gap> {
    (small(), small(), small(), small()).prop_map(|(before, missing, before_us, after_us)| Gap {
        before,
        missing: missing + 1,
        before_us,
        after_us,
    })
}

fn span() -> impl Strategy<Value = Span> {
    let whole = Just(Span::default());
    let some = (small(), prop::option::of(small())).prop_map(|(from, len)| Span {
        from,
        until: len.map_or(u64::MAX, |len| from + len),
    });
    prop_oneof![whole, some]
}

prop_compose! {
    fn report()(
        highest in prop::option::of(highest().prop_map(|highest| Highest {
            number: highest.number >> 1,
            arrived_us: highest.arrived_us >> 1,
            ..highest
        })),
        packets in number(),
        bytes in number(),
        marked in prop_oneof![Just(0), number()],
        (below, ranges) in ranges(),
        span in span(),
        gaps in vec(gap(), 0..=GAPS_MAX),
        counts in [number(), number(), number()],
    ) -> Report {
        Report { highest, packets, bytes, marked, below, span, ranges, gaps, counts }
    }
}

fn frame<'a>() -> impl Strategy<Value = Frame<'a>> {
    let reasons = ["", "over", "a reason of several words, für Menschen"];
    prop_oneof![
        Just(Frame::Padding),
        report().prop_map(Frame::Report),
        Just(Frame::Probe),
        any::<u16>().prop_map(|id| Frame::MtuProbe { id }),
        any::<u16>().prop_map(|id| Frame::MtuAck { id }),
        (
            prop::sample::select(CloseCode::ALL.to_vec()),
            prop::sample::select(reasons.to_vec())
        )
            .prop_map(|(code, reason)| Frame::Close { code, reason }),
    ]
}

#[derive(Clone, Debug)]
struct OwnedPart {
    kind: u8,
    stream: u64,
    from: u64,
    bytes: Vec<u8>,
    fin: bool,
    class: Class,
}

impl OwnedPart {
    fn part(&self) -> Part<'_> {
        let stream = self.stream;
        let class = self.class;
        match self.kind {
            0 => Part::Open {
                stream,
                class,
                greeting: &self.bytes[..self.bytes.len().min(GREETING_MAX)],
            },
            1..=3 => Part::Data {
                stream,
                from: self.from >> 1,
                bytes: &self.bytes,
                fin: self.fin,
            },
            4 => Part::Reset {
                stream,
                code: ResetCode::ALL[class as usize + 3],
                sent: self.from,
            },
            5 => Part::Credit {
                stream,
                until: self.from,
            },
            6 => Part::SessionCredit { until: self.from },
            _ => Part::Reclass { stream, class },
        }
    }
}

prop_compose! {
    fn part()(
        kind in 0..8u8,
        stream in number(),
        from in number(),
        bytes in vec(any::<u8>(), 0..400),
        fin: bool,
        class in class(),
    ) -> OwnedPart {
        OwnedPart { kind, stream, from, bytes, fin, class }
    }
}

fn emitted(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut packet = Vec::new();
    for frame in frames {
        let before = packet.len();
        frame.emit(&mut packet);
        assert_eq!(packet.len() - before, frame.len(), "{frame:?}");
    }
    packet
}

fn emitted_parts(parts: &[OwnedPart]) -> Vec<u8> {
    let mut segment = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let (before, last) = (segment.len(), i + 1 == parts.len());
        part.part().emit(last, &mut segment);
        assert_eq!(segment.len() - before, part.part().len(last), "{part:?}");
    }
    segment
}

proptest! {
    #[test]
    fn integers_of_variable_length_are_read_as_written(value in number(), more: Vec<u8>) {
        let mut bytes = Vec::new();
        varint::emit(value, &mut bytes);
        prop_assert_eq!(bytes.len(), varint::len(value));
        bytes.extend_from_slice(&more);
        let mut reader = varint::Reader::new(&bytes);
        prop_assert_eq!(reader.varint(), Ok(value));
        prop_assert_eq!(reader.rest(), &more);
    }

    #[test]
    fn differences_are_read_as_written(value in -(1i64 << 61)..1 << 61) {
        prop_assert!(varint::fold(value) <= MAX);
        prop_assert_eq!(varint::unfold(varint::fold(value)), value);
    }

    #[test]
    fn frames_are_read_as_written(
        mut frames in vec(frame(), 0..6),
        seq: u32,
        fill in vec(any::<u8>(), 0..50),
        last in 0..3u8,
    ) {
        match last {
            0 => frames.push(Frame::Segment { seq, parts: &fill }),
            1 => frames.push(Frame::Coded { channel: seq as u8 % CHANNELS, protected: &fill }),
            _ => {}
        }
        let packet = emitted(&frames);
        let read: Result<Vec<_>, _> = Frames::new(&packet).collect();
        prop_assert_eq!(read, Ok(frames));
    }

    #[test]
    fn a_frame_that_is_cut_off_is_none(frame in frame()) {
        let packet = emitted(std::slice::from_ref(&frame));
        for end in 1..packet.len() {
            let read: Vec<_> = Frames::new(&packet[..end]).collect();
            prop_assert_eq!(read, [Err(FrameError::Short)]);
        }
    }

    #[test]
    fn parts_are_read_as_written(parts in vec(part(), 0..6)) {
        let segment = emitted_parts(&parts);
        let read: Result<Vec<_>, _> = Parts::new(&segment).collect();
        let written: Vec<_> = parts.iter().map(OwnedPart::part).collect();
        prop_assert_eq!(read, Ok(written));
    }

    #[test]
    fn a_part_that_is_cut_off_is_none(part in part()) {
        let mut segment = Vec::new();
        part.part().emit(false, &mut segment);
        for end in 1..segment.len() {
            let read: Vec<_> = Parts::new(&segment[..end]).collect();
            prop_assert_eq!(read, [Err(FrameError::Short)]);
        }
    }

    #[test]
    fn a_segment_is_filled_exactly(
        stream in number(),
        from in small(),
        available in prop_oneof![0..2000usize, 60..70usize, 16_380..16_390usize],
        room in prop_oneof![0..2000usize, 60..100usize, 16_380..16_420usize],
    ) {
        let header = |len, last| Data::of(stream, from, len, true).header_len(last);
        match Data::fit(stream, from, available, room) {
            None => prop_assert!(room < header(available, true) + available.min(1)),
            Some(Fit { len, last: false }) => {
                prop_assert_eq!(len, available);
                prop_assert!(header(len, false) + len <= room);
            }
            Some(Fit { len, last: true }) => {
                prop_assert!(len == available || header(len, true) + len == room);
                prop_assert!(header(available, false) + available > room);
                prop_assert!(header(len, true) + len <= room);
            }
        }
    }

    #[test]
    fn what_is_read_of_any_bytes_is_read_again_when_written(
        kind in prop_oneof![Just(1u8), 0..12u8],
        rest in vec(prop_oneof![Just(0u8), 0..4u8, 0x40..0x4au8, any::<u8>()], 0..80),
    ) {
        let bytes = [&[kind], &rest[..]].concat();
        let frames: Vec<_> = Frames::new(&bytes).filter_map(Result::ok).collect();
        let packet = emitted(&frames);
        let read: Result<Vec<_>, _> = Frames::new(&packet).collect();
        prop_assert_eq!(read, Ok(frames));
        let parts: Vec<_> = Parts::new(&rest).filter_map(Result::ok).collect();
        let mut segment = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            part.emit(i + 1 == parts.len(), &mut segment);
        }
        let read: Result<Vec<_>, _> = Parts::new(&segment).collect();
        prop_assert_eq!(read, Ok(parts));
    }

    #[test]
    fn a_shortened_report_fits_and_claims_nothing_new(report in report(), room in 0..1500usize) {
        let mut short = report.clone();
        let fits = short.shorten(room);
        prop_assert_eq!(fits, short.len() < room);
        prop_assert!(fits || short.ranges.is_empty() && short.gaps.is_empty());
        prop_assert!(report.ranges.starts_with(&short.ranges));
        prop_assert!(report.gaps.ends_with(&short.gaps));
        let end = short.ranges.last().map_or(report.below, |range| range.end);
        let cut = short.ranges.len() < report.ranges.len();
        let until = if cut { report.span.until.min(end) } else { report.span.until };
        prop_assert_eq!(short.span, Span { until, ..report.span });
    }

    #[test]
    fn the_nearest_number_is_meant(expected in 0..u64::MAX - (1 << 32), by in -(1i64 << 31) + 1..1 << 31) {
        let number = expected.saturating_add_signed(by);
        prop_assert_eq!(expand(number as u32, expected), number);
    }
}

#[test]
fn at_the_ends_numbers_are_expanded_to_what_there_is() {
    assert_eq!(expand(u32::MAX, 0), u64::from(u32::MAX));
    assert_eq!(expand(0, u64::MAX), u64::MAX - u64::from(u32::MAX));
    assert_eq!(expand(1 << 31, 0), 1 << 31);
    assert_eq!(expand(0, (1 << 31) - 1), 0);
    assert_eq!(
        expand(0, 1 << 31),
        1 << 32,
        "of two that are equally near the higher one"
    );
    assert_eq!(expand(1 << 31, 1 << 32), (1 << 32) + (1 << 31));
}

#[test]
fn too_many_ranges_and_gaps_are_cut_when_written() {
    let gap = Gap {
        before: 1,
        missing: 1,
        before_us: 0,
        after_us: 0,
    };
    let report = Report {
        ranges: (0..80).map(|i| 10 * i + 5..10 * i + 10).collect(),
        gaps: (0..20).map(|before| Gap { before, ..gap }).collect(),
        ..Report::default()
    };
    let packet = emitted(&[Frame::Report(report.clone())]);
    let Some(Ok(Frame::Report(read))) = Frames::new(&packet).next() else {
        panic!("no report")
    };
    assert_eq!(read.ranges, report.ranges[..RANGES_MAX]);
    assert_eq!(read.gaps, report.gaps[4..]);
    assert_eq!(
        read.span,
        Span {
            from: 0,
            until: 640
        }
    );
}

#[test]
fn a_reason_is_cut_between_characters() {
    let code = CloseCode::Shutdown;
    let long = "ä".repeat(200) + "a";
    let packet = emitted(&[Frame::Close {
        code,
        reason: &long,
    }]);
    let reason = &long[..256];
    let frame = Frame::Close { code, reason };
    assert_eq!(Frames::new(&packet).next(), Some(Ok(frame)));
    let odd = "a".to_owned() + &long;
    let packet = emitted(&[Frame::Close { code, reason: &odd }]);
    assert_eq!(packet.len(), 4 + 255);
}

/// The drawings in docs/tunnel.md, byte by byte.
#[test]
fn frames_are_as_they_are_drawn() {
    let report = Report {
        highest: Some(Highest {
            number: 200,
            arrived_us: 1000,
            held_us: 5,
        }),
        packets: 60,
        bytes: 7,
        marked: 3,
        below: 100,
        span: Span {
            from: 1,
            until: 300,
        },
        ranges: vec![101..103, 110..111],
        gaps: vec![Gap {
            before: 190,
            missing: 2,
            before_us: 980,
            after_us: 990,
        }],
        counts: [8, 2, 1],
    };
    let drawn: [(Frame<'_>, &[u8]); 8] = [
        (Frame::Padding, &[0]),
        (Frame::Probe, &[3]),
        (Frame::MtuProbe { id: 0x0102 }, &[4, 1, 2]),
        (Frame::MtuAck { id: 0x0102 }, &[5, 1, 2]),
        (
            Frame::Close {
                code: CloseCode::Limit,
                reason: "no",
            },
            &[6, 2, 2, b'n', b'o'],
        ),
        (
            Frame::Segment {
                seq: 0x0102_0304,
                parts: &[9],
            },
            &[2, 1, 2, 3, 4, 9],
        ),
        (
            Frame::Coded {
                channel: 1,
                protected: &[9],
            },
            &[10, 1, 9],
        ),
        (
            Frame::Report(report),
            &[
                1, 0x0f, 0x40, 200, 0x43, 0xe8, 5, 60, 7, 3, 0x40, 100, 1, 0x41, 0x2b, 8, 2, 1, 2,
                1, 1, 6, 0, 1, 19, 1, 39, 20,
            ],
        ),
    ];
    for (frame, bytes) in drawn {
        assert_eq!(emitted(std::slice::from_ref(&frame)), bytes);
        assert_eq!(Frames::new(bytes).collect::<Vec<_>>(), [Ok(frame)]);
    }
}

#[test]
fn parts_are_as_they_are_drawn() {
    let stream = 0x45;
    let data = |fin| Part::Data {
        stream,
        from: 7,
        bytes: b"ab",
        fin,
    };
    let drawn: [(Part<'_>, bool, &[u8]); 10] = [
        (
            Part::Open {
                stream,
                class: Class::Bulk,
                greeting: b"hi",
            },
            false,
            &[0x40, 0x40, 0x45, 2, 2, b'h', b'i'],
        ),
        (data(false), true, &[0x42, 0x40, 0x45, 7, b'a', b'b']),
        (data(false), false, &[0x43, 0x40, 0x45, 7, 2, b'a', b'b']),
        (data(true), true, &[0x44, 0x40, 0x45, 7, b'a', b'b']),
        (data(true), false, &[0x45, 0x40, 0x45, 7, 2, b'a', b'b']),
        (
            Part::Reset {
                stream,
                code: ResetCode::TimedOut,
                sent: 9,
            },
            false,
            &[0x46, 0x40, 0x45, 3, 9],
        ),
        (
            Part::Credit { stream, until: 9 },
            false,
            &[0x47, 0x40, 0x45, 9],
        ),
        (Part::SessionCredit { until: 9 }, false, &[0x48, 9]),
        (
            Part::Reclass {
                stream,
                class: Class::Interactive,
            },
            false,
            &[0x49, 0x40, 0x45, 0],
        ),
        (
            Part::Reclass {
                stream,
                class: Class::DelayTolerant,
            },
            true,
            &[0x49, 0x40, 0x45, 3],
        ),
    ];
    for (part, last, bytes) in drawn {
        let mut segment = Vec::new();
        part.emit(last, &mut segment);
        assert_eq!(segment, bytes);
        assert_eq!(Parts::new(bytes).collect::<Vec<_>>(), [Ok(part)]);
    }
}

#[test]
fn what_nobody_writes_is_refused() {
    let frame = |bytes: &[u8]| Frames::new(bytes).last()?.err();
    let range = |field, value| Some(FrameError::Range { field, value });
    assert_eq!(frame(&[6, 3, 0]), range("code", 3));
    assert_eq!(frame(&[6, 0, 0x41, 1]), range("reason", 257));
    assert_eq!(frame(&[6, 0, 1, 0xff]), Some(FrameError::Text));
    assert_eq!(frame(&[10, 2, 0]), range("channel", 2));
    assert_eq!(frame(&[1, 0x10]), range("flags", 0x10));
    let head = [1, 0, 0, 0, 0, 0, 0, 0];
    let report = |rest: &[u8]| frame(&[&head, rest].concat());
    assert_eq!(report(&[0x40, 65]), range("ranges", 65));
    assert_eq!(report(&[0, 17]), range("gaps", 17));
    assert_eq!(
        report(&[1, 0, 0xff, 255, 255, 255, 255, 255, 255, 255]),
        range("range", MAX + 1)
    );
    assert_eq!(report(&[0, 1, 1, 0, 0, 0]), range("before", u64::MAX));
    for kind in [7, 8, 9, 11, 0x40, 0xff] {
        assert_eq!(frame(&[kind; 9]), Some(FrameError::Unknown(kind)));
    }
}

#[test]
fn parts_that_nobody_writes_are_refused() {
    let part = |bytes: &[u8]| Parts::new(bytes).last()?.err();
    let range = |field, value| Some(FrameError::Range { field, value });
    assert_eq!(part(&[0x40, 0, 4, 0]), range("class", 4));
    assert_eq!(part(&[0x40, 0, 0, 0x41, 1]), range("greeting", 257));
    assert_eq!(part(&[0x46, 0, 7]), range("code", 7));
    assert_eq!(part(&[0x49, 0, 9]), range("class", 9));
    let end = [0x42, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0];
    assert_eq!(part(&end), range("end", MAX + 1));
    assert_eq!(part(&end[..10]), None);
    for kind in (0..0x40).chain([0x41]).chain(0x4a..=0xff) {
        assert_eq!(part(&[kind; 9]), Some(FrameError::Unknown(kind)));
    }
}
