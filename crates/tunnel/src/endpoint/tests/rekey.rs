//! Rekeying while packets flow.

use splitmix::SplitMix64;

use super::*;

fn limits() -> Limits {
    Limits {
        rekey_packets: 400,
        rekey_after: 20 * S,
        ..Limits::default()
    }
}

/// Every packet arrives once, whatever happens to the keys, on a link that delays but loses
/// nothing.
#[test]
fn new_keys_lose_nothing() {
    for seed in 0..20u64 {
        let mut net = Net::with(limits(), seed % 2 == 0);
        let mut random = SplitMix64::new(seed);
        net.fate = Box::new(move |_, _| vec![MS * (40 + random.below(60) as u32)]);
        net.run(S);
        net.forget_events();
        let mut arrived = [Vec::new(), Vec::new()];
        for step in 0..300 {
            net.load(step * 10, [10, 5], &mut arrived);
            net.run(100 * MS);
        }
        net.run(S);
        net.load(0, [0, 0], &mut arrived);
        let quiet = net.nodes.iter().all(|node| node.events.is_empty());
        assert!(quiet, "seed {seed}");
        assert_eq!(
            (arrived[0].len(), arrived[1].len()),
            (1500, 3000),
            "seed {seed}"
        );
        // 3000 packets of one side at 400 and a round trip's worth for each key.
        let handshakes = net.nodes.iter().map(|node| node.endpoint.stats().answered);
        let handshakes = handshakes.sum::<u64>();
        assert!((6..20).contains(&handshakes), "{handshakes}, seed {seed}");
    }
}

#[test]
fn new_keys_come_by_time_from_whoever_began() {
    let mut net = Net::with(limits(), true);
    net.run(S);
    for round in 0..5u32 {
        let since = net.nodes[0]
            .endpoint
            .peer_state(PeerId(0))
            .unwrap()
            .keys_since
            .unwrap();
        net.run(21 * S);
        let now = net.nodes[0]
            .endpoint
            .peer_state(PeerId(0))
            .unwrap()
            .keys_since
            .unwrap();
        assert!(
            now >= since + 20 * S && now <= since + 21 * S,
            "round {round}"
        );
    }
}

#[test]
fn who_did_not_begin_renews_the_keys_if_the_other_does_not() {
    let mut net = Net::with(limits(), false);
    net.run(S);
    let one = net.nodes[0].address;
    // Initiations of the first one are lost.
    net.fate =
        Box::new(
            move |_, datagram| match (datagram.from == one.into(), datagram.bytes[0]) {
                (true, 1) => vec![],
                _ => vec![DELAY],
            },
        );
    net.run(30 * S);
    let keys = |node: &Node| {
        node.endpoint
            .peer_state(PeerId(0))
            .unwrap()
            .keys_since
            .unwrap()
    };
    assert!(net.nodes.iter().all(|node| keys(node) > net.now - 10 * S));
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.nodes[0].endpoint.stats().answered, 1);
}

#[test]
fn unused_keys_are_not_renewed() {
    let mut net = Net::with(
        Limits {
            silence: 3600 * S,
            ..limits()
        },
        false,
    );
    net.run(60 * MS);
    let quiet = |node: &mut Node| {
        if let Some(session) = node.session() {
            session.beacon = 7200 * S;
        }
    };
    net.fate = Box::new(|_, datagram| {
        if datagram.bytes[0] == 5 {
            vec![]
        } else {
            vec![DELAY]
        }
    });
    net.run(45 * MS);
    net.nodes.iter_mut().for_each(quiet);
    net.run(100 * MS);
    let answered = net.nodes[1].endpoint.stats().answered;
    net.run(15 * S);
    assert_eq!(net.nodes[1].endpoint.stats().answered, answered);
}

/// The low bits of packet numbers wrap around.
#[test]
fn numbers_beyond_32_bits_are_understood() {
    let mut net = Net::up();
    for _ in 0..6 {
        net.one().session().unwrap().next += 1 << 30;
        assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    }
    // More than 32 bits can distinguish, sent into an outage: the next keys state where they begin.
    net.fate = Box::new(|_, _| vec![]);
    net.one().session().unwrap().next += 3 << 32;
    net.run(10 * S);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(10 * S);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.two().take_events(), []);
}

#[test]
fn nonces_never_come_twice() {
    let mut net = Net::with(limits(), true);
    net.run(S);
    for step in 0..200 {
        for at in 0..2 {
            packets(step * 10, 10)
                .iter()
                .for_each(|packet| net.nodes[at].write(packet));
        }
        net.run(50 * MS);
    }
    let data = net.log.iter().filter(|datagram| datagram.bytes[0] == 5);
    let headers = data.map(|datagram| (datagram.from, datagram.bytes[5..9].to_vec()));
    let headers: Vec<_> = headers.collect();
    let different: std::collections::BTreeSet<_> = headers.iter().collect();
    assert!(headers.len() > 4000);
    assert_eq!(different.len(), headers.len());
}

#[test]
fn the_peer_learns_at_once_which_hosts_an_end_does_not_reach() {
    const NO_V6: Unreached = Unreached {
        v4: false,
        v6: true,
    };
    let known = |net: &Net, at: usize| {
        let state = net.nodes[at].endpoint.peer_state(PeerId(0)).unwrap();
        state.unreached
    };
    for says in [0, 1] {
        let mut net = Net::up();
        assert_eq!(known(&net, 1 - says), Unreached::default());
        for unreached in [NO_V6, Unreached::default(), NO_V6] {
            let sent = net.nodes[says].sent;
            net.nodes[says].endpoint.set_unreached(PeerId(0), unreached);
            net.run(S);
            assert_eq!(known(&net, 1 - says), unreached, "said by {says}");
            assert_eq!(known(&net, says), Unreached::default());
            let sent = net.nodes[says].sent - sent;
            assert!(sent < 10, "one handshake, and beacons: {sent}");
        }
        for node in &mut net.nodes {
            assert!(!node.take_events().contains(&PeerEvent::Up), "one session");
        }
        // A new session tells it as well.
        net.restart(1 - says, 9, says == 1);
        net.run(5 * S);
        assert_eq!(known(&net, 1 - says), NO_V6);
    }
}

#[test]
fn news_of_hosts_that_an_end_does_not_reach_survive_lost_handshakes() {
    let mut net = Net::up();
    let unreached = Unreached { v4: true, v6: true };
    net.one().endpoint.set_unreached(PeerId(0), unreached);
    net.fate = Box::new(|_, _| Vec::new());
    net.run(S / 2);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(3 * S);
    let state = net.nodes[1].endpoint.peer_state(PeerId(0)).unwrap();
    assert_eq!(state.unreached, unreached);
}
