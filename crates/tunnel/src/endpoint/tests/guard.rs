//! Floods of initiations, and cookies.

use splitmix::SplitMix64;

use super::*;
use crate::{
    crypto::MacKey,
    endpoint::datagram::{INITIATION, INITIATION_SIGNED, RESPONSE_SIGNED},
};

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
    let (sent, received) = (net.nodes[1].sent_bytes, 2000 * 229);
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
fn an_initiation_gets_one_offer() {
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
        assert_eq!(net.deliver(&first), None);
    }
    let after = net.nodes[1].endpoint.stats();
    assert_eq!(after.answered, before.answered);
    let read = after.handshakes_read - before.handshakes_read;
    assert!(read <= 20, "{read}");
    assert_eq!(after.repeated - before.repeated, read);
    net.run(Duration::ZERO);
    let replies = net.nodes[1].sent - sent;
    // Cookies and the same response again, as many as fit the queue, and a beacon.
    assert!(replies <= 65, "{replies}");
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
    let mac = MacKey::of_recipient(&public_key(&private(1)));
    for byte in 9..RESPONSE_SIGNED {
        let mut damaged = response.clone();
        damaged.bytes[byte] ^= 1;
        let signed = mac.mac(&damaged.bytes[..RESPONSE_SIGNED]);
        damaged.bytes[RESPONSE_SIGNED..].copy_from_slice(&signed);
        net.deliver(&damaged);
        assert!(!net.nodes[0].is_up(), "{byte}");
        // Within the rate of responses.
        net.run(10 * MS);
    }
    net.deliver(&response);
    assert!(net.nodes[0].is_up());
    net.deliver(&response);
    let expected = [PeerEvent::Failed(HandshakeError::Keys), PeerEvent::Up];
    assert_eq!(net.one().take_events()[..2], expected);
}

/// Returns an initiation that only seems to be one: with valid MACs, by the cookie of its source.
fn pretended(net: &mut Net, random: &mut SplitMix64, from: SocketAddr) -> Datagram {
    let mut bytes = vec![0; INITIATION_SIGNED];
    random.fill(&mut bytes);
    bytes[0] = INITIATION;
    let mac1 = MacKey::of_recipient(&public_key(&private(2))).mac(&bytes);
    bytes.extend_from_slice(&mac1);
    let hub = net.nodes.last().unwrap();
    let cookie = hub.endpoint.guard.cookies.bake(net.now, from);
    let mac2 = MacKey::new(&cookie).mac(&bytes);
    bytes.extend_from_slice(&mac2);
    let (from, to) = (from.into(), address(2).into());
    Datagram { from, to, bytes }
}

/// Attacks the last node with 2,500 initiations a second until `done`, or for some time.
fn attack(
    net: &mut Net,
    random: &mut SplitMix64,
    source: impl Fn(&mut SplitMix64) -> SocketAddr,
    time: Duration,
    done: impl Fn(&Net) -> bool,
) {
    let end = net.now + time;
    while net.now < end && !done(net) {
        for _ in 0..5 {
            let from = source(random);
            let datagram = pretended(net, random, from);
            net.deliver(&datagram);
        }
        net.run(2 * MS);
    }
}

fn one_of_400(random: &mut SplitMix64) -> SocketAddr {
    let host = random.below(400) as u16;
    ([198, 51, (host >> 8) as u8, host as u8], 5001).into()
}

fn anywhere_in_a_48(random: &mut SplitMix64) -> SocketAddr {
    let site = 0x2001_0db8_0001_u128 << 80;
    let within = u128::from(random.below(1 << 32)) << 48 | u128::from(random.below(1 << 48));
    (std::net::Ipv6Addr::from(site | within), 5001).into()
}

#[test]
fn a_flood_with_cookies_from_many_sources_keeps_no_boat_out() {
    for (source, seeds) in [
        (one_of_400 as fn(&mut SplitMix64) -> SocketAddr, 0..3u64),
        (anywhere_in_a_48, 3..6),
    ] {
        for seed in seeds {
            let (mut net, mut random) = (Net::pair(false), SplitMix64::new(seed));
            let boat = net.nodes.remove(0);
            let known = seed % 2 == 0;
            attack(&mut net, &mut random, source, 8 * S, |_| false);
            if known {
                net.nodes[0].endpoint.expect_from([boat.address.ip()]);
            }
            net.nodes.insert(0, boat);
            let is_up = |net: &Net| net.nodes.iter().all(Node::is_up);
            attack(&mut net, &mut random, source, 10 * S, is_up);
            assert!(is_up(&net), "seed {seed}");
            let by_boat = net.log.iter().filter(|sent| sent.from == address(1).into());
            let tries = by_boat.filter(|sent| sent.bytes[0] == INITIATION).count();
            assert!(tries <= 2, "{tries} tries, seed {seed}, known {known}");
            let read = net.nodes[1].endpoint.stats().handshakes_read;
            let seconds = (net.now - S).as_secs() + 1;
            // 20 without and 100 with a cookie, and equal bursts.
            assert!(read <= 120 * (seconds + 1), "{read} in {seconds} s");
        }
    }
}
