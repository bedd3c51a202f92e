//! Sampling of a flow.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pep_core::{
    arena::{Kind, Record, SlotState, name_hash},
    relay::{Direction, Side},
    site::LinkLeg,
};
use pepd_api::{
    flows::LegStatus,
    trace::{DirectionSample, End, Look, TraceEvent, WaitsFor, What},
};
use pepd_relay::flow::{Ended, Watch, Watched};
use pepd_sys::sockets::{self, Found};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::{
    Observer,
    find::Target,
    waits::{Sink, waits_for},
};
use crate::observe::flows::{come_to, leg_status};

/// Sampling interval.
const EVERY: Duration = Duration::from_millis(250);
/// Time after which a sample is reported even if unchanged.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Minimum time between two searches for sockets among all descriptors of the process.
const SEEK_EVERY: Duration = Duration::from_secs(1);
/// Time within which the end of a flow is reported after its published state is gone.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Tracer of a flow, until dropped.
#[derive(Debug)]
pub(super) struct Tracer {
    observer: Arc<Observer>,
    target: Target,
    watch: Watch,
    tick: Interval,
    /// Sockets of its legs.
    legs: [Option<Found>; 2],
    sought: Option<Instant>,
    /// Last sample and its time.
    before: Option<(Look, Instant)>,
    /// Last reported sample and its time.
    reported: Option<(Look, Instant)>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    RecentSamples,
    Over,
}

impl Tracer {
    pub(super) fn new(observer: Arc<Observer>, target: Target) -> Self {
        let watched = Watched::from(&target.identity);
        let watch = observer.context.watchers.watch(watched);
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            observer,
            target,
            watch,
            tick,
            legs: [None; 2],
            sought: None,
            before: None,
            reported: None,
            stage: Stage::Begin,
        }
    }

    /// Returns the next event; `None` after the end. Sampling happens only on request.
    pub(super) async fn next(&mut self) -> Option<TraceEvent> {
        let what = match self.stage {
            Stage::Begin => self.begin().await,
            Stage::RecentSamples => self.sample().await,
            Stage::Over => return None,
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        let at = at.unwrap_or_default().as_secs_f64();
        Some(TraceEvent { at, what })
    }

    async fn begin(&mut self) -> What {
        self.stage = Stage::RecentSamples;
        let (observer, slot) = (Arc::clone(&self.observer), self.target.slot);
        let flow = observer.search(move |here| here.flow(slot)).await;
        match flow.ok().flatten() {
            Some(flow) if self.record().is_some() => What::Flow(Box::new(flow)),
            _ => self.end().await,
        }
    }

    async fn sample(&mut self) -> What {
        loop {
            tokio::select! {
                biased;
                ended = self.watch.ended() => return self.over(ended),
                _ = self.tick.tick() => {}
            }
            let Some(record) = self.record() else {
                return self.end().await;
            };
            self.seek(&record).await;
            if let Some(look) = self.news(&record) {
                return What::Look(Box::new(look));
            }
        }
    }

    /// Returns the end of the flow, whose published state is gone.
    async fn end(&mut self) -> What {
        let ended = timeout(LAST_WORD, self.watch.ended()).await;
        self.over(ended.ok().flatten())
    }

    fn over(&mut self, ended: Option<Ended>) -> What {
        self.stage = Stage::Over;
        What::Ended(ended.map_or_else(End::default, |ended| end(&ended)))
    }

    /// Returns the flow's published state.
    fn record(&self) -> Option<Record> {
        let record = self.observer.context.arena.record(self.target.slot)?;
        let is_there = record.state != SlotState::Free && self.target.is(&record.identity);
        is_there.then_some(record)
    }

    /// Finds the sockets of its legs, if they have changed.
    async fn seek(&mut self, record: &Record) {
        for (leg, cookie) in self.legs.iter_mut().zip(record.cookies) {
            *leg = leg.filter(|leg| leg.cookie() == cookie);
            *leg = leg.and_then(|leg| leg.again());
        }
        let lacks = |side: Side| self.legs[side as usize].is_none() && has_leg(record, side);
        let lately = self.sought.is_some_and(|at| at.elapsed() < SEEK_EVERY);
        if lately || !Side::ALL.into_iter().any(lacks) {
            return;
        }
        self.sought = Some(Instant::now());
        let searched = Arc::clone(&self.observer).search(|_| sockets::all());
        if let Ok(all) = searched.await {
            self.legs = record.cookies.map(|cookie| all.get(&cookie).copied());
        }
    }

    /// Samples the flow, and returns a sample worth reporting.
    fn news(&mut self, record: &Record) -> Option<Look> {
        let now = Instant::now();
        let mut look = self.look_now(record);
        let routes = |look: &Look| [look.up.bytes, look.down.bytes];
        let before = self.reported.as_ref().map(|(look, _)| routes(look));
        // Bytes from before the trace do not count as moved.
        let before = before.unwrap_or_else(|| routes(&look));
        look.up.moved = look.up.bytes.saturating_sub(before[0]);
        look.down.moved = look.down.bytes.saturating_sub(before[1]);
        if let Some((_, at)) = &self.before {
            let since = now.duration_since(*at).as_millis() / EVERY.as_millis();
            look.missed = u64::try_from(since).unwrap_or(u64::MAX).saturating_sub(1);
        }
        self.before = Some((look.clone(), now));
        let is_news = self.reported.as_ref().is_none_or(|(reported, at)| {
            look.missed > 0 || differ(reported, &look) || now.duration_since(*at) >= SILENCE_MAX
        });
        if !is_news {
            return None;
        }
        self.reported = Some((look.clone(), now));
        Some(look)
    }

    fn look_now(&self, record: &Record) -> Look {
        let link_down = self.observer.context.outage.is_down();
        let legs = self.legs.each_ref().map(|leg| {
            let facts = leg.as_ref()?.facts();
            facts.as_ref().map(leg_status)
        });
        let [up, down] = Direction::ALL.map(|direction| {
            let waits = self.waits_for(record, direction, &legs, link_down);
            self.direction_sample(record, direction, waits)
        });
        let [client_leg, server_leg] = legs;
        Look {
            state: come_to(record.state).to_owned(),
            link_down,
            up,
            down,
            client_leg,
            server_leg,
            missed: 0,
        }
    }

    fn direction_sample(
        &self,
        record: &Record,
        direction: Direction,
        waits_for: Option<WaitsFor>,
    ) -> DirectionSample {
        let part = &record.directions[direction as usize];
        DirectionSample {
            bytes: part.tail,
            moved: 0,
            held: part.tail.saturating_sub(part.head),
            kernel: self.queue(direction) + self.unread(direction),
            source_ended: part.fin_in,
            ended: part.fin_out,
            waits_for,
        }
    }

    /// Returns the bytes in the send queue of the receiving leg.
    fn queue(&self, direction: Direction) -> u64 {
        let leg = &self.legs[direction.sink() as usize];
        leg.as_ref().map_or(0, |leg| leg.queue)
    }

    /// Returns the bytes that the sending leg has acknowledged and pepd has not read.
    fn unread(&self, direction: Direction) -> u64 {
        let leg = &self.legs[direction.source() as usize];
        leg.as_ref().map_or(0, |leg| leg.unread)
    }

    fn waits_for(
        &self,
        record: &Record,
        direction: Direction,
        legs: &[Option<LegStatus>; 2],
        link_down: bool,
    ) -> Option<WaitsFor> {
        if record.state == SlotState::Closed {
            return None;
        }
        let side = direction.sink();
        let sink = if is_tunnel(record.identity.kind, side) {
            Sink::Tunnel {
                is_up: self.peer_is_up(record.identity.peer),
            }
        } else {
            let before = self.before.as_ref().map(|(look, _)| look);
            Sink::Leg {
                before: before.and_then(|look| match side {
                    Side::Client => look.client_leg.as_ref(),
                    Side::Server => look.server_leg.as_ref(),
                }),
                now: legs[side as usize].as_ref(),
                queue: self.queue(direction),
                is_links: side == self.observer.link_side(record.identity.site),
            }
        };
        let is_accepted = record.state == SlotState::Accepted;
        waits_for(
            &record.directions[direction as usize],
            sink,
            is_accepted,
            link_down,
        )
    }

    fn peer_is_up(&self, peer: u64) -> bool {
        let Some((statuses, _)) = &self.observer.peers else {
            return false;
        };
        let mut peers = self.observer.config.peers.iter();
        let index = peers.position(|known| name_hash(&known.name) == peer);
        index.is_some_and(|index| statuses.status(index).is_up())
    }
}

impl Observer {
    /// Returns the side of the leg that crosses the link, for a flow outside tunnels of the site
    /// with that name's hash.
    pub(super) fn link_side(&self, site: u64) -> Side {
        let mut sites = self.config.sites.iter();
        let site = sites.find(|(_, known)| name_hash(&known.name) == site);
        match site.map(|(_, site)| site.link_leg) {
            Some(LinkLeg::Client) => Side::Client,
            _ => Side::Server,
        }
    }
}

/// Returns true if a flow has a tunnel instead of a leg on that side.
fn is_tunnel(kind: Kind, side: Side) -> bool {
    matches!(
        (kind, side),
        (Kind::Near, Side::Server) | (Kind::Far, Side::Client)
    )
}

fn has_leg(record: &Record, side: Side) -> bool {
    record.cookies[side as usize] != 0
}

/// Returns true if a sample is worth reporting. Times and rates of an idle flow are not.
fn differ(reported: &Look, now: &Look) -> bool {
    let gist = |look: &Look| {
        let resent = [&look.client_leg, &look.server_leg].map(|leg| {
            leg.as_ref()
                .map(|leg| (leg.retransmitted, leg.state.clone()))
        });
        let routes = [&look.up, &look.down].map(|way| {
            let DirectionSample {
                bytes,
                held,
                kernel,
                source_ended,
                ended,
                waits_for,
                moved: _,
            } = *way;
            (bytes, held, kernel, source_ended, ended, waits_for)
        });
        (look.state.clone(), look.link_down, routes, resent)
    };
    gist(reported) != gist(now)
}

fn end(ended: &Ended) -> End {
    End {
        reason: Some(ended.reason.to_string()),
        bytes: ended.bytes,
        undelivered: ended.undelivered,
        duration_s: ended.duration.as_secs_f64(),
        error: ended.error.clone(),
    }
}
