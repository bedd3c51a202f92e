//! What a session is told at its beginning.

use std::time::Duration;

use super::{Outages, Rate};
use crate::{path::PathMemory, rate::min_safe_rate, wire::DATAGRAM_OVERHEAD};

/// How a session behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionConfig {
    /// Whether this side began it: its streams are then the even ones.
    pub initiator: bool,
    /// How fast to send.
    pub rate: Rate,
    /// How fast the way back is, in bits a second, as far as known; reports take half of it at most.
    pub return_rate: Option<u64>,
    /// The round trip time to begin with, before it is measured.
    pub rtt: Duration,
    /// The longest packet to begin with, in bytes of plain text. The path is searched for longer ones
    /// up to `packet_max`.
    pub packet_start: usize,
    /// The longest packet that may be tried, in bytes of plain text.
    pub packet_max: usize,
    /// What a packet costs the link beyond its plain text: seal, UDP, IP, and what the link adds.
    pub overhead: usize,
    /// When to stop sending into silence.
    pub outages: Outages,
    /// How many bytes of a stream may be on their way before the receiver has allowed more; the same
    /// at both ends.
    pub stream_credit: u64,
    /// How many bytes of all streams together may be on their way before the receiver has allowed more; the
    /// same at both ends.
    pub session_credit: u64,
    /// Streams that may be open at a time, of each side.
    pub streams_max: u32,
    /// Whether this side takes packets beside streams.
    pub packets: bool,
    /// Whether the peer does, so that we may send some. Set by the endpoint.
    pub peer_packets: bool,
    /// What an earlier session has learnt of the path; its times are on the clock of `now`.
    pub memory: Option<PathMemory>,
    /// Repair packets per data packet at most, for what is protected by overcode.
    pub overhead_max: f64,
}

/// For a path of which nothing is known, over IPv4 and Ethernet.
impl Default for SessionConfig {
    fn default() -> Self {
        const UDP: usize = 8;
        const IPV4: usize = 20;
        const IPV6: usize = 40;
        let overhead = DATAGRAM_OVERHEAD + UDP + IPV4;
        Self {
            initiator: false,
            rate: Rate::Auto,
            return_rate: None,
            // RFC 9002, section 6.2.2.
            rtt: Duration::from_millis(333),
            // Every path carries 1280 bytes (RFC 8200, section 5).
            packet_start: 1280 - IPV6 - UDP - DATAGRAM_OVERHEAD,
            packet_max: 1500 - overhead,
            overhead,
            outages: Outages::AtOnce,
            stream_credit: 1 << 20,
            session_credit: 1 << 24,
            streams_max: 1000,
            packets: false,
            peer_packets: false,
            memory: None,
            overhead_max: 1.0,
        }
    }
}

/// The time of the longest packet where the rate is low: what is urgent waits for it, bit
/// errors find it, and reports come no sooner than packets.
const PACKET_TIME: Duration = Duration::from_millis(2500);
/// Headers take too much of shorter packets, in bytes of plain text.
const PACKET_MIN: usize = 512;

/// Most that reports and beacons of an end without a stated rate reckon with of the other end's
/// stated one, in bits a second: the way back is seldom slower.
const ASSUMED_RATE_MAX: u64 = 1_000_000;

impl SessionConfig {
    /// Rates in bits a second with which our reports and the peer's reckon; `safe` is what is known
    /// of ours. The peer's may be more than this says, and never less: its pauses would be taken
    /// for outages.
    pub(super) fn report_rates(&self, safe: u64, rtt: Duration) -> [u64; 2] {
        let told = |rate: u64| rate.min(ASSUMED_RATE_MAX);
        let ours = match (self.rate.stated(), self.return_rate) {
            (None, Some(theirs)) => safe.max(told(theirs)),
            _ => safe,
        };
        let stated = self.return_rate.or(self.rate.stated().map(told));
        [ours, stated.unwrap_or_else(|| min_safe_rate(rtt))]
    }

    /// The longest packet that suits a rate in bits a second, in bytes of plain text.
    pub(super) fn longest_packet(&self, rate: u64) -> usize {
        let bytes = (rate as f64 / 8.0 * PACKET_TIME.as_secs_f64()) as usize;
        bytes.saturating_sub(self.overhead).max(PACKET_MIN)
    }
}
