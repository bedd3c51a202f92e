//! A simulated path: a buffer, serialisation, delay and loss; acknowledgements have a return path
//! of their own.

use std::collections::VecDeque;

use splitmix::SplitMix64;

/// Time in microseconds.
pub type Micros = f64;

/// A bottleneck with a drop-tail buffer.
#[derive(Debug, Clone)]
pub struct Link {
    /// Segments per second.
    pub rate: f64,
    /// The round-trip time without queueing and serialisation.
    pub rtt: Micros,
    /// The buffer's capacity in segments.
    pub buffer: f64,
    /// The share of segments lost apart from buffer overflows.
    pub loss: f64,
    /// Loss in bursts: probabilities per segment of entering and of leaving a burst.
    pub bursts: (f64, f64),
    /// The maximum extra delay per segment; segments keep their order.
    pub jitter: Micros,
    /// The begin and end of an outage.
    pub outage: (Micros, Micros),
    /// The maximum random delay per acknowledgement. Without it parallel flows hit the full buffer
    /// in a fixed order.
    pub noise: Micros,
    /// The return path of acknowledgements.
    pub back: Back,
    /// Count of acknowledgements; times when the return path is next free and of the last arrival.
    answers: u64,
    back_free_at: Micros,
    answered_last: Micros,
    free_at: Micros,
    arrived_last: Micros,
    in_burst: bool,
    leaves: VecDeque<Micros>,
    draws: SplitMix64,
    /// The sum over all segments of the queue length on arrival.
    pub waited: f64,
    /// The arrival time of each segment, and its delay in the buffer.
    pub waits: Vec<(Micros, Micros)>,
    /// Segments offered to the buffer, and dropped by it.
    pub offered: u64,
    /// See `offered`.
    pub dropped: u64,
}

/// A return path. One without a queue and bunches adds no time: its delay is in [`Link::rtt`].
#[derive(Debug, Clone, Copy)]
pub enum Back {
    Free,
    /// A queue of other flows: minimum and maximum delay, and the period of its growth. It then
    /// drops to the minimum, as for a loss-based sender.
    Sawtooth(Micros, Micros, Micros),
    /// Acknowledgements leave in bunches, at this interval.
    Bunched(Micros),
    /// Acknowledgements per second, and the length of their queue.
    Slow(f64, f64),
    /// Only every n-th acknowledgement passes.
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

    /// Returns the segments in flight that fill the link without a queue.
    pub fn bdp(&self) -> f64 {
        self.rate * self.rtt / 1e6
    }

    /// Returns the quantile `share` of the queueing delay since `from`.
    pub fn wait(&self, from: Micros, share: f64) -> Micros {
        let since = self.waits.iter().filter(|(at, _)| *at >= from);
        let mut waits: Vec<Micros> = since.map(|(_, wait)| *wait).collect();
        waits.sort_by(f64::total_cmp);
        let place = (waits.len() as f64 * share) as usize;
        waits.get(place).copied().unwrap_or(0.0)
    }

    /// Accepts a segment; returns its arrival time at the receiver, or `None` if it is lost.
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

    /// Returns a number from 0 to 1; with the same seed the same segments are lost.
    pub fn draw(&mut self) -> f64 {
        self.draws.unit()
    }

    /// Returns when an acknowledgement sent now arrives at the sender; `None` if it is dropped.
    pub fn answer(&mut self, now: Micros) -> Option<Micros> {
        self.answers += 1;
        let at = match self.back {
            Back::Free => now,
            Back::Sawtooth(minimum, most, period) => {
                minimum + (most - minimum) * (now / period).fract() + now
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
