use std::{io::Read as _, os::unix::net::UnixStream, time::Duration};

use pep_core::{budget::MemoryBudget, relay::RelayLimits};

use super::*;
use crate::{
    arena::{Arena, Geometry},
    limits::Admission,
    stats::Counters,
};

const RING: u64 = 1 << 18;
const INITIAL: u64 = 1 << 14;

fn table(slots: u32) -> Table {
    let counters = Arc::new(Counters::default());
    let geometry = Geometry {
        slots,
        extent: RING,
        initial: INITIAL,
    };
    let context = FlowContext {
        arena: Arena::new(geometry).unwrap(),
        budget: Arc::new(MemoryBudget::new(1 << 20)),
        limits: RelayLimits {
            ring_initial: INITIAL,
            ring_max: RING,
            turn_bytes: RING,
        },
        busy_poll: Duration::ZERO,
        admission: Admission::new(slots, Arc::clone(&counters)),
        counters,
        held: None,
        unanswered: Arc::default(),
        link: None,
    };
    Table::new(&Arc::new(context), RING, 1000)
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
    assert!(budget.taken() >= 2 * INITIAL + 101_000 - INITIAL);
    let entry = table.get(flow).unwrap();
    entry.give_memory_back(INITIAL);
    assert!(budget.taken() > 2 * INITIAL, "a byte is held");
    table.place(1, 0, &[1; 100_000]);
    table.on_readable(1, 101_000);
    sent(&mut table, flow);
    table.get(flow).unwrap().give_memory_back(INITIAL);
    assert_eq!(budget.taken(), 2 * INITIAL);
    table.remove(flow);
    assert_eq!(budget.taken(), 0);
}

#[test]
fn what_comes_without_leave_ends_the_stream_and_nothing_else() {
    let mut table = table(2);
    let flow = table.opened(1).expect("memory");
    table.place(1, RING - 1, &[1; 2]);
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
fn a_restart_ends_flows_with_streams_and_lets_others_wait_on() {
    let mut table = table(3);
    let bound = table.opened(1).expect("memory");
    let memory = table.context.take_memory().unwrap();
    let waiting = table.add(memory, Direction::Up);
    table.on_restart();
    assert_eq!(table.get(bound).unwrap().reset, Some(ResetCode::Restarted));
    assert_eq!(table.get(waiting).unwrap().reset, None);
    // The number may come again, for another flow.
    let again = table.opened(1).expect("memory");
    assert_ne!(again, bound);
    assert_eq!(table.remove(bound), None, "its stream is another's now");
    assert!(table.get(again).is_some());
}

#[test]
fn the_sessions_credit_grows_with_what_legs_took_and_what_nobody_will_take() {
    let mut table = table(2);
    assert_eq!(table.session_allowed(), 1000);
    table.on_consumed(300);
    assert_eq!(table.session_allowed(), 1300);
    let flow = table.opened(1).expect("memory");
    assert_eq!(table.remove(flow), Some(1));
    assert_eq!(table.session_allowed(), 1300 + RING);
    table.opened(3);
    table.on_gone(3, Some(ResetCode::Host));
    assert_eq!(table.session_allowed(), 1300 + 2 * RING);
}
