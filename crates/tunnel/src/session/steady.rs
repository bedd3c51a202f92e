//! Record of steady streams, beside which packets wait for each other less.

use std::time::Duration;

use crate::wire::StreamId;

/// Time for which a steady stream is expected to send more.
const STEADY_FOR: Duration = Duration::from_secs(3);

/// The steady stream that was used last in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastSteady(Option<(StreamId, Duration)>);

impl LastSteady {
    /// Handles bytes of a stream, which is steady or not.
    pub(super) fn on_piece(&mut self, now: Duration, stream: StreamId, is_steady: bool) {
        if is_steady {
            self.0 = Some((stream, now));
        } else if self.0.is_some_and(|(last, _)| last == stream) {
            // Another one that is steady follows soon.
            self.0 = None;
        }
    }

    /// Returns true if a steady stream was used within the last three seconds.
    pub(super) fn is_used(&self, now: Duration) -> bool {
        self.0.is_some_and(|(_, at)| now < at + STEADY_FOR)
    }
}
