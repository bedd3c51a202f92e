//! The simplest session there is: one message at a time, again until it is acknowledged.
//!
//! It shows that the simulator has nothing against a session that does everything right, and finds each of the
//! [faults](Bug) that it can be made with.

mod message;

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

use crate::{
    sealed,
    side::{Address, News, Setup, Side},
};
use message::Message;

/// What can be wrong with a [`Reference`].
pub type Bug = u8;

/// Every fault by name.
#[expect(missing_docs, reason = "the names say it")]
pub mod bug {
    use super::Bug;

    pub const NONE: Bug = 0;
    pub const LOSES_BYTE: Bug = 1;
    pub const LOSES_CHUNK: Bug = 2;
    pub const DOUBLES_BYTE: Bug = 3;
    pub const SWAPS_BYTES: Bug = 4;
    pub const FINISHES_EARLY: Bug = 5;
    pub const NEVER_FINISHES: Bug = 6;
    pub const HIDES_RESET: Bug = 7;
    pub const INVENTS_CODE: Bug = 8;
    pub const GIVES_UP: Bug = 9;
    pub const LOSES_CREDIT: Bug = 10;
    pub const IGNORES_CREDIT: Bug = 11;
    pub const SPINS: Bug = 12;
    pub const CREEPS: Bug = 13;
    pub const HOARDS: Bug = 14;
    pub const FLOODS: Bug = 15;
    pub const ACKS_EARLY: Bug = 16;
    pub const READS_AGAIN: Bug = 17;
    pub const REPORTS_TWICE: Bug = 18;
    pub const KNOWS_NO_LIMIT: Bug = 19;
    pub const CLOSES_EARLY: Bug = 20;
    pub const BELIEVES_DAMAGED: Bug = 21;
    pub const PANICS: Bug = 22;
    pub const TOO_LONG: Bug = 23;
}

/// A stop-and-wait session.
#[derive(Debug)]
pub struct Reference<const BUG: Bug> {
    config: SessionConfig,
    now: Duration,
    next_stream: StreamId,
    streams: BTreeMap<StreamId, Stream>,
    last_served: StreamId,
    control: VecDeque<Message>,
    /// The message on its way: its number, its text, how often it was sent.
    current: Option<(u64, Message, u32)>,
    next_number: u64,
    send_at: Duration,
    again_at: Duration,
    expected: u64,
    owes_ack: bool,
    events: VecDeque<Event>,
    hoard: Vec<Vec<u8>>,
    received: u64,
}

#[derive(Debug)]
struct Stream {
    ours: bool,
    written: u64,
    finished: bool,
    sent: u64,
    sent_fin: bool,
    acked: u64,
    acked_fin: bool,
    may: u64,
    received: u64,
    received_fin: bool,
    allowed: u64,
    told: u64,
}

impl Stream {
    fn new(ours: bool, may: u64) -> Self {
        Self {
            ours,
            written: 0,
            finished: false,
            sent: 0,
            sent_fin: false,
            acked: 0,
            acked_fin: false,
            may,
            received: 0,
            received_fin: false,
            allowed: may,
            told: may,
        }
    }
}

impl<const BUG: Bug> Reference<BUG> {
    fn rate(&self) -> f64 {
        match self.config.rate {
            Rate::Stated(rate) => rate as f64,
            Rate::Auto => 1e6,
        }
    }

    fn time_of(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / self.rate())
    }

    fn next_message(&mut self) -> Option<Message> {
        self.control.pop_front().or_else(|| self.next_data())
    }

    fn next_data(&mut self) -> Option<Message> {
        let ready = |stream: &Stream| {
            let until = if BUG == bug::IGNORES_CREDIT {
                u64::MAX
            } else {
                stream.may
            };
            let until = until.min(stream.written);
            let fin = stream.finished && until == stream.written;
            (stream.sent < until || (fin && !stream.sent_fin)).then_some(until)
        };
        let after = self.streams.range(self.last_served + 1..);
        let all = after.chain(self.streams.range(..=self.last_served));
        let (id, until) = all.filter_map(|(id, s)| Some((*id, ready(s)?))).next()?;
        self.last_served = id;
        let most = self.config.packet_start - 64;
        let stream = self.streams.get_mut(&id)?;
        let from = stream.sent;
        stream.sent = until.min(from + most as u64);
        stream.sent_fin = stream.finished && stream.sent == stream.written;
        let length = stream.sent - from;
        Some(Message::Data {
            id,
            from,
            length,
            fin: stream.sent_fin,
        })
    }

    fn on_acked(&mut self, message: &Message) {
        let Message::Data {
            id,
            from,
            length,
            fin,
        } = *message
        else {
            return;
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.acked_fin |= fin;
        if length > 0 && BUG != bug::ACKS_EARLY {
            stream.acked = from + length;
            let until = stream.acked;
            self.events.push_back(Event::Acked { stream: id, until });
        }
        self.close_if_done(id);
    }

    fn close_if_done(&mut self, id: StreamId) {
        let done = self.streams.get(&id).is_some_and(|stream| {
            stream.received_fin && (stream.acked_fin || BUG == bug::CLOSES_EARLY)
        });
        if done {
            self.streams.remove(&id);
            self.events.push_back(Event::Closed { stream: id });
        }
    }

    /// Tells how much may come when that is worth a message: else there is one for every byte in the end.
    fn tell_credit(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.allowed > stream.told
            && 4 * (stream.allowed - stream.told) >= stream.allowed.saturating_sub(stream.received)
        {
            let until = stream.allowed;
            stream.told = until;
            self.control.push_back(Message::Credit { id, until });
        }
    }

    /// Ends a stream at once; says whether it was there.
    fn forget(&mut self, id: StreamId) -> bool {
        // Nothing is left to be read of it. The peer may have that message already, or get this one instead.
        if let Some((_, message @ Message::Data { .. }, _)) = &mut self.current
            && message.id() == id
        {
            *message = Message::Credit { id, until: 0 };
        }
        self.streams.remove(&id).is_some()
    }

    fn on_message(&mut self, message: Message, bytes: &[u8], store: &mut impl Store) {
        match message {
            Message::Open {
                id,
                class,
                greeting,
            } => {
                let stream = Stream::new(false, self.config.stream_credit);
                self.streams.insert(id, stream);
                self.events.push_back(Event::Opened {
                    stream: id,
                    class,
                    greeting,
                });
            }
            Message::Data { id, from, fin, .. } => self.on_data(id, from, bytes, fin, store),
            Message::Reset { id, code } => {
                let code = if BUG == bug::INVENTS_CODE {
                    ResetCode::Internal
                } else {
                    code
                };
                if self.forget(id) && BUG != bug::HIDES_RESET {
                    self.events.push_back(Event::Reset { stream: id, code });
                }
            }
            Message::Credit { id, until } => {
                let is_lost = BUG == bug::LOSES_CREDIT && self.received.is_multiple_of(3);
                if let Some(stream) = self.streams.get_mut(&id).filter(|_| !is_lost) {
                    stream.may = stream.may.max(until);
                }
            }
        }
    }

    fn on_data(
        &mut self,
        id: StreamId,
        from: u64,
        bytes: &[u8],
        fin: bool,
        store: &mut impl Store,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.received = from + bytes.len() as u64;
        stream.received_fin = fin || (BUG == bug::FINISHES_EARLY && from > 0);
        let (until, fin) = (stream.received, stream.received_fin);
        let rarely = self.received.is_multiple_of(5);
        let placed = match BUG {
            bug::LOSES_BYTE if rarely && !bytes.is_empty() => &bytes[..bytes.len() - 1],
            bug::LOSES_CHUNK if rarely => &[],
            _ => bytes,
        };
        if !placed.is_empty() {
            store.place(id, from, placed);
        }
        if !bytes.is_empty() {
            self.events.push_back(Event::Readable { stream: id, until });
            if BUG == bug::REPORTS_TWICE && rarely {
                self.events.push_back(Event::Readable { stream: id, until });
            }
        }
        if fin && BUG != bug::NEVER_FINISHES {
            self.events.push_back(Event::Finished { stream: id });
        }
        self.close_if_done(id);
        self.tell_credit(id);
    }

    /// The message on its way, with the bytes it speaks of.
    fn write(&mut self, out: &mut Vec<u8>, store: &impl Store) {
        let begin = sealed::begin(out);
        let Some((number, message, _)) = &self.current else {
            return;
        };
        message.emit(out);
        if let Message::Data {
            id, from, length, ..
        } = *message
        {
            let start = out.len();
            out.resize(start + length as usize, 0);
            let from = if BUG == bug::READS_AGAIN {
                from / 2
            } else {
                from
            };
            store.read(id, from, &mut out[start..]);
            let bytes = &mut out[start..];
            let rarely = number.is_multiple_of(5) && bytes.len() > 20;
            match BUG {
                bug::DOUBLES_BYTE if rarely => bytes.copy_within(10..11, 11),
                bug::SWAPS_BYTES if rarely => bytes.swap(10, 11),
                _ => {}
            }
        }
        if BUG == bug::TOO_LONG {
            out.resize(out.len() + 1500, 0);
        }
        sealed::seal(out, begin, *number);
    }
}

/// Marks a datagram that acknowledges instead of carrying a message.
const ACK: u64 = 1 << 63;

impl<const BUG: Bug> Side for Reference<BUG> {
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
            hoard: Vec::new(),
            received: 0,
        }
    }

    fn open(&mut self, class: Class, _: u32, greeting: &[u8]) -> Result<StreamId, TooManyStreams> {
        let open = self.streams.values().filter(|stream| stream.ours).count();
        if open >= self.config.streams_max as usize && BUG != bug::KNOWS_NO_LIMIT {
            return Err(TooManyStreams);
        }
        let (id, greeting) = (self.next_stream, greeting.to_vec());
        self.next_stream += 2;
        self.streams
            .insert(id, Stream::new(true, self.config.stream_credit));
        self.control.push_back(Message::Open {
            id,
            class,
            greeting,
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
            self.tell_credit(id);
        }
    }

    fn allow_session(&mut self, _: u64) {}

    fn set_class(&mut self, _: StreamId, _: Class) {}

    fn hint(&mut self, _: Duration, _: LinkHint) {}

    fn handle_datagram(
        &mut self,
        now: Duration,
        _: Address,
        datagram: &mut [u8],
        store: &mut impl Store,
    ) -> Result<(), String> {
        self.now = now;
        let opened = match BUG {
            bug::BELIEVES_DAMAGED if datagram.len() > sealed::SEAL => {
                let number = datagram
                    .first_chunk()
                    .map_or(0, |bytes| u64::from_be_bytes(*bytes));
                Some((number, &datagram[sealed::SEAL..]))
            }
            _ => sealed::open(datagram),
        };
        let Some((number, packet)) = opened else {
            return Ok(());
        };
        self.received += 1;
        if BUG == bug::HOARDS {
            self.hoard.push(vec![0; 1 << 17]);
        }
        assert!(BUG != bug::PANICS || self.received < 20, "planted");
        if number & ACK != 0 {
            if self
                .current
                .as_ref()
                .is_some_and(|(current, ..)| *current == number & !ACK)
                && let Some((_, message, _)) = self.current.take()
            {
                self.on_acked(&message);
            }
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
        if std::mem::take(&mut self.owes_ack) {
            let begin = sealed::begin(out);
            sealed::seal(out, begin, ACK | (self.expected - 1));
        } else {
            if self.current.is_none() {
                let message = self.next_message()?;
                if let Message::Data {
                    id, from, length, ..
                } = message
                    && BUG == bug::ACKS_EARLY
                    && length > 0
                {
                    self.events.push_back(Event::Acked {
                        stream: id,
                        until: from + length,
                    });
                }
                self.current = Some((self.next_number, message, 0));
                self.next_number += 1;
                self.again_at = now;
            }
            if now < self.again_at && BUG != bug::FLOODS {
                return None;
            }
            let (_, _, times) = self.current.as_mut()?;
            *times += 1;
            if BUG == bug::GIVES_UP && *times > 2 {
                return None;
            }
            if BUG == bug::FLOODS && times.is_multiple_of(100) {
                *times += 1;
                self.again_at = now + self.config.rtt;
                return None;
            }
            self.write(out, store);
            self.again_at = now + 2 * self.config.rtt + 4 * self.time_of(1500);
        }
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

impl<const BUG: Bug> Reference<BUG> {
    fn has_message(&self) -> bool {
        let ready = |s: &Stream| {
            s.sent < s.written.min(s.may) || (s.finished && !s.sent_fin && s.sent == s.written)
        };
        !self.control.is_empty() || self.streams.values().any(ready)
    }
}
