//! State machine of one flow: decides the next action on its two legs. Holds no bytes and no
//! sockets.
//!
//! The shell calls [`Relay::poll_action`], performs the action, and reports the result through a
//! `handle_*` method, until the action is to wait or the flow has ended:
//!
//! ```
//! use std::sync::Arc;
//! use pep_core::{budget::{MemoryBudget, Share}, relay::{Action, Direction, Relay, RelayLimits}};
//!
//! let limits = RelayLimits { ring_initial: 4096, ring_max: 65536, turn_bytes: 65536 };
//! let share = Share::take(&Arc::new(MemoryBudget::new(1 << 20)), 8192).unwrap();
//! let mut relay = Relay::new(limits, share);
//! let Action::Receive { direction, space } = relay.poll_action() else { panic!() };
//! assert_eq!((direction, space.len()), (Direction::Up, 4096));
//! relay.handle_received(direction, 10);
//! let Action::Send { direction, data } = relay.poll_action() else { panic!() };
//! assert_eq!((direction, data.len()), (Direction::Up, 10));
//! ```

mod direction;
mod idle;
mod keepalive;
#[cfg(test)]
mod tests;

pub use direction::{DirectionRecord, DirectionState, Ending, RelayDirection};
pub use idle::{IdleClock, IdleEvent};
pub use keepalive::{Keepalives, Looked};

use trace::{Event, Trace};

use crate::{
    budget::Share,
    ring::{Ranges, RingMap},
};

/// One of the two ends of a flow, and the leg that leads there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The host that opened the connection.
    Client,
    /// The host that the client connects to.
    Server,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Client, Self::Server];

    /// Opposite side.
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// One of the two directions of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Up, Self::Down];

    /// Name for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Direction whose source is `side`.
    pub const fn from(side: Side) -> Self {
        match side {
            Side::Client => Self::Up,
            Side::Server => Self::Down,
        }
    }

    /// Side from which the bytes come.
    pub const fn source(self) -> Side {
        match self {
            Self::Up => Side::Client,
            Self::Down => Side::Server,
        }
    }

    /// Side to which the bytes go.
    pub const fn sink(self) -> Side {
        self.source().other()
    }

    /// Opposite direction.
    pub const fn other(self) -> Self {
        Self::from(self.sink())
    }
}

/// Sizes of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayLimits {
    /// Initial size of each ring, in bytes; a power of two.
    pub ring_initial: u64,
    /// Maximum size of each ring, in bytes; a power of two.
    pub ring_max: u64,
    /// Bytes to receive before other flows get their turn.
    pub turn_bytes: u64,
}

/// Next action of the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Receive from the source of the direction into this space; never empty. Report by
    /// [`Relay::handle_received`], [`Relay::handle_receive_blocked`],
    /// [`Relay::handle_end_of_stream`] or [`Relay::handle_reset`].
    Receive {
        /// Direction to receive for.
        direction: Direction,
        /// Offsets into its extent.
        space: Ranges,
    },
    /// Send this data to the sink of the direction; never empty. Report by [`Relay::handle_sent`],
    /// [`Relay::handle_send_blocked`] or [`Relay::handle_broken`].
    Send {
        /// Direction to send for.
        direction: Direction,
        /// Offsets into its extent.
        data: Ranges,
    },
    /// Send FIN to the sink of the direction. Report by [`Relay::handle_shut_down`] or
    /// [`Relay::handle_broken`].
    ShutDown {
        /// Direction to shut down.
        direction: Direction,
    },
    /// The turn is over: let other flows run, then poll again.
    Yield,
    /// Wait for one of these events.
    Wait(Wait),
    /// The flow is over.
    End(End),
}

/// Events that a relay waits for, by side. It may wait for several events of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// Leg becomes readable, as [`Relay::handle_readable`].
    pub readable: PerSide<bool>,
    /// Leg becomes writable, as [`Relay::handle_writable`].
    pub writable: PerSide<bool>,
    /// Leg breaks, as [`Relay::handle_broken`]; set where no other event would show it.
    pub broken: PerSide<bool>,
}

/// End of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both directions were delivered and shut.
    Closed,
    /// The leg of this side was reset or broke. The shell resets the other leg once the kernel has
    /// delivered its remaining data.
    Reset(Side),
}

/// A value for each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerSide<T> {
    /// The client's value.
    pub client: T,
    /// The server's value.
    pub server: T,
}

impl<T> PerSide<T> {
    /// Returns the value of a side.
    pub fn by_side(&self, side: Side) -> &T {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

/// Assumed state of a leg. Assumptions are optimistic: an attempt corrects them.
#[derive(Debug, Clone, Copy)]
struct Leg {
    readable: bool,
    writable: bool,
    /// Set once the leg broke: a read of 0 then has this meaning.
    broken: Option<Ending>,
}

impl Leg {
    const FRESH: Self = Self {
        readable: true,
        writable: true,
        broken: None,
    };
}

/// State machine of one flow.
#[derive(Debug)]
pub struct Relay {
    up: RelayDirection,
    down: RelayDirection,
    legs: PerSide<Leg>,
    reset_by: Option<Side>,
    /// Direction served first; alternates, so that neither starves the other.
    first: Direction,
    turn_left: u64,
    limits: RelayLimits,
    share: Share,
    growth_denied: u64,
    trace: Trace,
}

impl Relay {
    /// Returns a relay between two connected legs. `share` must cover two initial rings. The shell
    /// reports the server as readable if it has sent something already, as few do.
    pub fn new(limits: RelayLimits, share: Share) -> Self {
        let empty = || RelayDirection::new(RingMap::new(limits.ring_initial, limits.ring_max));
        debug_assert!(share.bytes() >= 2 * limits.ring_initial);
        Self {
            up: empty(),
            down: empty(),
            legs: PerSide {
                client: Leg::FRESH,
                server: Leg {
                    readable: false,
                    ..Leg::FRESH
                },
            },
            reset_by: None,
            first: Direction::Up,
            turn_left: limits.turn_bytes,
            limits,
            share,
            growth_denied: 0,
            trace: Trace::default(),
        }
    }

    /// Returns a relay that resumes a predecessor's: with both directions as
    /// [recovered](crate::arena::recover_direction), and with legs that may have broken since.
    /// `share` must cover the rings.
    pub fn resume(
        limits: RelayLimits,
        share: Share,
        records: &[DirectionRecord; 2],
        broken: PerSide<Option<Ending>>,
    ) -> Self {
        debug_assert!(share.bytes() >= records.iter().map(|record| record.size).sum());
        let resumed = |record: &DirectionRecord| {
            let span = record.head..record.tail;
            let ring = RingMap::resume(span, record.base, record.size, limits.ring_max);
            RelayDirection::resume(ring, record.fin_out)
        };
        let mut relay = Self {
            up: resumed(&records[0]),
            down: resumed(&records[1]),
            ..Self::new(limits, share)
        };
        for side in Side::ALL {
            if let Some(ending) = broken.by_side(side) {
                relay.handle_broken(side, *ending);
            }
        }
        relay
    }

    /// State of one direction.
    pub fn direction(&self, direction: Direction) -> &RelayDirection {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    fn direction_mut(&mut self, direction: Direction) -> &mut RelayDirection {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// Trace of this relay, initially off. Its owner sets the [time](Trace::at) of the events, as
    /// the relay has no clock.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    fn note(&mut self, direction: Direction, step: &'static str, bytes: u64) {
        if !self.trace.is_on() {
            return;
        }
        let held = self.direction(direction).undelivered();
        self.trace.push(|| Event::Relay {
            direction: direction.as_str(),
            step,
            bytes,
            held,
        });
    }

    /// Number of times that the memory budget denied a ring growth.
    pub fn growth_denied(&self) -> u64 {
        self.growth_denied
    }

    /// Returns the next action. The shell polls again after each `handle_*`; polling twice is
    /// harmless.
    pub fn poll_action(&self) -> Action {
        if let Some(end) = self.end() {
            return Action::End(end);
        }
        let directions = [self.first, self.first.other()];
        directions
            .into_iter()
            .find_map(|direction| self.deliver(direction))
            .or_else(|| {
                directions
                    .into_iter()
                    .find_map(|direction| self.receive(direction))
            })
            .unwrap_or_else(|| Action::Wait(self.wait()))
    }

    /// Delivery comes before receiving: it is short, and the other side waits for it.
    fn deliver(&self, direction: Direction) -> Option<Action> {
        let record = self.direction(direction);
        if record.wants_to_shut_down() {
            let answers = self.answers(direction);
            return (!answers).then_some(Action::ShutDown { direction });
        }
        (record.wants_to_send() && self.legs.by_side(direction.sink()).writable).then(|| {
            Action::Send {
                direction,
                data: record.ring.data(),
            }
        })
    }

    /// Reports whether a FIN of this direction would answer the client's while data of the client
    /// has not reached the server. Such a FIN waits until everything has.
    fn answers(&self, direction: Direction) -> bool {
        direction == Direction::Down && self.up.state() == DirectionState::Draining(Ending::Fin)
    }

    /// Handles data that the client sent before its FIN and that the server will never get: resets
    /// the client.
    pub fn handle_unconfirmed(&mut self) {
        self.reset_by.get_or_insert(Side::Server);
        self.down.on_sink_reset();
    }

    fn receive(&self, direction: Direction) -> Option<Action> {
        let record = self.direction(direction);
        if !record.wants_to_receive() || !self.legs.by_side(direction.source()).readable {
            return None;
        }
        if self.turn_left == 0 {
            return Some(Action::Yield);
        }
        Some(Action::Receive {
            direction,
            space: record.ring.space().up_to(self.turn_left),
        })
    }

    fn wait(&self) -> Wait {
        let mut wait = Wait::default();
        for side in Side::ALL {
            let (from, to) = (Direction::from(side), Direction::from(side.other()));
            let readable = self.direction(from).wants_to_receive();
            let writable = self.direction(to).wants_to_send();
            *wait.readable.of_mut(side) = readable;
            *wait.writable.of_mut(side) = writable;
            *wait.broken.of_mut(side) = !readable && !writable && self.may_break(side);
        }
        wait
    }

    /// Reports whether a leg can still break. A leg that is finished in both directions no longer
    /// matters, and a broken one cannot break again.
    fn may_break(&self, side: Side) -> bool {
        let done = |direction| match self.direction(direction).state() {
            DirectionState::Open => false,
            DirectionState::Draining(_) => direction.source() == side,
            DirectionState::Shut | DirectionState::Reset => true,
        };
        self.legs.by_side(side).broken.is_none() && !Direction::ALL.into_iter().all(done)
    }

    fn end(&self) -> Option<End> {
        if !self.up.is_final() || !self.down.is_final() {
            return None;
        }
        Some(self.reset_by.map_or(End::Closed, End::Reset))
    }

    /// The source gave `count` bytes, 1 or more.
    pub fn handle_received(&mut self, direction: Direction, count: u64) {
        self.direction_mut(direction).on_received(count);
        self.note(direction, "received", count);
        self.turn_left = self.turn_left.saturating_sub(count);
        self.first = direction.other();
    }

    /// The source has nothing at the moment.
    pub fn handle_receive_blocked(&mut self, direction: Direction) {
        self.legs.of_mut(direction.source()).readable = false;
        self.note(direction, "receive_blocked", 0);
    }

    /// Handles a receive of 0: the source has closed. On a leg that broke before, the kernel
    /// returns 0 after it has reported the error once.
    pub fn handle_end_of_stream(&mut self, direction: Direction) {
        let side = direction.source();
        match self.legs.by_side(side).broken {
            None | Some(Ending::Fin) => {
                self.direction_mut(direction).on_end(Ending::Fin);
                self.note(direction, "finished", 0);
            }
            Some(Ending::Reset) => self.handle_reset(side),
        }
    }

    /// Handles a failed receive: the leg is dead, and all data that had arrived was received
    /// before.
    pub fn handle_reset(&mut self, side: Side) {
        self.handle_broken(side, Ending::Reset);
        self.direction_mut(Direction::from(side))
            .on_end(Ending::Reset);
    }

    /// Handles a leg that takes nothing any more: a send failed, or the kernel reported it. Data
    /// that has arrived on it may still be received. `ending` is the end of its own stream: FIN if
    /// that came before the leg broke.
    pub fn handle_broken(&mut self, side: Side, ending: Ending) {
        if self.legs.by_side(side).broken.is_none() {
            self.note(Direction::from(side), "source_broken", 0);
        }
        let leg = self.legs.of_mut(side);
        leg.broken.get_or_insert(ending);
        leg.readable = true;
        self.reset_by.get_or_insert(side);
        self.direction_mut(Direction::from(side.other()))
            .on_sink_reset();
    }

    /// Handles a send of `count` bytes, 1 or more. The ring grows where that would have saved calls
    /// and the budget allows it.
    pub fn handle_sent(&mut self, direction: Direction, count: u64) {
        let grows = self.direction_mut(direction).on_sent(count);
        self.note(direction, "sent", count);
        if grows {
            self.grow(direction);
        }
    }

    fn grow(&mut self, direction: Direction) {
        let ring = &self.direction(direction).ring;
        if !ring.can_grow() {
            return;
        }
        if self.share.try_grow(ring.size()) {
            self.direction_mut(direction).ring.grow();
            self.note(
                direction,
                "ring_grown",
                self.direction(direction).ring.size(),
            );
        } else {
            self.growth_denied += 1;
            self.note(direction, "growth_denied", 0);
        }
    }

    /// The sink takes nothing at the moment.
    pub fn handle_send_blocked(&mut self, direction: Direction) {
        self.legs.of_mut(direction.sink()).writable = false;
        self.note(direction, "send_blocked", 0);
    }

    /// FIN was sent to the sink.
    pub fn handle_shut_down(&mut self, direction: Direction) {
        self.direction_mut(direction).on_shut_down();
        self.note(direction, "shut_down", 0);
    }

    /// The leg may have data to receive.
    pub fn handle_readable(&mut self, side: Side) {
        self.legs.of_mut(side).readable = true;
    }

    /// The leg may take data.
    pub fn handle_writable(&mut self, side: Side) {
        self.legs.of_mut(side).writable = true;
    }

    /// Handles a new turn: after [`Action::Yield`] and after each wait.
    pub fn handle_turn(&mut self) {
        self.turn_left = self.limits.turn_bytes;
    }

    /// Handles the end of the flow. Its rings receive nothing more, and return the memory that they
    /// took from the budget when they grew.
    pub fn handle_end(&mut self) {
        let initial = 2 * self.limits.ring_initial;
        let surplus = self.share.bytes().saturating_sub(initial);
        self.share.give_back(surplus);
    }

    /// Handles an idle flow: empty rings shrink to their initial size and return memory to the
    /// budget. Returns, for each ring, whether it is empty, so that its pages can be freed.
    pub fn handle_idle(&mut self) -> [(Direction, bool); 2] {
        Direction::ALL.map(|direction| {
            let initial = self.limits.ring_initial;
            let ring = &mut self.direction_mut(direction).ring;
            if !ring.is_empty() {
                return (direction, false);
            }
            let surplus = ring.size() - initial;
            ring.shrink(initial);
            self.share.give_back(surplus);
            (direction, true)
        })
    }
}
