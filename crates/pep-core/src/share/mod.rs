//! Shares of a link's rate, by class, site, host and flow.
//!
//! Senders that may each use the whole link fill its queue together. Each flow's share then depends
//! on congestion controls and on chance. So each flow has a *limit* of its own, chosen such that
//! the flows together just fill the link. The order is that of the tunnel's scheduler:
//!
//! ```text
//!  link's rate --> other traffic (measured, at most half)
//!              --> interactive ------ first of all
//!              --> normal and bulk -- what interactive leaves
//!              --> delay tolerant --- what all others leave
//!
//!  each of these:  sites share equally, then a site's hosts, then a host's flows
//! ```
//!
//! Equal shares are max-min fair. Among the members of a group a *level* is found: members that
//! want less get what they want, all others get the level. No member could get more without another
//! one, with no more than that, getting less (D. Bertsekas, R. Gallager: Data Networks, 2nd
//! edition, 1992, section 6.5.2).
//!
//! ```text
//!   rate |              level ______________________
//!        |                   |XXXXXXX|XXXXXXX|XXXXXXX|   want more than the level, and get it
//!        |           ________|XXXXXXX|XXXXXXX|XXXXXXX|
//!        |          |XXXXXXXX|XXXXXXX|XXXXXXX|XXXXXXX|   area: the rate of the group
//!        |  ________|XXXXXXXX|XXXXXXX|XXXXXXX|XXXXXXX|
//!        |_|XXXXXXXX|XXXXXXXX|XXXXXXX|XXXXXXX|XXXXXXX|__ members: sites, hosts or flows
//!           want less than the level, and get it
//! ```
//!
//! A flow's demand is not known; [`Sharer`] infers it from the rate at which the flow sends.
//! [`OtherTraffic`] measures what the link's interface sends besides these flows.

mod other;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, time::Duration};

pub use other::{OtherTraffic, Transmitted};

use crate::site::{Class, SiteId};

/// Interval between computations of the limits while flows share the link.
///
/// Before the limits follow a change, flows may overload the link. The excess is at most one link's
/// worth of data per interval and new flow; at 100 ms no more than the queue of any modem holds. In
/// a much shorter interval a slow link carries less than a packet of each flow.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// Assumed maximum of the queue, in seconds of the link's rate: more than that was probably
/// dropped.
const QUEUE_SECS_MAX: u64 = 2;

/// Part of the link (1/256) that several flows leave for uncounted traffic, so that it does not
/// build a queue: handshakes, TCP options, a configured rate that is a little too high.
const SPARE_PARTS: u64 = 256;

/// Part of the link (1/2) beyond which flows do not give way to other traffic. TCP outside of pepd
/// takes whatever is left to it, and would otherwise take everything: flows that give way cause no
/// loss. With half of the link, congestion controls decide.
const OTHER_PARTS: u64 = 2;

/// Part of the link (1/64) that a lower priority keeps while higher ones want everything, so that
/// its connections make progress and do not time out.
const KEPT_PARTS: u64 = 64;

/// Demand of a flow that takes all it can get.
pub const UNBOUNDED: u64 = u64::MAX;

/// Lower bound of a flow's limit, as a part of the link. With a thousand greedy flows, packets of
/// one are so far apart that congestion controls do better.
const LIMIT_PARTS_MAX: u64 = 1024;

/// Intervals in the mean of a flow's rate. 8 are longer than the round trip in which a partial
/// window comes and goes.
const MEAN_INTERVALS: u64 = 8;

/// Returns the max-min fair level at which these demands share a rate; reorders them. All are in
/// bytes per second.
///
/// Where all demands together are below the rate, the level is the rate.
pub fn water_level(rate: u64, demands: &mut [u64]) -> u64 {
    demands.sort_unstable();
    let mut left = rate;
    for (demand, sharers) in demands.iter().zip((1..=demands.len() as u64).rev()) {
        let equal = left / sharers;
        if *demand > equal {
            return equal;
        }
        left -= demand;
    }
    rate
}

/// Order in which flows are served. The tunnel's scheduler has the same three levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Class interactive: before all others.
    First,
    /// Classes normal and bulk.
    Middle,
    /// Class delay_tolerant: only what no other class wants.
    Last,
}

impl Priority {
    /// All priorities, the highest first.
    pub const ALL: [Self; 3] = [Self::First, Self::Middle, Self::Last];

    /// Returns the priority of a class.
    pub const fn of(class: Class) -> Self {
        match class {
            Class::Interactive => Self::First,
            Class::Normal | Class::Bulk => Self::Middle,
            Class::DelayTolerant => Self::Last,
        }
    }
}

/// Groups that a flow belongs to, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Priority of its class.
    pub priority: Priority,
    /// Site of the flow.
    pub site: SiteId,
    /// Number of the flow's host ([`crate::hosts::Host::number`]).
    pub host: u64,
}

/// Activity of a flow since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes sent into the link, with headers and retransmissions.
    pub sent: u64,
    /// Packets sent into the link.
    pub packets: u64,
    /// Bytes of `sent` that were headers.
    pub headers: u64,
    /// First sight of the flow: its rate is not known yet.
    pub new: bool,
    /// True if some of the data was sent for the first time.
    pub fresh: bool,
    /// True if unsent data waits.
    pub backlogged: bool,
}

/// A flow that sends into the link, and its inferred demand:
///
/// - everything, if data waits though the flow sends about as fast as its limit allows;
/// - twice its rate, if data waits for another reason (a growing window, a loss, a slow receiver):
///   other flows may use the rest meanwhile;
/// - its rate plus a quarter, if no data waits: the source limits the flow.
///
/// From lower priorities it claims less: everything in the first case, and otherwise its rate plus
/// a quarter. It need not wait for room, as it goes first, and a short message is no reason to stop
/// them.
///
/// The transitions are continuous: at the limit, a quarter more is above the limit, too. So a flow
/// whose source delivers just about its share does not make the limits oscillate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharer {
    place: Place,
    usage: Usage,
    /// Mean rate in bytes per second; `None` before the first measurement.
    mean: Option<u64>,
    demand: u64,
    /// Part of the demand that lower priorities do not get.
    claim: u64,
    limit: u64,
}

impl AsMut<Self> for Sharer {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl AsRef<Self> for Sharer {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Sharer {
    /// Creates a flow whose rate is not known.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            usage: Usage::default(),
            mean: None,
            demand: 0,
            claim: 0,
            limit: 0,
        }
    }

    /// Groups of the flow.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Rate at which the flow may send now, in bytes per second; 0 before the first call of
    /// [`Shares::handle_interval`], and never 0 after it.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Activity of the flow in the last interval.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Records the activity of the flow since the last call of [`Shares::handle_interval`].
    pub fn handle_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    fn infer_demand(&mut self, elapsed: Duration) {
        let (new, backlogged) = (self.usage.new, self.usage.backlogged);
        // A sudden rise counts at once, as the queue would have to absorb it.
        let now = per_second(self.usage.sent, elapsed);
        let rate = if new { now } else { now.max(self.note(now)) };
        let more = rate.saturating_add(rate / 4);
        let is_at_limit = !new && backlogged && rate >= self.limit - self.limit / 8;
        self.demand = match (new, backlogged) {
            (true, true) => UNBOUNDED,
            (true, false) => 0,
            (false, true) if is_at_limit => UNBOUNDED,
            (false, true) => rate.saturating_mul(2),
            (false, false) => more,
        };
        self.claim = if is_at_limit { UNBOUNDED } else { more };
    }

    /// Returns the mean rate, including this one.
    fn note(&mut self, now: u64) -> u64 {
        let mean = self.mean.unwrap_or(now);
        let mean = mean - mean / MEAN_INTERVALS + now / MEAN_INTERVALS;
        self.mean = Some(mean);
        mean
    }

    fn is_stuck(&self) -> bool {
        !self.usage.new && !self.usage.fresh
    }
}

/// Bytes sent at a rate during a time.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn per_second(bytes: u64, elapsed: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / elapsed.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Shares of a link.
///
/// Flows exceed the link's rate while their shares change, and in their initial bursts. The excess
/// stays in the link's queue, and would never drain if the flows then just filled the link. So
/// `Shares` also tracks an estimate of the queue, as bytes sent beyond the rate that other traffic
/// leaves. Flows leave room for it to drain, while the link stays fully used.
#[derive(Debug, Clone)]
pub struct Shares {
    rate: u64,
    /// Rate of each priority.
    levels: [u64; Priority::ALL.len()],
    /// Bytes queued at the link.
    queue: u64,
    demands: Vec<u64>,
    /// True if the link was down in the last interval.
    down: bool,
}

impl Shares {
    /// Returns the shares of an idle link that carries `rate` bytes per second.
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            levels: [rate; Priority::ALL.len()],
            queue: 0,
            demands: Vec::new(),
            down: false,
        }
    }

    /// Returns whether flows had data to send in the last interval and none sent new data.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// Rates that the flows of each priority may use together now, in bytes per second.
    pub fn levels(&self) -> [u64; Priority::ALL.len()] {
        self.levels
    }

    /// Computes the limits of all active flows from their activity in the time `elapsed` since the
    /// last call. Other traffic sends `other` bytes per second. Sorts the flows by their places.
    ///
    /// When flows have data to send and none sends new data, the link is down. That does not change
    /// their demands, so their limits stay: once the link is up, flows restart with the shares they
    /// had.
    pub fn handle_interval<T: AsRef<Sharer> + AsMut<Sharer>>(
        &mut self,
        elapsed: Duration,
        other: u64,
        flows: &mut [T],
    ) {
        let left = self.rate - other.min(self.rate / OTHER_PARTS);
        self.note_queue(elapsed, left, flows);
        self.down = is_down(flows);
        if self.down {
            return;
        }
        // Sorted but for the flows that came last.
        flows.sort_by_key(|flow| flow.as_ref().place);
        for flow in &mut *flows {
            flow.as_mut().infer_demand(elapsed);
        }
        self.divide(self.capacity(left, flows.len()), flows);
    }

    /// Divides a rate among the priorities, and the rate of each among its flows.
    fn divide<T: AsRef<Sharer> + AsMut<Sharer>>(&mut self, rate: u64, flows: &mut [T]) {
        let kept = self.rate / KEPT_PARTS;
        let (mut wanted, mut claimed) =
            ([0_u64; Priority::ALL.len()], [0_u64; Priority::ALL.len()]);
        for flow in &*flows {
            let flow = flow.as_ref();
            let place = flow.place.priority as usize;
            wanted[place] = wanted[place].saturating_add(flow.demand);
            claimed[place] = claimed[place].saturating_add(flow.claim);
        }
        let (mut left, mut flows) = (rate, flows);
        for priority in Priority::ALL {
            let place = priority as usize;
            let later = wanted[place + 1..].iter().map(|wanted| kept.min(*wanted));
            let level = left.saturating_sub(later.sum()).max(kept);
            let count = flows.partition_point(|flow| flow.as_ref().place.priority <= priority);
            let (these, others) = flows.split_at_mut(count);
            self.divide_among_sites(level, these);
            self.levels[place] = level;
            left = left.saturating_sub(claimed[place].min(level));
            flows = others;
        }
    }

    fn divide_among_sites<T: AsRef<Sharer> + AsMut<Sharer>>(&mut self, rate: u64, flows: &mut [T]) {
        // All minimums together are no more than the rate of these flows' priority.
        let each = rate / u64::try_from(flows.len()).unwrap_or(u64::MAX).max(1);
        let limit_min = minimum_share(self.rate).min(each).max(1);
        let demands = &mut self.demands;
        let mut level = |rate, wanted: &mut dyn Iterator<Item = u64>| {
            demands.clear();
            demands.extend(wanted);
            water_level(rate, demands)
        };
        let is_of_site = |a: &T, b: &T| a.as_ref().place.site == b.as_ref().place.site;
        let is_of_host = |a: &T, b: &T| a.as_ref().place.host == b.as_ref().place.host;
        let of_site = level(rate, &mut flows.chunk_by(is_of_site).map(demand));
        for site in flows.chunk_by_mut(is_of_site) {
            let of_host = level(of_site, &mut site.chunk_by(is_of_host).map(demand));
            for host in site.chunk_by_mut(is_of_host) {
                let of_flow = level(of_host, &mut host.iter().map(|flow| flow.as_ref().demand));
                for flow in host {
                    flow.as_mut().limit = of_flow.max(limit_min);
                }
            }
        }
    }

    fn note_queue<T: AsRef<Sharer>>(&mut self, elapsed: Duration, rate: u64, flows: &[T]) {
        let sent = flows.iter().map(|flow| flow.as_ref().usage.sent);
        let queue = sent.fold(self.queue, u64::saturating_add);
        let queue = queue.saturating_sub(bytes_in(rate, elapsed));
        self.queue = queue.min(self.rate.saturating_mul(QUEUE_SECS_MAX));
    }

    /// Rate for all flows together, of the rate that other traffic leaves: no less than half of
    /// it, so that they still move.
    fn capacity(&self, left: u64, flows: usize) -> u64 {
        let spare = self.rate / SPARE_PARTS;
        // A single flow alone has nothing to give way to.
        if flows < 2 && self.rate - left <= spare {
            return self.rate;
        }
        (left - self.draining().min(left / 2)).saturating_sub(spare)
    }

    /// Rate that flows leave to the queue. For a queue of `t` seconds it is `t` squared of the
    /// link's rate. So it is negligible for chance queues of many flows' packets, and a quarter for
    /// a queue of half a second.
    fn draining(&self) -> u64 {
        let queue = u128::from(self.queue);
        u64::try_from(queue * queue / u128::from(self.rate.max(1))).unwrap_or(u64::MAX)
    }
}

/// Returns the sum of the flows' demands.
fn demand<T: AsRef<Sharer>>(flows: &[T]) -> u64 {
    let demands = flows.iter().map(|flow| flow.as_ref().demand);
    demands.fold(0, u64::saturating_add)
}

/// Flows that use the link, and newcomers, by host.
///
/// It does not count flows that use less than the smallest share, such as those of a server that
/// reads nothing: a host may have a thousand of them.
#[derive(Debug, Clone, Default)]
pub struct Active {
    flows: HashMap<Place, u64>,
    hosts: [u64; Priority::ALL.len()],
}

impl Active {
    /// Counts the flows of a link of this rate that use it.
    pub fn new<'a>(rate: u64, flows: impl IntoIterator<Item = &'a Sharer>) -> Self {
        let least = minimum_share(rate);
        let mut active = Self::default();
        for flow in flows {
            if flow.demand >= least {
                active.count(flow.place);
            }
        }
        active
    }

    /// Counts a flow. Returns the number of its host's flows, and of the hosts of its priority.
    fn count(&mut self, place: Place) -> (u64, u64) {
        let (flows, hosts) = (
            self.flows.entry(place).or_default(),
            &mut self.hosts[place.priority as usize],
        );
        *hosts += u64::from(*flows == 0);
        *flows += 1;
        (*flows, *hosts)
    }

    /// Counts a newcomer. Returns its initial limit, until its demand is known: an equal share of
    /// what an equal share of the priority's `level` leaves to its host. `rate` is the link's.
    pub fn admit(&mut self, rate: u64, level: u64, place: Place) -> u64 {
        let (flows, hosts) = self.count(place);
        (level / hosts / flows).max(minimum_share(rate))
    }
}

fn minimum_share(rate: u64) -> u64 {
    (rate / LIMIT_PARTS_MAX).max(1).min(rate)
}

fn is_down<T: AsRef<Sharer>>(flows: &[T]) -> bool {
    let stuck = flows.iter().all(|flow| flow.as_ref().is_stuck());
    let backlogged = flows.iter().any(|flow| flow.as_ref().usage.backlogged);
    stuck && backlogged
}
