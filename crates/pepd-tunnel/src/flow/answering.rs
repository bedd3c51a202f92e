//! Time of the answer to a client's FIN.
//!
//! A client that has sent its FIN and gets one takes it that the server has received everything. At
//! the server's end, pepd passes on the server's FIN only once the server's TCP has acknowledged
//! everything before the client's FIN. At the client's end, it passes on a FIN only once the peer
//! has all of the client's bytes. With `close = "early"` pepd answers at once while the link is
//! down, without that guarantee.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pep_core::{relay::Side, site::Close};
use tokio::time::{Sleep, sleep};

use super::{Joint, Sink, Source};
use crate::core::Core;

/// Bounds of the polling interval for acknowledgement of the last byte, of which the kernel does
/// not notify. It doubles each time.
const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_LAST: Duration = Duration::from_millis(500);

/// Timer of the next poll.
#[derive(Debug)]
pub(super) struct Answer {
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

impl Answer {
    fn new() -> Self {
        Self {
            timer: Box::pin(sleep(ASK_FIRST)),
            pause: ASK_FIRST,
        }
    }

    /// Waits, twice as long each time.
    fn poll(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(()) = self.timer.as_mut().poll(cx) {
            self.pause = (2 * self.pause).min(ASK_LAST);
            self.timer = Box::pin(sleep(self.pause));
        }
    }
}

impl Joint {
    /// Handles the end of the leg's bytes.
    pub(super) fn on_last_byte(&mut self, core: &mut Core, cx: &mut Context<'_>) {
        self.source = Source::Finished;
        self.answer = Some(Answer::new());
        self.report_end(core, cx);
    }

    /// Passes the leg's end on to the peer, unless it must wait.
    pub(super) fn report_end(&mut self, core: &mut Core, cx: &mut Context<'_>) {
        let Some(answer) = &mut self.answer else {
            return;
        };
        let has_tail = self.leg.as_ref().is_some_and(|leg| leg.has_tail(true));
        let entry = core.entry(self.key);
        let answers = self.side == Side::Server && entry.is_some_and(|entry| entry.finished);
        let lacks = match self.sink {
            Sink::Open => true,
            Sink::Shut => has_tail,
            Sink::Answered | Sink::Broken => false,
        };
        if answers && lacks {
            return answer.poll(cx);
        }
        if answers && self.is_leg_broken(cx) {
            return; // the host has not received everything
        }
        self.answer = None;
        core.finish(self.key);
    }

    fn is_leg_broken(&mut self, cx: &mut Context<'_>) -> bool {
        self.poll_broken(cx);
        self.sink == Sink::Broken
    }

    /// Returns whether a FIN to the leg would answer the client's before the peer has all bytes
    /// before it.
    pub(super) fn answers_too_soon(&self, acknowledged: bool) -> bool {
        self.side == Side::Client && self.source == Source::Finished && !acknowledged
    }

    /// Answers the client's FIN while the link is down, if the site is configured so.
    pub(super) fn answer_early(&mut self, core: &mut Core) {
        let wanted = self.side == Side::Client && self.ends.site.close == Close::Early;
        if !wanted || self.source != Source::Finished || self.sink != Sink::Open {
            return;
        }
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return;
        };
        if entry.is_link_down() && !entry.finished && self.is_delivered(entry) {
            entry.publish_answered();
            match leg.finish() {
                Ok(()) => {
                    leg.close_with_fin();
                    self.sink = Sink::Answered;
                }
                Err(err) => self.on_broken(err),
            }
        }
    }

    /// Takes over a flow whose client's FIN a predecessor has answered early, or was about to.
    pub(super) fn take_over_answered(&mut self, core: &mut Core) {
        self.source = Source::Finished;
        if self.sink == Sink::Open {
            self.sink = Sink::Answered;
            if let Some(leg) = &self.leg {
                // The FIN may have been sent before, or the client may be gone.
                if let Err(err) = leg.finish() {
                    tracing::debug!(error = %err, "client with an early FIN has closed");
                }
                leg.close_with_fin();
            }
        }
        core.finish(self.key);
    }

    /// Drops late bytes for a client that has been sent a FIN.
    pub(super) fn drop_late(&mut self, core: &mut Core) {
        if self.sink != Sink::Answered {
            return;
        }
        let mut dropped = 0;
        while let Some(entry) = core.entry(self.key) {
            let Some(late) = entry.send(|_, _, data| data.len()) else {
                if entry.finished {
                    entry.on_shut();
                    self.sink = Sink::Shut;
                }
                break;
            };
            let until = entry.on_sent(late);
            core.consumed(self.key, late, until);
            dropped += late;
        }
        if dropped > 0 {
            let counters = &core.context.counters;
            counters.update(|stats| stats.custody_late_bytes += dropped);
        }
    }
}
