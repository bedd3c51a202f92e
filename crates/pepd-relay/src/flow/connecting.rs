//! Waiting for the server to answer.

use std::{
    future::{Future, poll_fn},
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use pep_core::{relay::Side, stats::EndReason};
use pepd_sys::{
    leg::{self, Family, FromSyn, ReservedLeg},
    socket,
    unanswered::{PROMPT, Unanswered},
};
use tokio::time::{Sleep, sleep, timeout};

use super::{Ends, Flow, FlowContext, LegIo, relaying};

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
        // A server on this machine, or as near as that, has answered before connect() was back;
        // the event loop would tell us one turn later.
        if socket::is_established(self.leg(Side::Server).fd()).unwrap_or(false) {
            self.wakefulness.on_near();
            return self.on_connected();
        }
        match self.answer().await {
            Answer::Server(None) => self.on_connected(),
            Answer::Server(Some(err)) => self.on_connect_error(err),
            Answer::ClientGone(err) => {
                self.failure = Some(err);
                Err(EndReason::ClientReset)
            }
            Answer::Timeout => Err(EndReason::ConnectTimeout),
        }
    }

    fn on_connected(&mut self) -> Result<(), EndReason> {
        let family = Family::of(&self.ends.destination);
        self.context.silence.on_answer(family);
        let fd = self.leg(Side::Server).fd();
        leg::on_connected(fd, &self.ends.site, family).map_err(|err| {
            self.failure = Some(err);
            EndReason::Error
        })
    }

    async fn answer(&self) -> Answer {
        let limit = self.ends.site.timeouts.connect;
        let prompt = limit.min(PROMPT);
        match self.answer_until(pin!(sleep(prompt))).await {
            Some(answer) => answer,
            // Boxed, since every flow has room for all it may ever wait for.
            None => Box::pin(self.late_answer(limit - prompt)).await,
        }
    }

    async fn late_answer(&self, limit: Duration) -> Answer {
        let end = pin!(sleep(limit));
        let silence = async {
            let since = Instant::now();
            sleep(self.context.silence.patience()).await;
            if !self.context.outage.is_away() {
                let family = Family::of(&self.ends.destination);
                self.context.silence.on_silence(family, since);
            }
            std::future::pending::<Answer>().await
        };
        let mut waiting = self.context.unanswered.wait(self.ends.destination.ip());
        tokio::select! {
            answer = self.answer_until(end) => answer.unwrap_or(Answer::Timeout),
            answer = silence => answer,
            () = waiting.failed() => {
                Answer::Server(Some(io::Error::from_raw_os_error(libc::EHOSTUNREACH)))
            }
        }
    }

    /// `None` when nothing has come by the end.
    async fn answer_until(&self, mut end: Pin<&mut Sleep>) -> Option<Answer> {
        poll_fn(|cx| {
            if let Poll::Ready(answer) = self.poll_legs(cx) {
                return Poll::Ready(Some(answer));
            }
            end.as_mut().poll(cx).map(|()| self.unannounced_error())
        })
        .await
    }

    /// An ICMP error that came while connect() was still running, as it may on a short path. The
    /// kernel then notes it (`sk_err_soft`), but neither fails the socket nor wakes anybody.
    fn unannounced_error(&self) -> Option<Answer> {
        let err = self.leg(Side::Server).take_error()?;
        Some(Answer::Server(Some(err)))
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
        if reason == EndReason::Refused {
            let family = Family::of(&self.ends.destination);
            self.context.silence.on_answer(family);
        }
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

/// Waits for the server to answer on a leg whose client is somebody else's concern.
pub async fn connected(
    leg: &LegIo,
    unanswered: &Unanswered,
    destination: IpAddr,
    limit: Duration,
) -> Result<(), io::Error> {
    let prompt = limit.min(PROMPT);
    if let Ok(answer) = timeout(prompt, answered(leg)).await {
        return answer;
    }
    // An ICMP error that came while connect() was still running wakes nobody.
    if let Some(err) = leg.take_error() {
        return Err(err);
    }
    let mut waiting = unanswered.wait(destination);
    tokio::select! {
        answer = answered(leg) => answer,
        () = waiting.failed() => Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH)),
        () = sleep(limit - prompt) => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
    }
}

async fn answered(leg: &LegIo) -> Result<(), io::Error> {
    poll_fn(|cx| leg.poll_writable(cx)).await;
    leg.take_error().map_or(Ok(()), Err)
}

/// Begins to connect for a flow; from another port of the client's where its own is taken.
/// `publish` gets each socket before it connects.
///
/// # Errors
/// As [`ReservedLeg::connect`].
pub fn connect(
    context: &FlowContext,
    leg: ReservedLeg,
    family: Family,
    (ends, syn): (&Ends, FromSyn),
    publish: impl Fn(BorrowedFd<'_>),
) -> io::Result<OwnedFd> {
    publish(leg.as_fd());
    match leg.connect(&ends.site, ends.destination, ends.client, syn) {
        Err(err) if is_address_taken(&err) => {
            context
                .counters
                .update(|stats| stats.source_port_changed += 1);
            let leg = ReservedLeg::new(&ends.site, family)?;
            publish(leg.as_fd());
            let address = ends.client.ip();
            leg.connect_from_any_port(&ends.site, ends.destination, address, syn)
        }
        result => result,
    }
}

/// The client's address and port are in use here: by a connection that is not quite over.
fn is_address_taken(err: &io::Error) -> bool {
    matches!(
        err.raw_os_error(),
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
    )
}

/// What an error of connect() says of the server.
pub fn reason(err: &io::Error) -> EndReason {
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
