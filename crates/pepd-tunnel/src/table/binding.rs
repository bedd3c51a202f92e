//! Binding of a flow to its stream: token, current stream, and positions.
//!
//! ```text
//!            opened                the session is gone
//!   none ------------> bound ----------------------------> suspended
//!                        ^     <- near: opened again;          |
//!                        |        far: the peer opens it again |
//!                        +-------------------------------------+
//! ```
//!
//! Positions of a flow count from the flow's beginning, those of a stream from the stream's. The
//! stream of a resumed flow begins at the flow's position: at 0, or from the far end after its
//! [`Answer`].

use std::time::Duration;

use pep_core::stream_header::{Answer, StreamHeader};
use tunnel::{class::Class, wire::StreamId};

/// Parameters with which the near end opens streams of a flow.
#[derive(Debug)]
pub(crate) struct StreamOpening {
    pub(crate) class: Class,
    /// Key for sharing the link.
    pub(crate) site: u32,
    /// Start of the flow ([`born`](pepd_relay::flow::born)).
    pub(crate) born: u64,
    pub(crate) stream_header: StreamHeader,
}

/// A position of a stream and the matching one of the flow.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    stream: u64,
    flow: u64,
}

impl Origin {
    fn of_flow(self, stream: u64) -> u64 {
        let beyond = stream.saturating_sub(self.stream);
        self.flow.saturating_add(beyond)
    }

    fn of_stream(self, flow: u64) -> u64 {
        let beyond = flow.saturating_sub(self.flow);
        self.stream.saturating_add(beyond)
    }
}

/// The far end's [`Answer`] at the beginning of a stream.
#[derive(Debug)]
enum Prologue {
    /// No answer, or one that has been taken.
    None,
    Awaited([u8; Answer::LEN]),
    Given([u8; Answer::LEN]),
}

/// Binding of a flow.
#[derive(Debug)]
pub(super) struct Binding {
    /// Common token of both ends; 0 while the peer has not named it.
    pub(super) token: u128,
    pub(super) stream: Option<StreamId>,
    /// Time since the flow lost its stream.
    pub(super) suspended: Option<Duration>,
    /// The peer has heard of the flow.
    pub(super) known: bool,
    /// Parameters of streams, at the near end.
    pub(super) announcement: Option<Box<StreamOpening>>,
    /// Origin of sent bytes; `None` while the peer's position is unknown.
    out: Option<Origin>,
    inn: Origin,
    prologue: Prologue,
}

impl Binding {
    pub(super) fn new() -> Self {
        Self {
            token: 0,
            stream: None,
            suspended: None,
            known: false,
            announcement: None,
            out: Some(Origin::default()),
            inn: Origin::default(),
            prologue: Prologue::None,
        }
    }

    /// Binds the flow's first stream.
    pub(super) fn bind(&mut self, stream: StreamId) {
        self.stream = Some(stream);
    }

    /// Suspends the flow when its session ends. Returns whether it had a stream.
    pub(super) fn suspend(&mut self) -> bool {
        let had = self.stream.take().is_some();
        if had {
            self.suspended = Some(Duration::ZERO);
        }
        had
    }

    /// Drops the stream for good.
    pub(super) fn release(&mut self) {
        self.stream = None;
        self.suspended = None;
    }

    /// Binds another stream that the near end has opened. Its received bytes start at `down`.
    pub(super) fn reopen(&mut self, stream: StreamId, down: u64) {
        self.stream = Some(stream);
        self.suspended = None;
        self.out = None;
        self.inn = Origin {
            stream: Answer::LEN as u64,
            flow: down,
        };
        self.prologue = Prologue::Awaited([0; Answer::LEN]);
    }

    /// Takes the far end's answer, once all of it has arrived.
    pub(super) fn take_answer(&mut self) -> Option<Answer> {
        let Prologue::Awaited(bytes) = self.prologue else {
            return None;
        };
        self.prologue = Prologue::None;
        let answer = Answer::parse(bytes);
        self.known = true;
        self.out = Some(Origin {
            stream: 0,
            flow: answer.up,
        });
        Some(answer)
    }

    /// Resumes sending by the far end's answer. Received bytes start at `down`.
    pub(super) fn rejoin(&mut self, stream: StreamId, answer: Answer, down: u64) {
        self.stream = Some(stream);
        self.suspended = None;
        self.out = Some(Origin {
            stream: Answer::LEN as u64,
            flow: down,
        });
        self.inn = Origin {
            stream: 0,
            flow: answer.up,
        };
        self.prologue = Prologue::Given(answer.emit());
    }

    /// Copies the answer's bytes from this position on. Returns how many.
    pub(super) fn read_prologue(&self, from: u64, into: &mut [u8]) -> usize {
        let Prologue::Given(answer) = &self.prologue else {
            return 0;
        };
        let from = usize::try_from(from).ok();
        let Some(rest) = from.and_then(|from| answer.get(from..)) else {
            return 0;
        };
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count
    }

    /// Takes the answer's bytes from those received at this position. Returns how many.
    pub(super) fn place_prologue(&mut self, from: u64, bytes: &[u8]) -> usize {
        if from >= self.inn.stream {
            return 0;
        }
        let start = from as usize;
        let count = (self.inn.stream - from).min(bytes.len() as u64) as usize;
        if let Prologue::Awaited(answer) = &mut self.prologue {
            answer[start..start + count].copy_from_slice(&bytes[..count]);
        }
        count
    }

    /// Returns whether a complete answer is waiting, given that all bytes below `until` have
    /// arrived.
    pub(super) fn is_answered(&self, until: u64) -> bool {
        matches!(self.prologue, Prologue::Awaited(_)) && until >= Answer::LEN as u64
    }

    /// Converts a position of the sent stream to one of the flow, if the peer's position is known.
    pub(super) fn sent_at(&self, stream: u64) -> Option<u64> {
        Some(self.out?.of_flow(stream))
    }

    /// Converts a position of the flow to one of the sent stream.
    pub(super) fn sends_at(&self, flow: u64) -> Option<u64> {
        Some(self.out?.of_stream(flow))
    }

    /// Converts a position of the received stream to one of the flow.
    pub(super) fn received_at(&self, stream: u64) -> u64 {
        self.inn.of_flow(stream)
    }

    /// Converts a position of the flow to one of the received stream.
    pub(super) fn receives_at(&self, flow: u64) -> u64 {
        self.inn.of_stream(flow)
    }
}
