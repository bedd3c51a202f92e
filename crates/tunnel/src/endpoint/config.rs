//! What an endpoint and its peers are told at their beginning.

use std::{fmt, net::SocketAddr, time::Duration};

use super::Carriers;
use crate::{crypto::Key, session::SessionConfig};

/// One end of tunnels.
pub struct EndpointConfig {
    /// Our private key ([`crate::crypto::public_key`] gives what the peers need).
    pub private_key: Key,
    /// Where all randomness comes from. From the system's generator, and new at each start: with
    /// the same seed as before, old ephemeral keys would come again.
    pub seed: Key,
    /// What it does in a second at most, and when it looks for new keys.
    pub limits: Limits,
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("EndpointConfig");
        shown.field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The other end of a tunnel.
#[derive(Clone)]
pub struct PeerConfig {
    /// Who it is.
    pub public_key: Key,
    /// What only the two ends know, besides their private keys; zeros if there is nothing.
    pub psk: Key,
    /// Addresses at which it may be, if it can be called; else it calls us. The first of these is
    /// tried first, and the other family second (RFC 8305, section 4); those beyond
    /// [`ADDRESSES`](super::ADDRESSES) are not tried.
    pub addresses: Vec<SocketAddr>,
    /// Where an endpoint before this one last heard it by UDP, if that is not long ago: there it is
    /// called, too, so that it need not find out by silence that there is a new one here.
    pub last: Option<SocketAddr>,
    /// By what it is called, and may call.
    pub carriers: Carriers,
    /// How sessions with it behave. `initiator` is set by the endpoint.
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

/// Bounds and intervals. The defaults are what docs/protocol.md names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Initiations answered in a second without a cookie, and as many at once. 20.
    pub initiations_open: u32,
    /// Initiations with a cookie answered in a second, and as many at once. Each costs about 0.3
    /// ms. 100.
    pub initiations: u32,
    /// Of these, from one address (IPv6: from one /64). 5.
    pub initiations_per_source: u32,
    /// Responses looked at in a second, and as many at once. 100.
    pub responses: u32,
    /// New keys after so many packets in either direction. 2^23 (RFC 9001, section 6.6).
    pub rekey_packets: u64,
    /// New keys after so long. Ten minutes.
    pub rekey_after: Duration,
    /// Between two initiations without an answer, give or take a fifth. A second.
    pub retry: Duration,
    /// Time between calls to two addresses of a peer, at least; a round trip where that is longer,
    /// but not more than `retry`. 250 ms (RFC 8305, section 8).
    pub stagger: Duration,
    /// An initiation is sent when nothing has come from the peer for so long. Three seconds.
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
