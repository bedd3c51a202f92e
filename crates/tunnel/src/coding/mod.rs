//! Overcode over packets of interactive and normal streams, by sliding windows ([`fec::window`]).
//!
//! What is protected leaves at once behind a header of seven bytes; repair packets follow. For interactive
//! streams one follows each packet, over the last three, or two where losses come in bursts, when these are over; for normal ones as many as the loss asks
//! for that the peer reports, over the last 128. What is lost beyond that is sent again.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{CodedError, Decoding, Origin};
pub use encode::Encoding;

use crate::class::Class;

/// Bytes that a protected packet has less room, as its repair packet must fit too: frame type,
/// channel, header of a repair packet, length of the packet.
pub const CODED_OVERHEAD: usize = 2 + 9 + fec::symbol::LENGTH_BYTES;

/// Packets that a repair packet of interactive streams is over.
const WINDOW_INTERACTIVE: u8 = 3;

/// Packets that a repair packet of normal streams is over.
const WINDOW_NORMAL: u8 = 128;

/// Which encoder protects a class's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// That of interactive streams.
    Interactive = 0,
    /// That of normal streams.
    Normal = 1,
}

impl Channel {
    /// Both of them, the more urgent first.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::Normal];

    /// The channel that protects streams of a class, if any does.
    pub fn for_class(class: Class) -> Option<Self> {
        match class {
            Class::Interactive => Some(Self::Interactive),
            Class::Normal => Some(Self::Normal),
            Class::Bulk | Class::DelayTolerant => None,
        }
    }

    /// The channel of that number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    fn window(self) -> u8 {
        match self {
            Self::Interactive => WINDOW_INTERACTIVE,
            Self::Normal => WINDOW_NORMAL,
        }
    }
}
