//! Minimal session: one message at a time, repeated until it is acknowledged.
//!
//! It shows that the simulator accepts a correct session, and finds each of the [faults](Bug) that
//! can be planted in it.

pub mod bug;
mod message;
mod receive;
mod send;
mod stream;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tunnel::{
    class::Class,
    session::{Event, LinkHint, Rate, SessionConfig, TooManyStreams},
    store::Store,
    wire::{ResetCode, StreamId},
};

use crate::side::{Address, News, Setup, Side, Streams};
use message::Message;
use stream::Stream;

/// Fault of a [`Reference`].
pub type Bug = u8;

/// Marks a datagram that acknowledges instead of carrying a message.
const ACK: u64 = 1 << 63;

/// Stop-and-wait session.
#[derive(Debug)]
pub struct Reference<const BUG: Bug> {
    config: SessionConfig,
    now: Duration,
    next_stream: StreamId,
    streams: BTreeMap<StreamId, Stream>,
    last_served: StreamId,
    control: VecDeque<Message>,
    /// Message in flight: its number, its content, and the number of transmissions.
    current: Option<(u64, Message, u32)>,
    next_number: u64,
    send_at: Duration,
    again_at: Duration,
    expected: u64,
    owes_ack: bool,
    events: VecDeque<Event>,
    unread: Vec<Vec<u8>>,
    received: u64,
}

impl<const BUG: Bug> Reference<BUG> {
    fn rate(&self) -> f64 {
        match self.config.rate {
            Rate::Dedicated(rate) | Rate::Stated(rate) => rate as f64,
            Rate::Auto => 1e6,
        }
    }

    fn time_of(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / self.rate())
    }

    /// Grants credit once it is worth a message: otherwise each byte would cost one.
    fn send_credit(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.allowed > stream.reported
            && 4 * (stream.allowed - stream.reported)
                >= stream.allowed.saturating_sub(stream.received)
        {
            let until = stream.allowed;
            stream.reported = until;
            self.control.push_back(Message::Credit { id, until });
        }
    }

    /// Ends a stream at once. Returns whether it existed.
    fn forget(&mut self, id: StreamId) -> bool {
        // Its bytes can no longer be read. The peer may have that message already, or gets this one
        // instead.
        if let Some((_, message @ Message::Data { .. }, _)) = &mut self.current
            && message.id() == id
        {
            *message = Message::Credit { id, until: 0 };
        }
        self.streams.remove(&id).is_some()
    }
}

impl<const BUG: Bug> Streams for Reference<BUG> {
    fn open(
        &mut self,
        class: Class,
        _: u32,
        stream_header: &[u8],
    ) -> Result<StreamId, TooManyStreams> {
        let open = self.streams.values().filter(|stream| stream.local).count();
        if open >= self.config.streams_max as usize && BUG != bug::KNOWS_NO_LIMIT {
            return Err(TooManyStreams);
        }
        let (id, stream_header) = (self.next_stream, stream_header.to_vec());
        self.next_stream += 2;
        self.streams
            .insert(id, Stream::new(true, self.config.stream_credit));
        self.control.push_back(Message::Open {
            id,
            class,
            stream_header,
        });
        Ok(id)
    }

    fn written(&mut self, stream: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.written = until;
        }
    }

    fn finish(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.finished = true;
        }
    }

    fn reset(&mut self, id: StreamId, code: ResetCode) {
        if self.forget(id) {
            self.control.push_back(Message::Reset { id, code });
        }
    }

    fn allow(&mut self, id: StreamId, until: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.allowed = until;
            self.send_credit(id);
        }
    }

    fn allow_session(&mut self, _: u64) {}

    fn set_class(&mut self, _: StreamId, _: Class) {}

    fn hint(&mut self, _: Duration, _: LinkHint) {}
}

impl<const BUG: Bug> Side for Reference<BUG> {
    type Streams = Self;

    fn new(setup: &Setup, now: Duration) -> Self {
        Self {
            next_stream: setup.end as u64,
            config: setup.session.clone(),
            now,
            streams: BTreeMap::new(),
            last_served: 0,
            control: VecDeque::new(),
            current: None,
            next_number: 0,
            send_at: now,
            again_at: now,
            expected: 0,
            owes_ack: false,
            events: VecDeque::new(),
            unread: Vec::new(),
            received: 0,
        }
    }

    fn streams(&mut self) -> Option<&mut Self> {
        Some(self)
    }

    fn handle_datagram(
        &mut self,
        now: Duration,
        _: Address,
        datagram: &mut [u8],
        store: &mut impl Store,
    ) -> Result<(), String> {
        self.now = now;
        let Some((number, packet)) = self.open_datagram(datagram) else {
            return Ok(());
        };
        self.received += 1;
        if BUG == bug::UNREAD_DATAGRAMS {
            self.unread.push(vec![0; 1 << 17]);
        }
        assert!(BUG != bug::PANICS || self.received < 20, "planted");
        if number & ACK != 0 {
            self.on_ack(number & !ACK);
            return Ok(());
        }
        self.owes_ack = number <= self.expected;
        if number == self.expected {
            self.expected += 1;
            let (message, bytes) = Message::parse(packet).ok_or("no message")?;
            self.on_message(message, bytes, store);
        }
        Ok(())
    }

    fn poll_datagram(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Option<Address>> {
        self.now = now;
        if now < self.send_at && BUG != bug::FLOODS {
            return None;
        }
        let start = out.len();
        self.poll(now, out, store)?;
        let paced = self.time_of(out.len() - start + self.config.overhead);
        self.send_at = now + paced;
        Some(None)
    }

    fn deadline(&mut self) -> Option<Duration> {
        match BUG {
            bug::SPINS if self.received > 10 => return Some(self.again_at),
            bug::CREEPS => return Some(self.now + Duration::from_nanos(1000)),
            bug::GIVES_UP if self.current.as_ref().is_some_and(|(_, _, n)| *n > 2) => return None,
            _ => {}
        }
        let wants = self.owes_ack || (self.current.is_none() && self.has_message());
        let again = self.current.is_some().then_some(self.again_at);
        let at = wants
            .then_some(self.send_at)
            .into_iter()
            .chain(again)
            .min()?;
        Some(at.max(self.send_at))
    }

    fn poll_event(&mut self) -> Option<News> {
        self.events.pop_front().map(News::Session)
    }
}
