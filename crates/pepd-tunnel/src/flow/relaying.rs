//! Moving bytes between a leg and the rings of its stream.

use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    pin::pin,
    rc::Rc,
    task::{Context, Poll},
};

use pep_core::relay::{Ending, IdleEvent};
use pepd_relay::{
    flow::{
        SHORTAGE_RETRY, ending,
        idle::{self, Idle},
    },
    limits::Resource,
};
use tokio::time::sleep;
use tunnel::wire::ResetCode;

use super::{Joint, Sink, Source, ending::Over, packing::Packing};
use crate::{core::Core, table::FlowBuffers};

/// Maximum of one receive call: beyond it other flows wait too long.
const RECEIVE_MAX: u64 = 128 << 10;

/// Result of a step: whether it moved anything, or the resource that it lacked.
type Moved = Result<bool, Resource>;

/// Reasons for which relaying stops.
enum Stop {
    Over(Over),
    /// A temporary shortage: the step is retried.
    Short(Resource),
}

impl Joint {
    /// Relays until both directions are over.
    pub(super) async fn relay(&mut self) -> Over {
        let timer = pin!(idle::timer());
        let mut idle = Idle::new(self.ends.site.timeouts.idle, false, timer);
        loop {
            match poll_fn(|cx| self.poll_relay(&mut idle, cx)).await {
                Stop::Over(over) => return over,
                Stop::Short(resource) => {
                    self.core.borrow().context.admission.on_short(resource);
                    sleep(SHORTAGE_RETRY).await;
                }
            }
        }
    }

    fn poll_relay(&mut self, idle: &mut Idle<'_>, cx: &mut Context<'_>) -> Poll<Stop> {
        let moved = match self.poll_turn(cx) {
            Ok(moved) => moved,
            Err(resource) => return Poll::Ready(Stop::Short(resource)),
        };
        if moved {
            idle.on_activity();
        }
        if let Some(over) = self.over() {
            return Poll::Ready(Stop::Over(over));
        }
        if moved {
            cx.waker().wake_by_ref();
        }
        self.poll_idle(idle, cx).map(Stop::Over)
    }

    fn poll_idle(&mut self, idle: &mut Idle<'_>, cx: &mut Context<'_>) -> Poll<Over> {
        while let Poll::Ready(event) = idle.poll(cx) {
            self.count_bytes();
            match event {
                IdleEvent::Active | IdleEvent::Look => {}
                IdleEvent::Quiet => self.give_memory_back(),
                // `hold` bounds that.
                IdleEvent::Expired if self.is_in_custody() => idle.on_activity(),
                IdleEvent::Expired => return Poll::Ready(Over::Idle),
            }
        }
        Poll::Pending
    }

    /// Returns whether bytes wait until the link is up again.
    fn is_in_custody(&self) -> bool {
        let core = &mut *self.core.borrow_mut();
        let entry = core.entry(self.key);
        entry.is_some_and(|entry| entry.is_link_down() && !entry.is_acknowledged())
    }

    /// Receives and sends once each at most; then other flows run.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Moved {
        let core = Rc::clone(&self.core);
        let core = &mut *core.borrow_mut();
        if let Some(entry) = core.entry(self.key) {
            entry.waker = Some(cx.waker().clone());
            if entry.is_behind() {
                core.advance(self.key);
            }
        }
        let sent = self.poll_send(core, cx)?;
        self.shut_down_if_finished(core);
        let received = self.poll_receive(core, cx)?;
        self.report_end(core, cx);
        self.answer_early(core);
        self.drop_late(core);
        if self.is_blind(core) {
            self.poll_broken(cx);
        }
        Ok(sent || received)
    }

    /// Returns the end of the flow, if it has come.
    fn over(&self) -> Option<Over> {
        let core = &mut *self.core.borrow_mut();
        let Some(entry) = core.entry(self.key) else {
            return Some(Over::ByPeer(ResetCode::Internal));
        };
        if let Some(err) = self.packing.as_ref().and_then(|packing| packing.failure()) {
            return Some(Over::Malformed(err));
        }
        if let Some(loss) = entry.loss() {
            return Some(Over::Lost(loss));
        }
        if let Some(code) = entry.reset {
            // Bytes before the reset go to the leg first, as on a network.
            let owed =
                self.sink == Sink::Open && !self.is_delivered(entry) && code == ResetCode::Host;
            return (!owed).then_some(Over::ByPeer(code));
        }
        if !entry.is_acknowledged() || self.answer.is_some() && self.sink != Sink::Broken {
            return None;
        }
        match (self.source, self.sink) {
            // Until the peer has acknowledged the end, it may have to be repeated.
            (Source::Finished, Sink::Shut) => entry.closed.then_some(Over::Closed),
            (Source::Broken, _) | (Source::Finished, Sink::Broken) => Some(Over::ByHost),
            _ => None,
        }
    }

    fn poll_receive(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Moved {
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return Ok(false);
        };
        if self.source != Source::Open || entry.reset.is_some() {
            return Ok(false);
        }
        let space = match &self.packing {
            Some(_) => Packing::space(entry),
            None => entry.space(RECEIVE_MAX),
        };
        if space.is_empty() {
            return Ok(false); // until something is sent or acknowledged
        }
        let result = match &mut self.packing {
            Some(packing) => packing.receive(|room| leg.poll_read(cx, room), entry, &space),
            None => entry.receive(|slot, direction| leg.poll_receive(cx, slot, direction, &space)),
        };
        match result {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                if self.sink == Sink::Broken && !self.had_fin() {
                    self.source = Source::Broken;
                } else {
                    self.on_last_byte(core, cx);
                }
                Ok(true)
            }
            Poll::Ready(Ok(count)) => {
                let until = entry.on_received(count);
                if let Some(packing) = &mut self.packing {
                    packing.on_written(until);
                    entry.charge(packing.memory());
                }
                core.advance(self.key);
                Ok(true)
            }
            Poll::Ready(Err(err)) => {
                let moved = self.on_failure(cx, err);
                if self.sink == Sink::Broken {
                    self.source = Source::Broken;
                }
                moved
            }
        }
    }

    fn poll_send(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Moved {
        if self.packing.is_some() {
            return self.poll_send_unpacked(core, cx);
        }
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return Ok(false);
        };
        if self.sink != Sink::Open {
            return Ok(false);
        }
        let sent = entry.send(|slot, direction, data| leg.poll_send(cx, slot, direction, data));
        match sent {
            None | Some(Poll::Pending) => Ok(false),
            Some(Poll::Ready(Ok(count))) => {
                let until = entry.on_sent(count);
                core.consumed(self.key, count, until);
                Ok(true)
            }
            Some(Poll::Ready(Err(err))) => self.on_failure(cx, err),
        }
    }

    /// Decompresses and sends received bytes.
    fn poll_send_unpacked(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Moved {
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return Ok(false);
        };
        let packing = self.packing.as_mut().filter(|_| self.sink == Sink::Open);
        let Some(packing) = packing else {
            return Ok(false);
        };
        let (taken, became) = packing.unpack(entry);
        let until = (taken > 0).then(|| entry.on_sent(taken));
        if let Some((packed, plain)) = became {
            packing.pause(core.on_unpacked(self.key.peer, packed, plain));
        }
        let may_send = packing.is_pending() && packing.poll_pause(cx).is_ready();
        let sent = may_send.then(|| packing.send(|bytes| leg.poll_write(cx, bytes)));
        packing.settle();
        if let Some(entry) = core.entry(self.key) {
            entry.charge(packing.memory());
        }
        if let Some(until) = until {
            core.consumed(self.key, taken, until);
        }
        match sent {
            None | Some(Poll::Pending) => Ok(taken > 0),
            Some(Poll::Ready(Ok(_))) => Ok(true),
            Some(Poll::Ready(Err(err))) => self.on_failure(cx, err),
        }
    }

    /// Returns whether the leg has all bytes received from the peer so far.
    pub(super) fn is_delivered(&self, entry: &FlowBuffers) -> bool {
        let pending = self.packing.as_ref().map(|packing| packing.is_pending());
        entry.is_delivered() && pending != Some(true)
    }

    /// Retries a leg that fails for lack of memory. For other errors marks the leg as failed.
    fn on_failure(&mut self, cx: &mut Context<'_>, err: io::Error) -> Moved {
        if let Some(resource) = Resource::short(&err) {
            return Err(resource);
        }
        if err.kind() == ErrorKind::Interrupted {
            cx.waker().wake_by_ref();
        } else {
            self.on_broken(err);
        }
        Ok(false)
    }

    /// Handles the failure of the leg. What came before it waits in the kernel, acknowledged: the
    /// leg is read until its end.
    pub(in super::super) fn on_broken(&mut self, err: io::Error) {
        self.failure.get_or_insert(err);
        self.sink = Sink::Broken;
    }

    /// Returns whether the host's FIN came before its RST. Otherwise a failed leg, too, reads as an
    /// ended one, once its error was taken.
    fn had_fin(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|err| ending(err) == Ending::Fin)
    }

    fn shut_down_if_finished(&mut self, core: &mut Core) {
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return;
        };
        if self.sink != Sink::Open || !entry.finished || !self.is_delivered(entry) {
            return;
        }
        if self.answers_too_soon(entry.is_acknowledged()) {
            return;
        }
        if let Some(packing) = &mut self.packing
            && packing.finish().is_err()
        {
            return;
        }
        match leg.finish() {
            Ok(()) => {
                self.sink = Sink::Shut;
                entry.on_shut();
            }
            Err(err) => self.on_broken(err),
        }
    }

    /// Returns whether neither receiving nor sending would notice a failing leg.
    fn is_blind(&self, core: &mut Core) -> bool {
        let Some(entry) = core.entry(self.key) else {
            return false;
        };
        let space = match &self.packing {
            Some(_) => Packing::space(entry),
            None => entry.space(1),
        };
        let receives = self.source == Source::Open && !space.is_empty();
        let sends = self.sink == Sink::Open && !self.is_delivered(entry);
        // The end of a client that was answered early does not matter.
        let matters = !matches!(self.sink, Sink::Answered | Sink::Broken);
        !receives && !sends && matters
    }

    pub(super) fn poll_broken(&mut self, cx: &mut Context<'_>) {
        let broken = self.leg.as_ref().map(|leg| leg.poll_broken(cx));
        if let Some(Poll::Ready(err)) = broken {
            self.on_broken(err);
            cx.waker().wake_by_ref();
        }
    }

    /// Gives back the pages of empty directions.
    pub(super) fn give_memory_back(&mut self) {
        if let Some(entry) = self.core.borrow_mut().entry(self.key) {
            entry.give_memory_back();
        }
        if let Some(leg) = &self.leg {
            leg.on_quiet();
        }
    }
}
