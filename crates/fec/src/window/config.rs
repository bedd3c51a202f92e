//! Configuration of window encoder and decoder.

use std::time::Duration;

pub use crate::scheme::ConfigError;
use crate::{overhead::Overhead, scheme::in_range, symbol};

/// Maximum packets of a window. A repair packet costs a multiplication and addition for each; in
/// simulation 128 packets did as well as 2,000.
pub const WINDOW_MAX: usize = 255;

/// Maximum span of a decoder, in packets.
pub const SPAN_MAX: usize = 1024;

/// Maximum repair packets that a decoder stores.
pub const REPAIRS_MAX: usize = 255;

/// Configuration of a [`WindowEncoder`](super::WindowEncoder).
///
/// The encoder takes `window + 22` times the memory of a packet, which is `payload_max + 2` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Data packets that a repair packet covers, 1 to 255. Default: 128, for streams. For
    /// occasional messages use 3, with a repair packet for each.
    pub window: u8,
    /// Longest data packet, in bytes, 1 to 65,535. Default: 1500. A repair packet is up to two
    /// bytes longer.
    pub payload_max: usize,
    /// Repair packets for the data packets. Default: 7 for 100.
    pub overhead: Overhead,
    /// Maximum time that a packet stays without any repair packet. Default: 20 ms. Where data is
    /// too sparse to bring a repair packet by then, the encoder makes an extra one, beyond the
    /// overhead.
    pub hold: Duration,
    /// Delay of each repair packet. Default: 0. A repair packet sent at once is lost in the same
    /// burst as its data; 20 to 45 ms later it survives. At most 16 repair packets wait; when more
    /// are due, the first go sooner.
    pub delay: Duration,
    /// Distance in time between repair packets that come with the same data packet. Default: 0.
    pub apart: Duration,
    /// Number of the first packet. Default: 0. An encoder that replaces another one in front of the
    /// same decoder should start with a random number. Otherwise packets would count as duplicates
    /// until the decoder sees that they are not.
    pub first_id: u32,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            window: 128,
            payload_max: 1500,
            overhead: Overhead::of_block(100, 7),
            hold: Duration::from_millis(20),
            delay: Duration::ZERO,
            apart: Duration::ZERO,
            first_id: 0,
        }
    }
}

impl EncoderConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        in_range("window", self.window.into(), 1, WINDOW_MAX)?;
        in_range("payload_max", self.payload_max, 1, symbol::PACKET_MAX)
    }
}

/// Configuration of a [`WindowDecoder`](super::WindowDecoder).
///
/// The decoder takes `span + repairs + 9` times the memory of a packet, which is `payload_max + 2`
/// bytes, and `repairs + 1` times `span + repairs + 1` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Longest window accepted, 1 to 255. Default: 128.
    pub window: u8,
    /// Longest data packet, in bytes, 1 to 65,535. Default: 1500.
    pub payload_max: usize,
    /// Packets stored, twice the window to 1024, rounded up to a power of two. Default: 512. A
    /// repair packet is useful while its whole window is among them. Where losses exceed the repair
    /// rate for a while, chains of windows solve each other much later: at 5 % of loss and 7 % of
    /// overhead four windows lose 0.5 %, two lose 2 %.
    pub span: usize,
    /// Maximum repair packets stored for later use, 1 to 255. Default: 128. When there are more,
    /// the oldest is dropped.
    pub repairs: usize,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self::for_window(128)
    }
}

impl DecoderConfig {
    /// Returns a configuration for a window: a span of four windows, and no less than 64 packets
    /// for reordering. It stores as many repair packets as packets in the window, and no fewer than
    /// 32.
    #[must_use]
    pub fn for_window(window: u8) -> Self {
        Self {
            window,
            payload_max: 1500,
            span: (4 * usize::from(window)).max(64),
            repairs: usize::from(window).max(32),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        in_range("window", self.window.into(), 1, WINDOW_MAX)?;
        in_range("payload_max", self.payload_max, 1, symbol::PACKET_MAX)?;
        in_range("span", self.span, 2 * usize::from(self.window), SPAN_MAX)?;
        in_range("repairs", self.repairs, 1, REPAIRS_MAX)
    }
}
