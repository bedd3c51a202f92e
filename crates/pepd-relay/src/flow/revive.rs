//! Idle legs over the link: applies [`revival`](pep_core::outage::revival) to legs that are stuck,
//! most likely because the link is down, and [`patience`](pep_core::outage::patience) to legs whose
//! receiver pauses.
//!
//! Each worker handles its own legs: no other thread may use a socket that is being made to send a
//! probe.

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

/// Interval between two looks at each leg.
const SCAN: Duration = Patience::LOOK;
/// Minimum interval between two probes of one worker, when many legs are stuck.
const BETWEEN_PROBES: Duration = Duration::from_millis(5);

thread_local! {
    static LEGS: RefCell<Legs> = RefCell::default();
}

/// Legs of one worker.
#[derive(Debug, Default)]
struct Legs {
    list: Vec<Leg>,
    /// Notified when the first leg is added to an empty list.
    some: Arc<Notify>,
}

#[derive(Debug)]
struct Leg {
    socket: Weak<OwnedFd>,
    /// Maximum of its retransmission timeout in normal operation; without one the leg is not
    /// revived.
    rto_max: Option<Duration>,
    /// Patience, if the leg has a user timeout.
    patience: Option<Patience>,
    /// Acknowledged bytes at the last scan, if more were in flight.
    acked: Option<u64>,
    /// State of the revival, if the leg seems stuck.
    revival: Option<Revival>,
}

/// Lowest maximum of the retransmission timeout that the kernel accepts. It would be harmful as a
/// permanent value wherever queues are long. A stuck leg has no queue to wait in, and this bound
/// limits the time to detect losses once the link is up again.
const RTO_MAX_STUCK: Duration = Duration::from_secs(1);

/// Adds a leg of a flow with these timeouts to the calling worker's list.
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

/// Looks after the legs of this worker for as long as it runs.
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
    /// Looks at all legs, or only at stuck ones. Returns the number of stuck legs, and the number
    /// of legs made to send.
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
    /// Sets the maximum of the retransmission timeout that its state calls for. pepd already warned
    /// of a kernel without this option when it made the leg.
    fn cap_retransmissions(&self, socket: BorrowedFd<'_>, rto_max: Duration) {
        let stuck = self.revival.map(|_| RTO_MAX_STUCK.min(rto_max));
        let _ = socket::set_rto_max(socket, stuck.unwrap_or(rto_max));
    }

    /// Returns the leg's new user timeout, if it changes.
    fn user_timeout(&mut self, now: Duration, vitals: &Vitals) -> Option<Duration> {
        self.patience.as_mut()?.care(now, vitals)
    }

    /// Decides the action for the leg.
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
