//! Between a leg and a stream: bytes both ways, half-close, reset, until both directions are over.
//!
//! ```text
//!   from the leg    Open --FIN--> Finished            --RST--> Broken: its bytes are still delivered, then
//!                                                              the stream is reset
//!   to the leg      Open --the peer has finished--> Shut
//!                        --`close = "early"`--> Answered: what comes is dropped --the peer has finished--> Shut
//! ```

mod answering;
mod ending;
mod packing;
mod relaying;
#[cfg(test)]
mod renewals;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    rc::Rc,
    task::{Context, Poll},
};

use pep_core::{arena::Counters, relay::Side, stats::EndReason};
use pepd_relay::{
    flow::{FlowInfo, age},
    limits::Permit,
};
use tokio::time::Instant;
use tunnel::wire::ResetCode;

use super::{core::Shared, leg::Leg};
use answering::Answer;
use packing::Packing;

use crate::table::Key;
pub(super) use packing::PackingBuffers;

/// What comes from the leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Open,
    Finished,
    Broken,
}

/// What goes to the leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    Open,
    /// It was told that nothing more comes, whatever may.
    Answered,
    Shut,
    Broken,
}

/// A leg of this machine joined to a stream, or on the way to that. Dropped before its end, it resets both.
#[derive(Debug)]
pub(super) struct Joint {
    core: Shared,
    key: Key,
    leg: Option<Box<dyn Leg>>,
    ends: FlowInfo,
    /// Whose leg it is.
    side: Side,
    source: Source,
    sink: Sink,
    /// Where the stream's bytes are compressed.
    packing: Option<Box<Packing>>,
    /// The leg's end is not told before the leg has everything: asked again then.
    answer: Option<Answer>,
    failure: Option<io::Error>,
    began: Instant,
    /// What is told if this is dropped now, to people and to the peer.
    ending: EndReason,
    code: Option<ResetCode>,
    counted: [u64; 2],
    _permit: Permit,
}

impl Joint {
    /// One whose leg is the client's or the server's, by `side`.
    pub(super) fn new(core: Shared, key: Key, ends: FlowInfo, side: Side, permit: Permit) -> Self {
        Self {
            core,
            key,
            leg: None,
            ends,
            side,
            source: Source::Open,
            sink: Sink::Open,
            packing: None,
            answer: None,
            failure: None,
            began: Instant::now(),
            ending: EndReason::Drained,
            code: Some(ResetCode::Internal),
            counted: [0; 2],
            _permit: permit,
        }
    }

    /// It has begun then ([`born`](pepd_relay::flow::born)), in another process.
    pub(super) fn born(mut self, born: u64) -> Self {
        let now = Instant::now();
        self.began = now.checked_sub(age(born)).unwrap_or(now);
        self
    }

    /// The stream's bytes are compressed, both ways. To be said before any are moved.
    pub(super) fn compress(&mut self) {
        let packing_buffers = Rc::clone(&self.core.borrow().packing_buffers);
        self.packing = Some(Box::new(Packing::new(packing_buffers)));
    }

    /// Who talks to whom.
    pub(super) fn ends(&self) -> &FlowInfo {
        &self.ends
    }

    /// The leg, once there is one.
    pub(super) fn leg(&self) -> Option<&dyn Leg> {
        self.leg.as_deref()
    }

    /// Waits until the stream is reset, or gone with its session.
    pub(super) async fn reset(&self) {
        poll_fn(|cx| match self.core.borrow_mut().entry(self.key) {
            Some(entry) if entry.reset.is_none() => {
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Ready with the error when the leg has broken.
    pub(super) fn poll_leg_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let leg = self.leg.as_ref();
        leg.map_or(Poll::Pending, |leg| leg.poll_broken(cx))
    }

    /// The leg is there.
    pub(super) fn set_leg(&mut self, leg: Box<dyn Leg>) {
        self.leg = Some(leg);
    }

    /// The leg was a predecessor's, which may have given it all and the end (`shut`).
    pub(super) fn take_over(&mut self, leg: Box<dyn Leg>, shut: bool, counters: &Counters) {
        self.set_leg(leg);
        let shared = Rc::clone(&self.core);
        let core = &mut *shared.borrow_mut();
        let is_answered = core
            .entry(self.key)
            .is_some_and(|entry| entry.is_answered());
        if shut {
            self.sink = Sink::Shut;
        }
        if is_answered {
            self.take_over_answered(core);
        } else if counters.aborted {
            // Who was told of that, if anybody, has ended; to others the leg looks like one that has ended well.
            self.on_broken(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        if let Some(entry) = core.entry(self.key) {
            self.counted = entry.delivered();
        }
    }

    /// The flow ends before it was joined, or by what the relay found.
    pub(super) fn end(mut self, reason: EndReason, code: ResetCode, failure: Option<io::Error>) {
        self.ending = reason;
        self.code = Some(code);
        self.failure = failure.or(self.failure.take());
    }
}
