//! Choice of the unauthenticated connection that makes room for a new one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tunnel::endpoint::{PeerId, block_of, subnet_of};

/// Maximum of strangers, in total and per address (IPv6: per /64).
pub(super) const STRANGERS_MAX: usize = 256;
pub(super) const STRANGERS_PER_ADDRESS: usize = 16;
/// Places of these for connections that are probably a peer's.
const LIKELY_MAX: usize = STRANGERS_MAX / 2;

/// An unauthenticated connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stranger {
    /// Remote address.
    pub(super) at: SocketAddr,
    /// Time of the opening, and number of the connection.
    pub(super) since: (Duration, u64),
    /// Peer whose initiation came by it and was offered keys.
    pub(super) offered: Option<PeerId>,
}

/// Holder of connections, which are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Peer(PeerId),
    /// An IPv4 address or IPv6 /48.
    Block(IpAddr),
}

impl Stranger {
    fn holder(&self) -> Holder {
        match self.offered {
            Some(peer) => Holder::Peer(peer),
            None => Holder::Block(block_of(self.at.ip())),
        }
    }

    fn is_likely(&self, expected: &BTreeSet<IpAddr>) -> bool {
        self.offered.is_some() || expected.contains(&subnet_of(self.at.ip()))
    }
}

/// Returns the stranger that makes room for a connection from `from`, if one must. `expected` are
/// the subnets where peers were heard.
///
/// Beyond the limit of a subnet, that is the oldest one in it. Beyond the limit of all, it is the
/// oldest of the holder with most connections; those that are probably a peer's have their own
/// places.
pub(super) fn displaced(
    list: &[Stranger],
    expected: &BTreeSet<IpAddr>,
    from: IpAddr,
) -> Option<SocketAddr> {
    let subnet = subnet_of(from);
    let alike = list
        .iter()
        .filter(|stranger| subnet_of(stranger.at.ip()) == subnet);
    if alike.clone().count() >= STRANGERS_PER_ADDRESS {
        return oldest(alike);
    }
    if list.len() < STRANGERS_MAX {
        return None;
    }
    let (likely, others): (Vec<&Stranger>, Vec<&Stranger>) = list
        .iter()
        .partition(|stranger| stranger.is_likely(expected));
    let pool = if likely.len() > LIKELY_MAX || others.is_empty() {
        likely
    } else {
        others
    };
    let mut held = BTreeMap::from([(Holder::Block(block_of(from)), 1)]);
    for stranger in &pool {
        *held.entry(stranger.holder()).or_insert(0) += 1;
    }
    let count = |stranger: &Stranger| held.get(&stranger.holder()).copied().unwrap_or(0);
    let most = pool.iter().map(|stranger| count(stranger)).max()?;
    oldest(pool.into_iter().filter(|stranger| count(stranger) == most))
}

fn oldest<'a>(strangers: impl Iterator<Item = &'a Stranger>) -> Option<SocketAddr> {
    let oldest = strangers.min_by_key(|stranger| stranger.since);
    oldest.map(|stranger| stranger.at)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use splitmix::SplitMix64;
    use tunnel::endpoint::{Endpoint, EndpointConfig, Limits};

    use super::*;
    use crate::rig;

    const BOAT: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 9, 0, 0, 0, 1));

    fn peer() -> PeerId {
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: [1; 32],
            seed: [1; 32],
            limits: Limits::default(),
        });
        endpoint.add_peer(rig::peer_config(2, None)).expect("first")
    }

    fn one_of_400(random: &mut SplitMix64) -> IpAddr {
        let host = random.below(400) as u16;
        [198, 51, (host >> 8) as u8, host as u8].into()
    }

    fn anywhere_in_a_48(random: &mut SplitMix64) -> IpAddr {
        let within = u128::from(random.below(1 << 32)) << 48 | u128::from(random.below(1 << 48));
        Ipv6Addr::from(0x2001_0db8_0001_u128 << 80 | within).into()
    }

    /// Connections of an attacker, 300 a second, and of a boat.
    struct Flood {
        list: Vec<Stranger>,
        expected: BTreeSet<IpAddr>,
        random: SplitMix64,
        source: fn(&mut SplitMix64) -> IpAddr,
        count: u64,
    }

    impl Flood {
        fn connect(&mut self, from: IpAddr) -> SocketAddr {
            if let Some(out) = displaced(&self.list, &self.expected, from) {
                self.list.retain(|stranger| stranger.at != out);
            }
            self.count += 1;
            let at = SocketAddr::new(from, (self.count % 60_000) as u16 + 1024);
            self.list.push(Stranger {
                at,
                since: (Duration::from_secs(self.count) / 300, self.count),
                offered: None,
            });
            assert!(self.list.len() <= STRANGERS_MAX);
            at
        }

        fn attack(&mut self, count: u32) {
            for _ in 0..count {
                let from = (self.source)(&mut self.random);
                self.connect(from);
            }
        }

        fn has(&self, at: SocketAddr) -> bool {
            self.list.iter().any(|stranger| stranger.at == at)
        }
    }

    /// A boat's connection outlives 15 s of a flood: at an expected address, or among the
    /// attacker's addresses once its initiation has been read.
    #[test]
    fn a_flood_of_connections_displaces_no_boat() {
        for (seed, source) in (0..4).zip([one_of_400, anywhere_in_a_48].into_iter().cycle()) {
            let mut flood = Flood {
                list: Vec::new(),
                expected: [subnet_of(BOAT)].into(),
                random: SplitMix64::new(seed),
                source,
                count: 0,
            };
            flood.attack(3000);
            let expected = flood.connect(BOAT);
            let amid = source(&mut flood.random);
            let called = flood.connect(amid);
            // The initiation comes with the end of the TCP handshake.
            let last = flood.list.last_mut().expect("the boat's");
            last.offered = Some(peer());
            flood.attack(4500);
            assert!(flood.has(expected) && flood.has(called), "seed {seed}");
        }
    }

    #[test]
    fn a_prefix_does_not_displace_another_one() {
        let mut flood = Flood {
            list: Vec::new(),
            expected: BTreeSet::new(),
            random: SplitMix64::new(1),
            source: anywhere_in_a_48,
            count: 0,
        };
        flood.attack(3000);
        let boat = flood.connect(BOAT);
        flood.attack(4500);
        assert!(flood.has(boat));
    }

    #[test]
    fn a_peer_with_many_connections_displaces_its_own() {
        let mut flood = Flood {
            list: Vec::new(),
            expected: BTreeSet::new(),
            random: SplitMix64::new(2),
            source: one_of_400,
            count: 0,
        };
        flood.attack(300);
        let boat = flood.connect(BOAT);
        let rogue = peer();
        for _ in 0..3000 {
            flood.attack(1);
            let last = flood.list.last_mut().expect("connected");
            last.offered = Some(rogue);
        }
        assert!(flood.has(boat));
        let from_one = flood
            .list
            .iter()
            .filter(|stranger| stranger.offered == Some(rogue));
        assert!(from_one.count() <= LIKELY_MAX + 1);
    }

    #[test]
    fn one_subnet_has_sixteen_places() {
        let mut flood = Flood {
            list: Vec::new(),
            expected: BTreeSet::new(),
            random: SplitMix64::new(3),
            source: |random| {
                let host = 0x2001_0db8_0009_0009_u128 << 64 | u128::from(random.below(1 << 20));
                Ipv6Addr::from(host).into()
            },
            count: 0,
        };
        flood.attack(100);
        assert_eq!(flood.list.len(), STRANGERS_PER_ADDRESS);
        let oldest = flood.list.iter().map(|stranger| stranger.since.1).min();
        assert_eq!(oldest, Some(85));
    }
}
