//! Floods of initiations, and cookies.

use super::*;

/// Returns initiations by a node whose key the second node does not know, or by the first one.
fn initiations(host: u8, count: u32) -> Vec<Datagram> {
    let limits = Limits::default();
    let mut node = Node::new(host, 77, limits);
    node.peer(2, true);
    let (mut all, mut now) = (Vec::new(), S);
    while all.len() < count as usize {
        let mut bytes = Vec::new();
        let sent = node.endpoint.poll_transmit(now, &mut bytes, &mut NoStore);
        let (from, to) = (address(host).into(), address(2).into());
        match sent {
            Some(_) => all.push(Datagram { from, to, bytes }),
            None => now += S,
        }
    }
    all
}

#[test]
fn under_a_flood_only_who_shows_a_cookie_is_heard() {
    let mut net = Net::pair(false);
    let flood = initiations(3, 2000);
    // A thousand per second, from spoofed addresses.
    for (number, datagram) in flood.iter().enumerate() {
        let from = address(100 + (number % 100) as u8).into();
        net.deliver(&Datagram {
            from,
            ..datagram.clone()
        });
        net.run(MS);
    }
    assert!(net.nodes.iter().all(Node::is_up));
    let stats = net.nodes[1].endpoint.stats();
    assert!(stats.cookies > 1900, "{stats:?}");
    // 20 at once, 20 in each of two seconds, and those of the honest peer.
    assert!((57..66).contains(&stats.handshakes_read), "{stats:?}");
    let (sent, received) = (net.nodes[1].sent_bytes, 2000 * 181);
    assert!(sent < received / 3, "{sent}");
}

#[test]
fn a_source_with_cookies_cannot_take_all() {
    let limits = Limits {
        initiations_open: 1,
        ..Limits::default()
    };
    let mut net = Net::with(limits, false);
    net.nodes[0] = Node::new(
        3,
        3,
        Limits {
            retry: 20 * MS,
            ..Limits::default()
        },
    );
    net.one().peer(2, true);
    net.one().address = address(3);
    net.run(10 * S);
    let stats = net.nodes[1].endpoint.stats();
    assert!(stats.refused > 300, "{stats:?}");
    // 1 per second without and 5 per second with a cookie, and equal bursts.
    assert!((60..=68).contains(&stats.handshakes_read), "{stats:?}");
}

#[test]
fn a_cookie_of_another_address_is_none() {
    let limits = Limits {
        initiations_open: 1,
        ..Limits::default()
    };
    let mut net = Net::with(limits, false);
    net.fate = Box::new(|_, datagram| match datagram.bytes.ends_with(&[0; 16]) {
        false if datagram.bytes[0] == 1 => vec![],
        _ => vec![DELAY],
    });
    net.deliver(&initiations(3, 1)[0]);
    net.run(110 * MS);
    // The first initiation got a cookie, with which there is now another one.
    let stats = |net: &Net| net.nodes[1].endpoint.stats();
    assert_eq!((stats(&net).cookies, stats(&net).handshakes_read), (1, 1));
    let sent = net.log.last().unwrap().clone();
    assert_eq!(sent.bytes[0], 1);
    let from = address(9).into();
    net.deliver(&Datagram {
        from,
        ..sent.clone()
    });
    assert_eq!((stats(&net).cookies, stats(&net).handshakes_read), (2, 1));
    net.deliver(&sent);
    assert_eq!((stats(&net).cookies, stats(&net).handshakes_read), (2, 2));
}

#[test]
fn an_initiation_is_answered_once() {
    let mut net = Net::pair(false);
    net.run(S);
    let first = net
        .log
        .iter()
        .find(|datagram| datagram.bytes[0] == 1)
        .unwrap()
        .clone();
    let (before, sent) = (net.nodes[1].endpoint.stats(), net.nodes[1].sent);
    for _ in 0..1000 {
        net.deliver(&first);
    }
    let after = net.nodes[1].endpoint.stats();
    assert_eq!(after.handshakes_read, before.handshakes_read);
    assert_eq!(after.repeated, before.repeated + 1000);
    net.run(Duration::ZERO);
    assert!(net.nodes[1].sent <= sent + 1);
}

#[test]
fn damaged_responses_do_not_spoil_the_handshake() {
    let mut net = Net::pair(false);
    net.fate = Box::new(|_, datagram| match datagram.bytes[0] {
        2 => vec![],
        _ => vec![DELAY],
    });
    net.run(500 * MS);
    let response = net
        .log
        .iter()
        .find(|datagram| datagram.bytes[0] == 2)
        .unwrap()
        .clone();
    let mac = crate::crypto::MacKey::of_recipient(&public_key(&private(1)));
    for byte in 9..105 {
        let mut damaged = response.clone();
        damaged.bytes[byte] ^= 1;
        let signed = mac.mac(&damaged.bytes[..105]);
        damaged.bytes[105..].copy_from_slice(&signed);
        net.deliver(&damaged);
        assert!(!net.nodes[0].is_up(), "{byte}");
    }
    net.deliver(&response);
    assert!(net.nodes[0].is_up());
    net.deliver(&response);
    let expected = [PeerEvent::Failed(HandshakeError::Keys), PeerEvent::Up];
    assert_eq!(net.one().take_events()[..2], expected);
}
