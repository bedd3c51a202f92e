//! Handling of parts from the peer.

use super::{Event, PacketError, Session, segment::Sent};
use crate::{
    class::Class,
    store::Store,
    stream::Opening,
    wire::{Data, Part, ResetCode, StreamId},
};

impl Session {
    /// Handles a part. `is_whole` tells that it is data that left the peer no more to send of the
    /// stream.
    pub(super) fn handle_part(
        &mut self,
        part: Part<'_>,
        is_whole: bool,
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
        self.stats.parts_handled += 1;
        match part {
            Part::Open {
                stream,
                class,
                stream_header,
            } => self.handle_open(stream, class, stream_header)?,
            Part::Data {
                stream,
                from,
                bytes,
                fin,
            } => {
                let data = Data::new(stream, from, bytes.len(), fin);
                self.handle_data(data, bytes, is_whole, store)?;
            }
            Part::Reset { stream, code, sent } => self.handle_reset(stream, code, sent)?,
            Part::Credit { stream, until } => {
                self.streams.on_credit(stream, until);
                self.update_readiness(stream);
            }
            Part::Hold { stream, until } => {
                self.streams.on_hold(stream, until);
                self.update_readiness(stream);
            }
            Part::SessionCredit { until } => {
                self.streams.on_session_credit(until);
                self.wake_blocked();
            }
            Part::Reclass { stream, class } => self.reclass(stream, class),
            Part::Later { .. } => {}
        }
        Ok(())
    }

    fn handle_open(
        &mut self,
        stream: StreamId,
        class: Class,
        stream_header: &[u8],
    ) -> Result<(), PacketError> {
        match self.streams.open_by_peer(stream, class)? {
            Opening::New => {
                if class == Class::Interactive {
                    self.urgent_at = Some(self.arrived_at);
                }
                self.scheduler.insert(stream, class, 0);
                self.events.push_back(Event::Opened {
                    stream,
                    class,
                    stream_header: stream_header.to_vec(),
                });
            }
            Opening::TooMany => self
                .control
                .push_back(Sent::Reset(stream, ResetCode::Limit, 0)),
            Opening::Known => {}
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        data: Data,
        bytes: &[u8],
        is_whole: bool,
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
        let Data { stream, from, .. } = data;
        let news = self.streams.on_data(data)?;
        self.allow_session(0);
        let Some(news) = news else {
            return Ok(());
        };
        let now = self.arrived_at;
        if self.streams.class(stream) == Some(Class::Interactive) {
            self.urgent_at = Some(now);
        }
        if news.is_new {
            let is_steady = self.streams.receives_steadily(data, now, is_whole);
            self.steady[1].on_piece(now, stream, is_steady);
            store.place(stream, from + news.known as u64, &bytes[news.known..]);
        }
        if news.tell {
            self.queue_credit(stream);
        }
        if let Some(until) = news.readable {
            self.report_readable(stream, until);
        }
        if news.finished {
            self.events.push_back(Event::Finished { stream });
            self.close_if_over(stream);
        }
        Ok(())
    }

    /// Handles a reset by the peer. If both ends reset a stream at once, the second reset has no
    /// effect.
    fn handle_reset(
        &mut self,
        stream: StreamId,
        code: ResetCode,
        sent: u64,
    ) -> Result<(), PacketError> {
        if let Some(sent) = self.streams.on_reset(stream, sent)? {
            self.forget(stream);
            self.events.push_back(Event::Reset { stream, code });
            // Lets the peer count the bytes against the session's credit.
            self.control.push_back(Sent::Reset(stream, code, sent));
        }
        Ok(())
    }

    pub(super) fn close_if_over(&mut self, stream: StreamId) {
        if self.streams.is_over(stream) {
            // A peer that resets a stream knows it, even if its opening is not acknowledged.
            if self.openings.contains_key(&stream)
                && let Some(until) = self.streams.acked(stream)
            {
                self.report_acked(stream, until);
            }
            self.streams.remove(stream);
            self.forget(stream);
            self.events.push_back(Event::Closed { stream });
        }
    }
}
