//! Properties: written values are read back, invalid ones are rejected, for any input.

use super::*;

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
        last in 0..4u8,
    ) {
        match last {
            0 => frames.push(Frame::Segment { seq, parts: &fill }),
            1 => frames.push(Frame::Coded { channel: seq as u8 % CHANNELS, protected: &fill }),
            2 if !fill.is_empty() => frames.push(Frame::Packet {
                channel: seq as u8 % PACKET_CHANNELS,
                marked: seq > u32::MAX / 2,
                message: &fill,
            }),
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
        let header = |len, last| Data::new(stream, from, len, true).header_len(last);
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
        kind in prop_oneof![Just(1u8), 0..12u8, 0x20..0x40u8],
        rest in vec(prop_oneof![Just(0u8), 0..4u8, 0x40..0x4bu8, 0x60..0x80u8, any::<u8>()], 0..80),
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

    /// Additions of later versions to a packet or report are skipped, and the rest is read.
    #[test]
    fn what_a_later_version_adds_is_skipped(
        frames in vec(frame(), 0..4),
        report in report(),
        content in vec(any::<u8>(), 0..70),
    ) {
        let mut extended = Vec::new();
        Frame::Report(report.clone()).emit(&mut extended);
        extended[1] |= 0x80;
        varint::emit(content.len() as u64, &mut extended);
        extended.extend_from_slice(&content);
        let packet = [extended.clone(), emitted(&frames)].concat();
        let read: Result<Vec<_>, _> = Frames::new(&packet).collect();
        prop_assert_eq!(read, Ok([vec![Frame::Report(report)], frames].concat()));
        for end in 1..extended.len() {
            let read: Vec<_> = Frames::new(&extended[..end]).collect();
            prop_assert_eq!(read, [Err(FrameError::Short)]);
        }
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
