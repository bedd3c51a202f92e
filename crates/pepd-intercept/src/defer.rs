//! Held SYNs: the I/O around [`pep_core::syn::Holder`].
//!
//! SYNs come out of a TUN; or, if rules of other programs apply (`forward = "obey"`), out of the
//! kernel's log behind these rules. A SYN of a site that answers at once goes back at once. For
//! others pepd opens the server leg. When the server answers, pepd writes the
//! SYN back into the TUN. The kernel then redirects the SYN to the listener, whose task fetches the
//! server leg from [`HeldLegs`]. When the server does not answer, the client gets the answer that
//! it would have got without pepd.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    io,
    net::IpAddr,
    os::fd::AsFd as _,
    sync::Arc,
};

use pep_core::{
    config::Config,
    site::{FlowKey, Protocol, SiteId, Source},
    syn::{
        Action, Failure, FlowTuple, Holder, HolderConfig,
        packet::{self, IcmpError, Parsed, Unreachable},
    },
};
use pepd_sys::{
    held::{ConnectedLeg, HeldLegs},
    leg::{self, Family, FromSyn, ReservedLeg, SiteRuntime},
    marks::MarkSet,
    packet_log::PacketLog,
    socket,
};
use tokio::{sync::mpsc, time};
use tracing::{debug, trace};

use super::{
    icmp,
    neigh::HeldListener,
    other_marks::OtherMarks,
    raw::{RawSender, address_toward},
    rules::Lan,
    tun::Tun,
    watcher::{PendingLeg, Ready, Watcher},
};

/// Packets read from one TUN before the other TUNs and connected legs have their turn.
const BATCH_MAX: usize = 64;

/// Bytes of the largest packet that a TUN hands out: its MTU is 1500.
const PACKET_BYTES_MAX: usize = 2048;

/// Holds SYNs until [`run`](Self::run) ends.
#[derive(Debug)]
pub struct DeferTask {
    config: Arc<Config>,
    sites: HashMap<SiteId, Arc<SiteRuntime>>,
    other_mark: OtherMarks,
    held: Arc<HeldLegs>,
    tuns: Vec<(Lan, Tun)>,
    /// SYNs that rules of other programs have permitted; `None` if these do not apply.
    permitted: Option<PacketLog>,
    watcher: Watcher,
    reserve: Reserve,
    passed: RawSender,
    answers: RawSender,
    actions: VecDeque<Action>,
    /// Destinations whose next hop does not answer.
    failed: mpsc::Receiver<IpAddr>,
    unreachable_sender: mpsc::Sender<IpAddr>,
}

impl DeferTask {
    /// Returns a task for these TUN devices. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When no descriptors are left, or the process lacks a capability.
    pub(super) fn new(
        (config, other_mark): (Arc<Config>, OtherMarks),
        sites: &[Arc<SiteRuntime>],
        tuns: Vec<(Lan, Tun)>,
        permitted: Option<PacketLog>,
        ipv6: bool,
    ) -> io::Result<Self> {
        let limits = &config.limits;
        let holder = HolderConfig::new(
            limits.held,
            limits.held_per_source,
            limits.held_per_destination,
            config.intercept.syn_lease,
        );
        let marks = MarkSet::new(config.intercept.marks);
        let (unreachable_sender, failed) = mpsc::channel(64);
        Ok(Self {
            sites: sites
                .iter()
                .map(|site| (site.id, Arc::clone(site)))
                .collect(),
            other_mark,
            held: Arc::new(HeldLegs::new(holder)),
            watcher: Watcher::new(tuns.iter().map(|(_, tun)| tun))?,
            reserve: Reserve::default(),
            passed: RawSender::new(marks.passed(), ipv6)?,
            answers: RawSender::new(marks.client_leg(), ipv6)?,
            actions: VecDeque::new(),
            failed,
            unreachable_sender,
            permitted,
            config,
            tuns,
        })
    }

    /// Returns the table from which listeners fetch the server legs of accepted flows.
    pub fn held_legs(&self) -> Arc<HeldLegs> {
        Arc::clone(&self.held)
    }

    /// Returns the receiver of next hops that do not answer, for flows held here.
    pub fn held_listener(&self) -> HeldListener {
        HeldListener {
            legs: self.held_legs(),
            failed: self.unreachable_sender.clone(),
        }
    }

    /// Runs until `shutdown` completes. SYNs that are still held then are dropped, and their
    /// clients repeat them.
    ///
    /// # Errors
    /// When a TUN is removed. The kernel forwards new flows from then on.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let mut ready = Vec::new();
        let mut syns = Vec::new();
        tokio::pin!(shutdown);
        loop {
            let timeout = self.held.next_timeout();
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                result = self.watcher.ready(&mut ready) => {
                    result?;
                    for ready in ready.drain(..) {
                        self.on_ready(ready)?;
                    }
                }
                result = next_permitted(self.permitted.as_ref(), &mut syns) => {
                    result?;
                    for (lan, mut syn) in syns.drain(..) {
                        self.on_permitted(lan, &mut syn);
                    }
                }
                Some(destination) = self.failed.recv() => self.on_neighbour_failed(destination),
                () = until(timeout) => {
                    self.held.input(&mut self.actions, Holder::handle_timeout);
                }
            }
            self.perform_all();
            self.reserve.refill();
        }
    }

    fn on_ready(&mut self, ready: Ready) -> io::Result<()> {
        match ready {
            Ready::Tun(number) => self.read_batch(number),
            Ready::Leg(leg) => {
                self.on_leg_ready(leg);
                self.perform_all();
                Ok(())
            }
        }
    }

    fn read_batch(&mut self, number: usize) -> io::Result<()> {
        let mut buffer = [0; PACKET_BYTES_MAX];
        for _ in 0..BATCH_MAX {
            let Some(length) = self.tuns[number].1.read(&mut buffer)? else {
                break;
            };
            let packet = &buffer[..length];
            self.held.arrive(packet);
            self.take(number, packet);
            self.perform_all();
        }
        Ok(())
    }

    /// Takes a packet of a host behind this LAN interface.
    fn take(&mut self, lan: usize, packet: &[u8]) {
        // Without the log all SYNs are to be held.
        if self.permitted.is_some()
            && let Parsed::Syn(syn) = packet::parse(packet)
        {
            let site = self.site(&syn.flow, syn.dscp, lan);
            if site.is_some_and(|site| !self.config.sites[site.id].is_deferred()) {
                let packet = packet.into();
                self.actions.push_back(Action::Release { lan, packet });
                return;
            }
        }
        self.held.input(&mut self.actions, |holder, now| {
            holder.handle_packet(packet, lan, now);
        });
    }

    /// Takes a SYN that the rules of all programs have permitted, with the checksum that it would
    /// have left with.
    fn on_permitted(&mut self, lan: usize, syn: &mut [u8]) {
        // Others have no TUN, or are what the kernel would drop.
        if lan < self.tuns.len() && packet::complete(syn) {
            let packet = syn.into();
            self.perform(Action::Release { lan, packet });
        }
    }

    fn on_leg_ready(&mut self, leg: PendingLeg) {
        let flow = leg.flow;
        let error = match leg::so_error(leg.fd.as_fd()) {
            Ok(None) => return self.on_connected(leg),
            Ok(Some(err)) | Err(err) => err,
        };
        trace!(?flow, %error, "server leg failed");
        let failure = match icmp::take_error(leg.fd.as_fd()) {
            Some(error) => Failure::Icmp(error),
            None => failure(&error, flow.client.ip()),
        };
        self.fail(flow, failure);
    }

    fn on_connected(&mut self, leg: PendingLeg) {
        let flow = leg.flow;
        let connected = ConnectedLeg {
            fd: leg.fd,
            dscp: leg.dscp,
            other_mark: leg.other_mark,
        };
        // The flow may no longer need the leg; dropping it sends a reset.
        drop(self.held.connected(flow, connected, &mut self.actions));
    }

    fn on_neighbour_failed(&mut self, destination: IpAddr) {
        let flows = self.held.connecting().into_iter();
        for flow in flows.filter(|flow| flow.destination.ip() == destination) {
            self.watcher.remove(&flow);
            self.fail(flow, unreachable(flow.client.ip(), Unreachable::Neighbour));
        }
    }

    fn fail(&mut self, flow: FlowTuple, failure: Failure) {
        self.held.input(&mut self.actions, |holder, now| {
            holder.handle_failed(flow, failure, now);
        });
    }

    fn perform_all(&mut self) {
        while let Some(action) = self.actions.pop_front() {
            self.perform(action);
        }
    }

    /// Performs an action. A failed send is a lost packet: the client repeats its SYN.
    fn perform(&mut self, action: Action) {
        let sent = match action {
            Action::Connect { flow, dscp, lan } => {
                self.connect(flow, dscp, lan);
                Ok(())
            }
            Action::Release { lan, packet } => self.tuns[lan].1.write(&packet),
            Action::Pass { to, packet } => self.passed.send(&packet, to),
            Action::Answer { to, packet } => self.answers.send(&packet, to),
            Action::Abort { flow } => {
                self.watcher.remove(&flow);
                drop(self.held.withdraw(&flow));
                Ok(())
            }
        };
        if let Err(err) = sent {
            debug!(%err, "cannot send");
        }
    }

    fn connect(&mut self, flow: FlowTuple, dscp: u8, lan: usize) {
        let begun = match self.site(&flow, dscp, lan) {
            Some(site) => self.begin(flow, dscp, &site),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if let Err(err) = begun {
            trace!(?flow, %err, "cannot begin a server leg");
            self.fail(flow, failure(&err, flow.client.ip()));
        }
    }

    fn site(&self, flow: &FlowTuple, dscp: u8, lan: usize) -> Option<Arc<SiteRuntime>> {
        let id = self.config.sites.find(&FlowKey {
            protocol: Protocol::TCP,
            src: flow.client,
            dst: flow.destination,
            dscp,
            interface: &self.tuns[lan].0.interface,
        });
        self.sites.get(&id).cloned()
    }

    fn begin(&mut self, flow: FlowTuple, dscp: u8, site: &Arc<SiteRuntime>) -> io::Result<()> {
        let mut other_mark = self.other_mark.for_flow(&flow);
        let mut site = site.on_way(other_mark.is_off_link);
        let mark = other_mark.mark;
        let syn = FromSyn { dscp, mark };
        if !leg::may_be_host(flow.destination.ip()) {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        }
        let family = Family::from_address(&flow.destination);
        let leg = self.reserve.take(&site, family)?;
        let fd = match leg.connect(&site, flow.destination, flow.client, syn) {
            // An earlier flow between the same addresses still has a socket, most likely in
            // TIME_WAIT. Passing the SYN would not help: that socket would get the answer.
            Err(err) if is_lingering(&err) && site.source == Source::Client => {
                let reserved = ReservedLeg::new(&site, family)?;
                let client = flow.client.ip();
                let fd = reserved.connect_from_any_port(&site, flow.destination, client, syn)?;
                self.held.count_source_port_changed();
                fd
            }
            result => result?,
        };
        if self.other_mark.is_off_link(fd.as_fd(), flow.destination)
            && let Some(beside) = leg::leave_link(fd.as_fd(), &site, family)
        {
            site = beside;
            other_mark.is_off_link = true;
        }
        let leg = PendingLeg {
            flow,
            fd,
            dscp,
            other_mark,
        };
        // A server on this machine, or about as near, has answered before connect() returns.
        if socket::is_established(leg.fd.as_fd()).unwrap_or(false) {
            self.on_connected(leg);
            return Ok(());
        }
        site.server.back_off_syns(leg.fd.as_fd());
        self.watcher.add(leg)
    }
}

/// A server leg like the last one, made while no SYN waits for it.
#[derive(Debug, Default)]
struct Reserve {
    last: Option<(Arc<SiteRuntime>, Family)>,
    leg: Option<ReservedLeg>,
}

impl Reserve {
    /// Returns a leg with the options of this site.
    fn take(&mut self, site: &Arc<SiteRuntime>, family: Family) -> io::Result<ReservedLeg> {
        let is_same = |(last, of): &(Arc<_>, _)| Arc::ptr_eq(last, site) && *of == family;
        if !self.last.as_ref().is_some_and(is_same) {
            *self = Self {
                last: Some((Arc::clone(site), family)),
                leg: None,
            };
        }
        match self.leg.take() {
            Some(leg) => Ok(leg),
            None => Ok(ReservedLeg::new(site, family)?),
        }
    }

    /// Makes the next leg. The next SYN reports an error.
    fn refill(&mut self) {
        if let (None, Some((site, family))) = (&self.leg, &self.last) {
            self.leg = ReservedLeg::new(site, *family).ok();
        }
    }
}

/// Waits for SYNs that rules of other programs have permitted, each with the number of its LAN
/// interface; forever without a log. Cancel-safe.
async fn next_permitted(
    log: Option<&PacketLog>,
    syns: &mut Vec<(usize, Vec<u8>)>,
) -> io::Result<()> {
    let Some(log) = log else {
        return std::future::pending().await;
    };
    let take = |prefix: &[u8], syn: &[u8]| {
        let lan = std::str::from_utf8(prefix).ok();
        let lan = lan.and_then(|number| number.parse().ok());
        syns.extend(lan.map(|lan| (lan, syn.to_vec())));
    };
    log.next(take).await
}

async fn until(deadline: Option<std::time::Instant>) {
    match deadline {
        Some(deadline) => time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn is_lingering(err: &io::Error) -> bool {
    err.raw_os_error() == Some(libc::EADDRNOTAVAIL)
}

/// Returns the failure that a client sees for an error without an ICMP message.
fn failure(err: &io::Error, client: IpAddr) -> Failure {
    match err.raw_os_error() {
        Some(libc::ECONNREFUSED) => Failure::Refused,
        Some(libc::ETIMEDOUT) => Failure::TimedOut,
        Some(libc::ENETUNREACH) => unreachable(client, Unreachable::Network),
        Some(libc::EHOSTUNREACH) => unreachable(client, Unreachable::Host),
        Some(libc::EACCES) => unreachable(client, Unreachable::Prohibited),
        _ => Failure::Ours,
    }
}

fn unreachable(client: IpAddr, why: Unreachable) -> Failure {
    match address_toward(client) {
        Ok(from) => Failure::Icmp(IcmpError::from_router(from, why)),
        Err(_) => Failure::Ours,
    }
}
