//! A path: segments wait their turn in a buffer, are serialised, and arrive after a while, or not;
//! their acknowledgements come back over a return path of its own.

use std::collections::VecDeque;

use splitmix::SplitMix64;

/// Time in microseconds.
pub type Micros = f64;

/// A bottleneck with a drop-tail buffer.
#[derive(Debug, Clone)]
pub struct Link {
    /// Segments per second.
    pub rate: f64,
    /// Round trip without a queue and without serialisation.
    pub rtt: Micros,
    /// Segments that may wait.
    pub buffer: f64,
    /// Share of segments that are lost beyond the buffer.
    pub loss: f64,
    /// Loss in bursts: probabilities of a step into a burst and out of it with each segment.
    pub bursts: (f64, f64),
    /// Bound of an extra delay that is drawn for each segment; segments do not overtake.
    pub jitter: Micros,
    /// From when to when nothing arrives.
    pub outage: (Micros, Micros),
    /// Bound of a random delay of each acknowledgement: without, flows beside each other find the
    /// buffer full in turns that never change.
    pub noise: Micros,
    /// Acknowledgements' path.
    pub back: Back,
    /// Count of acknowledgements; times of the return path's next free moment and of the last
    /// arrival.
    answers: u64,
    back_free_at: Micros,
    answered_last: Micros,
    free_at: Micros,
    arrived_last: Micros,
    in_burst: bool,
    leaves: VecDeque<Micros>,
    draws: SplitMix64,
    /// Sum over the segments of those that waited before them.
    pub waited: f64,
    /// Time at which each segment came, and its delay in the buffer.
    pub waits: Vec<(Micros, Micros)>,
    /// Segments that came to the buffer, and those that found it full.
    pub offered: u64,
    /// See `offered`.
    pub dropped: u64,
}

/// A return path. Without a queue and without bursts it takes no time: that is in [`Link::rtt`].
#[derive(Debug, Clone, Copy)]
pub enum Back {
    Free,
    /// A queue of others' data: its minimum and maximum delay, and the time it grows from one to
    /// the other before it shrinks at once, as that of a loss-based sender does.
    Sawtooth(Micros, Micros, Micros),
    /// Acknowledgements leave in bunches, so often.
    Bunched(Micros),
    /// Acknowledgements per second, and how many may wait.
    Slow(f64, f64),
    /// Each so-manieth acknowledgement alone passes.
    Thinned(u64),
}

impl Link {
    pub fn new(rate: f64, rtt: Micros, buffer: f64, loss: f64, seed: u64) -> Self {
        Self {
            rate,
            rtt,
            buffer,
            loss,
            bursts: (0.0, 1.0),
            jitter: 0.0,
            outage: (0.0, 0.0),
            noise: 0.0,
            back: Back::Free,
            answers: 0,
            back_free_at: 0.0,
            answered_last: 0.0,
            free_at: 0.0,
            arrived_last: 0.0,
            in_burst: false,
            leaves: VecDeque::new(),
            draws: SplitMix64::new(seed),
            waited: 0.0,
            waits: Vec::new(),
            offered: 0,
            dropped: 0,
        }
    }

    /// Segments in flight that keep it busy without a queue.
    pub fn bdp(&self) -> f64 {
        self.rate * self.rtt / 1e6
    }

    /// The delay in the queue below which so much of what came since `from` waited.
    pub fn wait(&self, from: Micros, share: f64) -> Micros {
        let since = self.waits.iter().filter(|(at, _)| *at >= from);
        let mut waits: Vec<Micros> = since.map(|(_, wait)| *wait).collect();
        waits.sort_by(f64::total_cmp);
        let place = (waits.len() as f64 * share) as usize;
        waits.get(place).copied().unwrap_or(0.0)
    }

    /// Takes a segment at a time; when it is at the receiver, `None` if it is lost.
    pub fn carry(&mut self, now: Micros) -> Option<Micros> {
        while self.leaves.front().is_some_and(|left| *left <= now) {
            self.leaves.pop_front();
        }
        let queue = self.leaves.len() as f64;
        self.offered += 1;
        self.waited += queue;
        self.waits.push((now, (self.free_at - now).max(0.0)));
        if queue >= self.buffer {
            self.dropped += 1;
            return None;
        }
        self.free_at = self.free_at.max(now) + 1e6 / self.rate;
        self.leaves.push_back(self.free_at);
        let (enter, leave) = self.bursts;
        let step = self.draw();
        self.in_burst = step < if self.in_burst { 1.0 - leave } else { enter };
        let lost = self.draw() < self.loss || self.in_burst;
        let down = (self.outage.0..self.outage.1).contains(&now);
        let jitter = self.draw() * self.jitter;
        if lost || down {
            return None;
        }
        self.arrived_last = self.arrived_last.max(self.free_at + self.rtt + jitter);
        Some(self.arrived_last)
    }

    /// From 0 to 1; the same segments are lost with the same seed.
    pub fn draw(&mut self) -> f64 {
        self.draws.unit()
    }

    /// Time at which an acknowledgement that leaves the receiver now is back; `None` if it is
    /// dropped.
    pub fn answer(&mut self, now: Micros) -> Option<Micros> {
        self.answers += 1;
        let at = match self.back {
            Back::Free => now,
            Back::Sawtooth(least, most, period) => {
                least + (most - least) * (now / period).fract() + now
            }
            Back::Bunched(every) => (now / every).ceil() * every,
            Back::Slow(rate, buffer) => {
                let start = self.back_free_at.max(now);
                if (start - now) * rate / 1e6 > buffer {
                    return None;
                }
                self.back_free_at = start + 1e6 / rate;
                self.back_free_at
            }
            Back::Thinned(of) if !self.answers.is_multiple_of(of) => return None,
            Back::Thinned(_) => now,
        };
        let noise = self.draw() * self.noise;
        self.answered_last = self.answered_last.max(at + noise);
        Some(self.answered_last)
    }
}
