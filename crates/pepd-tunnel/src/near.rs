//! How a flow begins where its client is.

use std::{future::poll_fn, io, rc::Rc, task::Poll};

use pep_core::{
    arena::Kind,
    greeting::Greeting,
    hosts::Host,
    relay::{Direction, Side},
    site::{DscpPolicy, Source},
    stats::EndReason,
};
use pepd_sys::keys::{self, NoRandomness};
use tokio::time::timeout;
use tunnel::{class::Class, wire::ResetCode};

use super::{
    Handed,
    core::Shared,
    flow::Joint,
    leg::Leg,
    recover,
    table::{Announcement, Policy},
};
use crate::table::Key;

/// Serves an accepted client, whose leg this is, to the end of its flow.
pub(super) async fn serve(core: Shared, handed: Handed, leg: io::Result<Box<dyn Leg>>) {
    let greeting = greeting(&handed);
    let key = {
        let core = &mut *core.borrow_mut();
        let counters = &core.context.counters;
        counters.update(|stats| stats.tunnel_flows_near += 1);
        let peer = handed.peer;
        let policy = Policy::of(&handed.ends.site);
        let table = core.table(peer);
        let flow = table.add_kept(handed.memory, Direction::Up, policy);
        table.set_host(flow, Host::of(handed.ends.client.ip()));
        Key { peer, flow }
    };
    let mut joint = Joint::new(
        Rc::clone(&core),
        key,
        handed.ends,
        Side::Client,
        handed.permit,
    );
    match leg {
        Ok(leg) => joint.set_leg(leg),
        Err(err) => return joint.end(EndReason::Error, ResetCode::Internal, Some(err)),
    }
    let greeting = match greeting {
        Ok(greeting) => greeting,
        Err(err) => {
            let err = io::Error::other(err);
            return joint.end(EndReason::Error, ResetCode::Internal, Some(err));
        }
    };
    if greeting.compressed {
        joint.compress();
    }
    announce(
        &core,
        key,
        &joint,
        (handed.class, handed.site.0.into(), greeting),
    );
    go_on(core, key, joint, false).await;
}

/// Writes down what the flow is, and what its stream is to be opened with.
fn announce(
    core: &Shared,
    key: Key,
    joint: &Joint,
    (class, site, greeting): (Class, u32, Greeting),
) {
    let core = &mut *core.borrow_mut();
    let identity = recover::identity(Kind::Near, class, core.peer_name(key.peer), &greeting);
    if let Some(entry) = core.entry(key) {
        entry.publish(&identity, joint.leg().map(Leg::cookie));
        entry.publish_connected();
        entry.announce(Announcement {
            class,
            site,
            born: identity.born,
            greeting,
        });
    }
}

/// Serves a flow that was announced to its end: on its first stream, or one that goes on with it, which
/// the core opens.
pub(super) async fn go_on(core: Shared, key: Key, joint: Joint, goes_on: bool) {
    if goes_on {
        return joint.run().await;
    }
    let limit = joint.ends().site.timeouts.connect;
    match timeout(limit, open(&core, &joint, key)).await {
        Ok(Opened::Stream) => joint.run().await,
        Ok(Opened::ClientGone(err)) => {
            joint.end(EndReason::ClientReset, ResetCode::Host, Some(err));
        }
        Err(_elapsed) => joint.end(EndReason::ConnectTimeout, ResetCode::TimedOut, None),
    }
}

/// What the peer is told of a flow that begins.
fn greeting(handed: &Handed) -> Result<Greeting, NoRandomness> {
    let [token, _] = *keys::random()?.as_chunks().0 else {
        return Err(NoRandomness);
    };
    Ok(Greeting {
        token: u128::from_be_bytes(token).max(1),
        resume: None,
        destination: handed.ends.destination,
        client: handed.ends.client,
        as_client: handed.ends.site.source == Source::Client,
        compressed: handed.ends.site.compress,
        dscp: match handed.ends.site.dscp {
            DscpPolicy::Keep => handed.dscp,
            DscpPolicy::Set(dscp) => dscp,
        },
        site: handed.ends.site.name.clone(),
    })
}

enum Opened {
    Stream,
    ClientGone(io::Error),
}

/// Opens a stream, once there is a session that takes one. The client's bytes wait in its socket.
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
            Poll::Ready(err) => Poll::Ready(Opened::ClientGone(err)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
