use std::{
    fs::File,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
};

use nix::sys::stat::fstat;
use pep_core::{
    arena::{DirectionRecord, Flags, Identity, Kind, PAGE},
    budget::{MemoryBudget, Share},
    relay::{Relay, RelayLimits},
    ring::Ranges,
};

use super::*;

const GEOMETRY: Geometry = Geometry {
    slots: 3,
    extent: 1 << 16,
    initial: 1 << 12,
};

fn pages(arena: &Arena) -> i64 {
    fstat(arena.fd()).unwrap().st_blocks * 512 / PAGE as i64
}

fn ranges(first: Range<u64>, second: Range<u64>) -> Ranges {
    Ranges { first, second }
}

#[test]
fn bytes_go_in_and_out_across_the_wrap() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let mut slot = arena.take_slot().unwrap();
    let (mut peer, leg) = UnixStream::pair().unwrap();
    peer.write_all(b"abcdef").unwrap();
    let space = ranges(65_532..65_536, 0..10);
    assert_eq!(slot.receive(&leg, Direction::Down, &space).unwrap(), 6);
    let blocked = slot.receive(&leg, Direction::Down, &space).unwrap_err();
    assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
    let data = ranges(65_532..65_536, 0..2);
    assert_eq!(slot.send(&leg, Direction::Down, &data).unwrap(), 6);
    let mut echoed = [0; 6];
    peer.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"abcdef");
}

#[test]
fn flows_do_not_share_memory() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let mut slots: Vec<_> = (0..3).map(|_| arena.take_slot().unwrap()).collect();
    assert!(arena.take_slot().is_none());
    let whole = ranges(0..1 << 16, 0..0);
    let (mut peer, leg) = UnixStream::pair().unwrap();
    for slot in &mut slots {
        for direction in Direction::ALL {
            let mark = [slot.index() as u8 * 2 + direction as u8; 9];
            peer.write_all(&mark).unwrap();
            assert_eq!(slot.receive(&leg, direction, &whole).unwrap(), 9);
        }
    }
    for slot in &slots {
        for direction in Direction::ALL {
            slot.send(&leg, direction, &ranges(0..9, 0..0)).unwrap();
            let mut read = [0; 9];
            peer.read_exact(&mut read).unwrap();
            assert_eq!(read, [slot.index() as u8 * 2 + direction as u8; 9]);
        }
    }
}

#[test]
fn pages_are_given_back_when_idle_and_when_free() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let before = pages(&arena);
    let (mut peer, leg) = UnixStream::pair().unwrap();
    let mut slot = arena.take_slot().unwrap();
    for direction in Direction::ALL {
        peer.write_all(&[1; 5000]).unwrap();
        slot.receive(&leg, direction, &ranges(0..1 << 16, 0..0))
            .unwrap();
    }
    // One page of headers may be added.
    assert!(pages(&arena) >= before + 4);
    slot.punch(Direction::Up);
    let with_one = pages(&arena);
    assert!(with_one >= before + 2);
    drop(slot);
    arena.sweep(10);
    assert!(
        pages(&arena) <= before + 1,
        "{} after {before}",
        pages(&arena)
    );
    let again: Vec<_> = (0..3).map(|_| arena.take_slot().unwrap().index()).collect();
    assert_eq!(again.len(), 3);
}

#[test]
fn listing_flows_takes_no_pages_for_slots_that_were_never_taken() {
    let geometry = Geometry {
        slots: 10_000,
        ..GEOMETRY
    };
    let arena = Arena::new(geometry).unwrap();
    let slot = arena.take_slot().unwrap();
    let before = pages(&arena);
    assert!(arena.occupied().is_empty());
    assert!(pages(&arena) <= before + 1);
    drop(slot);
}

/// A slot has pages for no more than its flow took from the budget when it began.
#[test]
fn a_slot_that_is_taken_again_has_no_pages_of_grown_rings() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let (mut peer, leg) = UnixStream::pair().unwrap();
    let mut slot = arena.take_slot().unwrap();
    let index = slot.index();
    // Allocates the page of the headers.
    slot.publish_state(SlotState::Accepted);
    for direction in Direction::ALL {
        peer.write_all(&[1; 40_000]).unwrap();
        slot.receive(&leg, direction, &ranges(0..1 << 16, 0..0))
            .unwrap();
    }
    let grown = pages(&arena);
    drop(slot);
    let slot = arena.take_slot().unwrap();
    assert_eq!(slot.index(), index, "the slot freed last");
    // Ten pages per direction, of which one stays.
    assert_eq!(pages(&arena), grown - 2 * 9);
}

#[test]
fn the_header_follows_the_half() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let slot = arena.take_slot().unwrap();
    let limits = RelayLimits {
        ring_initial: 4096,
        ring_max: 1 << 16,
        turn_bytes: 1 << 16,
    };
    let share = Share::take(&Arc::new(MemoryBudget::new(1 << 20)), 8192).unwrap();
    let mut relay = Relay::new(limits, share);
    relay.handle_received(Direction::Down, 100);
    relay.handle_sent(Direction::Down, 40);
    relay.handle_end_of_stream(Direction::Down);
    slot.publish_identity(&identity());
    let part = relay.direction(Direction::Down);
    slot.publish_direction(Direction::Down, &part.into());
    slot.publish_state(SlotState::Relaying);
    let record = slot.record().unwrap();
    let part = DirectionRecord {
        head: 40,
        tail: 100,
        size: 4096,
        fin_in: true,
        ..DirectionRecord::default()
    };
    assert_eq!(record.directions[Direction::Down as usize], part);
    assert_eq!(record.state, SlotState::Relaying);
    let index = slot.index();
    drop(slot);
    assert_eq!(arena.record(index), None);
}

/// Opens the same memory as a successor does.
fn successor(arena: &Arena) -> Result<Arc<Arena>, OpenError> {
    let fd = arena.fd().try_clone_to_owned().unwrap();
    Arena::open(fd, GEOMETRY.initial)
}

#[test]
fn a_successor_finds_the_flows_and_their_bytes_and_takes_only_free_slots() {
    let arena = Arena::new(GEOMETRY).unwrap();
    assert_eq!(arena.generation(), 1);
    let mut slots: Vec<_> = (0..3).map(|_| arena.take_slot().unwrap()).collect();
    let at = ranges(0..9, 0..0);
    for slot in &mut slots {
        slot.publish_identity(&identity());
        slot.publish_state(SlotState::Relaying);
        slot.write(Direction::Up, &at, b"something");
    }
    slots[1].publish_chunk(Direction::Down, 0, 77);
    let freed = slots.remove(0).index();
    let (first, second) = (slots[0].index(), slots[1].index());
    let next = successor(&arena).unwrap();
    assert_eq!(next.generation(), 2);
    assert_eq!(next.seal(), arena.seal());
    let mut occupied = next.occupied();
    occupied.sort_unstable();
    assert_eq!(occupied, [first.min(second), first.max(second)]);
    assert_eq!(next.take_slot().unwrap().index(), freed);
    let attached = next.attach(first);
    assert_eq!(attached.record().unwrap().identity, identity());
    let mut read = [0; 9];
    attached.read(Direction::Up, &at, &mut read);
    assert_eq!(&read, b"something");
    assert_eq!(attached.chunk(Direction::Down, 0), 77);
    drop(attached);
    let again = next.attach(first);
    assert_eq!((again.record(), again.chunk(Direction::Down, 0)), (None, 0));
}

/// Bytes of a flow come before its record.
#[test]
fn a_successor_clears_slots_whose_flow_was_not_recorded_yet() {
    for swept in [false, true] {
        let arena = Arena::new(GEOMETRY).unwrap();
        let mut slot = arena.take_slot().unwrap();
        slot.publish_chunk(Direction::Down, 0, 77);
        let next = successor(&arena).unwrap();
        assert!(next.occupied().is_empty());
        if swept {
            next.sweep(usize::MAX);
        }
        let taken = next.take_slot().unwrap();
        assert_eq!(taken.chunk(Direction::Down, 0), 0);
        let all: Vec<_> = std::iter::from_fn(|| next.take_slot()).collect();
        assert_eq!(all.len() as u32 + 1, GEOMETRY.slots);
        let words = all.iter().map(|slot| slot.chunk(Direction::Down, 0));
        assert!(words.into_iter().all(|word| word == 0));
    }
}

#[test]
fn memory_of_another_version_or_size_is_refused() {
    let arena = Arena::new(GEOMETRY).unwrap();
    arena.memory.store(8, 7);
    let refused = successor(&arena).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "layout version 7, this pepd supports version 3"
    );
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(
        Arena::open(file.into(), 0),
        Err(OpenError::System(_))
    ));
}

fn identity() -> Identity {
    Identity {
        kind: Kind::Split,
        site: 1,
        peer: 0,
        born: 2,
        token: 0,
        client: "192.0.2.1:3".parse().unwrap(),
        destination: "[2001:db8::4]:5".parse().unwrap(),
        flags: Flags::default(),
        class: 0,
    }
}

#[test]
fn the_memory_cannot_shrink_under_the_mapping() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let path = format!("/proc/self/fd/{}", arena.fd().as_raw_fd());
    let file = File::options().write(true).open(path).unwrap();
    assert!(file.set_len(0).is_err());
}

#[test]
fn more_than_there_is_is_refused() {
    let geometry = Geometry {
        slots: u32::MAX,
        extent: 1 << 40,
        initial: 1 << 12,
    };
    assert!(Arena::new(geometry).is_err());
}

/// Compares every alignment of both ends, with and without a wrap, with a plain array.
#[test]
fn bytes_are_copied_in_and_out_and_leave_their_neighbours_alone() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let mut slot = arena.take_slot().unwrap();
    let mut model = [0; 64];
    slot.write(Direction::Up, &ranges(0..64, 0..0), &model);
    let mut value = 0_u8;
    for start in 0..24_u64 {
        for len in 0..24_u64 {
            let (first, second) = (start..start + len, 48..48 + start % 9);
            let places: Vec<_> = first.clone().chain(second.clone()).collect();
            let bytes: Vec<_> = places
                .iter()
                .map(|_| {
                    value = value.wrapping_add(1);
                    value
                })
                .collect();
            for (place, byte) in places.iter().zip(&bytes) {
                model[*place as usize] = *byte;
            }
            let at = ranges(first, second);
            slot.write(Direction::Up, &at, &bytes);
            let mut read = vec![0; bytes.len()];
            slot.read(Direction::Up, &at, &mut read);
            assert_eq!(read, bytes, "{at:?}");
        }
    }
    let mut all = [0; 64];
    slot.read(Direction::Up, &ranges(0..64, 0..0), &mut all);
    assert_eq!(all, model);
}

#[test]
fn what_is_copied_in_is_sent_and_what_is_received_is_copied_out() {
    let arena = Arena::new(GEOMETRY).unwrap();
    let mut slot = arena.take_slot().unwrap();
    let (mut peer, leg) = UnixStream::pair().unwrap();
    let at = ranges(65_533..65_536, 0..4);
    slot.write(Direction::Down, &at, b"abcdefg");
    assert_eq!(slot.send(&leg, Direction::Down, &at).unwrap(), 7);
    let mut sent = [0; 7];
    peer.read_exact(&mut sent).unwrap();
    assert_eq!(&sent, b"abcdefg");
    peer.write_all(b"hijklmn").unwrap();
    assert_eq!(slot.receive(&leg, Direction::Up, &at).unwrap(), 7);
    let mut received = [0; 5];
    slot.read(Direction::Up, &at, &mut received);
    assert_eq!(&received, b"hijkl");
}
