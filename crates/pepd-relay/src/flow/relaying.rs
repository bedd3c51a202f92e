//! Byte transfer: carries out the decisions of the [`Relay`](pep_core::relay::Relay).

use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    net::Shutdown,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use pep_core::{
    relay::{Action, Direction, DirectionState, End, Ending, IdleEvent, Keepalives, Side, Wait},
    ring::Ranges,
    stats::EndReason,
};
use pepd_sys::socket;
use socket2::SockRef;
use tokio::{
    io::Interest,
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    Flow,
    idle::{self, Idle},
    tail,
};
use crate::{arena::SlotState, limits::Resource};

/// Retry interval while a page or a socket buffer cannot be allocated.
pub const SHORTAGE_RETRY: Duration = Duration::from_millis(10);

/// True if an attempt moved a byte.
type Moved = bool;

impl Flow {
    /// Relays until both directions are final, or the idle timeout.
    pub(super) async fn relay(&mut self) -> Result<End, EndReason> {
        self.slot.publish_state(SlotState::Relaying);
        let timer = pin!(idle::timer());
        let timeouts = &self.ends.site.timeouts;
        let mut idle = Idle::new(timeouts.idle, timeouts.keepalive.passes, timer);
        loop {
            self.note_time();
            match self.relay.poll_action() {
                Action::Receive { direction, space } => {
                    let result = self.receive(direction, &space);
                    self.settle(result, &mut idle).await;
                }
                Action::Send { direction, data } => {
                    let result = self.send(direction, &data);
                    self.settle(result, &mut idle).await;
                }
                Action::ShutDown { direction } => {
                    // Boxed, as most of a flow's life needs no room for it.
                    let is_confirmed = Box::pin(self.confirmed(direction)).await;
                    self.note_time();
                    if is_confirmed {
                        self.shut_down(direction);
                    } else {
                        self.relay.handle_unconfirmed();
                    }
                }
                Action::Yield => {
                    self.record();
                    yield_now().await;
                    self.relay.handle_turn();
                }
                Action::Wait(wait) => {
                    self.record();
                    self.wait(wait, &mut idle).await?;
                    self.relay.handle_turn();
                }
                Action::End(end) => return Ok(end),
            }
        }
    }

    /// Sets the time of the relay's trace, if it is on.
    fn note_time(&mut self) {
        let trace = self.relay.trace();
        if trace.is_on() {
            trace.at(self.began.elapsed());
        }
    }

    async fn settle(&mut self, result: Result<Moved, Resource>, idle: &mut Idle<'_>) {
        match result {
            Ok(true) => {
                idle.on_activity();
                if self.muted != [false; 2] {
                    self.mute([false; 2]);
                }
            }
            Ok(false) => {}
            Err(resource) => {
                self.context.admission.on_short(resource);
                sleep(SHORTAGE_RETRY).await;
            }
        }
    }

    fn receive(&mut self, direction: Direction, space: &Ranges) -> Result<Moved, Resource> {
        let side = direction.source();
        let mut moved = false;
        let (slot, leg) = (&mut self.slot, &self.legs[side as usize]);
        match leg.attempt(Interest::READABLE, |fd| slot.receive(fd, direction, space)) {
            Ok(0) => self.relay.handle_end_of_stream(direction),
            Ok(count) => {
                self.relay.handle_received(direction, count);
                leg.on_received(count);
                if side == self.ends.site.link_side {
                    self.receive_window.on_received(leg.fd(), count);
                    self.link_used.on_received();
                }
                self.busy_poll.on_received(count);
                moved = true;
            }
            Err(err) if err.kind() == ErrorKind::WouldBlock => {
                self.relay.handle_receive_blocked(direction);
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => match Resource::short(&err) {
                Some(resource) => return Err(resource),
                None => self.on_failure(side, err, Flow::on_reset),
            },
        }
        self.publish_direction(direction);
        Ok(moved)
    }

    fn send(&mut self, direction: Direction, data: &Ranges) -> Result<Moved, Resource> {
        let side = direction.sink();
        let mut moved = false;
        let (slot, leg) = (&self.slot, &self.legs[side as usize]);
        match leg.attempt(Interest::WRITABLE, |fd| slot.send(fd, direction, data)) {
            Ok(count) => {
                self.relay.handle_sent(direction, count);
                self.on_sent_to(side);
                moved = true;
            }
            Err(err) if err.kind() == ErrorKind::WouldBlock => {
                self.relay.handle_send_blocked(direction);
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => match Resource::short(&err) {
                Some(resource) => return Err(resource),
                None => self.on_failure(side, err, Flow::on_broken),
            },
        }
        self.publish_direction(direction);
        Ok(moved)
    }

    fn on_sent_to(&mut self, side: Side) {
        if side != self.ends.site.link_side {
            return;
        }
        self.link_used.on_sent();
        if let Some(share) = &mut self.share {
            share.on_sent(self.legs[side as usize].shared());
        }
    }

    /// Waits until the FIN of this direction may be sent. If it answers the client's FIN, pepd
    /// first waits until the server has acknowledged everything: the client's close keeps its
    /// end-to-end meaning. Returns whether the FIN may be sent.
    async fn confirmed(&mut self, direction: Direction) -> bool {
        let server = self.leg(Side::Server);
        let answers = self.relay.direction(direction.other()).state() == DirectionState::Shut;
        if direction == Direction::Up || !answers {
            return true;
        }
        let had_tail = server.has_tail(true);
        if had_tail {
            let limit = self.ends.site.timeouts.orphan;
            let client = poll_fn(|cx| self.leg(Side::Client).poll_broken(cx));
            tokio::select! {
                () = tail::delivered(limit, || server.has_tail(true)) => {}
                err = client => self.failure = Some(err),
            }
        }
        let server = self.leg(Side::Server);
        let lost = server.has_tail(true).then(|| ErrorKind::TimedOut.into());
        // A leg that was reset has no tail either.
        if let Some(err) = server.take_error().or(lost) {
            self.failure.get_or_insert(err);
        }
        self.is_confirmed = !had_tail && self.failure.is_none();
        self.failure.is_none()
    }

    fn shut_down(&mut self, direction: Direction) {
        self.mute([false; 2]);
        let side = direction.sink();
        match SockRef::from(&self.leg(side).fd()).shutdown(Shutdown::Write) {
            Ok(()) => {
                self.relay.handle_shut_down(direction);
                if side == self.ends.site.link_side {
                    self.link_used.on_sent();
                }
            }
            // ENOTCONN: the leg was reset in the meantime, and the error is still pending.
            Err(err) => {
                let err = self.leg(side).take_error().unwrap_or(err);
                self.on_failure(side, err, Flow::on_broken);
            }
        }
        self.publish_direction(direction);
    }

    fn on_failure(&mut self, side: Side, err: io::Error, tell: fn(&mut Self, Side, &io::Error)) {
        tell(self, side, &err);
        self.failure.get_or_insert(err);
    }

    fn on_reset(&mut self, side: Side, _: &io::Error) {
        self.relay.handle_reset(side);
    }

    fn on_broken(&mut self, side: Side, err: &io::Error) {
        self.relay.handle_broken(side, ending(err));
    }

    async fn wait(&mut self, wait: Wait, idle: &mut Idle<'_>) -> Result<(), EndReason> {
        let began = Instant::now();
        let result = if self.busy_poll.stays_awake() && self.wait_awake(&wait, began).await {
            Ok(())
        } else {
            self.wait_asleep(&wait, idle).await
        };
        self.busy_poll.on_waited(began.elapsed());
        result
    }

    /// Polls the legs repeatedly, after all other work of the worker. Returns whether one became
    /// ready within the limit.
    async fn wait_awake(&mut self, wait: &Wait, began: Instant) -> bool {
        while began.elapsed() < self.busy_poll.limit() {
            yield_now().await;
            if poll_fn(|cx| Poll::Ready(self.poll_sides(wait, cx))).await {
                return true;
            }
        }
        false
    }

    async fn wait_asleep(&mut self, wait: &Wait, idle: &mut Idle<'_>) -> Result<(), EndReason> {
        poll_fn(|cx| {
            self.record();
            if self.poll_sides(wait, cx) {
                return Poll::Ready(Ok(()));
            }
            self.poll_idle(idle, cx)
        })
        .await
    }

    fn poll_sides(&mut self, wait: &Wait, cx: &mut Context<'_>) -> bool {
        let mut woken = false;
        for side in Side::ALL {
            woken |= self.poll_side(side, wait, cx);
        }
        woken
    }

    fn poll_side(&mut self, side: Side, wait: &Wait, cx: &mut Context<'_>) -> bool {
        let leg = &self.legs[side as usize];
        let readable = *wait.readable.by_side(side) && leg.poll_readable(cx).is_ready();
        let writable = *wait.writable.by_side(side) && leg.poll_writable(cx).is_ready();
        let mut broken = false;
        if *wait.broken.by_side(side)
            && let Poll::Ready(err) = leg.poll_broken(cx)
        {
            self.note_time();
            self.on_failure(side, err, Flow::on_broken);
            broken = true;
        }
        if readable {
            self.relay.handle_readable(side);
        }
        if writable {
            self.relay.handle_writable(side);
        }
        readable || writable || broken
    }

    fn poll_idle(
        &mut self,
        idle: &mut Idle<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), EndReason>> {
        while let Poll::Ready(event) = idle.poll(cx) {
            self.count_bytes();
            self.start_keepalive();
            match event {
                IdleEvent::Active => {}
                IdleEvent::Quiet => {
                    self.give_memory_back();
                    self.keepalives = Keepalives::new(self.segments_in());
                }
                IdleEvent::Look => idle.on_looked(self.pass_keepalives()),
                IdleEvent::Expired => return Poll::Ready(Err(EndReason::IdleTimeout)),
            }
        }
        Poll::Pending
    }

    /// Sets the keepalive of both legs, once. Short flows end before they need it. A predecessor
    /// may have set another.
    fn start_keepalive(&mut self) {
        if !std::mem::replace(&mut self.is_lasting, true) {
            let (client, server) = (self.leg(Side::Client), self.leg(Side::Server));
            self.ends.site.client.set_keepalive_or_warn(client.fd());
            self.ends.site.server.set_keepalive_or_warn(server.fd());
        }
    }

    /// Passes on what keepalives of both ends have arrived. Returns their number.
    fn pass_keepalives(&mut self) -> u32 {
        let heard = self.segments_in();
        if !self.is_at_rest() {
            // Other timers decide while bytes or a FIN wait for an answer.
            self.keepalives = Keepalives::new(heard);
            self.mute([false; 2]);
            return 0;
        }
        if self.context.outage.is_known_down() {
            self.keepalives.excuse(self.ends.site.link_side);
        }
        let link = self.ends.site.link_side;
        if self.keepalives.has_heard(link, heard) {
            self.link_used.on_received();
        }
        let looked = self.keepalives.look(heard);
        for side in Side::ALL {
            if looked.probes[side as usize] && socket::send_probe(self.leg(side).fd()).is_ok() {
                self.keepalives.on_probed(side);
            }
        }
        self.mute(looked.mute);
        looked.keepalives
    }

    /// Returns whether both ends are connected and have all bytes.
    fn is_at_rest(&self) -> bool {
        let has_all = |direction| self.relay.direction(direction).undelivered() == 0;
        let rests = |side| {
            let leg = self.leg(side).fd();
            matches!(socket::is_established(leg), Ok(true))
                && matches!(socket::unacknowledged(leg), Ok(0))
        };
        Direction::ALL.into_iter().all(has_all) && Side::ALL.into_iter().all(rests)
    }

    /// Sets which sides' keepalives stay unanswered.
    pub(super) fn mute(&mut self, sides: [bool; 2]) {
        for side in Side::ALL {
            let mute = sides[side as usize];
            if std::mem::replace(&mut self.muted[side as usize], mute) != mute {
                let _ = socket::mute(self.leg(side).fd(), mute);
            }
        }
    }

    /// Returns the number of segments that each leg has received; wraps.
    fn segments_in(&self) -> [u32; 2] {
        Side::ALL.map(|side| socket::segments_in(self.leg(side).fd()).unwrap_or_default())
    }

    fn give_memory_back(&mut self) {
        if let Some(share) = &mut self.share {
            share.on_quiet();
        }
        let link_leg = &self.legs[self.ends.site.link_side as usize];
        self.receive_window.on_quiet(link_leg.fd());
        for leg in &self.legs {
            leg.on_quiet();
        }
        for (direction, empty) in self.relay.handle_idle() {
            if empty {
                self.publish_direction(direction);
                self.slot.punch(direction);
            }
        }
    }
}

/// Returns how the stream of a leg that fails with `err` ends. Linux reports EPIPE where the peer's
/// FIN came before its RST (`tcp_reset`).
pub fn ending(err: &io::Error) -> Ending {
    match err.raw_os_error() {
        Some(libc::EPIPE) => Ending::Fin,
        _ => Ending::Reset,
    }
}
