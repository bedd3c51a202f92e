//! Accepting connections from a site's listeners.
//!
//! Everything that a flow needs is reserved before its client is accepted. On a shortage the client
//! waits in the kernel's queue instead of being accepted and then dropped. No error here ends the
//! daemon or makes it spin.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use pep_core::{
    parties::Party,
    relay::Side,
    site::{SynHandling, WhileDown},
};
use pepd_intercept::other_marks::OtherMarks;
use pepd_relay::{
    arena::SlotState,
    flow::{
        self, FlowContext, FlowInfo, FlowMemory, ServerLeg, connect, rounds::in_rounds, waiting,
    },
    limits::Resource,
};
use pepd_sys::{
    leg::{self, Family, FromSyn, ReservedLeg, SiteRuntime},
    marks::OtherMark,
    reactor, socket,
};
use pepd_tunnel::Route;
use socket2::{SockRef, Socket};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::yield_now,
};

/// A worker's listener for a site's connections of one family. The kernel distributes connections
/// over the workers: with one shared socket, each connection would wake all of them.
#[derive(Debug)]
pub struct Listener {
    /// Site of the connections.
    pub site: Arc<SiteRuntime>,
    /// Family of the connections.
    pub family: Family,
    /// Listening socket.
    pub socket: Socket,
    /// Tunnel of the flows, if the site uses one.
    pub route: Option<Route>,
}

impl Listener {
    /// Returns the number of server legs kept ready while no client connects.
    pub fn reserved_legs(&self) -> usize {
        match self.site.syn {
            SynHandling::Spoof => 1,
            SynHandling::Defer => 0,
        }
    }
}

/// Resources of a flow, reserved before its client is accepted.
#[derive(Debug)]
struct Reserve {
    memory: FlowMemory,
    /// Server leg, for a site that connects after accepting the client.
    leg: Option<ReservedLeg>,
}

/// Acceptor of a listener's connections for one worker.
#[derive(Debug)]
pub struct Acceptor {
    context: Arc<FlowContext>,
    site: Arc<SiteRuntime>,
    family: Family,
    listener: AsyncFd<OwnedFd>,
    route: Option<Route>,
    reserve: Option<Reserve>,
}

/// Reason why no client was accepted.
#[derive(Debug)]
enum AcceptError {
    /// A resource of the flow is unavailable.
    Reserve(io::Error),
    /// A connection failed in the queue (accept(2)): the next one may succeed.
    Queue(io::Error),
}

impl Acceptor {
    /// Registers the listener with the current runtime.
    ///
    /// # Errors
    /// When memory or epoll watches are exhausted.
    pub fn new(context: Arc<FlowContext>, listener: Listener) -> io::Result<Self> {
        Ok(Self {
            context,
            site: listener.site,
            family: listener.family,
            listener: reactor::register(listener.socket.into(), Interest::READABLE)?,
            route: listener.route,
            reserve: None,
        })
    }

    /// Accepts connections for as long as it is polled.
    pub async fn run(mut self) {
        loop {
            match self.accept().await {
                Ok(()) => {
                    yield_now().await;
                    self.reserve_ahead();
                }
                Err(err) => self.on_error(&err).await,
            }
        }
    }

    /// Reserves the resources of the next flow while the first is served. An error is reported when
    /// the next client connects.
    fn reserve_ahead(&mut self) {
        if self.reserve.is_none() {
            self.reserve = self.new_reserve().ok();
        }
    }

    /// Accepts a client. A reservation stays for the next one when the queue turns out to be empty.
    async fn accept(&mut self) -> Result<(), AcceptError> {
        let ready = self.listener.readable().await;
        let mut ready = ready.map_err(AcceptError::Queue)?;
        let reserve = match self.reserve.take() {
            Some(reserve) => reserve,
            None => self.new_reserve().map_err(AcceptError::Reserve)?,
        };
        match ready.try_io(|listener| socket::accept(listener.as_fd())) {
            Ok(Ok((fd, client))) => self.begin(fd, client, reserve).map_err(AcceptError::Queue),
            Ok(Err(err)) => {
                self.reserve = Some(reserve);
                Err(AcceptError::Queue(err))
            }
            Err(_would_block) => {
                self.reserve = Some(reserve);
                Ok(())
            }
        }
    }

    /// Reserves resources. A flow in a tunnel needs no leg here.
    fn new_reserve(&self) -> io::Result<Reserve> {
        let connects = self.site.syn == SynHandling::Spoof && self.tunnel().is_none();
        Reserve::new(&self.context, &self.site, self.family, connects)
    }

    /// Returns the tunnel that a new flow would use now.
    fn tunnel(&self) -> Option<&Route> {
        let route = self.route.as_ref()?;
        let waits = self.waits(self.context.outage.is_down()) && route.is_served();
        (route.takes_flows() || waits).then_some(route)
    }

    /// Waits until a flow has ended, or for a moment, after a failed reservation.
    async fn on_error(&self, err: &AcceptError) {
        let (AcceptError::Reserve(cause) | AcceptError::Queue(cause)) = err;
        let admission = &self.context.admission;
        match (Resource::short(cause), err) {
            (Some(resource), _) => admission.on_short(resource),
            (None, AcceptError::Reserve(_)) => admission.on_leg_failed(&self.site.name, cause),
            (None, AcceptError::Queue(_)) => {
                tracing::debug!(error = %cause, site = self.site.name, "cannot accept");
            }
        }
        admission.relief().await;
    }

    fn begin(&self, fd: OwnedFd, client: SocketAddr, reserve: Reserve) -> io::Result<()> {
        self.site.site_counters.arrive(self.family);
        let destination = SockRef::from(&fd).local_addr()?.as_socket();
        let destination = destination.ok_or(io::ErrorKind::InvalidData)?;
        let ends = FlowInfo {
            client,
            destination,
            site: Arc::clone(&self.site),
            peer: None,
        };
        let other_mark = self.other_mark(&ends);
        let mut ends = FlowInfo {
            site: self.site.on_way(other_mark.is_off_link),
            ..ends
        };
        // Other uplinks do not wait for the link.
        let is_down = self.context.outage.is_down() && !other_mark.is_off_link;
        let may_be_off_link = self.may_be_off_link(&ends);
        let is_unsettled = self.context.outage.is_unsettled() && !other_mark.is_off_link;
        if is_down && self.site.while_down == WhileDown::Refuse && !may_be_off_link {
            flow::refuse_while_down(&self.context, &ends, fd);
            return Ok(());
        }
        if let Some(tunnel) = self.tunnel() {
            let dscp = self.keep_dscp(&fd);
            tunnel.hand_over(&self.context, ends, dscp, reserve.memory, fd);
            return Ok(());
        }
        if self.route.is_some() {
            let (client, site) = (ends.client, &self.site.name);
            tracing::debug!(%client, site, "peer is down: flow bypasses the tunnel");
        }
        let context = Arc::clone(&self.context);
        let party = Party::host(ends.client.ip());
        let Reserve { memory, leg } = reserve;
        memory.publish_accepted(&context, &ends, fd.as_fd());
        // A leg that was reserved has the options of the link.
        let leg = leg.filter(|_| !other_mark.is_off_link);
        let refuses = is_down && self.site.while_down == WhileDown::Refuse;
        // A leg that may leave by another interface shows it by its SYN.
        let waits = self.waits(is_down || is_unsettled && !may_be_off_link);
        let beside = match may_be_off_link && (refuses || waits) {
            true => self.beside_link(&fd, &mut ends, other_mark.mark, &memory),
            false => None,
        };
        let server = match beside {
            Some(server) => Ok(server),
            None if refuses => {
                memory.slot.publish_state(SlotState::Closed);
                flow::refuse_while_down(&context, &ends, fd);
                return Ok(());
            }
            None if waits => {
                self.begin_later(fd, ends, other_mark.mark, memory, leg);
                return Ok(());
            }
            None => self.server_leg(&fd, &mut ends, other_mark.mark, &memory, leg),
        };
        match server {
            Ok(server) => {
                let flow = flow::serve(context, ends, memory, fd, server);
                drop(tokio::spawn(in_rounds(party, flow)));
            }
            Err(err) => {
                memory.slot.publish_state(SlotState::Closed);
                flow::refuse(&context, &ends, fd, &err);
            }
        }
        Ok(())
    }

    /// Returns whether only its SYN tells if a flow's server leg crosses the link.
    fn may_be_off_link(&self, ends: &FlowInfo) -> bool {
        let marks = self.context.other_marks.as_ref();
        let has_others = ends.site.beside.is_some() && self.site.syn == SynHandling::Spoof;
        has_others && marks.is_some_and(OtherMarks::have_several_hops)
    }

    /// Connects a flow while the link is down. Returns its leg if that leaves by another interface.
    fn beside_link(
        &self,
        client: &OwnedFd,
        ends: &mut FlowInfo,
        mark: u32,
        memory: &FlowMemory,
    ) -> Option<ServerLeg> {
        let leg = self.server_leg(client, ends, mark, memory, None).ok();
        leg.filter(|_| ends.site.is_beside)
    }

    /// Returns the mark that another program has set on the SYN of a split flow.
    fn other_mark(&self, ends: &FlowInfo) -> OtherMark {
        let marks = self.context.other_marks.as_ref();
        let Some(marks) = marks.filter(|_| self.route.is_none()) else {
            return OtherMark::default();
        };
        let flow = ends.tuple();
        let held = self.context.held.as_ref();
        let held = held.filter(|_| self.site.syn == SynHandling::Defer);
        held.and_then(|held| held.other_mark(&flow))
            .unwrap_or_else(|| marks.for_flow(&flow))
    }

    /// Returns true if new flows wait for the link.
    fn waits(&self, is_down: bool) -> bool {
        is_down && self.site.waits_for_link()
    }

    /// Serves a client once the link is up again, and its routes are there.
    fn begin_later(
        &self,
        client: OwnedFd,
        ends: FlowInfo,
        mark: u32,
        memory: FlowMemory,
        mut reserved: Option<ReservedLeg>,
    ) {
        let dscp = self.keep_dscp(&client);
        let (family, syn) = (self.family, FromSyn { dscp, mark });
        let (context, to) = (Arc::clone(&self.context), ends.clone());
        let begin = move |memory: &FlowMemory| {
            if !leg::may_be_host(to.destination.ip()) {
                return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
            }
            let publish = |leg: BorrowedFd<'_>| flow::publish_leg(&memory.slot, Side::Server, leg);
            let leg = match reserved.take() {
                Some(leg) => leg,
                None => ReservedLeg::new(&to.site, family)?,
            };
            connect(&context, leg, family, (&to, syn), publish)
        };
        let context = Arc::clone(&self.context);
        let party = Party::host(ends.client.ip());
        let flow = waiting::serve_when_up(context, ends, memory, client, begin);
        drop(tokio::spawn(in_rounds(party, flow)));
    }

    fn server_leg(
        &self,
        client: &OwnedFd,
        ends: &mut FlowInfo,
        mark: u32,
        memory: &FlowMemory,
        reserved: Option<ReservedLeg>,
    ) -> io::Result<ServerLeg> {
        let publish = |leg: BorrowedFd<'_>| flow::publish_leg(&memory.slot, Side::Server, leg);
        if !leg::may_be_host(ends.destination.ip()) {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        }
        if self.site.syn == SynHandling::Defer {
            match self.take_held(client, ends) {
                // The leg was lost with the process that held the SYN: pepd connects to the server
                // again.
                Err(_) if self.may_be_lost() => {}
                leg => {
                    let leg = leg?;
                    publish(leg.as_fd());
                    return Ok(ServerLeg::Connected(leg));
                }
            }
        }
        let leg = match reserved {
            Some(leg) => leg,
            // The tunnel was lost after the reservation, or a held leg is missing.
            None => ReservedLeg::new(&ends.site, self.family)?,
        };
        let dscp = self.keep_dscp(client);
        let syn = FromSyn { dscp, mark };
        let leg = connect(&self.context, leg, self.family, (ends, syn), publish)?;
        memory.follow_leg(&self.context, ends, leg.as_fd());
        Ok(ServerLeg::Connecting(leg))
    }

    fn may_be_lost(&self) -> bool {
        let held = self.context.held.as_ref();
        held.is_some_and(|held| held.may_be_lost())
    }

    /// Returns the leg whose server has already answered. Without it the client has to be reset: it
    /// was too late.
    fn take_held(&self, client: &OwnedFd, ends: &FlowInfo) -> io::Result<OwnedFd> {
        let held = self
            .context
            .held
            .as_ref()
            .and_then(|held| held.take(&ends.tuple()));
        let held = held.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        if self.site.keeps_dscp() && held.dscp != 0 {
            leg::set_dscp_or_warn(client.as_fd(), self.family, held.dscp);
        }
        leg::on_connected(held.fd.as_fd(), &ends.site, self.family)?;
        Ok(held.fd)
    }

    /// Returns the DSCP of the client's SYN, and sets it on the client leg.
    fn keep_dscp(&self, client: &OwnedFd) -> u8 {
        if !self.site.keeps_dscp() {
            return 0;
        }
        let dscp = leg::syn_dscp(client.as_fd());
        if dscp != 0 {
            leg::set_dscp_or_warn(client.as_fd(), self.family, dscp);
        }
        dscp
    }
}

impl Reserve {
    fn new(
        context: &FlowContext,
        site: &SiteRuntime,
        family: Family,
        connects: bool,
    ) -> io::Result<Self> {
        let memory = context
            .take_memory()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let leg = connects.then(|| ReservedLeg::new(site, family));
        let leg = leg.transpose()?;
        Ok(Self { memory, leg })
    }
}

#[cfg(test)]
#[path = "accept_tests.rs"]
mod tests;
