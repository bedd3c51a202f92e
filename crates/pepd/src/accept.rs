//! Taking connections from a site's listeners.
//!
//! Everything a flow needs is reserved before its client is accepted. What is short, then,
//! leaves the client in the kernel's queue, where it waits; it is not accepted and then
//! dropped. Nothing here ends the daemon or spins.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use pep_core::{
    relay::Side,
    site::{SynHandling, WhileDown},
};
use pepd_intercept::other_marks::OtherMark;
use pepd_relay::{
    arena::SlotState,
    flow::{self, FlowContext, FlowInfo, FlowMemory, ServerLeg, connect, waiting},
    limits::Resource,
};
use pepd_sys::{
    leg::{self, Family, FromSyn, ReservedLeg, SiteRuntime},
    reactor, socket,
};
use pepd_tunnel::Route;
use socket2::{SockRef, Socket};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::yield_now,
};

/// Where one worker gets a site's connections of one family. The kernel spreads them over the
/// workers: with one socket for all, each connection would wake every worker.
#[derive(Debug)]
pub struct Listener {
    /// Whose connections come to it.
    pub site: Arc<SiteRuntime>,
    /// Of which kind.
    pub family: Family,
    /// It.
    pub socket: Socket,
    /// Into which tunnel its flows go, if into one.
    pub route: Option<Route>,
}

impl Listener {
    /// Server legs that are kept ready for it while nobody comes.
    pub fn reserved_legs(&self) -> usize {
        match self.site.syn {
            SynHandling::Spoof => 1,
            SynHandling::Defer => 0,
        }
    }
}

/// What a flow needs before its client is accepted.
#[derive(Debug)]
struct Reserve {
    memory: FlowMemory,
    /// For a site that connects once the client is accepted.
    leg: Option<ReservedLeg>,
}

/// One worker's share of a listener's connections.
#[derive(Debug)]
pub struct Acceptor {
    context: Arc<FlowContext>,
    site: Arc<SiteRuntime>,
    family: Family,
    listener: AsyncFd<OwnedFd>,
    route: Option<Route>,
    reserve: Option<Reserve>,
}

/// Why nobody was accepted.
#[derive(Debug)]
enum AcceptError {
    /// What a flow needs is not to be had.
    Reserve(io::Error),
    /// A connection failed in the queue (accept(2)): the next may be well.
    Queue(io::Error),
}

impl Acceptor {
    /// Registers the listener with the current runtime.
    ///
    /// # Errors
    /// When there is no memory or watch for it.
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

    /// Accepts for as long as it is polled.
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

    /// Where one has come, another will: what it needs is reserved while the first is served. An
    /// error is reported once somebody has come.
    fn reserve_ahead(&mut self) {
        if self.reserve.is_none() {
            self.reserve = self.new_reserve().ok();
        }
    }

    /// What is reserved stays so when there turns out to be nobody: the next will need it.
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

    /// A flow that goes into a tunnel needs no leg here.
    fn new_reserve(&self) -> io::Result<Reserve> {
        let connects = self.site.syn == SynHandling::Spoof && self.tunnel().is_none();
        Reserve::new(&self.context, &self.site, self.family, connects)
    }

    /// The tunnel into which a flow goes that comes now.
    fn tunnel(&self) -> Option<&Route> {
        let route = self.route.as_ref()?;
        let waits = self.waits(self.context.outage.is_down()) && route.is_served();
        (route.takes_flows() || waits).then_some(route)
    }

    /// What is not to be had now is asked for again when a flow has ended, or a moment later.
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
        let foreign = self.foreign(&ends);
        let ends = FlowInfo {
            site: self.site.on_way(foreign.is_off_link),
            ..ends
        };
        // Other uplinks do not wait for the link.
        let away = self.context.outage.is_down() && !foreign.is_off_link;
        if away && self.site.while_down == WhileDown::Refuse {
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
            tracing::debug!(%client, site, "its peer is gone: a flow goes without the tunnel");
        }
        let context = Arc::clone(&self.context);
        let Reserve { memory, leg } = reserve;
        memory.publish_accepted(&context, &ends, fd.as_fd());
        // One made ahead has the options of the link.
        let leg = leg.filter(|_| !foreign.is_off_link);
        if self.waits(away) {
            self.begin_later(fd, ends, foreign.mark, memory, leg);
            return Ok(());
        }
        match self.server_leg(&fd, &ends, foreign.mark, &memory, leg) {
            Ok(server) => {
                let flow = flow::serve(context, ends, memory, fd, server);
                drop(tokio::spawn(flow));
            }
            Err(err) => {
                memory.slot.publish_state(SlotState::Closed);
                flow::refuse(&context, &ends, fd, &err);
            }
        }
        Ok(())
    }

    /// The mark that another program has set on the SYN of a flow that is split.
    fn foreign(&self, ends: &FlowInfo) -> OtherMark {
        let marks = self.context.foreign.as_ref();
        let marks = marks.filter(|_| self.route.is_none());
        marks.map_or_else(OtherMark::default, |marks| marks.for_flow(&ends.tuple()))
    }

    /// Whether flows that come now wait for the link.
    fn waits(&self, away: bool) -> bool {
        away && self.site.waits_for_link()
    }

    /// Serves a client once the link is back.
    fn begin_later(
        &self,
        client: OwnedFd,
        ends: FlowInfo,
        mark: u32,
        memory: FlowMemory,
        reserved: Option<ReservedLeg>,
    ) {
        let dscp = self.keep_dscp(&client);
        let (family, syn) = (self.family, FromSyn { dscp, mark });
        let (context, to) = (Arc::clone(&self.context), ends.clone());
        let begin = move |memory: &FlowMemory| {
            if !leg::may_be_host(to.destination.ip()) {
                return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
            }
            let publish = |leg: BorrowedFd<'_>| flow::publish_leg(&memory.slot, Side::Server, leg);
            let leg = match reserved {
                Some(leg) => leg,
                None => ReservedLeg::new(&to.site, family)?,
            };
            connect(&context, leg, family, (&to, syn), publish)
        };
        let context = Arc::clone(&self.context);
        let flow = waiting::serve_when_back(context, ends, memory, client, begin);
        drop(tokio::spawn(flow));
    }

    fn server_leg(
        &self,
        client: &OwnedFd,
        ends: &FlowInfo,
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
                // It went with the process that held the SYN: its server is asked again.
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
            // The tunnel was lost after the reservation, or a held leg is.
            None => ReservedLeg::new(&ends.site, self.family)?,
        };
        let dscp = self.keep_dscp(client);
        let syn = FromSyn { dscp, mark };
        let leg = connect(&self.context, leg, self.family, (ends, syn), publish);
        leg.map(ServerLeg::Connecting)
    }

    fn may_be_lost(&self) -> bool {
        let held = self.context.held.as_ref();
        held.is_some_and(|held| held.may_be_lost())
    }

    /// The leg whose server has answered already; without one the client has to be reset: it
    /// came too late.
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

    /// The DSCP of the client's SYN, which its own leg has from now on.
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
