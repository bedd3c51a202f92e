//! Flows that begin while the link is known to be down: their bytes wait in the client's socket.

use std::{
    future::poll_fn,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use pep_core::{arena::SlotState, stats::EndReason};
use tokio::time::sleep;

use super::{FlowContext, FlowEnd, FlowInfo, FlowMemory, LegIo, ServerLeg, refuse, serve};

/// Serves an accepted client as soon as the link is up; `connect` starts connecting to its server.
///
/// The flow waits for as long as sent data would (`user_timeout`), and ends sooner when the client
/// resets.
pub async fn serve_when_up(
    context: Arc<FlowContext>,
    mut ends: FlowInfo,
    memory: FlowMemory,
    client: OwnedFd,
    connect: impl FnOnce(&FlowMemory) -> io::Result<OwnedFd>,
) {
    let permit = context
        .admission
        .admit(&ends.site.site_counters, ends.host());
    context.counters.update(|stats| stats.link_waited += 1);
    let client = match wait(&context, &ends, client).await {
        Ok(client) => client,
        Err(reason) => {
            memory.slot.publish_state(SlotState::Closed);
            let end = FlowEnd {
                reason,
                ..FlowEnd::default()
            };
            return end.record(&context, &ends);
        }
    };
    // Admitted again in a moment, when the flow is served.
    drop(permit);
    match connect(&memory) {
        Ok(server) => {
            memory.follow_leg(&context, &mut ends, server.as_fd());
            serve(context, ends, memory, client, ServerLeg::Connecting(server)).await;
        }
        Err(err) => {
            memory.slot.publish_state(SlotState::Closed);
            refuse(&context, &ends, client, &err);
        }
    }
}

/// Waits until the link is up.
async fn wait(
    context: &FlowContext,
    ends: &FlowInfo,
    client: OwnedFd,
) -> Result<OwnedFd, EndReason> {
    let client = LegIo::new(client).map_err(|_| EndReason::Error)?;
    let limit = async {
        match ends.site.timeouts.user_timeout {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = context.outage.wait_until_up() => client.into_fd().ok_or(EndReason::Error),
        _ = poll_fn(|cx| client.poll_broken(cx)) => Err(EndReason::ClientReset),
        () = limit => Err(EndReason::UserTimeout),
    }
}
