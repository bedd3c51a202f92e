//! Harm by quantity: each flood keeps most rules, and breaks one very often.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use splitmix::SplitMix64;
use tunnel::compression::{Codec, PLAIN_MAX, Packer};

use crate::{
    Side, Step,
    packets::{self, kept},
    wire::{self, Writer},
};

/// Destinations and client of a flood's flows, and the numbers of its streams.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Side that began the session.
    pub side: Side,
    /// A server that accepts, and reads all.
    pub server: SocketAddr,
    /// A server that sends without end.
    pub source: SocketAddr,
    /// A port at which nothing listens.
    pub refused: SocketAddr,
    /// The first address of a network that answers nothing; at least a /16 of IPv4.
    pub silent: SocketAddr,
    /// The client that flows name.
    pub client: SocketAddr,
    /// A port of the server to which packet mode goes.
    pub packets: SocketAddr,
    /// A host for which the rogue may speak in packet mode.
    pub inner: SocketAddr,
    /// A host of IPv6 for which it may speak.
    pub inner6: SocketAddr,
    /// A host of the other peer, to which the port for packet mode sends.
    pub other: SocketAddr,
}

/// A flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Name for tables.
    pub name: &'static str,
    /// Turns per second that a debug build on a busy machine bears.
    pub rate: u32,
    /// True if it goes by TCP and reads nothing.
    pub deaf: bool,
    /// Bytes of each stream that the terms allow the other end.
    pub stream_credit: u64,
    /// Steps of a turn, counted from 0 since the session began.
    pub turn: fn(u64, &Target, &mut SplitMix64) -> Vec<Step>,
}

/// All floods.
pub const ALL: [Flood; 44] = [
    // The first, as floods of openings delay later ones of the peer, and as flows of a session that
    // has ended without a word count for a minute.
    flood("expanding blocks", 200, expanding_blocks),
    flood("unread downloads", 50, unread_downloads),
    flood("single bytes", 50, single_bytes),
    flood("short flows", 100, short_flows),
    flood("held parts", 2000, held_parts),
    flood("openings and resets", 1000, openings),
    flood("bursts of openings", 4, bursts_of_openings),
    flood("pieces", 500, pieces),
    flood("refused headers", 500, refused_headers),
    flood("probes", 500, probes),
    flood("repeated tokens", 500, repeated_tokens),
    Flood {
        deaf: true,
        ..flood("unread resets", 1000, probes)
    },
    flood("repair packets", 4000, repair_packets),
    flood("credits", 2000, credits),
    flood("clocks", 2000, clocks),
    flood("optimistic reports", 100, optimistic),
    flood("smooth reports", 200, smooth),
    flood("old gaps", 200, old_gaps),
    Flood {
        stream_credit: 1,
        ..flood("late reports", 200, late_reports)
    },
    flood("resumptions", 500, resumptions),
    flood("inventories", 500, inventories),
    flood("packets", 2000, damaged_packets),
    flood("tiny packets", 250, packets::tiny),
    flood("forged packets", 2000, packets::forged),
    flood("broken messages", 2000, packets::broken),
    flood("held messages", 1000, packets::held),
    flood("acknowledgements", 500, packets::acknowledgements),
    flood("expanding messages", 500, packets::expanding),
    flood("released by arq", 200, kept::released_by_arq),
    flood("released by jitter", 200, kept::released_by_jitter),
    flood("restarted senders", 100, kept::restarted_senders),
    flood("abandoned receivers", 40, kept::abandoned_receivers),
    flood("jumping numbers", 1000, kept::jumping_numbers),
    flood("first fragments", 1000, packets::first_fragments),
    flood("far fragments", 1000, packets::far_fragments),
    flood("restarted fragments", 1000, packets::restarted_fragments),
    flood("packets of one link", 1000, packets::of_one_link),
    // What it leaves takes the pace of others for minutes.
    flood("released and expanding", 200, kept::released_and_expanding),
    flood("initiations", 100, initiations),
    flood("closes", 20, closes),
    flood("requests for answers", 4000, requests),
    flood("new sessions", 20, new_sessions),
    // The last, as their flows leave no room to others.
    flood("resets beside open flows", 500, resets),
    flood("silent destinations", 200, silent_destinations),
];

/// Bytes of each stream that a rogue allows the other end, unless its flood says otherwise.
pub const GENEROUS: u64 = 1 << 40;

const fn flood(
    name: &'static str,
    rate: u32,
    turn: fn(u64, &Target, &mut SplitMix64) -> Vec<Step>,
) -> Flood {
    Flood {
        name,
        rate,
        deaf: false,
        stream_credit: GENEROUS,
        turn,
    }
}

/// Bytes of parts in a packet that every path carries.
const ROOM: usize = 1150;

/// Bytes of an opening with a header of 12 bytes, and of its RESET.
const SHORT: usize = 28;

/// One of these values, or any other of 64 bits.
fn extreme(random: &mut SplitMix64, values: &[u64]) -> u64 {
    let other = random.next_u64();
    let at = random.below(values.len() as u64 + 1) as usize;
    values.get(at).copied().unwrap_or(other)
}

fn token(random: &mut SplitMix64) -> u128 {
    u128::from(random.next_u64()) << 64 | 1
}

/// Openings with these headers in a segment, each with a RESET; the `n`th segment of its kind.
fn opened_and_reset(
    n: u64,
    target: &Target,
    room: usize,
    mut header: impl FnMut() -> Vec<u8>,
) -> Vec<Step> {
    let one = header();
    let count = (room / (one.len() + 16)).max(1) as u64;
    let mut parts = Vec::new();
    for at in 0..count {
        let stream = target.side.stream(n * count + at);
        parts.extend(wire::open(stream, &header()));
        parts.extend(wire::reset(stream, 0));
    }
    reported(n, vec![Step::Segment(parts)])
}

/// Ends the flows of earlier sessions, by the first streams of this one.
fn forgotten(streams: u64, target: &Target) -> Vec<Step> {
    opened_and_reset(0, target, streams as usize * SHORT, || {
        wire::inventory_header(0)
    })
}

/// Adds a report now and then: an end that is not heard for long is called again.
fn reported(n: u64, mut steps: Vec<Step>) -> Vec<Step> {
    if n.is_multiple_of(32) {
        steps.push(Step::Report);
    }
    steps
}

/// Openings of `count` flows to a server, the `n`th such part.
fn opened(n: u64, count: u64, target: &Target, to: SocketAddr, random: &mut SplitMix64) -> Vec<u8> {
    let open = |at| {
        let header = wire::flow_header(0, token(random), None, to, target.client);
        wire::open(target.side.stream(at), &header)
    };
    (n * count..(n + 1) * count).flat_map(open).collect()
}

/// Bytes that come one by one for hundreds of flows: each costs a system call.
fn single_bytes(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const OPENED: u64 = 10;
    const TURNS: u64 = 20;
    const EACH: u64 = 140;
    let Some(later) = n.checked_sub(TURNS) else {
        let parts = opened(n, OPENED, target, target.server, random);
        return reported(n, vec![Step::Segment(parts)]);
    };
    let bytes = later * EACH..(later + 1) * EACH;
    let parts = bytes.flat_map(|at| {
        let (position, flow) = (at / (OPENED * TURNS), at % (OPENED * TURNS));
        wire::data(target.side.stream(flow), position, b"x")
    });
    reported(n, vec![Step::Segment(parts.collect())])
}

/// Flows to a server that sends without end, of which the rogue takes little.
fn unread_downloads(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const OPENED: u64 = 10;
    const TURNS: u64 = 15;
    if n >= TURNS {
        return vec![Step::Report];
    }
    let parts = opened(n, OPENED, target, target.source, random);
    vec![Step::Segment(parts), Step::Report]
}

/// Flows of one byte. Each leaves a port of the hub in use for a minute.
fn short_flows(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const OPENED: u64 = 8;
    let mut parts = opened(n, OPENED, target, target.server, random);
    for at in n * OPENED..(n + 1) * OPENED {
        parts.extend(wire::last(target.side.stream(at), b"x"));
    }
    reported(n, vec![Step::Segment(parts)])
}

/// Parts for a stream that is never opened, and openings of others.
fn held_parts(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    const BEFORE: u64 = 77;
    let ghost = target.side.stream(8000);
    match n {
        0..BEFORE => vec![Step::Segment(wire::credit(ghost, 1).repeat(250))],
        // The openings come near the ghost.
        7900.. => vec![Step::Renew],
        _ => opened_and_reset(n - BEFORE, target, 1, || wire::probe_header(0)),
    }
}

fn openings(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    opened_and_reset(n, target, 6 * 64, || {
        wire::flow_header(0, token(random), None, target.refused, target.client)
    })
}

/// As many at once as a socket takes, and a pause.
fn bursts_of_openings(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const BURST: u64 = 256;
    let turns = n * BURST..(n + 1) * BURST;
    turns
        .flat_map(|turn| openings(turn, target, random))
        .collect()
}

/// Bytes of streams, each with a hole before it.
fn pieces(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const SEGMENTS: u64 = 300;
    const EACH: u64 = 128;
    let stream = target.side.stream(n / SEGMENTS);
    let mut parts = Vec::new();
    if n.is_multiple_of(SEGMENTS) {
        let header = wire::flow_header(0, token(random), None, target.server, target.client);
        parts.extend(wire::open(stream, &header));
    }
    let first = n % SEGMENTS * EACH;
    for at in first..first + EACH {
        parts.extend(wire::data(stream, 1 + 2 * at, b"x"));
    }
    reported(n, vec![Step::Segment(parts)])
}

fn refused_headers(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    opened_and_reset(n, target, ROOM, || vec![9; 4])
}

fn probes(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    opened_and_reset(n, target, ROOM, || wire::probe_header(0))
}

fn repeated_tokens(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    let header = wire::flow_header(0, 77, None, target.server, target.client);
    if n == 0 {
        return vec![Step::Segment(wire::open(target.side.stream(0), &header))];
    }
    // The first stream stays open.
    let mut parts = Vec::new();
    for at in 0..15 {
        let stream = target.side.stream((n - 1) * 15 + at + 1);
        parts.extend(wire::open(stream, &header));
        parts.extend(wire::reset(stream, 0));
    }
    reported(n, vec![Step::Segment(parts)])
}

/// Repair packets of garbage, for packets that never come.
fn repair_packets(n: u64, _: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let near = random.next_u64() & 0xff;
    let first = extreme(random, &[near, u64::MAX - near]);
    let frame = Writer::new(0x0a).fixed(8, random.below(2)).fixed(8, 0x21);
    let frame = frame
        .fixed(32, first)
        .fixed(16, random.one_of(&[1, 2, 64, 128]));
    let length = 600 + random.below(500) as usize;
    let frame = frame
        .fixed(16, random.next_u64())
        .bytes(&random.bytes(length));
    reported(n, vec![Step::Packet(frame.0)])
}

/// Blocks of a few bytes that yield 32 KiB each.
fn expanding_blocks(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let header =
        |token| wire::flow_header(wire::COMPRESSED, token, None, target.server, target.client);
    let (mut packer, mut codec) = (Packer::new(), Codec::new());
    let mut blocks = [Vec::new(), Vec::new()];
    for block in &mut blocks {
        packer.pack(&mut codec, &[0; PLAIN_MAX], block);
    }
    let [first, block] = blocks;
    let stream = target.side.stream(0);
    if n == 0 {
        let opening = wire::open(stream, &header(token(random)));
        let data = wire::data(stream, 0, &first);
        return vec![Step::Segment([opening, data].concat())];
    }
    let many = block.repeat(50);
    let position = first.len() as u64 + (n - 1) * many.len() as u64;
    reported(n, vec![Step::Segment(wire::data(stream, position, &many))])
}

fn credits(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const MOST: u64 = (1 << 62) - 1;
    let (stream, mut parts) = (target.side.stream(0), Vec::new());
    if n == 0 {
        parts.extend(wire::open(stream, &wire::probe_header(0)));
    }
    for _ in 0..50 {
        let until = extreme(random, &[0, 1, 1 << 40, MOST - 1, MOST]);
        parts.extend(wire::credit(stream, until));
        parts.extend(wire::session_credit(until));
    }
    reported(n, vec![Step::Segment(parts)])
}

/// Reports of nothing false but the time.
fn clocks(_: u64, _: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const MOST: u64 = (1 << 62) - 1;
    let times = [0, 1, MOST / 2, MOST];
    let report = Writer::new(1).fixed(8, 1).number(0);
    let report = report.number(extreme(random, &times));
    let report = report.number(extreme(random, &times));
    // Packets, bytes, below; looked at, lost, bursts; no ranges, no gaps.
    let rest = [1, 60, 0, 1, 0, 0, 0, 0];
    let report = rest.into_iter().fold(report, Writer::number);
    vec![Step::Packet(report.0)]
}

/// Acknowledges a probe's bytes before they can have arrived.
fn optimistic(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    asked_for_first(n, target, Step::Optimistic(400))
}

/// Acknowledges a probe's bytes that have been lost.
fn smooth(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    asked_for_first(n, target, Step::Smooth(0))
}

/// Hides the same behind old gaps, which leave no room for others.
fn old_gaps(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    asked_for_first(n, target, Step::Smooth(9 + n % 8))
}

/// A probe of 10 GB, and then this in each turn.
fn asked_for_first(n: u64, target: &Target, then: Step) -> Vec<Step> {
    const MOST: u64 = 10_000_000_000;
    if n > 0 {
        return vec![then];
    }
    let stream = target.side.stream(0);
    let credits = [wire::credit(stream, MOST), wire::session_credit(2 * MOST)].concat();
    let parts = [wire::open(stream, &wire::probe_header(MOST)), credits].concat();
    vec![Step::Segment(parts)]
}

/// Credit for a byte of each stream, so that segments have many parts, and long round trips for
/// which the other end keeps them.
fn late_reports(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const OPENED: u64 = 10;
    const TURNS: u64 = 15;
    let parts = match n.checked_sub(TURNS) {
        None => opened(n, OPENED, target, target.source, random),
        Some(later) => {
            let streams = (0..OPENED * TURNS).map(|at| target.side.stream(at));
            let credits = streams.flat_map(|stream| wire::credit(stream, later + 2));
            credits.collect()
        }
    };
    let all = wire::session_credit(GENEROUS);
    vec![Step::Segment([all, parts].concat()), Step::Late]
}

/// Openings that are reset at once, beside flows that stay open.
fn resets(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const EACH: u64 = 20;
    const TURNS: u64 = 95;
    match n {
        0 => forgotten(EACH, target),
        1..TURNS => {
            let parts = opened(n, EACH, target, target.server, random);
            reported(n, vec![Step::Segment(parts)])
        }
        _ => opened_and_reset(n, target, EACH as usize * SHORT, || wire::probe_header(0)),
    }
}

/// Flows to addresses that do not answer, thousands at a time.
fn silent_destinations(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const EACH: u64 = 15;
    const TURNS: u64 = 120;
    if n == 0 {
        return forgotten(EACH, target);
    }
    let mut parts = Vec::new();
    for at in n * EACH..(n + 1) * EACH {
        let IpAddr::V4(first) = target.silent.ip() else {
            continue;
        };
        let address = Ipv4Addr::from_bits(first.to_bits() + at as u32 % (1 << 16));
        let to = SocketAddr::new(address.into(), target.silent.port());
        parts.extend(opened(at, 1, target, to, random));
        if let Some(before) = at.checked_sub(EACH * TURNS) {
            parts.extend(wire::reset(target.side.stream(before), 0));
        }
    }
    reported(n, vec![Step::Segment(parts)])
}

fn resumptions(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    const POSITIONS: [u64; 5] = [0, 1, 1 << 40, u64::MAX - 1, u64::MAX];
    let token = token(random);
    let positions = [(); 3].map(|()| random.one_of(&POSITIONS));
    let unknown = random.one_of(&[0, 16]);
    opened_and_reset(n, target, ROOM, || {
        wire::flow_header(
            unknown,
            token,
            Some(positions),
            target.server,
            target.client,
        )
    })
}

fn inventories(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let flows = random.one_of(&[0, 1, 1 << 32, u64::MAX]);
    opened_and_reset(n, target, ROOM, || wire::inventory_header(flows))
}

/// Messages of packet mode: of all channels, with damaged headers of IP inside.
fn damaged_packets(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let channel = extreme(random, &[0, 1, 0x10, 0x3f, 0x7f]);
    let mut inner = vec![
        random.below(0x20) as u8,
        0x45,
        0,
        0,
        60,
        0,
        1,
        0x40,
        0,
        64,
        17,
        0,
        0,
    ];
    for address in [target.client, target.server] {
        if let IpAddr::V4(ip) = address.ip() {
            inner.extend_from_slice(&ip.octets());
        }
    }
    inner.extend(random.bytes(40));
    let at = random.below(inner.len() as u64) as usize;
    inner[at] ^= random.next_u64() as u8;
    let frame = Writer::new(0x0b).fixed(8, channel).bytes(&inner);
    reported(n, vec![Step::Packet(frame.0)])
}

fn initiations(_: u64, _: &Target, random: &mut SplitMix64) -> Vec<Step> {
    vec![Step::Terms(random.bytes(96))]
}

fn closes(_: u64, _: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let reason = [b"\n\x1b[2J\"peer\" up\r"[..].repeat(15), vec![b'a'; 10]].concat();
    let frame = Writer::new(6)
        .fixed(8, random.below(3))
        .number(reason.len() as u64);
    vec![Step::Packet(frame.bytes(&reason).0), Step::Renew]
}

/// Frames that each ask for an answer at once.
fn requests(n: u64, _: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let probe = Writer::new(4).fixed(16, random.next_u64());
    vec![Step::Packet(
        [probe.0, vec![3; 20 + n as usize % 7]].concat(),
    )]
}

fn new_sessions(_: u64, _: &Target, _: &mut SplitMix64) -> Vec<Step> {
    vec![Step::Report, Step::Renew]
}
