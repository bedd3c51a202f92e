//! A session without an endpoint: what the endpoint would do for it, without keys.

use std::{fmt::Write, time::Duration};

use fec::wire::Header;
use tunnel::{
    class::Class,
    session::{LinkHint, Session, TooManyStreams},
    store::Store,
    wire::{Frame, Frames, Part, Parts, ResetCode, StreamId},
};

use crate::{
    sealed,
    side::{Address, News, Setup, Side},
};

/// A session, and which packet numbers have arrived.
#[derive(Debug)]
pub struct Plain {
    session: Session,
    seen: Seen,
}

impl Side for Plain {
    fn new(setup: &Setup, now: Duration) -> Self {
        Self {
            session: Session::new(setup.session.clone(), now),
            seen: Seen::default(),
        }
    }

    fn open(
        &mut self,
        class: Class,
        site: u32,
        greeting: &[u8],
    ) -> Result<StreamId, TooManyStreams> {
        self.session.open(class, site, greeting)
    }

    fn written(&mut self, stream: StreamId, until: u64) {
        self.session.written(stream, until);
    }

    fn finish(&mut self, stream: StreamId) {
        self.session.finish(stream);
    }

    fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.session.reset(stream, code);
    }

    fn allow(&mut self, stream: StreamId, until: u64) {
        self.session.allow(stream, until);
    }

    fn allow_session(&mut self, until: u64) {
        self.session.allow_session(until);
    }

    fn set_class(&mut self, stream: StreamId, class: Class) {
        self.session.set_class(stream, class);
    }

    fn hint(&mut self, now: Duration, link: LinkHint) {
        self.session.hint(now, link);
    }

    fn handle_datagram(
        &mut self,
        now: Duration,
        _: Address,
        datagram: &mut [u8],
        store: &mut impl Store,
    ) -> Result<(), String> {
        let length = datagram.len();
        let Some((number, packet)) = sealed::open(datagram) else {
            return Ok(());
        };
        if !self.seen.is_new(number) {
            return Ok(());
        }
        let handled = self
            .session
            .handle_packet(now, number, packet, length, false, store);
        handled.map_err(|error| error.to_string())
    }

    fn poll_datagram(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Option<Address>> {
        let begin = sealed::begin(out);
        let Some(written) = self.session.poll_packet(now, out, store) else {
            out.truncate(begin);
            return None;
        };
        sealed::seal(out, begin, written.number);
        Some(None)
    }

    fn deadline(&mut self) -> Option<Duration> {
        self.session.deadline()
    }

    fn poll_event(&mut self) -> Option<News> {
        self.session.poll_event().map(News::Session)
    }

    fn describe(datagram: &[u8]) -> String {
        match sealed::open(datagram) {
            None => "damaged".to_owned(),
            Some((number, packet)) => format!("#{number}{}", describe(packet)),
        }
    }
}

/// The frames of a packet in words.
pub fn describe(packet: &[u8]) -> String {
    let mut text = String::new();
    for frame in Frames::new(packet) {
        let _ = match frame {
            Ok(Frame::Padding) => Ok(()),
            Ok(Frame::Segment { seq, parts }) => write!(text, " segment {seq}:{}", parts_of(parts)),
            Ok(Frame::Coded { channel, protected }) => {
                let data = match Header::parse(protected) {
                    Ok((Header::WindowData { .. }, content)) => describe(content),
                    other => format!("{:?}", other.map(|(header, _)| header)),
                };
                write!(text, " coded {channel} {data}")
            }
            other => write!(text, " {other:?}"),
        };
    }
    text
}

fn parts_of(parts: &[u8]) -> String {
    let mut text = String::new();
    for part in Parts::new(parts) {
        let _ = match part {
            Ok(Part::Data {
                stream,
                from,
                bytes,
                fin,
            }) => {
                let fin = if fin { " fin" } else { "" };
                write!(text, " {stream}@{from}+{}{fin}", bytes.len())
            }
            Ok(Part::Open { stream, .. }) => write!(text, " open {stream}"),
            other => write!(text, " {other:?}"),
        };
    }
    text
}

/// Packet numbers a window of which is remembered.
const WINDOW: u64 = 2048;

/// Which of the newest packet numbers have arrived.
#[derive(Debug)]
struct Seen {
    /// The first number that is higher than all that have arrived.
    next: u64,
    bits: [bool; WINDOW as usize],
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            next: 0,
            bits: [false; WINDOW as usize],
        }
    }
}

impl Seen {
    fn is_new(&mut self, number: u64) -> bool {
        if number + WINDOW < self.next {
            return false;
        }
        let first = self.next.max((number + 1).saturating_sub(WINDOW));
        for skipped in first..number {
            self.bits[(skipped % WINDOW) as usize] = false;
        }
        let bit = &mut self.bits[(number % WINDOW) as usize];
        let is_new = number >= self.next || !*bit;
        *bit = true;
        self.next = self.next.max(number + 1);
        is_new
    }
}
