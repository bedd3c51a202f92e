//! Fair shares of a link's rate among the flows that want it.
//!
//! Senders that each may use the whole link fill its queue together, and which of them gets what is
//! then up to their congestion controls, and to chance. So each flow may send at one common rate, the
//! *level*, which is chosen such that the flows together just fill the link. That is max-min fairness:
//! flows that want less than the level get what they want, all others get the level, and nobody
//! could have more without somebody having less who has less already (D. Bertsekas, R. Gallager:
//! Data Networks, 2nd edition, 1992, section 6.5.2).
//!
//! ```text
//!   rate |              level ______________________
//!        |                   |XXXXXXX|XXXXXXX|XXXXXXX|   want more than the level, and get it
//!        |           ________|XXXXXXX|XXXXXXX|XXXXXXX|
//!        |          |XXXXXXXX|XXXXXXX|XXXXXXX|XXXXXXX|   area: the rate of the link
//!        |  ________|XXXXXXXX|XXXXXXX|XXXXXXX|XXXXXXX|
//!        |_|XXXXXXXX|XXXXXXXX|XXXXXXX|XXXXXXX|XXXXXXX|__ flows
//!           want less than the level, and get it
//! ```
//!
//! What a flow wants nobody says; it is inferred from what it sends, see [`Sharer`].

#[cfg(test)]
mod tests;

use std::time::Duration;

/// How often the level is computed while flows share the link.
///
/// Until a change of theirs is noticed, flows may overload the link, by one link's worth of data per
/// interval and flow that begins at most: at 100 ms that is no more than the queue of any modem holds.
/// In much less than that a slow link carries less than a packet of each flow.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// More seconds' worth are not believed to be in the queue: they will have been dropped.
const QUEUE_SECS_MAX: u64 = 2;

/// The part of the link that several flows leave to what is not counted, so that it does not stay in the queue:
/// handshakes, options of TCP, a rate that is stated a little too high.
const SPARE_PARTS: u64 = 256;

/// Wants whatever there is.
pub const UNBOUNDED: u64 = u64::MAX;

/// Parts of the link below which the level does not fall: with a thousand flows that all want more,
/// packets of one are so far apart that congestion controls do better.
const LEVEL_PARTS_MAX: u64 = 1024;

/// The mean of what a flow sends follows the last 8 intervals, longer than the round trip in which
/// a window that is not full comes and goes.
const MEAN_INTERVALS: u64 = 8;

/// The max-min fair level at which these demands share a rate; reorders them. All are in bytes per second.
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

/// What a flow did since the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes that left for the link, with headers and what was sent again.
    pub sent: u64,
    /// The flow is seen for the first time: its rate cannot be told.
    pub new: bool,
    /// There was data among them that had not been sent before.
    pub fresh: bool,
    /// Data waits that has not been sent before.
    pub backlogged: bool,
}

/// A flow that sends into the link, and what it seems to want:
///
/// - everything, if bytes of it wait though it sends about as fast as the level allows;
/// - twice what it sends, if bytes wait that something else holds back (a window that grows, a loss, a
///   receiver that is slow): what it cannot use others may have, until it can;
/// - a quarter more than it sends, if none wait: its source is what limits it.
///
/// Nothing jumps where one becomes the other: at the level, a quarter more is more than the level, too. So
/// a flow whose source delivers just about its share does not make the level swing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharer {
    usage: Usage,
    /// In bytes per second; `None` before the first measurement.
    mean: Option<u64>,
}

impl AsMut<Self> for Sharer {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Sharer {
    /// Takes note of what the flow did since the last call of [`Level::handle_interval`].
    pub fn handle_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    fn demand(&mut self, elapsed: Duration, level: u64) -> u64 {
        let backlogged = self.usage.backlogged;
        if self.usage.new {
            return if backlogged { UNBOUNDED } else { 0 };
        }
        // A sudden rise counts at once; the queue would have to take it.
        let now = per_second(self.usage.sent, elapsed);
        let rate = now.max(self.note(now));
        match backlogged {
            true if rate >= level - level / 8 => UNBOUNDED,
            true => rate.saturating_mul(2),
            false => rate.saturating_add(rate / 4),
        }
    }

    /// The mean rate, this one included.
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

/// Bytes that a rate amounts to.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn per_second(bytes: u64, elapsed: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / elapsed.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The level of a link.
///
/// What flows send beyond the link's rate while their shares change, and the bursts with which they begin,
/// stay in its queue, and nothing would take them out of it again if from then on they just filled the link. So the
/// queue is computed, too, as what was sent beyond what the link can have carried, and they leave room for it
/// to drain. The link carries as much meanwhile as it can.
#[derive(Debug, Clone)]
pub struct Level {
    rate: u64,
    level: u64,
    /// Bytes that wait at the link.
    queue: u64,
    demands: Vec<u64>,
}

impl Level {
    /// Of a link that carries `rate` bytes per second, and is free.
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            level: rate,
            queue: 0,
            demands: Vec::new(),
        }
    }

    /// The rate at which each flow may send now, in bytes per second; never 0 where the link's is not.
    pub fn get(&self) -> u64 {
        self.level
    }

    /// The level from now on, by what these flows, which are all that are active, have done in the
    /// time `elapsed` since the last call.
    ///
    /// When nobody has sent anything new though somebody wants to, the link is away. That says nothing of
    /// what flows want, so nothing changes: once it is back they begin again with the shares they had.
    pub fn handle_interval<T: AsMut<Sharer>>(&mut self, elapsed: Duration, flows: &mut [T]) -> u64 {
        self.note_queue(elapsed, flows);
        if !is_down(flows) {
            let demands = flows
                .iter_mut()
                .map(|flow| flow.as_mut().demand(elapsed, self.level));
            self.demands.clear();
            self.demands.extend(demands);
            let level = water_level(self.capacity(), &mut self.demands);
            self.level = level.max(minimum_share(self.rate));
        }
        self.level
    }

    fn note_queue<T: AsMut<Sharer>>(&mut self, elapsed: Duration, flows: &mut [T]) {
        let sent = flows.iter_mut().map(|flow| flow.as_mut().usage.sent);
        let queue = sent.fold(self.queue, u64::saturating_add);
        let queue = queue.saturating_sub(bytes_in(self.rate, elapsed));
        self.queue = queue.min(self.rate.saturating_mul(QUEUE_SECS_MAX));
    }

    /// What flows may send together; at least half of what there is, so that they still move.
    fn capacity(&self) -> u64 {
        if self.demands.len() < 2 {
            return self.rate;
        }
        self.rate - self.draining().min(self.rate / 2) - self.rate / SPARE_PARTS
    }

    /// What flows leave to the queue. Of one that lasts `t` seconds it is `t` squared of the rate: as good as nothing of
    /// what packets of many flows make by chance, a quarter where they wait for half a second.
    fn draining(&self) -> u64 {
        let queue = u128::from(self.queue);
        u64::try_from(queue * queue / u128::from(self.rate.max(1))).unwrap_or(u64::MAX)
    }
}

/// The level at which a flow begins that is one of `active` ones, until its demand is known: an equal share,
/// or the level of the others if that is less.
pub fn newcomer_level(rate: u64, level: u64, active: u64) -> u64 {
    (rate / active.max(1)).max(minimum_share(rate)).min(level)
}

fn minimum_share(rate: u64) -> u64 {
    (rate / LEVEL_PARTS_MAX).max(1).min(rate)
}

fn is_down<T: AsMut<Sharer>>(flows: &mut [T]) -> bool {
    let mut backlogged = false;
    let stuck = flows.iter_mut().all(|flow| {
        let flow = flow.as_mut();
        backlogged |= flow.usage.backlogged;
        flow.is_stuck()
    });
    stuck && backlogged
}
