//! Stream of the status, once a second: server-sent events (HTML, 9.2).

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use pepd_api::{history::Row, status::Status};
use tokio::sync::watch;

use super::Observer;
use crate::admin::{Lasting, Place, STREAMS_MAX};

/// Milliseconds after which a disconnected browser reconnects.
const RETRY: &str = "retry: 2000\n\n";

/// Sender of events to all listeners.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    frames: watch::Sender<Bytes>,
}

impl Listeners {
    /// Sends the status, and its row of the history, if a listener exists.
    pub(super) fn publish(&self, status: &Status, row: &Row) {
        if self.frames.receiver_count() > 0 {
            let frame = event("status", status) + &event("row", row);
            self.frames.send_replace(frame.into());
        }
    }
}

/// Formats one event. The JSON contains no line breaks.
pub(crate) fn event(name: &str, data: &impl serde::Serialize) -> String {
    match serde_json::to_string(data) {
        Ok(data) => format!("event: {name}\ndata: {data}\n\n"),
        Err(err) => {
            tracing::debug!(error = %err, name, "cannot notify listeners");
            String::new()
        }
    }
}

/// Serves `GET /v1/stream`: the current status, then one a second, each with its row of the
/// history. A slow listener misses some.
pub(super) async fn show(
    State(observer): State<Arc<Observer>>,
    Extension(place): Extension<Place>,
) -> Response {
    let Some(permit) = place.last(Lasting::Stream) else {
        let why = format!(
            "all {STREAMS_MAX} streams are in use: close one (perhaps a page open in a browser), or \
             query /v1/status\n"
        );
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let mut frames = observer.listeners.frames.subscribe();
    frames.mark_unchanged();
    let first = RETRY.to_owned() + &event("status", &observer.status());
    let reported = (Some(Bytes::from(first)), frames, permit);
    let body = stream::unfold(reported, |(first, mut frames, permit)| async move {
        let frame = match first {
            Some(first) => first,
            None => {
                frames.changed().await.ok()?;
                frames.borrow_and_update().clone()
            }
        };
        Some((Ok::<_, Infallible>(frame), (None, frames, permit)))
    });
    let kind = [(CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pepd_api::testing::status;

    #[test]
    fn a_frame_is_two_events_and_made_for_listeners_only() {
        let listeners = Listeners::default();
        let row = (7, vec![Some(0.5), None]);
        listeners.publish(&status(), &row);
        assert!(listeners.frames.borrow().is_empty(), "no listener");
        let frames = listeners.frames.subscribe();
        listeners.publish(&status(), &row);
        assert!(frames.has_changed().expect("it is there"));
        let frame = String::from_utf8(frames.borrow().to_vec()).expect("text");
        let lines: Vec<_> = frame.split('\n').collect();
        let [
            first,
            data,
            "",
            "event: row",
            "data: [7,[0.5,null]]",
            "",
            "",
        ] = lines[..]
        else {
            panic!("{frame}");
        };
        assert_eq!(first, "event: status");
        let data = data.strip_prefix("data: ").expect("data");
        let reported: Status = serde_json::from_str(data).expect("a status");
        assert_eq!(reported, status());
    }
}
