//! Link in virtual time.

use super::{Direction, Engine, LinkConfig, Nanos, Packet};

/// Packet delivered by the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Time of delivery.
    pub at: Nanos,
    /// Direction of the packet.
    pub direction: Direction,
    /// Packet itself.
    pub packet: Packet,
}

/// Runner that computes a link as fast as it can: the clock jumps from deadline to deadline.
#[derive(Debug)]
pub struct Sim {
    /// Simulated link.
    pub engine: Engine,
    now: Nanos,
}

impl Sim {
    /// Creates a link at time 0.
    pub fn new(config: &LinkConfig, seed: u64) -> Self {
        Self {
            engine: Engine::new(config, seed),
            now: 0,
        }
    }

    /// Current virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Time of the next possible arrival; `None` when the link holds no packet.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.engine.poll_timeout()
    }

    /// Sends a packet at the current time.
    pub fn send(&mut self, direction: Direction, bytes: &[u8]) {
        self.engine.handle_packet(direction, bytes, self.now);
    }

    /// Advances to the next arrival, or to `until` if none comes by then.
    pub fn step(&mut self, until: Nanos) -> Option<Arrival> {
        loop {
            if let Some((direction, packet)) = self.engine.poll_deliver(self.now) {
                let at = self.now;
                return Some(Arrival {
                    at,
                    direction,
                    packet,
                });
            }
            match self.next_deadline().filter(|deadline| *deadline <= until) {
                Some(deadline) => self.now = self.now.max(deadline),
                None => {
                    self.now = self.now.max(until);
                    return None;
                }
            }
        }
    }

    /// Runs to `until`, hands each arrival to `arrive`, and recycles the packets' memory.
    pub fn run_until(&mut self, until: Nanos, mut arrive: impl FnMut(&Arrival)) {
        while let Some(arrival) = self.step(until) {
            arrive(&arrival);
            self.engine.recycle(arrival.packet);
        }
    }
}
