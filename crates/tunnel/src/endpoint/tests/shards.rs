//! Endpoints with one identity, each with some of the peers.

use proptest::prelude::*;

use super::*;
use crate::endpoint::{
    AddPeerError, Shard, Stranger,
    datagram::{
        CONFIRMATION, CONFIRMATION_LEN, COOKIE, COOKIE_LEN, INITIATION, INITIATION_LEN, Kind,
        RESPONSE, RESPONSE_LEN,
    },
};

/// Host of the shards, and its peers: the first one in the first shard, the second in the second.
const HUB: u8 = 2;
const PEERS: [u8; 2] = [1, 3];

fn shard(number: u16, bits: u8) -> Shard {
    Shard::new(number, bits).unwrap()
}

/// Creates the shards, and their peers behind them. The peers call, or the shards.
fn hub(limits: Limits, peers_call: bool) -> Net {
    let node = |number: u16| {
        let mut node = Node::new(HUB, 10 + number as u8, limits);
        node.endpoint = node.endpoint.in_shard(shard(number, 1));
        node.peer(PEERS[usize::from(number)], !peers_call);
        node
    };
    let mut nodes = vec![node(0), node(1)];
    let elsewhere = public_key(&private(PEERS[1]));
    nodes[0].endpoint.add_elsewhere(elsewhere, 1).unwrap();
    nodes.extend(PEERS.map(|host| {
        let mut node = Node::new(host, host, limits);
        node.peer(HUB, peers_call);
        node
    }));
    Net {
        nodes,
        ..Net::pair(false)
    }
}

/// Returns the first initiation of a host to the shards.
fn initiation(host: u8) -> Datagram {
    let mut node = Node::new(host, 77, Limits::default());
    node.peer(HUB, true);
    let mut bytes = Vec::new();
    let sent = node.endpoint.poll_transmit(S, &mut bytes, &mut NoStore);
    assert!(sent.is_some());
    let (from, to) = (address(host).into(), address(HUB).into());
    Datagram { from, to, bytes }
}

/// Computes the number of a shard as a socket filter does: loads beyond the end yield 0.
fn filter(datagram: &[u8], bits: u8) -> u16 {
    let byte = |at: usize| u16::from(datagram.get(at).copied().unwrap_or_default());
    let low = match byte(0) {
        1 => return 0,
        2 => byte(6),
        _ => byte(2),
    };
    low & ((1 << bits) - 1)
}

#[test]
fn each_peer_has_its_session_in_its_shard() {
    for peers_call in [false, true] {
        let limits = Limits {
            rekey_after: 5 * S,
            ..Limits::default()
        };
        let mut net = hub(limits, peers_call);
        net.run(S);
        assert!(net.nodes.iter().all(Node::is_up));
        net.forget_events();
        let since = |net: &Net, at: usize| net.nodes[at].endpoint.peer_state(PeerId(0)).unwrap();
        let before = [0, 1].map(|at| since(&net, at).keys_since);
        for step in 0..20 {
            for (from, to) in [(0, 2), (2, 0), (1, 3), (3, 1)] {
                let sent = packets(step, 10);
                sent.iter().for_each(|packet| net.nodes[from].write(packet));
                net.run(S);
                assert_eq!(net.nodes[to].inbox(), sent, "{from} to {to}");
            }
        }
        assert!((0..2).all(|at| since(&net, at).keys_since > before[at]));
        for node in &net.nodes {
            assert_eq!(node.events, []);
            let stats = node.endpoint.stats();
            let bad = [stats.malformed, stats.unknown, stats.forged, stats.repeated];
            assert_eq!((bad, stats.not_for_us, stats.refused), ([0; 4], 0, 0));
        }
        let passed = net.nodes[1].endpoint.stats().answered;
        assert_eq!(net.passed, passed);
        assert!(!peers_call || passed > 10, "{passed}");
        let to_hub = net
            .log
            .iter()
            .filter(|sent| sent.to.address == address(HUB));
        for Datagram { bytes, .. } in to_hub {
            let expected = filter(bytes, 1);
            let owners = [0, 1].map(|at| shard(at, 1).owner(bytes).unwrap_or(at));
            assert_eq!(owners, [expected; 2]);
        }
    }
}

#[test]
fn ephemeral_keys_of_shards_differ() {
    let mut net = hub(Limits::default(), false);
    net.run(S);
    let sent = net.log.iter().filter(|sent| sent.bytes[0] == INITIATION);
    let ephemerals: Vec<_> = sent.map(|sent| &sent.bytes[5..37]).collect();
    assert_eq!(ephemerals.len(), 2);
    assert_ne!(ephemerals[0], ephemerals[1]);
}

#[test]
fn cookies_work_for_a_peer_of_another_shard() {
    let limits = Limits {
        initiations_open: 1,
        ..Limits::default()
    };
    let mut net = hub(limits, true);
    // The peer of the first shard must not have the only initiation without a cookie, either.
    net.nodes.remove(2);
    net.deliver(&initiation(9));
    net.run(500 * MS);
    assert!(net.nodes[1].is_up() && net.nodes[2].is_up());
    let [first, second] = [0, 1].map(|at| net.nodes[at].endpoint.stats());
    assert_eq!((first.cookies, first.handshakes_read), (1, 2));
    assert_eq!((second.cookies, second.handshakes_read), (0, 1));
    assert_eq!((first.answered, second.answered, net.passed), (0, 1, 1));
}

#[test]
fn a_repeated_initiation_gets_one_offer() {
    let limits = Limits {
        initiations_open: 2000,
        ..Limits::default()
    };
    let mut net = hub(limits, true);
    let first = initiation(PEERS[1]);
    assert_eq!(net.deliver(&first), Some(PeerId(0)));
    for _ in 0..1000 {
        assert_eq!(net.deliver(&first), None);
    }
    let [first, second] = [0, 1].map(|at| net.nodes[at].endpoint.stats());
    assert_eq!((first.repeated, first.handshakes_read), (0, 1001));
    assert_eq!((second.answered, second.repeated), (1, 1000));
    assert_eq!((first.unknown_keys, net.passed), (0, 1001));
}

#[test]
fn shards_beyond_the_first_do_not_admit() {
    let mut net = hub(Limits::default(), true);
    let mut bytes = initiation(PEERS[1]).bytes;
    let (from, endpoint) = (address(PEERS[1]), &mut net.nodes[1].endpoint);
    let peer = endpoint.handle_datagram(S, from, Ecn::NotEct, &mut bytes, &mut NoStore);
    assert_eq!((peer, endpoint.take_elsewhere()), (None, None));
    let stats = endpoint.stats();
    assert_eq!((stats.refused, stats.handshakes_read), (1, 0));
    let sent = endpoint.poll_transmit(S, &mut Vec::new(), &mut NoStore);
    assert_eq!(sent, None);
    assert_eq!(shard(1, 1).owner(&bytes), Some(0));
}

#[test]
fn what_the_first_shard_passes_is_read_as_strictly() {
    let mut net = hub(Limits::default(), true);
    let endpoint = &mut net.nodes[1].endpoint;
    let from = address(9);
    let stranger = initiation(9).bytes;
    assert_eq!(endpoint.handle_admitted(S, from, &stranger), None);
    assert_eq!(
        endpoint.take_stranger(),
        Some((Stranger::UnknownKey, from.into()))
    );
    let own = initiation(PEERS[1]).bytes;
    let mut damaged = own.clone();
    damaged[40] ^= 1;
    assert_eq!(endpoint.handle_admitted(S, from, &damaged), None);
    assert_eq!(endpoint.handle_admitted(S, from, &own[1..]), None);
    let tcp = Remote::tcp(from);
    assert_eq!(endpoint.handle_admitted(S, tcp, &own), None, "by UDP only");
    let stats = endpoint.stats();
    assert_eq!(
        (stats.unknown_keys, stats.forged, stats.malformed),
        (1, 1, 1)
    );
    assert_eq!(
        endpoint.handle_admitted(S, from, &own),
        Some(PeerId(0)),
        "from anywhere"
    );
    endpoint.shut_down("test");
    assert_eq!(endpoint.handle_admitted(S, from, &own), None);
    assert_eq!(endpoint.stats().refused, 1);
}

#[test]
fn a_key_is_in_one_shard_only() {
    let mut net = hub(Limits::default(), true);
    let endpoint = &mut net.nodes[0].endpoint;
    let key = |host| public_key(&private(host));
    let mut elsewhere = |host| endpoint.add_elsewhere(key(host), 1);
    assert_eq!(elsewhere(PEERS[0]), Err(AddPeerError::Known));
    assert_eq!(elsewhere(PEERS[1]), Err(AddPeerError::Known));
    assert_eq!(elsewhere(HUB), Err(AddPeerError::Ourselves));
    assert_eq!(elsewhere(4), Ok(()));
    let added = endpoint.add_peer(peer_config(4, false));
    assert_eq!(added, Err(AddPeerError::Known));
}

#[test]
fn shards_share_the_indices() {
    assert_eq!(Shard::new(0, 0), Some(Shard::default()));
    assert_eq!(Shard::new(1, 0), None);
    assert_eq!(Shard::new(16, 4), None);
    assert_eq!(Shard::new(0, 5), None);
    assert_eq!(Shard::new(0, 255), None);
    let mut node = Node::new(HUB, 1, Limits::default());
    node.endpoint = node.endpoint.in_shard(shard(15, 4));
    let config = peer_config(1, false);
    let mut add = |number: u16| {
        let mut public_key = [0; 32];
        public_key[..2].copy_from_slice(&number.to_be_bytes());
        node.endpoint.add_peer(PeerConfig {
            public_key,
            ..config.clone()
        })
    };
    for number in 0..4096 {
        assert_eq!(add(number), Ok(PeerId(number.into())));
    }
    assert_eq!(add(4096), Err(AddPeerError::TooMany));
}

proptest! {
    #[test]
    fn an_index_leads_to_its_slot_in_its_shard_only(
        bits in 0u8..=4,
        number: u16,
        slot: u16,
        random: u16,
    ) {
        let (number, slot) = (number & ((1 << bits) - 1), slot >> bits);
        let index = shard(number, bits).index(slot, random);
        prop_assert_eq!(index as u16, random);
        for other in 0..1 << bits {
            let expected = (other == number).then_some(usize::from(slot));
            prop_assert_eq!(shard(other, bits).slot_of(index), expected);
        }
        let only = u32::from(slot) << 16 | u32::from(random);
        prop_assert!(bits > 0 || index == only, "the index of a single endpoint");
    }

    #[test]
    fn all_shards_and_a_filter_agree_on_the_owner(
        bits in 0u8..=4,
        kind in 0u8..=6,
        exact: bool,
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = [vec![kind], rest].concat();
        match kind {
            INITIATION if exact => bytes.resize(INITIATION_LEN, 0),
            RESPONSE if exact => bytes.resize(RESPONSE_LEN, 0),
            COOKIE if exact => bytes.resize(COOKIE_LEN, 0),
            CONFIRMATION if exact => bytes.resize(CONFIRMATION_LEN, 0),
            _ => {}
        }
        let well_formed = Kind::parse(&bytes).is_some();
        let expected = filter(&bytes, bits);
        for number in 0..1 << bits {
            let owner = shard(number, bits).owner(&bytes);
            let other = (well_formed && number != expected).then_some(expected);
            prop_assert_eq!(owner, other);
            prop_assert_eq!(shard(number, bits).owner(&[]), None);
        }
    }
}
