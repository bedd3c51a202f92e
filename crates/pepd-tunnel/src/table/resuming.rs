//! Suspension of a flow whose session has ended, and negotiation of its resumption in the next
//! session.
//!
//! ```text
//!   near                                                  far
//!   out [ head ... tail ]                                 inn [ head ... tail ]  drops bytes ahead
//!      | -- OPEN: token, inn.tail, window ---------------->  |  drops `out` below that position
//!      | <------------------ its inn.tail, window ---------- |  and resumes from there
//!   drops `out` below that position, resumes from there
//! ```

use std::time::Duration;

use pep_core::stream_header::{Answer, POSITION_MAX, Resume};
use tunnel::wire::{ResetCode, StreamId};

use super::{FlowBuffers, binding::StreamOpening};

/// Parameters of a resumed stream for its session, in the stream's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Position up to which the local end may send.
    pub(crate) send: u64,
    /// Position up to which the peer may send.
    pub(crate) receive: u64,
    /// Position after the bytes to send.
    pub(crate) written: u64,
    /// The stream ends at `written`.
    pub(crate) finished: bool,
}

/// The two ends disagree on received bytes: resuming would lose some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer resumes at {at}; the local end has {start} to {end} to send, and all received bytes below {lacking}"
)]
pub(crate) struct Disagreement {
    at: u64,
    start: u64,
    end: u64,
    lacking: u64,
}

impl FlowBuffers {
    /// Suspends the flow when its session ends. Drops bytes ahead of gaps, which the peer
    /// retransmits. Returns how many bytes are not [taken](Self::taken) any more.
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

    /// Returns whether the flow waits for a stream that resumes it.
    pub(crate) fn is_suspended(&self) -> bool {
        self.binding.suspended.is_some() && self.reset.is_none() && !self.closed
    }

    /// Resets a flow that has waited for a stream for longer than its hold time; called every
    /// second.
    pub(super) fn wait(&mut self) {
        let hold = self.policy().hold;
        if let Some(waited) = &mut self.binding.suspended {
            *waited += Duration::from_secs(1);
            if *waited > hold {
                self.end(ResetCode::Expired);
            }
        }
    }

    /// Sets the parameters of the flow's streams, at the near end.
    pub(crate) fn announce(&mut self, announcement: StreamOpening) {
        self.binding.token = announcement.stream_header.token;
        self.binding.announcement = Some(Box::new(announcement));
    }

    /// Returns the parameters set by [`announce`](Self::announce).
    pub(crate) fn announcement(&self) -> Option<&StreamOpening> {
        self.binding.announcement.as_deref()
    }

    /// Returns the near end's resume parameters.
    pub(crate) fn resumption(&self) -> Resume {
        Resume {
            down: self.incoming.tail(),
            down_until: self.incoming.allowed(),
            up: self.outgoing.head(),
            perhaps_new: !self.binding.known,
        }
    }

    /// Binds a stream that the near end has opened with this [resumption](Self::resumption).
    /// Returns how far the peer may send.
    pub(super) fn reopen(&mut self, stream: StreamId) -> u64 {
        self.binding.reopen(stream, self.incoming.tail());
        self.binding.receives_at(self.incoming.allowed())
    }

    /// Handles the far end's complete answer.
    pub(crate) fn on_answer(&mut self) -> Result<Option<Terms>, Disagreement> {
        let Some(answer) = self.binding.take_answer() else {
            return Ok(None);
        };
        if answer.up_until < answer.up || answer.up_until > POSITION_MAX {
            return Err(self.disagreement(answer.up));
        }
        let terms = self.resume_at(answer.up, answer.up_until - answer.up)?;
        self.wake();
        Ok(Some(terms))
    }

    /// Binds a stream by which the near end resumes the flow. The answer becomes the beginning of
    /// the stream.
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
        let terms = self.resume_at(resume.down, send)?;
        self.wake();
        Ok(terms)
    }

    /// Resumes sending at `from`: the peer has everything below it. It cannot have bytes that no
    /// session knew; some of these may be on the disk only.
    fn resume_at(&mut self, from: u64, send: u64) -> Result<Terms, Disagreement> {
        if from < self.outgoing.head() || from > self.announced() {
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
            end: self.announced(),
            lacking: self.incoming.tail(),
        }
    }

    /// Converts a position of sent bytes to one of the stream; `None` while the peer's position is
    /// unknown.
    pub(crate) fn written_to(&self, until: u64) -> Option<u64> {
        self.binding.sends_at(until)
    }

    /// Converts a position of received bytes to one of the stream.
    pub(crate) fn allowed_to(&self, until: u64) -> u64 {
        self.binding.receives_at(until)
    }

    /// Closes the flow: both ends have everything, and the leg's remaining bytes are in memory.
    pub(super) fn close(&mut self) {
        self.abandon(u64::MAX);
        self.closed = true;
        self.binding.release();
        self.wake();
    }

    /// Handles a reset by the peer. If both directions are complete, and it may have everything, it
    /// is the regular end, which the peer has noticed first.
    pub(super) fn on_reset(&mut self, code: ResetCode) {
        let complete = self.finished && self.source_finished;
        let arrived = match code {
            ResetCode::Ended => self.is_announced(),
            ResetCode::Restarted => self.outgoing.is_empty(),
            _ => false,
        };
        if complete && arrived {
            self.close();
        } else {
            self.end(code);
        }
    }

    /// Handles a flow that the near end does not resume because it has ended there.
    pub(super) fn on_forgotten(&mut self) {
        // A flow ends in order only if the peer has all bytes and the end, as far as they were
        // announced to a session.
        if self.finished && self.source_finished && self.is_announced() {
            self.close();
        } else {
            self.end(ResetCode::Restarted);
        }
    }
}
