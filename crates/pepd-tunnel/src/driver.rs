//! Sending and receiving datagrams, and timers: the one task that drives the endpoint.

use std::{
    future::{Future as _, poll_fn},
    io,
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use pep_core::{outage::TunnelLink, parties::Party};
use pepd_intercept::tun::PacketTuns;
use pepd_relay::{
    flow::{
        FlowContext,
        rounds::{self, in_rounds},
    },
    survive::heartbeat::Beat,
};
use pepd_sys::reactor;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc::UnboundedReceiver, oneshot},
    time::{MissedTickBehavior, interval, timeout},
};

use tunnel::{
    endpoint::{Carrier, Transmit},
    session::LinkHint,
};

use super::{
    AcceptedFlow, TunnelError,
    core::{Core, Shared},
    credit::Pool,
    near, paths,
    probe::{self, Ordered},
    recover::{self, Inherited},
    register,
    setup::{Part, Portion},
    shards::Inbox,
    table::Custody,
    tap::Taps,
    tcp::{self, Connections, Listeners},
    udp::{Arrived, Sockets, Taker},
};
use crate::{custody::Replies, table::Key};

/// Datagrams sent, and receive calls made, before other tasks run.
const SEND_TURN: usize = 256;
const RECEIVE_TURN: usize = 8;
/// Receive calls of a turn that reads ahead, unless its time ends before.
const READ_AHEAD_TURN: usize = 256;
/// Time after which most turns have ended: silence found at their end must be expected at their
/// beginning.
const LONG_TURN: Duration = Duration::from_millis(5);
/// Time until the next attempt to send by blocked sockets.
const RETRY: Duration = Duration::from_millis(10);
/// Flows started before other tasks run.
const BEGIN_TURN: usize = 64;
/// Things from other threads that are handled before other tasks run.
const PASSED_TURN: usize = 32;
/// Time limit for close messages.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Reasons for which the tunnels end.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriverError {
    /// A peer cannot be set up.
    #[error(transparent)]
    Setup(#[from] TunnelError),
    /// The first thread has panicked.
    #[error("`custody.directory` was not opened")]
    Directory,
    /// A descriptor cannot be created.
    #[error("cannot create a timer or register a socket")]
    System(#[from] io::Error),
}

/// Everything that a thread gets at its start.
pub(super) struct Given {
    pub(super) part: Part,
    pub(super) inherited: Inherited,
    pub(super) tuns: PacketTuns,
    pub(super) credit: Arc<Pool>,
    pub(super) kept: oneshot::Receiver<Portion>,
    pub(super) incoming: UnboundedReceiver<(AcceptedFlow, OwnedFd)>,
    pub(super) orders: UnboundedReceiver<Ordered>,
}

/// Runs the tunnels of one thread until `stopped`.
pub(super) async fn run(
    given: Given,
    beat: Beat,
    context: Arc<FlowContext>,
    stopped: impl Future<Output = ()>,
) -> Result<(), DriverError> {
    let mut part = given.part;
    let is_first = part.member.shard().number() == 0;
    part.fit(context.arena.layout().extent_bytes());
    let kept = given.kept.await.map_err(|_| DriverError::Directory)?;
    let custody = Custody::new(kept.ledger, kept.spill, &context.counters);
    let peers = part.add_peers(&context, &given.credit, &custody)?;
    let tcp = Connections::new(part.tcp);
    let core = Core::new(
        context,
        (part.endpoint, peers, part.statuses),
        part.far,
        tcp,
        custody,
        part.member,
    );
    // Before the first handshake.
    core.borrow_mut().tell_unreached();
    listen(&core, part.listeners)?;
    recover::flows(&core, (given.inherited, kept.left), register);
    let taps = Taps::new(given.tuns, part.groups, |site| core.borrow().chain_of(site))?;
    let mut driver = Driver {
        core: Rc::clone(&core),
        sockets: Sockets::new(part.sockets)?,
        incoming: given.incoming,
        inbox: part.inbox,
        timer: Timer::new()?,
        drops: Drops::default(),
        sheds: Sheds::default(),
        taps,
        beat,
    };
    tokio::task::spawn_local(tick(Rc::clone(&core)));
    tokio::task::spawn_local(rounds::run());
    tokio::task::spawn_local(probe::serve(Rc::clone(&core), given.orders));
    if let Some(answers) = kept.answers {
        tokio::task::spawn_local(hear_disk(Rc::clone(&core), answers));
    }
    tokio::task::spawn_local(pass_on_hints(Rc::clone(&core)));
    let paths = part.paths;
    if let Some(paths) = &paths {
        let keep = paths::keep(Rc::clone(&core), Arc::clone(paths), is_first);
        tokio::task::spawn_local(keep);
    }
    for (index, (peer, config)) in part.peers.into_iter().enumerate() {
        // A peer with an endpoint but no address has a host name.
        if let (Some(endpoint), true) = (peer.endpoint, config.addresses.is_empty()) {
            let core = Rc::clone(&core);
            tokio::task::spawn_local(super::name::resolve(core, index, endpoint));
        }
    }
    tokio::select! {
        () = poll_fn(|cx| driver.poll(cx)) => {}
        () = stopped => {}
    }
    if let Some(paths) = &paths {
        paths.lock().take(&core);
    }
    core.borrow_mut().close();
    // Packets in flight may be lost from here on.
    let _ = timeout(CLOSE_TIMEOUT, poll_fn(|cx| driver.poll(cx))).await;
    Ok(())
}

fn listen(core: &Shared, listeners: Option<Listeners>) -> io::Result<()> {
    let listeners = listeners.map(Listeners::register).transpose()?;
    for listener in listeners.into_iter().flatten() {
        tokio::task::spawn_local(tcp::accept(Rc::clone(core), listener));
    }
    Ok(())
}

/// Handles completed disk operations.
async fn hear_disk(core: Shared, mut answers: Replies<Key>) {
    while let Some(answered) = answers.next().await {
        core.borrow_mut().on_disk_answered(answered);
    }
}

async fn tick(core: Shared) {
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        core.borrow_mut().tick();
    }
}

/// Passes on to the sessions what other parts of pepd report on the link.
async fn pass_on_hints(core: Shared) {
    let mut reported = core.borrow().context.outage.tunnel_link();
    let mut last = TunnelLink::Up;
    loop {
        let now = *reported.borrow_and_update();
        if now != last {
            core.borrow_mut().hint(match now {
                TunnelLink::Up => LinkHint::Up,
                TunnelLink::Down => LinkHint::Down,
                TunnelLink::Off => LinkHint::Off,
            });
            last = now;
        }
        if reported.changed().await.is_err() {
            return;
        }
    }
}

/// The task that drives the endpoint.
struct Driver {
    core: Shared,
    sockets: Sockets,
    incoming: UnboundedReceiver<(AcceptedFlow, OwnedFd)>,
    inbox: Inbox,
    timer: Timer,
    drops: Drops,
    sheds: Sheds,
    taps: Taps,
    beat: Beat,
}

impl Driver {
    /// Never ready: the task ends on drop.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.beat.turn();
        {
            let mut core = self.core.borrow_mut();
            core.driver = Some(cx.waker().clone());
            // First of all, so that a trace requested in the meantime begins with this turn.
            core.record();
            core.begin_turn();
        }
        self.begin_flows(cx);
        self.take_passed(cx);
        let more = self.receive(cx);
        Core::dispatch(&self.core);
        self.core.borrow_mut().end_reading(more);
        // Also when nothing else has arrived: what waits is in no socket any more.
        let waited = self.work_off(cx);
        let more = more && !waited;
        self.taps.poll(cx, &mut self.core.borrow_mut());
        let blocked = self.send(cx, more);
        // Sending reveals whether the link is up.
        Core::dispatch(&self.core);
        self.core.borrow_mut().record();
        self.count();
        self.wait(cx, blocked);
        Poll::Pending
    }

    fn begin_flows(&mut self, cx: &mut Context<'_>) {
        for _ in 0..BEGIN_TURN {
            match self.incoming.poll_recv(cx) {
                Poll::Ready(Some((accepted, client))) => {
                    let party = Party::host(accepted.ends.client.ip());
                    let flow = near::serve(Rc::clone(&self.core), accepted, register(client));
                    tokio::task::spawn_local(in_rounds(party, flow));
                }
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Handles what other threads have passed to this one.
    fn take_passed(&mut self, cx: &mut Context<'_>) {
        for _ in 0..PASSED_TURN {
            let Poll::Ready(Some(passed)) = self.inbox.poll_recv(cx) else {
                return;
            };
            Core::on_passed(&self.core, passed);
        }
        cx.waker().wake_by_ref();
    }

    /// Receives what has arrived, if it is time. Returns whether there may be more.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        let core = &mut *self.core.borrow_mut();
        if core.only_works_off() {
            after_others(cx);
            return true;
        }
        let looks_at = self.sockets.deadline();
        let calls = if core.is_overloaded() {
            READ_AHEAD_TURN
        } else {
            RECEIVE_TURN
        };
        let more = self.sockets.poll_receive(cx, calls, core);
        // What is to be reported is known after a look.
        if self.sockets.deadline() != looks_at {
            core.endpoint.delay_reports(Duration::ZERO);
        }
        if more {
            after_others(cx);
        }
        more
    }

    /// Handles datagrams that wait for their sender's turn. Returns whether there were any: then
    /// the time of the latest one says nothing about what other senders' datagrams wait.
    fn work_off(&mut self, cx: &mut Context<'_>) -> bool {
        let overloaded = self.core.borrow().is_overloaded();
        if overloaded && Core::work_off(&self.core) {
            after_others(cx);
        }
        overloaded
    }

    /// Sends what is due. Returns whether the kernel takes no more for now. While `more` datagrams
    /// may have arrived, it is no later than the last one received: a peer is not silent as long as
    /// its datagrams wait.
    fn send(&mut self, cx: &mut Context<'_>, more: bool) -> bool {
        let core = &mut *self.core.borrow_mut();
        // Datagrams that become due during this turn go in the next one.
        let now = if more { core.latest } else { core.now() };
        for _ in 0..SEND_TURN {
            if !self.sockets.has_room() && flush(&mut self.sockets, core) {
                return true;
            }
            let tail = self.sockets.tail();
            let begin = tail.len();
            let Some((Transmit { peer, to, ecn }, from)) = core.poll_transmit(now, tail) else {
                return flush(&mut self.sockets, core);
            };
            if to.carrier == Carrier::Udp {
                self.sockets.push(begin, to.address, from, ecn);
            } else {
                core.send_by_tcp(&self.core, peer, to.address, &tail[begin..]);
                tail.truncate(begin);
            }
        }
        after_others(cx);
        flush(&mut self.sockets, core)
    }

    /// Waits for the next deadline. While sockets are `blocked`, that is of receiving or of another
    /// attempt to send: they may have become free before pepd asked to be woken.
    fn wait(&mut self, cx: &mut Context<'_>, blocked: bool) {
        let core = &mut *self.core.borrow_mut();
        let now = core.now();
        let looks_at = self.sockets.deadline();
        core.endpoint.delay_reports(looks_at.unwrap_or_default());
        let deadlines = [core.endpoint.deadline(), core.packets_deadline(), looks_at];
        let deadline = match blocked {
            true => [looks_at, Some(now + RETRY)].into_iter().flatten().min(),
            false => deadlines.into_iter().flatten().min(),
        };
        if self.timer.poll(cx, deadline, now).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    fn count(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let dropped = self.drops.count(core.now(), &self.sockets);
        let shed = self.sheds.count(core);
        let by_udp = std::mem::take(&mut self.sockets.counted);
        let counted = by_udp + std::mem::take(&mut core.tcp.counted);
        if counted == Default::default() && dropped == 0 && shed == 0 {
            return;
        }
        core.context.counters.update(|stats| {
            stats.tunnel_datagrams_received += counted.received;
            stats.tunnel_datagrams_sent += counted.sent;
            stats.tunnel_datagrams_dropped += u64::from(dropped);
            stats.tunnel_datagrams_shed += shed;
            stats.tunnel_receive_calls += counted.receive_calls;
            stats.tunnel_send_calls += counted.send_calls;
            stats.tunnel_datagrams_unsent += counted.unsent;
        });
    }
}

impl Taker for Core {
    fn now(&self) -> Duration {
        Self::now(self)
    }

    fn must_know(&self, now: Duration) -> bool {
        self.endpoint.is_silence_due(now + LONG_TURN)
    }

    fn take(&mut self, arrived: Arrived<'_>) {
        let Arrived {
            from, to, ecn, at, ..
        } = arrived;
        self.receive(at, (from.into(), to), ecn, arrived.datagram);
    }

    fn is_turn_over(&mut self) -> bool {
        Self::is_turn_over(self)
    }

    fn may_wait(&mut self, now: Duration) -> Duration {
        Self::may_wait(self, now)
    }
}

/// Datagrams that the kernel dropped because pepd did not read them in time. The peer counts them
/// as link loss.
#[derive(Debug, Default)]
struct Drops {
    known: u32,
    /// Times of the next check and of the next log line.
    look: Duration,
    tell: Duration,
}

/// Minimum interval between log lines about drops.
const DROPS_LOGGED_EVERY: Duration = Duration::from_secs(60);

impl Drops {
    /// Returns the number of drops since the last call that checked.
    fn count(&mut self, now: Duration, sockets: &Sockets) -> u32 {
        if now < self.look {
            return 0;
        }
        self.look = now + Duration::from_secs(1);
        let dropped = sockets.dropped();
        let new = dropped.wrapping_sub(std::mem::replace(&mut self.known, dropped));
        if new > 0 && now >= self.tell {
            self.tell = now + DROPS_LOGGED_EVERY;
            tracing::warn!(
                datagrams = new,
                "tunnel datagrams dropped unread: CPU too slow or too busy for the link; \
                 peers count them as link loss"
            );
        }
        new
    }
}

/// Datagrams that pepd dropped because their sender had too many of them waiting.
#[derive(Debug, Default)]
struct Sheds {
    /// Number since the last log line, and time of the next one.
    untold: u64,
    tell: Duration,
}

impl Sheds {
    /// Returns the number since the last call.
    fn count(&mut self, core: &mut Core) -> u64 {
        let now = core.now();
        let (new, peer) = core.take_shed();
        self.untold += new;
        if new > 0 && now >= self.tell {
            self.tell = now + DROPS_LOGGED_EVERY;
            let datagrams = std::mem::take(&mut self.untold);
            tracing::warn!(
                datagrams,
                peer,
                "tunnel thread overloaded: datagrams of the sender with most work dropped"
            );
        }
        new
    }
}

/// Continues after other tasks, and after what has arrived for these: under overload they would
/// otherwise hear of it after many turns only.
fn after_others(cx: &mut Context<'_>) {
    // Its only effect is the wake-up; it is never ready at once.
    let _pending = pin!(tokio::task::yield_now()).poll(cx);
}

/// Returns whether the kernel takes no more for now.
fn flush(sockets: &mut Sockets, core: &mut Core) -> bool {
    sockets.flush(|to| core.on_send_failed(to))
}

/// A timer with the kernel's resolution. The runtime's timers have a resolution of 1 ms, in which a
/// fast link carries dozens of packets.
pub(super) struct Timer {
    timer: TimerFd,
    watch: AsyncFd<OwnedFd>,
    /// The expiry that is set.
    set: Option<Duration>,
}

/// Delay of the next check when a deadline has passed although everything was done.
const SOON: Duration = Duration::from_micros(20);

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let watch = timer.as_fd().try_clone_to_owned()?;
        Ok(Self {
            timer,
            watch: reactor::register(watch, Interest::READABLE)?,
            set: None,
        })
    }

    /// Ready at the deadline, if there is one.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Option<Duration>,
        now: Duration,
    ) -> Poll<()> {
        let is_new = self.set != deadline;
        if is_new {
            self.set = deadline;
            if let Err(err) = self.set_to(deadline.map(|at| at.saturating_sub(now))) {
                tracing::error!(error = %err, "cannot set a timer");
            }
        }
        loop {
            let Ok(mut ready) = ready!(self.watch.poll_read_ready(cx)) else {
                return Poll::Ready(());
            };
            ready.clear_ready();
            // Setting the timer has cleared an earlier expiry, so that none needs to be read. The
            // runtime learns of later ones only after this task.
            if !is_new {
                self.set = None;
                return Poll::Ready(());
            }
        }
    }

    fn set_to(&self, after: Option<Duration>) -> nix::Result<()> {
        let Some(after) = after else {
            return self.timer.unset();
        };
        let after = TimeSpec::from_duration(after.max(SOON));
        let flags = TimerSetTimeFlags::empty();
        self.timer.set(Expiration::OneShot(after), flags)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use tokio::{sync::mpsc::unbounded_channel, task::yield_now};
    use tunnel::{ecn::Ecn, endpoint::Remote};

    use super::*;
    use crate::{
        rig,
        shards::{Datagram, Member},
        udp::Bound,
    };

    /// Returns a driver of that core, whose sockets get nothing.
    fn driver(core: &Shared) -> Driver {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let sockets = Bound::bind(Some(loopback), 0, 1)
            .expect("loopback")
            .remove(0);
        let (_, incoming) = unbounded_channel();
        let (_, inbox) = Member::all(1).remove(0);
        Driver {
            core: Rc::clone(core),
            sockets: Sockets::new(sockets).expect("a runtime"),
            incoming,
            inbox,
            timer: Timer::new().expect("a timer"),
            drops: Drops::default(),
            sheds: Sheds::default(),
            taps: Taps::new(PacketTuns::default(), None, |_| None).expect("none"),
            beat: Beat::default(),
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_waits_is_worked_off_although_nothing_else_arrives() {
        let core = rig::core(3, &[(1, None), (2, None)]);
        let mut driver = driver(&core);
        let waiting = |from: Remote| Datagram {
            at: Duration::ZERO,
            from,
            to: None,
            ecn: Ecn::NotEct,
            bytes: vec![5].into(),
        };
        {
            let core = &mut *core.borrow_mut();
            core.begin_turn();
            while !core.is_overloaded() {
                core.is_turn_over();
            }
            let senders = core.peers.ids().into_iter().map(Some);
            let from = SocketAddr::from(([192, 0, 2, 9], 9));
            for sender in [None].into_iter().chain(senders) {
                // More than a turn handles.
                (0..8000).for_each(|_| core.let_wait(sender, waiting(from.into())));
            }
        }
        let worked_off = poll_fn(|cx| {
            let _ = driver.poll(cx);
            match core.borrow().is_overloaded() {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        });
        let ended = timeout(Duration::from_secs(10), worked_off).await;
        assert!(ended.is_ok(), "datagrams wait for ever");
        assert_eq!(driver.sockets.counted, Default::default());
    }

    /// A sender by UDP, in simulated time.
    struct Sender {
        socket: UdpSocket,
        datagram: Vec<u8>,
        every: Duration,
        sent: Vec<Duration>,
    }

    impl Sender {
        fn new(hub: (&Shared, usize, SocketAddr), own: u8, (every, cost): (u64, u64)) -> Self {
            let (shared, index, at) = hub;
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            socket.connect(at).expect("loopback");
            let from = socket.local_addr().expect("an address");
            let boat = rig::core(own, &[(3, Some(at))]);
            let mut datagram = rig::next_data((shared, index), &boat, (from.into(), at));
            let core = &mut *shared.borrow_mut();
            let now = core.now();
            core.take_datagram(now, (from.into(), None), Ecn::NotEct, &mut datagram.clone());
            assert!(
                core.endpoint
                    .claimed_sender(from.into(), &datagram)
                    .is_some()
            );
            // Its contents do not matter any more, only whose it is.
            datagram.truncate(30);
            core.work.costs.insert(from, Duration::from_micros(cost));
            Self {
                socket,
                datagram,
                every: Duration::from_micros(every),
                sent: Vec::new(),
            }
        }

        fn send_until(&mut self, begun: Duration, now: Duration) {
            while begun + self.every * (self.sent.len() as u32) <= now {
                self.socket.send(&self.datagram).expect("loopback");
                self.sent
                    .push(begun + self.every * (self.sent.len() as u32));
            }
        }

        fn handled<'a>(&self, core: &'a Core) -> &'a [Duration] {
            let from = self.socket.local_addr().expect("an address");
            core.work.handled.get(&from).map_or(&[], Vec::as_slice)
        }
    }

    /// In counted work: one sender costs twice the time that there is. Its datagrams wait in the
    /// same socket as those of another one, which lose nothing and wait for a few turns only.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_flood_of_expensive_datagrams_costs_only_its_sender() {
        let hub = rig::core(3, &[(1, None), (2, None)]);
        let mut driver = driver(&hub);
        let at = driver.sockets.local();
        let mut rogue = Sender::new((&hub, 0, at), 1, (50, 100));
        let mut honest = Sender::new((&hub, 1, at), 2, (2000, 20));
        let begun = hub.borrow().now();
        let lasting = Duration::from_secs(2);
        let mut last = begun;
        loop {
            let now = hub.borrow().now();
            if now < begun + lasting {
                rogue.send_until(begun, now);
                honest.send_until(begun, now);
            } else if honest.handled(&hub.borrow()).len() == honest.sent.len() {
                break;
            }
            assert!(now < begun + 10 * lasting, "datagrams were lost");
            poll_fn(|cx| Poll::Ready(driver.poll(cx).is_ready())).await;
            yield_now().await;
            let core = &mut *hub.borrow_mut();
            if core.now() == last {
                core.pass_time(Duration::from_micros(50));
            }
            last = core.now();
        }
        let core = hub.borrow();
        let times = honest.handled(&core).iter().zip(&honest.sent);
        let wait = times.map(|(handled, sent)| *handled - *sent).max();
        assert!(wait < Some(Duration::from_millis(15)), "{wait:?}");
        let stats = core.context.counters.snapshot();
        assert_eq!(stats.tunnel_datagrams_dropped, 0);
        assert!(stats.tunnel_datagrams_shed > 1000);
        let worked = rogue.handled(&core).len() as u32 * Duration::from_micros(100);
        assert!(worked > lasting * 9 / 10, "{worked:?} of {lasting:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_timer_expires_is_set_anew_and_unset() {
        let mut timer = Timer::new().expect("a timer");
        let now = Duration::from_secs(1000);
        let soon = Some(now + Duration::from_micros(300));
        poll_fn(|cx| timer.poll(cx, soon, now)).await;
        let never = poll_fn(|cx| {
            let late = Some(now + Duration::from_secs(3600));
            assert!(timer.poll(cx, late, now).is_pending());
            timer.poll(cx, None, now)
        });
        let waited = timeout(Duration::from_millis(20), never).await;
        assert!(waited.is_err());
        // A deadline in the past, twice.
        poll_fn(|cx| timer.poll(cx, Some(Duration::ZERO), now)).await;
        poll_fn(|cx| timer.poll(cx, Some(Duration::ZERO), now)).await;
    }
}
