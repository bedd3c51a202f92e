//! How windows are made.

use std::time::Duration;

use crate::symbol::{LENGTH_BYTES, PACKET_MAX};

/// The most packets of a window. More would gain nothing: with 128, all but what is lost in bursts
/// longer than the overcode of the window is restored, and a repair packet costs a
/// multiplication and addition for each.
pub const WINDOW_MAX: usize = 255;

/// The longest span of a decoder, in packets.
pub const SPAN_MAX: usize = 1024;

/// The most repair packets that a decoder keeps.
pub const REPAIRS_MAX: usize = 255;

/// How a [`WindowEncoder`](super::WindowEncoder) works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    pub(super) window: u8,
    pub(super) packet_max: usize,
    pub(super) hold: Duration,
    pub(super) delay: Duration,
    pub(super) first: u32,
}

impl EncoderConfig {
    /// Repair packets over the last `window` packets of at most `packet_max` bytes each. They are sent
    /// at once, and no packet waits for its first one longer than 25 ms.
    ///
    /// # Panics
    ///
    /// If the window is zero, or packets are longer than a symbol can hold (65,533 bytes).
    #[must_use]
    pub fn new(window: u8, packet_max: usize) -> Self {
        check(window, packet_max);
        Self {
            window,
            packet_max,
            hold: Duration::from_millis(25),
            delay: Duration::ZERO,
            first: 0,
        }
    }

    /// No packet stays without a repair packet longer than `hold`: where data is too sparse for
    /// the overcode to bring one by then, one is made out of turn, and there is more
    /// overcode than was asked for.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Sends each repair packet this much later than it could be. In a burst of losses what
    /// follows a packet at once is lost with it; 20 to 45 ms later it lives. At most
    /// 16 repair packets wait; when more are due, the first go sooner.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The number of the first packet, instead of 0.
    #[must_use]
    pub fn first(mut self, id: u32) -> Self {
        self.first = id;
        self
    }
}

/// What a [`WindowDecoder`](super::WindowDecoder) takes and how much it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    pub(super) window: u8,
    pub(super) packet_max: usize,
    pub(super) span: usize,
    pub(super) repairs: usize,
}

impl DecoderConfig {
    /// Takes windows of at most `window` packets of at most `packet_max` bytes. The span is at
    /// least two windows and 64 packets, so that a repair packet is of use if no more than a
    /// window of packets overtook it, and data if no more than two; and there are as many repair
    /// packets as packets in a window, but at least 16.
    ///
    /// # Panics
    ///
    /// If the window is zero, or packets are longer than a symbol can hold (65,533 bytes).
    #[must_use]
    pub fn new(window: u8, packet_max: usize) -> Self {
        check(window, packet_max);
        Self {
            window,
            packet_max,
            span: (2 * usize::from(window)).next_power_of_two().max(64),
            repairs: usize::from(window).max(16),
        }
    }

    /// Keeps the last `span` packets, or more: the next power of two.
    ///
    /// # Panics
    ///
    /// If it is less than two windows, or more than [`SPAN_MAX`].
    #[must_use]
    pub fn span(mut self, span: usize) -> Self {
        let least = 2 * usize::from(self.window);
        assert!(
            (least..=SPAN_MAX).contains(&span),
            "a span of {span}, not {least} to {SPAN_MAX}"
        );
        self.span = span.next_power_of_two();
        self
    }

    /// Keeps at most so many repair packets.
    ///
    /// # Panics
    ///
    /// If that is none, or more than [`REPAIRS_MAX`].
    #[must_use]
    pub fn repairs(mut self, repairs: usize) -> Self {
        assert!(
            (1..=REPAIRS_MAX).contains(&repairs),
            "{repairs} repair packets, not 1 to {REPAIRS_MAX}"
        );
        self.repairs = repairs;
        self
    }

    /// How far ahead the span may move at once: the newest window stays within it.
    pub(super) fn margin(&self) -> u32 {
        (self.span - usize::from(self.window)) as u32
    }
}

fn check(window: u8, packet_max: usize) {
    assert!(window > 0, "a window of at least one packet");
    let max = PACKET_MAX - LENGTH_BYTES;
    assert!(
        packet_max <= max,
        "packets of {packet_max} bytes, of at most {max}"
    );
}
