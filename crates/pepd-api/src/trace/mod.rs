//! One flow, watched: the events of `GET /v1/flows/FLOW/trace`; `text`, the same for people.

mod text;

use serde::{Deserialize, Serialize};

use crate::flows::{FlowStatus, LegStatus};

/// Something about a flow, and when it was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// In seconds of Unix time.
    pub at: f64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What there is to tell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum What {
    /// The flow as it is when the trace begins.
    Flow(Box<FlowStatus>),
    /// Something has changed.
    Look(Box<Look>),
    /// It has ended, and so does the trace.
    Ended(End),
}

/// A look at a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// How far it has come, as in [`FlowStatus`].
    pub state: String,
    /// Whether the link is known to be away.
    pub link_down: bool,
    /// From the client to the server.
    pub up: DirectionSample,
    /// From the server to the client.
    pub down: DirectionSample,
    /// As in [`FlowStatus`].
    pub client_leg: Option<LegStatus>,
    /// Likewise.
    pub server_leg: Option<LegStatus>,
    /// Looks that there should have been since the last one, and were not, as nobody read.
    pub missed: u64,
}

/// One direction of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionSample {
    /// Bytes that have come so far.
    pub bytes: u64,
    /// Of these, since the last look that was told.
    pub moved: u64,
    /// Bytes that pepd has and has not passed on.
    pub held: u64,
    /// Bytes that the kernel has to send, or to be acknowledged.
    pub kernel: u64,
    /// Its sender has ended it, by FIN.
    pub source_ended: bool,
    /// And that was passed on.
    pub ended: bool,
    /// What it waits for; none where it has ended or nothing holds it up.
    pub waits_for: Option<WaitsFor>,
}

/// How a flow has ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct End {
    /// Why, as the log has it; none where nobody has told.
    pub reason: Option<String>,
    /// Bytes that were delivered up and down, by the last process that carried it.
    pub bytes: [u64; 2],
    /// Bytes that had come and were not delivered.
    pub undelivered: [u64; 2],
    /// How long that process has carried it.
    pub duration_s: f64,
    /// What went wrong with a connection, where something did.
    pub error: Option<String>,
}

/// What a direction waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The server, or the peer, has not answered the flow yet.
    Answer,
    /// Its sender sends nothing.
    Source,
    /// The link is away.
    Link,
    /// The other end of its tunnel is away.
    Peer,
    /// The tunnel: its other end has not acknowledged what was sent, or has no room for more, as its host takes nothing.
    Tunnel,
    /// Its receiver takes no more: the window that it offers is full.
    ReceiverWindow,
    /// There is no more room in our send buffer.
    SendBuffer,
    /// The congestion window is full.
    CongestionWindow,
    /// The rate at which it may be sent.
    Pacing,
    /// All was sent, and is on its way.
    Acknowledgements,
}
