//! Server legs of held SYNs, connected and waiting for the listener to accept their clients.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pep_core::syn::{Action, FlowTuple, Holder, HolderConfig, HolderStats};

use crate::leg::Family;

/// A server leg whose server has answered.
#[derive(Debug)]
pub struct ConnectedLeg {
    /// The socket: non-blocking, connected; [`leg::on_connected`](crate::leg::on_connected) is
    /// still to be called.
    pub fd: OwnedFd,
    /// The DSCP of the client's SYN.
    pub dscp: u8,
}

/// Server legs of held SYNs, connected and waiting for the listener to accept their clients.
#[derive(Debug)]
pub struct HeldLegs {
    shared: Mutex<Shared>,
    epoch: Instant,
    source_port_changed: AtomicU64,
    /// Packets of each family that have come by the TUNs.
    arrived: [AtomicU64; Family::ALL.len()],
    /// A process before this one held SYNs, too.
    succeeds: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    holder: Holder,
    legs: HashMap<FlowTuple, ConnectedLeg>,
}

impl HeldLegs {
    /// None held yet.
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

    /// Legs that a process before this one had are lost, as those of their clients may wait to be
    /// accepted.
    pub fn succeed(&self) {
        self.succeeds.store(true, Ordering::Relaxed);
    }

    /// Whether a leg may be missing since the process before had it: soon after its end.
    pub fn may_be_lost(&self) -> bool {
        const SOON: Duration = Duration::from_secs(10);
        self.succeeds.load(Ordering::Relaxed) && self.epoch.elapsed() < SOON
    }

    /// The server leg of a flow that a listener of a deferring site has accepted. `None` when
    /// there is none: the client is to be reset.
    pub fn take(&self, flow: &FlowTuple) -> Option<ConnectedLeg> {
        let now = self.now();
        let mut shared = self.shared.lock();
        shared.holder.take(flow, now)?;
        shared.legs.remove(flow)
    }

    /// What has become of held SYNs so far.
    pub fn stats(&self) -> HolderStats {
        *self.shared.lock().holder.stats()
    }

    /// SYNs held now.
    pub fn held_now(&self) -> usize {
        self.shared.lock().holder.held_now()
    }

    /// Server legs that got another source port because the client's was taken.
    pub fn source_port_changed(&self) -> u64 {
        self.source_port_changed.load(Ordering::Relaxed)
    }

    /// A packet has come by a TUN.
    pub fn arrive(&self, packet: &[u8]) {
        let version = packet.first().map(|byte| byte >> 4);
        let is_of = |family: &Family| version == Some(family.number());
        if let Some(family) = Family::ALL.into_iter().find(is_of) {
            self.arrived[family as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Packets of this family that have come by the TUNs.
    pub fn arrived(&self, family: Family) -> u64 {
        self.arrived[family as usize].load(Ordering::Relaxed)
    }

    /// Counts a server leg that got another source port than its client's.
    pub fn count_source_port_changed(&self) {
        self.source_port_changed.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives the holder an input and collects what it wants done.
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

    /// The server has answered; from now on the listener may take the leg. Returned when
    /// nobody waits for it any more.
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

    /// Takes back a leg that nobody took.
    pub fn withdraw(&self, flow: &FlowTuple) -> Option<ConnectedLeg> {
        self.shared.lock().legs.remove(flow)
    }

    /// Flows whose servers have not answered.
    pub fn connecting(&self) -> Vec<FlowTuple> {
        self.shared.lock().holder.connecting().collect()
    }

    /// When the holder wants to be called again.
    pub fn next_timeout(&self) -> Option<Instant> {
        let timeout = self.shared.lock().holder.poll_timeout();
        timeout.map(|timeout| self.epoch + timeout)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}
