//! Loads the path to a peer for a while, as an operator asks for it, and looks at what happens.
//!
//! ```text
//!   idle    a stream is open, nothing sent: round trips
//!   up      the same stream: bytes of no meaning, which the peer drops
//!   (the queue drains)
//!   down    another stream: the peer sends them, we drop them
//! ```
//!
//! It ends when nobody listens any more, and when the session does.

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
};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// The idle link is looked at for so long, and for so many round trips.
const IDLE: (Duration, u32) = (Duration::from_secs(1), 4);
/// A peer that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(20);
/// Samples that a listener may have before it.
const AHEAD: usize = 64;

/// How things were at a moment. Counts are since the session began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Since the probe began.
    pub at: Duration,
    /// What it did.
    pub phase: Phase,
    /// Bytes of it that had arrived in this phase.
    pub bytes: u64,
    /// The last round trip.
    pub rtt: Duration,
    /// Packets that were looked for, of them lost, bursts of these: of ours, and of the peer's.
    pub packets: [[u64; 3]; 2],
    /// Packets of ours lost by the link, at a full queue, by outages.
    pub causes: [u64; 3],
    /// Packets of ours with bytes that went again.
    pub resent: u64,
    /// What our packets took on the link, in bytes.
    pub on_link: u64,
    /// What the link is thought to carry, in bit/s.
    pub link_rate: u64,
    /// Repair packets per packet.
    pub overcode: f64,
    /// The longest datagram, in bytes.
    pub datagram: u64,
    /// Times that nothing came from the peer for long.
    pub outages: u64,
    /// Whether datagrams go by TCP.
    pub by_tcp: bool,
}

/// Why there is no probe, or why it has ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// There is one.
    #[error("a probe is under way already: there is one at a time")]
    Busy,
    /// The peer is not there.
    #[error("the peer is away, there is nothing to probe (`pepd status` says more)")]
    Away,
    /// As many flows are open to it as may be.
    #[error("as many flows are open to the peer as may be: try again when some have ended")]
    Full,
    /// It does not know what that is.
    #[error("the peer's pepd does not know probes: update it")]
    Old,
    /// It answers one already.
    #[error("the peer is at another probe of ours: try again in a minute")]
    PeerBusy,
    /// Nothing comes of it.
    #[error("the peer has not answered within 20 s: is the link there?")]
    Silent,
    /// The session has ended.
    #[error("the session with the peer has ended meanwhile: try again")]
    Ended,
    /// Nobody listens.
    #[error("nobody listens any more")]
    Unheard,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Which peer.
    pub peer: usize,
    /// For how long each direction is loaded.
    pub lasting: Duration,
    /// By how many bytes at most.
    pub bytes: u64,
    /// Before which flows they go.
    pub class: Class,
}

/// What is told of a probe. `Done` or `Failed` is the last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Told {
    /// How things are.
    Sample(Sample),
    /// It is over.
    Done,
    /// It is over before its time.
    Failed(ProbeError),
}

/// By what probes are asked for.
#[derive(Debug, Clone)]
pub struct Prober {
    statuses: Statuses,
    ordered: mpsc::UnboundedSender<Ordered>,
    place: Arc<Semaphore>,
}

/// A probe that is to begin.
#[derive(Debug)]
pub(super) struct Ordered {
    plan: Plan,
    tell: mpsc::Sender<Told>,
    /// There is no other as long as this is held.
    _place: OwnedSemaphorePermit,
}

/// Both ends of the way by which they are asked for.
pub(super) fn prober(statuses: &Statuses) -> (Prober, mpsc::UnboundedReceiver<Ordered>) {
    let (ordered, orders) = mpsc::unbounded_channel();
    let prober = Prober {
        statuses: statuses.clone(),
        ordered,
        place: Arc::new(Semaphore::new(1)),
    };
    (prober, orders)
}

impl Prober {
    /// Begins a probe, which ends at the latest when what is returned is dropped.
    ///
    /// # Errors
    /// When there is one, or the peer is away.
    pub fn begin(&self, plan: Plan) -> Result<mpsc::Receiver<Told>, ProbeError> {
        if !self.statuses.is_here(plan.peer) {
            return Err(ProbeError::Away);
        }
        let place = Arc::clone(&self.place).try_acquire_owned();
        let (tell, told) = mpsc::channel(AHEAD);
        let ordered = Ordered {
            plan,
            tell,
            _place: place.map_err(|_| ProbeError::Busy)?,
        };
        // The thread of tunnels has ended with pepd, where it has.
        let sent = self.ordered.send(ordered);
        sent.map(|()| told).map_err(|_| ProbeError::Away)
    }
}

/// Begins those that are asked for.
pub(super) async fn serve(core: Shared, mut orders: mpsc::UnboundedReceiver<Ordered>) {
    while let Some(ordered) = orders.recv().await {
        tokio::task::spawn_local(run(core.clone(), ordered));
    }
}

async fn run(core: Shared, ordered: Ordered) {
    let plan = ordered.plan;
    let peer = core.borrow().peer_name(plan.peer).to_owned();
    tracing::info!(peer, bytes = plan.bytes, lasting = ?plan.lasting, "an operator probes the path to a peer");
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut probe = Probe {
        core,
        plan,
        tell: ordered.tell.clone(),
        began: Instant::now(),
        looks,
    };
    let told = match probe.run().await {
        Ok(()) => Told::Done,
        Err(err) => {
            tracing::info!(peer, error = %err, "the probe has ended before its time");
            Told::Failed(err)
        }
    };
    drop(probe);
    // A listener that has so much before it takes some of it, or goes.
    let _ = ordered.tell.send(told).await;
}

/// How the path is, and how far a probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) facts: SessionFacts,
    pub(super) measures: Measures,
    pub(super) seen: Seen,
}

/// How far a probe is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The peer has heard of it.
    pub(super) known: bool,
    /// Bytes that have arrived there.
    pub(super) arrived: u64,
    /// Bytes that have come here.
    pub(super) came: u64,
    /// How it has ended, if it has.
    pub(super) ended: Option<Option<ResetCode>>,
}

/// One that is under way. Its stream is reset when it is dropped.
struct Probe {
    core: Shared,
    plan: Plan,
    tell: mpsc::Sender<Told>,
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
        let rtt = self.look()?.facts.path.rtt;
        self.core.borrow_mut().end_probe(plan.peer);
        self.rest(rtt).await?;
        self.open(plan.bytes)?;
        self.until(|seen| seen.came > 0).await?;
        self.watch(Phase::Down, plan.lasting, plan.bytes).await
    }

    fn open(&self, down: u64) -> Result<(), ProbeError> {
        let mut core = self.core.borrow_mut();
        if !core.has_session(self.plan.peer) {
            return Err(ProbeError::Away);
        }
        core.open_probe(self.plan.peer, self.plan.class, down)
            .map_err(|_| ProbeError::Full)
    }

    /// Waits for that, as long as a peer may take.
    async fn until(&mut self, holds: impl Fn(&Seen) -> bool) -> Result<Look, ProbeError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let look = self.look()?;
            if holds(&look.seen) {
                return Ok(look);
            }
            if Instant::now() >= until {
                return Err(ProbeError::Silent);
            }
            self.wait().await?;
        }
    }

    /// Tells how things are, for so long, or until so many bytes have arrived.
    async fn watch(
        &mut self,
        phase: Phase,
        lasting: Duration,
        most: u64,
    ) -> Result<(), ProbeError> {
        let until = Instant::now() + lasting;
        loop {
            let look = self.look()?;
            let bytes = match phase {
                Phase::Idle => 0,
                Phase::Up => look.seen.arrived,
                Phase::Down => look.seen.came,
            };
            self.tell(Told::Sample(self.sample(phase, bytes, &look)))?;
            if bytes >= most || Instant::now() >= until {
                return Ok(());
            }
            self.wait().await?;
        }
    }

    /// What is on its way arrives.
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
            return Err(ProbeError::Unheard);
        }
        Ok(())
    }

    fn tell(&self, told: Told) -> Result<(), ProbeError> {
        match self.tell.try_send(told) {
            // Who does not keep up misses some.
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(ProbeError::Unheard),
        }
    }

    fn look(&self) -> Result<Look, ProbeError> {
        let look = self.core.borrow_mut().look(self.plan.peer);
        let look = look.ok_or(ProbeError::Ended)?;
        match look.seen.ended {
            None | Some(None) => Ok(look),
            Some(Some(ResetCode::Limit)) => Err(ProbeError::PeerBusy),
            Some(Some(ResetCode::Internal)) => Err(ProbeError::Old),
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
            resent: stats.segments_resent,
            on_link: stats.bytes_sent,
            link_rate: path.link_rate,
            overcode: path.overcode,
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

    /// By which the near end is asked, once there is a session.
    async fn asked(rig: &Rig) -> Prober {
        let listener = listener().await;
        let mut client = rig.client(listener.local_addr().unwrap()).await;
        client.write_all(b"x").await.unwrap();
        listener.accept().await.unwrap();
        let statuses = rig.near.borrow().statuses.clone();
        let (prober, orders) = prober(&statuses);
        tokio::task::spawn_local(serve(Rc::clone(&rig.near), orders));
        prober
    }

    /// All that is told of a probe.
    async fn all(mut told: mpsc::Receiver<Told>) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(told) = told.recv().await {
            all.push(told);
        }
        all
    }

    fn most(told: &[Told], phase: Phase) -> u64 {
        let bytes = told.iter().filter_map(|told| match told {
            Told::Sample(sample) if sample.phase == phase => Some(sample.bytes),
            _ => None,
        });
        bytes.max().unwrap()
    }

    #[test]
    fn what_is_asked_for_arrives_both_ways_and_leaves_nothing() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            let told = all(prober.begin(PLAN).unwrap()).await;
            assert_eq!(told.last(), Some(&Told::Done));
            assert_eq!(most(&told, Phase::Up), PLAN.bytes);
            assert_eq!(most(&told, Phase::Down), PLAN.bytes);
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
            let mut told = prober.begin(endless).unwrap();
            assert_eq!(prober.begin(PLAN).err(), Some(ProbeError::Busy));
            while !matches!(told.recv().await, Some(Told::Sample(s)) if s.bytes > 0) {}
            drop(told);
            let told = loop {
                match prober.begin(PLAN) {
                    Ok(told) => break told,
                    Err(err) => assert_eq!(err, ProbeError::Busy),
                }
                sleep(Duration::from_millis(1)).await;
            };
            assert_eq!(all(told).await.last(), Some(&Told::Done));
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
            let mut told = prober.begin(plan).unwrap();
            while told.recv().await.is_none() {}
            Rig::forget(&rig.near, true);
            assert_eq!(
                all(told).await.last(),
                Some(&Told::Failed(ProbeError::Ended))
            );
        });
    }

    #[test]
    fn a_peer_that_has_not_heard_of_the_end_of_the_last_one_takes_the_next() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            // An earlier one of ours that is still open there, to the peer or back.
            for down in [0, 1 << 30] {
                let earlier = rig.near.borrow_mut().open_probe(0, PLAN.class, down);
                earlier.unwrap();
                rig.near.borrow_mut().load_probe(0, 1000);
                let told = all(prober.begin(PLAN).unwrap()).await;
                assert_eq!(told.last(), Some(&Told::Done), "{down}");
                rig.wait_idle().await;
            }
        });
    }

    #[test]
    fn a_peer_that_refuses_is_told() {
        Rig::run(|rig| async move {
            let prober = asked(&rig).await;
            // As if a later one of ours were open there.
            rig.far.borrow_mut().table(0).take_probe(u32::MAX.into());
            let told = all(prober.begin(PLAN).unwrap()).await;
            assert_eq!(told.last(), Some(&Told::Failed(ProbeError::PeerBusy)));
        });
    }
}
