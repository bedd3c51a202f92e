//! Single frames and parts, byte by byte, and invalid ones.

use super::*;

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

#[test]
fn unknown_codes_of_a_close_tell_whether_flows_go_on() {
    for number in 0..=u8::MAX {
        let code = match number {
            0 => CloseCode::Shutdown,
            1 => CloseCode::Protocol,
            2 | 4..128 => CloseCode::Limit,
            3 | 128.. => CloseCode::Elsewhere,
        };
        let reason = "";
        let frame = Frame::Close { code, reason };
        assert_eq!(Frames::new(&[6, number, 0]).next(), Some(Ok(frame)));
    }
}

/// Compared with the drawings in docs/protocol.md, byte by byte.
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
    let drawn: [(Frame<'_>, &[u8]); 13] = [
        (Frame::Padding, &[0]),
        (Frame::Probe, &[3]),
        (Frame::MtuProbe { id: 0x0102 }, &[4, 1, 2]),
        (Frame::MtuAck { id: 0x0102 }, &[5, 1, 2]),
        (
            Frame::PathChallenge {
                token: 0x0102_0304_0506_0708,
            },
            &[7, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (
            Frame::PathResponse {
                token: 0x0102_0304_0506_0708,
            },
            &[8, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
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
            Frame::Packet {
                channel: 0x7f,
                marked: false,
                message: &[9],
            },
            &[11, 0x7f, 9],
        ),
        (
            Frame::Packet {
                channel: 2,
                marked: true,
                message: &[9, 8],
            },
            &[11, 0x82, 9, 8],
        ),
        (
            Frame::Later {
                kind: 0x3f,
                content: &[9, 8],
            },
            &[0x3f, 2, 9, 8],
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
    let drawn: [(Part<'_>, bool, &[u8]); 12] = [
        (
            Part::Open {
                stream,
                class: Class::Bulk,
                stream_header: b"hi",
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
            Part::Hold { stream, until: 9 },
            false,
            &[0x4a, 0x40, 0x45, 9],
        ),
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
        (
            Part::Later {
                kind: 0x60,
                content: &[9, 8],
            },
            false,
            &[0x60, 2, 9, 8],
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
fn invalid_frames_are_refused() {
    let frame = |bytes: &[u8]| Frames::new(bytes).last()?.err();
    let range = |field, value| Some(FrameError::Range { field, value });
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
    for short in [&[11][..], &[11, 0], &[7; 8], &[8; 8]] {
        assert_eq!(frame(short), Some(FrameError::Short));
    }
    assert_eq!(frame(&[0x20, 2, 0]), Some(FrameError::Short));
    for kind in [9, 12, 0x1f, 0x40, 0xff] {
        assert_eq!(frame(&[kind; 9]), Some(FrameError::Unknown(kind)));
    }
}

#[test]
fn invalid_parts_are_refused() {
    let part = |bytes: &[u8]| Parts::new(bytes).last()?.err();
    let range = |field, value| Some(FrameError::Range { field, value });
    assert_eq!(part(&[0x40, 0, 4, 0]), range("class", 4));
    assert_eq!(part(&[0x40, 0, 0, 0x41, 1]), range("stream header", 257));
    assert_eq!(part(&[0x46, 0, 9]), range("code", 9));
    assert_eq!(part(&[0x49, 0, 9]), range("class", 9));
    let end = [0x42, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0];
    assert_eq!(part(&end), range("end", MAX + 1));
    assert_eq!(part(&end[..10]), None);
    assert_eq!(part(&[0x7f, 2, 0]), Some(FrameError::Short));
    for kind in (0..0x40).chain([0x41]).chain(0x4b..0x60).chain(0x80..=0xff) {
        assert_eq!(part(&[kind; 9]), Some(FrameError::Unknown(kind)));
    }
}
