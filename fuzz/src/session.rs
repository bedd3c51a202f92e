//! A session, and a peer with its key: packets that are well formed, and say what they like.
//! Whatever they say, nothing panics, no deadline stays due, and the session sends packets of the
//! agreed length only.

use std::time::Duration;

use arbitrary::Arbitrary;
use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{Event, LinkHint, Outages, Rate, Session, SessionConfig},
    store::Store,
    wire::{
        CloseCode, Frame, GAPS_MAX, Gap, Highest, Part, RANGES_MAX, Report, ResetCode, Span,
        StreamId,
    },
};

/// A session and what happens in it.
#[derive(Arbitrary, Debug)]
pub struct Case {
    initiator: bool,
    rate: u8,
    outages: u8,
    reliable: bool,
    /// Time when it begins.
    begin: Number,
    first: [Action; 12],
    actions: Vec<Action>,
}

/// Near a number of the session, or extreme.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Number {
    kind: u8,
    by: u16,
}

/// Largest number on the wire.
const MOST: u64 = (1 << 62) - 1;

impl Number {
    /// `near` is a number that makes sense.
    fn of(self, near: u64) -> u64 {
        let by = u64::from(self.by);
        match self.kind % 16 {
            0 => MOST - by % 4,
            1 => 1 << (by % 62),
            2 => (1 << (by % 62)) - 1,
            3 => by,
            4 => by % 4,
            5 => near.saturating_add(by),
            6 => near.saturating_add(1 << (by % 41)),
            7 => MOST / 2 + by,
            8..12 => near.saturating_sub(by % 64),
            _ => near.saturating_add(by % 3),
        }
        .min(MOST)
    }
}

#[derive(Arbitrary, Debug)]
enum Action {
    /// Time passes: milliseconds, seconds, days or years.
    Time {
        unit: u8,
        amount: u8,
    },
    /// A packet of the peer, under a later number.
    Packet {
        jump: Number,
        marked: bool,
        frames: Vec<Piece>,
        last: Last,
    },
    /// A packet many times, each with the next number.
    Many {
        count: u8,
        last: Last,
    },
    /// Calls by the owner of the session: this one, and those below.
    Open {
        class: u8,
        length: u8,
        bytes: u16,
    },
    Written {
        stream: u8,
        until: u16,
    },
    Finish {
        stream: u8,
    },
    Reset {
        stream: u8,
        code: u8,
    },
    Allow {
        stream: u8,
        until: Number,
    },
    AllowAll {
        until: Number,
    },
    Hint {
        link: u8,
    },
    Carrier {
        reliable: bool,
    },
}

/// A frame that others may follow.
#[derive(Arbitrary, Debug)]
enum Piece {
    Padding,
    Probe,
    MtuProbe(u16),
    MtuAck(u16),
    Report(Told),
}

/// The last frame of a packet.
#[derive(Arbitrary, Debug)]
enum Last {
    None,
    Close {
        code: u8,
        length: u16,
    },
    Segment {
        number: Number,
        parts: Vec<Bit>,
    },
    Coded {
        channel: u8,
        header: [u8; 9],
        bytes: Vec<u8>,
    },
    /// A segment in a data packet of FEC.
    Protected {
        id: u32,
        number: Number,
        parts: Vec<Bit>,
    },
    Packet {
        channel: u8,
        length: u16,
    },
    Bytes(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Told {
    highest: Option<[Number; 3]>,
    packets: Number,
    bytes: Number,
    marked: Number,
    below: Number,
    span: Option<[Number; 2]>,
    ranges: Vec<[u8; 2]>,
    gaps: Vec<[Number; 4]>,
    counts: [Number; 3],
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Bit {
    kind: u8,
    stream: Number,
    at: Number,
    code: u8,
    length: u8,
}

struct NoBytes;

impl Store for NoBytes {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

const PACKET_MAX: usize = 1400;
/// Packets that a session may send within one action: the longest pause leaves no debt.
const PACKETS: usize = 20_000;
const BYTES: &[u8] = &[7; 1200];

struct World {
    now: Duration,
    session: Session,
    /// Number of the peer's next packet, and of its next segment.
    next: u64,
    segment: u64,
    /// Packets that the session has sent.
    sent: u64,
    streams: Vec<StreamId>,
    over: bool,
}

fn config(case: &Case) -> SessionConfig {
    let stated = 10_000 << (case.rate / 4 % 16);
    SessionConfig {
        initiator: case.initiator,
        rate: match case.rate % 3 {
            0 => Rate::Auto,
            1 => Rate::Stated(stated),
            _ => Rate::Dedicated(stated),
        },
        return_rate: (case.rate & 64 != 0).then_some(stated),
        rtt: Duration::from_millis(20),
        packet_start: 1200,
        packet_max: PACKET_MAX,
        outages: match case.outages % 3 {
            0 => Outages::AtOnce,
            1 => Outages::After(Duration::from_secs(1)),
            _ => Outages::Never,
        },
        stream_credit: 1 << 16,
        session_credit: 1 << 20,
        streams_max: 10,
        packets: true,
        peer_packets: true,
        peer_rests: case.outages & 64 != 0,
        ..SessionConfig::default()
    }
}

/// Plays a case.
pub fn run(case: &Case) {
    // A clock of up to 2^40 s.
    let now = Duration::from_secs(case.begin.of(1) >> 22);
    let mut session = Session::new(config(case), now);
    session.set_reliable(case.reliable);
    let mut world = World {
        now,
        session,
        next: 0,
        segment: 0,
        sent: 0,
        streams: Vec::new(),
        over: false,
    };
    for action in case.first.iter().chain(&case.actions).take(100) {
        world.play(action);
        world.settle();
        if world.over {
            return;
        }
    }
}

impl World {
    fn play(&mut self, action: &Action) {
        match action {
            Action::Time { unit, amount } => {
                const UNITS: [u64; 5] = [1, 10, 1000, 86_400_000, 31_557_600_000];
                let unit = UNITS[usize::from(*unit) % UNITS.len()];
                self.now += Duration::from_millis(unit * u64::from(*amount));
            }
            Action::Packet {
                jump,
                marked,
                frames,
                last,
            } => {
                // No number comes twice.
                self.next = jump.of(self.next).max(self.next);
                let mut packet = Vec::new();
                for frame in frames.iter().take(8) {
                    self.frame(frame, &mut packet);
                }
                self.last(last, &mut packet);
                self.take(*marked, &packet);
            }
            Action::Many { count, last } => {
                for _ in 0..*count {
                    let mut packet = Vec::new();
                    self.last(last, &mut packet);
                    self.take(false, &packet);
                }
            }
            Action::Open {
                class,
                length,
                bytes,
            } => {
                let class = Class::ALL[usize::from(class % 4)];
                let header = &BYTES[..usize::from(*length)];
                if let Ok(stream) = self.session.open(class, 0, header) {
                    self.session.written(stream, (*bytes).into());
                    self.streams.push(stream);
                }
            }
            Action::Written { stream, until } => {
                self.on(*stream, |session, stream| {
                    session.written(stream, (*until).into())
                });
            }
            Action::Finish { stream } => self.on(*stream, Session::finish),
            Action::Reset { stream, code } => {
                let code = ResetCode::ALL[usize::from(*code) % ResetCode::ALL.len()];
                self.on(*stream, |session, stream| session.reset(stream, code));
            }
            Action::Allow { stream, until } => {
                let until = until.of(1 << 16);
                self.on(*stream, |session, stream| session.allow(stream, until));
            }
            Action::AllowAll { until } => self.session.allow_session(until.of(1 << 20)),
            Action::Hint { link } => {
                let hint = [LinkHint::Up, LinkHint::Down][usize::from(link % 2)];
                self.session.hint(self.now, hint);
            }
            Action::Carrier { reliable } => self.session.set_reliable(*reliable),
        }
    }

    fn on(&mut self, stream: u8, act: impl FnOnce(&mut Session, StreamId)) {
        if !self.streams.is_empty() {
            let stream = self.streams[usize::from(stream) % self.streams.len()];
            act(&mut self.session, stream);
        }
    }

    fn take(&mut self, marked: bool, packet: &[u8]) {
        let ecn = if marked { Ecn::Ce } else { Ecn::Ect0 };
        let (number, datagram) = (self.next, packet.len() + 25);
        self.next += 1;
        let handled =
            self.session
                .handle_packet(self.now, number, packet, datagram, ecn, &mut NoBytes);
        if handled.is_err() {
            self.session.close(CloseCode::Protocol, "broken rule");
            self.over = true;
        }
    }

    /// Sends what is due, and takes all events.
    fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < PACKETS, "it never stops sending");
            let mut out = Vec::new();
            let written = self.session.poll_packet(self.now, &mut out, &mut NoBytes);
            let Some(written) = written else {
                break;
            };
            assert!(out.len() <= PACKET_MAX, "{} bytes", out.len());
            self.sent = written.number + 1;
        }
        self.session.wait(self.now);
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Opened { stream, .. } => {
                    self.session.written(stream, 10_000);
                    self.streams.push(stream);
                }
                Event::Readable { stream, until } => self.session.allow(stream, until + 1000),
                Event::Finished { stream } => self.session.finish(stream),
                Event::Reset { stream, .. } | Event::Closed { stream } => {
                    self.streams.retain(|other| *other != stream);
                }
                Event::PeerClosed { .. } => self.over = true,
                _ => {}
            }
        }
    }

    fn frame(&self, piece: &Piece, packet: &mut Vec<u8>) {
        let frame = match piece {
            Piece::Padding => Frame::Padding,
            Piece::Probe => Frame::Probe,
            Piece::MtuProbe(id) => Frame::MtuProbe { id: *id },
            Piece::MtuAck(id) => Frame::MtuAck { id: *id % 8 },
            Piece::Report(told) => Frame::Report(self.report(told)),
        };
        frame.emit(packet);
    }

    fn report(&self, told: &Told) -> Report {
        let last = self.sent.saturating_sub(1);
        let micros = self.now.as_micros() as u64;
        let highest = told.highest.map(|[number, arrived, held]| Highest {
            number: number.of(last),
            arrived_us: arrived.of(micros),
            held_us: held.of(1000),
        });
        let below = told.below.of(last / 2);
        let mut end = below;
        let ranges = told
            .ranges
            .iter()
            .take(RANGES_MAX)
            .map(|[skipped, length]| {
                let start = end + 1 + u64::from(*skipped % 16);
                end = start + 1 + u64::from(*length % 16);
                start..end
            });
        let gaps = told.gaps.iter().take(GAPS_MAX).map(|gap| Gap {
            before: gap[0].of(last) / 2,
            missing: gap[1].of(2).max(1) / 2,
            // Differences of these must fit.
            before_us: gap[2].of(micros) / 4,
            after_us: gap[3].of(micros) / 4,
        });
        let span = told.span.map(|[from, extent]| {
            let from = from.of(below) / 2;
            let until = from + extent.of(64) / 2;
            Span { from, until }
        });
        Report {
            highest,
            packets: told.packets.of(self.sent),
            bytes: told.bytes.of(self.sent * 1000),
            marked: told.marked.of(0),
            below,
            span: span.unwrap_or_default(),
            ranges: ranges.collect(),
            gaps: gaps.collect(),
            counts: told.counts.map(|count| count.of(self.sent)),
            ..Report::default()
        }
    }

    fn last(&mut self, last: &Last, packet: &mut Vec<u8>) {
        match last {
            Last::None => {}
            Last::Bytes(bytes) => packet.extend_from_slice(bytes),
            Last::Close { code, length } => {
                // Others end the session as well.
                if code % 8 == 0 {
                    packet.extend_from_slice(&[6, code / 8]);
                    packet.extend_from_slice(&(length % 300 | 0x4000).to_be_bytes());
                    packet.resize(packet.len() + usize::from(length % 300), b'a');
                }
            }
            Last::Segment { number, parts } => self.segment(*number, parts, packet),
            Last::Coded {
                channel,
                header,
                bytes,
            } => {
                let kind = [0x10, 0x11, 0x20, 0x21][usize::from(header[0] % 4)];
                packet.extend_from_slice(&[0x0a, channel % 2, kind]);
                // Small numbers make packets of the same block or window.
                let small = header[0] & 0x80 != 0;
                packet.extend(
                    header[1..]
                        .iter()
                        .map(|byte| if small { byte % 2 } else { *byte }),
                );
                packet.extend_from_slice(bytes);
            }
            Last::Protected { id, number, parts } => {
                packet.extend_from_slice(&[0x0a, (id % 2) as u8, 0x20]);
                packet.extend_from_slice(&(id / 2 % 64).to_be_bytes());
                self.segment(*number, parts, packet);
            }
            Last::Packet { channel, length } => {
                packet.extend_from_slice(&[0x0b, *channel]);
                packet.resize(packet.len() + 1 + usize::from(length % 1300), 7);
            }
        }
    }

    fn segment(&mut self, number: Number, parts: &[Bit], packet: &mut Vec<u8>) {
        let number = number.of(self.segment);
        self.segment = self.segment.max(number + 1).min(self.segment + 100);
        let parts: Vec<_> = parts.iter().take(20).map(|bit| bit.part()).collect();
        let mut bytes = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            part.emit(at + 1 == parts.len(), &mut bytes);
        }
        Frame::Segment {
            seq: number as u32,
            parts: &bytes,
        }
        .emit(packet);
    }
}

impl Bit {
    fn part(self) -> Part<'static> {
        // Mostly streams that exist or may be opened.
        let stream = match self.stream.kind {
            0..16 => self.stream.of(0),
            _ => u64::from(self.stream.by % 24),
        };
        let at = self.at.of(1 << 14);
        let class = Class::ALL[usize::from(self.code % 4)];
        let code = ResetCode::ALL[usize::from(self.code) % ResetCode::ALL.len()];
        let bytes = &BYTES[..self.length.into()];
        match self.kind % 9 {
            0 | 1 => Part::Open {
                stream,
                class,
                stream_header: bytes,
            },
            2 | 3 => Part::Data {
                stream,
                from: at,
                bytes,
                fin: self.code & 16 != 0,
            },
            4 => Part::Reset {
                stream,
                code,
                sent: at,
            },
            5 => Part::Credit { stream, until: at },
            6 => Part::SessionCredit { until: at },
            7 => Part::Hold { stream, until: at },
            _ => Part::Reclass { stream, class },
        }
    }
}
