//! Messages between the two ends of a chain. The tunnel carries each unchanged and encrypted, once
//! or not at all, in any order.
//!
//! An IP packet is a message by itself: its first four bits are 4 or 6. All others begin with a
//! byte for their kind. On their way down, messages are wrapped by the boosters that they pass, and
//! unwrapped in reverse order on their way up. So messages describe themselves, and a receiver
//! needs no configuration:
//!
//! ```text
//!  0x01 | abilities:32 | heard:8 | rate:64       ABILITIES   known kinds, and the sending rate
//!                                                            (bit/s; 0: not known)
//!  0x02 | id:16 | index:8 | last:8 | bytes       PIECE       of a message too long for the link;
//!                                                            within FEC, too long with its header
//!  0x03 | n * packet                           JOINED      IP packets of one UDP flow, each as
//!                                                            long as its header states
//!  0x10 | fec's header | message or symbol       FEC
//!  0x11 | flags:8 | seq:32 | wait:16 | message   ARQ data
//!  0x12 | n:8 | n * (seq:32)                     ARQ         request for retransmission; a reply
//!  0x13 | count:16 | first:32 | time:32 | packet ACKS        this many acknowledgements, from the
//!                                                            first to the packet's, over time us
//!  0x14 | stamp:32 | delay:16 | message          JITTER      arrival from the host, and its delay
//!  0x15 .. 0x18                                  COMPRESS    see compress
//! ```
//!
//! Replies go back from a receiver to the chain that sends the messages. A message that cannot be
//! read is dropped and counted.

/// Abilities of a receiver. Until it has announced them, only messages that any receiver knows are
/// sent: IP packets and pieces.
pub const ABILITIES: u8 = 0x01;
/// Piece of a message.
pub const PIECE: u8 = 0x02;
/// Several packets.
pub const JOINED: u8 = 0x03;
/// Message protected by FEC.
pub const FEC: u8 = 0x10;
/// Numbered message, which can be requested again.
pub const ARQ: u8 = 0x11;
/// Request for retransmissions.
pub const ARQ_AGAIN: u8 = 0x12;
/// Several acknowledgements in one.
pub const ACKS: u8 = 0x13;
/// Packet with its arrival time.
pub const JITTER: u8 = 0x14;
/// Packet whose headers are known at the far end.
pub const COMPRESSED: u8 = 0x15;
/// Packet whose headers are to be stored.
pub const CONTEXT: u8 = 0x16;
/// Reply of a receiver that does not know the headers.
pub const NO_CONTEXT: u8 = 0x17;
/// Reply of a receiver that has stored headers.
pub const CONTEXT_KNOWN: u8 = 0x18;

/// Abilities, as a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities;

impl Abilities {
    /// Understands [`FEC`].
    pub const FEC: u32 = 1;
    /// Understands [`ARQ`].
    pub const ARQ: u32 = 1 << 1;
    /// Understands [`ACKS`].
    pub const ACKS: u32 = 1 << 2;
    /// Understands [`JITTER`].
    pub const JITTER: u32 = 1 << 3;
    /// Understands [`CONTEXT`] and [`COMPRESSED`].
    pub const COMPRESS: u32 = 1 << 4;
    /// Confirms known contexts ([`CONTEXT_KNOWN`]).
    pub const CONFIRM: u32 = 1 << 5;
    /// Understands [`JOINED`].
    pub const JOINED: u32 = 1 << 6;
    /// All abilities of this version.
    pub const ALL: u32 = (1 << 7) - 1;
}

/// Reads big-endian numbers off the front of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads one byte.
    pub fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*first))
    }

    /// Reads `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }
}
