//! Flows that begin while the link is down: their bytes wait in the client's socket.
//!
//! A link whose interface is up again may lack its address, its routes or the answers of its next
//! hop for a while. So a way to the server that is missing then is no reason to end such a flow.

use std::{
    future::poll_fn,
    io,
    net::Shutdown,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use pep_core::{arena::SlotState, relay::Side, stats::EndReason};
use pepd_sys::leg::{self, Family, FromSyn, ReservedLeg};
use socket2::SockRef;
use tokio::time::sleep;

use super::{
    Flow, FlowContext, FlowEnd, FlowInfo, FlowMemory, LegIo, ServerLeg, connect,
    connecting::reason, publish_leg, serve,
};
use crate::arena::Slot;

/// Pause after a try without a way to the server.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait of a flow whose sent data would wait for ever.
const PATIENCE: Duration = Duration::from_secs(25 * 60);

/// Serves an accepted client as soon as the link is up; `dial` starts connecting to its server.
///
/// The flow waits for as long as sent data would (`user_timeout`), and ends sooner when the client
/// resets.
pub async fn serve_when_up(
    context: Arc<FlowContext>,
    mut ends: FlowInfo,
    memory: FlowMemory,
    client: OwnedFd,
    mut dial: impl FnMut(&FlowMemory) -> io::Result<OwnedFd>,
) {
    let permit = context
        .admission
        .admit(&ends.site.site_counters, ends.host());
    if context.outage.is_down() {
        context.counters.update(|stats| stats.link_waited += 1);
    }
    let dialled = async {
        let client = LegIo::new(client).map_err(|err| (EndReason::Error, Some(err)))?;
        let patience = patience(&ends);
        let server = until_dialled(&context, &ends, &client, patience, || dial(&memory)).await?;
        let client = client.into_fd().ok_or((EndReason::Error, None))?;
        Ok((client, server))
    };
    match dialled.await {
        Ok((client, server)) => {
            // Admitted again in a moment, when the flow is served.
            drop(permit);
            memory.follow_leg(&context, &mut ends, server.as_fd());
            serve(context, ends, memory, client, ServerLeg::Connecting(server)).await;
        }
        Err((reason, error)) => {
            memory.slot.publish_state(SlotState::Closed);
            let end = FlowEnd {
                reason,
                error: error.as_ref(),
                ..FlowEnd::default()
            };
            end.record(&context, &ends);
        }
    }
}

/// Tries to reach the server while the link is up, until there is a way or no hope for one.
async fn until_dialled(
    context: &FlowContext,
    ends: &FlowInfo,
    client: &LegIo,
    patience: Duration,
    mut dial: impl FnMut() -> io::Result<OwnedFd>,
) -> Result<OwnedFd, (EndReason, Option<io::Error>)> {
    let dialled = async {
        loop {
            if ends.site.waits_for_link() {
                context.outage.wait_until_up().await;
            }
            match dial() {
                Err(err) if may_dial_again(context, ends, reason(&err)) => {
                    tracing::debug!(error = %err, "no way to the server yet");
                    sleep(PAUSE).await;
                }
                result => return result,
            }
        }
    };
    tokio::select! {
        result = dialled => result.map_err(|err| (reason(&err), Some(err))),
        err = poll_fn(|cx| client.poll_broken(cx)) => Err((EndReason::ClientReset, Some(err))),
        () = sleep(patience) => Err((EndReason::UserTimeout, None)),
    }
}

fn patience(ends: &FlowInfo) -> Duration {
    ends.site.timeouts.user_timeout.unwrap_or(PATIENCE)
}

/// Returns whether a failure to reach the server may be due to the link alone.
pub(super) fn may_dial_again(context: &FlowContext, ends: &FlowInfo, failure: EndReason) -> bool {
    let is_absence = matches!(failure, EndReason::Unreachable | EndReason::ConnectTimeout);
    let is_of_link = ends.site.waits_for_link() && context.outage.is_unsettled();
    is_absence && is_of_link && leg::may_be_host(ends.destination.ip())
}

/// Starts connecting anew for a flow whose client has been accepted.
///
/// # Errors
/// As [`ReservedLeg::connect`], and `ENETUNREACH` for an address of no host.
pub(super) fn dial(
    context: &FlowContext,
    ends: &FlowInfo,
    syn: FromSyn,
    slot: &Slot,
) -> io::Result<OwnedFd> {
    if !leg::may_be_host(ends.destination.ip()) {
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    let family = Family::from_address(&ends.destination);
    let leg = ReservedLeg::new(&ends.site, family)?;
    let publish = |leg: BorrowedFd<'_>| publish_leg(slot, Side::Server, leg);
    connect(context, leg, family, (ends, syn), publish)
}

impl Flow {
    /// Replaces the server leg, which cannot connect, as soon as there is a way to the server.
    /// `waited` is the time that the flow has had for that.
    pub(super) async fn dial_again(&mut self, waited: Duration) -> Result<(), EndReason> {
        let Self {
            context,
            ends,
            slot,
            ..
        } = &*self;
        let family = Family::from_address(&ends.destination);
        let last = self.leg(Side::Server).fd();
        let syn = FromSyn::of(last, &ends.site, family);
        // Frees the client's port for the next one.
        let _ = SockRef::from(&last).shutdown(Shutdown::Both);
        // Whoever answers at once that it is unreachable is not asked without end.
        sleep(PAUSE).await;
        let again = || dial(context, ends, syn, slot);
        let patience = patience(ends).saturating_sub(waited);
        let dialled = until_dialled(context, ends, self.leg(Side::Client), patience, again).await;
        let server =
            dialled.and_then(|fd| LegIo::new(fd).map_err(|err| (EndReason::Error, Some(err))));
        match server {
            Ok(server) => {
                self.failure = None;
                self.replace_server(server);
                Ok(())
            }
            Err((reason, error)) => {
                self.failure = error;
                Err(reason)
            }
        }
    }
}
