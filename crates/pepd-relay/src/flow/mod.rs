//! One flow: two legs, a slot of the arena, and the [`Relay`] that decides.
//!
//! A flow is one task. Whatever happens to the task, the flow ends properly: when it is dropped
//! before its end both hosts get RST, and the log its line.

mod closing;
mod connecting;
pub mod idle;
mod leg_io;
mod published;
mod receive_window;
mod recorders;
mod relaying;
mod resuming;
pub mod revive;
mod silence;
pub mod tail;
#[cfg(test)]
mod tests;
pub mod waiting;
mod wakefulness;
mod watchers;

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use pep_core::{
    budget::{MemoryBudget, Share},
    hosts::Host,
    relay::{Direction, Relay, RelayLimits, Side},
    stats::EndReason,
    syn::FlowTuple,
};
use pepd_intercept::foreign::ForeignMarks;
use pepd_sys::{held::HeldLegs, leg::SiteRuntime, stats::Counters, unanswered::Unanswered};

use crate::{
    arena::{Arena, Slot, SlotState},
    limits::{Admission, Permit},
    outage::LinkWatch,
    share::{FlowShare, SharedLink},
    survive::pulse::Pulse,
};
pub use connecting::{connect, connected, reason};
pub use leg_io::LegIo;
pub use published::{born, publish_cookie, publish_leg};
use receive_window::ReceiveWindow;
pub use recorders::{Attached, Chunk, Recorded, Recorder, Recorders, Recording};
pub use relaying::SHORTAGE_RETRY;
pub use resuming::age;
pub use resuming::{Lost, Resumed, resume};
pub use silence::Silence;
use wakefulness::Wakefulness;
pub use watchers::{Ended, Watch, Watched, Watchers};

/// What all flows share.
#[derive(Debug)]
pub struct FlowContext {
    /// Memory for their bytes.
    pub arena: Arc<Arena>,
    /// How much of it they may use.
    pub budget: Arc<MemoryBudget>,
    /// Sizes.
    pub limits: RelayLimits,
    /// How long a flow may wait awake.
    pub busy_poll: Duration,
    /// Who is let in.
    pub admission: Arc<Admission>,
    /// What has happened.
    pub counters: Arc<Counters>,
    /// Server legs of sites that defer, where there is one.
    pub held: Option<Arc<HeldLegs>>,
    /// Marks that other programs have set on hosts' SYNs, where hosts' connections are redirected.
    pub foreign: Option<ForeignMarks>,
    /// Where flows hear of next hops that do not answer.
    pub unanswered: Arc<Unanswered>,
    /// Answers of servers, and their silence over IPv6.
    pub silence: Silence,
    /// Whether the threads go on.
    pub pulse: Pulse,
    /// Whether the link is there.
    pub outage: Arc<LinkWatch>,
    /// The link, where its rate is stated.
    pub link: Option<Arc<SharedLink>>,
    /// Who waits for the end of which flow.
    pub watchers: Arc<Watchers>,
    /// Traces that are asked for.
    pub recorders: Arc<Recorders>,
}

impl FlowContext {
    /// Memory for one flow, or `None` when all is taken.
    pub fn take_memory(&self) -> Option<FlowMemory> {
        let slot = self.arena.take_slot()?;
        let share = Share::take(&self.budget, self.initial_bytes())?;
        Some(FlowMemory { slot, share })
    }

    /// Whether the budget has room for one more flow.
    pub fn next_flow_fits(&self) -> bool {
        self.budget.has(self.initial_bytes())
    }

    fn share_of(&self, ends: &Ends) -> Option<FlowShare> {
        let terms = ends.site.share_terms(&ends.destination)?;
        let link = Arc::clone(self.link.as_ref()?);
        Some(FlowShare::new(link, terms))
    }

    fn initial_bytes(&self) -> u64 {
        2 * self.limits.ring_initial
    }
}

/// Memory of one flow.
#[derive(Debug)]
pub struct FlowMemory {
    /// Its place in the arena.
    pub slot: Slot,
    /// Its part of the budget.
    pub share: Share,
}

/// Who talks to whom, under which policy.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The client's address.
    pub client: SocketAddr,
    /// Where it wants to go.
    pub destination: SocketAddr,
    /// The site that took the flow, or as whose its server leg is made.
    pub site: Arc<SiteRuntime>,
    /// The peer that has sent it, if one has: no site of ours took it then.
    pub peer: Option<Arc<str>>,
}

/// A server leg that is not known to have failed.
#[derive(Debug)]
pub enum ServerLeg {
    /// connect() has begun.
    Connecting(OwnedFd),
    /// It is connected.
    Connected(OwnedFd),
}

/// Serves an accepted client to the end of its flow.
pub async fn serve(
    context: Arc<FlowContext>,
    ends: Ends,
    memory: FlowMemory,
    client: OwnedFd,
    server: ServerLeg,
) {
    let (server, connecting) = match server {
        ServerLeg::Connecting(fd) => (fd, true),
        ServerLeg::Connected(fd) => (fd, false),
    };
    let Some(mut flow) = Flow::new(context, ends, memory, client, server) else {
        return;
    };
    if connecting && let Err(reason) = flow.connect().await {
        flow.ending = reason;
        return;
    }
    flow.relay_and_close().await;
}

/// Ends a flow that cannot begin: the client gets RST at once.
pub fn refuse(context: &FlowContext, ends: &Ends, client: OwnedFd, err: &io::Error) {
    drop(client);
    tell_refused(context, ends, reason(err), Some(err));
}

/// Resets a client whose site wants no flows while the link is away.
pub fn refuse_while_away(context: &FlowContext, ends: &Ends, client: OwnedFd) {
    drop(client);
    tell_refused(context, ends, EndReason::LinkDown, None);
}

fn tell_refused(context: &FlowContext, ends: &Ends, reason: EndReason, error: Option<&io::Error>) {
    let end = FlowEnd {
        reason,
        error,
        ..FlowEnd::default()
    };
    end.tell(context, ends);
}

/// One flow.
#[derive(Debug)]
struct Flow {
    context: Arc<FlowContext>,
    ends: Ends,
    legs: [LegIo; 2],
    slot: Slot,
    relay: Relay,
    began: Instant,
    wakefulness: Wakefulness,
    /// Where it shares the link.
    share: Option<FlowShare>,
    /// Of the leg that crosses the link.
    receive_window: ReceiveWindow,
    /// Bytes up and down that are in the counters already.
    counted: [u64; 2],
    /// The first error of a leg.
    failure: Option<io::Error>,
    recorded: Attached,
    /// How a flow that is dropped now has ended.
    ending: EndReason,
    _permit: Permit,
}

impl Flow {
    /// `None` when the event loop does not take it; that is logged.
    fn new(
        context: Arc<FlowContext>,
        ends: Ends,
        memory: FlowMemory,
        client: OwnedFd,
        server: OwnedFd,
    ) -> Option<Self> {
        let FlowMemory { slot, share } = memory;
        let relay = Relay::new(context.limits, share);
        Self::with_relay(context, ends, slot, relay, [client, server])
    }

    /// The same with a relay that may be anywhere.
    fn with_relay(
        context: Arc<FlowContext>,
        ends: Ends,
        slot: Slot,
        relay: Relay,
        [client, server]: [OwnedFd; 2],
    ) -> Option<Self> {
        let permit = context.admission.admit(&ends.site.tally, ends.host());
        let legs = LegIo::new(client).and_then(|client| Ok([client, LegIo::new(server)?]));
        let legs = match legs {
            Ok(legs) => legs,
            Err(err) => {
                tell_refused(&context, &ends, reason(&err), Some(&err));
                return None;
            }
        };
        let link_leg = &legs[ends.site.link_side as usize];
        revive::watch(link_leg.shared(), &ends.site.timeouts);
        let receive_window = ReceiveWindow::new(
            ends.site.link_leg().buffers.receive,
            Share::none(&context.budget),
            link_leg.fd(),
        );
        Some(Self {
            relay,
            wakefulness: Wakefulness::new(context.busy_poll),
            slot,
            share: context.share_of(&ends),
            receive_window,
            context,
            ends,
            legs,
            began: Instant::now(),
            counted: [0; 2],
            failure: None,
            recorded: Attached::default(),
            ending: EndReason::Drained,
            _permit: permit,
        })
    }

    /// Relays to the end, once both legs are connected.
    async fn relay_and_close(&mut self) {
        match self.relay().await {
            Ok(end) => self.close(end).await,
            Err(reason) => self.ending = reason,
        }
    }

    /// Passes on what the relay has traced, where that is asked for.
    fn record(&mut self) {
        let Self { ends, recorded, .. } = self;
        let is_ours = |what| what == Recorded::Flow(Watched::from(&*ends));
        let is_recorded = recorded.update(&self.context.recorders, is_ours);
        let trace = self.relay.trace();
        if is_recorded || trace.is_on() {
            let now = self.began.elapsed();
            recorded.take(now, [trace], |_| None);
        }
    }

    fn leg(&self, side: Side) -> &LegIo {
        &self.legs[side as usize]
    }

    fn delivered(&self) -> [u64; 2] {
        Direction::ALL.map(|direction| self.relay.half(direction).delivered())
    }

    /// Adds the bytes moved since the last time to the counters.
    fn count_bytes(&mut self) {
        let now = self.delivered();
        let [up, down] = std::mem::replace(&mut self.counted, now);
        if now == [up, down] {
            return;
        }
        let moved = [now[0] - up, now[1] - down];
        self.ends.site.tally.relay(moved);
        self.context.counters.update(|stats| {
            stats.up_bytes += moved[0];
            stats.down_bytes += moved[1];
        });
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.slot.publish_state(SlotState::Closed);
        self.record();
        self.count_bytes();
        let [up, down] = self.delivered();
        let undelivered = |direction| match self.ending {
            EndReason::Closed => 0,
            _ => self.relay.half(direction).undelivered(),
        };
        let end = FlowEnd {
            reason: self.ending,
            up,
            down,
            up_undelivered: undelivered(Direction::Up),
            down_undelivered: undelivered(Direction::Down),
            growth_denied: self.relay.growth_denied(),
            carried: None,
            duration: self.began.elapsed(),
            error: self.failure.as_ref(),
        };
        end.tell(&self.context, &self.ends);
    }
}

/// What is told of a flow at its end.
pub struct FlowEnd<'a> {
    /// Reason.
    pub reason: EndReason,
    /// Bytes delivered to the server.
    pub up: u64,
    /// Bytes delivered to the client.
    pub down: u64,
    /// Bytes of the client that the server never got.
    pub up_undelivered: u64,
    /// Bytes of the server that the client never got.
    pub down_undelivered: u64,
    /// Times that a ring was not allowed to grow.
    pub growth_denied: u64,
    /// Bytes up and down that streams carried for these, where they were compressed.
    pub carried: Option<[u64; 2]>,
    /// Time since it began.
    pub duration: Duration,
    /// Error that ended it, if one did.
    pub error: Option<&'a io::Error>,
}

impl Default for FlowEnd<'_> {
    fn default() -> Self {
        Self {
            reason: EndReason::Error,
            up: 0,
            down: 0,
            up_undelivered: 0,
            down_undelivered: 0,
            growth_denied: 0,
            carried: None,
            duration: Duration::ZERO,
            error: None,
        }
    }
}

impl FlowEnd<'_> {
    /// Tells all who want to know.
    pub fn tell(&self, context: &FlowContext, ends: &Ends) {
        self.count(context, ends);
        self.log(ends);
        context.watchers.tell(ends, self);
    }

    /// Bytes delivered are counted while the flow lives.
    fn count(&self, context: &FlowContext, ends: &Ends) {
        ends.site.tally.end(self.reason);
        context.counters.update(|stats| {
            stats.on_flow_end(self.reason);
            stats.up_undelivered_bytes += self.up_undelivered;
            stats.down_undelivered_bytes += self.down_undelivered;
            stats.ring_growth_denied += self.growth_denied;
        });
    }

    fn log(&self, ends: &Ends) {
        ends.span().in_scope(|| {
            if let Some(err) = self.error {
                tracing::debug!(error = %err, "a leg failed");
            }
            tracing::info!(
                up_bytes = self.up,
                down_bytes = self.down,
                up_undelivered = (self.up_undelivered > 0).then_some(self.up_undelivered),
                down_undelivered = (self.down_undelivered > 0).then_some(self.down_undelivered),
                up_carried = self.carried.map(|[up, _]| up),
                down_carried = self.carried.map(|[_, down]| down),
                duration_ms = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
                reason = self.reason.as_str(),
                "flow ended"
            );
        });
    }
}

impl Ends {
    /// The host behind us whose flow it is; none where a peer has sent it.
    pub fn host(&self) -> Option<Host> {
        let is_ours = self.peer.is_none();
        is_ours.then(|| Host::of(self.client.ip()))
    }

    /// The four addresses by which the kernel and the holder of SYNs know it.
    pub const fn tuple(&self) -> FlowTuple {
        FlowTuple {
            client: self.client,
            destination: self.destination,
        }
    }

    /// The flow's span. Made when something is to be said, not kept: a flow that is silent for
    /// hours then costs no memory in the log.
    fn span(&self) -> tracing::Span {
        let peer = self.peer.as_deref();
        let site = peer.is_none().then_some(self.site.name.as_str());
        tracing::info_span!(
            "flow",
            client = %self.client,
            destination = %self.destination,
            site,
            peer,
        )
    }
}
