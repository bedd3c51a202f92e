//! How much of a flow there is room for, and what of it may wait.

use std::time::Duration;

use pep_core::{
    chunks,
    config::{Config, Peer, TUNNEL_EXTENT_MIN},
};

use super::{RTT_UNKNOWN, is_dedicated};
use crate::{credit, table::Sizes};

/// Buffer of each direction of a flow where nothing is known of the link, and its maximum; bytes.
const EXTENT_UNKNOWN: u64 = 4 << 20;
const EXTENT_MAX: u64 = 16 << 20;
/// And what it may where there is memory for it: how fast the peer's way to us is only its own end states.
const EXTENT_AMPLE: u64 = 8 << 20;
/// There is if so many flows of each peer that nobody reads are all that peers may have.
const AMPLE_FLOWS: u64 = 64;

/// Bytes of memory that each direction of a flow with any peer has room for.
pub fn extent(config: &Config) -> u64 {
    let peers = config.peers.iter().enumerate();
    let extents = peers.map(|(index, peer)| extent_of(config, index, peer));
    extents.max().unwrap_or(TUNNEL_EXTENT_MIN)
}

/// Of a flow with that peer, of memory that is used when it is needed.
pub(super) fn extent_of(config: &Config, index: usize, peer: &Peer) -> u64 {
    let (memory, peers) = (config.limits.memory.bytes(), config.peers.len() as u64);
    let part = memory / credit::ALL / AMPLE_FLOWS / peers.max(1);
    let part = part.clamp(TUNNEL_EXTENT_MIN, EXTENT_AMPLE);
    let ample = 1 << part.ilog2();
    let needed = needed(config, index, peer).next_power_of_two();
    needed.max(ample).max(config.limits.ring_max.bytes())
}

/// What a flow with that peer needs, as far as known: eight times what the link has in flight, as the window of a session. Bytes that were
/// lost are on their way again while those behind them wait, here and at the peer: where 8 % are lost, some of each round trip are
/// lost thrice. On a link that is ours alone it is as much as there may be: while the way back is down, nothing acknowledges what arrives.
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

/// What a flow takes from its leg ahead of what is sent: what the link takes in so long, but enough for the turns that flows and
/// datagrams take, and no great part of what is in flight.
const AHEAD: Duration = Duration::from_millis(20);
const UNSENT_MIN: u64 = 128 << 10;
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

/// What the peer may have on its way before it is known what it needs.
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
    fn flows_may_hold_eight_times_what_is_in_flight_and_more_where_nobody_else_is() {
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
        assert_eq!(unsent("rate = \"10Mbit/s\"\nrtt = \"600ms\""), 128 << 10);
        assert_eq!(unsent("rate = \"100Mbit/s\"\nrtt = \"100ms\""), 250_000);
        assert_eq!(unsent("rate = \"10Gbit/s\"\nrtt = \"1ms\""), 512 << 10);
        assert_eq!(unsent("rate = \"1Gbit/s\"\nrtt = \"600ms\""), 2_500_000);
        assert_eq!(unsent(""), 512 << 10);
    }
}
