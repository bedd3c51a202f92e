//! Numbers of server legs by the client's address and port.
//!
//! bind(2) compares a new leg with all earlier ones of its address and port, up to a minute after
//! their end. A host that uses one port for thousands of connections would make each cost
//! milliseconds. Beyond a number its legs get other ports.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Counters; clients share one by chance.
const CELLS: usize = 4096;
/// Legs of one client's port in one [`SPAN`]: far more than a host opens beside each other, and
/// some 50 us of bind(2).
const LEGS_MAX: u32 = 512;
/// The kernel keeps a port for 60 s after a connection (TIME_WAIT).
const SPAN: Duration = Duration::from_secs(64);

/// Numbers of legs begun lately, by client address and port.
#[derive(Debug)]
pub struct ClientPorts {
    /// The span's number in the upper half, the count in the lower one.
    cells: Box<[AtomicU32]>,
    keys: RandomState,
    began: Instant,
}

impl Default for ClientPorts {
    fn default() -> Self {
        Self {
            cells: (0..CELLS).map(|_| AtomicU32::new(0)).collect(),
            keys: RandomState::new(),
            began: Instant::now(),
        }
    }
}

impl ClientPorts {
    /// Counts a leg from this address and port. Returns whether it is one too many.
    pub(super) fn is_crowded(&self, client: SocketAddr) -> bool {
        self.count(client, self.began.elapsed())
    }

    fn count(&self, client: SocketAddr, now: Duration) -> bool {
        let span = (now.as_secs() / SPAN.as_secs()) as u32 & 0xffff;
        let cell = &self.cells[self.keys.hash_one(client) as usize % CELLS];
        let before = cell.load(Relaxed);
        let count = if before >> 16 == span {
            before & 0xffff
        } else {
            0
        };
        // Another thread's count may get lost, which does not matter.
        cell.store(span << 16 | (count + 1).min(0xffff), Relaxed);
        count >= LEGS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_many_legs_is_crowded_until_the_next_span() {
        let ports = ClientPorts::default();
        let crowded: SocketAddr = ([192, 0, 2, 1], 4000).into();
        for _ in 0..LEGS_MAX {
            assert!(!ports.count(crowded, Duration::ZERO));
        }
        for _ in 0..100_000 {
            assert!(ports.count(crowded, SPAN / 2));
        }
        assert!(!ports.count(crowded, SPAN));
    }

    #[test]
    fn hosts_with_many_ports_are_never_crowded() {
        let ports = ClientPorts::default();
        for second in 0..64 {
            for port in 1..=2000 {
                let client = ([192, 0, 2, second], 20_000 + port).into();
                assert!(!ports.count(client, Duration::from_secs(second.into())));
            }
        }
    }
}
