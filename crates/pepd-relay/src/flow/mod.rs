//! Flow: two legs, a slot of the arena, and the [`Relay`] that makes the decisions.
//!
//! A flow is one task. A task that is dropped before its end still closes the flow properly: both
//! hosts get RST, and the end is logged.

mod busy_poll;
mod client_ports;
mod closing;
mod connecting;
mod end_lines;
pub mod idle;
mod leg_io;
mod published;
mod receive_bound;
mod receive_window;
mod recorders;
mod relaying;
mod resuming;
pub mod revive;
pub mod rounds;
mod silence;
pub mod tail;
#[cfg(test)]
mod tests;
pub mod waiting;
mod watchers;

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use pep_core::{
    budget::{MemoryBudget, MemoryPart, Share},
    hosts::Host,
    pace::Line,
    parties::Party,
    relay::{Direction, Keepalives, Relay, RelayLimits, Side},
    share::{Place, Priority},
    stats::EndReason,
    syn::FlowTuple,
};
use pepd_intercept::other_marks::OtherMarks;
use pepd_sys::{held::HeldLegs, leg::SiteRuntime, stats::Counters, unanswered::Unanswered};

use crate::{
    arena::{Arena, Slot, SlotState},
    limits::{Admission, Permit},
    outage::LinkWatch,
    share::{FlowShare, SharedLink},
    survive::heartbeat::Heartbeat,
};
use busy_poll::BusyPoll;
pub use client_ports::ClientPorts;
pub use connecting::{connect, connected, reason};
pub use end_lines::{EndLines, tells_all};
pub use leg_io::LegIo;
pub use published::{born, publish_cookie, publish_leg};
use receive_window::ReceiveWindow;
pub use recorders::{Attached, Chunk, Recorded, Recorder, Recorders, Recording};
pub use relaying::{SHORTAGE_RETRY, ending};
pub use resuming::age;
pub use resuming::{Lost, Resumed, resume};
pub use silence::Silence;
pub use watchers::{Ended, Watch, Watched, Watchers};

/// State shared by all flows.
#[derive(Debug)]
pub struct FlowContext {
    /// Memory for their bytes.
    pub arena: Arc<Arena>,
    /// Budget for their memory.
    pub budget: Arc<MemoryBudget>,
    /// Ring sizes and thresholds.
    pub limits: RelayLimits,
    /// Maximum busy polling time of a wait.
    pub busy_poll: Duration,
    /// Admission control.
    pub admission: Arc<Admission>,
    /// Event counters.
    pub counters: Arc<Counters>,
    /// Held server legs, if a site defers.
    pub held: Option<Arc<HeldLegs>>,
    /// Marks that other programs have set on hosts' SYNs, where connections are redirected.
    pub other_marks: Option<OtherMarks>,
    /// Collector of unanswered next hops.
    pub unanswered: Arc<Unanswered>,
    /// Log lines on ended flows.
    pub end_lines: EndLines,
    /// Server legs by the client's port.
    pub client_ports: ClientPorts,
    /// Server answers, and silence over IPv6.
    pub silence: Silence,
    /// Liveness of the threads.
    pub heartbeat: Heartbeat,
    /// State of the link.
    pub outage: Arc<LinkWatch>,
    /// Shared link, if its rate is configured.
    pub link: Option<Arc<SharedLink>>,
    /// Subscribers to the end of flows.
    pub watchers: Arc<Watchers>,
    /// Requested traces.
    pub recorders: Arc<Recorders>,
}

impl FlowContext {
    /// Takes memory for one flow; `None` when none is left.
    pub fn take_memory(&self) -> Option<FlowMemory> {
        let slot = self.arena.take_slot()?;
        let share = Share::take(&self.budget, self.initial_bytes())?;
        Some(FlowMemory { slot, share })
    }

    /// Takes memory for one more flow of a party with that many; `None` also when memory is short
    /// and the party has [its part](Share::take_beside) of what is for new flows.
    pub fn take_memory_beside(&self, flows: u32) -> Option<FlowMemory> {
        let slot = self.arena.take_slot()?;
        let had = self.initial_bytes().saturating_mul(flows.into());
        let share = Share::take_beside(&self.budget, self.initial_bytes(), had)?;
        Some(FlowMemory { slot, share })
    }

    /// Returns what a party has of the memory for growing rings.
    pub fn memory_part(&self, party: Party) -> Arc<MemoryPart> {
        self.admission.memory_part(party, &self.budget)
    }

    /// Returns whether there are memory and a slot for one more flow of anyone.
    pub fn has_room_for_flow(&self) -> bool {
        self.next_flow_fits() && self.arena.has_free_slot()
    }

    /// Returns whether the budget has room for one more flow.
    pub fn next_flow_fits(&self) -> bool {
        self.budget.has(self.initial_bytes())
    }

    /// Returns the share of a flow; `begins` is true if it has not relayed anything.
    fn share_of(&self, ends: &FlowInfo, begins: bool) -> Option<FlowShare> {
        let terms = ends.site.share_terms(&ends.destination)?;
        let link = Arc::clone(self.link.as_ref()?);
        let place = Place {
            priority: Priority::of(ends.site.class),
            site: ends.site.id,
            host: ends.near_host().number(),
        };
        Some(FlowShare::new(link, terms, place, begins))
    }

    fn initial_bytes(&self) -> u64 {
        2 * self.limits.ring_initial
    }
}

/// Memory of one flow.
#[derive(Debug)]
pub struct FlowMemory {
    /// Slot in the arena.
    pub slot: Slot,
    /// Share of the budget.
    pub share: Share,
}

impl FlowMemory {
    /// Makes this the memory of one of the flows with this part. To be called once.
    #[must_use]
    pub fn of(mut self, context: &FlowContext, part: &Arc<MemoryPart>) -> Self {
        self.share.belong(part, context.initial_bytes());
        self
    }

    /// Makes this the memory of a flow that its host shares with no peer.
    fn of_host(self, context: &FlowContext, ends: &FlowInfo) -> Self {
        let party = Party::host(ends.client.ip());
        self.of(context, &context.memory_part(party))
    }
}

/// Endpoints and policy of a flow.
#[derive(Debug, Clone)]
pub struct FlowInfo {
    /// Address of the client.
    pub client: SocketAddr,
    /// Destination that the client connects to.
    pub destination: SocketAddr,
    /// Site that took the flow, or whose policy its server leg has.
    pub site: Arc<SiteRuntime>,
    /// Peer that sent the flow. If set, no local site took it.
    pub peer: Option<Arc<str>>,
}

/// Server leg not known to have failed.
#[derive(Debug)]
pub enum ServerLeg {
    /// connect() is in progress.
    Connecting(OwnedFd),
    /// Connected.
    Connected(OwnedFd),
}

/// Returns a task that serves an accepted client until its flow ends. Must be called within the
/// runtime of the worker that runs it.
pub fn serve(
    context: Arc<FlowContext>,
    ends: FlowInfo,
    memory: FlowMemory,
    client: OwnedFd,
    server: ServerLeg,
) -> impl Future<Output = ()> {
    let (server, connecting) = match server {
        ServerLeg::Connecting(fd) => (fd, true),
        ServerLeg::Connected(fd) => (fd, false),
    };
    // Not in the task, which would keep room for the arguments beside the flow.
    let mut flow = Flow::new(context, ends, memory, client, server);
    async move {
        // By reference: a flow moved out of the option would take room twice in the task.
        let Some(flow) = &mut flow else {
            return;
        };
        if connecting && let Err(reason) = flow.connect().await {
            flow.ending = reason;
            return;
        }
        flow.relay_and_close().await;
    }
}

/// Refuses a flow that cannot begin: resets the client at once.
pub fn refuse(context: &FlowContext, ends: &FlowInfo, client: OwnedFd, err: &io::Error) {
    drop(client);
    log_refused(context, ends, reason(err), Some(err));
}

/// Resets a client whose site refuses flows while the link is down.
pub fn refuse_while_down(context: &FlowContext, ends: &FlowInfo, client: OwnedFd) {
    drop(client);
    log_refused(context, ends, EndReason::LinkDown, None);
}

fn log_refused(
    context: &FlowContext,
    ends: &FlowInfo,
    reason: EndReason,
    error: Option<&io::Error>,
) {
    let end = FlowEnd {
        reason,
        error,
        ..FlowEnd::default()
    };
    end.record(context, ends);
}

/// Flow with both legs.
#[derive(Debug)]
struct Flow {
    context: Arc<FlowContext>,
    ends: FlowInfo,
    legs: [LegIo; 2],
    slot: Slot,
    relay: Relay,
    began: Instant,
    busy_poll: BusyPoll,
    /// Share of the link's rate, if the flow shares it.
    share: Option<FlowShare>,
    /// Receive window of the leg that crosses the link.
    receive_window: ReceiveWindow,
    /// Mark that the flow has sent into its link leg.
    link_used: Arc<revive::Used>,
    /// Bytes up and down already added to the counters.
    counted: [u64; 2],
    /// Keepalives of both ends, while the flow is idle.
    keepalives: Keepalives,
    /// Sides whose keepalives stay unanswered.
    muted: [bool; 2],
    /// True if the flow has lasted long enough for the keepalive of its server leg.
    is_lasting: bool,
    /// True if the server had acknowledged all bytes and the FIN of the client before pepd passed
    /// the server's FIN to the client.
    is_confirmed: bool,
    /// First error of a leg.
    failure: Option<io::Error>,
    recorded: Attached,
    /// End reason if the flow is dropped now.
    ending: EndReason,
    _permit: Permit,
}

impl Flow {
    /// Creates a flow; logs and returns `None` if the event loop rejects a leg.
    fn new(
        context: Arc<FlowContext>,
        ends: FlowInfo,
        memory: FlowMemory,
        client: OwnedFd,
        server: OwnedFd,
    ) -> Option<Self> {
        let FlowMemory { slot, share } = memory.of_host(&context, &ends);
        let relay = Relay::new(context.limits, share);
        Self::with_relay(context, ends, slot, relay, [client, server])
    }

    /// Creates a flow with a relay in any state.
    fn with_relay(
        context: Arc<FlowContext>,
        ends: FlowInfo,
        slot: Slot,
        relay: Relay,
        [client, server]: [OwnedFd; 2],
    ) -> Option<Self> {
        let permit = context
            .admission
            .admit(&ends.site.site_counters, ends.host());
        let legs = LegIo::new(client).and_then(|client| Ok([client, LegIo::new(server)?]));
        let mut legs = match legs {
            Ok(legs) => legs,
            Err(err) => {
                log_refused(&context, &ends, reason(&err), Some(&err));
                return None;
            }
        };
        let party = Party::host(ends.client.ip());
        for side in Side::ALL {
            legs[side as usize].bound_receive(&context, &ends.site, side, party);
        }
        let begins = Direction::ALL
            .iter()
            .all(|direction| relay.direction(*direction).delivered() == 0);
        let link_leg = &legs[ends.site.link_side as usize];
        let link_used = revive::watch(link_leg.shared(), ends.site.link_leg());
        let buffer = ends.site.link_leg().buffers.receive;
        let part = context.memory_part(party);
        let receive_window = ReceiveWindow::new(buffer, Share::none_of(&part));
        Some(Self {
            relay,
            busy_poll: BusyPoll::new(context.busy_poll),
            slot,
            share: context.share_of(&ends, begins),
            receive_window,
            link_used,
            context,
            ends,
            legs,
            began: Instant::now(),
            counted: [0; 2],
            keepalives: Keepalives::default(),
            muted: [false; 2],
            is_lasting: false,
            is_confirmed: false,
            failure: None,
            recorded: Attached::default(),
            ending: EndReason::Drained,
            _permit: permit,
        })
    }

    /// Replaces the server leg, before it has connected.
    fn replace_server(&mut self, mut leg: LegIo) {
        let party = Party::host(self.ends.client.ip());
        leg.bound_receive(&self.context, &self.ends.site, Side::Server, party);
        if self.ends.site.link_side == Side::Server {
            self.link_used = revive::watch(leg.shared(), self.ends.site.link_leg());
        }
        self.legs[Side::Server as usize] = leg;
    }

    /// Relays until the end, once both legs are connected.
    async fn relay_and_close(&mut self) {
        let ended = self.relay().await;
        self.mute([false; 2]);
        match ended {
            Ok(end) => self.close(end).await,
            Err(reason) => self.ending = reason,
        }
    }

    /// Passes the relay's trace to the recorders, if there are any.
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
        Direction::ALL.map(|direction| self.relay.direction(direction).delivered())
    }

    /// Adds the bytes moved since the last call to the counters.
    fn count_bytes(&mut self) {
        let now = self.delivered();
        let [up, down] = std::mem::replace(&mut self.counted, now);
        if now == [up, down] {
            return;
        }
        let moved = [now[0] - up, now[1] - down];
        self.ends.site.site_counters.relay(moved);
        self.context.counters.update(|stats| {
            stats.up_bytes += moved[0];
            stats.down_bytes += moved[1];
        });
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            share.on_end();
        }
        self.slot.publish_state(SlotState::Closed);
        self.record();
        self.count_bytes();
        let [up, down] = self.delivered();
        let undelivered = |direction| match self.ending {
            EndReason::Closed => 0,
            _ => self.relay.direction(direction).undelivered(),
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
        end.record(&self.context, &self.ends);
    }
}

/// Statistics and reason of a flow's end.
pub struct FlowEnd<'a> {
    /// End reason.
    pub reason: EndReason,
    /// Bytes delivered to the server.
    pub up: u64,
    /// Bytes delivered to the client.
    pub down: u64,
    /// Bytes of the client that were not delivered to the server.
    pub up_undelivered: u64,
    /// Bytes of the server that were not delivered to the client.
    pub down_undelivered: u64,
    /// Number of denied ring growths.
    pub growth_denied: u64,
    /// Bytes up and down on the streams that carried them, if compressed.
    pub carried: Option<[u64; 2]>,
    /// Duration of the flow.
    pub duration: Duration,
    /// Error that ended the flow, if any.
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
    /// Counts the end, notifies the watchers, and logs it unless its host has had many lines.
    pub fn record(&self, context: &FlowContext, ends: &FlowInfo) {
        // Whoever sees the line finds the end counted.
        self.record_unlogged(context, ends);
        let host = Host::from_address(ends.client.ip());
        // Those of peers have a pace of their own.
        let line = match ends.peer {
            None => context.end_lines.next(host),
            Some(_) => Some(Line { left_out: None }),
        };
        if let Some(line) = line {
            self.log(ends, line);
        }
    }

    /// Counts the end, and notifies the watchers.
    pub fn record_unlogged(&self, context: &FlowContext, ends: &FlowInfo) {
        self.count(context, ends);
        context.watchers.notify(ends, self);
    }

    /// Counts the end. Delivered bytes are counted while the flow lives.
    fn count(&self, context: &FlowContext, ends: &FlowInfo) {
        ends.site.site_counters.end(self.reason);
        context.counters.update(|stats| {
            stats.on_flow_end(self.reason);
            stats.up_undelivered_bytes += self.up_undelivered;
            stats.down_undelivered_bytes += self.down_undelivered;
            stats.ring_growth_denied += self.growth_denied;
        });
    }

    fn log(&self, ends: &FlowInfo, line: Line) {
        ends.span().in_scope(|| {
            if let Some(err) = self.error {
                tracing::debug!(error = %err, "leg of a flow failed");
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
                left_out = line.left_out,
                "flow ended"
            );
        });
    }
}

impl FlowInfo {
    /// Returns the local host of the flow; `None` for a flow from a peer.
    pub fn host(&self) -> Option<Host> {
        let is_ours = self.peer.is_none();
        is_ours.then(|| Host::from_address(self.client.ip()))
    }

    /// Returns the host on this side of the link: the server, if the client is across it.
    pub(crate) fn near_host(&self) -> Host {
        Host::from_address(match self.site.link_side {
            Side::Server => self.client.ip(),
            Side::Client => self.destination.ip(),
        })
    }

    /// Returns the four addresses by which the kernel and the SYN holder identify the flow.
    pub const fn tuple(&self) -> FlowTuple {
        FlowTuple {
            client: self.client,
            destination: self.destination,
        }
    }

    /// Creates the flow's span. It is not kept: a flow that is silent for hours uses no memory in
    /// the log.
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
