mod drawn;
mod properties;

use proptest::{collection::vec, prelude::*};

use super::{varint::MAX, *};
use crate::class::Class;

/// Generates numbers of any magnitude.
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

/// Generates positions and lengths whose sums stay in range.
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
        any::<u64>().prop_map(|token| Frame::PathChallenge { token }),
        any::<u64>().prop_map(|token| Frame::PathResponse { token }),
        (
            prop::sample::select(CloseCode::ALL.to_vec()),
            prop::sample::select(reasons.to_vec())
        )
            .prop_map(|(code, reason)| Frame::Close { code, reason }),
        (0x20..0x40u8, prop::sample::select(reasons.to_vec())).prop_map(|(kind, content)| {
            let content = content.as_bytes();
            Frame::Later { kind, content }
        }),
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
                stream_header: &self.bytes[..self.bytes.len().min(STREAM_HEADER_MAX)],
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
            7 => Part::Later {
                kind: 0x60 + self.stream as u8 % 0x20,
                content: &self.bytes,
            },
            8 => Part::Hold {
                stream,
                until: self.from,
            },
            _ => Part::Reclass { stream, class },
        }
    }
}

prop_compose! {
    fn part()(
        kind in 0..10u8,
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
