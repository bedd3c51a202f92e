//! Scheduler: selects the stream that may send next.
//!
//! ```text
//!             +-> interactive ------ first of all
//!  the next --+-> normal and bulk -- capacity left by interactive
//!             +-> delay tolerant --- capacity left by all others
//!
//!  each of these:   sites take turns, each sends in proportion to its weight;
//!                   a site's hosts take turns within the site's share, all alike,
//!                   and so do a host's streams within the host's share
//! ```
//!
//! Turns of sites, hosts and streams are deficit round robin (M. Shreedhar, G. Varghese: Efficient
//! Fair Queueing Using Deficit Round Robin, 1996). The size of a stream's next packet is not known
//! before it is written. A turn therefore lasts until its quantum is used up, and bytes beyond that
//! are a debt, paid in the following turns. Two streams of a site that are always ready differ by
//! at most [`QUANTUM`] and two packets over any time. The same holds for two sites, by their
//! weights.
//!
//! [Queued](Scheduler::queue) streams take no turns: the first one of a site goes before all
//! others, as long as it is ready. The site's share among other sites does not change.

mod backlog;
mod ring;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use backlog::Backlog;
use ring::Ring;

use crate::{class::Class, wire::StreamId};

/// Bytes that a stream or host may send per turn, and a site per unit of its weight.
pub const QUANTUM: i64 = 1500;
/// Maximum weight; the minimum is 1.
pub const WEIGHT_MAX: u32 = 256;

/// Priority levels, the highest first: interactive; normal and bulk; delay tolerant.
const LEVELS: usize = 3;

/// Number of a site; the streams of a site share its part of the link.
pub type SiteId = u32;

/// Number of a host; the streams of a host share its part of the site's capacity. Streams without a
/// host belong to host 0.
pub type HostId = u64;

/// Scheduler of streams.
///
/// All calls take logarithmic time in the number of streams; [`next`](Self::next) amortised over
/// the bytes sent. Unknown numbers are ignored.
#[derive(Clone, Debug, Default)]
pub struct Scheduler {
    streams: BTreeMap<StreamId, Stream>,
    /// Weights other than 1.
    weights: BTreeMap<SiteId, u32>,
    levels: [Level; LEVELS],
    /// Stream whose turn it is; `None` if the state has changed since it was determined.
    turn: Option<Option<StreamId>>,
}

#[derive(Clone, Debug)]
struct Stream {
    class: Class,
    site: SiteId,
    host: HostId,
    ready: bool,
    backlog: Backlog,
    /// Place among the queued streams.
    queued: Option<u64>,
}

/// Streams of one priority level.
#[derive(Clone, Debug, Default)]
struct Level {
    turns: Ring<SiteId>,
    /// Sites with a stream that is ready, or has a debt.
    sites: BTreeMap<SiteId, Streams>,
}

/// Streams of a site.
#[derive(Clone, Debug, Default)]
struct Streams {
    turns: Ring<HostId>,
    /// All streams, by host.
    hosts: BTreeMap<HostId, Ring<StreamId>>,
    /// Ready streams that are queued, by place.
    queue: BTreeSet<(u64, StreamId)>,
}

impl Scheduler {
    /// Creates a scheduler without streams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stream with nothing to send; ignored if it exists.
    pub fn insert(&mut self, stream: StreamId, class: Class, site: SiteId) {
        self.streams.entry(stream).or_insert(Stream {
            class,
            site,
            host: 0,
            ready: false,
            backlog: Backlog::default(),
            queued: None,
        });
    }

    /// Removes a stream.
    pub fn remove(&mut self, stream: StreamId) {
        self.idle(stream);
        if let Some(entry) = self.streams.remove(&stream) {
            self.levels[level(entry.class)].forget(stream, &entry);
        }
    }

    /// Changes the class of a stream; its debt is cleared.
    pub fn set_class(&mut self, stream: StreamId, class: Class) {
        self.change(stream, |stream| stream.class = class);
    }

    /// Changes the site of a stream; its debt is cleared.
    pub fn set_site(&mut self, stream: StreamId, site: SiteId) {
        self.change(stream, |stream| stream.site = site);
    }

    /// Changes the host of a stream; its debt is cleared.
    pub fn set_host(&mut self, stream: StreamId, host: HostId) {
        self.change(stream, |stream| stream.host = host);
    }

    /// Sets the site's weight, from 1 (the default) to [`WEIGHT_MAX`]; other values are clamped.
    pub fn set_weight(&mut self, site: SiteId, weight: u32) {
        self.turn = None;
        match weight.clamp(1, WEIGHT_MAX) {
            1 => self.weights.remove(&site),
            weight => self.weights.insert(site, weight),
        };
    }

    /// Marks the stream as ready: it has something to send, and may.
    pub fn ready(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            return;
        };
        if !std::mem::replace(&mut entry.ready, true) {
            self.turn = None;
            self.levels[level(entry.class)].join(stream, entry);
        }
    }

    /// Marks the stream as idle: it has nothing to send, or may not.
    pub fn idle(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            return;
        };
        if std::mem::replace(&mut entry.ready, false) {
            self.turn = None;
            self.levels[level(entry.class)].leave(stream, entry);
        }
    }

    /// Queues the stream: it goes before all others of its site and class, but after queued ones
    /// with a lower place. Ignored if it is queued already.
    pub fn queue(&mut self, stream: StreamId, place: u64) {
        if let Some(entry) = self.streams.get_mut(&stream)
            && entry.queued.is_none()
        {
            entry.queued = Some(place);
            if entry.ready {
                self.turn = None;
                self.levels[level(entry.class)].join(stream, entry);
            }
        }
    }

    /// Returns the stream to turns, as if new.
    pub fn unqueue(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            return;
        };
        if let Some(place) = entry.queued.take()
            && let Some(streams) = self.levels[level(entry.class)].sites.get_mut(&entry.site)
        {
            self.turn = None;
            streams.queue.remove(&(place, stream));
        }
    }

    /// Returns the stream whose turn it is: the same one until a call changes the state.
    #[expect(
        clippy::should_implement_trait,
        reason = "not an iterator: `sent` advances it"
    )]
    pub fn next(&mut self) -> Option<StreamId> {
        let weights = &self.weights;
        let weight = |site| weights.get(&site).copied().unwrap_or(1);
        let levels = &mut self.levels;
        *self
            .turn
            .get_or_insert_with(|| levels.iter_mut().find_map(|level| level.next(weight)))
    }

    /// Records that the stream has sent `bytes`, in its turn or out of it.
    pub fn sent(&mut self, stream: StreamId, bytes: usize) {
        let Some(entry) = self.streams.get(&stream) else {
            return;
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.turn = None;
        self.levels[level(entry.class)].charge(stream, entry, bytes);
    }

    /// Records a turn of the stream at `now`. Its bytes may wait for a round trip before it [fills
    /// the link](Self::fills_link).
    pub fn on_turn(&mut self, stream: StreamId, now: Duration, rtt: Duration) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.backlog.on_turn(now, rtt, stream.ready);
        }
    }

    /// Returns true if the stream's bytes wait to be sent for longer than a round trip.
    #[must_use]
    pub fn fills_link(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.backlog.is_full())
    }

    /// Returns the class of a stream.
    #[must_use]
    pub fn class(&self, stream: StreamId) -> Option<Class> {
        self.streams.get(&stream).map(|stream| stream.class)
    }

    /// Returns true if the stream is ready.
    #[must_use]
    pub fn is_ready(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.ready)
    }

    fn change(&mut self, stream: StreamId, change: impl FnOnce(&mut Stream)) {
        let Some(before) = self.streams.get(&stream).cloned() else {
            return;
        };
        let mut after = before.clone();
        change(&mut after);
        let place = |stream: &Stream| (stream.class, stream.site, stream.host);
        if place(&after) == place(&before) {
            return;
        }
        self.remove(stream);
        self.insert(stream, after.class, after.site);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.host = after.host;
        }
        if before.ready {
            self.ready(stream);
        }
    }
}

fn level(class: Class) -> usize {
    match class {
        Class::Interactive => 0,
        Class::Normal | Class::Bulk => 1,
        Class::DelayTolerant => 2,
    }
}

impl Level {
    fn join(&mut self, stream: StreamId, entry: &Stream) {
        let streams = self.sites.entry(entry.site).or_default();
        streams.hosts.entry(entry.host).or_default().join(stream);
        streams.turns.join(entry.host);
        streams
            .queue
            .extend(entry.queued.map(|place| (place, stream)));
        self.turns.join(entry.site);
    }

    fn leave(&mut self, stream: StreamId, entry: &Stream) {
        let Some(streams) = self.sites.get_mut(&entry.site) else {
            return;
        };
        if let Some(place) = entry.queued {
            streams.queue.remove(&(place, stream));
        }
        if let Some(host) = streams.hosts.get_mut(&entry.host) {
            host.leave(stream);
            if host.is_idle() {
                streams.turns.leave(entry.host);
            }
        }
        if streams.turns.is_idle() {
            self.turns.leave(entry.site);
        }
    }

    /// Removes an idle stream from its site.
    fn forget(&mut self, stream: StreamId, entry: &Stream) {
        let Some(streams) = self.sites.get_mut(&entry.site) else {
            return;
        };
        if let Some(host) = streams.hosts.get_mut(&entry.host) {
            host.forget(stream);
            if host.is_empty() {
                streams.hosts.remove(&entry.host);
                streams.turns.forget(entry.host);
            }
        }
        if streams.hosts.is_empty() {
            self.sites.remove(&entry.site);
            self.turns.forget(entry.site);
        }
    }

    fn next(&mut self, weight: impl Fn(SiteId) -> u32) -> Option<StreamId> {
        let site = self.turns.next(|site| i64::from(weight(site)) * QUANTUM)?;
        let streams = self.sites.get_mut(&site)?;
        if let Some((_, stream)) = streams.queue.first() {
            return Some(*stream);
        }
        let host = streams.turns.next(|_| QUANTUM)?;
        streams.hosts.get_mut(&host)?.next(|_| QUANTUM)
    }

    /// Charges bytes to the stream, its host and its site. Queued streams are not charged within
    /// their site, as they take no turns.
    fn charge(&mut self, stream: StreamId, entry: &Stream, bytes: i64) {
        let Some(streams) = self.sites.get_mut(&entry.site) else {
            return;
        };
        if entry.queued.is_none()
            && let Some(host) = streams.hosts.get_mut(&entry.host)
        {
            host.charge(stream, bytes);
            streams.turns.charge(entry.host, bytes);
        }
        self.turns.charge(entry.site, bytes);
    }
}
