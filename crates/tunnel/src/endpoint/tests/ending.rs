use super::*;
use crate::wire::CloseCode;

/// Returns the number of initiations sent to a host.
fn calls(net: &Net, host: u8) -> usize {
    let initiations = net.log.iter().filter(|datagram| datagram.bytes[0] == 1);
    let to = address(host);
    initiations.filter(|call| call.to.address == to).count()
}

#[test]
fn a_peer_that_ends_is_left_alone_for_a_while_and_called_more_and_more_rarely() {
    let mut net = Net::up();
    net.log.clear();
    net.two().endpoint.shut_down("it ends");
    // It is up for a moment, and then down.
    net.run(S / 2);
    assert!(!net.one().is_up());
    net.fate = Box::new(|_, _| vec![]);
    net.run(S);
    assert_eq!(calls(&net, 2), 0, "for two seconds");
    net.run(2 * S);
    assert_eq!(calls(&net, 2), 1);
    net.run(60 * S);
    let later = calls(&net, 2);
    assert!((5..=11).contains(&later), "every eight seconds: {later}");
    // Another endpoint replaces it.
    net.restart(1, 33, false);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(10 * S);
    assert!(net.nodes.iter().all(Node::is_up));
    assert_eq!(net.transfer(0, &packets(0, 10)), packets(0, 10));
}

#[test]
fn a_peer_that_has_ended_is_there_at_once_when_it_calls_and_is_called_as_usual_from_then_on() {
    let mut net = Net::up();
    net.two().endpoint.shut_down("it ends");
    net.run(S / 2);
    net.restart(1, 33, true);
    net.run(S / 2);
    assert!(net.nodes.iter().all(Node::is_up));
    net.fate = Box::new(|_, _| vec![]);
    net.log.clear();
    net.run(20 * S);
    assert!(calls(&net, 2) >= 13, "{}", calls(&net, 2));
}

#[test]
fn who_ends_begins_no_session_whatever_comes() {
    let mut net = Net::pair(true);
    let mut early = net.log.len();
    // Both have been called, and nothing is proven.
    net.run(DELAY + DELAY / 2);
    assert!(!net.two().is_up());
    net.two().endpoint.shut_down("it ends");
    early = net.log.len() - early;
    assert!(early > 0);
    net.run(20 * S);
    assert!(!net.two().is_up());
    assert_eq!(net.two().take_events(), []);
    let two = address(2);
    let own = net.log[early..]
        .iter()
        .filter(|sent| sent.from.address == two);
    assert_eq!(own.count(), 0, "neither calls nor answers");
}

#[test]
fn a_session_that_ends_for_another_one_is_replaced_at_once() {
    let mut net = Net::up();
    net.one().take_events();
    let session = net.two().session().expect("up");
    session.close(CloseCode::Elsewhere, "it moves");
    net.run(S / 2);
    let events = net.one().take_events();
    let down = PeerEvent::Down(DownReason::Elsewhere);
    let at = events.iter().position(|event| *event == down);
    let up = events.iter().position(|event| *event == PeerEvent::Up);
    assert!(at.is_some() && at < up, "{events:?}");
}

#[test]
fn who_ends_with_sessions_closes_them_and_takes_no_other_one() {
    let mut net = Net::up();
    net.two().endpoint.shut_down("it ends");
    net.run(30 * S);
    let down = PeerEvent::Down(DownReason::PeerClosed);
    assert!(net.one().take_events().contains(&down));
    assert!(!net.one().is_up());
    let two = net.two().take_events();
    assert!(!two.contains(&PeerEvent::Up), "{two:?}");
}
