//! Which stream may send next.
//!
//! ```text
//!             +-> interactive ------ first of all
//!  the next --+-> normal and bulk -- what interactive leaves
//!             +-> delay tolerant --- what all others leave
//!
//!  each of these:   sites take turns, each sends as much in one as its weight says;
//!                   a site's hosts take turns within what the site has, all alike,
//!                   and so do a host's streams within what the host has
//! ```
//!
//! Turns are deficit round robin (M. Shreedhar, G. Varghese: Efficient Fair Queueing Using Deficit Round
//! Robin, 1996), of sites, hosts and streams. As what a stream will send is not known before it is written, a turn lasts
//! until what it allowed is used up, and what was sent beyond that is a debt to be made up for in the
//! turns that follow. So over any time two streams of a site that are always ready differ by [`QUANTUM`] and
//! two packets at most, and two sites, by their weights, likewise.
//!
//! Streams that are [queued](Scheduler::queue) take no turns: within their site the first one goes before all others, as long as it
//! is ready. What the site has beside others is the same.

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

/// What a stream or host may send in its turn, in bytes, and a site for each unit of its weight.
pub const QUANTUM: i64 = 1500;
/// Weights are from 1 to this.
pub const WEIGHT_MAX: u32 = 256;

/// Those of whom the higher go first: interactive, normal and bulk, delay tolerant.
const LEVELS: usize = 3;

/// Number of a site, by which its streams share the link with others'.
pub type SiteId = u32;

/// Number of a host, by which its streams share what their site has with those of others. Streams of which no host was named are
/// one host's, 0.
pub type HostId = u64;

/// Says which stream may send next.
///
/// All calls take time logarithmic in the number of streams; [`next`](Self::next) amortised over the bytes that
/// were sent. A number that is not known is ignored everywhere.
#[derive(Clone, Debug, Default)]
pub struct Scheduler {
    streams: BTreeMap<StreamId, Stream>,
    /// Of those that are not 1.
    weights: BTreeMap<SiteId, u32>,
    levels: [Level; LEVELS],
}

#[derive(Clone, Debug)]
struct Stream {
    class: Class,
    site: SiteId,
    host: HostId,
    ready: bool,
    backlog: Backlog,
    /// Its place among those that go one after the other.
    queued: Option<u64>,
}

/// Streams that share what there is.
#[derive(Clone, Debug, Default)]
struct Level {
    turns: Ring<SiteId>,
    /// Those with a stream that is ready, or owes something.
    sites: BTreeMap<SiteId, Streams>,
}

/// Those of a site.
#[derive(Clone, Debug, Default)]
struct Streams {
    turns: Ring<HostId>,
    /// All of them, by their hosts.
    hosts: BTreeMap<HostId, Ring<StreamId>>,
    /// Of those that are ready, the ones that go before others, by their places.
    queue: BTreeSet<(u64, StreamId)>,
}

impl Scheduler {
    /// Without streams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A stream begins, with nothing to send. One that is there already stays as it is.
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

    /// A stream is over.
    pub fn remove(&mut self, stream: StreamId) {
        self.idle(stream);
        if let Some(entry) = self.streams.remove(&stream) {
            self.levels[level(entry.class)].forget(stream, &entry);
        }
    }

    /// From now on the stream is of that class. It begins there without debts.
    pub fn set_class(&mut self, stream: StreamId, class: Class) {
        self.change(stream, |stream| stream.class = class);
    }

    /// From now on the stream is of that site. It begins there without debts.
    pub fn set_site(&mut self, stream: StreamId, site: SiteId) {
        self.change(stream, |stream| stream.site = site);
    }

    /// From now on the stream is of that host. It begins there without debts.
    pub fn set_host(&mut self, stream: StreamId, host: HostId) {
        self.change(stream, |stream| stream.host = host);
    }

    /// The site's share of the link beside other sites', from 1 (as without this) to [`WEIGHT_MAX`]; others are
    /// brought into range.
    pub fn set_weight(&mut self, site: SiteId, weight: u32) {
        match weight.clamp(1, WEIGHT_MAX) {
            1 => self.weights.remove(&site),
            weight => self.weights.insert(site, weight),
        };
    }

    /// The stream has something to send, and may.
    pub fn ready(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            return;
        };
        if !std::mem::replace(&mut entry.ready, true) {
            self.levels[level(entry.class)].join(stream, entry);
        }
    }

    /// The stream has nothing to send, or may not.
    pub fn idle(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            return;
        };
        if std::mem::replace(&mut entry.ready, false) {
            self.levels[level(entry.class)].leave(stream, entry);
        }
    }

    /// Until further notice the stream goes before all others of its site and class, but after those that are queued with a lower place. Of no
    /// effect on one that is queued already.
    pub fn queue(&mut self, stream: StreamId, place: u64) {
        if let Some(entry) = self.streams.get_mut(&stream)
            && entry.queued.is_none()
        {
            entry.queued = Some(place);
            if entry.ready {
                self.levels[level(entry.class)].join(stream, entry);
            }
        }
    }

    /// The stream takes turns again, as if it had just come.
    pub fn unqueue(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(&stream) else {
            return;
        };
        if let Some(place) = entry.queued.take()
            && let Some(streams) = self.levels[level(entry.class)].sites.get_mut(&entry.site)
        {
            streams.queue.remove(&(place, stream));
        }
    }

    /// Whose turn it is: the same until something is said that changes it.
    #[expect(clippy::should_implement_trait, reason = "it does not go on by itself")]
    pub fn next(&mut self) -> Option<StreamId> {
        let weights = &self.weights;
        let weight = |site| weights.get(&site).copied().unwrap_or(1);
        self.levels.iter_mut().find_map(|level| level.next(weight))
    }

    /// The stream has sent so many bytes, in its turn or out of it.
    pub fn sent(&mut self, stream: StreamId, bytes: usize) {
        let Some(entry) = self.streams.get(&stream) else {
            return;
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.levels[level(entry.class)].charge(stream, entry, bytes);
    }

    /// The stream has had its turn at `now`. Its bytes may wait for a round trip before it
    /// [fills the link](Self::fills_link).
    pub fn on_turn(&mut self, stream: StreamId, now: Duration, rtt: Duration) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.backlog.on_turn(now, rtt, stream.ready);
        }
    }

    /// Whether the stream's bytes wait to be sent for longer than a round trip.
    #[must_use]
    pub fn fills_link(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.backlog.is_full())
    }

    /// How the stream's bytes are sent.
    #[must_use]
    pub fn class(&self, stream: StreamId) -> Option<Class> {
        self.streams.get(&stream).map(|stream| stream.class)
    }

    /// Whether the stream has something to send, and may.
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

    /// A stream that has left is not known here any more.
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

    /// Among the streams of a site those that are queued are not charged: they have no turns to pay for.
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
