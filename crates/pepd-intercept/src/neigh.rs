//! Next hops that do not answer.
//!
//! When ARP or neighbour discovery fails for a server leg, the kernel reports it to the source
//! address of our SYN, the client's, quoting our sequence number: the client ignores it and we
//! never see it. So we watch for failed neighbours ourselves.

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

/// Look-ups of next hops before others get a turn: about 10 ms of work.
const LOOKUPS_AT_ONCE: usize = 256;

/// Between two such lots, so that even ten thousand dead destinations leave most of the
/// processor to the living.
const LOOKUPS_PAUSE: Duration = Duration::from_millis(50);

/// Tells flows whose next hop does not answer.
#[derive(Debug)]
pub struct NeighbourWatch {
    unanswered: Arc<Unanswered>,
    held: Option<HeldListener>,
    mark: u32,
}

/// Who is told of destinations of held flows.
#[derive(Debug)]
pub struct HeldListener {
    pub(super) legs: Arc<HeldLegs>,
    pub(super) failed: mpsc::Sender<IpAddr>,
}

impl NeighbourWatch {
    /// `mark` is that of server legs, since routing may depend on it.
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
            // Whose SYN waited for these neighbours says so only after a while. Failures that
            // come meanwhile wait in the socket.
            sleep(PROMPT).await;
            if let Err(err) = self.wake_resolution(&hops).await {
                warn!(error = %err, "cannot find out who is behind a dead next hop");
            }
        }
    }

    /// Tells everybody behind these hops. Routing by source address is not taken into account:
    /// the kernel does not say how it would route a packet of ours from another's address.
    async fn wake_resolution(&self, hops: &HashSet<Hop>) -> Result<(), RouteError> {
        let destinations: Vec<_> = self.destinations().into_iter().collect();
        if destinations.is_empty() {
            return Ok(());
        }
        let netlink = Netlink::connect()?;
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

    /// Each once, however many flows go there.
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
            // Nobody listens any more when SYNs are no longer held.
            let _ = held.failed.send(destination).await;
        }
    }
}
