//! Cases for everything that docs/protocol.md draws: cut, repeated, too early, too late, and with
//! values at all limits.

use std::{net::SocketAddr, ops::Range};

use crate::{
    Side, Step,
    document::{self, Content, Field, Item, ReportField},
    packets,
    wire::{self, Writer},
};

/// One way to break a rule, or to use it to its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Row of the document, which draws or lists it: `part 0x40`, `terms rate`, `reset code 3`.
    pub row: String,
    /// Difference from correct use.
    pub name: String,
    /// Steps in a new session.
    pub steps: Vec<Step>,
    /// True if the session must end by a protocol error.
    pub ends: bool,
}

/// Values at limits of variable-length integers, and of what they count.
const VALUES: [u64; 10] = [
    0,
    1,
    63,
    64,
    16_383,
    1 << 30,
    (1 << 32) - 1,
    1 << 40,
    (1 << 62) - 2,
    (1 << 62) - 1,
];

/// Numbers of streams: of both sides, and beyond all limits.
const STREAMS: [u64; 8] = [0, 1, 2, 3, 40, 100_000, 1 << 32, (1 << 62) - 2];

/// Returns all cases of a rogue on that side.
pub fn all(side: Side) -> Vec<Case> {
    let first = side.stream(0);
    let mut cases = Vec::new();
    datagrams(&mut cases);
    terms(&mut cases);
    for item in document::frames() {
        frame(&item, first, &mut cases);
    }
    for item in document::parts() {
        part(&item, first, &mut cases);
    }
    unknown_types(first, &mut cases);
    report(&mut cases);
    for (of, row) in [("CLOSE", "close code"), ("RESET", "reset code")] {
        codes(of, row, first, &mut cases);
    }
    headers(first, &mut cases);
    packet_numbers(&mut cases);
    packets::cases(&mut cases);
    frame_counts(&mut cases);
    cases
}

/// The rows of the document, each as [`Case::row`].
pub fn rows() -> Vec<String> {
    let typed = |of: &'static str| move |item: Item| row(of, &item);
    let mut rows: Vec<String> = document::datagrams()
        .into_iter()
        .map(typed("datagram"))
        .collect();
    rows.extend(document::frames().into_iter().map(typed("frame")));
    rows.extend(document::parts().into_iter().map(typed("part")));
    rows.extend(
        document::terms()
            .0
            .iter()
            .map(|name| format!("terms {name}")),
    );
    let fields = document::report().into_iter();
    rows.extend(fields.map(|field| format!("report {}", field.name)));
    let codes = |of, row| {
        document::codes(of)
            .into_iter()
            .map(move |code| format!("{row} {code}"))
    };
    rows.extend(codes("CLOSE", "close code"));
    rows.extend(codes("RESET", "reset code"));
    let fields = document::header_fields().into_iter();
    rows.extend(fields.map(|field| format!("header {field}")));
    rows.extend(document::messages().iter().map(packets::row));
    rows
}

fn row(of: &str, item: &Item) -> String {
    format!("{of} {:#04x}", item.types.0)
}

fn case(row: &str, name: impl Into<String>, steps: Vec<Step>) -> Case {
    Case {
        row: row.to_owned(),
        name: name.into(),
        steps,
        ends: false,
    }
}

fn ending(case: Case) -> Case {
    Case { ends: true, ..case }
}

/// A stream that is open, and accepts all parts.
fn opened(stream: u64) -> Step {
    Step::Segment(wire::open(stream, &wire::probe_header(0)))
}

// --- datagrams and terms ---

fn datagrams(cases: &mut Vec<Case>) {
    for item in document::datagrams() {
        let row = row("datagram", &item);
        for fill in [0, 0x5a, 0xff] {
            let of_length = |length| {
                let mut bytes = vec![fill; length];
                bytes[0] = item.types.0;
                Step::Datagram(bytes)
            };
            let steps = (1..300).map(of_length).collect();
            cases.push(case(&row, format!("of all lengths, {fill:#04x}"), steps));
        }
    }
}

fn terms(cases: &mut Vec<Case>) {
    let (names, offsets) = document::terms();
    let length = offsets.last().copied().unwrap_or(0);
    for (name, field) in names.iter().zip(offsets.windows(2)) {
        let row = format!("terms {name}");
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut terms = vec![0; length];
            terms[0] = 2;
            terms[field[0]..field[1]].fill(byte);
            let name = format!("of bytes {byte:#04x}");
            cases.push(case(&row, name, vec![Step::Terms(terms)]));
        }
    }
}

// --- frames and parts ---

/// Returns a frame or part with ordinary values, but with `value` in the field at a place. It is
/// about the stream `first`.
fn written(item: &Item, first: u64, kind: u8, other: Option<(usize, u64)>, long: bool) -> Vec<u8> {
    let mut out = Writer::new(kind);
    for (place, field) in item.fields.iter().enumerate() {
        let value = other.filter(|(at, _)| *at == place).map(|(_, value)| value);
        let ordinary = if field.name == "stream" { first } else { 0 };
        out = match &field.content {
            Content::Fixed(bits) => out.fixed(*bits, value.unwrap_or(0)),
            Content::Number if long => out.long_number(value.unwrap_or(ordinary)),
            Content::Number => out.number(value.unwrap_or(ordinary)),
            Content::Length => out.number(value.unwrap_or(3)),
            Content::Bytes(_) => out.bytes(b"abc"),
            Content::Rest => out.bytes(b"rest"),
        };
    }
    out.0
}

/// Bytes before those that may be cut anywhere.
fn head(item: &Item, bytes: &[u8]) -> usize {
    let rest = item
        .fields
        .iter()
        .filter(|field| field.content == Content::Rest);
    bytes.len() - 4 * rest.count()
}

fn values(field: &Field) -> Vec<u64> {
    match field.content {
        Content::Fixed(bits) => {
            let last = u64::MAX >> (64 - bits.min(64));
            (0..12).chain([last / 2, last / 2 + 1, last]).collect()
        }
        Content::Number if field.name == "stream" => STREAMS.to_vec(),
        Content::Number | Content::Length => VALUES.to_vec(),
        Content::Bytes(_) | Content::Rest => Vec::new(),
    }
}

/// Cases that differ by values. `send` makes the steps that send the bytes.
fn differing(
    item: &Item,
    row: &str,
    first: u64,
    send: impl Fn(Vec<u8>) -> Vec<Step>,
    cases: &mut Vec<Case>,
) {
    let (lowest, last) = item.types;
    for kind in [lowest, lowest.midpoint(last), last] {
        let plain = written(item, first, kind, None, false);
        cases.push(case(row, "as drawn", send(plain)));
        cases.push(case(
            row,
            "with long numbers",
            send(written(item, first, kind, None, true)),
        ));
    }
    for (place, field) in item.fields.iter().enumerate() {
        for value in values(field) {
            let bytes = written(item, first, lowest, Some((place, value)), false);
            cases.push(case(row, format!("{} {value}", field.name), send(bytes)));
        }
        if let Content::Bytes(most) = field.content {
            for length in [most, most + 1] {
                let length_at = Some((place - 1, length as u64));
                let mut bytes = written(item, first, lowest, length_at, false);
                bytes.resize(bytes.len() - 3 + length, b'a');
                cases.push(case(
                    row,
                    format!("{} of {length} bytes", field.name),
                    send(bytes),
                ));
            }
        }
    }
}

fn frame(item: &Item, first: u64, cases: &mut Vec<Case>) {
    let row = row("frame", item);
    differing(item, &row, first, |bytes| vec![Step::Packet(bytes)], cases);
    let plain = written(item, first, item.types.0, None, false);
    let twice = vec![Step::Packet(plain.repeat(2)), Step::Again];
    cases.push(case(&row, "twice", twice));
    let flood = Step::Packet(plain.repeat(1000 / plain.len()));
    cases.push(case(&row, "many times", vec![flood]));
    // REPORT is drawn apart.
    let is_report = item.name == "REPORT";
    for length in 1..head(item, &plain) {
        let cut = vec![Step::Packet(plain[..length].to_vec())];
        cases.push(ending(case(&row, format!("cut to {length} bytes"), cut)));
    }
    if is_report {
        cases.push(ending(case(
            &row,
            "cut to 1 byte",
            vec![Step::Packet(vec![1])],
        )));
    }
}

fn part(item: &Item, first: u64, cases: &mut Vec<Case>) {
    let row = row("part", item);
    let opens = item.name.starts_with("OPEN");
    let after_opening = |bytes: Vec<u8>| match opens {
        true => vec![Step::Segment(bytes)],
        false => vec![opened(first), Step::Segment(bytes)],
    };
    differing(item, &row, first, after_opening, cases);
    let plain = written(item, first, item.types.0, None, false);
    let once = Step::Segment(plain.clone());
    cases.push(case(
        &row,
        "twice",
        [after_opening(plain.clone()), vec![once.clone()]].concat(),
    ));
    let again = vec![Step::SegmentAt(-1, plain.clone()), Step::Again];
    let again = [after_opening(plain.clone()), again].concat();
    cases.push(case(&row, "in a segment that is repeated", again));
    let early = vec![once.clone(), once.clone(), opened(first), once.clone()];
    cases.push(case(&row, "before its opening", early));
    let end = Step::Segment(wire::reset(first, 0));
    cases.push(case(
        &row,
        "after its end",
        vec![opened(first), end, once.clone(), once],
    ));
    let far = [1 << 20, 1 << 30, 1 << 31, -1, -(1 << 30)];
    let far = far
        .map(|away| Step::SegmentAt(away, plain.clone()))
        .to_vec();
    cases.push(case(&row, "in segments far away", far));
    for length in 1..head(item, &plain) {
        let cut = after_opening(plain[..length].to_vec());
        cases.push(ending(case(&row, format!("cut to {length} bytes"), cut)));
    }
}

/// Types of frames and parts that the document does not draw.
fn unknown_types(first: u64, cases: &mut Vec<Case>) {
    let drawn = |items: &[Item], kind: u8| {
        let of = |item: &Item| (item.types.0..=item.types.1).contains(&kind);
        items.iter().any(of)
    };
    let (frames, parts) = (document::frames(), document::parts());
    for kind in (0..=u8::MAX).filter(|kind| !drawn(&frames, *kind)) {
        let steps = vec![Step::Packet(vec![kind, 0, 0, 0, 0])];
        cases.push(ending(case(
            "frame of no type",
            format!("{kind:#04x}"),
            steps,
        )));
    }
    for kind in (0..=u8::MAX).filter(|kind| !drawn(&parts, *kind)) {
        let steps = vec![opened(first), Step::Segment(vec![kind, 0, 0, 0, 0])];
        cases.push(ending(case(
            "part of no type",
            format!("{kind:#04x}"),
            steps,
        )));
    }
}

// --- reports ---

/// Returns a report with this field at that value. `flags` decides which fields are present; lists
/// have `length` elements.
fn report_with(fields: &[ReportField], flags: u8, length: u64, other: (&str, u64)) -> Vec<u8> {
    let mut out = Writer::new(1);
    let value = |field: &ReportField| match field.name.as_str() {
        name if name == other.0 => other.1,
        name if fields.iter().any(|of| of.list.as_deref() == Some(name)) => length,
        _ => 0,
    };
    let mut at = 0;
    while let Some(field) = fields.get(at) {
        let list = field.list.as_ref();
        let len = fields[at..]
            .iter()
            .take_while(|other| other.list.as_ref() == list)
            .count();
        if list.is_some() {
            for _ in 0..length {
                for field in &fields[at..at + len] {
                    out = out.number(value(field));
                }
            }
            at += len;
            continue;
        }
        at += 1;
        if field.name == "flags" {
            let value = if other.0 == "flags" {
                other.1
            } else {
                flags.into()
            };
            out = out.fixed(8, value);
        } else if field.name == "content" {
            // As long as `length` says, which is 0 unless that is the other value.
        } else if field.flag == 0 || field.flag & flags != 0 {
            out = out.number(value(field));
        }
    }
    out.0
}

fn report(cases: &mut Vec<Case>) {
    let fields = document::report();
    let known = fields.iter().fold(0, |flags, field| flags | field.flag);
    let lists: Vec<_> = fields
        .iter()
        .filter_map(|field| field.list.as_ref())
        .collect();
    for field in &fields {
        let row = format!("report {}", field.name);
        let mut values = VALUES.to_vec();
        if field.name == "flags" {
            values = (0..8).map(|bit| 1 << bit).chain([0, 15, 0xff]).collect();
        } else if lists.contains(&&field.name) {
            values.extend([15, 16, 17, 60, 64, 65]);
        }
        for value in values {
            for (flags, length) in [(known, 0), (known, 3), (field.flag, 1)] {
                let bytes = report_with(&fields, flags, length, (&field.name, value));
                let name = format!("{value}, flags {flags:#04x}, lists of {length}");
                cases.push(case(&row, name, vec![Step::Packet(bytes)]));
            }
        }
    }
    let plain = report_with(&fields, known, 2, ("", 0));
    for length in 1..plain.len() {
        let cut = vec![Step::Packet(plain[..length].to_vec())];
        let case = case("report flags", format!("cut to {length} bytes"), cut);
        cases.push(ending(case));
    }
}

// --- codes ---

fn codes(of: &str, row: &str, first: u64, cases: &mut Vec<Case>) {
    let known = document::codes(of);
    let beyond = known.iter().max().map_or(0, |last| last + 1);
    for code in known.into_iter().chain([beyond, 127, 128, 255]) {
        let step = |reason: &[u8]| {
            if of == "CLOSE" {
                let frame = Writer::new(6)
                    .fixed(8, code.into())
                    .number(reason.len() as u64);
                return vec![Step::Packet(frame.bytes(reason).0)];
            }
            let part = Writer::new(0x46).number(first).fixed(8, code.into());
            let part = part.number(0);
            vec![
                opened(first),
                Step::Segment(part.0.clone()),
                Step::Segment(part.0),
            ]
        };
        let row = format!("{row} {code}");
        cases.push(case(&row, "as listed", step(b"")));
        cases.push(case(&row, "not UTF-8", step(&[0xff, 0xfe, 0xc0, 0x80])));
        cases.push(case(
            &row,
            "with control characters",
            step(b"\r\n\x1b[2Jpeer up\0"),
        ));
    }
}

// --- stream headers ---

fn address(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

/// Returns headers that have the field, and where it is in them.
fn with_field(name: &str) -> Vec<(Vec<u8>, Range<usize>)> {
    let flow = wire::flow_header(0, 7, Some([0; 3]), address(80), address(4000));
    let probe = wire::probe_header(0);
    let inventory = wire::inventory_header(0);
    let in_all = |range: Range<usize>| {
        let headers = [&flow, &probe, &inventory];
        headers
            .map(|header| (header.clone(), range.clone()))
            .to_vec()
    };
    let in_flow = |range: Range<usize>| vec![(flow.clone(), range)];
    match name {
        "version" => in_all(0..1),
        "flags" => in_all(1..2),
        "DSCP" => in_all(2..3),
        "name length" => in_all(3..4),
        "token" => in_flow(4..20),
        "down" => [in_flow(20..28), vec![(probe, 4..12)]].concat(),
        "down until" => in_flow(28..36),
        "up" => in_flow(36..44),
        "destination" => in_flow(44..48),
        "port" => [in_flow(48..50), in_flow(54..56)].concat(),
        "client" => in_flow(50..54),
        "name" => in_flow(56..flow.len()),
        "flows" => vec![(inventory, 4..12)],
        _ => Vec::new(),
    }
}

fn headers(first: u64, cases: &mut Vec<Case>) {
    for name in document::header_fields() {
        let row = format!("header {name}");
        for (header, range) in with_field(&name) {
            for byte in [
                0, 1, 2, 3, 4, 8, 9, 16, 24, 32, 63, 64, 96, 127, 128, 224, 255,
            ] {
                let mut header = header.clone();
                header[range.clone()].fill(byte);
                let steps = vec![Step::Segment(wire::open(first, &header))];
                cases.push(case(&row, format!("of bytes {byte:#04x}"), steps));
            }
            for length in [range.start, range.end - 1, range.end, header.len() + 1] {
                let mut header = header.clone();
                header.resize(length, 0);
                let steps = vec![Step::Segment(wire::open(first, &header))];
                cases.push(case(&row, format!("of a header of {length} bytes"), steps));
            }
        }
    }
}

// --- packet numbers ---

fn packet_numbers(cases: &mut Vec<Case>) {
    let probe = || vec![3];
    for away in [
        1,
        2047,
        2048,
        2049,
        1 << 20,
        1 << 30,
        (1 << 31) - 1,
        -1,
        -2049,
    ] {
        let jump = Step::PacketAt(away, probe());
        let steps = vec![jump, Step::Again, Step::Packet(probe()), Step::Report];
        cases.push(case("packet number", format!("{away} away"), steps));
    }
}

// --- frames of a packet ---

/// The smallest frames, as many as a packet may have and one more.
fn frame_counts(cases: &mut Vec<Case>) {
    const MAX: usize = 32;
    for (name, frames, count) in [
        ("PROBE", vec![3], 1),
        ("PROBE and PADDING", vec![3, 0], 2),
        ("later frames", vec![0x20, 0], 1),
    ] {
        let repeated = |times: usize| vec![Step::Packet(frames.repeat(times)), Step::Report];
        let most = MAX / count;
        cases.push(case("packet", format!("{MAX} of {name}"), repeated(most)));
        let more = case(
            "packet",
            format!("more than {MAX} of {name}"),
            repeated(most + 1),
        );
        cases.push(ending(more));
    }
    let padding = vec![Step::Packet(vec![0; 1100]), Step::Report];
    cases.push(case("packet", "of PADDING", padding));
}
