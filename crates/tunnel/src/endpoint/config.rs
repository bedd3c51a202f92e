//! Configuration of an endpoint and its peers.

use std::{fmt, net::SocketAddr, time::Duration};

use zeroize::Zeroize as _;

use super::{Carriers, Counters};
use crate::{crypto::Key, session::SessionConfig};

/// Configuration of an endpoint.
pub struct EndpointConfig {
    /// Private key of the endpoint; [`crate::crypto::public_key`] derives the public key for the
    /// peers.
    pub private_key: Key,
    /// Seed of all randomness. Take it from the system's generator at each start: a reused seed
    /// would repeat ephemeral keys.
    pub seed: Key,
    /// Rate limits, and rekeying intervals.
    pub limits: Limits,
}

impl Drop for EndpointConfig {
    fn drop(&mut self) {
        self.private_key.zeroize();
        self.seed.zeroize();
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("EndpointConfig");
        shown.field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Configuration of a peer.
#[derive(Clone)]
pub struct PeerConfig {
    /// Public key of the peer.
    pub public_key: Key,
    /// Pre-shared key; zeros for none.
    pub psk: Key,
    /// Addresses at which the peer is called; without any, the peer calls. The first one is tried
    /// first, and the other family second (RFC 8305, section 4). Addresses beyond
    /// [`ADDRESSES`](super::ADDRESSES) are not tried.
    pub addresses: Vec<SocketAddr>,
    /// Remote at which a previous endpoint recently heard the peer by UDP. The peer is called
    /// there, too, so that it learns of the restart without waiting for silence.
    pub last: Option<SocketAddr>,
    /// Carriers permitted for calls in both directions.
    pub carriers: Carriers,
    /// Counters of initiations of a previous endpoint. Raise `sent` by more than may have been sent
    /// since it was stored. Too low a value costs a round trip.
    pub counters: Counters,
    /// Session parameters. The endpoint sets `initiator`.
    pub session: SessionConfig,
}

impl fmt::Debug for PeerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("PeerConfig");
        shown.field("addresses", &self.addresses);
        shown.field("last", &self.last);
        shown.field("carriers", &self.carriers);
        shown.field("session", &self.session);
        shown.finish_non_exhaustive()
    }
}

/// Limits and intervals. The defaults are those of docs/protocol.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Initiations answered per second without a cookie, and burst. Default: 20.
    pub initiations_open: u32,
    /// Initiations with a cookie, or by TCP, answered per second, and burst. Each costs about 0.3
    /// ms. Two fifths are kept for [addresses of peers](super::Endpoint::expect_from), three tenths
    /// for new sources; the rest is shared equally. Default: 100.
    pub initiations: u32,
    /// Maximum of these per address (IPv6: per /64), if the share is larger. Default: 5.
    pub initiations_per_source: u32,
    /// Responses processed per second, and burst. Default: 100.
    pub responses: u32,
    /// Packets in either direction after which keys are renewed. Default: 2^23 (RFC 9001, section
    /// 6.6).
    pub rekey_packets: u64,
    /// Age at which keys are renewed. Default: ten minutes.
    pub rekey_after: Duration,
    /// Interval between unanswered initiations, varied by a fifth. Default: one second.
    pub retry: Duration,
    /// Minimum time between calls to two addresses of a peer; a round trip where that is longer,
    /// but at most `retry`. Default: 250 ms (RFC 8305, section 8).
    pub stagger: Duration,
    /// Time without packets from the peer after which an initiation is sent. Default: three
    /// seconds.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            initiations_open: 20,
            initiations: 100,
            initiations_per_source: 5,
            responses: 100,
            rekey_packets: 1 << 23,
            rekey_after: Duration::from_secs(600),
            retry: Duration::from_secs(1),
            stagger: Duration::from_millis(250),
            silence: Duration::from_secs(3),
        }
    }
}
