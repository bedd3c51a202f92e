//! Load test of the path to a peer, requested by an operator.
//!
//! ```text
//!   idle    a stream is open, nothing sent: round trips
//!   up      the same stream: filler bytes, which the peer drops
//!   (the queue drains)
//!   down    another stream: the peer sends filler, pepd drops it
//! ```
//!
//! A probe ends early when its listener disconnects or the session ends.

use std::{sync::Arc, time::Duration};

use pepd_api::probe::Phase;
use tokio::{
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{self, error::TrySendError},
    },
    time::{Instant, Interval, MissedTickBehavior, interval},
};
use tunnel::{
    class::Class,
    endpoint::Carrier,
    session::Measures,
    wire::{DATAGRAM_OVERHEAD, ResetCode},
};

use super::{
    core::Shared,
    peers::{SessionFacts, Statuses},
    setup::Place,
};

/// Interval between samples.
const LOOK: Duration = Duration::from_millis(100);
/// Duration of the idle phase, and its minimum in round trips.
const IDLE: (Duration, u32) = (Duration::from_secs(1), 4);
/// Time limit for the peer's answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Samples queued for the listener.
const AHEAD: usize = 64;

/// Figures at one moment. Counts are since the session began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Time since the probe began.
    pub at: Duration,
    /// Phase of the probe.
    pub phase: Phase,
    /// Bytes of this phase that have arrived.
    pub bytes: u64,
    /// The last round trip.
    pub rtt: Duration,
    /// Packets checked, packets lost, loss bursts: of the local end, and of the peer.
    pub packets: [[u64; 3]; 2],
    /// Lost packets of the local end: link loss, queue overflow, outages.
    pub causes: [u64; 3],
    /// Packets of the local end whose bytes were retransmitted.
    pub retransmitted: u64,
    /// Bytes that the local end's packets took on the link.
    pub on_link: u64,
    /// Estimated link rate in bit/s.
    pub link_rate: u64,
    /// Repair packets per packet.
    pub fec_overhead: f64,
    /// The longest datagram, in bytes.
    pub datagram: u64,
    /// Outages: long silences of the peer.
    pub outages: u64,
    /// True if datagrams go by TCP.
    pub by_tcp: bool,
}

/// Reasons for which a probe did not start, or ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Another probe runs.
    #[error("another probe is running: one at a time")]
    Busy,
    /// The peer is down.
    #[error("the peer is down: see `pepd status`")]
    Down,
    /// The peer has its maximum of open flows.
    #[error("the peer has its maximum number of open flows: try again when some have ended")]
    Full,
    /// The peer does not support probes.
    #[error("the peer's pepd does not support probes: update it")]
    Unsupported,
    /// The peer already answers a probe.
    #[error("the peer still answers an earlier probe: try again in a minute")]
    PeerBusy,
    /// The peer does not answer.
    #[error("no answer from the peer within 20 s: check the link")]
    Silent,
    /// The session has ended.
    #[error("the session with the peer ended during the probe: try again")]
    Ended,
    /// The listener has disconnected.
    #[error("the listener has disconnected")]
    Disconnected,
}

/// Parameters of a probe.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Index of the peer.
    pub peer: usize,
    /// Load time of each direction.
    pub lasting: Duration,
    /// Maximum of bytes per direction.
    pub bytes: u64,
    /// Class of the probe's bytes.
    pub class: Class,
}

/// Report of a probe. `Done` or `Failed` is the last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProbeEvent {
    /// Current figures.
    Sample(Sample),
    /// The probe is complete.
    Done,
    /// The probe has ended early.
    Failed(ProbeError),
}

/// Handle by which probes are requested.
#[derive(Debug, Clone)]
pub struct Prober {
    statuses: Statuses,
    places: Arc<[Place]>,
    /// Requests to each thread.
    ordered: Vec<mpsc::UnboundedSender<Ordered>>,
    /// Permit of the only probe.
    permit: Arc<Semaphore>,
}

/// A requested probe.
#[derive(Debug)]
pub(super) struct Ordered {
    plan: Plan,
    tell: mpsc::Sender<ProbeEvent>,
    /// Permit that excludes other probes.
    _permit: OwnedSemaphorePermit,
}

impl Prober {
    /// Creates the handle. `ordered` takes the requests to each thread.
    pub(super) fn new(
        statuses: &Statuses,
        places: &[Place],
        ordered: Vec<mpsc::UnboundedSender<Ordered>>,
    ) -> Self {
        Self {
            statuses: statuses.clone(),
            places: places.into(),
            ordered,
            permit: Arc::new(Semaphore::new(1)),
        }
    }

    /// Starts a probe. It ends when the returned receiver is dropped, if not before.
    ///
    /// # Errors
    /// If another probe runs, or the peer is down.
    pub fn begin(&self, plan: Plan) -> Result<mpsc::Receiver<ProbeEvent>, ProbeError> {
        if !self.statuses.is_up(plan.peer) {
            return Err(ProbeError::Down);
        }
        let permit = Arc::clone(&self.permit).try_acquire_owned();
        let (tell, events) = mpsc::channel(AHEAD);
        let Place { thread, index } = self.places[plan.peer];
        let ordered = Ordered {
            plan: Plan {
                peer: index,
                ..plan
            },
            tell,
            _permit: permit.map_err(|_| ProbeError::Busy)?,
        };
        // The send fails only after the peer's thread has ended.
        let sent = self.ordered[thread].send(ordered);
        sent.map(|()| events).map_err(|_| ProbeError::Down)
    }
}

/// Runs requested probes.
pub(super) async fn serve(core: Shared, mut orders: mpsc::UnboundedReceiver<Ordered>) {
    while let Some(ordered) = orders.recv().await {
        tokio::task::spawn_local(run(core.clone(), ordered));
    }
}

async fn run(core: Shared, ordered: Ordered) {
    let plan = ordered.plan;
    let peer = core.borrow().peer_name(plan.peer).to_owned();
    tracing::info!(peer, bytes = plan.bytes, lasting = ?plan.lasting, "probe of a path started by an operator");
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut probe = Probe {
        core,
        plan,
        tell: ordered.tell.clone(),
        began: Instant::now(),
        looks,
    };
    let outcome = match probe.run().await {
        Ok(()) => ProbeEvent::Done,
        Err(err) => {
            tracing::info!(peer, error = %err, "probe ended early");
            ProbeEvent::Failed(err)
        }
    };
    drop(probe);
    // A listener with a full queue reads it, or disconnects.
    let _ = ordered.tell.send(outcome).await;
}

/// State of the path and progress of a probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) facts: SessionFacts,
    pub(super) measures: Measures,
    pub(super) seen: Seen,
}

/// Progress of a probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The peer has acknowledged the stream.
    pub(super) known: bool,
    /// Bytes that have arrived at the peer.
    pub(super) arrived: u64,
    /// Bytes received from the peer.
    pub(super) came: u64,
    /// The end of the stream, if it has ended.
    pub(super) ended: Option<Option<ResetCode>>,
}

/// A running probe. Its stream is reset on drop.
struct Probe {
    core: Shared,
    plan: Plan,
    tell: mpsc::Sender<ProbeEvent>,
    began: Instant,
    looks: Interval,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.core.borrow_mut().end_probe(self.plan.peer);
    }
}

impl Probe {
    async fn run(&mut self) -> Result<(), ProbeError> {
        let plan = self.plan;
        self.open(0)?;
        let first = self.until(|seen| seen.known).await?;
        let rtt = first.facts.path.rtt;
        let idle = IDLE.0.max(rtt * IDLE.1);
        self.watch(Phase::Idle, idle, u64::MAX).await?;
        self.core.borrow_mut().load_probe(plan.peer, plan.bytes);
        self.watch(Phase::Up, plan.lasting, plan.bytes).await?;
        let rtt = self.observe()?.facts.path.rtt;
        self.core.borrow_mut().end_probe(plan.peer);
        self.rest(rtt).await?;
        self.open(plan.bytes)?;
        self.until(|seen| seen.came > 0).await?;
        self.watch(Phase::Down, plan.lasting, plan.bytes).await
    }

    fn open(&self, down: u64) -> Result<(), ProbeError> {
        let mut core = self.core.borrow_mut();
        if !core.has_session(self.plan.peer) {
            return Err(ProbeError::Down);
        }
        core.open_probe(self.plan.peer, self.plan.class, down)
            .map_err(|_| ProbeError::Full)
    }

    /// Waits until `holds`, for at most [`TIMEOUT`].
    async fn until(&mut self, holds: impl Fn(&Seen) -> bool) -> Result<Look, ProbeError> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let look = self.observe()?;
            if holds(&look.seen) {
                return Ok(look);
            }
            if Instant::now() >= until {
                return Err(ProbeError::Silent);
            }
            self.wait().await?;
        }
    }

    /// Reports samples for the given time, or until the given number of bytes has arrived.
    async fn watch(
        &mut self,
        phase: Phase,
        lasting: Duration,
        most: u64,
    ) -> Result<(), ProbeError> {
        let until = Instant::now() + lasting;
        loop {
            let look = self.observe()?;
            let bytes = match phase {
                Phase::Idle => 0,
                Phase::Up => look.seen.arrived,
                Phase::Down => look.seen.came,
            };
            self.report(ProbeEvent::Sample(self.sample(phase, bytes, &look)))?;
            if bytes >= most || Instant::now() >= until {
                return Ok(());
            }
            self.wait().await?;
        }
    }

    /// Waits for packets in flight.
    async fn rest(&mut self, lasting: Duration) -> Result<(), ProbeError> {
        let until = Instant::now() + lasting;
        while Instant::now() < until {
            self.wait().await?;
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<(), ProbeError> {
        self.looks.tick().await;
        if self.tell.is_closed() {
            return Err(ProbeError::Disconnected);
        }
        Ok(())
    }

    fn report(&self, event: ProbeEvent) -> Result<(), ProbeError> {
        match self.tell.try_send(event) {
            // A slow listener misses samples.
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(ProbeError::Disconnected),
        }
    }

    fn observe(&self) -> Result<Look, ProbeError> {
        let look = self.core.borrow_mut().sample(self.plan.peer);
        let look = look.ok_or(ProbeError::Ended)?;
        match look.seen.ended {
            None | Some(None) => Ok(look),
            Some(Some(ResetCode::Limit)) => Err(ProbeError::PeerBusy),
            Some(Some(ResetCode::Internal)) => Err(ProbeError::Unsupported),
            Some(Some(_)) => Err(ProbeError::Ended),
        }
    }

    fn sample(&self, phase: Phase, bytes: u64, look: &Look) -> Sample {
        let (path, stats, causes) = (look.facts.path, look.facts.stats, look.facts.causes);
        Sample {
            at: self.began.elapsed(),
            phase,
            bytes,
            rtt: look.measures.rtt,
            packets: [look.measures.sent, look.measures.received],
            causes: [causes.link, causes.congestion, causes.outage],
            retransmitted: stats.segments_retransmitted,
            on_link: stats.bytes_sent,
            link_rate: path.link_rate,
            fec_overhead: path.fec_overhead,
            datagram: (path.packet + DATAGRAM_OVERHEAD) as u64,
            outages: stats.outages,
            by_tcp: look.facts.carrier == Some(Carrier::Tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::{io::AsyncWriteExt as _, time::sleep};

    use super::*;
    use crate::rig::{Rig, listener};

    const PLAN: Plan = Plan {
        peer: 0,
        lasting: Duration::from_millis(500),
        bytes: 300_000,
        class: Class::DelayTolerant,
    };

    /// Returns the near end's handle once there is a session.
    async fn asked(rig: &Rig) -> Prober {
        let listener = listener().await;
        let mut client = rig.client(listener.local_addr().unwrap()).await;
        client.write_all(b"x").await.unwrap();
        listener.accept().await.unwrap();
        let statuses = rig.near.borrow().statuses.clone();
        let (order, orders) = mpsc::unbounded_channel();
        let first = Place {
            thread: 0,
            index: 0,
        };
        let prober = Prober::new(&statuses, &[first], vec![order]);
        tokio::task::spawn_local(serve(Rc::clone(&rig.near), orders));
        prober
    }

    /// Collects all reports of a probe.
    async fn all(mut reported: mpsc::Receiver<ProbeEvent>) -> Vec<ProbeEvent> {
        let mut all = Vec::new();
        while let Some(reported) = reported.recv().await {
            all.push(reported);
        }
        all
    }

    fn most(reported: &[ProbeEvent], phase: Phase) -> u64 {
        let bytes = reported.iter().filter_map(|reported| match reported {
            ProbeEvent::Sample(sample) if sample.phase == phase => Some(sample.bytes),
            _ => None,
        });
        bytes.max().unwrap()
    }

    #[test]
    fn requested_bytes_arrive_in_both_directions_and_leave_nothing() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            let reported = all(prober.begin(PLAN).unwrap()).await;
            assert_eq!(reported.last(), Some(&ProbeEvent::Done));
            assert_eq!(most(&reported, Phase::Up), PLAN.bytes);
            assert_eq!(most(&reported, Phase::Down), PLAN.bytes);
            rig.wait_idle().await;
        });
    }

    #[test]
    fn it_ends_with_who_listens_and_another_may_begin() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            let endless = Plan {
                lasting: Duration::from_secs(60),
                bytes: u64::MAX,
                ..PLAN
            };
            let mut reported = prober.begin(endless).unwrap();
            assert_eq!(prober.begin(PLAN).err(), Some(ProbeError::Busy));
            while !matches!(reported.recv().await, Some(ProbeEvent::Sample(s)) if s.bytes > 0) {}
            drop(reported);
            let reported = loop {
                match prober.begin(PLAN) {
                    Ok(reported) => break reported,
                    Err(err) => assert_eq!(err, ProbeError::Busy),
                }
                sleep(Duration::from_millis(1)).await;
            };
            assert_eq!(all(reported).await.last(), Some(&ProbeEvent::Done));
            rig.wait_idle().await;
        });
    }

    #[test]
    fn it_ends_with_its_session() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            let plan = Plan {
                lasting: Duration::from_secs(60),
                ..PLAN
            };
            let mut reported = prober.begin(plan).unwrap();
            while reported.recv().await.is_none() {}
            Rig::forget(&rig.near, true);
            assert_eq!(
                all(reported).await.last(),
                Some(&ProbeEvent::Failed(ProbeError::Ended))
            );
        });
    }

    #[test]
    fn a_peer_that_has_not_heard_of_the_end_of_the_last_one_takes_the_next() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            // An earlier probe of this end is still open at the peer, in either direction.
            for down in [0, 1 << 30] {
                let earlier = rig.near.borrow_mut().open_probe(0, PLAN.class, down);
                earlier.unwrap();
                rig.near.borrow_mut().load_probe(0, 1000);
                let reported = all(prober.begin(PLAN).unwrap()).await;
                assert_eq!(reported.last(), Some(&ProbeEvent::Done), "{down}");
                rig.wait_idle().await;
            }
        });
    }

    #[test]
    fn a_refusal_of_the_peer_is_reported() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            // As if a later probe of this end were open at the peer.
            rig.far.borrow_mut().table(0).take_probe(u32::MAX.into());
            let reported = all(prober.begin(PLAN).unwrap()).await;
            assert_eq!(
                reported.last(),
                Some(&ProbeEvent::Failed(ProbeError::PeerBusy))
            );
        });
    }
}
