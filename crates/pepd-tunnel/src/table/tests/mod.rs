mod credit;
mod processes;

use std::{collections::HashMap, io::Read as _, os::unix::net::UnixStream, time::Duration};

use splitmix::SplitMix64;
use tunnel::{
    class::Class,
    session::{Event, Outages, Rate, Session, SessionConfig},
    store::Store,
};

use pep_core::{
    arena::{Counters, Flags, Identity, Kind},
    budget::MemoryBudget,
    chunks::{CHUNK, window},
    stream_header::Answer,
};

use super::*;
use crate::{
    credit::{Credits, Pool, Usage},
    rig::{FLOWS, INITIAL, RING, SIZES, context},
};

/// Budget of all rings together.
pub(super) use processes::{identity, survivor};

const BUDGET: u64 = 1 << 20;

fn table(slots: u32) -> Table {
    Table::new(&context(slots, BUDGET), SIZES, FLOWS)
}

/// Returns the bytes sent to the leg of a flow.
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
fn bytes_are_placed_in_any_order_and_sent_in_sequence() {
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
    table.read(99, 0, &mut [1; 4]); // an unknown stream does no harm
}

#[test]
fn memory_is_charged_as_it_is_touched_and_given_back() {
    let mut table = table(2);
    let budget = Arc::clone(&table.context.budget);
    let flow = table.opened(1).expect("memory");
    assert_eq!(budget.taken(), 2 * INITIAL);
    table.place(1, 100_000, &[1; 1000]);
    assert_eq!(budget.taken(), INITIAL + 2 * CHUNK, "gaps count too");
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
    // There is memory now, but the stream's first bytes are lost.
    assert_eq!(table.opened(3), None);
    assert!(table.opened(5).is_some());
}

#[test]
fn a_peers_flows_are_limited_and_local_ones_are_not() {
    let mut table = table(2 * FLOWS);
    let flows: Vec<_> = (0..FLOWS).map(|n| table.opened(n.into())).collect();
    assert!(flows.iter().all(Option::is_some));
    assert_eq!(table.opened(100), None);
    // A byte that comes first makes no room either.
    table.place(101, 0, b"refused");
    let memory = table.context.take_memory().expect("there is more");
    let local = table.add(memory, Direction::Up);
    table.remove(local);
    assert!(table.is_at_cap());
    table.remove(flows[0].expect("there is one"));
    assert_eq!(table.opened(101), None, "its first bytes are lost");
    assert!(table.opened(102).is_some() && table.is_at_cap());
}

#[test]
fn a_close_ends_flows_with_streams_and_lets_others_keep_waiting() {
    let mut table = table(3);
    let bound = table.opened(1).expect("memory");
    table.introduce(bound, 7);
    let memory = table.context.take_memory().unwrap();
    let waiting = table.add(memory, Direction::Up);
    table.on_peer_closed();
    assert_eq!(table.get(bound).unwrap().reset, Some(ResetCode::Restarted));
    assert_eq!(table.get(waiting).unwrap().reset, None);
    // The number may be reused, for another flow.
    let again = table.opened(1).expect("memory");
    assert_ne!(again, bound);
    assert_eq!(table.remove(bound), None, "its stream is another's now");
    assert!(table.get(again).is_some());
}

/// Stream numbers repeat in each session.
#[test]
fn bytes_of_a_new_session_never_land_in_a_stream_of_the_one_before() {
    let mut table = table(3);
    let old = table.opened(1).expect("memory");
    table.introduce(old, 7);
    table.place(1, 0, b"old bytes");
    table.on_readable(1, 3);
    table.renew();
    // Before the new session's event is handled.
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

fn resume(down: u64, up: u64) -> Resume {
    Resume {
        down,
        down_until: down + 1000,
        up,
        perhaps_new: false,
    }
}

/// Upstream, and back.
#[test]
fn a_flow_resumes_at_its_position_on_the_next_stream() {
    let mut far = table(3);
    let flow = far.opened(4).expect("memory");
    far.introduce(flow, 7);
    far.place(4, 0, b"0123456789");
    far.place(4, 20, b"ahead");
    far.on_readable(4, 10);
    far.renew();
    assert_eq!(far.taken(), 10, "bytes ahead are retransmitted");
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
    near.get(client).unwrap().advance();
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
fn a_flow_that_would_lose_bytes_does_not_resume() {
    let mut far = table(3);
    let flow = far.opened(4).expect("memory");
    far.introduce(flow, 7);
    far.place(4, 0, b"0123456789");
    far.on_readable(4, 10);
    far.renew();
    // The near end has dropped bytes that the far end lacks, or claims bytes that were never sent.
    assert!(far.rejoin(flow, 0, &resume(0, 11)).unwrap().is_err());
    assert!(far.rejoin(flow, 2, &resume(1, 10)).unwrap().is_err());
}

/// Bytes on the stream of an inventory, or before the stream header of a resumed flow, make a flow
/// that no task serves.
#[test]
fn bytes_that_belong_to_no_flow_leave_none() {
    let mut far = table(3);
    far.place(1, 0, b"of an inventory");
    far.ignore(1);
    far.place(1, 15, b"more");
    assert_eq!(far.flow_of(1), None);
    far.on_stream_end(1, None);

    far.place(3, 0, b"reset before its stream header");
    far.on_stream_end(3, Some(ResetCode::Ended));

    let flow = far.opened(5).expect("memory");
    far.introduce(flow, 7);
    far.renew();
    far.place(1, 0, b"before the answer");
    far.rejoin(flow, 1, &resume(0, 0)).unwrap().unwrap();
    assert_eq!(far.flow_of(1), Some(flow));
    assert_eq!((far.len(), far.taken()), (1, 0));
    far.remove(flow);
    assert_eq!(far.context.budget.taken(), 0);
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
    far.on_inventory(1);
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
    assert_eq!(far.find(9), Known::Unknown);
}

/// Two sessions may begin, the second replacing the first, before the event of the first is
/// handled. A second inventory would report that no flow resumes.
#[test]
fn the_inventory_is_sent_once_per_session() {
    let mut near = table(2);
    let memory = near.context.take_memory().unwrap();
    let flow = near.add(memory, Direction::Up);
    near.bind(flow, 4);
    for _ in 0..2 {
        near.renew();
        near.renew();
        assert_eq!(near.send_inventory(), Some(vec![flow]));
        near.reopen(flow, 6);
        assert_eq!(near.send_inventory(), None);
    }
}

/// The peer has not heard of the end when the process ends.
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
    assert_eq!(next("boat").find(7), Known::Unknown);
    far.conclude(flow, ResetCode::Ended);
    std::mem::forget(far);
    let mut successor = next("boat");
    assert_eq!(successor.find(7), Known::Ended(ResetCode::Ended));
    successor.on_lost(8);
    assert_eq!(successor.find(8), Known::Ended(ResetCode::Restarted));
    assert_eq!(next("another").find(7), Known::Unknown);
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
