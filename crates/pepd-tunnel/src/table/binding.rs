//! How a flow stands with its peer: what both call it, which stream is its, and since when it has none.
//!
//! ```text
//!            opened                the session is gone
//!   none ------------> bound ----------------------------> suspended
//!                        ^     <- near: opened again;          |
//!                        |        far: the peer opens it again |
//!                        +-------------------------------------+
//! ```
//!
//! Positions of a flow are counted from its beginning, those of a stream from its own. The stream of a flow that goes on begins
//! where the flow was: at position 0, or from the far end behind its [`Answer`].

use std::time::Duration;

use pep_core::stream_header::{Answer, StreamHeader};
use tunnel::{class::Class, wire::StreamId};

/// What the near end opens streams of a flow with.
#[derive(Debug)]
pub(crate) struct StreamOpening {
    pub(crate) class: Class,
    /// By which the link is shared.
    pub(crate) site: u32,
    /// When the flow began ([`born`](pepd_relay::flow::born)).
    pub(crate) born: u64,
    pub(crate) stream_header: StreamHeader,
}

/// A position of a stream, and the one of the flow that is the same.
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

/// What the stream begins with, from the far end.
#[derive(Debug)]
enum Prologue {
    /// Nothing, or it has been taken.
    None,
    Awaited([u8; Answer::LEN]),
    Given([u8; Answer::LEN]),
}

/// What a flow is to its peer.
#[derive(Debug)]
pub(super) struct Binding {
    /// What both ends know the flow by; 0 while the peer has not said.
    pub(super) token: u128,
    pub(super) stream: Option<StreamId>,
    /// For how long it has been without a stream, since it had one.
    pub(super) suspended: Option<Duration>,
    /// The peer has heard of it.
    pub(super) known: bool,
    /// At the near end.
    pub(super) announcement: Option<Box<StreamOpening>>,
    /// None while it is not known what the peer has.
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

    /// The flow has its first stream.
    pub(super) fn bind(&mut self, stream: StreamId) {
        self.stream = Some(stream);
    }

    /// The session is gone. Whether there was a stream.
    pub(super) fn suspend(&mut self) -> bool {
        let had = self.stream.take().is_some();
        if had {
            self.suspended = Some(Duration::ZERO);
        }
        had
    }

    /// There is no stream, nor is there to be one again.
    pub(super) fn release(&mut self) {
        self.stream = None;
        self.suspended = None;
    }

    /// The near end has opened another stream, on which bytes come from `down` on.
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

    /// What the far end has answered, all of which has come.
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

    /// The near end goes on with another stream, and wants bytes from `down` on.
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

    /// Copies of what the stream begins with as much as lies from this position on; how many bytes.
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

    /// Takes of what the peer has sent from this position on what the stream begins with; how many bytes.
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

    /// Whether what the stream begins with has all come and not been taken, as all of the stream below this has come.
    pub(super) fn is_answered(&self, until: u64) -> bool {
        matches!(self.prologue, Prologue::Awaited(_)) && until >= Answer::LEN as u64
    }

    /// The flow's position of one of the stream's: of what we send, as far as it is known what the peer has.
    pub(super) fn sent_at(&self, stream: u64) -> Option<u64> {
        Some(self.out?.of_flow(stream))
    }

    /// And the other way round.
    pub(super) fn sends_at(&self, flow: u64) -> Option<u64> {
        Some(self.out?.of_stream(flow))
    }

    /// The flow's position of one of the stream's: of what the peer sends.
    pub(super) fn received_at(&self, stream: u64) -> u64 {
        self.inn.of_flow(stream)
    }

    /// And the other way round.
    pub(super) fn receives_at(&self, flow: u64) -> u64 {
        self.inn.of_stream(flow)
    }
}
