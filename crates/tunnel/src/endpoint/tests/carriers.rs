//! UDP and TCP as carriers to the same peer.

use super::{
    super::{Carrier, Carriers},
    *,
};
use crate::session::Event;

fn net(first: Carriers, second: Carriers, both_call: bool) -> Net {
    let mut net = Net::pair(both_call);
    for (at, carriers) in [first, second].into_iter().enumerate() {
        let node = &mut net.nodes[at];
        node.endpoint.remove_peer(PeerId(0));
        let config = PeerConfig {
            last: None,
            carriers,
            ..peer_config(2 - at as u8, at == 0 || both_call)
        };
        node.endpoint.add_peer(config).expect("it was removed");
    }
    net
}

/// Creates a pair that permits both carriers at both ends; the first node calls.
fn auto() -> Net {
    net(Carriers::Both, Carriers::Both, false)
}

impl Net {
    /// Restricts the network to datagrams for which `passes` returns true.
    fn only(&mut self, mut passes: impl FnMut(&Datagram) -> bool + 'static) {
        self.fate = Box::new(move |_, datagram| match passes(datagram) {
            true => vec![DELAY],
            false => vec![],
        });
    }

    /// Restarts the second node.
    fn restart_second(&mut self) {
        self.nodes[1] = Node::new(2, 9, Limits::default());
        let config = PeerConfig {
            last: None,
            carriers: Carriers::Both,
            ..peer_config(1, false)
        };
        self.nodes[1].endpoint.add_peer(config).expect("none yet");
    }

    fn only_by(&mut self, carrier: Carrier) {
        self.only(move |datagram| datagram.to.carrier == carrier);
    }

    fn id(&self, at: usize) -> PeerId {
        let other = public_key(&private(2 - at as u8));
        self.nodes[at].endpoint.find_peer(&other).expect("added")
    }

    fn carriers(&self) -> [Option<Carrier>; 2] {
        [0, 1].map(|at| {
            let state = self.nodes[at].endpoint.peer_state(self.id(at));
            let state = state.expect("added");
            state
                .remote
                .filter(|_| state.up)
                .map(|remote| remote.carrier)
        })
    }

    /// Returns the seconds until both ends use that carrier, at most `most`.
    fn time_until(&mut self, carrier: Carrier, most: u32) -> u32 {
        for second in 0..most {
            if self.carriers() == [Some(carrier); 2] {
                return second;
            }
            self.run(S);
        }
        panic!("not by {carrier} within {most} s: {:?}", self.carriers());
    }

    /// Returns for each end whether its session has a reliable carrier.
    fn reliable(&mut self) -> [bool; 2] {
        [0, 1].map(|at| {
            let id = self.id(at);
            self.nodes[at].endpoint.session(id).expect("up").reliable
        })
    }

    fn write_both(&mut self, first: u32, count: u32) {
        for at in 0..2 {
            let id = self.id(at);
            let session = self.nodes[at].endpoint.session(id).expect("up");
            session.outbox.extend(packets(first, count));
        }
    }

    fn arrived(&mut self, at: usize) -> Vec<Vec<u8>> {
        let id = self.id(at);
        let session = self.nodes[at].endpoint.session(id).expect("up");
        let inbox = std::mem::take(&mut session.inbox);
        inbox.into_iter().map(|(_, packet)| packet).collect()
    }

    fn sent_by(&self, carrier: Carrier) -> usize {
        let log = self.log.iter();
        log.filter(|datagram| datagram.to.carrier == carrier)
            .count()
    }

    /// Returns the sessions that have begun and ended since the last call.
    fn began_and_ended(&mut self) -> [usize; 2] {
        let events = self.nodes.iter_mut().flat_map(Node::take_events);
        events.fold([0, 0], |[began, ended], event| match event {
            PeerEvent::Up => [began + 1, ended],
            PeerEvent::Down(_) => [began, ended + 1],
            _ => [began, ended],
        })
    }
}

#[test]
fn udp_is_used_where_it_gets_through_and_nothing_else_tried() {
    let mut net = auto();
    net.run(100 * S);
    assert_eq!(net.carriers(), [Some(Carrier::Udp); 2]);
    assert_eq!(net.sent_by(Carrier::Tcp), 0);
}

#[test]
fn where_udp_does_not_get_through_tcp_is_tried_after_three_seconds() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    let time = net.time_until(Carrier::Tcp, 10);
    assert!((3..=5).contains(&time), "{time} s");
    net.write_both(0, 10);
    net.run(S);
    assert_eq!(
        [net.arrived(0), net.arrived(1)],
        [packets(0, 10), packets(0, 10)]
    );
    assert_eq!(net.reliable(), [true; 2], "from its beginning");
}

/// With a round trip of two seconds, no answer within three seconds means nothing.
#[test]
fn a_long_path_is_given_three_round_trips() {
    let mut net = auto();
    let (id, mut config) = (net.id(0), peer_config(2, true));
    net.one().endpoint.remove_peer(id);
    config.carriers = Carriers::Both;
    config.session.rtt = 4 * S;
    net.one().endpoint.add_peer(config).expect("removed");
    net.fate = Box::new(|_, _| vec![2 * S]);
    net.run(60 * S);
    assert_eq!(net.carriers(), [Some(Carrier::Udp); 2]);
    assert_eq!(net.sent_by(Carrier::Tcp), 0);
}

#[test]
fn a_session_goes_on_by_tcp_and_comes_back_to_udp_without_a_new_one() {
    let mut net = auto();
    net.run(S);
    assert_eq!(net.carriers(), [Some(Carrier::Udp); 2]);
    assert_eq!(net.began_and_ended(), [2, 0]);
    assert_eq!(net.reliable(), [false; 2]);
    net.only_by(Carrier::Tcp);
    let time = net.time_until(Carrier::Tcp, 20);
    assert!((3..=6).contains(&time), "{time} s");
    assert_eq!(net.reliable(), [true; 2]);
    net.write_both(0, 10);
    net.run(60 * S);
    assert_eq!(
        [net.arrived(0), net.arrived(1)],
        [packets(0, 10), packets(0, 10)]
    );
    net.only(|_| true);
    net.time_until(Carrier::Udp, 30);
    assert_eq!(net.reliable(), [false; 2]);
    net.write_both(10, 10);
    net.run(S);
    assert_eq!(
        [net.arrived(0), net.arrived(1)],
        [packets(10, 10), packets(10, 10)]
    );
    assert_eq!(net.began_and_ended(), [0, 0], "the session went on");
}

/// One answer in four does not bring UDP back, nor is it probed often.
#[test]
fn udp_that_is_not_reliable_is_left_alone() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 10);
    let (probes, mut count) = (net.sent_by(Carrier::Udp), 0);
    net.only(move |datagram| {
        count += u32::from(datagram.to.carrier == Carrier::Udp);
        datagram.to.carrier == Carrier::Tcp || count % 4 != 0
    });
    net.run(300 * S);
    assert_eq!(net.carriers(), [Some(Carrier::Tcp); 2]);
    let probes = net.sent_by(Carrier::Udp) - probes;
    assert!((30..=200).contains(&probes), "{probes} datagrams");
}

/// UDP that works for some seconds only is tried less and less often.
#[test]
fn fickle_udp_is_probed_less_and_less() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 10);
    let mut times = Vec::new();
    for _ in 0..4 {
        net.only(|_| true);
        times.push(net.time_until(Carrier::Udp, 400));
        net.only_by(Carrier::Tcp);
        net.time_until(Carrier::Tcp, 10);
    }
    let (first, last) = (times[0], times[3]);
    assert!(first <= 14 && last >= 70, "{times:?}");
}

/// A complete outage ends on UDP: TCP calls in flight change nothing.
#[test]
fn an_outage_does_not_end_on_tcp() {
    for length in [4, 5, 7, 20] {
        let mut net = auto();
        net.run(S);
        net.forget_events();
        net.only(|_| false);
        net.run(length * S);
        // Connections take longer than datagrams.
        net.fate = Box::new(|_, datagram| match datagram.to.carrier {
            Carrier::Udp => vec![DELAY],
            Carrier::Tcp => vec![10 * DELAY],
        });
        net.run(60 * S);
        assert_eq!(net.carriers(), [Some(Carrier::Udp); 2], "{length} s");
        let roamed = |event: &PeerEvent| matches!(event, PeerEvent::Roamed(_));
        assert!(!net.one().take_events().iter().any(roamed), "{length} s");
    }
}

/// The peer is heard but does not hear, which its calls show.
#[test]
fn udp_in_one_direction_is_not_enough() {
    for blocked in [0, 1] {
        let mut net = auto();
        net.run(S);
        net.only(move |datagram| {
            let from = address(1 + blocked);
            datagram.to.carrier == Carrier::Tcp || datagram.from.address != from
        });
        let time = net.time_until(Carrier::Tcp, 20);
        assert!(time <= 10, "blocked at {blocked}: {time} s");
    }
}

#[test]
fn only_the_carriers_that_a_peer_may_have_are_used() {
    for (first, second, by) in [
        (Carriers::Tcp, Carriers::Both, Some(Carrier::Tcp)),
        (Carriers::Udp, Carriers::Both, Some(Carrier::Udp)),
        (Carriers::Both, Carriers::Tcp, Some(Carrier::Tcp)),
        (Carriers::Both, Carriers::Udp, Some(Carrier::Udp)),
        (Carriers::Tcp, Carriers::Udp, None),
        (Carriers::Udp, Carriers::Tcp, None),
    ] {
        let mut net = net(first, second, false);
        net.run(30 * S);
        assert_eq!(net.carriers(), [by; 2], "{first:?}, {second:?}");
    }
    let mut net = net(Carriers::Udp, Carriers::Both, false);
    net.only_by(Carrier::Tcp);
    net.run(30 * S);
    assert_eq!((net.carriers(), net.sent_by(Carrier::Tcp)), ([None; 2], 0));
}

/// Each calls the other; finally one of the two connections is used.
#[test]
fn two_that_call_each_other_agree_on_a_connection() {
    let mut net = net(Carriers::Both, Carriers::Both, true);
    // Connections come from another port than the caller's own.
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 20);
    net.run(5 * S);
    net.forget_events();
    net.write_both(0, 50);
    net.run(20 * S);
    assert_eq!(
        [net.arrived(0), net.arrived(1)],
        [packets(0, 50), packets(0, 50)]
    );
    for node in &mut net.nodes {
        assert_eq!(node.take_events(), [], "no further change of carrier");
    }
}

#[test]
fn who_is_held_gets_handshakes_only_until_released() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 10);
    net.run(S);
    let (id, remote) = (net.id(0), Remote::tcp(address(2)));
    net.one().endpoint.hold(id, remote);
    let before = net.one().sent;
    net.write_both(0, 20);
    net.run(2 * S);
    assert_eq!((net.one().sent, net.arrived(1)), (before, vec![]));
    net.one().endpoint.release(id, remote);
    net.run(S);
    assert_eq!(net.arrived(1), packets(0, 20));
    // Other remotes are not held.
    net.one().endpoint.hold(id, remote);
    net.only_by(Carrier::Udp);
    net.time_until(Carrier::Udp, 20);
    net.write_both(20, 20);
    net.run(S);
    assert_eq!(net.arrived(1), packets(20, 20));
}

#[test]
fn who_loses_its_connection_calls_at_once() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 10);
    net.run(S);
    net.write_both(0, 20);
    let (id, remote) = (net.id(0), Remote::tcp(address(2)));
    net.one().endpoint.lose(id, remote);
    // By UDP first, and a second later by TCP.
    net.run(2 * S);
    assert_eq!(net.arrived(1), packets(0, 20));
    assert_eq!(net.carriers(), [Some(Carrier::Tcp); 2]);
    net.one().endpoint.lose(id, remote);
    net.only(|_| true);
    net.run(S / 2);
    assert_eq!(net.carriers(), [Some(Carrier::Udp); 2]);
}

/// Silence is noticed even though nothing can be sent.
#[test]
fn silence_is_noticed_where_nothing_can_be_sent() {
    let stop: [fn(&mut Endpoint, PeerId, Remote); 2] = [Endpoint::lose, Endpoint::hold];
    for stop in stop {
        let mut net = net(Carriers::Tcp, Carriers::Both, false);
        net.time_until(Carrier::Tcp, 10);
        net.run(S);
        net.forget_events();
        net.only(|_| false);
        let id = net.id(0);
        stop(&mut net.one().endpoint, id, Remote::tcp(address(2)));
        net.run(5 * S);
        let downs = PeerEvent::Session(Event::LinkDown);
        assert_eq!(net.one().take_events(), [downs], "reported once");
    }
}

/// Packets in flight by TCP do not move an end back to it.
#[test]
fn a_change_of_carrier_under_load_is_one_at_each_end() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 10);
    net.run(S);
    net.forget_events();
    net.fate = Box::new(|_, _| vec![100 * MS]);
    for step in 0..2000 {
        net.write_both(step * 2, 2);
        net.run(10 * MS);
    }
    assert_eq!(net.carriers(), [Some(Carrier::Udp); 2]);
    for node in &mut net.nodes {
        let mut events = node.take_events();
        events.retain(|event| matches!(event, PeerEvent::Roamed(_)));
        assert_eq!(events.len(), 1, "{events:?}");
    }
}

/// UDP fails again before the peer has learnt of the change to it.
#[test]
fn who_is_not_followed_to_udp_comes_back() {
    let mut net = auto();
    net.only_by(Carrier::Tcp);
    net.time_until(Carrier::Tcp, 10);
    net.only(|datagram| datagram.to.carrier == Carrier::Tcp || datagram.bytes[0] <= 2);
    while net.carriers()[0] == Some(Carrier::Tcp) {
        net.run(100 * MS);
    }
    net.only_by(Carrier::Tcp);
    let time = net.time_until(Carrier::Tcp, 10);
    assert!(time <= 5, "{time} s");
}

/// Whatever the carrier of the call at its return, a peer ends on UDP.
#[test]
fn a_peer_that_was_down_is_reached_by_udp() {
    for down in 30..60 {
        let mut net = auto();
        net.run(S);
        net.only(|_| false);
        net.run(down * 100 * MS);
        net.restart_second();
        net.only(|_| true);
        net.run(5 * S);
        assert_eq!(net.carriers(), [Some(Carrier::Udp); 2], "{down}");
        let moved = PeerEvent::Roamed(Remote::tcp(address(2)));
        assert!(!net.one().take_events().contains(&moved), "{down}");
    }
}
