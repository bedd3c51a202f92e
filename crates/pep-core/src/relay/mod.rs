//! The relay of one flow: what to do next with its two legs. Holds no bytes and no sockets.
//!
//! The shell asks [`Relay::poll_action`], performs the action, and reports what came of it through a
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
#[cfg(test)]
mod tests;

pub use direction::{DirectionRecord, DirectionState, Ending, RelayDirection};
pub use idle::{IdleClock, IdleEvent};

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
    /// The one it wanted to reach.
    Server,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Client, Self::Server];

    /// The opposite one.
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// One of the two halves of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Up, Self::Down];

    /// For programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// The half whose bytes come from `side`.
    pub const fn from(side: Side) -> Self {
        match side {
            Side::Client => Self::Up,
            Side::Server => Self::Down,
        }
    }

    /// Where its bytes come from.
    pub const fn source(self) -> Side {
        match self {
            Self::Up => Side::Client,
            Self::Down => Side::Server,
        }
    }

    /// Where its bytes go.
    pub const fn sink(self) -> Side {
        self.source().other()
    }

    /// The opposite half.
    pub const fn other(self) -> Self {
        Self::from(self.sink())
    }
}

/// Sizes that a relay keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayLimits {
    /// Each ring to begin with, in bytes; a power of two.
    pub ring_initial: u64,
    /// Each ring at most, in bytes; a power of two.
    pub ring_max: u64,
    /// Bytes received before other flows get their turn.
    pub turn_bytes: u64,
}

/// What the shell is to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Receive from the source of the half into this space; never empty. Report by
    /// [`Relay::handle_received`], [`Relay::handle_receive_blocked`],
    /// [`Relay::handle_end_of_stream`] or [`Relay::handle_reset`].
    Receive {
        /// Which half.
        direction: Direction,
        /// Offsets into its extent.
        space: Ranges,
    },
    /// Send this data to the sink of the half; never empty. Report by [`Relay::handle_sent`],
    /// [`Relay::handle_send_blocked`] or [`Relay::handle_broken`].
    Send {
        /// Which half.
        direction: Direction,
        /// Offsets into its extent.
        data: Ranges,
    },
    /// Send FIN to the sink of the half. Report by [`Relay::handle_shut_down`] or
    /// [`Relay::handle_broken`].
    ShutDown {
        /// Which half.
        direction: Direction,
    },
    /// The turn is over: let other flows run, then ask again.
    Yield,
    /// Nothing can be done before one of these happens.
    Wait(Wait),
    /// The flow is over.
    End(End),
}

/// What a relay waits for, by side. A side may be waited for in several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// The leg becoming readable, as [`Relay::handle_readable`].
    pub readable: PerSide<bool>,
    /// The leg becoming writable, as [`Relay::handle_writable`].
    pub writable: PerSide<bool>,
    /// The leg breaking, as [`Relay::handle_broken`]; where nothing else would tell.
    pub broken: PerSide<bool>,
}

/// How a flow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both halves were delivered and shut.
    Closed,
    /// This side's leg was reset or broke; the other is to be reset, once what the kernel
    /// still has for it is delivered.
    Reset(Side),
}

/// A value for each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerSide<T> {
    /// The client's.
    pub client: T,
    /// The server's.
    pub server: T,
}

impl<T> PerSide<T> {
    /// The value of a side.
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

/// What is believed of a leg. Beliefs are optimistic: an attempt corrects them.
#[derive(Debug, Clone, Copy)]
struct Leg {
    readable: bool,
    writable: bool,
    /// It broke, after which a read of 0 means this.
    broken: Option<Ending>,
}

impl Leg {
    const FRESH: Self = Self {
        readable: true,
        writable: true,
        broken: None,
    };
}

/// The relay of one flow.
#[derive(Debug)]
pub struct Relay {
    up: RelayDirection,
    down: RelayDirection,
    legs: PerSide<Leg>,
    reset_by: Option<Side>,
    /// Served first; alternates, so that neither half starves the other.
    first: Direction,
    turn_left: u64,
    limits: RelayLimits,
    share: Share,
    growth_denied: u64,
    trace: Trace,
}

impl Relay {
    /// A relay between two connected legs. `share` must cover two initial rings.
    pub fn new(limits: RelayLimits, share: Share) -> Self {
        let half = || RelayDirection::new(RingMap::new(limits.ring_initial, limits.ring_max));
        debug_assert!(share.bytes() >= 2 * limits.ring_initial);
        Self {
            up: half(),
            down: half(),
            legs: PerSide {
                client: Leg::FRESH,
                server: Leg::FRESH,
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

    /// A relay that goes on where a predecessor has left off: with both halves as they
    /// [really are](crate::arena::recover_half), and with legs that have broken since. `share` must cover the rings.
    pub fn resume(
        limits: RelayLimits,
        share: Share,
        halves: &[DirectionRecord; 2],
        broken: PerSide<Option<Ending>>,
    ) -> Self {
        debug_assert!(share.bytes() >= halves.iter().map(|half| half.size).sum());
        let half = |half: &DirectionRecord| {
            let span = half.head..half.tail;
            let ring = RingMap::resume(span, half.base, half.size, limits.ring_max);
            RelayDirection::resume(ring, half.fin_out)
        };
        let mut relay = Self {
            up: half(&halves[0]),
            down: half(&halves[1]),
            ..Self::new(limits, share)
        };
        for side in Side::ALL {
            if let Some(ending) = broken.by_side(side) {
                relay.handle_broken(side, *ending);
            }
        }
        relay
    }

    /// One of its halves.
    pub fn half(&self, direction: Direction) -> &RelayDirection {
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

    /// The trace of this relay, off to begin with. Its owner sets the [time](Trace::at) of the
    /// events, as the relay itself knows none.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    fn note(&mut self, direction: Direction, step: &'static str, bytes: u64) {
        if !self.trace.is_on() {
            return;
        }
        let held = self.half(direction).undelivered();
        self.trace.push(|| Event::Relay {
            direction: direction.as_str(),
            step,
            bytes,
            held,
        });
    }

    /// How often a ring was not allowed to grow by the memory budget.
    pub fn growth_denied(&self) -> u64 {
        self.growth_denied
    }

    /// The next thing to do. To be asked again after each `handle_*`; asking twice is harmless.
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

    /// Delivering comes before receiving: it is short, and it is what others wait for.
    fn deliver(&self, direction: Direction) -> Option<Action> {
        let half = self.half(direction);
        if half.wants_to_shut_down() {
            let answers = self.answers(direction);
            return (!answers).then_some(Action::ShutDown { direction });
        }
        (half.wants_to_send() && self.legs.by_side(direction.sink()).writable).then(|| {
            Action::Send {
                direction,
                data: half.ring.data(),
            }
        })
    }

    /// Whether a FIN of this half would answer the client's while some of what the client has sent has not gone to the server: it waits
    /// until everything has.
    fn answers(&self, direction: Direction) -> bool {
        direction == Direction::Down && self.up.state() == DirectionState::Draining(Ending::Fin)
    }

    /// The server does not have everything that the client sent before its FIN, and never will: the
    /// client learns of it by a reset.
    pub fn handle_unconfirmed(&mut self) {
        self.reset_by.get_or_insert(Side::Server);
        self.down.on_sink_reset();
    }

    fn receive(&self, direction: Direction) -> Option<Action> {
        let half = self.half(direction);
        if !half.wants_to_receive() || !self.legs.by_side(direction.source()).readable {
            return None;
        }
        if self.turn_left == 0 {
            return Some(Action::Yield);
        }
        Some(Action::Receive {
            direction,
            space: half.ring.space().up_to(self.turn_left),
        })
    }

    fn wait(&self) -> Wait {
        let mut wait = Wait::default();
        for side in Side::ALL {
            let (from, to) = (Direction::from(side), Direction::from(side.other()));
            let readable = self.half(from).wants_to_receive();
            let writable = self.half(to).wants_to_send();
            *wait.readable.of_mut(side) = readable;
            *wait.writable.of_mut(side) = writable;
            *wait.broken.of_mut(side) = !readable && !writable && self.may_break(side);
        }
        wait
    }

    /// A leg that is done with in both directions no longer matters, and one that broke
    /// cannot do so again.
    fn may_break(&self, side: Side) -> bool {
        let done = |direction| match self.half(direction).state() {
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

    /// The source gave `count` bytes, at least 1.
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

    /// A receive returned 0: the source has closed. On a leg that broke before, it may
    /// instead be what the kernel says after it has told the error once.
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

    /// A receive failed: the leg is dead, and all that had arrived was received before.
    pub fn handle_reset(&mut self, side: Side) {
        self.handle_broken(side, Ending::Reset);
        self.direction_mut(Direction::from(side))
            .on_end(Ending::Reset);
    }

    /// The leg takes nothing any more; a send failed, or the kernel said so. What has
    /// arrived on it may still be received. `ending` is how its own stream will be found to end:
    /// by FIN if that came before the leg broke.
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

    /// The sink took `count` bytes, at least 1. The ring grows where that would have saved calls
    /// and the budget allows it.
    pub fn handle_sent(&mut self, direction: Direction, count: u64) {
        let grows = self.direction_mut(direction).on_sent(count);
        self.note(direction, "sent", count);
        if grows {
            self.grow(direction);
        }
    }

    fn grow(&mut self, direction: Direction) {
        let ring = &self.half(direction).ring;
        if !ring.can_grow() {
            return;
        }
        if self.share.try_grow(ring.size()) {
            self.direction_mut(direction).ring.grow();
            self.note(direction, "ring_grown", self.half(direction).ring.size());
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

    /// The leg may have something to receive.
    pub fn handle_readable(&mut self, side: Side) {
        self.legs.of_mut(side).readable = true;
    }

    /// The leg may take something.
    pub fn handle_writable(&mut self, side: Side) {
        self.legs.of_mut(side).writable = true;
    }

    /// Others had their turn: after [`Action::Yield`] and after each wait.
    pub fn handle_turn(&mut self) {
        self.turn_left = self.limits.turn_bytes;
    }

    /// The flow has ended, and nothing more comes into its rings: what they took from the budget when
    /// they grew is given back.
    pub fn handle_end(&mut self) {
        let initial = 2 * self.limits.ring_initial;
        let surplus = self.share.bytes().saturating_sub(initial);
        self.share.give_back(surplus);
    }

    /// The flow has been idle: empty rings go back to their initial size and give back what they
    /// took from the budget. Returns, for each, whether it is empty, so that its pages may go.
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
