//! Path MTU discovery (datagram packetization layer PMTUD, RFC 8899).

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use crate::wire::DATAGRAM_OVERHEAD;

/// Probes of a size before it counts as too large (RFC 8899 §5.1.2).
const PROBES_MAX: u32 = 3;
/// Interval of new searches (RFC 8899 §5.1.1).
const RAISE: Duration = Duration::from_secs(600);
/// Minimum difference between tested sizes.
const STEP_MIN: usize = 16;
/// Size that every path carries (RFC 8899 §5.1.2 and RFC 9000 §14), in bytes of plain text.
pub const FLOOR: usize = 1200 - DATAGRAM_OVERHEAD;
/// Consecutive losses of long packets, with none arriving, that indicate a black hole.
const BLACK_HOLE_LONG: u32 = 8;
/// Short packets that must have arrived meanwhile: in an outage they do not.
const BLACK_HOLE_SHORT: u32 = 3;
/// Consecutive outages with loss of long packets, and none arriving in between, that also indicate
/// a black hole: with sparse traffic of long packets only, a black hole looks like outages.
const BLACK_HOLE_OUTAGES: u32 = 8;
/// Probes whose late answers still count.
const REMEMBERED: usize = 8;

/// A probe to send: a padded packet with this size and identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuProbe {
    /// Identifier in the frame.
    pub id: u16,
    /// Size in bytes of plain text.
    pub size: usize,
}

/// Search for the largest packet that the path carries, with black hole detection.
///
/// ```text
///            answered, nothing longer to try
///  +-----------+ --------------------------> +----------+
///  | searching |                             | complete |
///  +-----------+ <-------------------------- +----------+
///            600 s later, or black hole (begins at the floor)
/// ```
///
/// The maximum size is tried first, then the middle between the largest size that arrived and the
/// smallest that did not.
#[derive(Clone, Debug)]
pub struct Mtu {
    floor: usize,
    max: usize,
    /// Maximum size suitable for the link's rate, whatever the path carries.
    suits: usize,
    /// Largest size known to arrive.
    good: usize,
    /// Smallest size known to fail; above `max` if there is none.
    bad: usize,
    /// Expected result of the search.
    expected: usize,
    outstanding: Option<Outstanding>,
    tries: u32,
    next_id: u16,
    sent: VecDeque<MtuProbe>,
    /// Start of the next search.
    raise_at: Option<Duration>,
    lost_long: u32,
    arrived_short: u32,
    outages: u32,
    /// Packets sent before this may have been lost in an outage.
    since: Duration,
    /// A long packet sent before `since` was lost.
    lost_before: bool,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    size: usize,
    until: Duration,
}

impl Mtu {
    /// Begins with packets of `start` bytes of plain text and searches up to `max`.
    pub fn new(start: usize, max: usize) -> Self {
        let max = max.max(start);
        Self {
            floor: start.min(FLOOR),
            max,
            suits: usize::MAX,
            good: start,
            bad: max + 1,
            expected: max,
            outstanding: None,
            tries: 0,
            next_id: 0,
            sent: VecDeque::new(),
            raise_at: None,
            lost_long: 0,
            arrived_short: 0,
            outages: 0,
            since: Duration::ZERO,
            lost_before: false,
        }
    }

    /// Returns the current maximum packet, in bytes of plain text.
    pub fn size(&self) -> usize {
        self.good.min(self.suits)
    }

    /// Limits packets and probes to `longest` bytes of plain text, whatever the path carries. A
    /// later call may raise the limit again.
    pub fn suit(&mut self, longest: usize) {
        if longest > self.suits && self.good >= self.top() {
            // The search ended because of the rate, not the path.
            self.raise_at = None;
        }
        self.suits = longest;
    }

    /// Returns the largest size worth trying.
    fn top(&self) -> usize {
        self.max.min(self.suits)
    }

    /// Returns the largest packet that the path is expected to carry, in bytes of plain text. Equal
    /// to [`size`](Self::size) after a search, and to the last result during the next search.
    /// During the first search it is the maximum. Announce this value to hosts that remember it.
    pub fn expected(&self) -> usize {
        self.expected.min(self.suits)
    }

    /// Returns the next probe, if any. `timeout` is the maximum time for an answer: a few round
    /// trips. Do not call while the link is down.
    pub fn next_probe(&mut self, now: Duration, timeout: Duration) -> Option<MtuProbe> {
        self.expire(now);
        if self.outstanding.is_some() {
            return None;
        }
        let Some(size) = self.candidate() else {
            self.expected = self.good;
            self.raise_at.get_or_insert(now.saturating_add(RAISE));
            return None;
        };
        let probe = MtuProbe {
            id: self.next_id,
            size,
        };
        self.next_id = self.next_id.wrapping_add(1);
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(probe);
        let until = now.saturating_add(timeout);
        self.outstanding = Some(Outstanding { size, until });
        Some(probe)
    }

    /// Returns when to call [`next_probe`](Self::next_probe).
    pub fn deadline(&self) -> Option<Duration> {
        match self.outstanding {
            Some(probe) => Some(probe.until),
            None if self.candidate().is_some() => Some(Duration::ZERO),
            None => self.raise_at,
        }
    }

    /// Handles the acknowledgement of a probe. Ignores unknown identifiers.
    pub fn on_ack(&mut self, id: u16) {
        let Some(probe) = self.sent.iter().find(|probe| probe.id == id).copied() else {
            return;
        };
        if probe.size > self.good {
            self.good = probe.size;
            self.expected = self.expected.max(probe.size);
            // May be an answer to the third try, or a late one.
            self.bad = if self.bad <= probe.size {
                self.max + 1
            } else {
                self.bad
            };
        }
        self.lost_long = 0;
        self.outages = 0;
        self.lost_before = false;
        if self.outstanding.is_some_and(|o| o.size <= self.good) {
            self.outstanding = None;
            self.tries = 0;
        }
    }

    /// Handles the end of an outage: packets sent until now were not lost because of their size.
    pub fn on_outage(&mut self, now: Duration) {
        self.since = now;
        let lost = std::mem::take(&mut self.lost_before) || self.lost_long > 0;
        self.outages += u32::from(lost);
        if self.outages >= BLACK_HOLE_OUTAGES {
            self.reset();
        }
        self.outstanding = None;
        self.lost_long = 0;
        self.arrived_short = 0;
    }

    /// Handles the arrival of a packet of this size that was not a probe.
    pub fn on_arrived(&mut self, size: usize) {
        if size > self.floor {
            self.lost_long = 0;
            self.arrived_short = 0;
            self.outages = 0;
            self.lost_before = false;
        } else if self.lost_long > 0 {
            self.arrived_short = self.arrived_short.saturating_add(1);
        }
    }

    /// Handles the loss of a packet of this size that was not a probe. Returns true if a black hole
    /// is detected: [`size`](Self::size) is smaller then.
    pub fn on_lost(&mut self, size: usize, sent_at: Duration) -> bool {
        if size > self.floor && size <= self.good {
            if sent_at >= self.since {
                self.lost_long = self.lost_long.saturating_add(1);
            } else {
                self.lost_before = true;
            }
        }
        let black = self.lost_long >= BLACK_HOLE_LONG && self.arrived_short >= BLACK_HOLE_SHORT;
        if black {
            self.reset();
        }
        black
    }

    fn reset(&mut self) {
        *self = Self {
            good: self.floor,
            next_id: self.next_id,
            floor: self.floor,
            since: self.since,
            expected: self.expected,
            suits: self.suits,
            ..Self::new(self.floor, self.max)
        };
    }

    fn expire(&mut self, now: Duration) {
        if self.outstanding.is_some_and(|probe| probe.until <= now) {
            let size = self.outstanding.take().map_or(0, |probe| probe.size);
            self.tries += 1;
            if self.tries >= PROBES_MAX {
                self.bad = self.bad.min(size);
                self.tries = 0;
            }
        }
        if self.raise_at.is_some_and(|at| at <= now) {
            self.raise_at = None;
            self.bad = self.max + 1;
        }
    }

    fn candidate(&self) -> Option<usize> {
        let top = self.top();
        // A varying rate must not cause probes for a few more bytes each.
        let gain = if top < self.max { STEP_MIN } else { 0 };
        if self.raise_at.is_some() || self.good + gain >= top {
            return None;
        }
        if self.bad > top {
            return Some(top);
        }
        let middle = self.good + (self.bad - self.good) / 2;
        (self.bad - self.good > STEP_MIN).then_some(middle)
    }
}
