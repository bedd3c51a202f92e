use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    budget::{MemoryBudget, Share},
    relay::{Action, Direction, End, PerSide, Relay, RelayLimits, Side},
    ring::Ranges,
};

/// Memory of a process that may end before any of its stores and calls.
struct Memory {
    words: RefCell<Vec<u64>>,
    /// Stores and calls until the process ends; later ones have no effect.
    fuel: Cell<u64>,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        Self {
            words: RefCell::new(vec![0; bytes / 8]),
            fuel: Cell::new(u64::MAX),
        }
    }

    /// Reports whether the next store or call still happens.
    fn lives(&self) -> bool {
        let fuel = self.fuel.get();
        self.fuel.set(fuel.saturating_sub(1));
        fuel > 0
    }
}

impl Words for Memory {
    fn load(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.words.borrow()[offset / 8]
    }

    fn store(&self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8));
        if self.lives() {
            self.words.borrow_mut()[offset / 8] = value;
        }
    }
}

const EXTENT: u64 = 1 << 13;
const LIMITS: RelayLimits = RelayLimits {
    ring_initial: 16,
    ring_max: 128,
    turn_bytes: 64,
};

fn identity() -> Identity {
    Identity {
        kind: Kind::Near,
        site: name_hash("ship"),
        peer: name_hash("hub"),
        born: 1_700_000_000_000,
        token: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        client: "[2001:db8::1%3]:4711".parse().unwrap(),
        destination: "192.0.2.1:80".parse().unwrap(),
        flags: Flags {
            compressed: true,
            opened: false,
            as_client: true,
            answered: true,
            off_link: true,
        },
        class: 46,
    }
}

#[test]
fn a_layout_is_read_back_and_nothing_overlaps() {
    for (slots, extent) in [(1, 1 << 12), (3, 1 << 16), (70, 1 << 20)] {
        let layout = Layout::new(slots, extent).unwrap();
        let memory = Memory::new(PAGE);
        let seal = std::array::from_fn(|index| index as u8 + 1);
        layout.write(&memory, &seal);
        assert_eq!(Layout::read(&memory, layout.len()), Ok(layout));
        assert_eq!(Layout::seal(&memory), seal);
        let last = slots - 1;
        let headers_end = layout.header(last) + 512;
        let chunks = layout.chunks();
        assert!(headers_end <= layout.chunk(0, Direction::Up, 0));
        let end = layout.chunk(last, Direction::Down, chunks - 1) + 8;
        assert!(end <= layout.extent(0, Direction::Up));
        assert!(layout.extent(0, Direction::Up).is_multiple_of(PAGE));
        assert_eq!(
            layout.extent(last, Direction::Down) + extent as usize,
            layout.len()
        );
    }
}

#[test]
fn more_than_there_are_addresses_is_no_layout() {
    assert_eq!(Layout::new(u32::MAX, 1 << 40), None);
}

#[test]
fn what_is_not_ours_is_never_read() {
    let layout = Layout::new(3, 1 << 16).unwrap();
    let memory = Memory::new(PAGE);
    assert_eq!(
        Layout::read(&memory, layout.len()),
        Err(FormatError::Magic),
        "empty"
    );
    // Whatever store was the last: the memory is complete or invalid.
    for fuel in 0..12 {
        let memory = Memory::new(PAGE);
        memory.fuel.set(fuel);
        layout.write(&memory, &[7; 32]);
        memory.fuel.set(u64::MAX);
        let read = Layout::read(&memory, layout.len());
        assert_eq!(read.is_ok(), fuel == 12, "{fuel}: {read:?}");
    }
    layout.write(&memory, &[7; 32]);
    assert_eq!(
        Layout::read(&memory, layout.len() + PAGE),
        Err(FormatError::Sizes)
    );
    memory.store(8, 1);
    assert_eq!(
        Layout::read(&memory, layout.len()),
        Err(FormatError::Version { found: 1 })
    );
    memory.store(8, VERSION);
    for (offset, value) in [(16, 4), (24, 12_345), (24, 0), (48, 0), (80, 0)] {
        let good = memory.load(offset);
        memory.store(offset, value);
        assert_eq!(
            Layout::read(&memory, layout.len()),
            Err(FormatError::Sizes),
            "{offset}"
        );
        memory.store(offset, good);
    }
}

#[test]
fn a_record_is_read_back_once_its_state_is_written_and_not_before() {
    let expected = Record {
        state: SlotState::Accepted,
        cookies: [5, 6],
        identity: identity(),
        directions: [
            DirectionRecord {
                size: 16,
                ..DirectionRecord::default()
            },
            DirectionRecord {
                head: 1,
                tail: 2,
                base: 3,
                size: 4,
                fin_in: true,
                fin_out: true,
            },
        ],
    };
    for fuel in 0.. {
        let memory = Memory::new(2 * PAGE);
        memory.fuel.set(fuel);
        let header = Header::new(&memory, PAGE);
        header.write_identity(&expected.identity);
        for direction in Direction::ALL {
            header.write_direction(direction, &expected.directions[direction as usize]);
        }
        for side in Side::ALL {
            header.write_cookie(side, expected.cookies[side as usize]);
        }
        header.write_state(expected.state);
        let complete = memory.fuel.get() > 0;
        assert!(complete || header.read().is_none() || header.read() == Some(expected));
        if complete {
            assert_eq!(header.read(), Some(expected));
            return;
        }
    }
}

#[test]
fn names_have_hashes_of_their_own() {
    assert_eq!(name_hash("a"), 0xaf63_dc4c_8601_ec8c, "FNV-1a");
    assert_ne!(name_hash("site"), name_hash("Site"));
    assert_ne!(name_hash(""), 0);
}

/// A host and the socket that leads to it.
#[derive(Default)]
struct Leg {
    /// All bytes that the host sends before its FIN.
    sends: Vec<u8>,
    arrived: usize,
    read: usize,
    /// Bytes that the host received.
    got: Vec<u8>,
    room: usize,
    fin_got: bool,
}

impl Leg {
    fn new(len: usize, seed: u8) -> Self {
        Self {
            sends: (0..len)
                .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) | 1)
                .collect(),
            ..Self::default()
        }
    }

    fn has_fin(&self) -> bool {
        self.arrived == self.sends.len()
    }

    fn counters(&self) -> Counters {
        Counters {
            read: self.read as u64,
            written: self.got.len() as u64,
            fin_received: self.has_fin(),
            fin_sent: self.fin_got,
            closed: false,
            aborted: false,
        }
    }
}

/// A relay whose process ends repeatedly, over legs and memory that live on.
struct World {
    memory: Memory,
    rings: [Vec<u8>; 2],
    legs: [Leg; 2],
    relay: Relay,
    random: u64,
    deaths: u32,
    repaired: u64,
    /// If false, the record is used without the kernel's counters.
    reconciles: bool,
}

impl World {
    fn new(seed: u64, lens: [usize; 2], reconciles: bool) -> Self {
        let world = Self {
            memory: Memory::new(2 * PAGE),
            rings: [(); 2].map(|()| vec![0; EXTENT as usize]),
            legs: [Leg::new(lens[0], 3), Leg::new(lens[1], 101)],
            relay: Relay::new(LIMITS, share(2 * LIMITS.ring_initial)),
            random: seed | 1,
            deaths: 0,
            repaired: 0,
            reconciles,
        };
        world.header().write_identity(&identity());
        world.publish_all();
        world.header().write_state(SlotState::Relaying);
        world
    }

    fn header(&self) -> Header<'_, Memory> {
        Header::new(&self.memory, PAGE)
    }

    fn publish_all(&self) {
        for direction in Direction::ALL {
            self.publish(direction);
        }
    }

    fn publish(&self, direction: Direction) {
        let part = self.relay.direction(direction);
        self.header().write_direction(direction, &part.into());
    }

    /// A number below `below` (xorshift64).
    fn below(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    fn run(&mut self, fuels: &[u64]) -> Result<(), Disagreement> {
        let mut fuels = fuels.iter().copied();
        self.memory.fuel.set(fuels.next().unwrap_or(u64::MAX));
        for _ in 0..100_000 {
            let action = self.relay.poll_action();
            if let Action::End(end) = action {
                assert_eq!(end, End::Closed);
                return Ok(());
            }
            self.perform(action);
            if self.memory.fuel.get() == 0 {
                self.deaths += 1;
                // Possibly so soon that the successor ends before it is ready.
                self.memory.fuel.set(fuels.next().unwrap_or(u64::MAX));
                self.recover()?;
            }
        }
        panic!("does not end");
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Receive { direction, space } => self.receive(direction, &space),
            Action::Send { direction, data } => self.send(direction, &data),
            Action::ShutDown { direction } => {
                if self.memory.lives() {
                    self.legs[direction.sink() as usize].fin_got = true;
                    self.relay.handle_shut_down(direction);
                    self.publish(direction);
                }
            }
            Action::Yield => self.relay.handle_turn(),
            Action::Wait(_) => self.wait(),
            Action::End(_) => {}
        }
    }

    fn receive(&mut self, direction: Direction, space: &Ranges) {
        let most = 1 + self.below(40);
        let leg = &mut self.legs[direction.source() as usize];
        let bytes = &leg.sends[leg.read..leg.arrived];
        let count = bytes.len().min(space.len() as usize).min(most);
        if count == 0 && leg.has_fin() {
            self.relay.handle_end_of_stream(direction);
        } else if count == 0 {
            self.relay.handle_receive_blocked(direction);
        } else if self.memory.lives() {
            let places = space.first.clone().chain(space.second.clone());
            for (place, byte) in places.zip(&bytes[..count]) {
                self.rings[direction as usize][place as usize] = *byte;
            }
            leg.read += count;
            self.relay.handle_received(direction, count as u64);
        }
        self.publish(direction);
    }

    fn send(&mut self, direction: Direction, data: &Ranges) {
        let leg = &mut self.legs[direction.sink() as usize];
        let count = leg.room.min(data.len() as usize);
        if count == 0 {
            self.relay.handle_send_blocked(direction);
        } else if self.memory.lives() {
            let places = data.first.clone().chain(data.second.clone());
            let ring = &self.rings[direction as usize];
            leg.got
                .extend(places.take(count).map(|place| ring[place as usize]));
            leg.room -= count;
            self.relay.handle_sent(direction, count as u64);
        }
        self.publish(direction);
    }

    /// Hosts send and read on; sometimes so late that memory was freed.
    fn wait(&mut self) {
        if self.below(4) == 0 {
            for (direction, empty) in self.relay.handle_idle() {
                if empty {
                    self.publish(direction);
                    if self.memory.lives() {
                        self.rings[direction as usize].fill(0);
                    }
                }
            }
        }
        for side in Side::ALL {
            let (more, room) = (self.below(60), self.below(60));
            let leg = &mut self.legs[side as usize];
            leg.arrived = (leg.arrived + more).min(leg.sends.len());
            leg.room += room;
            self.relay.handle_readable(side);
            self.relay.handle_writable(side);
        }
        self.relay.handle_turn();
    }

    fn recover(&mut self) -> Result<(), Disagreement> {
        let record = self.header().read().expect("written before it began");
        let counters = Side::ALL.map(|side| self.legs[side as usize].counters());
        let mut directions = record.directions;
        if self.reconciles {
            for direction in Direction::ALL {
                let source = &counters[direction.source() as usize];
                let sink = &counters[direction.sink() as usize];
                let found =
                    recover_direction(&record.directions[direction as usize], source, sink)?;
                self.repaired += found.repaired;
                directions[direction as usize] = found.direction;
            }
        }
        let sizes = directions.iter().map(|part| part.size).sum();
        self.relay = Relay::resume(LIMITS, share(sizes), &directions, PerSide::default());
        self.publish_all();
        Ok(())
    }

    fn is_right(&self) -> bool {
        let [client, server] = &self.legs;
        client.got == server.sends && server.got == client.sends && client.fin_got && server.fin_got
    }
}

fn share(bytes: u64) -> Share {
    Share::take(&Arc::new(MemoryBudget::new(1 << 20)), bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// The process ends after any store and any call, many times: each host gets all bytes of the
    /// other.
    #[test]
    fn every_byte_arrives_once_whenever_the_process_ends(
        seed: u64, up in 0_usize..2000, down in 0_usize..2000, fuels in prop::collection::vec(0_u64..120, 0..20),
    ) {
        let mut world = World::new(seed, [up, down], true);
        prop_assert_eq!(world.run(&fuels), Ok(()));
        prop_assert!(world.is_right());
    }
}

/// After every single store and call of one run.
#[test]
fn there_is_no_moment_at_which_the_process_must_not_end() {
    let mut repaired = 0;
    for fuel in 0..1200 {
        let mut world = World::new(99, [300, 200], true);
        world.run(&[fuel]).unwrap();
        assert!(world.is_right(), "after {fuel}");
        repaired += world.repaired;
    }
    assert!(repaired > 0, "nothing was ever behind");
}

/// Counter-test for the test above: without the kernel's counters it fails.
#[test]
fn without_the_kernels_counters_bytes_are_lost_or_repeated() {
    let wrong = |fuel| {
        let mut world = World::new(99, [300, 200], false);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(&[fuel])));
        run.is_err() || !world.is_right()
    };
    assert!((0..1200).filter(|fuel| wrong(*fuel)).count() > 20);
}

fn part(head: u64, tail: u64) -> DirectionRecord {
    DirectionRecord {
        head,
        tail,
        size: 16,
        ..DirectionRecord::default()
    }
}

fn leg(read: u64, written: u64) -> Counters {
    Counters {
        read,
        written,
        ..Counters::default()
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let recover = |read, written| recover_direction(&part(5, 10), &leg(read, 0), &leg(0, written));
    assert_eq!(recover(10, 5).unwrap().repaired, 0);
    let both = recover(21, 12).unwrap();
    assert_eq!(
        (both.direction.tail, both.direction.head, both.repaired),
        (21, 12, 18)
    );
    for (read, written) in [(9, 5), (22, 5), (10, 4), (10, 11)] {
        assert!(recover(read, written).is_err(), "{read} {written}");
    }
    let no_ring = DirectionRecord::default();
    assert_eq!(
        recover_direction(&no_ring, &leg(0, 0), &leg(0, 0)),
        Err(Disagreement::Ring { size: 0 })
    );
    let early = Counters {
        fin_sent: true,
        ..leg(0, 7)
    };
    assert_eq!(
        recover_direction(&part(5, 10), &leg(10, 0), &early),
        Err(Disagreement::EarlyFin)
    );
}

/// A closed leg no longer shows whether FIN was sent on it.
#[test]
fn a_closed_sink_had_the_fin_if_it_counts_one_more_than_there_was() {
    let source = Counters {
        fin_received: true,
        ..leg(10, 0)
    };
    let closed = |written| Counters {
        closed: true,
        ..leg(0, written)
    };
    let with_fin = recover_direction(&part(5, 10), &source, &closed(11)).unwrap();
    assert!(with_fin.direction.fin_out);
    assert_eq!(with_fin.direction.head, 10);
    let without = recover_direction(&part(5, 10), &source, &closed(8)).unwrap();
    assert_eq!(
        (without.direction.fin_out, without.direction.head),
        (false, 8)
    );
    // It takes nothing any more, whatever it has.
    let moot = recover_direction(&part(5, 10), &leg(10, 0), &closed(11)).unwrap();
    assert_eq!((moot.direction.fin_out, moot.direction.head), (false, 5));
}

proptest! {
    /// After a crash at any store of each process: the last endings are present, in order, except
    /// the one being overwritten, and none that was not written.
    #[test]
    fn what_has_ended_is_known_to_the_next_process(
        count in 1_usize..6, fuels in prop::collection::vec(0_u64..60, 1..12),
    ) {
        let memory = Memory::new(PAGE);
        let endings = Endings::new(&memory, 64, count);
        // Entries known to be written, with numbers; and one that may be.
        let mut known: Vec<(u64, Ending)> = Vec::new();
        let mut next = 1;
        for fuel in fuels {
            memory.fuel.set(fuel);
            let perhaps = loop {
                let (number, token) = (next, u128::from(next) << 64 | 7);
                let ending = Ending { token, peer: !next, how: next as u8 };
                endings.write(number, &ending);
                if memory.fuel.get() == 0 {
                    break (number, ending);
                }
                next += 1;
                known.push((number, ending));
            };
            let read = endings.read(|_| true);
            // The last store may have completed the entry.
            if read.last() == Some(&perhaps) {
                known.push(perhaps);
            }
            let before = |most: usize| &known[known.len().saturating_sub(most)..];
            prop_assert!(read == before(count) || read == before(count - 1), "{read:?} of {known:?}");
            next = read.last().map_or(1, |(number, _)| number + 1);
        }
    }
}
