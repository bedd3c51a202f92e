//! Between a leg and a stream: bytes both ways, half-close, reset, until both directions are over.
//!
//! ```text
//!   from the leg    Open --FIN--> Finished            --RST--> Broken: its bytes are still delivered, then
//!                                                              the stream is reset
//!   to the leg      Open --the peer has finished--> Shut
//! ```

use std::{
    future::{Future, poll_fn},
    io::{self, ErrorKind},
    net::Shutdown,
    os::fd::OwnedFd,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use pep_core::{
    relay::{IdleClock, IdleEvent},
    ring::Ranges,
    stats::EndReason,
};
use socket2::SockRef;
use tokio::{
    io::Interest,
    time::{Instant, Sleep, sleep},
};
use tunnel::wire::ResetCode;

use super::core::{Core, Key, Shared};
use crate::{
    flow::{Ends, FlowEnd, LegIo},
    leg,
    limits::{Permit, Resource},
    sys::socket,
};

/// What one receive call takes from a leg at most: beyond it other flows wait too long.
const RECEIVE_MAX: u64 = 256 << 10;
/// Beyond any flow's life.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The kernel does not tell when the last byte is acknowledged, so it is asked.
const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_LAST: Duration = Duration::from_millis(500);

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
    Shut,
    Broken,
}

/// How a flow has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Both directions are complete.
    Closed,
    /// The leg's host has reset it.
    ByHost,
    /// The peer, or its host, has.
    ByPeer(ResetCode),
    /// Nothing has moved for too long.
    Idle,
}

/// A leg of this machine joined to a stream, or on the way to that. Dropped before its end, it resets both.
#[derive(Debug)]
pub(super) struct Joint {
    core: Shared,
    key: Key,
    leg: Option<LegIo>,
    ends: Ends,
    /// Which end this is, for the reasons.
    is_near: bool,
    source: Source,
    sink: Sink,
    failure: Option<io::Error>,
    began: Instant,
    /// What is told if this is dropped now, to people and to the peer.
    ending: EndReason,
    code: Option<ResetCode>,
    counted: [u64; 2],
    _permit: Permit,
}

/// Whether a step moved anything.
type Moved = bool;

impl Joint {
    pub(super) fn new(core: Shared, key: Key, ends: Ends, is_near: bool, permit: Permit) -> Self {
        Self {
            core,
            key,
            leg: None,
            ends,
            is_near,
            source: Source::Open,
            sink: Sink::Open,
            failure: None,
            began: Instant::now(),
            ending: EndReason::Drained,
            code: Some(ResetCode::Internal),
            counted: [0; 2],
            _permit: permit,
        }
    }

    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// The leg, once there is one.
    pub(super) fn leg(&self) -> Option<&LegIo> {
        self.leg.as_ref()
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
    pub(super) fn set_leg(&mut self, fd: OwnedFd) -> io::Result<()> {
        self.leg = Some(LegIo::new(fd)?);
        Ok(())
    }

    /// The flow ends before it was joined, or by what the relay found.
    pub(super) fn end(mut self, reason: EndReason, code: ResetCode, failure: Option<io::Error>) {
        self.ending = reason;
        self.code = Some(code);
        self.failure = failure.or(self.failure.take());
    }

    /// Relays until both directions are over, and ends.
    pub(super) async fn run(mut self) {
        let over = self.relay().await;
        match over {
            Over::Closed => {
                self.ending = EndReason::Closed;
                self.code = None;
                self.close_with_fin();
                self.give_memory_back();
                self.delivered_within_orphan().await;
            }
            Over::ByHost => {
                self.ending = self.reason_of_leg();
                self.code = Some(ResetCode::Host);
            }
            Over::ByPeer(code) => {
                self.delivered_within_orphan().await;
                self.ending = self.reason_of_peer(code);
            }
            Over::Idle => {
                self.ending = EndReason::IdleTimeout;
                self.code = Some(ResetCode::TimedOut);
            }
        }
    }

    async fn relay(&mut self) -> Over {
        let mut idle = Idle {
            clock: IdleClock::new(self.ends.site.timeouts.idle),
            timer: pin!(sleep(IdleClock::QUIET)),
        };
        poll_fn(|cx| {
            let (over, moved) = self.poll_turn(cx);
            if moved {
                idle.on_activity();
            }
            if over.is_ready() {
                return over;
            }
            self.poll_idle(&mut idle, cx)
        })
        .await
    }

    fn poll_idle(&mut self, idle: &mut Idle<'_>, cx: &mut Context<'_>) -> Poll<Over> {
        while let Poll::Ready(event) = idle.poll(cx) {
            self.count_bytes();
            match event {
                IdleEvent::Active => {}
                IdleEvent::Quiet => self.give_memory_back(),
                IdleEvent::Expired => return Poll::Ready(Over::Idle),
            }
        }
        Poll::Pending
    }

    /// One receive and one send at most; then others have their turn.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> (Poll<Over>, Moved) {
        let core = std::rc::Rc::clone(&self.core);
        let core = &mut *core.borrow_mut();
        match core.entry(self.key) {
            Some(entry) => entry.waker = Some(cx.waker().clone()),
            None => return (Poll::Ready(Over::ByPeer(ResetCode::Internal)), false),
        }
        let sent = self.poll_send(core, cx);
        self.shut_down_if_finished(core);
        let received = self.poll_receive(core, cx);
        if self.is_blind(core) {
            self.poll_broken(cx);
        }
        let moved = sent || received;
        if let Some(over) = self.over(core) {
            return (Poll::Ready(over), moved);
        }
        if moved {
            cx.waker().wake_by_ref();
        }
        (Poll::Pending, moved)
    }

    fn over(&mut self, core: &mut Core) -> Option<Over> {
        let entry = core.entry(self.key)?;
        if let Some(code) = entry.reset {
            // What came before the reset goes to the leg first, as the network would have it.
            let owed = self.sink == Sink::Open && !entry.is_delivered() && code == ResetCode::Host;
            return (!owed).then_some(Over::ByPeer(code));
        }
        if !entry.is_acknowledged() {
            return None;
        }
        match (self.source, self.sink) {
            (Source::Finished, Sink::Shut) => Some(Over::Closed),
            (Source::Broken, _) | (Source::Finished, Sink::Broken) => Some(Over::ByHost),
            _ => None,
        }
    }

    fn poll_receive(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Moved {
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return false;
        };
        if self.source != Source::Open || entry.reset.is_some() {
            return false;
        }
        let space = entry.space(RECEIVE_MAX);
        if space.is_empty() {
            return false; // until something is acknowledged
        }
        let result = attempt(leg, cx, Interest::READABLE, |fd| {
            entry.receive(|slot, direction| slot.receive(fd, direction, &space))
        });
        match result {
            Poll::Pending => false,
            Poll::Ready(Ok(0)) => {
                self.source = Source::Finished;
                core.finish(self.key);
                true
            }
            Poll::Ready(Ok(count)) => {
                let until = entry.on_received(count);
                core.written(self.key, until);
                true
            }
            Poll::Ready(Err(err)) => {
                self.on_failure(core, cx, err);
                false
            }
        }
    }

    fn poll_send(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Moved {
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return false;
        };
        if self.sink != Sink::Open {
            return false;
        }
        let sent = entry.send(|slot, direction, data: &Ranges| {
            attempt(leg, cx, Interest::WRITABLE, |fd| {
                slot.send(fd, direction, data)
            })
        });
        match sent {
            None | Some(Poll::Pending) => false,
            Some(Poll::Ready(Ok(count))) => {
                let until = entry.on_sent(count);
                core.consumed(self.key, count, until);
                true
            }
            Some(Poll::Ready(Err(err))) => {
                self.on_failure(core, cx, err);
                false
            }
        }
    }

    /// A leg that fails for want of memory is asked again; else it is broken, and what it gave
    /// before has been received.
    fn on_failure(&mut self, core: &Core, cx: &mut Context<'_>, err: io::Error) {
        if err.kind() == ErrorKind::Interrupted {
            cx.waker().wake_by_ref();
        } else if let Some(resource) = Resource::short(&err) {
            core.context.admission.on_short(resource);
            let waker = cx.waker().clone();
            tokio::task::spawn_local(async move {
                sleep(Duration::from_millis(10)).await;
                waker.wake();
            });
        } else {
            self.on_broken(err);
        }
    }

    fn on_broken(&mut self, err: io::Error) {
        self.failure.get_or_insert(err);
        if self.source == Source::Open {
            self.source = Source::Broken;
        }
        self.sink = Sink::Broken;
    }

    fn shut_down_if_finished(&mut self, core: &mut Core) {
        let (Some(leg), Some(entry)) = (&self.leg, core.entry(self.key)) else {
            return;
        };
        if self.sink != Sink::Open || !entry.finished || !entry.is_delivered() {
            return;
        }
        match SockRef::from(&leg.fd()).shutdown(Shutdown::Write) {
            Ok(()) => self.sink = Sink::Shut,
            // ENOTCONN: it was reset in the meantime, and the error is still pending.
            Err(err) => {
                let err = leg.take_error().unwrap_or(err);
                self.on_broken(err);
            }
        }
    }

    /// Whether neither receiving nor sending would find a leg that breaks.
    fn is_blind(&self, core: &mut Core) -> bool {
        let Some(entry) = core.entry(self.key) else {
            return false;
        };
        let receives = self.source == Source::Open && !entry.space(1).is_empty();
        let sends = self.sink == Sink::Open && !entry.is_delivered();
        !receives && !sends && self.sink != Sink::Broken
    }

    fn poll_broken(&mut self, cx: &mut Context<'_>) {
        let broken = self.leg.as_ref().map(|leg| leg.poll_broken(cx));
        if let Some(Poll::Ready(err)) = broken {
            self.on_broken(err);
            cx.waker().wake_by_ref();
        }
    }

    fn give_memory_back(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let initial = core.context.limits.ring_initial;
        if let Some(entry) = core.entry(self.key) {
            entry.give_memory_back(initial);
        }
    }

    /// From here on a close of the leg, by us or by the kernel, delivers what is left.
    fn close_with_fin(&self) {
        if let Some(leg) = &self.leg
            && let Err(err) = leg::set_reset_on_close(leg.fd(), false)
        {
            tracing::debug!(error = %err, "cannot close a leg in order");
        }
    }

    /// What the kernel still has for the leg's host is delivered before the leg goes.
    async fn delivered_within_orphan(&self) {
        let give_up = Instant::now() + self.ends.site.timeouts.orphan;
        let mut pause = ASK_FIRST;
        while self.has_tail() && Instant::now() < give_up {
            sleep(pause).await;
            pause = (2 * pause).min(ASK_LAST);
        }
    }

    fn has_tail(&self) -> bool {
        let Some(leg) = &self.leg else { return false };
        let fin = u64::from(self.sink == Sink::Shut);
        let tail = || -> io::Result<bool> {
            Ok(socket::unacknowledged(leg.fd())? > fin && !socket::is_closed(leg.fd())?)
        };
        self.sink != Sink::Broken && tail().unwrap_or(false)
    }

    fn reason_of_leg(&self) -> EndReason {
        let error = self.failure.as_ref().and_then(io::Error::raw_os_error);
        match (error, self.is_near) {
            (Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH), _) => {
                EndReason::UserTimeout
            }
            (_, true) => EndReason::ClientReset,
            (_, false) => EndReason::ServerReset,
        }
    }

    fn reason_of_peer(&self, code: ResetCode) -> EndReason {
        match (code, self.is_near) {
            (ResetCode::Host, true) => EndReason::ServerReset,
            (ResetCode::Host, false) => EndReason::ClientReset,
            (ResetCode::Refused, _) => EndReason::Refused,
            (ResetCode::Unreachable, _) => EndReason::Unreachable,
            (ResetCode::TimedOut, _) => EndReason::ConnectTimeout,
            (ResetCode::Restarted, _) => EndReason::PeerRestarted,
            (ResetCode::Limit | ResetCode::Internal, _) => EndReason::Error,
        }
    }

    /// Adds the bytes moved since the last time to the counters.
    fn count_bytes(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let Some(now) = core.entry(self.key).map(|entry| entry.delivered()) else {
            return;
        };
        let [up, down] = std::mem::replace(&mut self.counted, now);
        core.context.counters.update(|stats| {
            stats.up_bytes += now[0] - up;
            stats.down_bytes += now[1] - down;
        });
    }
}

impl Drop for Joint {
    fn drop(&mut self) {
        self.count_bytes();
        let core = &mut *self.core.borrow_mut();
        let held = core.entry(self.key).map_or([0; 2], |entry| entry.held());
        core.remove(self.key, self.code);
        let undelivered = match self.ending {
            EndReason::Closed => [0; 2],
            _ => held,
        };
        let end = FlowEnd {
            reason: self.ending,
            up: self.counted[0],
            down: self.counted[1],
            up_undelivered: undelivered[0],
            down_undelivered: undelivered[1],
            growth_denied: 0,
            duration: self.began.elapsed(),
            error: self.failure.as_ref(),
        };
        end.count(&core.context);
        end.log(&self.ends);
    }
}

/// Attempts a call, and again whenever it may succeed; pending when it would block.
fn attempt<T>(
    leg: &LegIo,
    cx: &mut Context<'_>,
    interest: Interest,
    mut call: impl FnMut(std::os::fd::BorrowedFd<'_>) -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        match leg.attempt(interest, &mut call) {
            Err(err) if err.kind() == ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
        let ready = if interest.is_readable() {
            leg.poll_readable(cx)
        } else {
            leg.poll_writable(cx)
        };
        if ready.is_pending() {
            return Poll::Pending;
        }
    }
}

/// The flow's one timer, and what it means.
struct Idle<'a> {
    clock: IdleClock,
    timer: Pin<&'a mut Sleep>,
}

impl Idle<'_> {
    fn on_activity(&mut self) {
        if self.clock.on_activity() {
            self.timer.as_mut().reset(Instant::now() + IdleClock::QUIET);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<IdleEvent> {
        self.timer.as_mut().poll(cx).map(|()| {
            let (event, next) = self.clock.handle_timeout();
            self.timer
                .as_mut()
                .reset(Instant::now() + next.unwrap_or(NEVER));
            event
        })
    }
}
