//! Events of `GET /v1/flows/FLOW/trace`; `text` is their text form.

mod text;

use serde::{Deserialize, Serialize};

use crate::flows::{FlowStatus, LegStatus};

/// Trace event of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// Time in seconds of Unix time.
    pub at: f64,
    /// Kind and content of the event.
    #[serde(flatten)]
    pub what: What,
}

/// Kind and content of a trace event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum What {
    /// State of the flow when the trace begins.
    Flow(Box<FlowStatus>),
    /// Sample of the flow after a change.
    Look(Box<Look>),
    /// End of the flow and of the trace.
    Ended(End),
}

/// Sample of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// State of the flow, as in [`FlowStatus`].
    pub state: String,
    /// True if the link is known to be down.
    #[serde(alias = "link_away")]
    pub link_down: bool,
    /// Direction from the client to the server.
    pub up: DirectionSample,
    /// Direction from the server to the client.
    pub down: DirectionSample,
    /// Leg to the client, as in [`FlowStatus`].
    pub client_leg: Option<LegStatus>,
    /// Leg to the server, as in [`FlowStatus`].
    pub server_leg: Option<LegStatus>,
    /// Samples since the last event that the reader was too slow to receive.
    pub missed: u64,
}

/// Sample of one direction of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionSample {
    /// Bytes received so far.
    pub bytes: u64,
    /// Bytes received since the last reported sample.
    pub moved: u64,
    /// Bytes that pepd holds and has not forwarded.
    pub held: u64,
    /// Bytes that the kernel has yet to send, or that await acknowledgement.
    pub kernel: u64,
    /// True once the sender has sent FIN.
    pub source_ended: bool,
    /// True once that FIN was forwarded.
    pub ended: bool,
    /// Cause of the wait; none after the end, or if nothing holds it up.
    pub waits_for: Option<WaitsFor>,
}

/// End of a flow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct End {
    /// Reason, as in the log; none if unknown.
    pub reason: Option<String>,
    /// Bytes that the last process delivered up and down.
    pub bytes: [u64; 2],
    /// Bytes received and not delivered, up and down.
    pub undelivered: [u64; 2],
    /// Seconds for which that process carried the flow.
    pub duration_s: f64,
    /// Error of a connection, if one occurred.
    pub error: Option<String>,
}

/// Cause for which a direction waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The server, or the peer, has not answered the flow yet.
    Answer,
    /// The sender sends no data.
    Source,
    /// The link is down.
    Link,
    /// The peer of the tunnel is down.
    Peer,
    /// The peer has not acknowledged the data, or grants no credit because its host does not read.
    Tunnel,
    /// The receiver's window is full.
    ReceiverWindow,
    /// The send buffer of pepd's leg is full.
    SendBuffer,
    /// The congestion window is full.
    CongestionWindow,
    /// The sending rate limits the direction.
    Pacing,
    /// All data was sent and awaits acknowledgement.
    Acknowledgements,
}
