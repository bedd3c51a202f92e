//! Engine that joins the two directions of a link.

use super::{
    Decision, Direction, Nanos, Packet, PathStats, QueueHistory,
    config::LinkConfig,
    path::{Path, Pool},
};

/// Link with two directions. Feed it packets and the time; poll it for packets and a deadline.
///
/// ```
/// use winkemu_link::{Direction, Engine, LinkOptions};
///
/// let options: LinkOptions = "rate=10mbit,delay=264ms".parse()?;
/// let mut link = Engine::new(&options.resolve_without_files()?, 1);
/// link.handle_packet(Direction::AtoB, &[0; 1250], 0);
/// let due = link.poll_timeout().expect("a packet is inside");
/// assert_eq!(due, 265_000_000); // 1 ms on the wire, then 264 ms
/// assert!(link.poll_deliver(due - 1).is_none());
/// let (direction, packet) = link.poll_deliver(due).expect("it is due");
/// assert_eq!((direction, packet.bytes.len()), (Direction::AtoB, 1250));
/// # Ok::<(), winkemu_link::OptionError>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    paths: [Path; 2],
    pool: Pool,
    now: Nanos,
}

impl Engine {
    /// Creates a link at time 0. A packet's draws depend on the configuration and the seed, not on
    /// its arrival time.
    pub fn new(config: &LinkConfig, seed: u64) -> Self {
        Self {
            paths: Direction::BOTH.map(|direction| Path::new(config, direction, seed)),
            pool: Pool::default(),
            now: 0,
        }
    }

    /// Replays the recorded decisions; packets without one are decided by chance.
    ///
    /// Loss, outages, jitter, duplication and corruption come from the recording. Queues and rates
    /// are emulated again. Call this before the first packet.
    pub fn replay<'a>(&mut self, decisions: impl IntoIterator<Item = &'a Decision>) {
        for decision in decisions {
            self.paths[decision.direction as usize].replay(decision);
        }
    }

    /// Starts to keep decisions for [`Self::poll_decision`].
    pub fn record(&mut self) {
        self.paths.iter_mut().for_each(Path::record);
    }

    /// Takes the next recorded decision; poll until `None`. Decisions of one direction come in the
    /// order in which they were made.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        self.paths.iter_mut().find_map(Path::poll_decision)
    }

    /// Accepts a packet that arrived at one end at `now`. A time before that of an earlier call
    /// counts as that earlier time.
    pub fn handle_packet(&mut self, direction: Direction, bytes: &[u8], now: Nanos) {
        self.now = self.now.max(now);
        self.paths[direction as usize].handle_packet(bytes, self.now, &mut self.pool);
    }

    /// Takes the next packet due by `now`, in the order of their due times. Poll until `None`.
    ///
    /// Return the packet with [`Self::recycle`] to keep the engine from allocating.
    pub fn poll_deliver(&mut self, now: Nanos) -> Option<(Direction, Packet)> {
        self.now = self.now.max(now);
        for path in &mut self.paths {
            path.advance(self.now, &mut self.pool);
        }
        let due = |path: &Path| path.next_due().unwrap_or(super::FOREVER);
        let direction = if due(&self.paths[1]) < due(&self.paths[0]) {
            Direction::BtoA
        } else {
            Direction::AtoB
        };
        let packet = self.paths[direction as usize].poll_deliver(self.now)?;
        Some((direction, packet))
    }

    /// Takes back the memory of a delivered packet.
    pub fn recycle(&mut self, packet: Packet) {
        self.pool.put(packet.bytes);
    }

    /// Time of the next [`Self::poll_deliver`]; `None` when the link holds no packet.
    ///
    /// No packet comes out before this time unless another one goes in. The call may find nothing;
    /// poll again after it.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.paths.iter().filter_map(Path::poll_timeout).min()
    }

    /// Counters of one direction.
    pub fn stats(&self, direction: Direction) -> PathStats {
        self.paths[direction as usize].stats()
    }

    /// Bytes in the queue of one direction, without the packet in transmission.
    pub fn queue_bytes(&self, direction: Direction) -> u64 {
        self.paths[direction as usize].queue_bytes()
    }

    /// Occupancy of the queue of one direction, up to the last call.
    pub fn queue_history(&self, direction: Direction) -> QueueHistory {
        self.paths[direction as usize].queue_history(self.now)
    }

    /// Buffers free for reuse.
    #[cfg(test)]
    pub(crate) fn buffers(&self) -> usize {
        self.pool.len()
    }

    /// Reserves this many bytes of the pipe without packets.
    #[cfg(test)]
    pub(crate) fn fill_flight(&mut self, direction: Direction, bytes: u64) {
        self.paths[direction as usize].fill_flight(bytes);
    }
}
