//! Configuration of a session.

use std::time::Duration;

use super::{Outages, Rate};
use crate::{path::PathMemory, rate::min_safe_rate, wire::DATAGRAM_OVERHEAD};

/// Parameters of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionConfig {
    /// True if the local end began the session: its streams are the even ones.
    pub initiator: bool,
    /// Sending rate.
    pub rate: Rate,
    /// Rate of the return path in bits per second, if known; reports take half of it at most.
    pub return_rate: Option<u64>,
    /// Initial round trip time, before it is measured.
    pub rtt: Duration,
    /// Initial maximum packet, in bytes of plain text. Path MTU discovery probes up to
    /// `packet_max`.
    pub packet_start: usize,
    /// Largest packet to probe, in bytes of plain text.
    pub packet_max: usize,
    /// Bytes per packet on the link beyond its plain text: seal, UDP, IP, and link framing.
    pub overhead: usize,
    /// Outage detection, which decides when to stop sending into silence.
    pub outages: Outages,
    /// Initial credit of each stream in bytes; the same at both ends.
    pub stream_credit: u64,
    /// Initial credit of all streams together in bytes; the same at both ends.
    pub session_credit: u64,
    /// Maximum number of open streams, per side.
    pub streams_max: u32,
    /// True if the local end accepts datagrams (RFC 9221).
    pub packets: bool,
    /// Hosts that the peer's flows do not reach by the local end.
    pub unreached: Unreached,
    /// True if the peer accepts datagrams. Set by the endpoint.
    pub peer_packets: bool,
    /// True if the peer expects the rare beacons of a session at rest. Set by the endpoint.
    pub peer_rests: bool,
    /// Path parameters learnt by an earlier session; its times are on the clock of `now`.
    pub memory: Option<PathMemory>,
    /// Maximum number of repair packets per FEC-protected data packet.
    pub overhead_max: f64,
    /// Packet numbers left out.
    pub skips: SkipConfig,
    /// Memory for segments that wait for acknowledgement, in bytes, some 200 for each. Beyond it
    /// nothing new is sent.
    pub kept_max: usize,
}

/// Families of IP whose hosts an end does not reach, as it has no route to any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreached {
    /// Hosts of IPv4.
    pub v4: bool,
    /// Hosts of IPv6.
    pub v6: bool,
}

/// Packet numbers left out at random: a peer that reports one has not received what it reports (RFC
/// 9000 §21.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipConfig {
    /// One of so many numbers is left out; 0: none.
    pub every: u32,
    /// Seed of the random places, unknown to the peer. An endpoint sets it.
    pub seed: [u8; 32],
}

impl SkipConfig {
    /// Leaves out no number.
    pub const NONE: Self = Self {
        every: 0,
        seed: [0; 32],
    };
}

/// Rare enough that gaps cost nothing.
impl Default for SkipConfig {
    fn default() -> Self {
        Self {
            every: 4096,
            ..Self::NONE
        }
    }
}

/// Suits an unknown path, over IPv4 and Ethernet.
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
            unreached: Unreached::default(),
            peer_packets: false,
            peer_rests: false,
            memory: None,
            overhead_max: 1.0,
            skips: SkipConfig::default(),
            kept_max: KEPT_MAX,
        }
    }
}

/// Suffices for some 400 MB in flight: 5 Gbit/s with a round trip of 600 ms.
const KEPT_MAX: usize = 64 << 20;

/// Maximum transmission time of a packet at low rates: urgent data waits for it, bit errors hit it,
/// and reports come no faster than packets.
const PACKET_TIME: Duration = Duration::from_millis(2500);
/// Minimum packet in bytes of plain text; shorter ones waste too much on headers.
const PACKET_MIN: usize = 512;

/// Maximum assumed return rate in bits per second, for reports and beacons of an end without a
/// stated rate: the return path is seldom slower.
const ASSUMED_RATE_MAX: u64 = 1_000_000;

impl SessionConfig {
    /// Returns the rates in bits per second on which the reports of the local end and of the peer
    /// are based; `safe` is the known local rate. The peer's estimate may exceed this one but not
    /// fall short: its pauses would be taken for outages.
    pub(super) fn report_rates(&self, safe: u64, rtt: Duration) -> [u64; 2] {
        let capped = |rate: u64| rate.min(ASSUMED_RATE_MAX);
        let ours = match (self.rate.stated(), self.return_rate) {
            (None, Some(theirs)) => safe.max(capped(theirs)),
            _ => safe,
        };
        let stated = self.return_rate.or(self.rate.stated().map(capped));
        [ours, stated.unwrap_or_else(|| min_safe_rate(rtt))]
    }

    /// Returns the largest suitable packet at a rate in bits per second, in bytes of plain text.
    pub(super) fn longest_packet(&self, rate: u64) -> usize {
        let bytes = (rate as f64 / 8.0 * PACKET_TIME.as_secs_f64()) as usize;
        bytes.saturating_sub(self.overhead).max(PACKET_MIN)
    }
}
