//! A flow between two simulated kernels, in virtual time, compared with the data that the peers
//! sent.

use std::{collections::VecDeque, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::budget::MemoryBudget;

const LIMITS: RelayLimits = RelayLimits {
    ring_initial: 8,
    ring_max: 64,
    turn_bytes: 40,
};

/// Kernel's side of a leg, and the peer behind it.
#[derive(Debug, Default)]
struct Kernel {
    /// Stream of the peer, and the part that has arrived.
    stream: Vec<u8>,
    arrived: usize,
    /// Arrived, and not yet received by the relay.
    received: usize,
    ending: Option<Ending>,
    ended: bool,
    /// RST came: the first call returns it, once.
    error: Option<Ending>,
    dead: bool,
    /// Sent by the relay, not yet read by the peer.
    outgoing: VecDeque<u8>,
    read: Vec<u8>,
    fin_queued: bool,
    reported_blocked_receive: bool,
    reported_blocked_send: bool,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Bytes(usize),
    Blocked,
    EndOfStream,
    Failed(Ending),
}

impl Kernel {
    const CAPACITY: usize = 24;

    fn receive(&mut self, wanted: usize) -> Outcome {
        let queued = self.arrived - self.received;
        if queued > 0 {
            return Outcome::Bytes(queued.min(wanted));
        }
        if self.ended && self.ending == Some(Ending::Fin) {
            return Outcome::EndOfStream;
        }
        if let Some(ending) = self.error.take() {
            return Outcome::Failed(ending);
        }
        if self.dead {
            return Outcome::EndOfStream;
        }
        self.reported_blocked_receive = true;
        Outcome::Blocked
    }

    fn send(&mut self, wanted: usize) -> Outcome {
        if let Some(ending) = self.error.take() {
            return Outcome::Failed(ending);
        }
        if self.dead {
            return Outcome::Failed(Ending::Fin);
        }
        let space = Self::CAPACITY - self.outgoing.len();
        if space == 0 {
            self.reported_blocked_send = true;
            return Outcome::Blocked;
        }
        Outcome::Bytes(space.min(wanted))
    }

    /// Handles the arrival of RST. Linux returns EPIPE where FIN came before, ECONNRESET otherwise.
    fn die(&mut self) {
        let fin_came = self.ended && self.ending == Some(Ending::Fin);
        self.error = Some(if fin_came { Ending::Fin } else { Ending::Reset });
        self.dead = true;
        self.outgoing.clear();
    }
}

/// Event in one step of virtual time.
#[derive(Debug, Clone)]
enum Step {
    Arrive(Side, usize),
    PeerReads(Side, usize),
    /// The peer resets although it has not sent everything, or has already sent FIN.
    PeerResets(Side),
    Idle,
}

struct World {
    relay: Relay,
    legs: PerSide<Kernel>,
    memory: [Vec<u8>; 2],
    /// Limit of each call: the source of short reads and writes.
    calls: Box<dyn Iterator<Item = usize>>,
    wait: Wait,
    end: Option<End>,
}

impl World {
    fn new(up: (usize, Option<Ending>), down: (usize, Option<Ending>), calls: Vec<usize>) -> Self {
        let budget = Arc::new(MemoryBudget::new(100));
        let kernel = |(len, ending), offset: usize| Kernel {
            stream: (0..len).map(|i| ((i + offset) * 7 % 251) as u8).collect(),
            ending,
            ..Kernel::default()
        };
        Self {
            relay: Relay::new(LIMITS, Share::take(&budget, 16).unwrap()),
            legs: PerSide {
                client: kernel(up, 0),
                server: Kernel {
                    // A new socket is reported once it is readable.
                    reported_blocked_receive: true,
                    ..kernel(down, 100)
                },
            },
            memory: [vec![0; 64], vec![0; 64]],
            calls: Box::new(calls.into_iter().cycle()),
            wait: Wait::default(),
            end: None,
        }
    }

    /// Shell: performs actions until the relay waits or has ended.
    fn run(&mut self) {
        for _ in 0..100_000 {
            match self.relay.poll_action() {
                Action::Receive { direction, space } => self.receive(direction, space),
                Action::Send { direction, data } => self.send(direction, data),
                Action::ShutDown { direction } => self.shut_down(direction),
                Action::Yield => self.relay.handle_turn(),
                Action::Wait(wait) => {
                    self.wait = wait;
                    return self.relay.handle_turn();
                }
                Action::End(end) => return self.end = Some(end),
            }
        }
        panic!("spins: {:?}", self.relay);
    }

    fn receive(&mut self, direction: Direction, space: Ranges) {
        assert!(!space.is_empty());
        let most = self.calls.next().unwrap().min(space.len() as usize);
        let kernel = self.legs.of_mut(direction.source());
        match kernel.receive(most) {
            Outcome::Bytes(count) => {
                for offset in space.first.chain(space.second).take(count) {
                    let byte = kernel.stream[kernel.received];
                    self.memory[direction as usize][offset as usize] = byte;
                    kernel.received += 1;
                }
                self.relay.handle_received(direction, count as u64);
            }
            Outcome::Blocked => self.relay.handle_receive_blocked(direction),
            Outcome::EndOfStream => self.relay.handle_end_of_stream(direction),
            Outcome::Failed(_) => self.relay.handle_reset(direction.source()),
        }
    }

    fn send(&mut self, direction: Direction, data: Ranges) {
        assert!(!data.is_empty());
        let most = self.calls.next().unwrap().min(data.len() as usize);
        let kernel = self.legs.of_mut(direction.sink());
        assert!(!kernel.fin_queued, "data after FIN");
        match kernel.send(most) {
            Outcome::Bytes(count) => {
                for offset in data.first.chain(data.second).take(count) {
                    kernel
                        .outgoing
                        .push_back(self.memory[direction as usize][offset as usize]);
                }
                self.relay.handle_sent(direction, count as u64);
            }
            Outcome::Failed(ending) => self.relay.handle_broken(direction.sink(), ending),
            _ => self.relay.handle_send_blocked(direction),
        }
    }

    fn shut_down(&mut self, direction: Direction) {
        let kernel = self.legs.of_mut(direction.sink());
        if kernel.dead {
            return self.relay.handle_broken(direction.sink(), Ending::Reset);
        }
        kernel.fin_queued = true;
        self.relay.handle_shut_down(direction);
    }

    /// One step; the relay gets edges only, and only those it waits for.
    fn step(&mut self, step: &Step) {
        if self.end.is_some() {
            return;
        }
        match *step {
            Step::Arrive(side, count) => self.arrive(side, count),
            Step::PeerReads(side, count) => self.peer_reads(side, count),
            Step::PeerResets(side) => self.peer_resets(side),
            Step::Idle => drop(self.relay.handle_idle()),
        }
        self.run();
    }

    fn arrive(&mut self, side: Side, count: usize) {
        let kernel = self.legs.of_mut(side);
        if kernel.dead || kernel.ended {
            return;
        }
        let room = Kernel::CAPACITY - (kernel.arrived - kernel.received);
        let left = kernel.stream.len() - kernel.arrived;
        kernel.arrived += count.min(room).min(left);
        if kernel.arrived == kernel.stream.len() && kernel.ending.is_some() {
            kernel.ended = true;
            if kernel.ending == Some(Ending::Reset) {
                return self.peer_resets(side);
            }
        }
        self.report_readable(side);
    }

    fn report_readable(&mut self, side: Side) {
        if std::mem::take(&mut self.legs.of_mut(side).reported_blocked_receive) {
            self.relay.handle_readable(side);
        }
    }

    fn peer_reads(&mut self, side: Side, count: usize) {
        let kernel = self.legs.of_mut(side);
        let count = count.min(kernel.outgoing.len());
        kernel.read.extend(kernel.outgoing.drain(..count));
        if count > 0 && std::mem::take(&mut kernel.reported_blocked_send) {
            self.relay.handle_writable(side);
        }
    }

    fn peer_resets(&mut self, side: Side) {
        let kernel = self.legs.of_mut(side);
        if kernel.dead {
            return;
        }
        kernel.die();
        let wait = self.wait;
        if *wait.broken.by_side(side) {
            let ending = self.legs.of_mut(side).error.take().unwrap();
            self.relay.handle_broken(side, ending);
        }
        // An error makes a socket readable and writable.
        self.legs.of_mut(side).reported_blocked_receive = false;
        self.relay.handle_readable(side);
        self.legs.of_mut(side).reported_blocked_send = false;
        self.relay.handle_writable(side);
    }

    /// Lets everything arrive and be read until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..1000 {
            for side in Side::ALL {
                self.step(&Step::Arrive(side, usize::MAX));
                self.step(&Step::PeerReads(side, usize::MAX));
            }
        }
        for side in Side::ALL {
            self.peer_reads(side, usize::MAX);
        }
    }

    fn check_prefixes(&self) {
        for direction in Direction::ALL {
            let sent = &self.legs.by_side(direction.source()).stream;
            let read = &self.legs.by_side(direction.sink()).read;
            assert!(
                sent.starts_with(read),
                "{direction:?}: {read:?} of {sent:?}"
            );
        }
    }

    fn check_complete(&self, direction: Direction) {
        let (source, sink) = (
            self.legs.by_side(direction.source()),
            self.legs.by_side(direction.sink()),
        );
        assert_eq!(sink.read, source.stream[..source.arrived], "{direction:?}");
        assert_eq!(self.relay.direction(direction).undelivered(), 0);
    }
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Server)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (side(), 0..60usize).prop_map(|(side, count)| Step::Arrive(side, count)),
        10 => (side(), 0..60usize).prop_map(|(side, count)| Step::PeerReads(side, count)),
        1 => Just(Step::Idle),
    ]
}

fn calls() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1..4usize, 1..100usize], 1..20)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..150)
}

proptest! {
    #[test]
    fn both_close_and_everything_arrives(
        up in 0..500usize, down in 0..500usize, steps in steps(), calls in calls(),
    ) {
        let fin = Some(Ending::Fin);
        let mut world = World::new((up, fin), (down, fin), calls);
        world.run();
        for step in &steps {
            world.step(step);
            world.check_prefixes();
        }
        world.settle();
        prop_assert_eq!(world.end, Some(End::Closed));
        for direction in Direction::ALL {
            world.check_complete(direction);
            prop_assert!(world.legs.by_side(direction.sink()).fin_queued);
        }
    }

    /// Data that a peer sent before it reset reaches the other side first, followed by the reset.
    #[test]
    fn a_reset_comes_after_what_was_sent_before(
        by in side(), up in 0..300usize, down in 0..300usize, other_closes in any::<bool>(),
        steps in steps(), calls in calls(),
    ) {
        let ending = |side| match side == by {
            true => Some(Ending::Reset),
            false => other_closes.then_some(Ending::Fin),
        };
        let mut world = World::new((up, ending(Side::Client)), (down, ending(Side::Server)), calls);
        world.run();
        for step in &steps {
            world.step(step);
            world.check_prefixes();
        }
        world.settle();
        prop_assert_eq!(world.end, Some(End::Reset(by)));
        world.check_complete(Direction::from(by));
        prop_assert!(!world.legs.by_side(by.other()).fin_queued, "a reset is not a clean end");
    }

    /// Either side may reset at any moment, also after its FIN, also both.
    #[test]
    fn resets_at_any_moment_end_the_flow(
        up in 0..300usize, down in 0..300usize, steps in steps(), calls in calls(),
        resets in prop::collection::vec((side(), 0..150usize), 1..3),
    ) {
        let fin = Some(Ending::Fin);
        let mut world = World::new((up, fin), (down, fin), calls);
        world.run();
        for (now, step) in steps.iter().enumerate() {
            for (side, _) in resets.iter().filter(|(_, at)| *at == now) {
                world.step(&Step::PeerResets(*side));
            }
            world.step(step);
            world.check_prefixes();
        }
        world.settle();
        let Some(end) = world.end else { panic!("lives on: {:?}", world.relay) };
        let by: Vec<_> = resets.iter().map(|(side, _)| *side).collect();
        match end {
            End::Closed => Direction::ALL.into_iter().for_each(|direction| {
                if !world.legs.by_side(direction.sink()).dead {
                    world.check_complete(direction);
                }
            }),
            End::Reset(side) => prop_assert!(by.contains(&side)),
        }
    }
}

fn relay() -> Relay {
    let budget = Arc::new(MemoryBudget::new(32));
    Relay::new(LIMITS, Share::take(&budget, 16).unwrap())
}

#[test]
fn waits_for_exactly_what_can_help() {
    let mut relay = relay();
    relay.handle_receive_blocked(Direction::Up);
    relay.handle_receive_blocked(Direction::Down);
    let both = PerSide {
        client: true,
        server: true,
    };
    let idle = Wait {
        readable: both,
        ..Wait::default()
    };
    assert_eq!(relay.poll_action(), Action::Wait(idle));

    relay.handle_end_of_stream(Direction::Up);
    relay.handle_shut_down(Direction::Up);
    let expected = Wait {
        readable: PerSide {
            client: false,
            server: true,
        },
        broken: PerSide {
            client: true,
            server: false,
        },
        ..Wait::default()
    };
    assert_eq!(
        relay.poll_action(),
        Action::Wait(expected),
        "the client may still reset"
    );
}

#[test]
fn a_stalled_sink_stops_the_source() {
    let mut relay = relay();
    relay.handle_receive_blocked(Direction::Down);
    relay.handle_received(Direction::Up, 8);
    relay.handle_send_blocked(Direction::Up);
    let Action::Wait(wait) = relay.poll_action() else {
        panic!()
    };
    assert!(wait.writable.server && !wait.readable.client && wait.broken.client);
}

#[test]
fn yields_when_its_bytes_are_used_up() {
    let mut relay = relay();
    for _ in 0..5 {
        relay.handle_received(Direction::Up, 8);
        relay.handle_sent(Direction::Up, 8);
    }
    assert_eq!(relay.poll_action(), Action::Yield);
    relay.handle_turn();
    assert!(matches!(relay.poll_action(), Action::Receive { .. }));
}

#[test]
fn grows_within_the_budget_and_shrinks_when_idle() {
    let mut relay = relay();
    relay.handle_received(Direction::Up, 8);
    relay.handle_sent(Direction::Up, 8);
    assert_eq!(relay.direction(Direction::Up).ring().size(), 16);
    relay.handle_received(Direction::Up, 16);
    relay.handle_sent(Direction::Up, 16);
    assert_eq!(
        relay.direction(Direction::Up).ring().size(),
        16,
        "32 bytes are all there is"
    );
    assert_eq!(relay.growth_denied(), 1);
    relay.handle_received(Direction::Down, 1);
    let emptied = relay.handle_idle();
    assert_eq!(emptied, [(Direction::Up, true), (Direction::Down, false)]);
    assert_eq!(relay.direction(Direction::Up).ring().size(), 8);
    assert_eq!(relay.share.bytes(), 16);
}

#[test]
fn a_read_of_0_on_a_broken_leg_is_its_reset() {
    let mut relay = relay();
    relay.handle_received(Direction::Down, 3);
    relay.handle_broken(Side::Server, Ending::Reset);
    relay.handle_end_of_stream(Direction::Down);
    assert_eq!(
        relay.direction(Direction::Down).state(),
        DirectionState::Draining(Ending::Reset)
    );
    relay.handle_sent(Direction::Down, 3);
    assert_eq!(relay.poll_action(), Action::End(End::Reset(Side::Server)));
}

#[test]
fn a_read_of_0_is_the_fin_that_came_before_the_leg_broke() {
    let mut relay = relay();
    relay.handle_broken(Side::Server, Ending::Fin);
    relay.handle_end_of_stream(Direction::Down);
    assert_eq!(
        relay.poll_action(),
        Action::ShutDown {
            direction: Direction::Down
        }
    );
    relay.handle_shut_down(Direction::Down);
    assert_eq!(relay.poll_action(), Action::End(End::Reset(Side::Server)));
}

#[test]
fn a_clients_fin_is_answered_only_when_all_before_it_has_gone_to_the_server() {
    let mut relay = relay();
    relay.handle_received(Direction::Up, 5);
    relay.handle_end_of_stream(Direction::Up);
    relay.handle_end_of_stream(Direction::Down);
    assert!(matches!(
        relay.poll_action(),
        Action::Send {
            direction: Direction::Up,
            ..
        }
    ));
    relay.handle_send_blocked(Direction::Up);
    let Action::Wait(wait) = relay.poll_action() else {
        panic!("{:?}", relay.poll_action());
    };
    assert!(wait.writable.server && wait.broken.client);
    relay.handle_writable(Side::Server);
    relay.handle_sent(Direction::Up, 5);
    let shut = |direction| Action::ShutDown { direction };
    assert_eq!(relay.poll_action(), shut(Direction::Up));
    relay.handle_shut_down(Direction::Up);
    assert_eq!(relay.poll_action(), shut(Direction::Down));
    // The server never acknowledges it.
    relay.handle_unconfirmed();
    assert_eq!(relay.poll_action(), Action::End(End::Reset(Side::Server)));
}

#[test]
fn a_server_that_ends_first_is_passed_on_at_once() {
    let mut relay = relay();
    relay.handle_received(Direction::Up, 5);
    relay.handle_end_of_stream(Direction::Down);
    let direction = Direction::Down;
    assert_eq!(relay.poll_action(), Action::ShutDown { direction });
}
