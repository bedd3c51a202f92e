//! Start of a flow at the client's end.

use std::{future::poll_fn, io, rc::Rc, task::Poll};

use pep_core::{
    arena::Kind,
    hosts::Host,
    relay::{Direction, Side},
    site::{DscpPolicy, Source},
    stats::EndReason,
    stream_header::StreamHeader,
};
use pepd_sys::keys::{self, NoRandomness};
use tokio::time::timeout;
use tunnel::{class::Class, wire::ResetCode};

use super::{
    AcceptedFlow,
    core::Shared,
    flow::Joint,
    leg::Leg,
    recover,
    table::{Policy, StreamOpening},
};
use crate::table::Key;

/// Serves the flow of an accepted client with this leg, until it ends.
pub(super) async fn serve(core: Shared, accepted: AcceptedFlow, leg: io::Result<Box<dyn Leg>>) {
    let stream_header = stream_header(&accepted);
    let key = {
        let core = &mut *core.borrow_mut();
        let counters = &core.context.counters;
        counters.update(|stats| stats.tunnel_flows_near += 1);
        let peer = accepted.peer;
        let policy = Policy::for_site(&accepted.ends.site);
        let table = core.table(peer);
        let flow = table.add_kept(accepted.memory, Direction::Up, policy);
        table.set_host(flow, Host::from_address(accepted.ends.client.ip()));
        Key { peer, flow }
    };
    let mut joint = Joint::new(
        Rc::clone(&core),
        key,
        accepted.ends,
        Side::Client,
        accepted.permit,
    );
    match leg {
        Ok(leg) => joint.set_leg(leg),
        Err(err) => return joint.end(EndReason::Error, ResetCode::Internal, Some(err)),
    }
    let stream_header = match stream_header {
        Ok(stream_header) => stream_header,
        Err(err) => {
            let err = io::Error::other(err);
            return joint.end(EndReason::Error, ResetCode::Internal, Some(err));
        }
    };
    if stream_header.compressed {
        joint.compress();
    }
    announce(
        &core,
        key,
        &joint,
        (accepted.class, accepted.site.0.into(), stream_header),
    );
    proceed(core, key, joint, false).await;
}

/// Records the flow and the stream header that will open its stream.
fn announce(
    core: &Shared,
    key: Key,
    joint: &Joint,
    (class, site, stream_header): (Class, u32, StreamHeader),
) {
    let core = &mut *core.borrow_mut();
    let identity = recover::identity(Kind::Near, class, core.peer_name(key.peer), &stream_header);
    if let Some(entry) = core.entry(key) {
        entry.publish(&identity, joint.leg().map(Leg::cookie));
        entry.publish_connected();
        entry.announce(StreamOpening {
            class,
            site,
            born: identity.born,
            stream_header,
        });
    }
}

/// Serves an announced flow until it ends: on its first stream, or resumed on one that the core
/// opens.
pub(super) async fn proceed(core: Shared, key: Key, joint: Joint, resumed: bool) {
    if resumed {
        return joint.run().await;
    }
    let limit = joint.ends().site.timeouts.connect;
    match timeout(limit, open(&core, &joint, key)).await {
        Ok(Opened::Stream) => joint.run().await,
        Ok(Opened::ClientClosed(err)) => {
            joint.end(EndReason::ClientReset, ResetCode::Host, Some(err));
        }
        Err(_elapsed) => joint.end(EndReason::ConnectTimeout, ResetCode::TimedOut, None),
    }
}

/// Builds the stream header, which describes a new flow to the peer.
fn stream_header(accepted: &AcceptedFlow) -> Result<StreamHeader, NoRandomness> {
    let [token, _] = *keys::random()?.as_chunks().0 else {
        return Err(NoRandomness);
    };
    Ok(StreamHeader {
        token: u128::from_be_bytes(token).max(1),
        resume: None,
        destination: accepted.ends.destination,
        client: accepted.ends.client,
        as_client: accepted.ends.site.source == Source::Client,
        compressed: accepted.ends.site.compress,
        dscp: match accepted.ends.site.dscp {
            DscpPolicy::Keep => accepted.dscp,
            DscpPolicy::Set(dscp) => dscp,
        },
        site: accepted.ends.site.name.clone(),
    })
}

enum Opened {
    Stream,
    ClientClosed(io::Error),
}

/// Opens a stream as soon as a session accepts one. The client's bytes wait in its socket.
async fn open(core: &Shared, joint: &Joint, key: Key) -> Opened {
    poll_fn(|cx| {
        let core = &mut *core.borrow_mut();
        if core.open(key).is_ok() {
            return Poll::Ready(Opened::Stream);
        }
        if let Some(entry) = core.entry(key) {
            entry.waker = Some(cx.waker().clone());
        }
        match joint.poll_leg_broken(cx) {
            Poll::Ready(err) => Poll::Ready(Opened::ClientClosed(err)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
