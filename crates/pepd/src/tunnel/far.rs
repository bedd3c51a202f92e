//! How a flow begins where its server is: the peer says where it goes, and we connect.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
};

use pep_core::{greeting::Greeting, relay::Side, site::Source, stats::EndReason};
use tunnel::wire::ResetCode;

use super::{
    core::{Key, Shared},
    flow::Joint,
};
use crate::{
    accept,
    flow::{self, Ends},
    leg::{self, Family, ReservedLeg, SiteRuntime},
    limits::Permit,
};

/// What server legs of peers' flows are made by: from the client's address, and from ours.
#[derive(Debug)]
pub(super) struct Sites {
    as_client: Arc<SiteRuntime>,
    as_self: Arc<SiteRuntime>,
    /// Whether there may be a server for peers' flows.
    may_be_server: fn(IpAddr) -> bool,
}

impl Sites {
    pub(super) fn new(site: &SiteRuntime) -> Self {
        let with = |source| {
            Arc::new(SiteRuntime {
                source,
                ..site.clone()
            })
        };
        Self {
            as_client: with(Source::Client),
            as_self: with(Source::Self_),
            may_be_server: leg::may_be_host,
        }
    }

    /// For tests, whose servers are on this machine.
    #[cfg(test)]
    pub(super) fn with_loopback(site: &SiteRuntime) -> Self {
        Self {
            may_be_server: |ip| ip.is_loopback(),
            ..Self::new(site)
        }
    }

    fn of(&self, greeting: &Greeting) -> &Arc<SiteRuntime> {
        if greeting.as_client {
            &self.as_client
        } else {
            &self.as_self
        }
    }
}

/// Serves a flow that a peer has opened, to its end.
pub(super) async fn serve(core: Shared, key: Key, greeting: Greeting, permit: Permit) {
    let (context, sites, peer) = {
        let core = core.borrow();
        let peer = core.peer_name(key.peer).into();
        (Arc::clone(&core.context), Rc::clone(&core.far), peer)
    };
    let ends = Ends {
        client: greeting.client,
        destination: greeting.destination,
        site: Arc::clone(sites.of(&greeting)),
        peer: Some(peer),
    };
    let mut joint = Joint::new(Rc::clone(&core), key, ends, Side::Server, permit);
    if greeting.compressed {
        joint.compress();
    }
    let connected = match begin(&context, &sites, joint.ends(), greeting.dscp) {
        Ok(fd) => connect(&context, &mut joint, fd, greeting.destination).await,
        Err(err) => Err(Some(err)),
    };
    match connected {
        Ok(()) => joint.run().await,
        Err(Some(err)) => {
            let reason = flow::reason(&err);
            joint.end(reason, code(reason), Some(err));
        }
        Err(None) => joint.end(EndReason::ClientReset, ResetCode::Host, None),
    }
}

fn begin(context: &flow::FlowContext, sites: &Sites, ends: &Ends, dscp: u8) -> io::Result<OwnedFd> {
    if !(sites.may_be_server)(ends.destination.ip()) {
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    let family = Family::of(&ends.destination);
    let leg = ReservedLeg::new(&ends.site, family)?;
    accept::connect(context, leg, family, (ends, dscp), |_| {})
}

/// Waits for the server's answer. Fails without an error where the client is gone meanwhile.
async fn connect(
    context: &flow::FlowContext,
    joint: &mut Joint,
    fd: OwnedFd,
    destination: SocketAddr,
) -> Result<(), Option<io::Error>> {
    let limit = joint.ends().site.timeouts.connect;
    joint.set_leg(fd).map_err(Some)?;
    let joint = &*joint;
    let Some(leg) = joint.leg() else {
        return Err(None);
    };
    tokio::select! {
        answer = flow::connected(leg, &context.unanswered, destination.ip(), limit) => answer.map_err(Some),
        () = joint.reset() => Err(None),
    }
}

fn code(reason: EndReason) -> ResetCode {
    match reason {
        EndReason::Refused => ResetCode::Refused,
        EndReason::Unreachable => ResetCode::Unreachable,
        EndReason::ConnectTimeout => ResetCode::TimedOut,
        EndReason::ServerReset => ResetCode::Host,
        _ => ResetCode::Internal,
    }
}
