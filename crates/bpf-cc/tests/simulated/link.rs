//! A link: segments wait their turn in a buffer, are serialised, and arrive after a while, or not.

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
    /// From when to when nothing arrives.
    pub outage: (Micros, Micros),
    free_at: Micros,
    draws: u64,
    /// Sum over the segments of those that waited before them.
    pub waited: f64,
    /// Segments that came to the buffer, and those that found it full.
    pub offered: u64,
    /// See `offered`.
    pub dropped: u64,
}

impl Link {
    pub fn new(rate: f64, rtt: Micros, buffer: f64, loss: f64, seed: u64) -> Self {
        Self {
            rate,
            rtt,
            buffer,
            loss,
            outage: (0.0, 0.0),
            free_at: 0.0,
            draws: seed,
            waited: 0.0,
            offered: 0,
            dropped: 0,
        }
    }

    /// Segments in flight that keep it busy without a queue.
    pub fn bdp(&self) -> f64 {
        self.rate * self.rtt / 1e6
    }

    /// Takes a segment at a time; when its acknowledgement is back, `None` if it is lost.
    pub fn carry(&mut self, now: Micros) -> Option<Micros> {
        let queue = (self.free_at - now).max(0.0) * self.rate / 1e6;
        self.offered += 1;
        self.waited += queue;
        if queue >= self.buffer {
            self.dropped += 1;
            return None;
        }
        self.free_at = self.free_at.max(now) + 1e6 / self.rate;
        let lost = self.draw() < self.loss;
        let down = (self.outage.0..self.outage.1).contains(&now);
        (!lost && !down).then_some(self.free_at + self.rtt)
    }

    /// SplitMix64: the same segments are lost with the same seed.
    fn draw(&mut self) -> f64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.draws;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
