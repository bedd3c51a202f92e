//! Legs over the link on which nothing moves: what [`revival`](pep_core::outage::revival) decides for those that are stuck, as the
//! link is away most likely, and [`patience`](pep_core::outage::patience) for those whose receiver pauses.
//!
//! Each worker cares for its own, since nobody else may use a socket while it is made to send a probe.

use std::{
    cell::RefCell,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
    time::Duration,
};

use pep_core::{
    config::Timeouts,
    outage::{
        patience::Patience,
        revival::{Care, Revival, Vitals},
    },
};
use pepd_sys::socket;
use socket2::SockRef;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::FlowContext;

/// How often each leg is looked at.
const SCAN: Duration = Patience::LOOK;
/// With many legs that are stuck, a probe is sent so often, and no oftener, by each worker.
const BETWEEN_PROBES: Duration = Duration::from_millis(5);

thread_local! {
    static LEGS: RefCell<Legs> = RefCell::default();
}

/// Those of a worker.
#[derive(Debug, Default)]
struct Legs {
    list: Vec<Leg>,
    /// There are some, after there were none.
    some: Arc<Notify>,
}

#[derive(Debug)]
struct Leg {
    socket: Weak<OwnedFd>,
    /// Cap on its retransmissions, while all is well; without one it is not revived.
    rto_max: Option<Duration>,
    /// Patience, where it has a user timeout.
    patience: Option<Patience>,
    /// What was acknowledged a scan ago, where more was under way.
    acked: Option<u64>,
    /// Where it seems stuck.
    revival: Option<Revival>,
}

/// The least cap on retransmissions that the kernel takes. Always, it would be a mistake wherever queues are long;
/// but what is stuck has none to wait in, and when it is heard of again this is how soon what is lost is found out.
const RTO_MAX_STUCK: Duration = Duration::from_secs(1);

/// From now on the worker that calls this cares for a leg of a flow of its own, which has these timeouts.
pub(super) fn watch(socket: &Arc<OwnedFd>, timeouts: &Timeouts) {
    let (rto_max, user_timeout) = (timeouts.rto_max, timeouts.user_timeout);
    if rto_max.is_none() && user_timeout.is_none() {
        return;
    }
    LEGS.with_borrow_mut(|legs| {
        if legs.list.is_empty() {
            legs.some.notify_one();
        }
        legs.list.push(Leg {
            socket: Arc::downgrade(socket),
            rto_max,
            patience: user_timeout.map(Patience::new),
            acked: None,
            revival: None,
        });
    });
}

/// Cares for the legs of this worker for as long as it runs.
pub async fn run(context: Arc<FlowContext>) {
    let some = LEGS.with_borrow(|legs| Arc::clone(&legs.some));
    let began = Instant::now();
    let mut scanned = began;
    let mut stuck = 0;
    loop {
        if LEGS.with_borrow(|legs| legs.list.is_empty()) {
            some.notified().await;
        }
        sleep(if stuck > 0 { Revival::LOOK } else { SCAN }).await;
        let now = Instant::now();
        let scan = now.duration_since(scanned) >= SCAN;
        if scan {
            scanned = now;
        }
        let (now_stuck, probes) =
            LEGS.with_borrow_mut(|legs| legs.care(now.duration_since(began), stuck, scan));
        stuck = now_stuck;
        if probes > 0 {
            context.counters.update(|stats| stats.link_probes += probes);
        }
    }
}

impl Legs {
    /// Looks at all legs, or at those that are stuck. Returns how many are, and how many were made to send.
    fn care(&mut self, now: Duration, stuck: u32, scan: bool) -> (u32, u64) {
        let period = Revival::PERIOD.max(BETWEEN_PROBES * stuck);
        let (mut stuck, mut probes) = (0, 0);
        self.list.retain_mut(|leg| {
            if !scan && leg.revival.is_none() {
                return true;
            }
            let Some(socket) = leg.socket.upgrade() else {
                return false;
            };
            let Ok(vitals) = socket::vitals(socket.as_fd()) else {
                return false;
            };
            if scan && let Some(timeout) = leg.user_timeout(now, &vitals) {
                let socket = SockRef::from(&socket);
                let _ = socket.set_tcp_user_timeout(Some(timeout));
            }
            let Some(rto_max) = leg.rto_max else {
                return true;
            };
            let was_stuck = leg.revival.is_some();
            let care = leg.care(now, &vitals, period);
            if care == Care::Probe && socket::send_probe(socket.as_fd()).is_ok() {
                probes += 1;
            }
            if was_stuck != leg.revival.is_some() {
                leg.cap_retransmissions(socket.as_fd(), rto_max);
            }
            stuck += u32::from(leg.revival.is_some());
            true
        });
        if self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to_fit();
        }
        (stuck, probes)
    }
}

impl Leg {
    /// As tightly as its state asks for. A kernel that has no such cap was complained of when the leg was made.
    fn cap_retransmissions(&self, socket: BorrowedFd<'_>, rto_max: Duration) {
        let stuck = self.revival.map(|_| RTO_MAX_STUCK.min(rto_max));
        let _ = socket::set_rto_max(socket, stuck.unwrap_or(rto_max));
    }

    /// The user timeout that it needs from now on, if it is another one.
    fn user_timeout(&mut self, now: Duration, vitals: &Vitals) -> Option<Duration> {
        self.patience.as_mut()?.care(now, vitals)
    }

    /// What to do for it.
    fn care(&mut self, now: Duration, vitals: &Vitals, period: Duration) -> Care {
        if self.revival.is_none() {
            let waited = self.acked == Some(vitals.acked);
            self.acked = (vitals.unacked > 0).then_some(vitals.acked);
            if !waited || !vitals.seem_stuck() {
                return Care::Wait;
            }
        }
        let revival = self
            .revival
            .get_or_insert_with(|| Revival::new(now, vitals));
        let care = revival.care(now, vitals, period);
        if care == Care::Leave {
            (self.revival, self.acked) = (None, None);
        }
        care
    }
}
