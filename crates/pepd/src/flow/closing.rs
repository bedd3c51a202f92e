//! The end of a flow: what the kernel still has for the hosts is delivered before the legs go.
//!
//! A socket that is closed with bytes to send becomes an orphan, which the kernel gives up after
//! some probes of a window that stays closed (`tcp_orphan_retries`); kept open, it asks for as long as
//! the host answers (RFC 1122, 4.2.2.17). So legs are kept until their bytes are acknowledged.

use std::{io, time::Duration};

use pep_core::{
    relay::{Direction, End, HalfState, Side},
    stats::EndReason,
};
use tokio::time::{Instant, sleep};

use super::Flow;
use crate::{leg, sys::socket};

/// The kernel does not tell when the last byte is acknowledged, so it is asked: at first often,
/// since most tails are gone within a round trip, then less.
const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_LAST: Duration = Duration::from_millis(500);

impl Flow {
    /// Ends the flow after what its legs still have to deliver.
    pub(super) async fn close(&mut self, end: End) {
        // A host that reads slowly may keep the legs for long; their bytes are the kernel's now.
        self.slot.trim();
        self.relay.handle_end();
        match end {
            End::Closed => {
                // Should the task be dropped from here on, the kernel goes on delivering.
                self.ending = EndReason::Closed;
                self.close_with_fin();
                self.delivered_within_orphan(&Side::ALL).await;
            }
            End::Reset(by) => {
                self.delivered_within_orphan(&[by.other()]).await;
                self.ending = self.reset_reason(by);
            }
        }
    }

    /// From here on a close of the legs, by us or by the kernel, delivers what is left.
    fn close_with_fin(&self) {
        for side in Side::ALL {
            if let Err(err) = leg::set_reset_on_close(self.leg(side).fd(), false) {
                tracing::debug!(error = %err, "cannot close a leg in order");
            }
        }
    }

    async fn delivered_within_orphan(&self, sides: &[Side]) {
        let give_up = Instant::now() + self.ends.site.timeouts.orphan;
        let mut pause = ASK_FIRST;
        while sides.iter().any(|side| self.has_tail(*side)) && Instant::now() < give_up {
            sleep(pause).await;
            pause = (2 * pause).min(ASK_LAST);
        }
    }

    /// Whether a leg has bytes that its host has not acknowledged but still may.
    fn has_tail(&self, side: Side) -> bool {
        let fd = self.leg(side).fd();
        let fin = self.relay.half(Direction::from(side.other())).state() == HalfState::Shut;
        let tail = || -> io::Result<bool> {
            Ok(socket::unacknowledged(fd)? > u64::from(fin) && !socket::is_closed(fd)?)
        };
        tail().unwrap_or(false)
    }

    fn reset_reason(&self, by: Side) -> EndReason {
        let error = self.failure.as_ref().and_then(io::Error::raw_os_error);
        match (error, by) {
            (Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH), _) => {
                EndReason::UserTimeout
            }
            (None | Some(libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN), Side::Client) => {
                EndReason::ClientReset
            }
            (None | Some(libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN), Side::Server) => {
                EndReason::ServerReset
            }
            (Some(_), _) => EndReason::Error,
        }
    }
}
