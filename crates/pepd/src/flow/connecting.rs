//! Waiting for the server to answer.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::{Context, Poll},
};

use pep_core::{relay::Side, stats::EndReason};
use tokio::time::sleep;

use super::{Flow, relaying};

/// What came first.
enum Answer {
    Server(Option<io::Error>),
    ClientGone(io::Error),
    Timeout,
}

impl Flow {
    /// Waits until the server leg is connected. The client's bytes wait in its socket; a client
    /// that resets ends it.
    pub(super) async fn connect(&mut self) -> Result<(), EndReason> {
        match self.answer().await {
            Answer::Server(None) => Ok(()),
            Answer::Server(Some(err)) => self.on_connect_error(err),
            Answer::ClientGone(err) => {
                self.failure = Some(err);
                Err(EndReason::ClientReset)
            }
            Answer::Timeout => Err(EndReason::ConnectTimeout),
        }
    }

    async fn answer(&self) -> Answer {
        let mut timer = pin!(sleep(self.ends.site.timeouts.connect));
        poll_fn(|cx| {
            if let Poll::Ready(answer) = self.poll_legs(cx) {
                return Poll::Ready(answer);
            }
            timer.as_mut().poll(cx).map(|()| Answer::Timeout)
        })
        .await
    }

    fn poll_legs(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let server = self.leg(Side::Server);
        if server.poll_writable(cx).is_ready() {
            return Poll::Ready(Answer::Server(server.take_error()));
        }
        let client = self.leg(Side::Client);
        client.poll_broken(cx).map(Answer::ClientGone)
    }

    /// A server that answered and then reset was connected, and may have sent something before.
    fn on_connect_error(&mut self, err: io::Error) -> Result<(), EndReason> {
        let reason = reason(&err);
        if reason == EndReason::ServerReset {
            self.relay
                .handle_broken(Side::Server, relaying::ending(&err));
        }
        self.failure = Some(err);
        if reason == EndReason::ServerReset {
            Ok(())
        } else {
            Err(reason)
        }
    }
}

/// What an error of connect() says of the server.
pub(super) fn reason(err: &io::Error) -> EndReason {
    match err.raw_os_error() {
        Some(libc::ECONNREFUSED) => EndReason::Refused,
        Some(libc::ETIMEDOUT) => EndReason::ConnectTimeout,
        Some(libc::ECONNRESET | libc::EPIPE) => EndReason::ServerReset,
        Some(
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN
            // ICMP: prohibited by a filter, no such protocol.
            | libc::EACCES | libc::EPERM | libc::ENOPROTOOPT | libc::EPROTO,
        ) => EndReason::Unreachable,
        _ => EndReason::Error,
    }
}
