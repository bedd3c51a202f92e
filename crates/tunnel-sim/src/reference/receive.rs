//! Receiving side of the reference session.

use tunnel::{
    session::Event,
    store::Store,
    wire::{DATAGRAM_OVERHEAD, ResetCode, StreamId},
};

use super::{Bug, Reference, Stream, bug, message::Message};
use crate::sealed;

impl<const BUG: Bug> Reference<BUG> {
    /// Returns the number and the packet of a valid datagram.
    pub(super) fn open_datagram<'a>(&self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        if BUG != bug::BELIEVES_DAMAGED || datagram.len() <= DATAGRAM_OVERHEAD {
            return sealed::open(datagram);
        }
        let number = datagram
            .first_chunk()
            .map(|bytes| u64::from_be_bytes(*bytes));
        Some((number.unwrap_or(0), &datagram[DATAGRAM_OVERHEAD..]))
    }

    /// Completes the message in flight, if it has that number.
    pub(super) fn on_ack(&mut self, number: u64) {
        if let Some((_, message, _)) = self.current.take_if(|(current, ..)| *current == number) {
            self.on_acked(&message);
        }
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

    pub(super) fn on_message(&mut self, message: Message, bytes: &[u8], store: &mut impl Store) {
        match message {
            Message::Open {
                id,
                class,
                stream_header,
            } => {
                let stream = Stream::new(false, self.config.stream_credit);
                self.streams.insert(id, stream);
                self.events.push_back(Event::Opened {
                    stream: id,
                    class,
                    stream_header,
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

    pub(super) fn on_data(
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
        self.send_credit(id);
    }
}
