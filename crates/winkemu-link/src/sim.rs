//! A link in virtual time.

use super::{Direction, Engine, LinkConfig, Nanos, Packet};

/// A packet that came out of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Nanos,
    /// Which way it went.
    pub direction: Direction,
    /// The packet.
    pub packet: Packet,
}

/// Runs a link as fast as it can be computed: the clock jumps from deadline to deadline.
#[derive(Debug)]
pub struct Sim {
    /// The link.
    pub engine: Engine,
    now: Nanos,
}

impl Sim {
    /// A link at time 0.
    pub fn new(config: &LinkConfig, seed: u64) -> Self {
        Self {
            engine: Engine::new(config, seed),
            now: 0,
        }
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// When something may arrive next; `None` when nothing is inside.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.engine.poll_timeout()
    }

    /// Sends a packet now.
    pub fn send(&mut self, direction: Direction, bytes: &[u8]) {
        self.engine.handle_packet(direction, bytes, self.now);
    }

    /// Goes on to the next arrival, or to `until` if there is none before or at it.
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

    /// Runs until `until` and hands each arrival to `arrive`; gives the packets' memory back.
    pub fn run_until(&mut self, until: Nanos, mut arrive: impl FnMut(&Arrival)) {
        while let Some(arrival) = self.step(until) {
            arrive(&arrival);
            self.engine.recycle(arrival.packet);
        }
    }
}
