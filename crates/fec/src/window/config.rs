//! What encoder and decoder of windows are made with.

use std::time::Duration;

pub use crate::scheme::ConfigError;
use crate::{overhead::Overhead, scheme::in_range, symbol};

/// The most packets of a window. A repair packet costs a multiplication and addition for each, and
/// in simulation 128 packets did as well as 2,000.
pub const WINDOW_MAX: usize = 255;

/// The longest span of a decoder, in packets.
pub const SPAN_MAX: usize = 1024;

/// The most repair packets that a decoder keeps.
pub const REPAIRS_MAX: usize = 255;

/// What a [`WindowEncoder`](super::WindowEncoder) is made with.
///
/// It takes `window + 22` times the memory of a packet, which is `payload_max + 2` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Over how many data packets a repair packet is, 1 to 255. Default: 128, for streams. For a
    /// message now and then 3, with a repair packet for each.
    pub window: u8,
    /// The longest data packet, in bytes, 1 to 65,535. Default: 1500. A repair packet is up to two
    /// bytes longer.
    pub payload_max: usize,
    /// How many repair packets there are for the data packets. Default: 7 for 100.
    pub overhead: Overhead,
    /// How long a packet may be without any repair packet. Default: 20 ms. Where data is too
    /// sparse for the overcode to bring one by then, one is made out of turn, so that there is more
    /// overcode than was asked for.
    pub hold: Duration,
    /// How much later than it could be each repair packet is sent. Default: 0. In a burst of
    /// losses what follows a packet at once is lost with it; 20 to 45 ms later it lives. At most
    /// 16 repair packets wait; when more are due, the first go sooner.
    pub delay: Duration,
    /// How much later than the one before each further repair packet is sent that comes with the same data packet. Default: 0.
    pub apart: Duration,
    /// The number of the first packet. Default: 0. An encoder that takes the place of another
    /// before the same decoder should begin with a random number: packets would otherwise be taken
    /// for duplicates until the decoder sees that they are none.
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

/// What a [`WindowDecoder`](super::WindowDecoder) is made with.
///
/// It takes `span + repairs + 9` times the memory of a packet, which is `payload_max + 2` bytes, and
/// `repairs + 1` times `span + repairs + 1` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// The longest window that is taken, 1 to 255. Default: 128.
    pub window: u8,
    /// The longest data packet, in bytes, 1 to 65,535. Default: 1500.
    pub payload_max: usize,
    /// How many packets are kept, twice the window to 1024, rounded up to a power of two.
    /// Default: 512. A repair packet is of use as long as all of its window is among them, and
    /// where losses outrun the overcode for a while, chains of windows solve each other much later:
    /// at 5 % of loss and 7 % of overcode four windows lose 0.5 %, two lose 2 %.
    pub span: usize,
    /// How many repair packets are kept at most because they may yet be of use, 1 to 255. Default:
    /// 128. When there are more, the oldest gives way.
    pub repairs: usize,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self::for_window(128)
    }
}

impl DecoderConfig {
    /// What goes with a window: a span of four, and of 64 packets at least for reordering's sake;
    /// and as many repair packets as packets in the window, at least 32.
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
