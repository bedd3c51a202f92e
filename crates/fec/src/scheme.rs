//! Common interface of block and sliding window codes: an encoder on one side of the link, a
//! decoder on the other, as state machines.

use std::time::Duration;

use crate::{overhead::Overhead, wire::Header};

/// Encoder: takes data packets, gives repair packets.
///
/// The caller sends a data packet at once and unchanged, behind the header that
/// [`handle_data`](Self::handle_data) returns; the encoder only stores a copy. After every call
/// with input, the caller calls [`poll_repair`](Self::poll_repair) until it returns `None`.
/// [`poll_timeout`](Self::poll_timeout) gives the time of the next
/// [`handle_timeout`](Self::handle_timeout).
///
/// `now` is the time since a fixed arbitrary moment.
pub trait Encoder {
    /// Takes the data packet that is sent now, and returns the header to send in front of it.
    ///
    /// # Errors
    ///
    /// If the packet is longer than the encoder's maximum.
    fn handle_data(&mut self, packet: &[u8], now: Duration) -> Result<Header, TooLong>;

    /// Handles an empty send queue: protects the data that is not protected yet.
    fn handle_drained(&mut self, now: Duration);

    /// Handles elapsed time. Harmless when nothing is due.
    fn handle_timeout(&mut self, now: Duration);

    /// Time of the next [`handle_timeout`](Self::handle_timeout).
    fn poll_timeout(&self) -> Option<Duration>;

    /// Returns the header and symbol of the next repair packet that is due.
    fn poll_repair(&mut self) -> Option<(Header, &[u8])>;

    /// Sets the FEC overhead from now on.
    fn set_overhead(&mut self, overhead: Overhead);
}

/// Error for a data packet that is too long for an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packet of {len} bytes exceeds the encoder's maximum of {max}")]
pub struct TooLong {
    /// Length of the packet, in bytes.
    pub len: usize,
    /// Maximum length, in bytes.
    pub max: usize,
}

/// Decoder: takes packets in any order, gives lost data.
///
/// The caller passes a data packet on at once, unless it is a duplicate; the decoder only stores a
/// copy. After every [`handle`](Self::handle), the caller calls
/// [`poll_recovered`](Self::poll_recovered) until it returns `None`.
pub trait Decoder {
    /// Takes a packet that has arrived.
    ///
    /// # Errors
    ///
    /// If the packet contradicts the others; it is then not stored, and the caller should drop it.
    fn handle(&mut self, header: Header, payload: &[u8]) -> Result<Arrival, Refused>;

    /// Returns the next restored data packet, with its original header.
    fn poll_recovered(&mut self) -> Option<(Header, &[u8])>;
}

/// Use of a packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// New data, to be passed on.
    Data,
    /// Data that was passed on before, or restored; to be dropped.
    Duplicate,
    /// Data so old, or so far ahead, that the decoder cannot detect a duplicate; or different data
    /// with a number used before. A caller that can should drop duplicates. Otherwise to be passed
    /// on, as a network may deliver twice.
    Late,
    /// A repair packet, stored or useless. Nothing to pass on.
    Repair,
}

/// Reason why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Header of the other scheme.
    #[error("a packet of another scheme")]
    Scheme,
    /// Payload longer than the decoder's maximum, or a symbol shorter than a length.
    #[error("a payload of {0} bytes")]
    Length(usize),
    /// Contradiction to other packets of the same block or window.
    #[error("{field} {value} contradicts earlier packets")]
    Contradiction {
        /// Name of the field, as in [`crate::wire`].
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
    /// Above the decoder's maximum.
    #[error("{field} {value} exceeds the decoder's maximum of {max}")]
    TooMany {
        /// Name of the field, as in [`crate::wire`].
        field: &'static str,
        /// Value of the field.
        value: u32,
        /// Maximum value.
        max: u32,
    },
}

/// A field of an encoder's or decoder's configuration is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}; accepted: {min} to {max}")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// Value of the field.
    pub value: usize,
    /// Minimum value.
    pub min: usize,
    /// Maximum value.
    pub max: usize,
}

/// Checks that a field of a configuration is in range.
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
