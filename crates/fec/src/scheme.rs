//! What block and sliding window codes have in common: an encoder on one side of the link, a
//! decoder on the other, as state machines.

use std::time::Duration;

use crate::{overhead::Overhead, wire::Header};

/// Takes data packets, gives repair packets.
///
/// A data packet is sent by the caller at once and unchanged, behind the header that
/// [`handle_data`](Self::handle_data) returns; the encoder only keeps a copy. After every call
/// that takes input, [`poll_repair`](Self::poll_repair) until it returns `None`, and ask
/// [`poll_timeout`](Self::poll_timeout) when to call [`handle_timeout`](Self::handle_timeout).
///
/// `now` is the time since any moment that is the same for all calls.
pub trait Encoder {
    /// Takes the data packet that is sent now, and returns the header to send in front of it.
    ///
    /// # Errors
    ///
    /// If the packet is longer than the encoder was made for.
    fn handle_data(&mut self, packet: &[u8], now: Duration) -> Result<Header, TooLong>;

    /// Says that no further data is waiting to be sent: what is not yet protected becomes so.
    fn handle_drained(&mut self, now: Duration);

    /// Says that time has passed. Harmless when nothing is due.
    fn handle_timeout(&mut self, now: Duration);

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    fn poll_timeout(&self) -> Option<Duration>;

    /// The next repair packet that is due: its header and its symbol.
    fn poll_repair(&mut self) -> Option<(Header, &[u8])>;

    /// How much overcode is sent from now on.
    fn set_overhead(&mut self, overhead: Overhead);
}

/// A data packet that an encoder cannot take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet of {len} bytes, where the encoder takes {max} at most")]
pub struct TooLong {
    /// The packet's length, in bytes.
    pub len: usize,
    /// The longest packet that the encoder takes, in bytes.
    pub max: usize,
}

/// Takes packets in any order, gives the data that was lost.
///
/// A data packet is passed on by the caller at once, unless it turns out to be a duplicate; the
/// decoder only keeps a copy. After every [`handle`](Self::handle),
/// [`poll_recovered`](Self::poll_recovered) until it returns `None`.
pub trait Decoder {
    /// Takes a packet that has arrived.
    ///
    /// # Errors
    ///
    /// If the packet makes no sense beside the others; it is then not kept and should be dropped.
    fn handle(&mut self, header: Header, payload: &[u8]) -> Result<Arrival, Refused>;

    /// The next data packet that could be restored, with the header it had when it was sent.
    fn poll_recovered(&mut self) -> Option<(Header, &[u8])>;
}

/// What a packet that has arrived is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// New data: to be passed on.
    Data,
    /// Data that has been passed on before, or restored: to be dropped.
    Duplicate,
    /// Data of so long ago, or so far ahead, that nobody knows whether it has been passed on; or
    /// other data than that which had its number before.
    /// Whoever can tell should drop a duplicate; otherwise to be passed on, as a network may
    /// deliver twice.
    Late,
    /// A repair packet, kept or of no use any more. There is nothing to pass on.
    Repair,
}

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The header is that of the other scheme.
    #[error("a packet of another scheme")]
    Scheme,
    /// The payload is longer than the decoder was made for, or a symbol shorter than a length.
    #[error("a payload of {0} bytes")]
    Length(usize),
    /// It contradicts what other packets of the same block or window say.
    #[error("{field} {value} contradicts earlier packets")]
    Contradiction {
        /// The field's name, as in [`crate::wire`].
        field: &'static str,
        /// What it says.
        value: u32,
    },
    /// More than the decoder was made for.
    #[error("{field} {value} is more than the {max} that the decoder takes")]
    TooMany {
        /// The field's name, as in [`crate::wire`].
        field: &'static str,
        /// What it says.
        value: u32,
        /// The most that is taken.
        max: u32,
    },
}

/// A field of an encoder's or decoder's configuration is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, where {min} to {max} is possible")]
pub struct ConfigError {
    /// The field's name.
    pub field: &'static str,
    /// What it says.
    pub value: usize,
    /// The least it may be.
    pub min: usize,
    /// The most it may be.
    pub max: usize,
}

/// Whether a field of a configuration is in range.
pub(crate) fn in_range(
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError {
        field,
        value,
        min,
        max,
    })
}
