//! Two ends that open, write, read and reset at random, each compared with a model that counts byte
//! by byte.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{class::Class, wire::Data};

#[derive(Clone, Copy, Debug)]
enum Message {
    Open(StreamId),
    Data(Data),
    Acked(Data),
    Credit(StreamId, u64),
    SessionCredit(u64),
    Reset(StreamId, u64),
}

impl Message {
    fn stream(&self) -> Option<StreamId> {
        match *self {
            Self::Data(data) | Self::Acked(data) => Some(data.stream),
            Self::Credit(stream, _) | Self::Reset(stream, _) => Some(stream),
            Self::Open(_) | Self::SessionCredit(_) => None,
        }
    }
}

/// Naive byte-by-byte model of a stream at one end.
#[derive(Debug, Default)]
struct Model {
    written: u64,
    finished: bool,
    read: u64,
    received: Vec<bool>,
    end: Option<u64>,
    was_reset: bool,
}

impl Model {
    fn readable(&self) -> u64 {
        self.received.iter().take_while(|there| **there).count() as u64
    }

    /// Takes data; returns true if something was new.
    fn take(&mut self, data: Data) -> bool {
        let end = data.end() as usize;
        self.received.resize(self.received.len().max(end), false);
        let bytes = &mut self.received[data.from as usize..end];
        let is_new = bytes.contains(&false);
        bytes.fill(true);
        self.end = self.end.or(data.fin.then_some(end as u64));
        is_new
    }

    fn is_complete(&self) -> bool {
        self.end == Some(self.readable())
    }
}

struct Side {
    streams: Streams,
    models: BTreeMap<StreamId, Model>,
    read: u64,
    out: Vec<Message>,
}

impl Side {
    fn new(initiator: bool) -> Self {
        Self {
            streams: Streams::new(initiator, STREAM_CREDIT, STREAMS_MAX, SESSION_CREDIT),
            models: BTreeMap::new(),
            read: 0,
            out: Vec::new(),
        }
    }

    fn pick(&self, by: usize) -> Option<StreamId> {
        let open: Vec<_> = self
            .models
            .keys()
            .filter(|id| self.streams.contains(**id))
            .collect();
        (!open.is_empty()).then(|| *open[by % open.len()])
    }

    fn open(&mut self) {
        if let Some(stream) = self.streams.open(Class::Bulk) {
            self.models.insert(stream, Model::default());
            self.streams.announced(stream);
            self.out.push(Message::Open(stream));
        }
    }

    fn write(&mut self, stream: StreamId, bytes: u64, finish: bool) {
        let model = self.models.get_mut(&stream).unwrap();
        if !model.finished {
            model.written += bytes;
            model.finished = finish;
            self.streams.written(stream, model.written);
        }
        if finish {
            self.streams.finish(stream);
        }
    }

    fn send(&mut self, stream: StreamId, max: usize) -> bool {
        let Some(unsent) = self.streams.unsent(stream) else {
            return false;
        };
        let len = unsent.len.min(max);
        let fin = unsent.fin && len == unsent.len;
        let data = Data::new(stream, unsent.from, len, fin);
        self.streams.on_sent(data);
        self.out.push(Message::Data(data));
        true
    }

    /// Reads, and allows as much more.
    fn read(&mut self, stream: StreamId, bytes: u64) {
        let model = self.models.get_mut(&stream).unwrap();
        let read = model.readable().min(model.read + bytes);
        self.read += read - model.read;
        model.read = read;
        if self.streams.allow(stream, read + STREAM_CREDIT) {
            self.tell(stream);
        }
    }

    fn tell(&mut self, stream: StreamId) {
        let until = self.streams.allowed(stream).unwrap();
        self.out.push(Message::Credit(stream, until));
    }

    fn reset(&mut self, stream: StreamId) {
        if let Some(sent) = self.streams.reset(stream) {
            self.on_gone(stream, sent);
        }
    }

    fn on_gone(&mut self, stream: StreamId, sent: u64) {
        self.models.get_mut(&stream).unwrap().was_reset = true;
        self.out.push(Message::Reset(stream, sent));
    }

    /// Takes a message unless it is too early for it.
    fn handle(&mut self, message: Message) -> bool {
        let early = |stream| self.streams.may_be_opened(stream).unwrap();
        if message.stream().is_some_and(early) {
            return false;
        }
        match message {
            Message::Open(stream) => self.on_open(stream),
            Message::Data(data) => self.on_data(data),
            Message::Acked(data) => {
                self.streams.on_acked(data);
            }
            Message::Credit(stream, until) => self.streams.on_credit(stream, until),
            Message::SessionCredit(until) => {
                self.streams.on_session_credit(until);
            }
            Message::Reset(stream, sent) => {
                if let Some(sent) = self.streams.on_reset(stream, sent).unwrap() {
                    self.on_gone(stream, sent);
                }
            }
        }
        self.close_what_is_over();
        true
    }

    fn on_open(&mut self, stream: StreamId) {
        match self.streams.open_by_peer(stream, Class::Bulk).unwrap() {
            Opening::New => assert!(self.models.insert(stream, Model::default()).is_none()),
            Opening::Known => assert!(self.models.contains_key(&stream)),
            Opening::TooMany => self.out.push(Message::Reset(stream, 0)),
        }
    }

    fn on_data(&mut self, data: Data) {
        let stream = data.stream;
        let was_there = self.streams.contains(stream);
        let news = self.streams.on_data(data).unwrap();
        assert_eq!(news.is_some(), was_there);
        self.out.push(Message::Acked(data));
        if let Some(news) = news {
            let model = self.models.get_mut(&stream).unwrap();
            let (before, was_complete) = (model.readable(), model.is_complete());
            let known = before.saturating_sub(data.from).min(data.len as u64);
            assert_eq!(news.known as u64, known);
            let is_new = model.take(data);
            let readable = Some(model.readable()).filter(|readable| *readable > before);
            let finished = model.is_complete() && !was_complete;
            assert_eq!(
                (news.is_new, news.readable, news.finished),
                (is_new, readable, finished)
            );
            if news.tell {
                self.tell(stream);
            }
        }
        self.allow_session();
    }

    /// Bytes of streams that were reset count as read.
    fn allow_session(&mut self) {
        let lost: u64 = self.streams.session.received - self.readable();
        if self
            .streams
            .allow_session(self.read + lost + SESSION_CREDIT)
        {
            let until = self.streams.session_allowed();
            self.out.push(Message::SessionCredit(until));
        }
    }

    /// Returns the received bytes of existing streams.
    fn readable(&self) -> u64 {
        let models = self
            .models
            .iter()
            .filter(|(id, _)| self.streams.contains(**id));
        let held = models.map(|(_, model)| model.received.len() as u64 - model.read);
        held.sum::<u64>() + self.read
    }

    fn close_what_is_over(&mut self) {
        for stream in self.models.keys().copied().collect::<Vec<_>>() {
            if self.streams.is_over(stream) {
                let model = &self.models[&stream];
                assert!(model.is_complete() && model.finished);
                assert!(self.streams.remove(stream));
                assert!(!self.streams.remove(stream));
            }
        }
    }
}

/// Two sides, and messages in flight to each. Nothing is lost for ever, as segments are
/// retransmitted until they arrive.
struct World {
    sides: [Side; 2],
    wire: Vec<(usize, Message)>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    Write(u64),
    Finish,
    Send(usize),
    Read(u64),
    Reset,
    /// Index of the message, and whether it is duplicated.
    Deliver(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Open),
        6 => (1..300u64).prop_map(Step::Write),
        2 => Just(Step::Finish),
        12 => (1..60usize).prop_map(Step::Send),
        6 => (1..150u64).prop_map(Step::Read),
        1 => Just(Step::Reset),
        20 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(which, again)| Step::Deliver(which, again)),
    ]
}

impl World {
    fn new() -> Self {
        let sides = [Side::new(true), Side::new(false)];
        let wire = Vec::new();
        Self { sides, wire }
    }

    fn collect(&mut self) {
        for (from, side) in self.sides.iter_mut().enumerate() {
            self.wire
                .extend(side.out.drain(..).map(|message| (1 - from, message)));
        }
    }

    fn apply(&mut self, at: usize, which: usize, step: Step) {
        let side = &mut self.sides[at];
        let stream = side.pick(which);
        match (step, stream) {
            (Step::Open, _) => side.open(),
            (Step::Write(bytes), Some(stream)) => side.write(stream, bytes, false),
            (Step::Finish, Some(stream)) => side.write(stream, 0, true),
            (Step::Send(max), Some(stream)) => {
                side.send(stream, max);
            }
            (Step::Read(bytes), Some(stream)) => {
                side.read(stream, bytes);
                side.allow_session();
            }
            (Step::Reset, Some(stream)) => side.reset(stream),
            (Step::Deliver(which, again), _) if !self.wire.is_empty() => {
                self.deliver(which % self.wire.len(), again);
            }
            _ => {}
        }
        self.collect();
    }

    fn deliver(&mut self, which: usize, again: bool) {
        let (to, message) = self.wire[which];
        if self.sides[to].handle(message) && !again {
            self.wire.swap_remove(which);
        }
    }

    /// Ends all streams: everything arrives, all is read.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            for side in &mut self.sides {
                for stream in side.models.keys().copied().collect::<Vec<_>>() {
                    if side.streams.contains(stream) {
                        side.write(stream, 0, true);
                        side.read(stream, u64::MAX >> 2);
                        while side.send(stream, 50) {}
                    }
                }
                side.allow_session();
            }
            self.collect();
            if self.wire.is_empty() {
                return;
            }
            for (to, message) in std::mem::take(&mut self.wire) {
                if !self.sides[to].handle(message) {
                    self.wire.push((to, message));
                }
            }
            self.collect();
        }
        panic!("no end");
    }

    fn check_settled(&self) {
        for (at, side) in self.sides.iter().enumerate() {
            let peer = &self.sides[1 - at];
            assert!(side.streams.is_empty() && side.streams.resetting.is_empty());
            assert_eq!(side.streams.count, [0, 0]);
            assert_eq!(side.streams.session.sent, peer.streams.session.received);
            for (stream, model) in &side.models {
                let Some(other) = peer.models.get(stream).filter(|_| !model.was_reset) else {
                    continue;
                };
                assert_eq!(model.readable(), other.written, "stream {stream}");
                assert!(model.is_complete());
            }
        }
    }
}

proptest! {
    #[test]
    fn streams_carry_all_bytes_whatever_the_order(
        steps in prop::collection::vec((0..2usize, 0..8usize, step()), 1..600),
    ) {
        let mut world = World::new();
        for (at, which, step) in steps {
            world.apply(at, which, step);
        }
        world.settle();
        world.check_settled();
    }
}
