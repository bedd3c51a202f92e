//! The threads of the peers.

use std::cmp::Reverse;

use pep_core::config::Config;
use units::Rate;

use super::has_packets;
use crate::shards::Member;

/// Place of a peer among the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Place {
    pub(in super::super) thread: usize,
    /// Number of the peer within the thread.
    pub(in super::super) index: usize,
}

/// Returns the places of all peers, in the order of the configuration. Each peer, from the highest
/// stated rate to the lowest, gets the thread with the lowest sum of rates. But those of sites in
/// mode `packet` all get the first thread, as multicast packets of one may be for another.
pub(super) fn places(config: &Config, threads: usize) -> Vec<Place> {
    let stated = config.peers.iter().map(|peer| peer.rate);
    let stated: Vec<_> = stated.map(|rate| rate.map(Rate::bits_per_second)).collect();
    let known = stated.iter().flatten();
    // Peers without a stated rate count as average ones.
    let average = known.clone().sum::<u64>() / known.count().max(1) as u64;
    let rate = |peer: usize| stated[peer].unwrap_or(average).max(1);
    let mut order: Vec<_> = (0..stated.len()).collect();
    order.sort_by_cached_key(|peer| (!has_packets(config, *peer), Reverse(rate(*peer))));
    let room = Member::peers_max(threads);
    let (mut rates, mut peers) = (vec![0; threads], vec![0; threads]);
    let mut of = vec![0; stated.len()];
    for peer in order {
        let free = (0..threads).filter(|thread| peers[*thread] < room);
        let lowest = free.min_by_key(|thread| rates[*thread]);
        let lowest = lowest.filter(|_| !has_packets(config, peer));
        of[peer] = lowest.unwrap_or_default();
        rates[of[peer]] += rate(peer);
        peers[of[peer]] += 1;
    }
    let mut next = vec![0; threads];
    let of = of.into_iter().map(|thread| {
        let index = next[thread];
        next[thread] += 1;
        Place { thread, index }
    });
    of.collect()
}

/// Returns the peers of a thread, in their order.
pub(super) fn of_thread(places: &[Place], member: &Member) -> impl Iterator<Item = usize> {
    let thread = usize::from(member.shard().number());
    let peers = places.iter().enumerate();
    peers.filter_map(move |(peer, place)| (place.thread == thread).then_some(peer))
}

#[cfg(test)]
mod tests {
    use pep_core::key::PublicKey;

    use super::*;

    /// Returns the threads of peers with these keys and the text of their sites.
    fn threads(peers: &[&str], sites: &str, threads: usize) -> Vec<usize> {
        let peers = peers.iter().zip(1_u64..).map(|(keys, number)| {
            let mut key = PublicKey([1; 32]);
            key.0[..8].copy_from_slice(&number.to_be_bytes());
            format!("[peer.p{number}]\npublic_key = \"{key}\"\n{keys}\n")
        });
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n{}{sites}",
            peers.collect::<String>()
        );
        let config = pep_core::config::parse(&text).expect("valid");
        let places = places(&config, threads);
        for (thread, member) in Member::all(threads).into_iter().enumerate() {
            let of_thread = of_thread(&places, &member.0);
            for (index, peer) in of_thread.enumerate() {
                assert_eq!(places[peer], Place { thread, index });
            }
        }
        places.iter().map(|place| place.thread).collect()
    }

    #[test]
    fn every_thread_gets_about_the_same_rate() {
        let rates = ["10", "2", "2", "6"].map(|rate| format!("rate = \"{rate}Mbit/s\""));
        let rates = rates.each_ref().map(String::as_str);
        assert_eq!(threads(&rates, "", 2), [0, 1, 1, 1]);
        assert_eq!(threads(&rates, "", 1), [0; 4]);
        assert_eq!(threads(&rates, "", 4), [0, 2, 3, 1]);
    }

    #[test]
    fn peers_without_a_rate_are_spread_as_well() {
        assert_eq!(threads(&[""; 4], "", 2), [0, 1, 0, 1]);
        let mixed = ["rate = \"1Gbit/s\"", "", "", ""];
        assert_eq!(threads(&mixed, "", 2), [0, 1, 0, 1]);
    }

    #[test]
    fn no_thread_gets_more_peers_than_it_may_have() {
        let (fast, slow) = ("rate = \"10Gbit/s\"", "rate = \"1Mbit/s\"");
        let peers = [vec![fast; 15], vec![slow; Member::peers_max(16) + 1]].concat();
        let threads = threads(&peers, "", 16);
        let last = threads.iter().filter(|thread| **thread == 15);
        assert_eq!(last.count(), Member::peers_max(16));
    }

    #[test]
    fn peers_with_packets_share_the_first_thread() {
        let site = |name, peer| {
            format!(
                "[[site]]\nname = \"{name}\"\nmode = \"packet\"\npeer = \"{peer}\"\n\
                 match = {{ protocol = \"udp\", dst = [\"10.{name}.0.0/16\"] }}\n"
            )
        };
        let sites = site("1", "p2") + &site("2", "p3");
        assert_eq!(threads(&[""; 4], &sites, 2), [1, 0, 0, 1]);
    }
}
