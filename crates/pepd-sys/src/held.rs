//! Server legs of held SYNs, connected and waiting for the listener to accept their clients.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pep_core::syn::{Action, FlowTuple, Holder, HolderConfig, HolderStats};

use crate::{leg::Family, marks::OtherMark};

/// A server leg whose server has answered.
#[derive(Debug)]
pub struct ConnectedLeg {
    /// The socket: non-blocking, connected; the caller still has to call
    /// [`leg::on_connected`](crate::leg::on_connected).
    pub fd: OwnedFd,
    /// The DSCP of the client's SYN.
    pub dscp: u8,
    /// Mark that another program set on the client's SYN; pepd connected the leg with it.
    pub other_mark: OtherMark,
}

/// Server legs of held SYNs, connected and waiting for the listener to accept their clients.
#[derive(Debug)]
pub struct HeldLegs {
    shared: Mutex<Shared>,
    epoch: Instant,
    source_port_changed: AtomicU64,
    /// Packets of each family received by the TUNs.
    arrived: [AtomicU64; Family::ALL.len()],
    /// True if a predecessor process held SYNs, too.
    succeeds: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    holder: Holder,
    legs: HashMap<FlowTuple, ConnectedLeg>,
}

impl HeldLegs {
    /// Creates an empty set.
    pub fn new(config: HolderConfig) -> Self {
        Self {
            shared: Mutex::new(Shared {
                holder: Holder::new(config),
                legs: HashMap::new(),
            }),
            epoch: Instant::now(),
            source_port_changed: AtomicU64::new(0),
            arrived: Default::default(),
            succeeds: AtomicBool::new(false),
        }
    }

    /// Marks a handover: the predecessor's legs are lost, while their clients may still wait to be
    /// accepted.
    pub fn succeed(&self) {
        self.succeeds.store(true, Ordering::Relaxed);
    }

    /// Returns whether a leg may be missing because the predecessor had it: shortly after the
    /// handover.
    pub fn may_be_lost(&self) -> bool {
        const SOON: Duration = Duration::from_secs(10);
        self.succeeds.load(Ordering::Relaxed) && self.epoch.elapsed() < SOON
    }

    /// Returns the server leg of a flow accepted by a listener of a deferring site. `None` if there
    /// is none: the client must be reset.
    pub fn take(&self, flow: &FlowTuple) -> Option<ConnectedLeg> {
        let now = self.now();
        let mut shared = self.shared.lock();
        shared.holder.take(flow, now)?;
        shared.legs.remove(flow)
    }

    /// Returns that mark if the flow's leg is ready, which saves a request to the kernel.
    pub fn other_mark(&self, flow: &FlowTuple) -> Option<OtherMark> {
        let shared = self.shared.lock();
        shared.legs.get(flow).map(|leg| leg.other_mark)
    }

    /// Returns the counters of held SYNs.
    pub fn stats(&self) -> HolderStats {
        *self.shared.lock().holder.stats()
    }

    /// Returns the SYNs held now.
    pub fn held_now(&self) -> usize {
        self.shared.lock().holder.held_now()
    }

    /// Returns the number of server legs with another source port, because the client's was taken.
    pub fn source_port_changed(&self) -> u64 {
        self.source_port_changed.load(Ordering::Relaxed)
    }

    /// Counts a packet received by a TUN.
    pub fn arrive(&self, packet: &[u8]) {
        let version = packet.first().map(|byte| byte >> 4);
        let is_of = |family: &Family| version == Some(family.number());
        if let Some(family) = Family::ALL.into_iter().find(is_of) {
            self.arrived[family as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the packets of this family received by the TUNs.
    pub fn arrived(&self, family: Family) -> u64 {
        self.arrived[family as usize].load(Ordering::Relaxed)
    }

    /// Counts a server leg with another source port than its client's.
    pub fn count_source_port_changed(&self) {
        self.source_port_changed.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives the holder an input and collects its actions.
    pub fn input(
        &self,
        actions: &mut impl Extend<Action>,
        input: impl FnOnce(&mut Holder, Duration),
    ) {
        let now = self.now();
        let mut shared = self.shared.lock();
        input(&mut shared.holder, now);
        actions.extend(std::iter::from_fn(|| shared.holder.poll_action()));
    }

    /// Records that the server has answered; from now on the listener may take the leg. Returns the
    /// leg if no client waits for it.
    pub fn connected(
        &self,
        flow: FlowTuple,
        leg: ConnectedLeg,
        actions: &mut impl Extend<Action>,
    ) -> Option<ConnectedLeg> {
        let now = self.now();
        let mut shared = self.shared.lock();
        if !shared.holder.handle_connected(flow, now) {
            return Some(leg);
        }
        shared.legs.insert(flow, leg);
        actions.extend(std::iter::from_fn(|| shared.holder.poll_action()));
        None
    }

    /// Withdraws a leg that no listener took.
    pub fn withdraw(&self, flow: &FlowTuple) -> Option<ConnectedLeg> {
        self.shared.lock().legs.remove(flow)
    }

    /// Returns the flows whose servers have not answered.
    pub fn connecting(&self) -> Vec<FlowTuple> {
        self.shared.lock().holder.connecting().collect()
    }

    /// Returns the time of the holder's next timeout.
    pub fn next_timeout(&self) -> Option<Instant> {
        let timeout = self.shared.lock().holder.poll_timeout();
        timeout.map(|timeout| self.epoch + timeout)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}
