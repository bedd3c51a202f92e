//! Fair shares of a link's rate among flows.
//!
//! Senders that may each use the whole link fill its queue together. Each flow's share then depends
//! on congestion controls and on chance. So each flow may send at one common rate, the *level*,
//! chosen such that the flows together just fill the link. The result is max-min fairness: flows
//! that want less than the level get what they want, all others get the level. No flow could get
//! more without another one, with no more than that, getting less (D. Bertsekas, R. Gallager: Data
//! Networks, 2nd edition, 1992, section 6.5.2).
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
//! A flow's demand is not known; [`Sharer`] infers it from the rate at which the flow sends.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// Interval between computations of the level while flows share the link.
///
/// Before the level follows a change, flows may overload the link. The excess is at most one link's
/// worth of data per interval and new flow; at 100 ms no more than the queue of any modem holds. In
/// a much shorter interval a slow link carries less than a packet of each flow.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// Assumed maximum of the queue, in seconds of the link's rate: more than that was probably
/// dropped.
const QUEUE_SECS_MAX: u64 = 2;

/// Part of the link (1/256) that several flows leave for uncounted traffic, so that it does not
/// build a queue: handshakes, TCP options, a configured rate that is a little too high.
const SPARE_PARTS: u64 = 256;

/// Demand of a flow that takes all it can get.
pub const UNBOUNDED: u64 = u64::MAX;

/// Lower bound of the level, as a part of the link. With a thousand greedy flows, packets of one
/// are so far apart that congestion controls do better.
const LEVEL_PARTS_MAX: u64 = 1024;

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

/// Activity of a flow since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes sent into the link, with headers and retransmissions.
    pub sent: u64,
    /// First sight of the flow: its rate is not known yet.
    pub new: bool,
    /// True if some of the data was sent for the first time.
    pub fresh: bool,
    /// True if unsent data waits.
    pub backlogged: bool,
}

/// A flow that sends into the link, and its inferred demand:
///
/// - everything, if data waits though the flow sends about as fast as the level allows;
/// - twice its rate, if data waits for another reason (a growing window, a loss, a slow receiver):
///   other flows may use the rest meanwhile;
/// - its rate plus a quarter, if no data waits: the source limits the flow.
///
/// The transitions are continuous: at the level, a quarter more is above the level, too. So a flow
/// whose source delivers just about its share does not make the level oscillate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharer {
    usage: Usage,
    /// Mean rate in bytes per second; `None` before the first measurement.
    mean: Option<u64>,
}

impl AsMut<Self> for Sharer {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Sharer {
    /// Records the activity of the flow since the last call of [`Level::handle_interval`].
    pub fn handle_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    fn demand(&mut self, elapsed: Duration, level: u64) -> u64 {
        let backlogged = self.usage.backlogged;
        if self.usage.new {
            return if backlogged { UNBOUNDED } else { 0 };
        }
        // A sudden rise counts at once, as the queue would have to absorb it.
        let now = per_second(self.usage.sent, elapsed);
        let rate = now.max(self.note(now));
        match backlogged {
            true if rate >= level - level / 8 => UNBOUNDED,
            true => rate.saturating_mul(2),
            false => rate.saturating_add(rate / 4),
        }
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

/// Level of a link.
///
/// Flows exceed the link's rate while their shares change, and in their initial bursts. The excess
/// stays in the link's queue, and would never drain if the flows then just filled the link. So the
/// level also tracks an estimate of the queue, as bytes sent beyond the link's rate. Flows leave
/// room for it to drain, while the link stays fully used.
#[derive(Debug, Clone)]
pub struct Level {
    rate: u64,
    level: u64,
    /// Bytes queued at the link.
    queue: u64,
    demands: Vec<u64>,
}

impl Level {
    /// Returns the level of an idle link that carries `rate` bytes per second.
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            level: rate,
            queue: 0,
            demands: Vec::new(),
        }
    }

    /// Rate at which each flow may send now, in bytes per second. Never 0 unless the link's rate
    /// is.
    pub fn get(&self) -> u64 {
        self.level
    }

    /// Computes the level from the activity of all active flows in the time `elapsed` since the
    /// last call.
    ///
    /// When flows have data to send and none sends new data, the link is down. That does not change
    /// their demands, so the level stays: once the link is up, flows restart with the shares they
    /// had.
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

    /// Rate for all flows together: no less than half of the link's, so that they still move.
    fn capacity(&self) -> u64 {
        if self.demands.len() < 2 {
            return self.rate;
        }
        self.rate - self.draining().min(self.rate / 2) - self.rate / SPARE_PARTS
    }

    /// Rate that flows leave to the queue. For a queue of `t` seconds it is `t` squared of the
    /// link's rate. So it is negligible for chance queues of many flows' packets, and a quarter for
    /// a queue of half a second.
    fn draining(&self) -> u64 {
        let queue = u128::from(self.queue);
        u64::try_from(queue * queue / u128::from(self.rate.max(1))).unwrap_or(u64::MAX)
    }
}

/// Initial level of a new flow among `active` ones, until its demand is known: an equal share, or
/// the level of the others if that is less.
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
