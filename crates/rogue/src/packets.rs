//! Messages of packet mode: those of boosters, broken, and packets of hosts that are none.

pub(crate) mod kept;

use std::{
    cell::RefCell,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::LazyLock,
};

use splitmix::SplitMix64;
use tunnel::compression::{Codec, Packer};

use crate::{
    Step,
    cases::Case,
    document::{self, Content, Item},
    floods::Target,
    wire::Writer,
};

/// Channels of chains, of replies, of no use, and with the mark of congestion.
const CHANNELS: [u8; 10] = [0, 1, 15, 16, 31, 32, 64, 95, 127, 128];
/// Bytes of a message that every path carries.
const ROOM: usize = 1100;
/// Protocol numbers of IP.
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Addresses of a packet.
type Ends = (SocketAddr, SocketAddr);

/// A PACKET frame.
fn message(channel: u8, bytes: &[u8]) -> Step {
    let frame = Writer::new(0x0b).fixed(8, channel.into()).bytes(bytes);
    Step::Packet(frame.0)
}

fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    bytes.chunks(2).map(word).sum()
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A packet of a host, IPv6 if its source is. Checksums are right.
fn ip(protocol: u8, from: IpAddr, to: IpAddr, transport: &[u8]) -> Vec<u8> {
    let length = transport.len() as u64;
    let (mut header, ends) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Writer::new(0x45).fixed(8, 0).fixed(16, 20 + length);
            let header = header.fixed(32, 0).fixed(16, 64 << 8 | u64::from(protocol));
            (header.fixed(16, 0), [from.octets(), to.octets()].concat())
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let header = Writer::new(0x60).fixed(24, 0).fixed(16, length);
            let header = header.fixed(8, protocol.into()).fixed(8, 64);
            (header, [octets(from), octets(to)].concat())
        }
    };
    let mut transport = transport.to_vec();
    let pseudo = sum(&ends) + u32::from(protocol) + length as u32;
    let (at, pseudo) = match protocol {
        TCP => (16, pseudo),
        UDP => (6, pseudo),
        ICMPV6 => (2, pseudo),
        _ => (2, 0),
    };
    let checksum = fold(pseudo + sum(&transport));
    transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    header = header.bytes(&ends);
    if header.0[0] == 0x45 {
        sum_header(&mut header.0);
    }
    header.bytes(&transport).0
}

/// Writes the checksum of a header of IPv4.
fn sum_header(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let checksum = fold(sum(&packet[..20]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// A UDP datagram of a host.
pub fn udp(from: SocketAddr, to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let header = Writer(from.port().to_be_bytes().to_vec()).fixed(16, to.port().into());
    let header = header.fixed(16, 8 + bytes.len() as u64).fixed(16, 0);
    ip(UDP, from.ip(), to.ip(), &header.bytes(bytes).0)
}

/// An acknowledgement of a host.
fn ack(from: SocketAddr, to: SocketAddr, number: u32) -> Vec<u8> {
    let header = Writer(from.port().to_be_bytes().to_vec()).fixed(16, to.port().into());
    let header = header.fixed(32, 1).fixed(32, number.into());
    let header = header.fixed(16, 0x5010).fixed(16, 0xffff).fixed(32, 0);
    ip(TCP, from.ip(), to.ip(), &header.0)
}

// --- cases ---

fn plain() -> Vec<u8> {
    let [from, to] = [66, 1].map(|host| SocketAddr::from(([192, 0, 2, host], 4000)));
    udp(from, to, b"abc")
}

/// Returns a message with this value in one field, and those bytes at its end.
fn written(item: &Item, kind: u8, other: Option<(usize, u64)>, rest: &[u8]) -> Vec<u8> {
    let mut out = Writer::new(kind);
    for (place, field) in item.fields.iter().enumerate() {
        let value = other.filter(|(at, _)| *at == place).map(|(_, value)| value);
        out = match field.content {
            Content::Fixed(bits) => out.fixed(bits, value.unwrap_or(1)),
            _ => out.bytes(rest),
        };
    }
    out.0
}

/// Adds cases of all messages: each a series.
pub(crate) fn cases(cases: &mut Vec<Case>) {
    let items = document::messages();
    for item in &items {
        let kinds = item.types.0..=item.types.1;
        let mut add = |name: String, messages: Vec<Vec<u8>>| {
            let on = |channel| messages.iter().map(move |bytes| message(channel, bytes));
            // To a chain, and as a reply; what is drawn to all.
            let channels = if name == "as drawn" {
                &CHANNELS[..]
            } else {
                &[0, 64]
            };
            cases.push(Case {
                row: row(item),
                name,
                steps: channels.iter().copied().flat_map(on).collect(),
                ends: false,
            });
        };
        let whole = |kind| written(item, kind, None, &plain());
        add("as drawn".to_owned(), kinds.clone().map(whole).collect());
        let whole = written(item, item.types.0, None, &plain());
        let cut = |length| whole[..length].to_vec();
        add("cut".to_owned(), (1..whole.len()).map(cut).collect());
        for (place, field) in item.fields.iter().enumerate() {
            let Content::Fixed(bits) = field.content else {
                continue;
            };
            let last = u64::MAX >> (64 - bits);
            let values = [0, 1, 2, 3, 127, 128, last / 2, last / 2 + 1, last - 1, last];
            let of = |value| written(item, item.types.0, Some((place, value)), &plain());
            add(field.name.clone(), values.map(of).to_vec());
        }
        let around = |inner: &Vec<u8>| Some(written(item, item.types.0, None, inner));
        let within = std::iter::successors(Some(plain()), around).take(200);
        let within = within.take_while(|message| message.len() < ROOM).collect();
        add("within itself".to_owned(), within);
        let within = |other: &Item| {
            written(
                item,
                item.types.0,
                None,
                &written(other, other.types.0, None, &plain()),
            )
        };
        add(
            "around others".to_owned(),
            items.iter().map(within).collect(),
        );
        let long = written(item, item.types.0, None, &vec![0x45; 1150]);
        add("as long as can be".to_owned(), vec![long]);
    }
}

/// Row of a message, as in [`Case::row`].
pub(crate) fn row(item: &Item) -> String {
    format!("message {:#04x}", item.types.0)
}

// --- floods ---

/// As many datagrams of hosts as fit into a message, without a byte in them.
pub(crate) fn tiny(_: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    let one = udp(target.inner, target.packets, b"");
    let many = Writer::new(0x03).bytes(&one.repeat(ROOM / one.len()));
    vec![message(0, &many.0)]
}

/// Packets from addresses for which the rogue may not speak, and one from its own.
pub(crate) fn forged(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let any = Ipv4Addr::from(random.next_u64() as u32);
    let v4 = [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::BROADCAST,
        [224, 0, 0, 1].into(),
        [169, 254, 169, 254].into(),
        [10, 77, 0, 1].into(),
        [10, 77, 1, 1].into(),
        any,
    ];
    let own = target.inner;
    let from = match n % 10 {
        at @ 0..8 => SocketAddr::new(v4[at as usize].into(), own.port()),
        // What the server would send itself.
        8 => target.packets,
        _ => own,
    };
    let packet = udp(from, target.packets, FORGED);
    let wrapped = match random.below(4) {
        0 => Writer::new(0x03).bytes(&packet.repeat(2)).0,
        1 => Writer::new(0x14).fixed(48, 0).bytes(&packet).0,
        2 => Writer::new(0x15).fixed(8, 0).bytes(&packet).0,
        _ => packet,
    };
    vec![message(random.below(2) as u8, &wrapped)]
}

/// Content of the packets of `forged`.
pub const FORGED: &[u8] = b"forged";

/// Messages in messages, with headers of chance.
pub(crate) fn broken(_: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    // Reading them for each datagram took the time of those that the rogue is to leave alone.
    static MESSAGES: LazyLock<Vec<Item>> = LazyLock::new(document::messages);
    let items = &*MESSAGES;
    let mut bytes = udp(target.inner, target.packets, b"broken");
    for _ in 0..random.below(6) {
        let item = &items[random.below(items.len() as u64) as usize];
        let (first, last) = item.types;
        let kind = first + random.below(u64::from(last - first) + 1) as u8;
        let mut out = Writer::new(kind);
        for field in &item.fields {
            out = match field.content {
                Content::Fixed(bits) => out.fixed(bits, small_or_any(random)),
                _ => out.bytes(&bytes),
            };
        }
        bytes = out.0;
    }
    if random.below(4) == 0 {
        bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
    }
    let channel = random.one_of(&CHANNELS);
    vec![message(channel, &bytes)]
}

fn small_or_any(random: &mut SplitMix64) -> u64 {
    let any = random.next_u64();
    random.one_of(&[0, 1, any & 7, any & 0xff, any])
}

/// Messages that the receiver holds back: pieces without the others, numbers with holes before
/// them, packets of a later time.
pub(crate) fn held(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let bytes = vec![0x45; ROOM - 100];
    let packet = udp(target.inner, target.packets, &bytes);
    let later = n.wrapping_mul(100_000);
    let held = match n % 4 {
        0 => Writer::new(0x02).fixed(16, n).fixed(8, 0).fixed(8, 255),
        1 => Writer::new(0x11)
            .fixed(8, 0)
            .fixed(32, 2 * n)
            .fixed(16, 0xffff),
        2 => Writer::new(0x14).fixed(32, later).fixed(16, 0xffff),
        _ => Writer::new(0x10).fixed(8, 0x20).fixed(32, 2 * n),
    };
    let channel = random.below(16) as u8;
    vec![message(channel, &held.bytes(&packet).0)]
}

/// Acknowledgements of which the receiver makes a thousand each.
pub(crate) fn acknowledgements(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    let first = (n as u32).wrapping_mul(1 << 20);
    let last = first.wrapping_add(1 << 19);
    let acks = Writer::new(0x13).fixed(16, 0xffff).fixed(32, first.into());
    let acks = acks
        .fixed(32, 0)
        .bytes(&ack(target.inner, target.packets, last));
    vec![message(0, &acks.0)]
}

/// Some bytes that become a packet of 20,000.
pub(crate) fn expanding(_: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    vec![message(0, &expanding_message(target))]
}

fn expanding_message(target: &Target) -> Vec<u8> {
    thread_local! {
        /// The last message, and between which addresses it goes. Its making takes long.
        static LAST: RefCell<Option<(Ends, Vec<u8>)>> = const { RefCell::new(None) };
    }
    let ends = (target.inner, target.packets);
    LAST.with_borrow_mut(|last| {
        let (of, bytes) = last.get_or_insert_with(|| (ends, expanding_to(ends)));
        if *of != ends {
            (*of, *bytes) = (ends, expanding_to(ends));
        }
        bytes.clone()
    })
}

/// Returns the message that becomes a packet between these addresses.
fn expanding_to((from, to): Ends) -> Vec<u8> {
    let packet = udp(from, to, &[0; 20_000]);
    let mut block = Vec::new();
    Packer::new().pack(&mut Codec::new(), &packet, &mut block);
    // Without the block's length.
    let frame = &block[1 << (block[0] >> 6)..];
    Writer::new(0x15).fixed(8, 0x40).bytes(frame).0
}

/// The beginnings of datagrams whose rest never comes.
pub(crate) fn first_fragments(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    // More fragments follow.
    vec![fragment(n, target, 0x2000)]
}

/// Datagrams whose two fragments have so many others of their source in between that the kernel
/// gives up the first (`net.ipv4.ipfrag_max_dist`).
pub(crate) fn far_fragments(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    const BETWEEN: u64 = 70;
    let (turn, number) = (n / (2 * BETWEEN), n % (2 * BETWEEN));
    let id = turn * BETWEEN + number % BETWEEN;
    let place = if number < BETWEEN { 0x2000 } else { 1008 / 8 };
    vec![fragment(id, target, place)]
}

/// Ever more parts of some datagrams, with so many others before the next one that the kernel
/// begins the datagram anew. It would fill its memory if it did not.
pub(crate) fn restarted_fragments(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    const DATAGRAMS: u64 = 70;
    const PARTS: u64 = 64;
    let part = n / DATAGRAMS % PARTS;
    vec![fragment(
        n % DATAGRAMS,
        target,
        0x2000 | (part as u16 * (1008 / 8)),
    )]
}

/// Builds a message with a fragment, by its place: an offset in units of eight bytes, and a flag.
fn fragment(id: u64, target: &Target, place: u16) -> Step {
    // The UDP header and these bytes are a multiple of eight.
    let mut packet = udp(target.inner, target.packets, &[0; 1000]);
    packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&place.to_be_bytes());
    sum_header(&mut packet);
    message(0, &packet)
}

/// Packets that must not cross routers, errors about packets of another peer's host, and one packet
/// to a group that may pass.
pub(crate) fn of_one_link(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    let (own, own6) = (target.inner, target.inner6);
    let group = |last: [u8; 3]| SocketAddr::from(([224, last[0], last[1], last[2]], 5353));
    let group6 = |scope: u16, last| {
        let ip = Ipv6Addr::from([0xff00 | scope, 0, 0, 0, 0, 0, 0, last]);
        SocketAddr::from((ip, 5353))
    };
    let of_routers = |kind: u8, to: SocketAddr| {
        let query = Writer::new(kind).bytes(&[0; 23]).0;
        ip(ICMPV6, own6.ip(), to.ip(), &query)
    };
    let igmp = |to: SocketAddr| ip(IGMP, own.ip(), to.ip(), &[0x11, 100, 0, 0, 0, 0, 0, 0]);
    let packet = match n % 10 {
        0 => udp(own, group([0, 0, 251]), b"mdns"),
        1 => udp(own6, group6(2, 0xfb), b"mdns"),
        2 => igmp(group([0, 0, 1])),
        3 => igmp(group([77, 0, 1])),
        // Queries of MLD and advertisements of routers, for a link and for a site.
        at @ 4..8 => {
            let kind = if at < 6 { 130 } else { 134 };
            of_routers(kind, group6(if at % 2 == 0 { 2 } else { 5 }, 1))
        }
        8 => {
            // Too long for a link of 68 bytes.
            let about = udp(target.packets, target.other, b"quoted");
            let error = Writer(vec![3, 4, 0, 0, 0, 0, 0, 68]).bytes(&about).0;
            ip(ICMP, own.ip(), target.packets.ip(), &error)
        }
        _ => udp(own, group([77, 0, 1]), b"group"),
    };
    vec![message(0, &packet)]
}
