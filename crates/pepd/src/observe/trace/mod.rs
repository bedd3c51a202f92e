//! One flow, looked at four times a second for as long as somebody watches: what moves, what its legs are like, what it waits
//! for, and how it ends. Nobody looks while nobody watches.
//!
//! - `find`, which flow is meant; `qlog`, the same and more as qlog
//! - `tracer`, the looks
//! - `waits`, what a half waits for; `text`, events for people

mod find;
pub(super) mod qlog;
mod text;
mod tracer;
mod waits;

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use serde::{Deserialize, Serialize};

use super::{
    Observer,
    flows::{FlowStatus, LegStatus},
    stream::event,
};
use crate::admin::Place;
use find::FindError;
use tracer::Tracer;
pub use waits::WaitsFor;

/// Traces at one time. Each has a connection that lasts.
pub const TRACES_MAX: usize = 8;

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
    pub link_away: bool,
    /// From the client to the server.
    pub up: Way,
    /// From the server to the client.
    pub down: Way,
    /// As in [`FlowStatus`].
    pub client_leg: Option<LegStatus>,
    /// Likewise.
    pub server_leg: Option<LegStatus>,
    /// Looks that there should have been since the last one, and were not, as nobody read.
    pub missed: u64,
}

/// One direction of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Answers `GET /v1/flows/FLOW`.
pub(super) async fn show_flow(
    State(observer): State<Arc<Observer>>,
    Path(wanted): Path<String>,
) -> Response {
    // It asks the kernel for each socket: others are not to wait for that.
    let found = tokio::task::spawn_blocking(move || {
        let target = find::find(&observer, &wanted)?;
        let flow = observer.flow(target.slot);
        flow.ok_or(FindError::Unknown(wanted))
    });
    match found.await {
        Ok(Ok(flow)) => Json(flow).into_response(),
        Ok(Err(err)) => refuse(&err),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
    }
}

/// Answers `GET /v1/flows/FLOW/trace`: the flow now, then what changes, then how it ended.
pub(super) async fn show(
    State(observer): State<Arc<Observer>>,
    Path(wanted): Path<String>,
    Extension(place): Extension<Place>,
) -> Response {
    let target = match find::find(&observer, &wanted) {
        Ok(target) => target,
        Err(err) => return refuse(&err),
    };
    let Ok(permit) = Arc::clone(&observer.traces).try_acquire_owned() else {
        let why = format!(
            "{TRACES_MAX} flows are traced already, and there may be no more: end one, or ask /v1/flows/{wanted}\n"
        );
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    place.leave();
    let traced = (Tracer::new(observer, target), permit);
    let body = stream::unfold(traced, |(mut tracer, permit)| async move {
        let told = tracer.next().await?;
        let name = match told.what {
            What::Flow(_) => "flow",
            What::Look(_) => "look",
            What::Ended(_) => "ended",
        };
        Some((Ok::<_, Infallible>(event(name, &told)), (tracer, permit)))
    });
    let kind = [(CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(body)).into_response()
}

fn refuse(err: &FindError) -> Response {
    let status = match err {
        FindError::Unknown(_) => StatusCode::NOT_FOUND,
        FindError::Several(..) => StatusCode::CONFLICT,
    };
    (status, format!("{err}\n")).into_response()
}
