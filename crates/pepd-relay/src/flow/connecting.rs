//! Connecting the server leg.

use std::{
    future::{Future, poll_fn},
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use pep_core::{relay::Side, site::Source, stats::EndReason};
use pepd_sys::{
    leg::{self, Family, FromSyn, ReservedLeg},
    socket,
    unanswered::{PROMPT, Unanswered},
};
use tokio::time::{Sleep, sleep, timeout};

use super::{Flow, FlowContext, FlowInfo, LegIo, relaying, waiting};

/// First event while a server leg connects.
enum Answer {
    Server(Option<io::Error>),
    ClientClosed(io::Error),
    Timeout,
}

impl Flow {
    /// Waits until the server leg is connected. The client's bytes wait in its socket. A reset by
    /// the client ends the wait.
    pub(super) async fn connect(&mut self) -> Result<(), EndReason> {
        let limit = self.ends.site.timeouts.connect;
        let began = Instant::now();
        let mut since = began;
        loop {
            let left = limit.saturating_sub(since.elapsed());
            let Err(failure) = self.try_to_connect(left).await else {
                return Ok(());
            };
            let is_early = since.elapsed() < limit;
            match failure {
                // The kernel counts SYNs that this machine drops itself, and gives up after
                // seconds.
                EndReason::ConnectTimeout if is_early => {}
                EndReason::Unreachable if is_early && self.context.outage.is_known_down() => {}
                _ if waiting::may_dial_again(&self.context, &self.ends, failure) => {
                    since = Instant::now();
                }
                _ => return Err(failure),
            }
            // Boxed: otherwise every flow reserves space for this rare wait.
            Box::pin(self.dial_again(began.elapsed())).await?;
        }
    }

    async fn try_to_connect(&mut self, limit: Duration) -> Result<(), EndReason> {
        // A server on this machine, or about as near, has answered before connect() returns. The
        // event loop would report it one turn later.
        if socket::is_established(self.leg(Side::Server).fd()).unwrap_or(false) {
            self.busy_poll.on_near();
            return self.on_connected();
        }
        match self.answer(limit).await {
            Answer::Server(None) => self.on_connected(),
            Answer::Server(Some(err)) => self.on_connect_error(err),
            Answer::ClientClosed(err) => {
                self.failure = Some(err);
                Err(EndReason::ClientReset)
            }
            Answer::Timeout => Err(EndReason::ConnectTimeout),
        }
    }

    fn on_connected(&mut self) -> Result<(), EndReason> {
        let family = Family::from_address(&self.ends.destination);
        self.context.silence.on_answer(family);
        let fd = self.leg(Side::Server).fd();
        leg::on_connected(fd, &self.ends.site, family).map_err(|err| {
            self.failure = Some(err);
            EndReason::Error
        })
    }

    async fn answer(&self, limit: Duration) -> Answer {
        let prompt = limit.min(PROMPT);
        match self.answer_until(pin!(sleep(prompt))).await {
            Some(answer) => answer,
            // Boxed: otherwise every flow reserves space for this rare wait.
            None => Box::pin(self.late_answer(limit - prompt)).await,
        }
    }

    async fn late_answer(&self, limit: Duration) -> Answer {
        let server = self.leg(Side::Server);
        self.ends.site.server.back_off_syns(server.fd());
        let end = pin!(sleep(limit));
        let silence = async {
            let since = Instant::now();
            sleep(self.context.silence.patience()).await;
            if !self.context.outage.is_down() {
                let family = Family::from_address(&self.ends.destination);
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

    /// Waits for an answer; `None` at the timeout.
    async fn answer_until(&self, mut end: Pin<&mut Sleep>) -> Option<Answer> {
        poll_fn(|cx| {
            if let Poll::Ready(answer) = self.poll_legs(cx) {
                return Poll::Ready(Some(answer));
            }
            end.as_mut().poll(cx).map(|()| self.unannounced_error())
        })
        .await
    }

    /// Returns an ICMP error that arrived while connect() was still running, as on a short path.
    /// The kernel only notes it (`sk_err_soft`): it neither fails the socket nor wakes a waiter.
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
        client.poll_broken(cx).map(Answer::ClientClosed)
    }

    /// Handles a connect error. A server that answered and then reset was connected, and may have
    /// sent data first.
    fn on_connect_error(&mut self, err: io::Error) -> Result<(), EndReason> {
        let reason = reason(&err);
        if reason == EndReason::Refused {
            let family = Family::from_address(&self.ends.destination);
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

/// Waits for the server to answer on a leg without a local client leg.
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
    // An ICMP error that arrived while connect() was still running wakes no waiter.
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

/// Starts connecting for a flow, from another port if the client's own is in use. `publish`
/// receives each socket before it connects.
///
/// # Errors
/// As [`ReservedLeg::connect`].
pub fn connect(
    context: &FlowContext,
    leg: ReservedLeg,
    family: Family,
    (ends, syn): (&FlowInfo, FromSyn),
    publish: impl Fn(BorrowedFd<'_>),
) -> io::Result<OwnedFd> {
    publish(leg.as_fd());
    let leg_of = || ReservedLeg::new(&ends.site, family);
    let is_clients = ends.site.source == Source::Client;
    let leg = if is_clients && context.client_ports.is_crowded(ends.client) {
        leg
    } else {
        match leg.connect(&ends.site, ends.destination, ends.client, syn) {
            Err(err) if is_clients && is_address_taken(&err) => {
                let leg = leg_of()?;
                publish(leg.as_fd());
                leg
            }
            Err(err) if is_address_taken(&err) => {
                return connect_again(leg_of, ends, syn, publish).unwrap_or(Err(err));
            }
            result => return result,
        }
    };
    context
        .counters
        .update(|stats| stats.source_port_changed += 1);
    leg.connect_from_any_port(&ends.site, ends.destination, ends.client.ip(), syn)
}

/// Tries other ports after one that was in use, each with a socket of its own, as it stays bound;
/// `None` if all are.
fn connect_again(
    leg_of: impl Fn() -> io::Result<ReservedLeg>,
    ends: &FlowInfo,
    syn: FromSyn,
    publish: impl Fn(BorrowedFd<'_>),
) -> Option<io::Result<OwnedFd>> {
    let mut tries = (0..PORT_TRIES).map(|_| {
        let leg = leg_of()?;
        publish(leg.as_fd());
        leg.connect(&ends.site, ends.destination, ends.client, syn)
    });
    tries.find(|tried| !tried.as_ref().is_err_and(is_address_taken))
}

/// Ports that may be tried where all seem to be taken.
const PORT_TRIES: usize = 4;

/// Returns whether the client's address and port are in use on this host, by a connection not quite
/// closed.
fn is_address_taken(err: &io::Error) -> bool {
    matches!(
        err.raw_os_error(),
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
    )
}

/// Maps an error of connect() to the reason why the flow ends.
pub fn reason(err: &io::Error) -> EndReason {
    match err.raw_os_error() {
        Some(libc::ECONNREFUSED) => EndReason::Refused,
        Some(libc::ETIMEDOUT) => EndReason::ConnectTimeout,
        Some(libc::ECONNRESET | libc::EPIPE) => EndReason::ServerReset,
        Some(
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN
            // ICMP: prohibited by a filter, or protocol unreachable.
            | libc::EACCES | libc::EPERM | libc::ENOPROTOOPT | libc::EPROTO,
        ) => EndReason::Unreachable,
        _ => EndReason::Error,
    }
}
