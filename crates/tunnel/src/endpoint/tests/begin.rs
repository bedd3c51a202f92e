//! Beginning and restart of sessions.

use splitmix::SplitMix64;

use super::*;
use crate::session::Event;

#[test]
fn a_session_begins_within_a_round_trip_and_a_half() {
    let mut net = Net::pair(false);
    net.run(2 * DELAY);
    assert!(net.nodes[0].is_up() && !net.nodes[1].is_up());
    net.run(DELAY);
    assert!(net.nodes[1].is_up());
    for at in 0..2 {
        let events = net.nodes[at].take_events();
        let peer = net.nodes[1 - at].address;
        assert_eq!(events, [PeerEvent::Up, PeerEvent::Roamed(peer.into())]);
        assert_eq!(net.nodes[at].session().unwrap().config.initiator, at == 0);
        assert_eq!(net.nodes[at].session().unwrap().config.rtt, 2 * DELAY);
    }
    assert_eq!(net.transfer(0, &packets(0, 100)), packets(0, 100));
    assert_eq!(net.transfer(1, &packets(100, 100)), packets(100, 100));
}

#[test]
fn the_same_seed_gives_the_same_datagrams() {
    let run = |seed| {
        let mut net = Net::pair(true);
        net.restart(0, seed, true);
        net.run(10 * S);
        net.log
            .into_iter()
            .map(|datagram| datagram.bytes)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}

#[test]
fn what_the_ends_say_of_themselves_is_agreed() {
    let mut net = Net::pair(false);
    let mut config = peer_config(1, false);
    config.session.packet_max = 1300;
    config.session.stream_credit = 5000;
    config.session.streams_max = 2000;
    config.session.rate = Rate::Stated(64_000);
    net.nodes[1] = Node::new(2, 2, Limits::default());
    net.two().endpoint.add_peer(config).unwrap();
    net.run(S);
    for node in &mut net.nodes {
        let config = &node.session().unwrap().config;
        assert_eq!((config.packet_max, config.packet_start), (1300, 1200));
        assert_eq!((config.stream_credit, config.streams_max), (5000, 1000));
    }
    let rates = [Some(64_000), Some(10_000_000)];
    assert_eq!(
        net.nodes
            .iter_mut()
            .map(|node| node.session().unwrap().config.return_rate)
            .collect::<Vec<_>>(),
        rates
    );
}

/// Restarts the second node without the first one's address in its configuration, but with the last
/// known one.
fn restart_where_it_was(net: &mut Net) {
    let mut two = Node::new(2, 9, Limits::default());
    let config = PeerConfig {
        last: Some(address(1)),
        ..peer_config(1, false)
    };
    two.endpoint.add_peer(config).unwrap();
    net.nodes[1] = two;
}

#[test]
fn a_restarted_endpoint_calls_its_peers_last_address() {
    let mut net = Net::up();
    restart_where_it_was(&mut net);
    net.run(3 * DELAY);
    assert_eq!(ups(&net), [1, 1], "neither end waited for silence");
    let names = [0, 1].map(|at| net.nodes[at].session().map(|s| s.config.initiator));
    assert_eq!(names, [Some(false), Some(true)]);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

#[test]
fn where_a_peer_was_it_is_not_called_for_ever() {
    let mut net = Net::up();
    net.nodes[0] = Node::new(3, 3, Limits::default());
    restart_where_it_was(&mut net);
    net.run(1000 * S);
    assert_eq!(net.nodes[1].sent, 60);
    assert_eq!(net.nodes[1].endpoint.deadline(), None);
    // It calls by itself, from any address.
    net.restart(0, 8, true);
    net.run(S);
    assert_eq!(ups(&net), [1, 1]);
}

/// Returns how often each end has begun a session.
fn ups(net: &Net) -> [usize; 2] {
    [0, 1].map(|at| {
        let events = net.nodes[at].events.iter();
        events.filter(|event| **event == PeerEvent::Up).count()
    })
}

#[test]
fn an_outage_after_the_response_does_not_cost_the_session() {
    let mut net = Net::pair(false);
    // The response is the last datagram that arrives.
    let mut left = 3;
    net.fate = Box::new(move |_, _| {
        left -= i32::from(left > 0);
        if left > 0 { vec![DELAY] } else { vec![] }
    });
    net.run(2 * DELAY);
    net.run(1000 * S);
    assert!(net.nodes[0].is_up() && !net.nodes[1].is_up());
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(4 * S);
    assert_eq!(ups(&net), [1, 1]);
    let names = [0, 1].map(|at| net.nodes[at].session().map(|s| s.config.initiator));
    assert_eq!(names, [Some(true), Some(false)]);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

#[test]
fn a_proof_that_comes_after_the_next_initiation_changes_nothing() {
    let mut net = Net::pair(false);
    // Proofs take so long that one of them comes during the second handshake.
    net.fate = Box::new(|_, datagram| match datagram.bytes[0] {
        4 | 5 => vec![3 * S + DELAY + 5 * MS],
        _ => vec![DELAY],
    });
    net.run(3 * S + 2 * DELAY);
    assert!(!net.nodes[1].is_up());
    net.run(2 * DELAY);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(10 * S);
    assert_eq!(ups(&net), [1, 1]);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

#[test]
fn both_call_at_once_and_one_session_results() {
    let mut net = Net::pair(true);
    net.run(20 * S);
    assert_eq!(ups(&net), [1, 1]);
    let initiators = net
        .nodes
        .iter_mut()
        .map(|node| node.session().unwrap().config.initiator);
    assert_eq!(initiators.filter(|initiator| *initiator).count(), 1);
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

/// With any network behaviour, two ends that call each other finally have the same session, and
/// keep it.
#[test]
fn loss_reordering_and_duplication_delay_a_session_only() {
    for seed in 0..60u64 {
        let mut net = Net::pair(seed % 2 == 0);
        let mut random = SplitMix64::new(seed);
        let slow = if seed % 5 == 0 { 4000 } else { 300 };
        net.fate = Box::new(move |now, _| {
            let bad = now < 60 * S;
            let copies = [0, 0, 1, 1, 1, 2][random.below(6) as usize];
            let delay = if bad { slow } else { 300 };
            let copies = if bad { copies } else { 1 };
            (0..copies)
                .map(|_| MS * random.below(delay) as u32)
                .collect()
        });
        net.run(90 * S);
        assert_eq!(net.transfer(0, &packets(0, 3)).len(), 3, "seed {seed}");
        net.forget_events();
        net.run(30 * S);
        let restless = net
            .nodes
            .iter()
            .any(|node| node.events.contains(&PeerEvent::Up));
        assert!(!restless, "seed {seed}");
        let mut arrived = net.transfer(1, &packets(0, 30));
        arrived.sort();
        let mut sent = packets(0, 30);
        sent.sort();
        assert_eq!(arrived, sent, "seed {seed}");
    }
}

#[test]
fn whoever_restarts_gets_a_new_session() {
    for (at, calls, within) in [(0, true, S), (1, true, S), (1, false, 6 * S)] {
        let mut net = Net::up();
        net.run(30 * S);
        net.restart(at, 33, calls);
        net.run(within);
        let other = net.nodes[1 - at].take_events();
        let expected = [PeerEvent::Down(DownReason::Replaced), PeerEvent::Up];
        assert_eq!(other, expected, "{at} {calls}");
        let arrived = net.transfer(at, &packets(0, 10));
        assert_eq!(arrived, packets(0, 10), "{at} {calls}");
        assert_eq!(net.transfer(1 - at, &packets(0, 10)), packets(0, 10));
    }
}

#[test]
fn an_outage_of_hours_ends_nothing() {
    let retry = 20 * S;
    let mut net = Net::with(
        Limits {
            retry,
            ..Limits::default()
        },
        false,
    );
    net.run(S);
    net.forget_events();
    let back = net.now + 10 * 3600 * S;
    net.fate = Box::new(move |now, _| if now < back { vec![] } else { vec![DELAY] });
    let logged = net.log.len();
    net.run(10 * 3600 * S);
    let sent = net.log[logged..]
        .iter()
        .filter(|datagram| datagram.bytes[0] == 1)
        .count();
    assert!((3500..3700).contains(&sent), "{sent}");
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
    assert_eq!(net.one().take_events(), []);
    assert_eq!(net.two().take_events(), []);
}

#[test]
fn a_wrong_psk_is_reported_once_and_opens_nothing() {
    let mut net = Net::pair(true);
    let mut config = peer_config(1, true);
    config.psk = [8; 32];
    net.nodes[1] = Node::new(2, 2, Limits::default());
    net.two().endpoint.add_peer(config).unwrap();
    net.run(20 * S);
    for node in &mut net.nodes {
        assert_eq!(
            node.take_events(),
            [PeerEvent::Failed(HandshakeError::Keys)]
        );
        assert!(!node.is_up());
    }
}

#[test]
fn strangers_get_no_answer() {
    let mut net = Net::pair(false);
    let mut stranger = Node::new(3, 3, Limits::default());
    stranger.peer(2, true);
    net.nodes[0] = stranger;
    net.run(20 * S);
    assert!(net.nodes[1].endpoint.stats().handshakes_read >= 15);
    assert_eq!(net.nodes[1].sent, 0);
    assert_eq!(net.nodes[1].events, []);
}

#[test]
fn nonsense_ends_a_session_and_another_one_begins() {
    let mut net = Net::up();
    net.one().write(fake::NONSENSE);
    net.run(S);
    let two = net.two().take_events();
    assert!(matches!(
        &two[..],
        [PeerEvent::Down(DownReason::Protocol(_)), PeerEvent::Up]
    ));
    let one = net.one().take_events();
    let down = PeerEvent::Down(DownReason::PeerClosed);
    assert!(matches!(
        one[0],
        PeerEvent::Session(Event::PeerClosed { .. })
    ));
    assert_eq!(one[1..], [down, PeerEvent::Up]);
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

#[test]
fn a_removed_peer_gets_no_reply() {
    let mut net = Net::pair(false);
    net.run(DELAY / 2);
    let call = net.log.pop().expect("an initiation");
    net.deliver(&call);
    let caller = public_key(&private(1));
    let id = net.nodes[1].endpoint.find_peer(&caller).expect("added");
    let node = &mut net.nodes[1];
    node.endpoint.remove_peer(id);
    let mut out = Vec::new();
    let sent = node.endpoint.poll_transmit(net.now, &mut out, &mut NoStore);
    assert_eq!(sent, None);
}

#[test]
fn peers_are_added_once_and_removed() {
    let mut node = Node::new(1, 1, Limits::default());
    let first = node.peer(2, false);
    let add = |node: &mut Node, host| node.endpoint.add_peer(peer_config(host, false));
    assert_eq!(add(&mut node, 2), Err(crate::endpoint::AddPeerError::Known));
    assert_eq!(
        add(&mut node, 1),
        Err(crate::endpoint::AddPeerError::Ourselves)
    );
    node.endpoint.remove_peer(first);
    let second = add(&mut node, 2).unwrap();
    assert_ne!(first, second);
    assert_eq!(node.endpoint.peer_state(first), None);
    assert!(node.endpoint.peer_state(second).is_some());
    assert_eq!(
        node.endpoint.find_peer(&public_key(&private(2))),
        Some(second)
    );
}

#[test]
fn on_a_slow_link_handshakes_take_a_tenth_of_it() {
    let mut net = Net::pair(false);
    // Short wave: an answer takes 10 s.
    net.fate = Box::new(|_, _| vec![5 * S]);
    for (node, host, calls) in [(0, 2, true), (1, 1, false)] {
        let mut config = peer_config(host, calls);
        config.session.rate = Rate::Stated(2400);
        config.session.rtt = 10 * S;
        net.nodes[node] = Node::new(node as u8 + 1, 1 + node as u8, Limits::default());
        net.nodes[node].endpoint.add_peer(config).unwrap();
    }
    net.run(60 * S);
    assert!(net.nodes.iter().all(Node::is_up));
    let initiations = |net: &Net| net.log.iter().filter(|sent| sent.bytes[0] == 1).count();
    assert!(initiations(&net) <= 3);
    // Reports come half a minute apart, which is no silence.
    let before = initiations(&net);
    net.run(60 * S);
    assert_eq!(initiations(&net), before);
    // An hour of outage: a tenth of the rate is one initiation in 10 s, at each end.
    net.fate = Box::new(|_, _| vec![]);
    net.run(3600 * S);
    let calls = (initiations(&net) - before) / 2;
    assert!((300..450).contains(&calls), "{calls}");
}

#[test]
fn a_peer_that_was_at_rest_is_not_called_when_a_stream_begins() {
    let mut net = Net::up();
    let pace = |net: &mut Net, beacon: Duration, limit: Duration, since: Duration| {
        for node in &mut net.nodes {
            let session = node.session().expect("a session");
            session.beacon = beacon;
            session.limit_min = limit;
            session.expected_since = since;
        }
    };
    pace(&mut net, 7 * S, 21 * S, Duration::ZERO);
    let calls = |net: &Net| net.log.iter().filter(|sent| sent.bytes[0] == 1).count();
    let before = calls(&net);
    net.run(60 * S);
    // Both ends were heard long ago, and learn of the stream a round trip apart.
    let state = net.nodes[0].endpoint.peer_state(PeerId(0));
    let heard = state.and_then(|state| state.heard).expect("heard");
    net.run((heard + 6 * S).saturating_sub(net.now));
    let since = net.now + S;
    pace(&mut net, 7 * S, Duration::ZERO, since);
    net.run(500 * MS);
    pace(&mut net, 500 * MS, Duration::ZERO, since);
    net.run(10 * S);
    assert_eq!(calls(&net), before);
    // The limit counts from the time at which the peer was expected.
    net.fate = Box::new(|_, _| vec![]);
    net.run(4 * S);
    assert!(calls(&net) > before);
}

/// Reports wait for the next look, other packets do not.
#[test]
fn reports_can_be_delayed() {
    let mut net = Net::up();
    let endpoint = &mut net.nodes[0].endpoint;
    let report = endpoint.deadline().expect("a beacon");
    endpoint.delay_reports(report + S / 8);
    assert_eq!(endpoint.deadline(), Some(report + S / 8));
    endpoint.delay_reports(Duration::ZERO);
    assert_eq!(endpoint.deadline(), Some(report));
    endpoint.delay_reports(report + S / 8);
    net.one().write(b"a packet");
    let due = net.nodes[0].endpoint.deadline();
    assert!(due.is_some_and(|due| due <= net.now));
}
