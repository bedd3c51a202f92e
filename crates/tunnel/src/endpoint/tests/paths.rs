//! Addresses that the peer has to prove.

use splitmix::SplitMix64;

use super::*;

/// Address of a host that never asked for anything.
const VICTIM: u8 = 66;
/// IP and UDP headers.
const HEADERS: u64 = 28;

impl Net {
    /// Bytes on the link from or to an address.
    fn bytes(&self, is_part: impl Fn(&Datagram) -> bool) -> u64 {
        let part = self.log.iter().filter(|datagram| is_part(datagram));
        part.map(|datagram| datagram.bytes.len() as u64 + HEADERS)
            .sum()
    }

    fn from(&self, host: u8) -> u64 {
        self.bytes(|datagram| datagram.from == address(host).into())
    }

    fn to(&self, host: u8) -> u64 {
        self.bytes(|datagram| datagram.to == address(host).into())
    }

    /// Loses what is sent to that address.
    fn deafen(&mut self, host: u8) {
        let is_to = move |datagram: &Datagram| datagram.to == address(host).into();
        self.fate = Box::new(move |_, datagram| {
            let heard = !is_to(datagram);
            heard.then_some(DELAY).into_iter().collect()
        });
    }

    fn challenges(&mut self, node: usize) -> u64 {
        self.nodes[node].session().unwrap().challenges
    }
}

fn long_packets(count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| number.to_be_bytes().repeat(300))
}

/// A hostile peer sends with the address of a victim, and the hub has much for it.
#[test]
fn a_victim_gets_no_more_than_three_times_what_was_sent_in_its_name() {
    let mut net = Net::up();
    net.one().address = address(VICTIM);
    net.deafen(VICTIM);
    net.one().write(b"in another name");
    net.run(DELAY);
    for packet in long_packets(10_000) {
        net.two().write(&packet);
    }
    for step in 0..100u32 {
        net.one().write(&step.to_be_bytes());
        net.run(S / 10);
        assert!(net.to(VICTIM) <= 3 * net.from(VICTIM), "step {step}");
    }
    let (to, from) = (net.to(VICTIM), net.from(VICTIM));
    assert!(to > 2 * from, "the limit is used: {to} for {from}");
    assert!(net.challenges(1) > 5);
}

/// Without arrivals nothing follows but calls to an address that is proved.
#[test]
fn a_victim_is_not_called_for_ever() {
    let mut net = Net::up();
    net.one().write(b"in another name");
    net.one().address = address(VICTIM);
    net.run(Duration::ZERO);
    net.fate = Box::new(|_, _| vec![]);
    net.run(DELAY * 2);
    let before = net.to(1);
    net.run(100 * S);
    assert!(net.to(VICTIM) <= 3 * net.from(VICTIM));
    let calls = (net.to(1) - before) / (super::super::datagram::INITIATION_LEN as u64 + HEADERS);
    assert!(calls > 80, "{calls} calls where the peer has been heard");
}

/// The end of the session by such a packet changes nothing.
#[test]
fn a_victim_is_not_called_after_the_end_of_a_session() {
    let mut net = Net::up();
    net.one()
        .session()
        .unwrap()
        .close(crate::wire::CloseCode::Protocol, "over");
    net.one().address = address(VICTIM);
    net.run(Duration::ZERO);
    net.fate = Box::new(|_, datagram| {
        let from_victim = datagram.from == address(VICTIM).into();
        from_victim.then_some(DELAY).into_iter().collect()
    });
    net.one().address = address(1);
    net.run(S);
    assert!(!net.two().is_up());
    net.run(100 * S);
    assert!(net.to(VICTIM) <= 3 * net.from(VICTIM));
    assert!(net.to(1) > 0, "it is called where it was proved");
}

#[test]
fn an_address_is_proved_in_a_round_trip_and_going_back_is_free() {
    let mut net = Net::up();
    net.one().address = address(50);
    net.one().write(b"from here");
    net.run(DELAY);
    let sent = packets(0, 50);
    sent.iter().for_each(|packet| net.two().write(packet));
    net.run(2 * DELAY);
    assert_eq!(net.challenges(1), 1);
    net.run(DELAY);
    assert_eq!(net.one().inbox(), sent, "a round trip later, all of them");
    // Each address is known.
    for host in [1, 50, 1] {
        net.one().address = address(host);
        net.one().write(b"from there");
        net.run(DELAY);
        sent.iter().for_each(|packet| net.two().write(packet));
        net.run(DELAY);
        assert_eq!(net.one().inbox(), sent);
    }
    assert_eq!(net.challenges(1), 1);
}

#[test]
fn a_lost_challenge_or_answer_is_repeated() {
    for lost in 1..6 {
        let mut net = Net::up();
        net.one().address = address(50);
        net.one().write(&[1; 500]);
        let mut to_lose = lost;
        net.fate = Box::new(move |_, datagram| {
            // A challenge or an answer is the only datagram of that length.
            let is_one = datagram.bytes.len() == super::super::datagram::CHALLENGE_LEN;
            if is_one && to_lose > 0 {
                to_lose -= 1;
                return vec![];
            }
            vec![DELAY]
        });
        net.run(DELAY);
        let sent = packets(0, 50);
        sent.iter().for_each(|packet| net.two().write(packet));
        // Each is repeated after five quarters of a round trip, as long as its length permits.
        net.run(2 * DELAY * (2 + 2 * lost));
        assert_eq!(net.one().inbox(), sent, "{lost} lost");
    }
}

#[test]
fn a_handshake_proves_an_address() {
    let mut net = Net::with(
        Limits {
            rekey_after: 10 * S,
            ..Limits::default()
        },
        false,
    );
    net.run(9 * S);
    net.one().address = address(50);
    // What would tell the hub of the new address is lost, and the handshake is not.
    net.fate = Box::new(|_, datagram| {
        let is_data = datagram.bytes[0] == 5 && datagram.from == address(50).into();
        (!is_data).then_some(DELAY).into_iter().collect()
    });
    net.run(2 * S);
    net.fate = Box::new(|_, _| vec![DELAY]);
    net.run(S);
    let moved = PeerEvent::Roamed(address(50).into());
    assert!(net.two().take_events().contains(&moved));
    let sent = packets(0, 50);
    sent.iter().for_each(|packet| net.two().write(packet));
    net.run(DELAY);
    assert_eq!(net.one().inbox(), sent);
    assert_eq!(net.challenges(1), 0);
}

#[test]
fn an_answer_from_elsewhere_than_called_proves_nothing() {
    let mut net = Net::pair(false);
    net.fate = Box::new(|_, datagram| {
        let data = datagram.bytes[0] == 5;
        (!data).then_some(DELAY).into_iter().collect()
    });
    // The hub answers with another address than that at which it is called.
    let from_victim = |datagram: &Datagram| Datagram {
        from: address(VICTIM).into(),
        ..datagram.clone()
    };
    net.fate = Box::new(|_, datagram| {
        let is_answer = datagram.from == address(2).into();
        (!is_answer).then_some(DELAY).into_iter().collect()
    });
    net.run(2 * DELAY);
    let answer = net.log.iter().find(|datagram| datagram.bytes[0] == 2);
    let answer = from_victim(answer.unwrap());
    assert!(net.deliver(&answer).is_some());
    assert!(net.one().is_up());
    for packet in long_packets(100) {
        net.one().write(&packet);
    }
    net.run(10 * S);
    let came = answer.bytes.len() as u64 + HEADERS;
    assert!(net.to(VICTIM) <= 3 * came);
}

/// Random moves among addresses that the peer has, and those of victims.
#[test]
fn no_schedule_of_moves_exceeds_the_limit_or_ends_the_tunnel() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let limits = Limits {
            rekey_after: 5 * S,
            ..Limits::default()
        };
        let mut net = Net::with(limits, seed % 2 == 0);
        net.run(S);
        let victims = VICTIM..VICTIM + 10;
        let is_victim = move |to: Remote| {
            let mut victims = victims.clone();
            victims.any(|host| to == address(host).into())
        };
        let mut losses = SplitMix64::new(seed + 1000);
        net.fate = Box::new(move |_, datagram| {
            let by_chance = !is_victim(datagram.from) && losses.next_u64().is_multiple_of(10);
            let lost = is_victim(datagram.to) || by_chance;
            (!lost).then_some(DELAY).into_iter().collect()
        });
        for _ in 0..60 {
            let host = match random.next_u64() % 3 {
                0 => 1,
                1 => VICTIM + (random.next_u64() % 10) as u8,
                _ => 40 + (random.next_u64() % 12) as u8,
            };
            net.one().address = address(host);
            for node in &mut net.nodes {
                let Some(session) = node.session() else {
                    continue;
                };
                let packets = (0..random.next_u64() % 20).map(|_| {
                    let length = random.next_u64() % 1400;
                    vec![9; length as usize + 10]
                });
                session.outbox.extend(packets);
            }
            net.run(MS * (random.next_u64() % 600) as u32);
            for host in VICTIM..VICTIM + 10 {
                let (to, from) = (net.to(host), net.from(host));
                assert!(to <= 3 * from, "seed {seed}: {to} to, {from} from {host}");
            }
        }
        net.fate = Box::new(|_, _| vec![DELAY]);
        net.one().address = address(1);
        net.run(20 * S);
        net.nodes.iter_mut().for_each(|node| drop(node.inbox()));
        for from in [0, 1] {
            let sent = packets(0, 10);
            assert_eq!(net.transfer(from, &sent), sent, "seed {seed}");
        }
    }
}
