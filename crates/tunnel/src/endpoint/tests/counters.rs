//! Counters of initiations: recorded ones, lost state, and a hostile peer.

use splitmix::SplitMix64;

use super::*;
use crate::{
    crypto::{Identity, Initiating, MacKey, Responding},
    endpoint::{
        COUNTER_MAX, Counters, Stranger,
        datagram::{
            self, INITIATION_1_LEN, INITIATION_1_SIGNED, INITIATION_HEADER, INITIATION_SIGNED,
            RESPONSE,
        },
        terms::{TERMS_LEN, Terms},
    },
};

const INITIATION: u8 = datagram::INITIATION;

/// Limits under which each initiation of an attacker is read.
fn open_limits() -> Limits {
    Limits {
        initiations_open: 100_000,
        ..Limits::default()
    }
}

/// Returns the number of initiations of the first node.
fn initiations(net: &Net) -> usize {
    let sent = net.log.iter();
    let by_one = sent.filter(|sent| sent.from == address(1).into());
    by_one.filter(|sent| sent.bytes[0] == INITIATION).count()
}

fn counters(net: &Net, at: usize) -> Counters {
    net.nodes[at]
        .endpoint
        .peer_state(PeerId(0))
        .unwrap()
        .counters
}

fn answered(net: &Net) -> u64 {
    net.nodes[1].endpoint.stats().answered
}

/// Runs the network while nothing arrives. Returns 400 initiations that the first node has sent.
fn record(net: &mut Net) -> Vec<Datagram> {
    net.fate = Box::new(|_, _| vec![]);
    let begin = net.log.len();
    net.run(450 * S);
    let sent = net.log.drain(begin..);
    let to_two = sent.filter(|sent| sent.bytes[0] == INITIATION && sent.to == address(2).into());
    let recorded: Vec<_> = to_two.take(400).collect();
    assert_eq!(recorded.len(), 400);
    recorded
}

/// Puts recordings into one of three orders.
fn order(recorded: &mut [Datagram], seed: u64) {
    let mut random = SplitMix64::new(seed);
    match seed % 3 {
        0 => {}
        1 => recorded.reverse(),
        _ => {
            for last in (1..recorded.len()).rev() {
                recorded.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
    }
}

/// Replays recordings from many addresses, a hundred a second, until `done`. Returns the number of
/// initiations that the first node sent meanwhile.
fn replay(net: &mut Net, recorded: &[Datagram], done: impl Fn(&Net) -> bool) -> usize {
    let before = initiations(net);
    for (number, recorded) in recorded.iter().cycle().take(2000).enumerate() {
        let from = address(30 + (number % 200) as u8).into();
        let replay = Datagram {
            from,
            ..recorded.clone()
        };
        net.deliver(&replay);
        net.run(10 * MS);
        if done(net) {
            break;
        }
    }
    assert!(done(net));
    initiations(net) - before
}

#[test]
fn recordings_of_an_outage_do_not_prevent_a_first_session() {
    for (seed, rtt) in (0..6).zip([600, 600, 600, 1200, 1200, 1200]) {
        let mut net = Net::with(open_limits(), false);
        let mut recorded = record(&mut net);
        order(&mut recorded, seed);
        net.fate = Box::new(move |_, _| vec![rtt / 2 * MS]);
        let is_up = |net: &Net| net.nodes.iter().all(Node::is_up);
        let tries = replay(&mut net, &recorded, is_up);
        assert!(tries <= 3, "{tries} tries, seed {seed}, RTT {rtt} ms");
        assert_eq!(net.two().take_events().len(), 2, "up, and where");
        // No recording makes an offer any more.
        let before = answered(&net);
        recorded
            .iter()
            .for_each(|old| assert_eq!(net.deliver(old), None));
        assert_eq!(answered(&net), before);
        net.run(2 * S);
        assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    }
}

#[test]
fn recordings_of_an_outage_do_not_prevent_new_keys() {
    for (seed, rtt) in (0..6).zip([600, 600, 600, 1200, 1200, 1200]) {
        let mut net = Net::with(open_limits(), false);
        net.run(S);
        let mut recorded = record(&mut net);
        order(&mut recorded, seed);
        net.fate = Box::new(move |_, _| vec![rtt / 2 * MS]);
        net.forget_events();
        let since = |net: &Net| {
            let state = |node: &Node| node.endpoint.peer_state(PeerId(0)).unwrap().keys_since;
            [state(&net.nodes[0]), state(&net.nodes[1])]
        };
        let before = since(&net);
        let renewed = |net: &Net| (0..2).all(|at| since(net)[at] > before[at]);
        let tries = replay(&mut net, &recorded, renewed);
        assert!(tries <= 3, "{tries} tries, seed {seed}, RTT {rtt} ms");
        net.run(2 * S);
        assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
        assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
        assert!(
            net.nodes.iter().all(|node| node.events.is_empty()),
            "the same session"
        );
    }
}

/// Restarts a node with these counters.
fn restart(net: &mut Net, at: usize, calls: bool, counters: Counters) {
    let host = at as u8 + 1;
    net.nodes[at] = Node::new(host, 70 + host, Limits::default());
    let config = PeerConfig {
        counters,
        ..peer_config(3 - host, calls)
    };
    net.nodes[at].endpoint.add_peer(config).unwrap();
}

#[test]
fn an_end_that_lost_its_counter_is_up_a_round_trip_later() {
    for heard in [1, 2, 3000] {
        let mut net = Net::pair(false);
        restart(&mut net, 1, false, Counters { sent: 0, heard });
        net.run(5 * DELAY);
        assert!(net.nodes.iter().all(Node::is_up), "{heard}");
        assert_eq!(initiations(&net), 2, "{heard}");
        assert_eq!(net.nodes[1].endpoint.stats().repeated, 1);
        assert_eq!(counters(&net, 0).sent, counters(&net, 1).heard);
        assert!(counters(&net, 0).sent > heard);
        assert_eq!(net.one().take_events().len(), 2, "no failure is reported");
    }
}

#[test]
fn an_end_that_kept_its_counter_needs_no_second_initiation() {
    let mut net = Net::up();
    let [mut one, two] = [0, 1].map(|at| counters(&net, at));
    assert_eq!((one.sent, one.heard), (two.heard, two.sent));
    one.sent += 4096;
    restart(&mut net, 0, true, one);
    let before = initiations(&net);
    net.run(3 * DELAY);
    assert!(net.nodes.iter().all(Node::is_up));
    assert_eq!(initiations(&net) - before, 1);
    // The other end lost its counters, and answers what comes.
    restart(&mut net, 1, false, Counters::default());
    let before = initiations(&net);
    net.run(6 * S);
    assert!(net.nodes.iter().all(Node::is_up));
    assert!(initiations(&net) - before <= 2);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
}

#[test]
fn two_ends_that_call_each_other_recover_if_both_lost_their_counters() {
    for heard in [[0, 0], [9, 0], [0, 9], [9, 9]] {
        let mut net = Net::pair(false);
        let [one, two] = heard.map(|heard| Counters { sent: 0, heard });
        restart(&mut net, 0, true, one);
        restart(&mut net, 1, true, two);
        net.run(4 * S);
        assert!(net.nodes.iter().all(Node::is_up), "{heard:?}");
        assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
        net.forget_events();
        net.run(60 * S);
        assert!(
            net.nodes.iter().all(|node| node.events.is_empty()),
            "{heard:?}"
        );
    }
}

/// An observer copies each initiation over a faster path, from its own address. What it is offered
/// is of no use to it, and the original gets the same response.
#[test]
fn a_copy_that_overtakes_the_original_changes_nothing() {
    for rtt in [600, 5000] {
        let mut net = Net::pair(false);
        net.fate = Box::new(move |_, _| vec![rtt / 2 * MS]);
        let mut seen = 0;
        while !net.nodes.iter().all(Node::is_up) && net.now < 60 * S {
            net.run(10 * MS);
            let new: Vec<_> = net.log[seen..].to_vec();
            seen = net.log.len();
            for sent in new.iter().filter(|sent| sent.bytes[0] == INITIATION) {
                let from = address(99).into();
                net.deliver(&Datagram {
                    from,
                    ..sent.clone()
                });
            }
        }
        assert!(net.nodes.iter().all(Node::is_up));
        assert_eq!(
            answered(&net) as usize,
            initiations(&net),
            "one offer for each"
        );
        let tries = initiations(&net) as u32;
        assert!(tries <= 2 + 3 * rtt / 2000, "{tries} at RTT {rtt} ms");
        let remote = net.nodes[1].endpoint.peer_state(PeerId(0)).unwrap().remote;
        assert_eq!(remote, Some(address(1).into()));
    }
}

/// Reads an initiation as the second node, and answers it with other terms.
fn answer(initiation: &Datagram, mut terms: Terms, same: bool) -> Datagram {
    let bytes = &initiation.bytes;
    let message = &bytes[INITIATION_HEADER..INITIATION_SIGNED];
    let mut payload = [0; TERMS_LEN];
    let us = Identity::new(private(2));
    let read = Responding::read(&us, [9; 32], message, &mut payload).unwrap();
    if same {
        terms.counter = Terms::parse(&payload).counter;
    }
    let mut reply = Vec::new();
    datagram::begin(RESPONSE, 7, &mut reply);
    reply.extend_from_slice(&bytes[1..5]);
    read.answer(&[7; 32], &terms.emit(), &mut reply).unwrap();
    let mac = MacKey::of_recipient(&public_key(&private(1)));
    reply.extend_from_slice(&mac.mac(&reply));
    Datagram {
        from: initiation.to,
        to: initiation.from,
        bytes: reply,
    }
}

/// Lets the second node answer each initiation of the first one with these terms.
fn answer_all(net: &mut Net, time: Duration, terms: &Terms, same: bool) {
    net.fate = Box::new(|_, _| vec![]);
    let (end, mut seen) = (net.now + time, net.log.len());
    while net.now < end {
        net.run(10 * MS);
        let new: Vec<_> = net.log[seen..].to_vec();
        seen = net.log.len();
        let to_two = new.iter().filter(|sent| sent.to == address(2).into());
        for sent in to_two.filter(|sent| sent.bytes[0] == INITIATION) {
            net.deliver(&answer(sent, *terms, same));
        }
    }
}

#[test]
fn a_hostile_responders_counter_harms_its_tunnel_only_and_is_reported() {
    let mut net = Net::pair(false);
    net.one().peer(3, true);
    let mut third = Node::new(3, 3, Limits::default());
    third.peer(1, false);
    net.nodes.push(third);
    answer_all(&mut net, 10 * S, &Terms::refusal(COUNTER_MAX + 1), false);
    assert_eq!(
        net.one().take_events(),
        [PeerEvent::Failed(HandshakeError::Counter)]
    );
    assert!(counters(&net, 0).sent < 20, "not raised");
    // Refusals without end do not raise the rate of initiations without bound.
    let before = initiations(&net);
    for higher in 1..=10 {
        let terms = Terms::refusal(COUNTER_MAX / 20 * higher);
        answer_all(&mut net, S, &terms, false);
    }
    let to_two = initiations(&net) - before;
    assert!(to_two <= 40, "{to_two} in 10 s to two peers");
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(2 * S);
    let third = net.nodes[0].endpoint.peer_state(PeerId(1)).unwrap();
    assert!(third.up && third.counters.sent < 100, "{third:?}");
    // An honest end in its place finds a high counter only.
    assert!(net.nodes[1].is_up());
    assert!(counters(&net, 1).heard > COUNTER_MAX / 3);
}

#[test]
fn an_initiation_beyond_the_last_counter_is_reported_and_not_answered() {
    let mut net = Net::pair(false);
    let sent = COUNTER_MAX - 1;
    restart(&mut net, 0, true, Counters { sent, heard: 0 });
    net.run(S);
    assert!(net.nodes.iter().all(Node::is_up), "the last one");
    restart(&mut net, 0, true, Counters { sent, heard: 0 });
    net.run(10 * S);
    let failed = PeerEvent::Failed(HandshakeError::Counter);
    assert_eq!(net.one().take_events()[..1], [failed]);
}

/// Returns an initiation of the first end with these terms.
fn call_with(terms: &Terms) -> (Initiating, Datagram) {
    let mut bytes = Vec::new();
    let mac = MacKey::of_recipient(&public_key(&private(2)));
    datagram::begin(INITIATION, 5, &mut bytes);
    let us = Identity::new(private(1));
    let (peer, psk) = (public_key(&private(2)), [7; 32]);
    let started = Initiating::begin(&us, &peer, &psk, [4; 32], &terms.emit(), &mut bytes).unwrap();
    bytes.extend_from_slice(&mac.mac(&bytes));
    bytes.extend_from_slice(&[0; 16]);
    let (from, to) = (address(1).into(), address(2).into());
    (started, Datagram { from, to, bytes })
}

#[test]
fn a_failed_handshake_is_known_beside_a_session_too() {
    let mut net = Net::up();
    let failed = |net: &Net| net.nodes[1].endpoint.peer_state(PeerId(0)).unwrap().failed;
    assert_eq!(failed(&net), None);
    let mut terms = Terms::from_config(&session_config(), 0, None, 0);
    terms.version = 9;
    net.deliver(&call_with(&terms).1);
    assert_eq!(failed(&net), Some(HandshakeError::Version(9)));
    assert!(net.nodes[1].is_up());
}

#[test]
fn another_version_is_named_at_both_ends_and_offers_nothing() {
    let mut net = Net::pair(false);
    let mut terms = Terms::from_config(&session_config(), 0, None, 0);
    terms.version = 9;
    answer_all(&mut net, 10 * S, &terms, true);
    let failed = || PeerEvent::Failed(HandshakeError::Version(9));
    assert_eq!(net.one().take_events(), [failed()]);
    assert!(!net.nodes[0].is_up());
    // The other end: an initiation of that version.
    let (mut started, call) = call_with(&terms);
    assert_eq!(net.deliver(&call), None);
    assert_eq!(net.two().take_events(), [failed()]);
    net.run(Duration::ZERO);
    let response = net.log.last().unwrap();
    assert_eq!(response.bytes[0], RESPONSE);
    let mut payload = [0; TERMS_LEN];
    let message = &response.bytes[datagram::RESPONSE_HEADER..datagram::RESPONSE_SIGNED];
    started.finish(message, &mut payload).unwrap();
    assert_eq!(payload[0], 2);
    assert_eq!(answered(&net), 0);
}

#[test]
fn an_initiation_of_version_1_is_recognised_by_its_mac() {
    let mut net = Net::pair(false);
    let mut bytes = vec![7; INITIATION_1_LEN];
    bytes[0] = INITIATION;
    let mac = MacKey::of_recipient(&public_key(&private(2))).mac(&bytes[..INITIATION_1_SIGNED]);
    let (from, to) = (address(8).into(), address(2).into());
    let damaged = bytes.clone();
    bytes[INITIATION_1_SIGNED..][..16].copy_from_slice(&mac);
    for (bytes, expected) in [
        (damaged, None),
        (bytes, Some((Stranger::Version1, address(8).into()))),
    ] {
        assert_eq!(net.deliver(&Datagram { from, to, bytes }), None);
        assert_eq!(net.nodes[1].endpoint.take_stranger(), expected);
    }
    net.run(Duration::ZERO);
    assert_eq!(net.nodes[1].sent, 0);
}
