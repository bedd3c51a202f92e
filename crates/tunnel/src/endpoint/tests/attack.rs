//! A hundred thousand datagrams from an attacker that hears everything and has no key.

use splitmix::SplitMix64;

use super::*;

const ATTACKS: u32 = 100_000;

fn randomise(bytes: Option<&mut [u8]>, random: &mut SplitMix64) {
    random.fill(bytes.unwrap_or_default());
}

/// Returns the attacker's next datagram.
fn forge(random: &mut SplitMix64, recorded: &[Datagram]) -> Datagram {
    let mut datagram = recorded[random.below(recorded.len() as u64) as usize].clone();
    let bytes = &mut datagram.bytes;
    match random.below(7) {
        // Unchanged.
        0 => {}
        1 => {
            let bit = random.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        2 => bytes.truncate(random.below(bytes.len() as u64) as usize),
        // Back to its sender.
        3 => std::mem::swap(&mut datagram.from, &mut datagram.to),
        // Random bytes, with a valid header.
        4 => randomise(bytes.get_mut(9..), random),
        5 => {
            bytes.resize(random.below(1500) as usize, 0);
            randomise(Some(bytes), random);
        }
        // Another packet number.
        _ => randomise(bytes.get_mut(5..9), random),
    }
    if random.below(2) == 0 {
        datagram.from = address(200 + random.below(50) as u8).into();
    }
    datagram
}

/// Returns initiations to the second node: by a node without its psk, and by an unknown one.
fn initiations() -> Vec<Datagram> {
    let mut all = Vec::new();
    for (host, psk) in [(1, 9), (3, 7)] {
        let mut node = Node::new(host, 55, Limits::default());
        let psk = [psk; 32];
        let config = PeerConfig {
            psk,
            ..peer_config(2, true)
        };
        node.endpoint.add_peer(config).unwrap();
        for second in 1..100 {
            let mut bytes = Vec::new();
            let sent = node
                .endpoint
                .poll_transmit(2 * second * S, &mut bytes, &mut NoStore);
            assert!(sent.is_some());
            let (from, to) = (address(host).into(), address(2).into());
            all.push(Datagram { from, to, bytes });
        }
    }
    all
}

fn handshakes(net: &Net) -> u64 {
    net.nodes
        .iter()
        .map(|node| node.endpoint.stats().handshakes_read)
        .sum()
}

#[test]
fn a_session_does_not_notice_an_attack() {
    let mut net = Net::pair(true);
    net.run(S);
    net.forget_events();
    let (mut random, mut arrived) = (SplitMix64::new(1), [Vec::new(), Vec::new()]);
    let (mut injected, mut replies) = (0, 0);
    let forged = initiations();
    let begin = (net.now, handshakes(&net));
    for step in 0..ATTACKS / 100 {
        net.load(step * 5, [5, 5], &mut arrived);
        net.run(5 * MS);
        // Only datagrams that have arrived are recorded: a copy that overtakes the original would
        // count as the original.
        let end = net.log.len().saturating_sub(2000);
        for _ in 0..100 {
            let recorded = match random.below(10) {
                0 => &forged[..],
                _ => &net.log[end.saturating_sub(3000)..end.max(1)],
            };
            let datagram = forge(&mut random, recorded);
            injected += datagram.bytes.len() as u64;
            net.deliver(&datagram);
        }
        let sent = |net: &Net| net.nodes.iter().map(|node| node.sent_bytes).sum::<u64>();
        let before = sent(&net);
        net.run(Duration::ZERO);
        replies += sent(&net) - before;
    }
    net.run(S);
    net.load(0, [0, 0], &mut arrived);
    for node in &net.nodes {
        assert_eq!(node.events, []);
    }
    assert!(arrived.iter().all(|packets| packets.len() == 5000));
    assert!(replies < injected / 100, "{replies} of {injected}");
    let seconds = (net.now - begin.0).as_secs() + 1;
    let handshakes = handshakes(&net) - begin.1;
    // 20 at once and 20 per second at each end, and as many more with cookies, if there were any.
    assert!(
        handshakes <= 2 * 20 * (seconds + 1) + 8,
        "{handshakes} in {seconds} s"
    );
}

/// Returns limits under which each initiation is read.
fn eager_limits() -> Limits {
    Limits {
        initiations_open: 1000,
        ..Limits::default()
    }
}

/// Returns the initiations of a time without answers.
fn old_initiations(net: &mut Net) -> Vec<Datagram> {
    net.fate = Box::new(|_, datagram| {
        if datagram.bytes[0] == 2 {
            vec![]
        } else {
            vec![DELAY]
        }
    });
    net.run(100 * S);
    let sent = net.log.iter();
    sent.filter(|sent| sent.bytes[0] == 1).cloned().collect()
}

/// Replays initiations of the peer that have arrived, from everywhere: none gets an offer.
#[test]
fn recorded_initiations_displace_nothing() {
    let mut net = Net::with(eager_limits(), false);
    let old = old_initiations(&mut net);
    assert!(old.len() > 90);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(10 * S);
    assert!(net.nodes.iter().all(Node::is_up));
    net.forget_events();
    let before = net.nodes[1].endpoint.stats();
    for at in 0..2000 {
        let replay = Datagram {
            from: address(60 + (at % 100) as u8).into(),
            ..old[at % old.len()].clone()
        };
        assert_eq!(net.deliver(&replay), None);
        net.run(10 * MS);
    }
    let after = net.nodes[1].endpoint.stats();
    assert_eq!(after.answered, before.answered);
    assert_eq!(after.repeated, before.repeated + 2000);
    assert_eq!(net.two().take_events(), []);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
}

/// The responder lost its memory, so that recordings are offered keys until the peer is heard.
#[test]
fn recorded_initiations_prevent_no_session() {
    let mut net = Net::with(eager_limits(), false);
    let old = old_initiations(&mut net);
    net.fate = Box::new(|_, _| vec![300 * MS]);
    net.restart(1, 44, false);
    let first = net.log.len();
    for replay in old.iter().cycle().take(500) {
        net.deliver(replay);
        net.run(5 * MS);
        if net.nodes.iter().all(Node::is_up) {
            break;
        }
    }
    assert!(net.nodes.iter().all(Node::is_up));
    let sent = net.log[first..].iter();
    let tries = sent.filter(|sent| sent.bytes[0] == 1).count();
    assert!(tries <= 3, "{tries}");
    let ups = net.nodes[1]
        .events
        .iter()
        .filter(|event| **event == PeerEvent::Up)
        .count();
    assert_eq!(ups, 1);
}
