//! The end of a leg: what the kernel still has for its host is delivered before the leg goes.
//!
//! A socket that is closed with bytes to send becomes an orphan, which the kernel gives up after
//! some probes of a window that stays closed (`tcp_orphan_retries`); kept open, it asks for as long as
//! the host answers (RFC 1122, 4.2.2.17). So legs are kept until their bytes are acknowledged.

use std::{io, time::Duration};

use pep_core::{relay::Side, stats::EndReason};
use pepd_sys::{leg, socket};
use tokio::time::{Instant, sleep};

use super::LegIo;

/// The kernel does not tell when the last byte is acknowledged, so it is asked: at first often,
/// since most tails are gone within a round trip, then less.
const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_LAST: Duration = Duration::from_millis(500);

/// Waits until nobody has a tail any more, for up to `limit`.
pub async fn delivered(limit: Duration, has_tail: impl Fn() -> bool) {
    let give_up = Instant::now() + limit;
    let mut pause = ASK_FIRST;
    while has_tail() && Instant::now() < give_up {
        sleep(pause).await;
        pause = (2 * pause).min(ASK_LAST);
    }
}

impl LegIo {
    /// Whether there are bytes that the leg's host has not acknowledged but still may. `fin` is whether it was
    /// shut down: that counts like a byte.
    pub fn has_tail(&self, fin: bool) -> bool {
        let fd = self.fd();
        let tail = || -> io::Result<bool> {
            Ok(socket::unacknowledged(fd)? > u64::from(fin) && !socket::is_closed(fd)?)
        };
        tail().unwrap_or(false)
    }

    /// From here on a close of the leg, by us or by the kernel, delivers what is left.
    pub fn close_with_fin(&self) {
        if let Err(err) = leg::set_reset_on_close(self.fd(), false) {
            tracing::debug!(error = %err, "cannot close a leg in order");
        }
    }
}

/// Why a flow has ended whose leg on this side has broken, with this error if there was one.
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
