//! Handling of parts from the peer.

use super::{Event, PacketError, Session, segment::Sent};
use crate::{
    class::Class,
    store::Store,
    stream::Opening,
    wire::{Data, Part, ResetCode, StreamId},
};

impl Session {
    pub(super) fn handle_part(
        &mut self,
        part: Part<'_>,
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
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
            } => self.handle_data(stream, from, bytes, fin, store)?,
            Part::Reset { stream, code, sent } => self.handle_reset(stream, code, sent)?,
            Part::Credit { stream, until } => {
                self.streams.on_credit(stream, until);
                self.update_readiness(stream);
            }
            Part::SessionCredit { until } => {
                for stream in self.streams.on_session_credit(until) {
                    self.update_readiness(stream);
                }
            }
            Part::Reclass { stream, class } => self.reclass(stream, class),
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
                self.heard_urgent |= class == Class::Interactive;
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
        stream: StreamId,
        from: u64,
        bytes: &[u8],
        fin: bool,
        store: &mut impl Store,
    ) -> Result<(), PacketError> {
        let data = Data::new(stream, from, bytes.len(), fin);
        let news = self.streams.on_data(data)?;
        self.allow_session(0);
        let Some(news) = news else {
            return Ok(());
        };
        self.heard_urgent |= self.streams.class(stream) == Some(Class::Interactive);
        self.heard_talk |= news.talks;
        if news.is_new {
            store.place(stream, from + news.known as u64, &bytes[news.known..]);
        }
        if news.tell {
            self.control.push_back(Sent::Credit(stream));
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
