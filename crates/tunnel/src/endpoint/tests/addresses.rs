//! Peers with several possible addresses.

use super::{
    super::{ADDRESSES, Carrier, Carriers},
    *,
};

fn v6(host: u16) -> SocketAddr {
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, host], 5001).into()
}

/// Creates a pair whose first node calls the second, which is at `address(2)`, at these addresses.
fn calling(addresses: &[SocketAddr], carriers: Carriers) -> Net {
    calling_with(addresses, |config| config.carriers = carriers)
}

/// Creates a pair as [`calling`] does, with changed configurations of both.
fn calling_with(addresses: &[SocketAddr], change: impl Fn(&mut PeerConfig)) -> Net {
    let mut net = Net::pair(false);
    for (host, other, addresses) in [(1, 2, addresses), (2, 1, &[])] {
        let mut node = Node::new(host, host, Limits::default());
        let mut config = peer_config(other, false);
        config.addresses = addresses.to_vec();
        change(&mut config);
        node.endpoint.add_peer(config).expect("none yet");
        net.nodes[usize::from(host) - 1] = node;
    }
    net
}

impl Net {
    fn first(&self) -> PeerId {
        let other = public_key(&private(2));
        self.nodes[0].endpoint.find_peer(&other).expect("added")
    }

    fn state(&self) -> super::super::PeerState {
        let state = self.nodes[0].endpoint.peer_state(self.first());
        state.expect("added")
    }

    /// Returns calls of the first node: time in milliseconds from now, and destination. Nothing
    /// arrives.
    fn calls(&mut self, time: Duration) -> Vec<(u128, Remote)> {
        let (calls, began) = (std::rc::Rc::default(), self.now);
        let noted: std::rc::Rc<std::cell::RefCell<Vec<_>>> = std::rc::Rc::clone(&calls);
        self.fate = Box::new(move |now, datagram| {
            if datagram.from.address == address(1) && datagram.bytes[0] == 1 {
                noted
                    .borrow_mut()
                    .push(((now - began).as_millis(), datagram.to));
            }
            vec![]
        });
        self.run(time);
        calls.take()
    }

    fn time_until_up(&mut self, most: Duration) -> Duration {
        let began = self.now;
        while !self.state().up {
            assert!(self.now < began + most, "no session within {most:?}");
            self.run(10 * MS);
        }
        self.now - began
    }
}

/// The stated round trip of 600 ms is the wait for an answer before the next address is called.
#[test]
fn a_round_calls_all_addresses_and_the_next_one_follows_a_second_later() {
    let mut net = calling(&[v6(9), v6(8), address(2)], Carriers::Udp);
    let calls = net.calls(6 * S);
    let expected = [v6(9), address(2), v6(8)].map(Remote::from);
    let to: Vec<_> = calls.iter().map(|(_, to)| *to).collect();
    assert_eq!(to[..6], [expected, expected].concat());
    let times: Vec<_> = calls.iter().map(|(at, _)| *at).collect();
    assert_eq!(times[..3], [0, 600, 1200]);
    assert!((2000..=2400).contains(&times[3]), "{times:?}");
    assert_eq!(times[4] - times[3], 600);
}

#[test]
fn on_a_short_path_the_second_address_is_called_after_a_quarter_of_a_second() {
    let mut net = calling_with(&[v6(9), address(2)], |config| {
        config.session.rtt = 20 * MS;
    });
    let time = net.time_until_up(S);
    assert_eq!(time, 350 * MS, "250 ms, and a round trip of 100 ms");
}

#[test]
fn a_dead_address_costs_one_wait_and_the_one_that_answered_is_kept() {
    let mut net = calling(&[v6(9), address(2)], Carriers::Udp);
    let time = net.time_until_up(3 * S);
    assert_eq!(time, 700 * MS, "600 ms, and a round trip of 100 ms");
    assert_eq!(net.state().remote, Some(address(2).into()));
    net.run(S);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    // When the peer is silent, and when it returns, it is called there first.
    let calls = net.calls(8 * S);
    assert_eq!(calls[0].1, address(2).into());
    assert_eq!(calls[1].1, v6(9).into());
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(2 * S);
    assert_eq!(net.transfer(0, &packets(10, 10)), packets(10, 10));
}

/// Two addresses of one peer: the second call is not answered sooner than the first.
#[test]
fn the_first_address_is_used_where_all_of_them_answer() {
    let mut net = calling(&[address(2), address(3)], Carriers::Udp);
    net.fate = Box::new(|_, datagram| match datagram.to.address == address(3) {
        true => vec![],
        false => vec![DELAY],
    });
    net.run(S);
    assert_eq!(net.state().remote, Some(address(2).into()));
    let sent = net.log.iter().filter(|sent| sent.to.address == address(3));
    assert_eq!(sent.count(), 0, "no further call after a timely answer");
}

#[test]
fn by_tcp_all_addresses_are_called_too() {
    let mut net = calling(&[v6(9), address(2)], Carriers::Both);
    net.fate = Box::new(|_, datagram| match datagram.to.carrier {
        Carrier::Tcp => vec![DELAY],
        Carrier::Udp => vec![],
    });
    let time = net.time_until_up(20 * S);
    assert_eq!(net.state().remote, Some(Remote::tcp(address(2))));
    // Three rounds by UDP, of 1.6 s; then a first answer by TCP, UDP once more, and TCP again.
    assert!(time <= 12 * S, "{time:?}");
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(60 * S);
    assert_eq!(net.state().remote, Some(address(2).into()), "by UDP again");
}

#[test]
fn udp_is_probed_at_all_addresses() {
    let mut net = calling(&[address(9), address(2)], Carriers::Both);
    net.fate = Box::new(|_, datagram| match datagram.to.carrier {
        Carrier::Tcp => vec![DELAY],
        Carrier::Udp => vec![],
    });
    net.time_until_up(20 * S);
    net.log.clear();
    net.run(60 * S);
    assert_eq!(net.state().remote, Some(Remote::tcp(address(2))));
    let probes = net.log.iter().map(|sent| sent.to);
    let probes = probes.filter(|to| to.carrier == Carrier::Udp);
    let probes: Vec<_> = probes.map(|to| to.address).collect();
    // The address used by TCP first, then the others in turn.
    assert!(probes.len() >= 4, "{probes:?}");
    assert_eq!(
        probes[..4],
        [address(2), address(9), address(2), address(9)]
    );
}

#[test]
fn a_session_goes_on_at_the_new_address_of_a_peer_that_has_moved() {
    let mut net = calling(&[address(2)], Carriers::Udp);
    net.run(S);
    net.forget_events();
    net.nodes[1].address = v6(7);
    // Otherwise its own packets would reveal its address.
    let mut is_found = false;
    net.fate = Box::new(move |_, datagram| {
        is_found |= datagram.to.address == v6(7);
        match datagram.from.address == v6(7) && !is_found {
            true => vec![],
            false => vec![DELAY],
        }
    });
    // After three seconds of silence it is called at its last address.
    net.run(3 * S + 500 * MS);
    let (id, now) = (net.first(), net.now);
    assert!(!net.nodes[0].endpoint.is_well(now, id));
    net.one().endpoint.set_addresses(now, id, &[v6(7)]);
    let mut time = Duration::ZERO;
    while net.state().remote != Some(v6(7).into()) {
        net.run(10 * MS);
        time += 10 * MS;
        assert!(time <= 2 * S, "it is not followed");
    }
    // At once at the old address, 600 ms later at the new one, and a round trip of 100 ms.
    assert_eq!(time, 700 * MS);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    let ups = net.one().take_events();
    assert!(!ups.contains(&PeerEvent::Up), "it is the same session");
}

#[test]
fn a_session_that_works_is_not_disturbed_by_other_addresses() {
    let mut net = Net::up();
    let (id, now) = (net.first(), net.now);
    assert!(net.nodes[0].endpoint.is_well(now, id));
    net.one()
        .endpoint
        .set_addresses(now, id, &[v6(7), address(8)]);
    net.log.clear();
    // Twenty minutes with something to send, and two rekeyings.
    for step in 0..1200 {
        net.nodes[0].write(&step.to_string().into_bytes());
        net.nodes[1].write(b"back");
        net.run(S);
    }
    assert_eq!(net.two().inbox().len(), 1200);
    assert_eq!(net.state().remote, Some(address(2).into()));
    let all_to = [address(1), address(2)];
    let elsewhere = net
        .log
        .iter()
        .find(|sent| !all_to.contains(&sent.to.address));
    assert!(elsewhere.is_none(), "{elsewhere:?}");
    assert_eq!(net.one().take_events(), []);
    let keys = net.log.iter().filter(|sent| sent.bytes[0] == 1).count();
    assert!(keys >= 1, "new keys were agreed on");
}

/// A name that temporarily has no address ends nothing.
#[test]
fn a_session_outlives_the_loss_of_all_addresses() {
    let mut net = Net::up();
    let (id, now) = (net.first(), net.now);
    net.one().endpoint.set_addresses(now, id, &[]);
    net.fate = Box::new(|_, _| vec![]);
    net.run(30 * S);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(2 * S);
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
    assert!(!net.one().take_events().contains(&PeerEvent::Up));
}

/// With a name that points elsewhere and no session, the old address is not called for ever.
#[test]
fn where_a_peer_was_it_is_not_called_for_ever() {
    let mut net = Net::up();
    net.two().endpoint.shut_down("ends");
    net.run(S);
    assert!(!net.state().up);
    let (id, now) = (net.first(), net.now);
    net.one().endpoint.set_addresses(now, id, &[address(8)]);
    let calls = net.calls(1200 * S);
    let was = |(_, to): &&(u128, Remote)| to.address == address(2);
    let last = calls.iter().rfind(was).expect("at first").0;
    // Sixty rounds; a peer that has shut down is called every eight seconds.
    assert!((300_000..700_000).contains(&last), "{last} ms");
    assert!(calls.last().expect("some").0 > 1_180_000);
}

#[test]
fn on_a_link_of_some_bits_a_second_the_second_address_is_called_too() {
    let mut net = calling_with(&[v6(9), address(2)], |config| {
        config.session.rate = Rate::Stated(1200);
    });
    let calls = net.calls(70 * S);
    let to: Vec<_> = calls.iter().map(|(_, to)| to.address).collect();
    assert_eq!(to[..4], [v6(9), address(2), v6(9), address(2)]);
    // Each takes 1.7 s of the link, of which handshakes have a tenth.
    assert!(calls[1].0 - calls[0].0 > 16_000, "{calls:?}");
}

#[test]
fn addresses_are_those_that_were_set() {
    let mut net = Net::pair(false);
    let (id, now) = (net.first(), net.now);
    let many: Vec<_> = (10..30).map(address).collect();
    net.one().endpoint.set_addresses(now, id, &many);
    assert_eq!(net.nodes[0].endpoint.addresses(id), &many[..ADDRESSES]);
    net.one().endpoint.remove_peer(id);
    assert_eq!(net.nodes[0].endpoint.addresses(id), []);
    assert!(!net.nodes[0].endpoint.is_well(now, id));
}
