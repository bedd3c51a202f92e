//! Tunnels: flows to and from peers, over UDP, or over TCP where that does not get through.
//!
//! ```text
//!   workers                       one thread, "tunnels"                          the other pepd
//!   accept --hand over--> flow <-> table, rings <-> endpoint <-> driver, UDP <=====> driver ...
//!                          |                                                     flow -- connect --> server
//!                       client leg                                                server leg
//! ```
//!
//! Everything that belongs to a tunnel is on one thread: the sockets, the [`Endpoint`](tunnel::endpoint::Endpoint)
//! with all peers, and the legs of their flows, each flow as a task. So nothing is locked, and what one
//! datagram brings for many flows is one turn.
//!
//! - [`setup`], from the configuration to sockets, endpoint and peers
//! - `driver`, datagrams in and out, and the time
//! - `core`, what the driver and the flows share
//! - `table`, the flows of a peer and their bytes; `credit`, how many bytes peers may send
//! - `leg`, a connection to a host; `flow`, between a leg and a stream; `near` and `far`, how flows begin at the two ends
//! - `recover`, flows of the process before
//! - `udp` and `tcp`, what carries datagrams; `batch`, those that go to the kernel together; `name`, peers called by name
//! - `packets`, those of sites in mode `packet`, beside flows; `tap`, the interfaces of these
//! - [`probe`], the path to a peer under load, as an operator asks for it
//! - [`custody`], what does not fit into memory while the link is away
//! - [`peers`], what others may know: who is there; `paths`, what is remembered of the ways to them
#![deny(unsafe_code)]

mod batch;
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
mod table;
mod tap;
mod tcp;
mod udp;

use std::{io, os::fd::OwnedFd, sync::Arc, thread::JoinHandle};

use pep_core::site::{Class as SiteClass, SiteId};
use pepd_intercept::tun::PacketTuns;
use pepd_relay::{
    flow::{Ends, FlowContext, FlowMemory, LegIo},
    limits::Permit,
};
use pepd_sys::{tally::Tally, threads::IdleThread};
use tokio::sync::{mpsc, watch};
use tunnel::class::Class;

use leg::Leg;
use peers::{PeerStatus, Statuses};
use probe::Prober;
pub use recover::Inherited;
pub use setup::TunnelError;

/// The class of a site's flows, as the wire has it.
fn class(class: SiteClass) -> Class {
    match class {
        SiteClass::Interactive => Class::Interactive,
        SiteClass::Normal => Class::Normal,
        SiteClass::Bulk => Class::Bulk,
        SiteClass::DelayTolerant => Class::DelayTolerant,
    }
}

/// A flow whose client was accepted, and that goes into a tunnel.
#[derive(Debug)]
struct Handed {
    peer: usize,
    site: SiteId,
    class: Class,
    ends: Ends,
    dscp: u8,
    memory: FlowMemory,
    permit: Permit,
}

/// A leg that can be waited for. Closes it where that fails.
fn register(leg: OwnedFd) -> io::Result<Box<dyn Leg>> {
    Ok(Box::new(LegIo::new(leg)?))
}

/// By which a site's acceptors hand flows over.
#[derive(Debug, Clone)]
pub struct Route {
    peer: usize,
    site: SiteId,
    class: Class,
    status: Arc<PeerStatus>,
    handed: mpsc::UnboundedSender<(Handed, OwnedFd)>,
}

impl Route {
    /// Whether a flow that comes now goes into the tunnel.
    pub fn takes_flows(&self) -> bool {
        self.status.takes_flows() && self.is_served()
    }

    /// Whether there is anybody to give flows to.
    pub fn is_served(&self) -> bool {
        !self.handed.is_closed()
    }

    /// Gives a flow to the tunnel. `dscp` is that of the client's SYN.
    pub fn hand_over(
        &self,
        context: &FlowContext,
        ends: Ends,
        dscp: u8,
        memory: FlowMemory,
        client: OwnedFd,
    ) {
        let permit = context.admission.admit(&ends.site.tally, ends.host());
        let handed = Handed {
            peer: self.peer,
            site: self.site,
            class: self.class,
            ends,
            dscp,
            memory,
            permit,
        };
        // The thread ends after the workers; should it have died, the client gets RST.
        let _ = self.handed.send((handed, client));
    }
}

/// The running thread. Stops when this is dropped; [`stop`](Self::stop) also waits for it.
#[derive(Debug)]
pub struct Tunnels {
    thread: JoinHandle<()>,
    stop: watch::Sender<()>,
    handed: mpsc::UnboundedSender<(Handed, OwnedFd)>,
    statuses: Statuses,
    routes: Vec<(SiteId, usize, Class)>,
    far: Arc<Tally>,
    prober: Prober,
}

impl Tunnels {
    /// Starts the thread's work. `tuns` are the interfaces of sites in mode `packet`.
    ///
    /// # Errors
    /// When its event loop cannot be had.
    pub fn start(
        (prepared, thread): (setup::Prepared, IdleThread),
        inherited: Inherited,
        tuns: PacketTuns,
        context: &Arc<FlowContext>,
    ) -> io::Result<Self> {
        let (handed, incoming) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(());
        let mut stopped = stop.subscribe();
        recover::expect_peers(&prepared, &inherited);
        let (statuses, routes) = (prepared.statuses.clone(), prepared.routes.clone());
        let far = Arc::clone(prepared.far.tally());
        let (prober, orders) = probe::prober(&statuses);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let context = Arc::clone(context);
        let pulse = context.pulse.of_thread();
        let thread = thread.begin(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                tokio::spawn(pulse);
                // Nothing is ever sent: this ends when the sender is gone.
                let stopped = async { while stopped.changed().await.is_ok() {} };
                let given = (prepared, inherited, tuns);
                if let Err(err) = driver::run(given, context, (incoming, orders), stopped).await {
                    let error = &err as &dyn std::error::Error;
                    tracing::error!(error, "tunnels have ended");
                }
            });
        });
        Ok(Self {
            thread,
            stop,
            handed,
            statuses,
            routes,
            far,
            prober,
        })
    }

    /// How a site's flows get here; `None` for sites of other modes.
    pub fn route(&self, site: SiteId) -> Option<Route> {
        let (site, peer, class) = self.routes.iter().find(|(id, ..)| *id == site)?;
        Some(Route {
            peer: *peer,
            site: *site,
            class: *class,
            status: Arc::clone(self.statuses.of(*peer)),
            handed: self.handed.clone(),
        })
    }

    /// Who is there.
    pub fn statuses(&self) -> &Statuses {
        &self.statuses
    }

    /// What the flows have come to that peers sent.
    pub fn far(&self) -> &Arc<Tally> {
        &self.far
    }

    /// By what probes of the ways to peers are asked for.
    pub fn prober(&self) -> Prober {
        self.prober.clone()
    }

    /// Ends the thread. Flows that are still open are reset.
    pub fn stop(self) {
        drop((self.stop, self.handed, self.prober));
        if self.thread.join().is_err() {
            tracing::error!("the thread of tunnels had panicked");
        }
    }
}
