//! Parsers for the content of tunnel packets: frames, and parts of segments.

use tunnel::wire::{Frame, Frames, GAPS_MAX, Part, Parts, RANGES_MAX, Report};

/// Checks that nothing panics, that parsed frames survive writing and parsing unchanged at their
/// stated length, and that reports are bounded and ordered.
pub fn run(packet: &[u8]) {
    let frames: Vec<_> = Frames::new(packet).filter_map(Result::ok).collect();
    let mut written = Vec::new();
    for frame in &frames {
        let before = written.len();
        frame.emit(&mut written);
        assert_eq!(written.len() - before, frame.len());
        match frame {
            Frame::Report(report) => check_report(report),
            Frame::Segment { parts, .. } => check_parts(parts),
            _ => {}
        }
    }
    let read: Result<Vec<_>, _> = Frames::new(&written).collect();
    assert_eq!(read, Ok(frames));
    check_parts(packet);
}

fn check_parts(bytes: &[u8]) {
    let parts: Vec<Part<'_>> = Parts::new(bytes).filter_map(Result::ok).collect();
    let mut written = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let (before, last) = (written.len(), i + 1 == parts.len());
        part.emit(last, &mut written);
        assert_eq!(written.len() - before, part.len(last));
    }
    let read: Result<Vec<_>, _> = Parts::new(&written).collect();
    assert_eq!(read, Ok(parts));
}

fn check_report(report: &Report) {
    let ranges = &report.ranges;
    assert!(ranges.len() <= RANGES_MAX && report.gaps.len() <= GAPS_MAX);
    assert!(ranges.iter().all(|range| range.start < range.end));
    assert!(
        ranges
            .first()
            .is_none_or(|range| range.start >= report.below)
    );
    assert!(ranges.is_sorted_by(|one, next| one.end < next.start));
    assert!(report.span.from <= report.span.until);
    let mut short = report.clone();
    let room = report.len() / 2;
    assert_eq!(short.shorten(room), short.len() < room);
}
