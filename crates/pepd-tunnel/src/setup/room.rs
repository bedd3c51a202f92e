//! Buffer sizes of flows.

use std::time::Duration;

use pep_core::{
    chunks,
    config::{Config, Peer, TUNNEL_EXTENT_MIN},
};

use super::{RTT_UNKNOWN, is_dedicated};
use crate::{credit, table::Sizes};

/// Buffer per direction of a flow if nothing is known of the link, and its maximum; bytes.
const EXTENT_UNKNOWN: u64 = 4 << 20;
const EXTENT_MAX: u64 = 16 << 20;
/// Maximum with ample memory: only the peer knows the rate of its path to the local end.
const EXTENT_AMPLE: u64 = 8 << 20;
/// Memory is ample if this many unread flows of each peer exhaust the credit of peers.
const AMPLE_FLOWS: u64 = 64;

/// Returns the bytes of memory that each direction of a flow has room for, with any peer.
pub fn extent(config: &Config) -> u64 {
    let peers = config.peers.iter().enumerate();
    let extents = peers.map(|(index, peer)| extent_of(config, index, peer));
    extents.max().unwrap_or(TUNNEL_EXTENT_MIN)
}

/// Returns the room of a flow with that peer; memory is used only when needed.
pub(super) fn extent_of(config: &Config, index: usize, peer: &Peer) -> u64 {
    let (memory, peers) = (config.limits.memory.bytes(), config.peers.len() as u64);
    let part = memory / credit::ALL / AMPLE_FLOWS / peers.max(1);
    let part = part.clamp(TUNNEL_EXTENT_MIN, EXTENT_AMPLE);
    let ample = 1 << part.ilog2();
    let needed = needed(config, index, peer).next_power_of_two();
    needed.max(ample).max(config.limits.ring_max.bytes())
}

/// Returns the estimated need of a flow with that peer: eight times the bandwidth-delay product, as
/// the window of a session. Bytes wait, here and at the peer, for retransmissions of earlier ones.
/// At 20 % loss some bytes of each round trip are lost thrice. On a dedicated link the need is the
/// maximum: while the return path is down, nothing acknowledges received bytes.
fn needed(config: &Config, index: usize, peer: &Peer) -> u64 {
    let rate = peer
        .rate
        .map(|up| peer.rate_down.map_or(up, |down| up.max(down)));
    let needed = match (rate, peer.rtt) {
        (Some(_), _) if is_dedicated(config, index, peer) => EXTENT_MAX,
        (Some(rate), Some(rtt)) => 8 * rate.bandwidth_delay_product(rtt),
        _ => EXTENT_UNKNOWN,
    };
    needed.clamp(TUNNEL_EXTENT_MIN, EXTENT_MAX)
}

/// Time of bytes at the link's rate that a flow reads from its leg ahead of sending. The bounds
/// cover the turns of flows and datagrams, and keep the bytes well below those in flight.
const AHEAD: Duration = Duration::from_millis(20);
const UNSENT_MIN: u64 = 64 << 10;
const UNSENT_TURNS: u64 = 512 << 10;

pub(super) fn sizes(config: &Config) -> Vec<Sizes> {
    let peers = config.peers.iter().enumerate();
    let sizes = peers.map(|(index, peer)| Sizes {
        first: first(config, index, peer),
        unsent: unsent(peer),
        hold: config.custody.hold,
    });
    sizes.collect()
}

/// Returns the bytes that the peer may have in flight before its need is known.
pub(super) fn first(config: &Config, index: usize, peer: &Peer) -> u64 {
    chunks::window(needed(config, index, peer).next_power_of_two())
}

fn unsent(peer: &Peer) -> u64 {
    let Some(rate) = peer.rate else {
        return UNSENT_TURNS;
    };
    let rtt = peer.rtt.unwrap_or(RTT_UNKNOWN);
    let most = rate.bandwidth_delay_product(rtt / 4).max(UNSENT_TURNS);
    let ahead = rate.bandwidth_delay_product(AHEAD);
    ahead.clamp(UNSENT_MIN, most)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::config, *};

    #[test]
    fn flows_may_hold_eight_times_the_bytes_in_flight_and_more_on_a_dedicated_link() {
        let extent = |peer| extent(&config(peer, ""));
        assert_eq!(extent("rate = \"10kbit/s\"\nrtt = \"600ms\""), 8 << 20);
        assert_eq!(extent("rate = \"10Mbit/s\"\nrtt = \"600ms\""), 8 << 20);
        assert_eq!(extent("rate = \"20Mbit/s\"\nrtt = \"600ms\""), 16 << 20);
        assert_eq!(extent("rate = \"10Gbit/s\"\nrtt = \"600ms\""), 16 << 20);
        let down = "rate = \"2Mbit/s\"\nrate_down = \"20Mbit/s\"\nrtt = \"600ms\"";
        assert_eq!(extent(down), 16 << 20);
        assert_eq!(extent(""), 8 << 20);
        let dedicated = "rate = \"10kbit/s\"\nrtt = \"600ms\"\ndedicated = true";
        assert_eq!(extent(dedicated), 16 << 20);
    }

    #[test]
    fn what_little_memory_has_is_for_many_flows() {
        let sizes = |memory| {
            let limits = format!("[limits]\nflows = 100\nmemory = \"{memory}\"");
            let config = config("rate = \"10kbit/s\"\nrtt = \"600ms\"", &limits);
            (extent(&config), sizes(&config)[0].first)
        };
        let first = chunks::window(1 << 20);
        assert_eq!(sizes("1GiB"), (8 << 20, first));
        assert_eq!(sizes("300MiB"), (2 << 20, first));
        assert_eq!(sizes("16MiB"), (1 << 20, first));
    }

    #[test]
    fn little_waits_to_be_sent() {
        let unsent = |peer| unsent(&config(peer, "").peers[0]);
        assert_eq!(unsent("rate = \"10Mbit/s\"\nrtt = \"600ms\""), 64 << 10);
        assert_eq!(unsent("rate = \"100Mbit/s\"\nrtt = \"100ms\""), 250_000);
        assert_eq!(unsent("rate = \"10Gbit/s\"\nrtt = \"1ms\""), 512 << 10);
        assert_eq!(unsent("rate = \"1Gbit/s\"\nrtt = \"600ms\""), 2_500_000);
        assert_eq!(unsent(""), 512 << 10);
    }
}
