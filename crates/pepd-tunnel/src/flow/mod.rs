//! Relay between a leg and a stream: bytes in both directions, half-close and reset.
//!
//! ```text
//!   from the leg    Open --FIN--> Finished          --RST--> Broken: delivers the bytes before it,
//!                                                            then resets the stream
//!   to the leg      Open --the peer has finished--> Shut
//!                        --`close = "early"`--> Answered: drops bytes --the peer finished--> Shut
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
    sync::Arc,
    task::{Context, Poll},
};

use pep_core::{arena::Counters, parties::Party, relay::Side, stats::EndReason};
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

/// State of the direction from the leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Open,
    Finished,
    Broken,
}

/// State of the direction to the leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    Open,
    /// A FIN was sent early; later bytes are dropped.
    Answered,
    Shut,
    Broken,
}

/// A local leg joined to a stream, or about to be. Dropped before its end, it resets both.
#[derive(Debug)]
pub(super) struct Joint {
    core: Shared,
    key: Key,
    leg: Option<Box<dyn Leg>>,
    ends: FlowInfo,
    /// Side of the leg.
    side: Side,
    source: Source,
    sink: Sink,
    /// State of compression, for compressed streams.
    packing: Option<Box<Packing>>,
    /// Polling of acknowledgements while the leg's end is withheld from the peer.
    answer: Option<Answer>,
    failure: Option<io::Error>,
    began: Instant,
    /// Report and reset code if the value is dropped now.
    ending: EndReason,
    code: Option<ResetCode>,
    counted: [u64; 2],
    _permit: Permit,
}

impl Joint {
    /// Creates a value for a leg of the client or the server, by `side`.
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

    /// Sets the start of a flow that began in another process ([`born`](pepd_relay::flow::born)).
    pub(super) fn born(mut self, born: u64) -> Self {
        let now = Instant::now();
        self.began = now.checked_sub(age(born)).unwrap_or(now);
        self
    }

    /// Turns on compression in both directions. To be called before any bytes are moved.
    pub(super) fn compress(&mut self) {
        let packing_buffers = Rc::clone(&self.core.borrow().packing_buffers);
        self.packing = Some(Box::new(Packing::new(packing_buffers)));
    }

    /// Returns the flow's addresses.
    pub(super) fn ends(&self) -> &FlowInfo {
        &self.ends
    }

    /// Returns the leg, once there is one.
    pub(super) fn leg(&self) -> Option<&dyn Leg> {
        self.leg.as_deref()
    }

    /// Waits until the stream is reset, or has ended with its session.
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

    /// Ready with the error when the leg has failed.
    pub(super) fn poll_leg_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let leg = self.leg.as_ref();
        leg.map_or(Poll::Pending, |leg| leg.poll_broken(cx))
    }

    /// Sets the leg.
    pub(super) fn set_leg(&mut self, mut leg: Box<dyn Leg>) {
        let core = self.core.borrow();
        // A peer names its hosts as it likes.
        let party = match self.side {
            Side::Client => Party::host(self.ends.client.ip()),
            Side::Server => Party::Peer(core.peers.name(self.key.peer)),
        };
        let context = Arc::clone(&core.context);
        drop(core);
        leg.bound_receive(&context, &self.ends.site, self.side, party);
        self.leg = Some(leg);
    }

    /// Takes over a predecessor's leg, to which all bytes and the FIN may have been sent (`shut`).
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
            // The host, if notified of the reset, has ended; otherwise the leg would look like one
            // that ended in order.
            self.on_broken(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        if let Some(entry) = core.entry(self.key) {
            self.counted = entry.delivered();
        }
    }

    /// Ends the flow before it was joined, or for the reason that relaying found.
    pub(super) fn end(mut self, reason: EndReason, code: ResetCode, failure: Option<io::Error>) {
        self.ending = reason;
        self.code = Some(code);
        self.failure = failure.or(self.failure.take());
    }
}
