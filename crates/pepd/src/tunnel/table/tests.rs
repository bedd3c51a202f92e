use std::{collections::HashMap, io::Read as _, os::unix::net::UnixStream, time::Duration};

use tunnel::{
    class::Class,
    session::{Event, Outages, Rate, Session, SessionConfig},
};

use pep_core::{
    arena::{Counters, Flags, Identity, Kind},
    budget::MemoryBudget,
    chunks::{CHUNK, window},
    greeting::Answer,
};

use super::*;
use crate::tunnel::{
    credit::{Credits, Usage},
    rig::{FLOWS, INITIAL, RING, SIZES, context},
};

/// What all rings together may have.
const BUDGET: u64 = 1 << 20;

fn table(slots: u32) -> Table {
    Table::new(&context(slots, BUDGET), SIZES, FLOWS)
}

/// What the leg of a flow is sent.
fn sent(table: &mut Table, flow: FlowId) -> Vec<u8> {
    let (mut peer, leg) = UnixStream::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let entry = table.get(flow).unwrap();
    while let Some(count) = entry.send(|slot, direction, data| slot.send(&leg, direction, data)) {
        entry.on_sent(count.unwrap());
    }
    let mut bytes = Vec::new();
    let _ = peer.read_to_end(&mut bytes);
    bytes
}

fn pattern(from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn bytes_are_placed_in_any_order_and_sent_in_theirs() {
    let mut table = table(2);
    let flow = table.opened(5).expect("memory");
    for round in 0..40 {
        let start = round * 30_000;
        for (from, len) in [(20_000, 10_000), (0, 5000), (3000, 17_001), (0, 10)] {
            table.place(5, start + from, &pattern(start + from, len));
        }
        table.on_readable(5, start + 30_000);
        assert_eq!(
            sent(&mut table, flow),
            pattern(start, 30_000),
            "round {round}"
        );
    }
    let entry = table.get(flow).unwrap();
    assert_eq!(
        entry.delivered(),
        [1_200_000, 0],
        "from the client to the server"
    );
    assert!(entry.is_delivered() && entry.reset.is_none());
}

#[test]
fn a_session_reads_what_the_leg_gave_until_it_is_acknowledged() {
    let mut table = table(2);
    let memory = table.context.take_memory().unwrap();
    let flow = table.add(memory, Direction::Up);
    table.bind(flow, 4);
    let (mut peer, leg) = UnixStream::pair().unwrap();
    let mut acknowledged = 0;
    for round in 0..40_u64 {
        std::io::Write::write_all(&mut peer, &pattern(round * 9000, 9000)).unwrap();
        let entry = table.get(flow).unwrap();
        let space = entry.space(RING);
        assert!(space.len() >= 9000);
        let received = entry.receive(|slot, direction| slot.receive(&leg, direction, &space));
        assert_eq!(entry.on_received(received.unwrap()), (round + 1) * 9000);
        let from = acknowledged + round % 7;
        let mut read = vec![0; 7001];
        table.read(4, from, &mut read);
        assert_eq!(read, pattern(from, 7001), "round {round}");
        acknowledged = (round * 9000).max(acknowledged);
        table.on_acked(4, acknowledged);
    }
    table.on_acked(4, u64::MAX);
    assert!(table.get(flow).unwrap().is_acknowledged());
    table.read(99, 0, &mut [1; 4]); // nobody's, and no harm
}

#[test]
fn memory_is_charged_as_it_is_touched_and_given_back() {
    let mut table = table(2);
    let budget = Arc::clone(&table.context.budget);
    let flow = table.opened(1).expect("memory");
    assert_eq!(budget.taken(), 2 * INITIAL);
    table.place(1, 100_000, &[1; 1000]);
    assert_eq!(budget.taken(), INITIAL + 2 * CHUNK, "what is missing, too");
    let entry = table.get(flow).unwrap();
    entry.give_memory_back();
    assert!(budget.taken() > 2 * INITIAL, "a byte is held");
    table.place(1, 0, &[1; 50_000]);
    table.place(1, 50_000, &[1; 50_000]);
    table.on_readable(1, 101_000);
    sent(&mut table, flow);
    table.get(flow).unwrap().give_memory_back();
    assert_eq!(budget.taken(), 2 * INITIAL);
    table.remove(flow);
    assert_eq!(budget.taken(), 0);
}

#[test]
fn what_comes_without_leave_ends_the_stream_and_nothing_else() {
    let mut table = table(2);
    let flow = table.opened(1).expect("memory");
    table.place(1, window(RING) - 1, &[1; 2]);
    assert_eq!(table.get(flow).unwrap().reset, Some(ResetCode::Internal));
    let other = table.opened(3).expect("memory");
    table.place(3, u64::MAX - 1, &[1; 10]);
    assert!(table.get(other).unwrap().reset.is_some());
}

#[test]
fn without_memory_a_stream_is_refused_whatever_came_of_it_first() {
    let mut table = table(1);
    let flow = table.opened(1).expect("memory");
    table.place(3, 0, b"lost");
    table.remove(flow);
    // There is memory now, but its first bytes are gone.
    assert_eq!(table.opened(3), None);
    assert!(table.opened(5).is_some());
}

#[test]
fn a_peer_has_no_more_flows_than_it_may_but_we_have() {
    let mut table = table(2 * FLOWS);
    let flows: Vec<_> = (0..FLOWS).map(|n| table.opened(n.into())).collect();
    assert!(flows.iter().all(Option::is_some));
    assert_eq!(table.opened(100), None);
    // Nor does a byte that comes first make room.
    table.place(101, 0, b"refused");
    let memory = table.context.take_memory().expect("there is more");
    let ours = table.add(memory, Direction::Up);
    table.remove(ours);
    assert!(table.is_at_cap());
    table.remove(flows[0].expect("there is one"));
    assert_eq!(table.opened(101), None, "its first bytes are gone");
    assert!(table.opened(102).is_some() && table.is_at_cap());
}

#[test]
fn a_farewell_ends_flows_with_streams_and_lets_others_wait_on() {
    let mut table = table(3);
    let bound = table.opened(1).expect("memory");
    table.introduce(bound, 7);
    let memory = table.context.take_memory().unwrap();
    let waiting = table.add(memory, Direction::Up);
    table.on_farewell();
    assert_eq!(table.get(bound).unwrap().reset, Some(ResetCode::Restarted));
    assert_eq!(table.get(waiting).unwrap().reset, None);
    // The number may come again, for another flow.
    let again = table.opened(1).expect("memory");
    assert_ne!(again, bound);
    assert_eq!(table.remove(bound), None, "its stream is another's now");
    assert!(table.get(again).is_some());
}

/// Numbers of streams come again with each session.
#[test]
fn bytes_of_a_new_session_never_land_in_a_stream_of_the_one_before() {
    let mut table = table(3);
    let old = table.opened(1).expect("memory");
    table.introduce(old, 7);
    table.place(1, 0, b"old bytes");
    table.on_readable(1, 3);
    table.renew();
    // Before anybody has heard of the new session.
    table.place(1, 0, b"NEW");
    let new = table.opened(1).expect("memory");
    assert_ne!(new, old);
    table.on_readable(1, 3);
    table.on_finished(1);
    let entry = table.get(old).unwrap();
    assert!(entry.is_suspended() && !entry.finished);
    assert_eq!(sent(&mut table, old), b"old");
    assert_eq!(sent(&mut table, new), b"NEW");
}

pub(super) fn identity(kind: Kind) -> Identity {
    Identity {
        kind,
        site: 1,
        peer: 2,
        born: 3,
        token: 7,
        client: ([192, 0, 2, 1], 5000).into(),
        destination: ([192, 0, 2, 2], 80).into(),
        flags: Flags {
            opened: true,
            ..Flags::default()
        },
        class: 1,
    }
}

/// The process ends: its only flow, and what the kernel says of the leg of that.
pub(super) fn survivor(table: Table, counters: Counters) -> Survivor {
    let arena = Arc::clone(&table.context.arena);
    let outward = table.entries.values().next().unwrap().outward;
    // What its memory is given back as is nobody's any more; the arena stays.
    std::mem::forget(table);
    let [slot] = arena.occupied()[..] else {
        panic!("one flow");
    };
    let slot = arena.attach(slot);
    let record = slot.record().unwrap();
    let mut both = [None; 2];
    both[usize::from(outward == Direction::Down)] = Some(counters);
    Survivor {
        slot,
        record,
        legs: [None, None],
        counters: both,
    }
}

/// The process ends, and another one goes on with the only flow.
fn crash(table: Table, counters: Counters) -> (Table, Adopted) {
    let context = Arc::clone(&table.context);
    let survivor = survivor(table, counters);
    let mut table = Table::new(&context, SIZES, FLOWS);
    let adopted = table.recover(survivor, None, BTreeMap::new()).unwrap();
    (table, adopted)
}

/// A flow that both ends of a crash serve, against what its bytes are.
#[test]
fn a_flow_goes_on_in_another_process_with_every_byte_wherever_the_first_one_ended() {
    for seed in 0..60 {
        let mut draw = Draw(seed);
        let mut table = table(2);
        let is_far = draw.below(2) == 0;
        let mut flow = if is_far {
            let flow = table.opened(1).unwrap();
            table.introduce(flow, 7);
            flow
        } else {
            let memory = table.context.take_memory().unwrap();
            let flow = table.add(memory, Direction::Up);
            table.bind(flow, 1);
            flow
        };
        let kind = if is_far { Kind::Far } else { Kind::Near };
        table.get(flow).unwrap().publish(&identity(kind), None);
        // Of the leg: taken, given. Of the stream: acknowledged, come. Each by what the stream began with.
        let (mut taken, mut given, mut acked, mut come) = (0, 0, 0, 0);
        let (mut out_base, mut in_base, mut prologue) = (0, 0, [0_u64; 2]);
        for _ in 0..40 {
            for _ in 0..draw.below(30) {
                let entry = table.get(flow).unwrap();
                match draw.below(5) {
                    0 => {
                        let space = entry.space(draw.below(100_000));
                        let len = space.len();
                        entry.write(&space, &pattern(taken, len));
                        entry.on_received(len);
                        taken += len;
                    }
                    1 => {
                        acked += draw.below(taken - acked + 1);
                        table.on_acked(1, acked - out_base + prologue[0]);
                    }
                    2 => {
                        let ahead = draw.below(60_000);
                        let room = (entry.inn.allowed() - come).saturating_sub(ahead);
                        let bytes = pattern(come + ahead, draw.below(20_000).min(room));
                        table.place(1, come + ahead - in_base + prologue[1], &bytes);
                    }
                    3 => {
                        let room = entry.inn.allowed() - come;
                        let len = draw.below(40_000).min(room);
                        let bytes = pattern(come, len);
                        let at = come - in_base + prologue[1];
                        table.place(1, at, &bytes);
                        come += len;
                        table.on_readable(1, at + len);
                    }
                    _ => {
                        let len = entry.send(|_, _, data| data.len()).unwrap_or(0);
                        let len = draw.below(len + 1);
                        let before = given;
                        let data = entry.send(|slot, direction, data| {
                            let mut bytes = vec![0; len as usize];
                            slot.read(direction, data, &mut bytes);
                            bytes
                        });
                        let data = data.unwrap_or_default();
                        assert!(data == pattern(before, len), "seed {seed}");
                        entry.on_sent(len);
                        table.on_consumed(len);
                        given += len;
                    }
                }
            }
            let entry = table.get(flow).unwrap();
            // A call may have been under way: the kernel knows more than was written down.
            let space = entry.space(draw.below(3) * 10_000);
            entry.write(&space, &pattern(taken, space.len()));
            taken += space.len();
            let sent = entry.send(|_, _, data| data.len()).unwrap_or(0);
            given += draw.below(sent + 1);
            let counters = Counters {
                read: taken,
                written: given,
                ..Counters::default()
            };
            let (next, adopted) = crash(table, counters);
            (table, flow) = (next, adopted.flow);
            let taken_here = table.taken();
            assert_eq!(taken_here, come - given, "seed {seed}");
            let entry = table.get(flow).unwrap();
            assert!(entry.is_suspended());
            assert_eq!((entry.out.tail(), entry.inn.head()), (taken, given));
            if is_far {
                let resume = resume(acked, come);
                table.rejoin(flow, 1, &resume).unwrap().unwrap();
                (out_base, in_base, prologue) = (acked, come, [16, 0]);
            } else {
                table.reopen(flow, 1).unwrap();
                let answer = Answer {
                    up: acked,
                    up_until: acked + 1000,
                };
                table.place(1, 0, &answer.emit());
                assert_eq!(table.on_readable(1, 16), Some(flow));
                table.get(flow).unwrap().on_answer().unwrap().unwrap();
                (out_base, in_base, prologue) = (acked, come, [0, 16]);
            }
            let mut read = vec![0; (taken - acked) as usize];
            for (n, part) in read.chunks_mut(1000).enumerate() {
                table.read(1, prologue[0] + n as u64 * 1000, part);
            }
            assert!(read == pattern(acked, taken - acked), "seed {seed}");
        }
    }
}

fn resume(down: u64, up: u64) -> Resume {
    Resume {
        down,
        down_until: down + 1000,
        up,
        perhaps_new: false,
    }
}

/// Up, and back.
#[test]
fn a_flow_goes_on_with_the_next_stream_where_it_was() {
    let mut far = table(3);
    let flow = far.opened(4).expect("memory");
    far.introduce(flow, 7);
    far.place(4, 0, b"0123456789");
    far.place(4, 20, b"ahead");
    far.on_readable(4, 10);
    far.renew();
    assert_eq!(far.taken(), 10, "what is ahead will come again");
    assert_eq!(far.find(7), Known::Waiting(flow));
    let terms = far.rejoin(flow, 0, &resume(0, 4)).unwrap().unwrap();
    assert_eq!((terms.send, terms.written), (1016, 16));
    assert_eq!(terms.receive, window(RING) - 10);
    assert_eq!(far.find(7), Known::Bound);

    let mut near = table(3);
    let memory = near.context.take_memory().unwrap();
    let client = near.add(memory, Direction::Up);
    near.bind(client, 4);
    near.get(client).unwrap().write_some(b"0123456789abc");
    near.on_acked(4, 4);
    near.renew();
    assert_eq!(near.to_reopen(), [client]);
    let said = near.get(client).unwrap().resumption();
    assert_eq!((said.down, said.up, said.perhaps_new), (0, 4, false));
    let receive = near.reopen(client, 0).unwrap();
    assert_eq!(receive, 16 + window(RING));
    let mut answer = [0; 16];
    far.read(0, 0, &mut answer[..7]);
    far.read(0, 7, &mut answer[7..]);
    near.place(0, 5, &answer[5..]);
    near.place(0, 0, &answer[..9]);
    assert_eq!(near.on_readable(0, 15), None);
    assert_eq!(near.on_readable(0, 16), Some(client));
    let terms = near.get(client).unwrap().on_answer().unwrap().unwrap();
    assert_eq!((terms.written, terms.send), (3, window(RING) - 10));
    let mut rest = [0; 3];
    near.read(0, 0, &mut rest);
    assert_eq!(&rest, b"abc");
    far.place(0, 0, &rest);
    far.on_readable(0, 3);
    assert_eq!(sent(&mut far, flow), b"0123456789abc");
    assert_eq!(near.on_readable(0, 16), None, "once");
}

#[test]
fn a_flow_that_would_lose_bytes_does_not_go_on() {
    let mut far = table(3);
    let flow = far.opened(4).expect("memory");
    far.introduce(flow, 7);
    far.place(4, 0, b"0123456789");
    far.on_readable(4, 10);
    far.renew();
    // The near end has given up what is not here; or has what was never sent.
    assert!(far.rejoin(flow, 0, &resume(0, 11)).unwrap().is_err());
    assert!(far.rejoin(flow, 2, &resume(1, 10)).unwrap().is_err());
}

#[test]
fn flows_of_which_the_peer_says_nothing_any_more_have_ended() {
    let mut far = table(4);
    let flows: Vec<_> = [1, 3, 5]
        .into_iter()
        .map(|stream| {
            let flow = far.opened(stream).expect("memory");
            far.introduce(flow, stream.into());
            flow
        })
        .collect();
    far.on_finished(5);
    far.get(flows[2]).unwrap().finish();
    far.renew();
    far.on_roll(1);
    assert!(far.get(flows[1]).unwrap().is_suspended(), "one is to come");
    far.rejoin(flows[0], 1, &resume(0, 0)).unwrap().unwrap();
    far.on_resumed();
    let entry = |far: &mut Table, flow| far.get(flow).map(|entry| (entry.reset, entry.closed));
    assert_eq!(entry(&mut far, flows[0]), Some((None, false)));
    let restarted = Some(ResetCode::Restarted);
    assert_eq!(entry(&mut far, flows[1]), Some((restarted, false)));
    assert_eq!(entry(&mut far, flows[2]), Some((None, true)));
    far.conclude(flows[2], ResetCode::Ended);
    far.remove(flows[2]);
    assert_eq!(far.find(5), Known::Ended(ResetCode::Ended));
    assert_eq!(far.find(3), Known::Ended(ResetCode::Restarted));
    assert_eq!(far.find(9), Known::Not);
}

/// Two sessions may begin, the second in place of the first, before the first is heard of: what is said a second time would be that no flow
/// goes on.
#[test]
fn the_roll_is_called_once_in_a_session() {
    let mut near = table(2);
    let memory = near.context.take_memory().unwrap();
    let flow = near.add(memory, Direction::Up);
    near.bind(flow, 4);
    for _ in 0..2 {
        near.renew();
        near.renew();
        assert_eq!(near.call_roll(), Some(vec![flow]));
        near.reopen(flow, 6);
        assert_eq!(near.call_roll(), None);
    }
}

/// Its peer has not heard of the end when the process ends.
#[test]
fn a_flow_that_has_ended_well_has_done_so_in_the_next_process_too() {
    let mut far = table(2);
    far.belong_to("boat");
    let context = Arc::clone(&far.context);
    let next = |peer| {
        let mut next = Table::new(&context, SIZES, FLOWS);
        next.belong_to(peer);
        next
    };
    let flow = far.opened(1).expect("memory");
    far.introduce(flow, 7);
    far.get(flow).unwrap().publish(&identity(Kind::Far), None);
    assert_eq!(next("boat").find(7), Known::Not);
    far.conclude(flow, ResetCode::Ended);
    std::mem::forget(far);
    let mut successor = next("boat");
    assert_eq!(successor.find(7), Known::Ended(ResetCode::Ended));
    successor.on_lost(8);
    assert_eq!(successor.find(8), Known::Ended(ResetCode::Restarted));
    assert_eq!(next("another").find(7), Known::Not);
}

#[test]
fn a_flow_that_has_waited_for_too_long_is_given_up() {
    let mut table = table(3);
    let flow = table.opened(1).expect("memory");
    table.introduce(flow, 7);
    table.renew();
    let hold = SIZES.hold.as_secs();
    for _ in 0..hold {
        table.age(Duration::ZERO);
    }
    assert!(table.get(flow).unwrap().is_suspended());
    table.age(Duration::ZERO);
    assert_eq!(table.get(flow).unwrap().reset, Some(ResetCode::Expired));
}

/// Flows of a peer with a session beneath, whose leg takes what and when it likes.
struct Receiver {
    table: Table,
    session: Session,
    /// After the last byte that came of each stream, and how many of them the leg took.
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
        streams_max: 6,
        memory: None,
        overhead_max: 1.0,
    };
    Session::new(config, Duration::ZERO)
}

/// A store of bytes that are all alike.
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
        let mut credits = Credits::default();
        credits.add(&Arc::new(budget), CREDIT, CREDIT);
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
        let taken = session.handle_packet(now, number, packet, packet.len(), false, self);
        taken.expect("the peer keeps to what it was allowed");
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
                    self.table.on_gone(stream, Some(code));
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
        self.table.on_consumed(count);
        self.session.allow(stream, until);
    }

    /// As the core does; then the peer is never allowed more than there is room for.
    fn grant(&mut self, now: Duration) {
        let received = self.session.session_received();
        let usage = Usage::of(&self.session, self.table.taken());
        let rtt = || self.session.path().rtt;
        let until = self.credits.grant(0, now, rtt, &usage);
        self.session.allow_session(until);
        self.allowed = self.allowed.max(until);
        let held: u64 = self.naive.values().map(|(came, took)| came - took).sum();
        assert!(self.allowed - received + held <= CREDIT);
    }
}

/// Flows come, move and end in every way while packets are lost; none of their room is given away twice, none is lost.
#[test]
fn what_a_peer_may_send_and_what_is_here_of_it_are_together_within_its_credit() {
    for seed in 0..10 {
        let mut draw = Draw(seed);
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
            while let Some(written) = sender.poll_packet(now, &mut packet, &Alike) {
                if draw.below(10) > 0 {
                    receiver.take_packet(now, written.number, &packet);
                }
                packet.clear();
            }
            receiver.grant(now);
            while let Some(written) = receiver.session.poll_packet(now, &mut packet, &Alike) {
                if draw.below(10) > 0 {
                    let length = packet.len();
                    let taken = sender.handle_packet(
                        now,
                        written.number,
                        &packet,
                        length,
                        false,
                        &mut Alike,
                    );
                    taken.expect("what we say makes sense");
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

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}
