//! Tunnels: flows to and from peers over UDP, or over TCP where UDP is blocked.
//!
//! ```text
//!   workers                   a thread, "tunnels"                        the other pepd
//!   accept --hand over--> flow <-> table, rings <-> endpoint <-> driver <=UDP=> driver ...
//!                          |                                          flow -- connect --> server
//!                       client leg                                     server leg
//! ```
//!
//! A thread has sockets, an [`Endpoint`](tunnel::endpoint::Endpoint), and the legs of its peers'
//! flows; each flow is a task. `limits.tunnel_threads` threads share the peers, and each peer stays
//! on one of them. Handling a datagram takes no lock, and one turn serves all flows in it.
//!
//! - [`setup`], from the configuration to sockets, endpoint and peers
//! - `driver`, sending and receiving datagrams, and timers; `company`, how long datagrams wait for
//!   others
//! - `core`, state shared by the driver and the flows
//! - `table`, the flows of a peer and their bytes; `credit`, the bytes that peers may send
//! - `leg`, a connection to a host; `flow`, relaying between a leg and a stream; `near` and `far`,
//!   the start of a flow at the two ends
//! - `shards`, the threads and what they pass to each other
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
use pepd_sys::{site_counters::SiteCounters, threads::IdleLoop};
use tokio::sync::{mpsc, watch};
use tunnel::class::Class;

use credit::Pool;
use driver::Given;
use leg::Leg;
use paths::Record;
use peers::{PeerStatus, Statuses};
use probe::Prober;
pub use recover::Inherited;
pub use setup::TunnelError;
use setup::{Opening, Place};
use udp::Bound;

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

/// Handle by which a site's acceptors pass flows to the thread of its peer.
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

    /// Returns whether the peer's thread still runs.
    pub fn is_served(&self) -> bool {
        !self.accepted.is_closed()
    }

    /// Passes a flow to the peer's thread. `dscp` is that of the client's SYN.
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

/// The running tunnel threads. They stop on drop; [`stop`](Self::stop) also waits for their end.
#[derive(Debug)]
pub struct Tunnels {
    threads: Vec<JoinHandle<()>>,
    stop: watch::Sender<()>,
    accepted: Vec<mpsc::UnboundedSender<(AcceptedFlow, OwnedFd)>>,
    places: Vec<Place>,
    statuses: Statuses,
    routes: Vec<(SiteId, usize, Class)>,
    far: Arc<SiteCounters>,
    prober: Prober,
    /// Record of paths, to be written after the end of all threads.
    paths: Option<Record>,
    /// Sockets of several threads: when one is closed, the kernel misdirects datagrams.
    _sockets: Vec<Bound>,
}

impl Tunnels {
    /// Starts the tunnel threads. `tuns` are the interfaces of sites in mode `packet`.
    pub fn start(
        (prepared, threads): (setup::Prepared, Vec<IdleLoop>),
        inherited: Inherited,
        tuns: PacketTuns,
        context: &Arc<FlowContext>,
    ) -> Self {
        recover::expect_peers(&prepared, &inherited);
        let stop = watch::Sender::new(());
        let mut inherited = recover::split(&prepared, inherited);
        let (opening, kept) = Opening::new(prepared.custody, &inherited);
        let mut opening = Some(opening);
        // Those of the first thread, which alone has peers of such sites.
        let mut tuns = Some(tuns);
        let credit = Pool::new(&context.budget);
        let (mut running, mut accepted, mut orders) = (Vec::new(), Vec::new(), Vec::new());
        let several = threads.len() > 1;
        let paths = prepared.parts[0].paths.clone();
        let parts = prepared.parts.into_iter().zip(threads);
        for (((part, thread), inherited), kept) in parts.zip(inherited.drain(..)).zip(kept) {
            let (accept, incoming) = mpsc::unbounded_channel();
            let (order, ordered) = mpsc::unbounded_channel();
            accepted.push(accept);
            orders.push(order);
            let given = Given {
                part,
                inherited,
                kept,
                tuns: tuns.take().unwrap_or_default(),
                credit: Arc::clone(&credit),
                incoming,
                orders: ordered,
            };
            let (opening, stopped) = (opening.take(), stop.subscribe());
            running.push(run(thread, given, opening, context, (stopped, several)));
        }
        Self {
            threads: running,
            stop,
            accepted,
            prober: Prober::new(&prepared.statuses, &prepared.places, orders),
            places: prepared.places,
            statuses: prepared.statuses,
            routes: prepared.routes,
            far: prepared.far,
            paths,
            _sockets: prepared.sockets.into_iter().filter(|_| several).collect(),
        }
    }

    /// Returns the handle for a site's flows; `None` for sites in other modes.
    pub fn route(&self, site: SiteId) -> Option<Route> {
        let (site, peer, class) = self.routes.iter().find(|(id, ..)| *id == site)?;
        let place = self.places[*peer];
        Some(Route {
            peer: place.index,
            site: *site,
            class: *class,
            status: Arc::clone(self.statuses.status(*peer)),
            accepted: self.accepted[place.thread].clone(),
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

    /// Stops the threads. Open flows are reset.
    pub fn stop(self) {
        drop((self.stop, self.accepted, self.prober));
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!(
                    "tunnel thread panicked: flows in its tunnels are reset; a bug: please report"
                );
            }
        }
        if let Some(paths) = self.paths {
            paths.lock().write();
        }
    }
}

/// Starts one thread. The first one opens the custody of all.
fn run(
    thread: IdleLoop,
    given: Given,
    opening: Option<Opening>,
    context: &Arc<FlowContext>,
    (mut stopped, several): (watch::Receiver<()>, bool),
) -> JoinHandle<()> {
    let context = Arc::clone(context);
    let beat = context.heartbeat.of_thread();
    thread.begin(move |runtime| {
        if let Some(opening) = opening {
            opening.open(&context.arena);
        }
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            tokio::spawn(beat.clone().tick());
            // No value is ever sent: the wait ends when the sender is dropped.
            let stopped = async move { while stopped.changed().await.is_ok() {} };
            let run = driver::run(given, beat, context, stopped);
            // A task of its own: each wake-up of the outermost future by a flow would cost a
            // call of epoll_wait(2).
            let error = match tokio::task::spawn_local(run).await {
                Ok(Ok(())) => return,
                Ok(Err(err)) => Box::new(err) as Box<dyn std::error::Error>,
                Err(err) => std::panic::resume_unwind(err.into_panic()),
            };
            tracing::error!(error, "tunnel thread stopped");
            // The others cannot serve the peers of this thread. The panic ends the process, and the
            // next one takes the flows over.
            assert!(!several, "a tunnel thread of several has stopped");
        });
    })
}
