//! Packet mode under a peer with its key: a session, all boosters of its sites, and the check of
//! packets that leave them for hosts. The peer sends messages of all kinds, and packets of hosts
//! that are none of its own. Whatever it sends, nothing panics, no deadline stays due, memory is
//! bounded, and a host gets packets of the peer's own hosts only.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use arbitrary::Arbitrary;
use boosters::{ecn::Ecn as Mark, exchange::Exchange, rule::Path};
use pep_core::{
    reach::Reach,
    site::{Answers, Matcher, PacketEnds, PortRange, is_martian},
};
use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{Rate, Session, SessionConfig},
    store::{NextPacket, PacketQueue, Store},
    wire::StreamId,
};

use crate::{
    chains::{Wanted, is_bounded, wake_by},
    shapes::{Bytes, Shape},
};

/// Boosters of the near end, and what its peer sends.
#[derive(Arbitrary, Debug)]
pub struct Case {
    wanted: Wanted,
    first: [Action; 16],
    actions: Vec<Action>,
}

#[derive(Arbitrary, Debug)]
enum Action {
    /// Time passes, and the session sends what is due.
    Time { unit: u8, amount: u8 },
    /// A message of the peer, in as many layers.
    Message {
        channel: u8,
        layers: Vec<Layer>,
        inner: Inner,
        /// One in four has a source of another network.
        source: u8,
        times: u8,
        cut: u8,
    },
    /// Packets of a local host.
    Host(Shape, u8),
    /// A new session.
    Renew,
}

/// A header of a message around another.
#[derive(Arbitrary, Debug)]
struct Layer {
    kind: u8,
    header: [u8; 10],
    length: u8,
}

#[derive(Arbitrary, Debug)]
enum Inner {
    Shape(Shape),
    Bytes(Bytes),
    /// Many packets of nothing but headers.
    Tiny(Shape, u8),
    /// Of this length, whatever its header says.
    Long(Shape, u16),
}

const PACKET_MAX: usize = 1400;
/// Messages that a session may send within one action.
const MESSAGES: usize = 20_000;
/// Packets that one message may become: two layers of acknowledgements do not nest.
const BECOMES: usize = 200_000;

/// Hosts for which the peer may speak.
const FROM: [&str; 2] = ["10.1.0.0/16", "2001:db8::10.1.0.0/112"];

/// Packet mode of one end, as pepd-tunnel has it around a session.
struct Near {
    exchange: Exchange,
    answers: Answers,
    reach: Reach,
    chain: Option<PacketQueue>,
    words: Option<PacketQueue>,
    /// Packets that went to hosts since the last look.
    came: Vec<Vec<u8>>,
}

impl Near {
    fn new(wanted: Wanted) -> Self {
        let nets = |texts: &[&str]| {
            let nets = texts.iter().map(|text| text.parse());
            nets.collect::<Result<Vec<_>, _>>().expect("prefixes")
        };
        let matcher = Matcher {
            src: nets(&["10.0.0.0/16", "2001:db8::10.0.0.0/112"]),
            dport: vec![PortRange::single(53), PortRange::single(80)],
            ..Matcher::default()
        };
        let from = FROM.map(|text| text.parse().expect("a prefix"));
        Self {
            exchange: wanted.exchange(Duration::from_secs(1)),
            answers: Answers::new(&matcher),
            reach: Reach::new(Some(from.to_vec()), None, Vec::new()),
            chain: None,
            words: None,
            came: Vec::new(),
        }
    }

    fn site_of(answers: &Answers, reach: &Reach, packet: &[u8]) -> Option<usize> {
        let admitted = !is_martian(packet)
            && answers.admit(packet)
            && PacketEnds::read(packet).is_some_and(|ends| reach.admits(&ends));
        admitted.then_some(0)
    }

    fn wake(&mut self, now: Duration) {
        let (answers, reach) = (&self.answers, &self.reach);
        wake_by(&mut self.exchange, now, &mut |packet| {
            Self::site_of(answers, reach, packet)
        });
        self.collect();
    }

    fn collect(&mut self) {
        while let Some((_, packet)) = self.exchange.poll_host() {
            self.came.push(packet.bytes);
        }
    }
}

impl Store for Near {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}

    fn next_packet(
        &mut self,
        queue: PacketQueue,
        now: Duration,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<NextPacket> {
        let more = if Some(queue) == self.words {
            self.exchange.poll_word(now, room + 1, out).then_some(())?;
            self.exchange.has_word(now)
        } else {
            self.exchange.poll_message(now, 0, room + 1, out)?;
            self.exchange.has_message(0)
        };
        let ecn = Ecn::Ect0;
        Some(NextPacket { more, ecn })
    }

    fn packet(&mut self, now: Duration, channel: u8, _: Ecn, message: &[u8]) {
        let (answers, reach) = (&self.answers, &self.reach);
        let site = &mut |packet: &[u8]| Self::site_of(answers, reach, packet);
        self.exchange
            .handle(now, channel, message, Mark::NotEct, site);
        self.collect();
    }
}

struct World {
    now: Duration,
    session: Session,
    near: Near,
    wanted: Wanted,
    /// Number of the peer's next packet.
    next: u64,
}

fn session(now: Duration) -> Session {
    let config = SessionConfig {
        initiator: true,
        rate: Rate::Stated(10_000_000),
        rtt: Duration::from_millis(20),
        packet_start: 1200,
        packet_max: PACKET_MAX,
        packets: true,
        peer_packets: true,
        ..SessionConfig::default()
    };
    Session::new(config, now)
}

/// Plays a case.
pub fn run(case: &Case) {
    let now = Duration::from_secs(1);
    let mut world = World {
        now,
        session: session(now),
        near: Near::new(case.wanted),
        wanted: case.wanted,
        next: 0,
    };
    world.begin();
    for action in case.first.iter().chain(&case.actions).take(80) {
        world.play(action);
        world.settle();
    }
}

impl World {
    fn begin(&mut self) {
        self.near.words = self.session.open_packets(Class::Interactive, 0).ok();
        self.near.chain = self.session.open_packets(Class::Normal, 1).ok();
    }

    fn play(&mut self, action: &Action) {
        match action {
            Action::Time { unit, amount } => {
                const UNITS: [u64; 4] = [1, 20, 1000, 60_000];
                let unit = UNITS[usize::from(*unit) % UNITS.len()];
                self.now += Duration::from_millis(unit * u64::from(*amount));
            }
            Action::Message {
                channel,
                layers,
                inner,
                source,
                times,
                cut,
            } => {
                for number in 0..=u16::from(times % 16) {
                    let mut bytes = inner.bytes(number);
                    if source % 4 == 0 {
                        forge(&mut bytes, *source);
                    }
                    for layer in layers.iter().take(6) {
                        bytes = layer.around(number, &bytes);
                    }
                    bytes.truncate(PACKET_MAX - 2);
                    if *cut < 64 {
                        bytes.truncate(bytes.len() * usize::from(*cut) / 64);
                    }
                    self.take(channel % 0x80, &bytes);
                }
            }
            Action::Host(shape, count) => {
                for number in 0..u16::from(count % 20) {
                    let packet = shape.bytes(number);
                    self.near.exchange.from_host(self.now, 0, &packet);
                }
            }
            Action::Renew => {
                self.session = session(self.now);
                self.next = 0;
                self.near.exchange.renew();
                self.begin();
            }
        }
    }

    fn take(&mut self, channel: u8, message: &[u8]) {
        let packet = [&[0x0b, channel], message].concat();
        let (number, length) = (self.next, packet.len() + 25);
        self.next += 1;
        let taken = self.session.handle_packet(
            self.now,
            number,
            &packet,
            length,
            Ecn::Ect0,
            &mut self.near,
        );
        // An empty message is an error of the frame.
        assert!(taken.is_ok() || message.is_empty(), "{taken:?}");
        self.check();
    }

    /// Sends what is due, and runs all timers.
    fn settle(&mut self) {
        self.near.wake(self.now);
        self.check();
        let path = Path {
            loss: 0.02,
            rtt: Duration::from_millis(20),
            room: self.session.packet_room(),
            ..Path::default()
        };
        self.near.exchange.set_path(self.now, &path);
        for (queue, ready) in [
            (self.near.words, self.near.exchange.has_word(self.now)),
            (self.near.chain, self.near.exchange.has_message(0)),
        ] {
            if let Some(queue) = queue {
                self.session.set_packets_ready(queue, ready);
            }
        }
        for turn in 0.. {
            assert!(turn < MESSAGES, "it never stops sending");
            let mut out = Vec::new();
            let sent = self.session.poll_packet(self.now, &mut out, &mut self.near);
            if sent.is_none() {
                break;
            }
            assert!(out.len() <= PACKET_MAX, "{} bytes", out.len());
        }
        self.session.wait(self.now);
        while self.session.poll_event().is_some() {}
        is_bounded(&self.near.exchange, self.now, self.wanted);
    }

    /// Checks the packets that went to hosts. Their lengths may be wrong: the kernel drops those.
    fn check(&mut self) {
        let came = std::mem::take(&mut self.near.came);
        assert!(came.len() < BECOMES, "{} packets", came.len());
        for packet in came {
            let (from, to) = ends(&packet);
            assert!(is_of([10, 0], to), "to {to}");
            // Routers may send errors, from everywhere within the peer's networks.
            assert!(is_of([10, 1], from), "from {from}");
        }
    }
}

/// Replaces the source by one of another network.
fn forge(packet: &mut [u8], host: u8) {
    let at = if packet.first().is_some_and(|first| first >> 4 == 4) {
        12
    } else {
        20
    };
    if let Some(source) = packet.get_mut(at..at + 4) {
        source.copy_from_slice(&[10, 2, 0, host]);
    }
}

/// Reads source and destination.
fn ends(packet: &[u8]) -> (IpAddr, IpAddr) {
    let v4 = |at| {
        packet[at..at + 4]
            .first_chunk()
            .map(|octets: &[u8; 4]| (*octets).into())
    };
    let v6 = |at| {
        packet[at..at + 16]
            .first_chunk()
            .map(|octets: &[u8; 16]| (*octets).into())
    };
    let ends = match packet[0] >> 4 {
        4 => (v4(12), v4(16)),
        _ => (v6(8), v6(24)),
    };
    (ends.0.expect("a header"), ends.1.expect("a header"))
}

/// Returns whether an address is in a network of these tests, of IPv4 or its image in IPv6.
fn is_of(net: [u8; 2], address: IpAddr) -> bool {
    let v4 = match address {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            if octets[..4] != [0x20, 1, 0xd, 0xb8] || octets[4..12] != [0; 8] {
                return false;
            }
            Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15])
        }
    };
    v4.octets()[..2] == net
}

impl Layer {
    fn around(&self, number: u16, inner: &[u8]) -> Vec<u8> {
        const KINDS: [u8; 12] = [
            0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        const LENGTHS: [usize; 12] = [13, 4, 0, 5, 7, 1, 10, 6, 3, 3, 3, 3];
        let at = usize::from(self.kind) % KINDS.len();
        let kind = if self.kind < 240 {
            KINDS[at]
        } else {
            self.kind
        };
        // Mostly as long as it should be.
        let length = match self.length {
            0..16 => usize::from(self.length),
            _ => LENGTHS[at],
        };
        let mut bytes = vec![kind];
        bytes.extend(self.header.iter().cycle().take(length));
        if let Some(last) = bytes.last_mut().filter(|_| length > 0) {
            *last = last.wrapping_add(number as u8);
        }
        bytes.extend_from_slice(inner);
        bytes
    }
}

impl Inner {
    fn bytes(&self, number: u16) -> Vec<u8> {
        match self {
            Self::Shape(shape) => shape.bytes(number),
            Self::Bytes(bytes) => bytes.0.clone(),
            Self::Tiny(shape, count) => {
                let one = shape.bytes(number);
                one[..one.len().min(28)].repeat(usize::from(*count))
            }
            Self::Long(shape, length) => {
                let mut bytes = shape.bytes(number);
                bytes.resize(usize::from(length % PACKET_MAX as u16), 7);
                bytes
            }
        }
    }
}
