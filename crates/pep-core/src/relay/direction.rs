//! One direction of a flow.

use crate::ring::RingMap;

/// End of the source's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By FIN.
    Fin,
    /// By RST, or an equivalent error.
    Reset,
}

/// State of a direction.
///
/// ```text
///             end(Fin)                 shut_down, ring empty
///   Open ---------------> Draining(Fin) --------------------> Shut
///    |  \    end(Reset)                  ring empty
///    |   `--------------> Draining(Reset) ------------.
///    |  sink_reset               | sink_reset          |
///    `---------------------------+-------------------> Reset
/// ```
///
/// `Shut` and `Reset` are final. Data that the source sent before it ended is always delivered
/// first, as the network would, also before a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectionState {
    /// The source may send more.
    Open,
    /// The source has ended; the ring goes to the sink, then the ending does.
    Draining(Ending),
    /// Everything was delivered, followed by FIN.
    Shut,
    /// The sink takes nothing any more, or has to be reset now.
    Reset,
}

/// One direction of a flow: a ring between a source and a sink.
#[derive(Debug, Clone)]
pub struct RelayDirection {
    /// Positions of the direction's bytes.
    pub(super) ring: RingMap,
    state: DirectionState,
    /// A receive has filled the ring since it was last empty.
    filled: bool,
}

impl RelayDirection {
    pub(super) fn new(ring: RingMap) -> Self {
        Self {
            ring,
            state: DirectionState::Open,
            filled: false,
        }
    }

    /// Resumes a direction of a predecessor. A new receive detects again that its source has ended.
    pub(super) fn resume(ring: RingMap, shut: bool) -> Self {
        Self {
            state: if shut {
                DirectionState::Shut
            } else {
                DirectionState::Open
            },
            ..Self::new(ring)
        }
    }

    /// Current state.
    pub fn state(&self) -> DirectionState {
        self.state
    }

    /// Map of the ring.
    pub fn ring(&self) -> &RingMap {
        &self.ring
    }

    /// Bytes delivered to the sink.
    pub fn delivered(&self) -> u64 {
        self.ring.head()
    }

    /// Bytes taken from the source and not delivered. Final once the direction is; before that,
    /// bytes still to be delivered.
    pub fn undelivered(&self) -> u64 {
        self.ring.len()
    }

    /// Reports whether the direction is over.
    pub fn is_final(&self) -> bool {
        matches!(self.state, DirectionState::Shut | DirectionState::Reset)
    }

    pub(super) fn wants_to_receive(&self) -> bool {
        self.state == DirectionState::Open && !self.ring.is_full()
    }

    pub(super) fn wants_to_send(&self) -> bool {
        matches!(
            self.state,
            DirectionState::Open | DirectionState::Draining(_)
        ) && !self.ring.is_empty()
    }

    pub(super) fn wants_to_shut_down(&self) -> bool {
        self.state == DirectionState::Draining(Ending::Fin) && self.ring.is_empty()
    }

    /// The source gave `count` bytes.
    pub(super) fn on_received(&mut self, count: u64) {
        self.ring.fill(count);
        self.filled |= self.ring.is_full();
    }

    /// Counts `count` bytes that the sink took. Returns whether a larger ring would have saved
    /// calls: a receive filled it, and the sink took everything. A ring that the sink does not
    /// empty is large enough; the sink is slow.
    pub(super) fn on_sent(&mut self, count: u64) -> bool {
        self.ring.drain(count);
        if !self.ring.is_empty() {
            return false;
        }
        self.settle();
        std::mem::take(&mut self.filled)
    }

    /// Handles the end of the source. Ignored after an earlier end.
    pub(super) fn on_end(&mut self, ending: Ending) {
        if self.state == DirectionState::Open {
            self.state = DirectionState::Draining(ending);
            self.settle();
        }
    }

    /// FIN was given to the sink.
    pub(super) fn on_shut_down(&mut self) {
        if self.wants_to_shut_down() {
            self.state = DirectionState::Shut;
        }
    }

    /// Handles a sink that takes nothing any more. Ignored when the sink already has everything.
    pub(super) fn on_sink_reset(&mut self) {
        if !self.is_final() {
            self.state = DirectionState::Reset;
        }
    }

    fn settle(&mut self) {
        if self.state == DirectionState::Draining(Ending::Reset) && self.ring.is_empty() {
            self.state = DirectionState::Reset;
        }
    }
}

/// One direction of a flow, as last recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectionRecord {
    /// Bytes delivered to the sink.
    pub head: u64,
    /// Bytes taken from the source.
    pub tail: u64,
    /// Stream position at offset 0 of the ring.
    pub base: u64,
    /// Size of the ring in bytes.
    pub size: u64,
    /// The source's stream has ended by FIN.
    pub fin_in: bool,
    /// FIN was given to the sink.
    pub fin_out: bool,
}

impl From<&RelayDirection> for DirectionRecord {
    fn from(direction: &RelayDirection) -> Self {
        let (ring, state) = (direction.ring(), direction.state());
        Self {
            head: ring.head(),
            tail: ring.tail(),
            base: ring.base(),
            size: ring.size(),
            fin_in: matches!(
                state,
                DirectionState::Draining(Ending::Fin) | DirectionState::Shut
            ),
            fin_out: state == DirectionState::Shut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DirectionState::{Draining, Open, Reset, Shut};

    #[derive(Debug, Clone, Copy)]
    enum Input {
        Fin,
        SourceReset,
        SinkReset,
        SentAll,
        ShutDown,
    }

    /// Returns a direction in this state, holding `held` bytes where the state allows it.
    fn direction(state: DirectionState, held: u64) -> RelayDirection {
        let mut direction = RelayDirection::new(RingMap::new(8, 8));
        direction.on_received(held);
        direction.state = state;
        direction
    }

    fn next(state: DirectionState, held: u64, input: Input) -> DirectionState {
        let mut direction = direction(state, held);
        match input {
            Input::Fin => direction.on_end(Ending::Fin),
            Input::SourceReset => direction.on_end(Ending::Reset),
            Input::SinkReset => direction.on_sink_reset(),
            Input::SentAll => drop(direction.on_sent(held)),
            Input::ShutDown => direction.on_shut_down(),
        }
        direction.state
    }

    #[test]
    fn every_state_and_input() {
        let (fin, reset) = (Draining(Ending::Fin), Draining(Ending::Reset));
        use Input::*;
        let table = [
            // state, bytes held, then the state after each input
            (
                Open,
                3,
                [
                    (Fin, fin),
                    (SourceReset, reset),
                    (SinkReset, Reset),
                    (SentAll, Open),
                    (ShutDown, Open),
                ],
            ),
            (
                Open,
                0,
                [
                    (Fin, fin),
                    (SourceReset, Reset),
                    (SinkReset, Reset),
                    (SentAll, Open),
                    (ShutDown, Open),
                ],
            ),
            (
                fin,
                3,
                [
                    (Fin, fin),
                    (SourceReset, fin),
                    (SinkReset, Reset),
                    (SentAll, fin),
                    (ShutDown, fin),
                ],
            ),
            (
                fin,
                0,
                [
                    (Fin, fin),
                    (SourceReset, fin),
                    (SinkReset, Reset),
                    (SentAll, fin),
                    (ShutDown, Shut),
                ],
            ),
            (
                reset,
                3,
                [
                    (Fin, reset),
                    (SourceReset, reset),
                    (SinkReset, Reset),
                    (SentAll, Reset),
                    (ShutDown, reset),
                ],
            ),
            (
                Shut,
                0,
                [
                    (Fin, Shut),
                    (SourceReset, Shut),
                    (SinkReset, Shut),
                    (SentAll, Shut),
                    (ShutDown, Shut),
                ],
            ),
            (
                Reset,
                3,
                [
                    (Fin, Reset),
                    (SourceReset, Reset),
                    (SinkReset, Reset),
                    (SentAll, Reset),
                    (ShutDown, Reset),
                ],
            ),
        ];
        for (state, held, transitions) in table {
            for (input, expected) in transitions {
                assert_eq!(
                    next(state, held, input),
                    expected,
                    "{state:?}, {held} held, {input:?}"
                );
            }
        }
    }

    #[test]
    fn what_each_state_wants() {
        let wants = |direction: &RelayDirection| {
            (
                direction.wants_to_receive(),
                direction.wants_to_send(),
                direction.wants_to_shut_down(),
            )
        };
        assert_eq!(wants(&direction(Open, 0)), (true, false, false));
        assert_eq!(wants(&direction(Open, 3)), (true, true, false));
        assert_eq!(wants(&direction(Open, 8)), (false, true, false));
        assert_eq!(
            wants(&direction(Draining(Ending::Fin), 3)),
            (false, true, false)
        );
        assert_eq!(
            wants(&direction(Draining(Ending::Fin), 0)),
            (false, false, true)
        );
        assert_eq!(
            wants(&direction(Draining(Ending::Reset), 3)),
            (false, true, false)
        );
        assert_eq!(wants(&direction(Shut, 0)), (false, false, false));
        assert_eq!(wants(&direction(Reset, 3)), (false, false, false));
    }

    #[test]
    fn wants_to_grow_when_full_and_then_emptied() {
        let mut direction = direction(Open, 8);
        assert!(!direction.on_sent(5));
        assert!(direction.on_sent(3));
        direction.on_received(7);
        assert!(!direction.on_sent(7), "was not full");
    }
}
