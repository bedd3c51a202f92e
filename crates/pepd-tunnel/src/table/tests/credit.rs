//! Credit of peers.

use tunnel::{ecn::Ecn, session::SkipConfig};

use super::*;

/// Flows of a peer with a session, whose legs take bytes at random.
struct Receiver {
    table: Table,
    session: Session,
    /// Position after the last received byte of each stream, and bytes taken by the leg.
    naive: HashMap<StreamId, (u64, u64)>,
    allowed: u64,
    credits: Credits,
}

const CREDIT: u64 = 100_000;

fn session(initiator: bool) -> Session {
    let config = SessionConfig {
        initiator,
        rate: Rate::Stated(50_000_000),
        return_rate: None,
        rtt: Duration::from_millis(10),
        packet_start: 1400,
        packet_max: 1400,
        overhead: 53,
        outages: Outages::Never,
        stream_credit: 30_000,
        session_credit: CREDIT,
        kept_max: 64 << 20,
        streams_max: 6,
        packets: false,
        unreached: Default::default(),
        peer_packets: false,
        peer_rests: false,
        memory: None,
        overhead_max: 1.0,
        skips: SkipConfig::NONE,
    };
    Session::new(config, Duration::ZERO)
}

/// A store of identical bytes.
struct Alike;

impl Store for Alike {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(7);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

impl Store for Receiver {
    fn read(&self, _: StreamId, _: u64, _: &mut [u8]) {}

    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]) {
        let (highest, _) = self.naive.entry(stream).or_default();
        *highest = (*highest).max(from + bytes.len() as u64);
        self.table.place(stream, from, bytes);
    }
}

impl Receiver {
    fn new() -> Self {
        let (context, budget) = (context(8, BUDGET), MemoryBudget::new(2 * CREDIT));
        let budget = Arc::new(budget);
        let mut credits = Credits::new(&Pool::new(&budget));
        credits.add(CREDIT, CREDIT, &Arc::new(MemoryPart::new(&budget)));
        Self {
            table: Table::new(&context, SIZES, FLOWS),
            session: session(false),
            naive: HashMap::new(),
            allowed: CREDIT,
            credits,
        }
    }

    fn take_packet(&mut self, now: Duration, number: u64, packet: &[u8]) {
        let mut session = std::mem::replace(&mut self.session, session(false));
        let taken = session.handle_packet(now, number, packet, packet.len(), Ecn::NotEct, self);
        taken.expect("the peer respects its credit");
        self.session = session;
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Opened { stream, .. } => {
                    self.table.opened(stream).expect("memory");
                }
                Event::Readable { stream, until } => {
                    self.table.on_readable(stream, until);
                }
                Event::Reset { stream, code } => {
                    self.table.on_stream_end(stream, Some(code));
                    self.remove(stream);
                }
                _ => {}
            }
        }
    }

    fn remove(&mut self, stream: StreamId) {
        self.naive.remove(&stream);
        let flows = self.table.entries.iter();
        let gone =
            flows.filter(|(_, entry)| entry.stream() == Some(stream) || entry.reset.is_some());
        for flow in gone.map(|(flow, _)| *flow).collect::<Vec<_>>() {
            self.table.remove(flow);
        }
    }

    fn leg_takes(&mut self, stream: StreamId, most: u64) {
        let Some(entry) = self.table.of_stream(stream) else {
            return;
        };
        let count = entry.send(|_, _, data| data.len()).unwrap_or(0).min(most);
        let until = entry.on_sent(count);
        self.naive.entry(stream).or_default().1 += count;
        let flow = self.table.streams[&stream];
        self.table.on_consumed(flow, count);
        self.session.allow(stream, until);
    }

    /// Grants credit as the core does; the credit then never exceeds the room.
    fn grant(&mut self, now: Duration) {
        let received = self.session.session_received();
        let usage = Usage::new(&self.session, &self.table);
        let round = || crate::credit::round(&self.session);
        let until = self.credits.grant(0, now, round, &usage);
        self.session.allow_session(until);
        self.allowed = self.allowed.max(until);
        let held: u64 = self.naive.values().map(|(came, took)| came - took).sum();
        assert!(self.allowed - received + held <= CREDIT);
    }
}

/// Flows come, move and end in every way while packets are lost. No room is granted twice, and none
/// is lost.
#[test]
fn in_flight_and_received_bytes_of_a_peer_stay_within_its_credit() {
    for seed in 0..10 {
        let mut draw = SplitMix64::new(seed);
        let (mut sender, mut receiver) = (session(true), Receiver::new());
        let mut open: Vec<StreamId> = Vec::new();
        for step in 0..3000_u64 {
            let now = Duration::from_millis(step);
            let ending = step > 2000;
            if !open.is_empty() {
                let at = draw.below(open.len() as u64) as usize;
                let stream = open[at];
                match draw.below(20) {
                    0 => sender.reset(stream, ResetCode::Host),
                    1 => {
                        receiver.session.reset(stream, ResetCode::Host);
                        receiver.remove(stream);
                    }
                    2..12 => receiver.leg_takes(stream, draw.below(9000)),
                    _ => {}
                }
                if ending {
                    sender.reset(stream, ResetCode::Host);
                    open.remove(at);
                }
            }
            if !ending && let Ok(stream) = sender.open(Class::Normal, 0, b"to") {
                sender.written(stream, draw.below(200_000));
                open.push(stream);
            }
            let mut packet = Vec::new();
            while let Some(written) = sender.poll_packet(now, &mut packet, &mut Alike) {
                if draw.below(10) > 0 {
                    receiver.take_packet(now, written.number, &packet);
                }
                packet.clear();
            }
            receiver.grant(now);
            while let Some(written) = receiver.session.poll_packet(now, &mut packet, &mut Alike) {
                if draw.below(10) > 0 {
                    let length = packet.len();
                    let taken = sender.handle_packet(
                        now,
                        written.number,
                        &packet,
                        length,
                        Ecn::NotEct,
                        &mut Alike,
                    );
                    taken.expect("valid datagrams");
                }
                packet.clear();
            }
            while sender.poll_event().is_some() {}
        }
        let received = receiver.session.session_received();
        assert!(received > 10 * CREDIT, "seed {seed}: {received} have moved");
        assert_eq!(
            receiver.allowed - received,
            CREDIT,
            "seed {seed}: all room is back"
        );
    }
}
