//! FEC over packets of interactive and normal streams, by sliding windows ([`fec::window`]).
//!
//! Protected packets leave at once with a header of seven bytes; repair packets follow. For
//! interactive streams, one repair packet over the last three follows each packet; two delayed ones
//! where losses come in bursts. For normal streams, the repair rate follows the loss that the peer
//! reports, over the last 128 packets. Losses beyond that are retransmitted.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{CodedError, Decoding, Origin};
pub use encode::Encoding;

use crate::class::Class;

/// Overhead of a protected packet, as its repair packet must fit, too: frame type, channel, header
/// of a repair packet, length of the packet.
pub const CODED_OVERHEAD: usize = 2 + 9 + fec::symbol::LENGTH_BYTES;

/// Window of a repair packet of interactive streams, in packets.
const WINDOW_INTERACTIVE: u8 = 3;

/// Window of a repair packet of normal streams, in packets.
const WINDOW_NORMAL: u8 = 128;

/// Encoder for the packets of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// Encoder of interactive streams.
    Interactive = 0,
    /// Encoder of normal streams.
    Normal = 1,
}

impl Channel {
    /// Both channels, the more urgent first.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::Normal];

    /// Returns the channel that protects streams of a class, if any.
    pub fn for_class(class: Class) -> Option<Self> {
        match class {
            Class::Interactive => Some(Self::Interactive),
            Class::Normal => Some(Self::Normal),
            Class::Bulk | Class::DelayTolerant => None,
        }
    }

    /// Returns the channel with this number on the wire.
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
