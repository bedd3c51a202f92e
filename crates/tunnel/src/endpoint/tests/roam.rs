//! Peers that change their address.

use super::*;

#[test]
fn a_peer_that_moves_under_load_loses_nothing() {
    let mut net = Net::up();
    let mut arrived = [Vec::new(), Vec::new()];
    for step in 0..40u32 {
        net.load(step * 10, [10, 10], &mut arrived);
        if step % 10 == 5 {
            net.one().address = address(100 + step as u8);
        }
        net.run(DELAY / 4);
    }
    net.run(S);
    let moved = net.nodes[1].take_events();
    let expected = [105, 115, 125, 135].map(|host| PeerEvent::Roamed(address(host).into()));
    assert_eq!(moved, expected);
    arrived[1].extend(net.two().inbox());
    // Packets from the first node arrive; those in flight to the old address do not.
    assert_eq!(arrived[1].len(), 400);
    let sent_to_old = net
        .log
        .iter()
        .filter(|datagram| datagram.to == address(1).into())
        .count();
    assert!(sent_to_old > 0);
    net.one().inbox();
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

#[test]
fn only_the_newest_packet_says_where_a_peer_is() {
    let mut net = Net::up();
    net.write_to_log(3);
    let sent = net.log.split_off(net.log.len() - 3);
    let moved = |datagram: &Datagram, host| Datagram {
        from: address(host).into(),
        ..datagram.clone()
    };
    net.deliver(&moved(&sent[2], 77));
    net.deliver(&moved(&sent[0], 78));
    net.deliver(&moved(&sent[2], 79));
    assert_eq!(
        net.two().take_events(),
        [PeerEvent::Roamed(address(77).into())]
    );
}

#[test]
fn a_sender_is_presumed_by_its_index_and_its_address() {
    let mut net = Net::up();
    net.write_to_log(1);
    let packet = net.log.pop().unwrap();
    let claimed =
        |net: &mut Net, from: Remote, bytes: &[u8]| net.two().endpoint.claimed_sender(from, bytes);
    assert_eq!(
        claimed(&mut net, packet.from, &packet.bytes),
        Some(PeerId(0))
    );
    assert_eq!(claimed(&mut net, address(77).into(), &packet.bytes), None);
    let by_tcp = Remote::tcp(packet.from.address);
    assert_eq!(claimed(&mut net, by_tcp, &packet.bytes), None);
    for at in 1..5 {
        let mut other = packet.bytes.clone();
        other[at] ^= 1;
        assert_eq!(claimed(&mut net, packet.from, &other), None, "byte {at}");
    }
    let initiation = net.log.iter().find(|datagram| datagram.bytes[0] == 1);
    let initiation = initiation.unwrap().clone();
    assert_eq!(claimed(&mut net, initiation.from, &initiation.bytes), None);
}

impl Net {
    /// Writes packets that are sent and never arrive.
    fn write_to_log(&mut self, count: u32) {
        self.fate = Box::new(|_, _| vec![]);
        packets(0, count)
            .iter()
            .for_each(|packet| self.nodes[0].write(packet));
        self.run(Duration::ZERO);
        self.fate = Box::new(|_, _| vec![DELAY]);
    }
}

/// The peer is called at its last and its configured address, in turn.
#[test]
fn a_peer_that_comes_back_to_its_address_is_found() {
    let mut net = Net::up();
    net.two().address = address(50);
    net.two().write(b"from here");
    net.run(S);
    assert_eq!(
        net.one().take_events(),
        [PeerEvent::Roamed(address(50).into())]
    );
    net.restart(1, 9, false);
    net.run(10 * S);
    assert!(net.two().is_up());
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
}

#[test]
fn a_moved_initiator_restarts_from_its_new_address() {
    let mut net = Net::up();
    net.restart(0, 9, true);
    net.one().address = address(50);
    // The first call makes the other end ask at the old address.
    net.run(3 * S);
    assert!(
        net.two()
            .take_events()
            .contains(&PeerEvent::Roamed(address(50).into()))
    );
    assert_eq!(net.transfer(1, &packets(0, 10)), packets(0, 10));
}

/// Two hubs behind one name, for example.
#[test]
fn of_two_hosts_with_one_key_the_first_keeps_its_session_while_it_is_heard() {
    let mut net = Net::up();
    let mut second = Node::new(1, 9, Limits::default());
    second.address = address(60);
    second.peer(2, true);
    net.nodes.push(second);
    net.run(300 * S);
    assert!(net.nodes[0].is_up() && !net.nodes[2].is_up());
    assert_eq!(
        (net.one().take_events(), net.two().take_events()),
        (vec![], vec![])
    );
    let stranger = net.two().endpoint.take_stranger();
    let expected = (Stranger::SecondHolder, address(60).into());
    assert_eq!(stranger, Some(expected));
    // The first one ends without a word.
    let is_gone =
        |datagram: &Datagram| [datagram.from, datagram.to].contains(&Remote::from(address(1)));
    net.fate = Box::new(move |_, datagram| match is_gone(datagram) {
        true => vec![],
        false => vec![DELAY],
    });
    net.run(5 * S);
    assert!(net.nodes[2].is_up());
}
