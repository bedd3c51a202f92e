//! Messages between the two ends of a chain. The tunnel carries each as it is: sealed, once or not at all, in any order.
//!
//! An IP packet is a message as it is: its first four bits are 4 or 6. All others begin with a byte that says what they are. Messages are
//! wrapped by the boosters that they pass on their way down, and unwrapped in the reverse order on their way up, so they say themselves what was
//! done to them, and a receiver needs no configuration:
//!
//! ```text
//!  0x01 | abilities:32 | heard:8 | rate:64       ABILITIES   which of these the sender of it understands, and how fast it sends (bit/s; 0: not known)
//!  0x02 | id:16 | index:8 | last:8 | bytes       PIECE       of a message that is too long for the link; within FEC, of one that is too long beside its header
//!  0x10 | fec's header | message or symbol       FEC
//!  0x11 | flags:8 | seq:32 | wait:16 | message    ARQ data
//!  0x12 | n:8 | n * (seq:32)                     ARQ         asked for again; a reply
//!  0x13 | count:16 | first:32 | time:32 | packet ACKS        so many acknowledgements, from the first to that of the packet, over a time in us
//!  0x14 | stamp:32 | delay:16 | message          JITTER      when it came from the host, and for how long it is to be delayed
//!  0x15 .. 0x18                                  COMPRESS    see compress
//! ```
//!
//! Replies go back from a receiver to the chain that the messages are from. A message that cannot be read is dropped and counted.

/// What a receiver understands. Until it has said so messages are sent that any understands: IP packets and pieces.
pub const ABILITIES: u8 = 0x01;
/// A piece of a message.
pub const PIECE: u8 = 0x02;
/// Under overcode.
pub const FEC: u8 = 0x10;
/// Numbered, to be asked for again.
pub const ARQ: u8 = 0x11;
/// Asks again.
pub const ARQ_AGAIN: u8 = 0x12;
/// Several acknowledgements in one.
pub const ACKS: u8 = 0x13;
/// With its time.
pub const JITTER: u8 = 0x14;
/// What stands for a packet whose headers are known at the far end.
pub const COMPRESSED: u8 = 0x15;
/// A packet with headers that are to be known from now on.
pub const CONTEXT: u8 = 0x16;
/// A receiver does not know the headers; a reply.
pub const NO_CONTEXT: u8 = 0x17;
/// A receiver has learnt headers; a reply.
pub const CONTEXT_KNOWN: u8 = 0x18;

/// Abilities, as bits.
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
    /// Says which contexts it knows ([`CONTEXT_KNOWN`]).
    pub const CONFIRM: u32 = 1 << 5;
    /// What this version understands.
    pub const ALL: u32 = (1 << 6) - 1;
}

/// Reads big-endian numbers off the front of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*first))
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }
}
