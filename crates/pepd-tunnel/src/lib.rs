//! Tunnels: flows to and from peers over UDP, or over TCP where UDP is blocked.
//!
//! ```text
//!   workers                   one thread, "tunnels"                      the other pepd
//!   accept --hand over--> flow <-> table, rings <-> endpoint <-> driver <=UDP=> driver ...
//!                          |                                          flow -- connect --> server
//!                       client leg                                     server leg
//! ```
//!
//! One thread owns everything of a tunnel: the sockets, the
//! [`Endpoint`](tunnel::endpoint::Endpoint) with all peers, and the legs of their flows. Each flow
//! is a task. Nothing is locked, and one turn handles everything that a datagram carries, for
//! however many flows.
//!
//! - [`setup`], from the configuration to sockets, endpoint and peers
//! - `driver`, sending and receiving datagrams, and timers; `company`, how long datagrams wait for
//!   others
//! - `core`, state shared by the driver and the flows
//! - `table`, the flows of a peer and their bytes; `credit`, the bytes that peers may send
//! - `leg`, a connection to a host; `flow`, relaying between a leg and a stream; `near` and `far`,
//!   the start of a flow at the two ends
//! - `recover`, flows of the previous process
//! - `udp` and `tcp`, the transports of datagrams; `batch`, datagrams of one system call; `name`,
//!   resolution of peers' host names
//! - [`boosted`], packets of sites in mode `boost`, on a thread of their own, without a peer
//! - `packets`, datagrams of sites in mode `packet`; `tap`, the TUN interfaces of these sites
//! - [`probe`], the load test of a path that an operator requests
//! - [`custody`], storage on disk for bytes that exceed memory while the link is down
//! - [`peers`], the state of peers for other threads; `paths`, the persistent record of paths to
//!   peers
#![deny(unsafe_code)]

mod batch;
pub mod boosted;
mod company;
mod core;
mod credit;
pub mod custody;
mod driver;
mod far;
mod flow;
mod leg;
mod name;
mod near;
pub mod packets;
pub mod paths;
pub mod peers;
pub mod probe;
mod recover;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod schedules;
pub mod setup;
mod shards;
mod table;
mod tap;
mod tcp;
mod udp;

use std::{io, os::fd::OwnedFd, sync::Arc, thread::JoinHandle};

use pep_core::site::{Class as SiteClass, SiteId};
use pepd_intercept::tun::PacketTuns;
use pepd_relay::{
    flow::{FlowContext, FlowInfo, FlowMemory, LegIo},
    limits::Permit,
};
use pepd_sys::{site_counters::SiteCounters, threads::IdleThread};
use tokio::sync::{mpsc, watch};
use tunnel::class::Class;

use leg::Leg;
use peers::{PeerStatus, Statuses};
use probe::Prober;
pub use recover::Inherited;
pub use setup::TunnelError;

/// Maps the class of a site to the class on the wire.
fn class(class: SiteClass) -> Class {
    match class {
        SiteClass::Interactive => Class::Interactive,
        SiteClass::Normal => Class::Normal,
        SiteClass::Bulk => Class::Bulk,
        SiteClass::DelayTolerant => Class::DelayTolerant,
    }
}

/// A flow whose client was accepted and whose bytes go through a tunnel.
#[derive(Debug)]
struct AcceptedFlow {
    peer: usize,
    site: SiteId,
    class: Class,
    ends: FlowInfo,
    dscp: u8,
    memory: FlowMemory,
    permit: Permit,
}

/// Registers a leg with the event loop. Closes it on failure.
fn register(leg: OwnedFd) -> io::Result<Box<dyn Leg>> {
    Ok(Box::new(LegIo::new(leg)?))
}

/// Handle by which a site's acceptors pass flows to the tunnel thread.
#[derive(Debug, Clone)]
pub struct Route {
    peer: usize,
    site: SiteId,
    class: Class,
    status: Arc<PeerStatus>,
    accepted: mpsc::UnboundedSender<(AcceptedFlow, OwnedFd)>,
}

impl Route {
    /// Returns whether a new flow goes into the tunnel.
    pub fn takes_flows(&self) -> bool {
        self.status.takes_flows() && self.is_served()
    }

    /// Returns whether the tunnel thread still runs.
    pub fn is_served(&self) -> bool {
        !self.accepted.is_closed()
    }

    /// Passes a flow to the tunnel thread. `dscp` is that of the client's SYN.
    pub fn hand_over(
        &self,
        context: &FlowContext,
        ends: FlowInfo,
        dscp: u8,
        memory: FlowMemory,
        client: OwnedFd,
    ) {
        let permit = context
            .admission
            .admit(&ends.site.site_counters, ends.host());
        let accepted = AcceptedFlow {
            peer: self.peer,
            site: self.site,
            class: self.class,
            ends,
            dscp,
            memory,
            permit,
        };
        // The thread ends after the workers. If it has panicked, the client gets an RST.
        let _ = self.accepted.send((accepted, client));
    }
}

/// The running tunnel thread. It stops on drop; [`stop`](Self::stop) also waits for its end.
#[derive(Debug)]
pub struct Tunnels {
    thread: JoinHandle<()>,
    stop: watch::Sender<()>,
    accepted: mpsc::UnboundedSender<(AcceptedFlow, OwnedFd)>,
    statuses: Statuses,
    routes: Vec<(SiteId, usize, Class)>,
    far: Arc<SiteCounters>,
    prober: Prober,
}

impl Tunnels {
    /// Starts the tunnel thread. `tuns` are the interfaces of sites in mode `packet`.
    ///
    /// # Errors
    /// If the event loop cannot be created.
    pub fn start(
        (prepared, thread): (setup::Prepared, IdleThread),
        inherited: Inherited,
        tuns: PacketTuns,
        context: &Arc<FlowContext>,
    ) -> io::Result<Self> {
        let (accepted, incoming) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(());
        let mut stopped = stop.subscribe();
        recover::expect_peers(&prepared, &inherited);
        let (statuses, routes) = (prepared.statuses.clone(), prepared.routes.clone());
        let far = Arc::clone(prepared.far.site_counters());
        let (prober, orders) = probe::prober(&statuses);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let context = Arc::clone(context);
        let heartbeat = context.heartbeat.of_thread();
        let thread = thread.begin(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                tokio::spawn(heartbeat);
                // No value is ever sent: the wait ends when the sender is dropped.
                let stopped = async move { while stopped.changed().await.is_ok() {} };
                let given = (prepared, inherited, tuns);
                let member = shards::Member::all(1).remove(0);
                let run = driver::run(given, member, context, (incoming, orders), stopped);
                // A task of its own: each wake-up of the outermost future by a flow would cost a
                // call of epoll_wait(2).
                let error = match tokio::task::spawn_local(run).await {
                    Ok(Ok(())) => return,
                    Ok(Err(err)) => Box::new(err) as Box<dyn std::error::Error>,
                    Err(err) => std::panic::resume_unwind(err.into_panic()),
                };
                tracing::error!(error, "tunnel thread stopped");
            });
        });
        Ok(Self {
            thread,
            stop,
            accepted,
            statuses,
            routes,
            far,
            prober,
        })
    }

    /// Returns the handle for a site's flows; `None` for sites in other modes.
    pub fn route(&self, site: SiteId) -> Option<Route> {
        let (site, peer, class) = self.routes.iter().find(|(id, ..)| *id == site)?;
        Some(Route {
            peer: *peer,
            site: *site,
            class: *class,
            status: Arc::clone(self.statuses.status(*peer)),
            accepted: self.accepted.clone(),
        })
    }

    /// Returns the state of all peers.
    pub fn statuses(&self) -> &Statuses {
        &self.statuses
    }

    /// Returns the counters of the flows that peers have opened.
    pub fn far(&self) -> &Arc<SiteCounters> {
        &self.far
    }

    /// Returns the handle by which operators request probes of paths to peers.
    pub fn prober(&self) -> Prober {
        self.prober.clone()
    }

    /// Stops the thread. Open flows are reset.
    pub fn stop(self) {
        drop((self.stop, self.accepted, self.prober));
        if self.thread.join().is_err() {
            tracing::error!(
                "tunnel thread panicked: flows in tunnels are reset; a bug: please report"
            );
        }
    }
}
