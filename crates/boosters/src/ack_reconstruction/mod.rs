//! `ack_reconstruction`: on a slow return path, merges waiting acknowledgements into one message,
//! from which the far end regenerates them (ramakrishnan2000 §4).
//!
//! ```text
//!   queue before the slow link                               far end
//!   ... ACK 1 ... data ... ACK 2 ... ACK 3     becomes
//!   ... ACKS 1 to 3 ... data ...               ----------->  ACK 1, ACK 2, ACK 3, spaced as before
//! ```
//!
//! Only plain acknowledgements of new data are merged. All others pass unchanged: duplicates, SACK,
//! window updates, closed windows, packets with bytes or flags, and congestion marks (of TCP, and
//! the packet's own of IP). No packet overtakes another of its connection. An acknowledgement that
//! would stand behind waiting bytes of the same connection is carried by them: the waiting segment
//! takes over its number, window and timestamps, as its host would write them now.

mod regenerate;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

pub use regenerate::Regenerate;

use crate::{
    booster::Out,
    ecn::Ecn,
    flow::Flows,
    ip::{FlowKey, Ip},
    packet::Packet,
    queue::{AtQueue, Queue},
    rule::Path,
    tcp::{self, Tcp, flags, is_after},
    wire::{ACKS, Abilities},
};

/// Length of the message header before the packet.
const HEADER: usize = 1 + 2 + 4 + 4;
/// Number of bytes that a message is longer than its packet.
pub const OVERHEAD: usize = HEADER;

/// Settings of the booster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Merges only while queued packets have waited longer than this. Default 0.
    pub queue_above: Duration,
    /// Maximum time over which they are regenerated. Default 1 s. The originals came between two
    /// messages of the connection. If messages are no farther apart than this, the last is
    /// regenerated when the next message is due, and the sender is clocked without a pause. If they
    /// are farther apart, the rest of the time passes in silence.
    pub spacing_max: Duration,
    /// Connections tracked at a time. Default 4096.
    pub flows_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queue_above: Duration::ZERO,
            spacing_max: Duration::from_secs(1),
            flows_max: 4096,
        }
    }
}

/// End before the slow link.
#[derive(Debug)]
pub struct Collapse {
    config: Config,
    /// True if the far end can regenerate them.
    supported: bool,
    flows: Flows<Flow>,
    /// Entry to be added once its packet is queued, if there is room for it.
    pending: Option<(FlowKey, Standing)>,
    /// Queued packets into which several acknowledgements were merged.
    boosted: BTreeMap<u64, Standing>,
    collapsed: u64,
    boosts: u64,
    on_data: u64,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Number and window of the last acknowledgement.
    last: Option<(u32, u16)>,
    /// Last packet of the connection in the queue, if others can be merged into it.
    standing: Option<Standing>,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    number: u64,
    /// Acknowledgements merged into it; 0 for a segment with bytes.
    count: u16,
    first_ack: u32,
    first_at: Duration,
    last_at: Duration,
}

impl Collapse {
    /// Creates a booster without connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            flows: Flows::new(config.flows_max),
            config,
            supported: true,
            pending: None,
            boosted: BTreeMap::new(),
            collapsed: 0,
            boosts: 0,
            on_data: 0,
        }
    }

    /// Merges the acknowledgement into the queued packet. Returns true on success.
    fn join(
        standing: &mut Standing,
        packet: &Packet,
        now: Duration,
        queue: &mut Queue,
        acks: &Tcp<'_>,
    ) -> bool {
        let Some(waiting) = queue.get(standing.number) else {
            return false;
        };
        // The mark of an acknowledgement is its own; waiting bytes keep theirs (RFC 3168 §6.1.4:
        // acknowledgements have none).
        let marks_differ = standing.count > 0 && waiting.ecn != packet.ecn;
        if marks_differ || packet.ecn == Ecn::Ce {
            return false;
        }
        let old = Ip::parse(&waiting.bytes).and_then(Tcp::parse);
        let is_plain = old.is_some_and(|old| old.is_plain_ack() && !old.has_sack());
        let joined = if standing.count == 0 {
            match renewed(waiting, acks) {
                Some(bytes) => waiting.with_bytes(bytes),
                None => return false,
            }
        } else if standing.count == u16::MAX || !is_plain {
            return false;
        } else {
            standing.count += 1;
            standing.last_at = now;
            packet.clone()
        };
        queue.replace(standing.number, joined).is_some()
    }

    /// Forgets packets that were dropped after waiting for too long.
    fn forget_late(&mut self, queue: &Queue) {
        while let Some(first) = self.boosted.first_entry()
            && queue.get(*first.key()).is_none()
        {
            first.remove();
        }
    }
}

/// Returns a segment with bytes as its host would write it after sending this acknowledgement;
/// `None` if that is ambiguous.
fn renewed(waiting: &Packet, acks: &Tcp<'_>) -> Option<Vec<u8>> {
    // A new checksum would hide the damage.
    let tcp = Tcp::read(&waiting.bytes)?;
    let plain = tcp.flags & !(flags::PSH | flags::ACK) == 0 && tcp.has_only(&[8]);
    let timed = tcp.timestamps().is_some() == acks.timestamps().is_some();
    if !plain || !timed || !is_after(acks.ack, tcp.ack) || tcp.end() != acks.seq {
        return None;
    }
    let mut bytes = waiting.bytes.clone();
    tcp::set_ack(&mut bytes, acks.ack);
    tcp::set_window(&mut bytes, acks.window);
    if let Some((value, echo)) = acks.timestamps() {
        tcp::set_timestamps(&mut bytes, value, echo);
    }
    Some(bytes)
}

impl AtQueue for Collapse {
    fn arriving(
        &mut self,
        now: Duration,
        packet: Packet,
        queue: &mut Queue,
        _out: &mut Out,
    ) -> Option<Packet> {
        // The last one may never have been queued.
        self.pending = None;
        self.forget_late(queue);
        let Some(tcp) = Tcp::read(&packet.bytes) else {
            return Some(packet);
        };
        let key = tcp.ip.key();
        let (flow, _) = self.flows.entry(key, Flow::default);
        let is_news = flow.last.is_none_or(|(ack, _)| is_after(tcp.ack, ack));
        // Regenerated acknowledgements before a zero window would close the sender's window too
        // early.
        let joins = tcp.is_plain_ack() && !tcp.has_sack() && is_news && tcp.window > 0;
        let standing = flow.standing.take();
        let long = !queue.is_empty() && queue.delay(now) >= self.config.queue_above;
        if tcp.has(flags::ACK) {
            flow.last = Some((tcp.ack, tcp.window));
        }
        if joins
            && long
            && let Some(mut standing) = standing
            && Self::join(&mut standing, &packet, now, queue, &tcp)
        {
            flow.standing = Some(standing);
            if standing.count == 0 {
                self.on_data += 1;
            } else {
                self.collapsed += 1;
                self.boosted.insert(standing.number, standing);
            }
            return None;
        }
        let data = !tcp.data().is_empty() && tcp.has(flags::ACK);
        let stands = Standing {
            number: 0,
            count: joins.into(),
            first_ack: tcp.ack,
            first_at: now,
            last_at: now,
        };
        self.pending = (joins || data).then_some((key, stands));
        Some(packet)
    }

    fn queued(&mut self, number: u64, packet: &Packet) {
        let Some((key, pending)) = self.pending.take() else {
            return;
        };
        let is_it = Ip::parse(&packet.bytes).is_some_and(|ip| ip.key() == key);
        if let Some(flow) = self.flows.get(&key).filter(|_| is_it) {
            flow.standing = Some(Standing { number, ..pending });
        }
    }

    fn leaving(
        &mut self,
        _now: Duration,
        number: u64,
        packet: Packet,
        _queue: &Queue,
        _out: &mut Out,
    ) -> Packet {
        // The newest one alone is understood by any far end.
        let Some(standing) = self.boosted.remove(&number).filter(|_| self.supported) else {
            return packet;
        };
        self.boosts += 1;
        let span = standing.last_at.saturating_sub(standing.first_at);
        let span = span.min(self.config.spacing_max).as_micros() as u32;
        let mut bytes = Vec::with_capacity(HEADER + packet.bytes.len());
        bytes.push(ACKS);
        bytes.extend_from_slice(&standing.count.to_be_bytes());
        bytes.extend_from_slice(&standing.first_ack.to_be_bytes());
        bytes.extend_from_slice(&span.to_be_bytes());
        bytes.extend_from_slice(&packet.bytes);
        packet.with_bytes(bytes)
    }

    fn finishes(&self) -> bool {
        true
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.supported = path.abilities & Abilities::ACKS != 0;
    }

    fn reset(&mut self) {
        self.flows.clear();
        self.pending = None;
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("collapsed", self.collapsed);
        each("boosts", self.boosts);
        each("on_data", self.on_data);
        each("connections", self.flows.len() as u64);
        each("evicted", self.flows.evicted());
    }
}
