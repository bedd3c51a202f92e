//! Tail of a leg: bytes in the kernel's send queue are delivered before the leg is closed.
//!
//! A socket closed with unsent bytes becomes an orphan. The kernel drops it after some probes of a
//! window that stays closed (`tcp_orphan_retries`). Kept open, it probes for as long as the host
//! answers (RFC 1122, 4.2.2.17). So pepd keeps legs until their bytes are acknowledged.

use std::{io, time::Duration};

use pep_core::{relay::Side, stats::EndReason};
use pepd_sys::{leg, socket};
use tokio::time::{Instant, sleep};

use super::LegIo;

/// The kernel does not notify of the last acknowledgement, so pepd polls: often at first, since
/// most tails are delivered within a round trip, then less often.
const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_LAST: Duration = Duration::from_millis(500);

/// Waits until no leg has a tail, for up to `limit`.
pub async fn delivered(limit: Duration, has_tail: impl Fn() -> bool) {
    let give_up = Instant::now() + limit;
    let mut pause = ASK_FIRST;
    while has_tail() && Instant::now() < give_up {
        sleep(pause).await;
        pause = (2 * pause).min(ASK_LAST);
    }
}

impl LegIo {
    /// Returns whether the leg has bytes that its host has not acknowledged but still may. `fin`:
    /// the leg was shut down, and its FIN counts as a byte.
    pub fn has_tail(&self, fin: bool) -> bool {
        let fd = self.fd();
        let tail = || -> io::Result<bool> {
            Ok(socket::unacknowledged(fd)? > u64::from(fin) && !socket::is_closed(fd)?)
        };
        tail().unwrap_or(false)
    }

    /// Makes every later close of the leg, by pepd or by the kernel, deliver the remaining bytes.
    pub fn close_with_fin(&self) {
        if let Err(err) = leg::set_reset_on_close(self.fd(), false) {
            tracing::debug!(error = %err, "cannot close a leg with FIN");
        }
    }
}

/// Returns the end reason of a flow whose leg on this side failed, with this error if there was
/// one.
pub fn broken(failure: Option<&io::Error>, by: Side) -> EndReason {
    match (failure.and_then(io::Error::raw_os_error), by) {
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
