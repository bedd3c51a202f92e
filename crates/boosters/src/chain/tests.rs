use super::*;
use crate::{
    ack_reconstruction, congestion,
    rule::When,
    tcp::{
        flags,
        tests::{answer, segment},
    },
    wire::{ACKS, Abilities},
};

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn chain(at_queue: Vec<QueueLayer>, lower: Vec<Layer>) -> Chain {
    let queue = Queue::new(1 << 20, Some(Duration::from_secs(1)));
    Chain::new(Vec::new(), at_queue, queue, lower)
}

/// Returns the messages that leave now, of up to `room` bytes each.
fn leave(chain: &mut Chain, now: Duration, room: usize) -> Vec<(Vec<u8>, Ecn)> {
    let mut all = Vec::new();
    loop {
        let mut out = Vec::new();
        let Some(ecn) = chain.poll_message(now, room, &mut out) else {
            return all;
        };
        all.push((out, ecn));
    }
}

fn counter(chain: &Chain, booster: &str, name: &str) -> u64 {
    let mut found = None;
    chain.counters(&mut |layer, count, value| {
        if (layer, count) == (booster, name) {
            found = Some(value);
        }
    });
    found.expect(name)
}

const NEVER: Rule = Rule {
    when: When::Never,
    loss_above: None,
    asymmetry_above: None,
    queue_above: None,
    after: Duration::ZERO,
};

#[test]
fn at_the_queue_only_those_work_that_are_on() {
    for (when, reported) in [(When::Always, true), (When::Never, false)] {
        let rule = Rule { when, ..NEVER };
        let booster = congestion::Congestion::new(congestion::Config::default());
        let layer = QueueLayer::new("congestion", 0, rule, booster);
        let mut chain = chain(vec![layer], Vec::new());
        for number in 0..100 {
            let now = ms(number * 200);
            let mut segment = segment(number as u32, 9, flags::ACK, b"data");
            segment[1] = 2;
            chain.from_host(now, &segment);
            leave(&mut chain, now + ms(199), 1400);
        }
        assert_eq!(counter(&chain, "congestion", "marked") > 0, reported);
    }
}

#[test]
fn what_was_begun_in_the_queue_is_finished_for_who_understands_it() {
    for (abilities, kind) in [(Abilities::ALL, ACKS), (0, 0x45)] {
        let rule = Rule {
            when: When::Rule,
            loss_above: "1%".parse().ok(),
            ..NEVER
        };
        let booster = ack_reconstruction::Collapse::new(Default::default());
        let name = "ack_reconstruction";
        let layer = QueueLayer::new(name, Abilities::ACKS, rule, booster);
        let mut chain = chain(vec![layer], Vec::new());
        let path = |loss, abilities| Path {
            loss,
            abilities,
            ..Path::default()
        };
        chain.set_path(ms(0), &path(0.1, Abilities::ALL));
        for number in 1..10 {
            chain.from_host(ms(0), &answer(9, 100 * number, flags::ACK, &[]));
        }
        chain.set_path(ms(0), &path(0.0, abilities));
        assert_eq!(counter(&chain, name, "on"), 0);
        let left = leave(&mut chain, ms(1), 1400);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].0[0], kind);
    }
}

#[test]
fn congestion_of_one_piece_is_reported() {
    let mut bytes = segment(1, 9, flags::ACK, &[7; 3000]);
    bytes[1] = 2;
    crate::checksum::replace_u16(&mut bytes, 10, 0x4500, 0x4502);
    for met in 0..4 {
        let mut sender = chain(Vec::new(), Vec::new());
        sender.from_host(ms(0), &bytes);
        let pieces = leave(&mut sender, ms(0), 1000);
        assert_eq!(pieces.len(), 4);
        let mut receiver = Receiver::new(Vec::new());
        for (number, (piece, ecn)) in pieces.iter().enumerate() {
            assert_eq!(*ecn, Ecn::Ect0);
            let outer = if number == met { Ecn::Ce } else { *ecn };
            receiver.handle(ms(0), piece, outer);
        }
        let came = receiver.poll_packet().expect("a message from all pieces");
        assert_eq!(ecn::of_packet(&came.bytes), Ecn::Ce, "piece {met}");
    }
}

/// Returns a datagram of this flow.
fn datagram(port: u16, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ipv4([10, 0, 0, 1], [10, 9, 0, 2], 64);
    let payload = vec![port as u8; len];
    builder
        .udp(4000, port)
        .write(&mut bytes, &payload)
        .expect("fits");
    bytes
}

#[test]
fn datagrams_of_a_flow_that_came_together_share_a_message() {
    let mut sender = chain(Vec::new(), Vec::new());
    // 128 bytes each, the fourth of another flow, the last of another time.
    let sent = [1, 1, 1, 2, 1, 1, 1].map(|port| datagram(port, 100));
    let fill = |sender: &mut Chain| {
        for packet in &sent[..6] {
            sender.from_host(ms(0), packet);
        }
        sender.from_host(ms(1), &sent[6]);
    };
    fill(&mut sender);
    let single = leave(&mut sender, ms(1), 385);
    let single: Vec<_> = single.into_iter().map(|(message, _)| message).collect();
    assert_eq!(single, sent, "a far end that cannot read others");

    let abilities = Abilities::ALL;
    let path = Path {
        abilities,
        ..Path::default()
    };
    sender.set_path(ms(1), &path);
    for (room, lengths) in [
        (385, vec![385, 128, 257, 128]),
        (384, vec![257, 128, 128, 257, 128]),
        (1000, vec![385, 128, 257, 128]),
    ] {
        let before = sender.stats();
        fill(&mut sender);
        let left = leave(&mut sender, ms(1), room);
        let messages = left.iter().map(|(message, _)| message.len());
        assert_eq!(messages.collect::<Vec<_>>(), lengths);
        assert_eq!(sender.stats().messages - before.messages, left.len() as u64);
        let mut receiver = Receiver::new(Vec::new());
        for (message, mark) in &left {
            receiver.handle(ms(1), message, *mark);
        }
        let came: Vec<_> = std::iter::from_fn(|| receiver.poll_packet())
            .map(|packet| packet.bytes)
            .collect();
        assert_eq!(came, sent);
    }
}

#[test]
fn a_message_that_ends_within_a_packet_is_counted() {
    let mut receiver = Receiver::new(Vec::new());
    let mut message = vec![JOINED];
    message.extend(datagram(1, 10));
    message.extend(&datagram(1, 10)[..20]);
    receiver.handle(ms(0), &message, Ecn::NotEct);
    assert_eq!(
        receiver.poll_packet().map(|packet| packet.bytes),
        Some(datagram(1, 10))
    );
    assert_eq!(receiver.poll_packet(), None);
    assert_eq!(receiver.stats().unreadable, 1);
    receiver.handle(ms(0), &[JOINED], Ecn::NotEct);
    receiver.handle(ms(0), &[JOINED, JOINED, PIECE], Ecn::NotEct);
    assert_eq!(receiver.stats().unreadable, 2);
}

#[test]
fn protected_packets_stay_alone() {
    let config = crate::arq::Config::default();
    let arq = Layer::new("arq", 0, Rule::ALWAYS, crate::arq::Sender::new(config));
    let mut sender = chain(Vec::new(), vec![arq]);
    let path = Path {
        abilities: Abilities::ALL,
        ..Path::default()
    };
    sender.set_path(ms(0), &path);
    for _ in 0..3 {
        sender.from_host(ms(0), &datagram(1, 100));
    }
    let left = leave(&mut sender, ms(0), 1000);
    assert_eq!(left.len(), 3);
}

/// Booster that makes a message by itself at a given time.
#[derive(Debug)]
struct Ticking(Option<Duration>, usize);

impl crate::booster::Booster for Ticking {
    fn on_time(&mut self, now: Duration, out: &mut Out) {
        self.0 = None;
        out.down.push(Packet::new(vec![0x11; self.1], now));
    }

    fn deadline(&self) -> Option<Duration> {
        self.0
    }
}

#[test]
fn messages_made_while_the_link_was_down_do_not_precede_fresh_ones() {
    let always = Rule::ALWAYS;
    let ticking = |at, len| Layer::new("ticking", 0, always, Ticking(Some(ms(at)), len));
    let layers = vec![ticking(100, 10), ticking(900, 11), ticking(100, 3000)];
    let mut chain = chain(Vec::new(), layers);
    let mut first = Vec::new();
    chain.on_time(ms(100));
    chain.on_time(ms(900));
    assert_eq!(chain.ready.len(), 3);
    // The long one is begun, and its rest is sent at any later time.
    chain.ready.rotate_left(1);
    chain
        .poll_message(ms(950), 1000, &mut first)
        .expect("a piece");
    chain.from_host(ms(1500), &segment(1, 9, flags::ACK, b"data"));
    let left = leave(&mut chain, ms(1500), 1000);
    let kinds: Vec<_> = left
        .iter()
        .map(|(bytes, _)| (bytes[0], bytes.len()))
        .collect();
    assert_eq!(
        kinds[..4],
        [(PIECE, 755), (PIECE, 755), (PIECE, 755), (0x11, 11)]
    );
    assert_eq!((kinds.len(), kinds[4].0), (5, 0x45));
    assert_eq!(chain.stats().dropped_late, 1);
}
