//! Endpoints with real sessions whose peer changes its address: what that costs, and what a peer
//! gains that states the address of another host.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use trace::{Event as Traced, Frame};
use tunnel::{
    cause::CauseCounts,
    class::Class,
    crypto::public_key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent, PeerId,
        Remote, Stores,
    },
    session::{Event, Rate, SessionConfig},
};
use tunnel_sim::rig::{Positions, config};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// IP and UDP headers.
const HEADERS: usize = 28;
const BOAT: usize = 0;
const HUB: usize = 1;
const BIT_RATE: u64 = 10_000_000;
/// Length of a stream that does not end within a test.
const ENDLESS: u64 = 1 << 39;

fn address(host: u8) -> Remote {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), 5001)).into()
}

#[derive(Default)]
struct One(Positions);

impl Stores for One {
    type Store = Positions;

    fn store_of(&mut self, _: PeerId) -> &mut Positions {
        &mut self.0
    }
}

struct Side {
    endpoint: Endpoint,
    peer: PeerId,
    address: Remote,
    store: One,
    links_down: u32,
    moves: u32,
}

impl Side {
    fn new(end: usize, session: SessionConfig, limits: Limits) -> Self {
        let private = |end: usize| [1 + end as u8; 32];
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: private(end),
            seed: [77 + end as u8; 32],
            limits,
        });
        let addresses = if end == BOAT {
            vec![address(2).address]
        } else {
            Vec::new()
        };
        let peer = endpoint.add_peer(PeerConfig {
            public_key: public_key(&private(1 - end)),
            psk: [3; 32],
            addresses,
            last: None,
            carriers: Carriers::Udp,
            counters: Counters::default(),
            session,
        });
        Self {
            endpoint,
            peer: peer.expect("the only one"),
            address: address(1 + end as u8),
            store: One::default(),
            links_down: 0,
            moves: 0,
        }
    }

    /// Handles what has happened: each stream that is opened is answered without end.
    fn listen(&mut self) {
        while let Some((_, event)) = self.endpoint.poll_event() {
            match event {
                PeerEvent::Session(Event::Opened { stream, .. }) => {
                    let session = self.endpoint.session(self.peer).expect("it is up");
                    session.written(stream, ENDLESS);
                }
                PeerEvent::Session(Event::LinkDown) => self.links_down += 1,
                PeerEvent::Roamed(_) => self.moves += 1,
                PeerEvent::Down(reason) => panic!("the session is over: {reason:?}"),
                _ => {}
            }
        }
    }
}

/// Direction of a link.
#[derive(Default)]
struct Way {
    /// Rate in bit/s, if limited, with a queue of a round trip.
    rate: Option<u64>,
    free_at: Duration,
    packets: BTreeMap<(Duration, u64), (Remote, Remote, Vec<u8>)>,
}

struct Bed {
    now: Duration,
    sides: [Side; 2],
    ways: [Way; 2],
    rtt: Duration,
    count: u64,
    /// Decides about each datagram: sender, source, destination, time.
    passes: Box<dyn FnMut(usize, Remote, Remote, Duration) -> bool>,
    /// A datagram of the boat with the answer to a challenge is not sent.
    answers_none: bool,
    /// Bytes on the link from and to addresses.
    from: BTreeMap<Remote, u64>,
    to: BTreeMap<Remote, u64>,
    /// Last time when the boat got new bytes, and the longest time between two.
    last_new: (u64, Duration),
    longest_pause: Duration,
}

impl Bed {
    /// Creates a boat with a session in which the hub sends without end.
    fn with(rate: Rate, rtt: Duration, limits: Limits) -> Self {
        let session = |initiator| SessionConfig {
            rate,
            stream_credit: 1 << 40,
            ..config(initiator, BIT_RATE, rtt)
        };
        let sides = [BOAT, HUB].map(|end| Side::new(end, session(end == BOAT), limits));
        let mut ways = [Way::default(), Way::default()];
        // No queue shortens a pause.
        let is_measured = rate == Rate::Auto;
        ways[HUB].rate = Some(if is_measured { BIT_RATE } else { 2 * BIT_RATE });
        let mut bed = Self {
            now: S,
            sides,
            ways,
            rtt,
            count: 0,
            passes: Box::new(|_, _, _, _| true),
            answers_none: false,
            from: BTreeMap::new(),
            to: BTreeMap::new(),
            last_new: (0, S),
            longest_pause: Duration::ZERO,
        };
        bed.run(3 * rtt + S);
        let boat = &mut bed.sides[BOAT];
        let session = boat.endpoint.session(boat.peer).expect("it is up");
        session
            .open(Class::Bulk, 0, b"download")
            .expect("the first");
        bed.run(20 * rtt + 2 * S);
        bed.longest_pause = Duration::ZERO;
        bed
    }

    fn new(rate: Rate, rtt: Duration) -> Self {
        Self::with(rate, rtt, Limits::default())
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for side in [BOAT, HUB] {
                self.send(side);
            }
            let arrivals = self.ways.iter().filter_map(|way| {
                let ((at, _), _) = way.packets.first_key_value()?;
                Some(*at)
            });
            let deadlines = self
                .sides
                .iter()
                .filter_map(|side| side.endpoint.deadline());
            let next = arrivals.chain(deadlines).min().unwrap_or(end);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            for side in [BOAT, HUB] {
                self.arrive(side);
            }
        }
        self.now = end;
    }

    fn send(&mut self, from: usize) {
        let side = &mut self.sides[from];
        side.listen();
        let mut out = Vec::new();
        while let Some(transmit) = side
            .endpoint
            .poll_transmit(self.now, &mut out, &mut side.store)
        {
            let datagram = std::mem::take(&mut out);
            if from == BOAT && self.answers_none && is_answer(&mut side.endpoint, side.peer) {
                continue;
            }
            let (source, to) = (side.address, transmit.to);
            let bytes = (datagram.len() + HEADERS) as u64;
            *self.from.entry(source).or_default() += bytes;
            *self.to.entry(to).or_default() += bytes;
            if !(self.passes)(from, source, to, self.now) {
                continue;
            }
            let way = &mut self.ways[from];
            let begin = way.free_at.max(self.now);
            if begin > self.now + self.rtt.max(50 * MS) {
                continue;
            }
            let nanos = way.rate.map_or(0, |rate| bytes * 8 * 1_000_000_000 / rate);
            way.free_at = begin + Duration::from_nanos(nanos);
            self.count += 1;
            let key = (way.free_at + self.rtt / 2, self.count);
            way.packets.insert(key, (source, to, datagram));
        }
        side.listen();
    }

    fn arrive(&mut self, from: usize) {
        while let Some(first) = self.ways[from].packets.first_entry()
            && first.key().0 <= self.now
        {
            let (source, _, mut datagram) = first.remove();
            let side = &mut self.sides[1 - from];
            side.endpoint.handle_datagram(
                self.now,
                source,
                Ecn::NotEct,
                &mut datagram,
                &mut side.store,
            );
            side.listen();
        }
        let arrived = self.sides[BOAT].store.0.arrived;
        if arrived > self.last_new.0 {
            self.longest_pause = self.longest_pause.max(self.now - self.last_new.1);
            self.last_new = (arrived, self.now);
        }
    }

    fn causes(&mut self) -> CauseCounts {
        let hub = &mut self.sides[HUB];
        hub.endpoint.session(hub.peer).expect("it is up").causes()
    }

    fn hub_rate(&mut self) -> f64 {
        let hub = &mut self.sides[HUB];
        let session = hub.endpoint.session(hub.peer).expect("it is up");
        session.path().link_rate as f64
    }

    fn links_down(&self) -> u32 {
        self.sides.iter().map(|side| side.links_down).sum()
    }

    /// Gives the boat another address. Nothing arrives at the old one any more, or it does for a
    /// while.
    fn roam(&mut self, host: u8, old_is_dead: bool) {
        self.sides[BOAT].address = address(host);
        if old_is_dead {
            self.passes = Box::new(move |from, _, to, _| from == BOAT || to == address(host));
            let way = &mut self.ways[HUB].packets;
            way.retain(|_, (_, to, _)| *to == address(host));
        }
    }
}

/// Returns true if the last packet has an answer to a challenge.
fn is_answer(endpoint: &mut Endpoint, peer: PeerId) -> bool {
    let trace = endpoint.trace(peer).expect("it exists");
    let events = trace.take().events;
    let mut sent = events.iter().rev().filter_map(|(_, event)| match event {
        Traced::Sent(packet) => Some(packet),
        _ => None,
    });
    let is_one = |frame: &Frame| matches!(frame, Frame::PathResponse { .. });
    sent.next()
        .is_some_and(|packet| packet.frames.iter().any(is_one))
}

/// The peer hears what the victim gets, acknowledges all of it, and only does not answer
/// challenges. So it knows more than a peer that guesses which packets were sent.
#[test]
fn a_peer_reflects_at_most_three_bytes_per_byte_on_another_host() {
    for (rate, rtt) in [
        (Rate::Stated(BIT_RATE), 600 * MS),
        (Rate::Stated(BIT_RATE), 20 * MS),
        (Rate::Auto, 40 * MS),
    ] {
        let mut bed = Bed::new(rate, rtt);
        let boat = &mut bed.sides[BOAT];
        boat.endpoint
            .trace(boat.peer)
            .expect("it exists")
            .begin(1 << 20);
        bed.answers_none = true;
        let victim = address(66);
        bed.sides[BOAT].address = victim;
        bed.run(10 * S);
        let (spoofed, reflected) = (bed.from[&victim], bed.to[&victim]);
        println!("{rate:?}, {rtt:?}: {spoofed} B spoofed, {reflected} B reflected");
        assert!(bed.sides[HUB].moves > 0);
        assert!(reflected > 0 && reflected <= 3 * spoofed);
    }
}

#[test]
fn a_peer_that_moves_waits_a_round_trip_and_nothing_counts_as_lost() {
    for (rate, rtt) in [
        (Rate::Stated(BIT_RATE), 600 * MS),
        (Rate::Stated(BIT_RATE), 40 * MS),
        (Rate::Auto, 600 * MS),
        (Rate::Auto, 40 * MS),
    ] {
        let mut bed = Bed::new(rate, rtt);
        let (causes, before) = (bed.causes(), bed.hub_rate());
        bed.roam(50, false);
        bed.run(4 * rtt);
        let (pause, after) = (bed.longest_pause, bed.hub_rate());
        println!("{rate:?}, {rtt:?}: pause {pause:?}, {before:.0} -> {after:.0} bit/s");
        assert!(pause > rtt / 2, "{pause:?}");
        assert!(pause < rtt * 3 / 2 + 50 * MS, "{pause:?}");
        assert_eq!(bed.causes(), causes, "{rate:?}, {rtt:?}");
        assert_eq!(bed.links_down(), 0);
        assert!(after > 0.9 * before, "{before} -> {after}");
        // Going back costs nothing.
        bed.longest_pause = Duration::ZERO;
        bed.roam(1, false);
        bed.run(4 * rtt);
        assert!(bed.longest_pause < 50 * MS, "{:?}", bed.longest_pause);
    }
}

/// A NAT router that forgets, every 30 s: nothing passes to the old port.
#[test]
fn a_mapping_that_changes_every_30_s_costs_two_round_trips_each() {
    for (rate, rtt) in [
        (Rate::Stated(BIT_RATE), 600 * MS),
        (Rate::Auto, 600 * MS),
        (Rate::Auto, 60 * MS),
    ] {
        let mut bed = Bed::new(rate, rtt);
        let begin = bed.sides[BOAT].store.0.arrived;
        for host in 50..60 {
            bed.roam(host, true);
            bed.run(30 * S);
        }
        let bytes = bed.sides[BOAT].store.0.arrived - begin;
        let share = bytes as f64 * 8.0 / 300.0 / BIT_RATE as f64;
        println!("{rate:?}, {rtt:?}: {share:.3} of the rate");
        assert_eq!(bed.sides[HUB].moves, 1 + 10);
        // Of each 30 s two round trips are lost, and 5 % are headers.
        let lost = 2.5 * rtt.as_secs_f64() / 30.0;
        assert!(share > 0.93 - lost, "{rate:?}, {rtt:?}: {share}");
    }
}

#[test]
fn a_lost_answer_costs_a_round_trip_more() {
    let rtt = 600 * MS;
    let mut bed = Bed::new(Rate::Stated(BIT_RATE), rtt);
    bed.roam(50, false);
    let from = bed.now + rtt * 3 / 4;
    let until = from + rtt;
    bed.passes = Box::new(move |side, _, _, now| side == HUB || now < from || now > until);
    bed.run(6 * rtt);
    println!("pause {:?}", bed.longest_pause);
    assert!(bed.longest_pause < rtt * 7 / 2, "{:?}", bed.longest_pause);
    let before = bed.sides[BOAT].store.0.arrived;
    bed.run(10 * S);
    let bytes = bed.sides[BOAT].store.0.arrived - before;
    assert!(bytes as f64 * 8.0 > 0.9 * 10.0 * BIT_RATE as f64, "{bytes}");
}

#[test]
fn new_keys_at_the_time_of_a_move_cost_no_more() {
    let rtt = 600 * MS;
    let limits = Limits {
        rekey_after: 20 * S,
        ..Limits::default()
    };
    // The handshake begins before the move, at it, or after it.
    for offset in (0..10).map(|step| rtt * step / 4) {
        let mut bed = Bed::with(Rate::Stated(BIT_RATE), rtt, limits);
        let due = {
            let boat = &bed.sides[BOAT];
            let state = boat.endpoint.peer_state(boat.peer).expect("it exists");
            state.keys_since.expect("it is up") + limits.rekey_after
        };
        let until = due + offset - rtt;
        bed.run(until.saturating_sub(bed.now));
        bed.longest_pause = Duration::ZERO;
        bed.roam(50, false);
        bed.run(6 * rtt);
        assert!(
            bed.longest_pause < rtt * 3 / 2 + 50 * MS,
            "{:?}",
            bed.longest_pause
        );
        assert_eq!(bed.links_down(), 0);
    }
}
