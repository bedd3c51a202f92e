//! Peers of a tunnel that hold a valid key and break the protocol's rules, for tests.
//!
//! ```text
//!   docs/protocol.md ---> document ---> cases ---+
//!                                                +---> steps ---> Rogue ---> datagrams
//!                                       floods --+                  ^
//!                                                                   +------- datagrams
//! ```
//!
//! - [`document`]: datagrams, frames, parts, terms and codes, as docs/protocol.md draws them
//! - [`cases`]: each of them cut, repeated, too early, too late and with values at all limits
//! - [`floods`]: harm by quantity
//! - [`packets`]: the same for messages of packet mode, and for packets of hosts within them
//! - [`peer`]: a peer that takes the steps, after a handshake by tunnel's own code
//! - [`wire`]: writers of parts and frames with any values
//!
//! The crate does no I/O and reads no clock.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cases;
pub mod document;
pub mod floods;
pub mod packets;
pub mod peer;
pub mod wire;

/// Side of a rogue in a session, which decides the numbers of its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The rogue calls, as a boat does.
    Caller,
    /// The rogue is called, as a hub is.
    Called,
}

impl Side {
    /// Returns the number of the `n`th stream that the rogue opens.
    pub const fn stream(self, n: u64) -> u64 {
        2 * n + self as u64
    }
}

/// Something that a rogue peer sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet under the next number.
    Packet(Vec<u8>),
    /// A packet under a number that lies so far from the next one. It changes no other number.
    PacketAt(i64, Vec<u8>),
    /// Parts in a packet of their own, as the next segment.
    Segment(Vec<u8>),
    /// Parts as a segment whose number lies so far from the next one.
    SegmentAt(i64, Vec<u8>),
    /// The previous datagram again.
    Again,
    /// A datagram in plain text.
    Datagram(Vec<u8>),
    /// An initiation with these terms.
    Terms(Vec<u8>),
    /// A true report of what has arrived.
    Report,
    /// A report that acknowledges all packets that the other end can have sent at this rate in
    /// packets per second.
    Optimistic(u32),
    /// A report that everything up to the highest packet has arrived, by a clock of half the speed.
    /// Its only gaps are so many at the beginning of the session.
    Smooth(u64),
    /// A true report of half of the session's age ago, as if the round trip took as long.
    Late,
    /// The end of the session here, without a word to the other end, and a new one.
    Renew,
}
