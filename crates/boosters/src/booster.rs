//! Interface of all boosters.

use std::{fmt::Debug, time::Duration};

use crate::{packet::Packet, rule::Path};

/// State machine over packets, at one end of the link. Packets go *down* from hosts to the link,
/// and *up* from the link to hosts. A booster passes on at once, unchanged and in order, every
/// packet that it does not handle. Packets that it makes or holds back it emits later, in either
/// direction.
pub trait Booster: Debug + Send {
    /// Handles a packet for the link.
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let _ = now;
        out.down.push(packet);
    }

    /// Handles a packet, or a message of the other end, received from the link.
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let _ = now;
        out.up.push(packet);
    }

    /// Notes that a packet leaves the queue for the link: its transmission begins now. Not called
    /// for [urgent](Packet::urgent) ones.
    fn leaving(&mut self, now: Duration, packet: &Packet) {
        let _ = (now, packet);
    }

    /// Handles due timers. Harmless when nothing is due.
    fn on_time(&mut self, now: Duration, out: &mut Out) {
        let _ = (now, out);
    }

    /// Returns the time of the next call of [`on_time`](Self::on_time).
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Updates the known properties of the path.
    fn set_path(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// Discards what it has learned of connections, and what the far end was sent. Other packets
    /// may have passed while it was off, or the session is new.
    fn reset(&mut self) {}

    /// Reports its counters by name.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let _ = each;
    }
}

/// Output of a booster.
#[derive(Debug, Default)]
pub struct Out {
    /// Packets and messages for the link.
    pub down: Vec<Packet>,
    /// Packets for hosts.
    pub up: Vec<Packet>,
}
