//! Packets on their way through the boosters.

use std::time::Duration;

/// IP packet or, on the link side, a message that encodes one or more ([`crate::wire`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Contents: an IP packet without trailing bytes.
    pub bytes: Vec<u8>,
    /// Arrival time, from a host or from the link.
    pub since: Duration,
    /// ECN mark of the packet, or of the packets it encodes ([`crate::ecn`]).
    pub ecn: crate::ecn::Ecn,
    /// From the link: ECN mark of its datagram. `NotEct` for packets without a datagram.
    pub outer: crate::ecn::Ecn,
    /// From the link: number of later packets within which FEC may still restore a recent loss; 0
    /// without FEC.
    pub restorable: u16,
    /// Down: it precedes the packets in the queue.
    pub urgent: bool,
}

impl Packet {
    /// Creates a packet that has just arrived.
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

    /// Returns a copy with other bytes.
    #[must_use]
    pub fn with_bytes(&self, bytes: Vec<u8>) -> Self {
        Self { bytes, ..*self }
    }
}
