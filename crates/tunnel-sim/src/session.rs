//! Session without an endpoint: does the endpoint's work for it, without keys.

use std::{fmt::Write, time::Duration};

use fec::wire::Header;
use trace::Trace;
use tunnel::{
    crypto::Window,
    ecn::Ecn,
    session::Session,
    store::Store,
    wire::{Frame, Frames, Part, Parts},
};

use crate::{
    sealed,
    side::{Address, News, Setup, Side},
};

/// Session, and the packet numbers that have arrived.
#[derive(Debug)]
pub struct Plain {
    session: Session,
    seen: Window,
}

impl Side for Plain {
    type Streams = Session;

    fn new(setup: &Setup, now: Duration) -> Self {
        Self {
            session: Session::new(setup.session.clone(), now),
            seen: Window::default(),
        }
    }

    fn streams(&mut self) -> Option<&mut Session> {
        Some(&mut self.session)
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
        self.seen.insert(number);
        let handled = self
            .session
            .handle_packet(now, number, packet, length, Ecn::NotEct, store);
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

    fn trace(&mut self) -> Option<&mut Trace> {
        Some(self.session.trace())
    }

    fn describe(datagram: &[u8]) -> String {
        match sealed::open(datagram) {
            None => "damaged".to_owned(),
            Some((number, packet)) => format!("#{number}{}", describe(packet)),
        }
    }
}

/// Describes the frames of a packet in words.
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
