//! Next hops that do not answer.
//!
//! When ARP or neighbour discovery fails for a server leg, the kernel sends an ICMP error to the
//! source address of pepd's SYN, the client's, with pepd's sequence number. The client ignores it,
//! and pepd never sees it. So pepd watches for failed neighbours itself.

use std::{
    collections::{BTreeSet, HashSet},
    convert::Infallible,
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use pepd_sys::{
    held::HeldLegs,
    notices::{Group, Notices, Retry},
    unanswered::{PROMPT, Unanswered},
};
use tokio::{sync::mpsc, time::sleep};
use tracing::{debug, warn};

use super::{
    hop::Hop,
    netlink::{Netlink, RouteError},
};

/// Look-ups of next hops before other tasks have a turn: about 10 ms of work.
const LOOKUPS_AT_ONCE: usize = 256;

/// Pause between two such batches: even ten thousand dead destinations leave most of the CPU to
/// live flows.
const LOOKUPS_PAUSE: Duration = Duration::from_millis(50);

/// Watch for next hops that do not answer, which notifies the flows behind them.
#[derive(Debug)]
pub struct NeighbourWatch {
    unanswered: Arc<Unanswered>,
    held: Option<HeldListener>,
    mark: u32,
}

/// Receiver of dead destinations of held flows.
#[derive(Debug)]
pub struct HeldListener {
    pub(super) legs: Arc<HeldLegs>,
    pub(super) failed: mpsc::Sender<IpAddr>,
}

impl NeighbourWatch {
    /// Returns a watch. `mark` is that of server legs, since routing may depend on it.
    pub fn new(unanswered: Arc<Unanswered>, held: Option<HeldListener>, mark: u32) -> Self {
        Self {
            unanswered,
            held,
            mark,
        }
    }

    /// Runs for as long as it is polled.
    pub async fn run(self) {
        let mut retry = Retry::new("clients of dead next hops time out");
        loop {
            let Err(err) = self.watch().await;
            retry.wait(&err).await;
        }
    }

    async fn watch(&self) -> io::Result<Infallible> {
        let notices = Notices::open(Group::Neighbour)?;
        loop {
            let hops = notices.next(Hop::failed).await?.into_iter().collect();
            debug!(?hops, "neighbours do not answer");
            // The kernel reports the flows that wait for these neighbours only after a while.
            // Failures that arrive meanwhile stay in the socket.
            sleep(PROMPT).await;
            if let Err(err) = self.wake_resolution(&hops).await {
                warn!(error = %err, "cannot look up the flows behind an unreachable next hop: they wait for their timeouts");
            }
        }
    }

    /// Notifies all flows behind these next hops. Source-based routing is not considered: the
    /// kernel does not tell how it would route a packet of pepd's from another source address.
    async fn wake_resolution(&self, hops: &HashSet<Hop>) -> Result<(), RouteError> {
        let destinations: Vec<_> = self.destinations().into_iter().collect();
        if destinations.is_empty() {
            return Ok(());
        }
        let netlink = Netlink::connect()?;
        // An operator may have deleted some, and the kernel found them again.
        let unresolved = netlink.unresolved().await?;
        let hops: HashSet<_> = hops.intersection(&unresolved).collect();
        for lot in destinations.chunks(LOOKUPS_AT_ONCE) {
            for &destination in lot {
                let route = netlink.look_up(destination, self.mark).await?;
                let hop = route.and_then(|route| Hop::of_route(&route, destination));
                if hop.is_some_and(|hop| hops.contains(&hop)) {
                    self.fail(destination).await;
                }
            }
            sleep(LOOKUPS_PAUSE).await;
        }
        Ok(())
    }

    /// Returns the destinations of flows, each once.
    fn destinations(&self) -> BTreeSet<IpAddr> {
        let mut destinations = self.unanswered.destinations();
        if let Some(held) = &self.held {
            let flows = held.legs.connecting().into_iter();
            destinations.extend(flows.map(|flow| flow.destination.ip()));
        }
        destinations
    }

    async fn fail(&self, destination: IpAddr) {
        debug!(%destination, "its next hop does not answer");
        self.unanswered.fail(destination);
        if let Some(held) = &self.held {
            // The receiver is gone when SYNs are no longer held.
            let _ = held.failed.send(destination).await;
        }
    }
}
