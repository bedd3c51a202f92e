//! What all boosters are.

use std::{fmt::Debug, time::Duration};

use crate::{packet::Packet, rule::Path};

/// A state machine over packets, at one end of the link. Packets go *down* from hosts to the link, and *up* from the link to
/// hosts; what is not a booster's concern it passes on at once, unchanged and in order. What it makes or holds back it gives out
/// later, in either direction.
pub trait Booster: Debug + Send {
    /// A packet on its way to the link.
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let _ = now;
        out.down.push(packet);
    }

    /// A packet, or a message of the other end's, that came by the link.
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let _ = now;
        out.up.push(packet);
    }

    /// A packet leaves the queue for the link: only now is it on its way. Not told of those that are [urgent](Packet::urgent).
    fn leaving(&mut self, now: Duration, packet: &Packet) {
        let _ = (now, packet);
    }

    /// Time has passed. Harmless when nothing is due.
    fn on_time(&mut self, now: Duration, out: &mut Out) {
        let _ = (now, out);
    }

    /// When [`on_time`](Self::on_time) wants to be called.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// What is known of the path has changed.
    fn set_path(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// What was seen of connections counts no more, nor what the far end was told: other packets may have passed since, as this was off, or
    /// the session is another one.
    fn reset(&mut self) {}

    /// What it has done so far: each count by its name.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let _ = each;
    }
}

/// What a booster gives out.
#[derive(Debug, Default)]
pub struct Out {
    /// To the link.
    pub down: Vec<Packet>,
    /// To the hosts.
    pub up: Vec<Packet>,
}
