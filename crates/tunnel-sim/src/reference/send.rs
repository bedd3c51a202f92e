//! Sending side of the reference session.

use std::time::Duration;

use tunnel::{session::Event, store::Store};

use super::{ACK, Bug, Reference, Stream, bug, message::Message};
use crate::sealed;

impl<const BUG: Bug> Reference<BUG> {
    /// Writes an acknowledgement, or the message in flight if it is due.
    pub(super) fn poll(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &impl Store,
    ) -> Option<()> {
        if std::mem::take(&mut self.owes_ack) {
            let begin = sealed::begin(out);
            sealed::seal(out, begin, ACK | (self.expected - 1));
            return Some(());
        }
        if self.current.is_none() {
            self.begin_message(now)?;
        }
        if now < self.again_at && BUG != bug::FLOODS {
            return None;
        }
        self.count_try(now)?;
        self.write(out, store);
        self.again_at = now + 2 * self.config.rtt + 4 * self.time_of(1500);
        Some(())
    }

    /// Makes the next message the one in flight, if there is one.
    fn begin_message(&mut self, now: Duration) -> Option<()> {
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
        Some(())
    }

    /// Counts a transmission; `None` if a planted fault prevents it.
    fn count_try(&mut self, now: Duration) -> Option<()> {
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
        Some(())
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

    /// Writes the message in flight, with its bytes.
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

    pub(super) fn has_message(&self) -> bool {
        let ready = |s: &Stream| {
            s.sent < s.written.min(s.may) || (s.finished && !s.sent_fin && s.sent == s.written)
        };
        !self.control.is_empty() || self.streams.values().any(ready)
    }
}
