//! The whole link.

use super::{
    Decision, Direction, Nanos, Packet, PathStats, QueueHistory,
    config::LinkConfig,
    path::{Path, Pool},
};

/// A link with two directions. Feed it packets and the time; ask it for packets and a deadline.
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
    /// A link at time 0. The same configuration and seed decide the same for each packet,
    /// whenever it comes.
    pub fn new(config: &LinkConfig, seed: u64) -> Self {
        Self {
            paths: Direction::BOTH.map(|direction| Path::new(config, direction, seed)),
            pool: Pool::default(),
            now: 0,
        }
    }

    /// Decides as recorded for every packet that the recording knows; others by chance.
    ///
    /// Loss, outages, jitter, duplication and corruption are taken from the recording; queues
    /// and rates are emulated anew. Call it before the first packet.
    pub fn replay<'a>(&mut self, decisions: impl IntoIterator<Item = &'a Decision>) {
        for decision in decisions {
            self.paths[decision.direction as usize].replay(decision);
        }
    }

    /// From now on, keeps every decision until [`Self::poll_decision`] takes it.
    pub fn record(&mut self) {
        self.paths.iter_mut().for_each(Path::record);
    }

    /// The next decision to write down; ask until there is none. Decisions of one direction
    /// come in the order in which they were made.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        self.paths.iter_mut().find_map(Path::poll_decision)
    }

    /// Takes in a packet that came to one end at `now`. A time before an earlier call's is
    /// taken for that call's.
    pub fn handle_packet(&mut self, direction: Direction, bytes: &[u8], now: Nanos) {
        self.now = self.now.max(now);
        self.paths[direction as usize].handle_packet(bytes, self.now, &mut self.pool);
    }

    /// The next packet due by `now`, in the order in which they are due. Ask until there is none.
    ///
    /// Give the packet back by [`Self::recycle`] to keep the engine from allocating.
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

    /// Takes a delivered packet's memory back.
    pub fn recycle(&mut self, packet: Packet) {
        self.pool.put(packet.bytes);
    }

    /// When to call [`Self::poll_deliver`] next; `None` when nothing is inside. Nothing comes
    /// out sooner, unless a packet goes in. It may find nothing then; ask again afterwards.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.paths.iter().filter_map(Path::poll_timeout).min()
    }

    /// Counts of one direction.
    pub fn stats(&self, direction: Direction) -> PathStats {
        self.paths[direction as usize].stats()
    }

    /// Bytes waiting in the queue of one direction, without the packet being sent.
    pub fn queue_bytes(&self, direction: Direction) -> u64 {
        self.paths[direction as usize].queue_bytes()
    }

    /// How full the queue of one direction was, up to the last call.
    pub fn queue_history(&self, direction: Direction) -> QueueHistory {
        self.paths[direction as usize].queue_history(self.now)
    }

    /// Buffers that wait to be used again.
    #[cfg(test)]
    pub(crate) fn buffers(&self) -> usize {
        self.pool.len()
    }

    /// Takes up this much of the pipe without packets.
    #[cfg(test)]
    pub(crate) fn fill_flight(&mut self, direction: Direction, bytes: u64) {
        self.paths[direction as usize].fill_flight(bytes);
    }
}
