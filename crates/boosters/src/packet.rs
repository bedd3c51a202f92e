//! A packet on its way.

use std::time::Duration;

/// An IP packet, or, on the link side, a message that stands for some ([`crate::wire`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// What it is: an IP packet from its first byte to its last, nothing behind it.
    pub bytes: Vec<u8>,
    /// When it came here, from a host or from the link.
    pub since: Duration,
    /// What it says, or stands for, of congestion ([`crate::ecn`]).
    pub ecn: crate::ecn::Ecn,
    /// From the link: the mark of the datagram that it came in. None for what no datagram brought.
    pub outer: crate::ecn::Ecn,
    /// From the link: what was lost shortly before it may still be restored by overcode, until so many packets later; 0 where there is none.
    pub restorable: u16,
    /// Down: it goes before those that wait in the queue.
    pub urgent: bool,
}

impl Packet {
    /// A packet that has just come.
    #[must_use]
    pub fn new(bytes: Vec<u8>, since: Duration) -> Self {
        let ecn = crate::ecn::of_packet(&bytes);
        Self {
            bytes,
            since,
            ecn,
            outer: crate::ecn::Ecn::NotEct,
            restorable: 0,
            urgent: false,
        }
    }

    /// The same with other bytes.
    #[must_use]
    pub fn with_bytes(&self, bytes: Vec<u8>) -> Self {
        Self { bytes, ..*self }
    }
}
