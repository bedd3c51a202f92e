//! A flow whose session is gone, and what its ends tell each other when the next one begins.
//!
//! ```text
//!   near                                                  far
//!   out [ head ... tail ]                                 inn [ head ... tail ]  what came ahead is dropped
//!      | -- OPEN: token, my inn.tail, up to where -------->  |  drops of out what is below that
//!      | <------------------ its inn.tail, up to where ----- |  and goes on from there
//!   drops of out what is below that, goes on from there
//! ```

use std::time::Duration;

use pep_core::stream_header::{Answer, Resume};
use tunnel::wire::{ResetCode, StreamId};

use super::{FlowBuffers, binding::StreamOpening};

/// What a session is to know of a stream with which a flow goes on, in the stream's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How far we may send.
    pub(crate) send: u64,
    /// How far the peer may.
    pub(crate) receive: u64,
    /// What there is to be sent.
    pub(crate) written: u64,
    /// Whether nothing follows that.
    pub(crate) finished: bool,
}

/// The two ends do not agree on what has arrived: bytes would be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer goes on at {at}, where we have {start} to {end} of what we send, and lack nothing below {lacking} of what it does"
)]
pub(crate) struct Disagreement {
    at: u64,
    start: u64,
    end: u64,
    lacking: u64,
}

impl FlowBuffers {
    /// The session is gone. What has come ahead of missing bytes is dropped, as it will come again; how many bytes are not
    /// [taken](Self::taken) any more.
    pub(super) fn suspend(&mut self) -> u64 {
        let ends = self.reset.is_some() || self.closed;
        if ends || !self.binding.suspend() {
            self.binding.release();
            return 0;
        }
        let before = self.taken();
        self.incoming.forget_ahead();
        let inward = self.outward.other();
        self.publish_chunks(inward);
        self.settle(inward);
        before - self.taken()
    }

    /// Whether it waits for a stream that goes on with it.
    pub(crate) fn is_suspended(&self) -> bool {
        self.binding.suspended.is_some() && self.reset.is_none() && !self.closed
    }

    /// A second has passed. What has waited for a stream for longer than it may be held is reset.
    pub(super) fn wait(&mut self) {
        let hold = self.policy().hold;
        if let Some(waited) = &mut self.binding.suspended {
            *waited += Duration::from_secs(1);
            if *waited > hold {
                self.end(ResetCode::Expired);
            }
        }
    }

    /// What its streams are opened with, at the near end.
    pub(crate) fn announce(&mut self, announcement: StreamOpening) {
        self.binding.token = announcement.stream_header.token;
        self.binding.announcement = Some(Box::new(announcement));
    }

    /// What was [announced](Self::announce).
    pub(crate) fn announcement(&self) -> Option<&StreamOpening> {
        self.binding.announcement.as_deref()
    }

    /// Where the flow goes on, as the near end says.
    pub(crate) fn resumption(&self) -> Resume {
        Resume {
            down: self.incoming.tail(),
            down_until: self.incoming.allowed(),
            up: self.outgoing.head(),
            perhaps_new: !self.binding.known,
        }
    }

    /// The near end has opened a stream with that [resumption](Self::resumption). How far the peer may send of it.
    pub(super) fn reopen(&mut self, stream: StreamId) -> u64 {
        self.binding.reopen(stream, self.incoming.tail());
        self.binding.receives_at(self.incoming.allowed())
    }

    /// The far end has answered: all that has come of it is here.
    pub(crate) fn on_answer(&mut self) -> Result<Option<Terms>, Disagreement> {
        let Some(answer) = self.binding.take_answer() else {
            return Ok(None);
        };
        if answer.up_until < answer.up {
            return Err(self.disagreement(answer.up));
        }
        let terms = self.go_on(answer.up, answer.up_until - answer.up)?;
        self.wake();
        Ok(Some(terms))
    }

    /// The near end has opened another stream, and says where it goes on. What it is answered is in what the stream begins with.
    pub(crate) fn rejoin(
        &mut self,
        stream: StreamId,
        resume: &Resume,
    ) -> Result<Terms, Disagreement> {
        if resume.up > self.incoming.tail() {
            return Err(self.disagreement(resume.down));
        }
        let answer = Answer {
            up: self.incoming.tail(),
            up_until: self.incoming.allowed(),
        };
        self.binding.rejoin(stream, answer, resume.down);
        let send = Answer::LEN as u64 + (resume.down_until - resume.down);
        let terms = self.go_on(resume.down, send)?;
        self.wake();
        Ok(terms)
    }

    /// The peer has all below this, and lacks what follows.
    fn go_on(&mut self, from: u64, send: u64) -> Result<Terms, Disagreement> {
        if from < self.outgoing.head() || from > self.outgoing.tail() {
            return Err(self.disagreement(from));
        }
        self.abandon(from);
        self.sent.set(from);
        let (written, finished) = self.known_so_far(from);
        let written = self.binding.sends_at(written);
        Ok(Terms {
            send,
            receive: self.binding.receives_at(self.incoming.allowed()),
            written: written.unwrap_or_default(),
            finished,
        })
    }

    fn disagreement(&self, at: u64) -> Disagreement {
        Disagreement {
            at,
            start: self.outgoing.head(),
            end: self.outgoing.tail(),
            lacking: self.incoming.tail(),
        }
    }

    /// Where the stream is when the flow is here, of what we send; none while it is not known what the peer has.
    pub(crate) fn written_to(&self, until: u64) -> Option<u64> {
        self.binding.sends_at(until)
    }

    /// The same of what the peer sends.
    pub(crate) fn allowed_to(&self, until: u64) -> u64 {
        self.binding.receives_at(until)
    }

    /// Both ends have everything: what our leg lacks of it is here.
    pub(super) fn close(&mut self) {
        self.abandon(u64::MAX);
        self.closed = true;
        self.binding.release();
        self.wake();
    }

    /// The peer has reset the stream. Where both directions are complete that is no more than the end, which it knows of
    /// and we did not.
    pub(super) fn on_reset(&mut self, code: ResetCode) {
        let complete = self.finished && self.source_finished;
        let arrived = match code {
            ResetCode::Ended => true,
            ResetCode::Restarted => self.outgoing.is_empty(),
            _ => false,
        };
        if complete && arrived {
            self.close();
        } else {
            self.end(code);
        }
    }

    /// The near end does not go on with it: it has ended there.
    pub(super) fn on_forgotten(&mut self) {
        // It does not end well before it has all that we were to send, and the end. What no session was told of it cannot have.
        if self.finished && self.source_finished && self.is_announced() {
            self.close();
        } else {
            self.end(ResetCode::Restarted);
        }
    }
}
