//! How long a packet may be (datagram packetization layer path MTU discovery, RFC 8899).

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use crate::wire::DATAGRAM_OVERHEAD;

/// Tries of a size before it is taken for too long (RFC 8899 §5.1.2).
const PROBES_MAX: u32 = 3;
/// When everything is tried anew (RFC 8899 §5.1.1).
const RAISE: Duration = Duration::from_secs(600);
/// Sizes closer than this are not told apart.
const STEP_MIN: usize = 16;
/// What comes through everywhere (RFC 8899 §5.1.2 and RFC 9000 §14), in bytes of plain text.
pub const FLOOR: usize = 1200 - DATAGRAM_OVERHEAD;
/// Long packets lost in a row, none arriving, before the path is taken for a black hole.
const BLACK_HOLE_LONG: u32 = 8;
/// Short ones that must have arrived meanwhile: in an outage they do not.
const BLACK_HOLE_SHORT: u32 = 3;
/// Outages in a row that long packets did not survive, none arriving in between, before it is so too: where
/// little is to be sent, all of it long, a black hole looks like that.
const BLACK_HOLE_OUTAGES: u32 = 8;
/// Probes whose late answers still count.
const REMEMBERED: usize = 8;

/// A packet of that size, to be padded, is to be sent with that identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuProbe {
    /// In the frame.
    pub id: u16,
    /// Bytes of plain text.
    pub size: usize,
}

/// Finds the longest packet that comes through, and notices when it no longer does.
///
/// ```text
///            answered, nothing longer to try
///  +-----------+ --------------------------> +----------+
///  | searching |                             | complete |
///  +-----------+ <-------------------------- +----------+
///            600 s later, or black hole (begins at the floor)
/// ```
///
/// The longest size is tried first, then the middle between the longest that came through and the
/// shortest that did not.
#[derive(Clone, Debug)]
pub struct Mtu {
    floor: usize,
    max: usize,
    /// Longer ones do not suit the link's rate, though they may come through.
    suits: usize,
    /// The longest that is known to come through.
    good: usize,
    /// The shortest that is known not to; above `max` if there is none.
    bad: usize,
    /// What the search is expected to end with.
    expected: usize,
    outstanding: Option<Outstanding>,
    tries: u32,
    next_id: u16,
    sent: VecDeque<MtuProbe>,
    /// When the next search begins.
    raise_at: Option<Duration>,
    lost_long: u32,
    arrived_short: u32,
    outages: u32,
    /// What was sent before may have been lost in an outage.
    since: Duration,
    /// A long packet of that time was lost.
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

    /// The longest packet to send, in bytes of plain text.
    pub fn size(&self) -> usize {
        self.good.min(self.suits)
    }

    /// Sends and tries no packets longer than `longest` bytes of plain text from now on, whatever
    /// the path carries; a later call may allow longer ones again.
    pub fn suit(&mut self, longest: usize) {
        if longest > self.suits && self.good >= self.top() {
            // The search ended for want of rate, not of length.
            self.raise_at = None;
        }
        self.suits = longest;
    }

    /// The longest size worth trying.
    fn top(&self) -> usize {
        self.max.min(self.suits)
    }

    /// The longest packet that the path is expected to carry, in bytes of plain text: [`size`](Self::size) once a search has ended, and
    /// what the last one ended with while another goes on. The first one begins with the longest. It is what others who remember it are
    /// to be told.
    pub fn expected(&self) -> usize {
        self.expected.min(self.suits)
    }

    /// What to try next, if anything. `timeout` is how long an answer may take: a few round trips. Not to
    /// be asked while the link is thought to be down.
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

    /// When [`next_probe`](Self::next_probe) may have something to say.
    pub fn deadline(&self) -> Option<Duration> {
        match self.outstanding {
            Some(probe) => Some(probe.until),
            None if self.candidate().is_some() => Some(Duration::ZERO),
            None => self.raise_at,
        }
    }

    /// The peer has that probe. Unknown identifiers are ignored.
    pub fn on_ack(&mut self, id: u16) {
        let Some(probe) = self.sent.iter().find(|probe| probe.id == id).copied() else {
            return;
        };
        if probe.size > self.good {
            self.good = probe.size;
            self.expected = self.expected.max(probe.size);
            // It may have come through at the third try, or late.
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

    /// An outage is over: what was sent until now was not lost by its length.
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

    /// A packet of that size has arrived, which was no probe.
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

    /// A packet of that size was lost, sent at that time, which was no probe. Returns whether the path has become a
    /// black hole: [`size`](Self::size) is smaller now.
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
        // A rate that varies must not have each few bytes more tried.
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
