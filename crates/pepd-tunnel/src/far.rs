//! Start of a flow at the server's end: pepd connects to the destination that the peer names.

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd},
    rc::Rc,
    sync::Arc,
};

use pep_core::{
    reach::{Extent, Forbidden, Reach, Request},
    relay::Side,
    site::Source,
    stats::EndReason,
    stream_header::StreamHeader,
};
use pepd_relay::{
    flow::{self, FlowContext, FlowInfo},
    limits::{Permit, Resource},
};
use pepd_sys::{
    leg::{Family, FromSyn, ReservedLeg, SiteRuntime},
    places::Places,
    site_counters::SiteCounters,
};
use socket2::SockRef;
use tokio::time::timeout;
use tunnel::{session::Unreached, wire::ResetCode};

use super::{
    core::{Core, Shared},
    flow::Joint,
    leg::Leg,
    register,
    table::Policy,
};
use crate::table::Key;

/// The two ways to make server legs: from the client's address, and from pepd's own.
#[derive(Debug)]
pub(super) struct Sites {
    as_client: Arc<SiteRuntime>,
    as_self: Arc<SiteRuntime>,
    servers: Box<dyn Servers>,
}

/// Network of the servers.
pub(super) trait Servers: fmt::Debug + Send {
    /// Decides whether a peer of that reach may open a flow.
    ///
    /// # Errors
    /// The reason for which it may not.
    fn check(&self, reach: &Reach, request: &Request) -> Result<(), Forbidden>;

    /// Returns the extent of the routes of a family.
    fn extent(&self, _family: Family) -> Extent {
        Extent::Beyond
    }

    /// Begins to connect a leg with that DSCP. Calls `publish` with the cookie of each socket
    /// before it connects.
    ///
    /// # Errors
    /// As connect(2).
    fn connect(
        &self,
        context: &FlowContext,
        ends: &FlowInfo,
        dscp: u8,
        publish: &dyn Fn(io::Result<u64>),
    ) -> io::Result<Box<dyn Leg>>;
}

impl Servers for Places {
    fn check(&self, reach: &Reach, request: &Request) -> Result<(), Forbidden> {
        reach.check(request, |address| self.of(address))
    }

    fn extent(&self, family: Family) -> Extent {
        Self::extent(self, family)
    }

    fn connect(
        &self,
        context: &FlowContext,
        ends: &FlowInfo,
        dscp: u8,
        publish: &dyn Fn(io::Result<u64>),
    ) -> io::Result<Box<dyn Leg>> {
        connect_by_kernel(context, ends, dscp, publish)
    }
}

/// Begins to connect a leg as [`Servers::connect`] does.
///
/// # Errors
/// As connect(2).
pub(super) fn connect_by_kernel(
    context: &FlowContext,
    ends: &FlowInfo,
    dscp: u8,
    publish: &dyn Fn(io::Result<u64>),
) -> io::Result<Box<dyn Leg>> {
    let family = Family::from_address(&ends.destination);
    let leg = ReservedLeg::new(&ends.site, family)?;
    ends.site.server.set_keepalive_or_warn(leg.as_fd());
    let publish = |leg: BorrowedFd<'_>| publish(SockRef::from(&leg).cookie());
    let syn = FromSyn { dscp, mark: 0 };
    let leg = flow::connect(context, leg, family, (ends, syn), publish)?;
    register(leg)
}

impl Sites {
    /// Creates the value with the given network of servers.
    pub(super) fn new(site: &SiteRuntime, servers: Box<dyn Servers>) -> Self {
        let with = |source| {
            Arc::new(SiteRuntime {
                source,
                ..site.clone()
            })
        };
        Self {
            as_client: with(Source::Client),
            as_self: with(Source::Self_),
            servers,
        }
    }

    /// Decides whether a peer of that reach may open a flow.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub(super) fn check(&self, reach: &Reach, request: &Request) -> Result<(), Forbidden> {
        self.servers.check(reach, request)
    }

    /// Returns the hosts that flows of a peer do not reach by this machine, given the extent of
    /// routes of IPv4 and of IPv6.
    pub(super) fn unreached(reach: &Reach, routes: [Extent; 2]) -> Unreached {
        let [v4, v6] = routes;
        Unreached {
            v4: !reach.has_any(true, v4),
            v6: !reach.has_any(false, v6),
        }
    }

    /// Returns the extent of routes of IPv4 and of IPv6.
    pub(super) fn routes(&self) -> [Extent; 2] {
        Family::ALL.map(|family| self.servers.extent(family))
    }

    /// Returns the counters of peers' flows.
    pub(super) fn site_counters(&self) -> &Arc<SiteCounters> {
        &self.as_self.site_counters
    }

    /// Returns the custody policy of their bytes.
    pub(super) fn policy(&self) -> Policy {
        Policy::for_site(&self.as_self)
    }

    /// Returns the site by which a server leg is made, from the client's address or pepd's own.
    pub(super) fn with(&self, as_client: bool) -> Arc<SiteRuntime> {
        Arc::clone(if as_client {
            &self.as_client
        } else {
            &self.as_self
        })
    }
}

/// Progress of connecting to a server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Connecting {
    /// No leg yet; the DSCP that it will have.
    NotBegun(u8),
    /// connect(2) has been called.
    Begun,
}

/// Serves a flow that a peer has opened, until it ends.
pub(super) async fn serve(core: Shared, key: Key, stream_header: StreamHeader, permit: Permit) {
    let ends = {
        let core = core.borrow();
        FlowInfo {
            client: stream_header.client,
            destination: stream_header.destination,
            site: core.far.with(stream_header.as_client),
            peer: Some(core.peer_name(key.peer).into()),
        }
    };
    let mut joint = Joint::new(Rc::clone(&core), key, ends, Side::Server, permit);
    if stream_header.compressed {
        joint.compress();
    }
    proceed(
        core,
        key,
        joint,
        Some(Connecting::NotBegun(stream_header.dscp)),
    )
    .await;
}

/// Serves a flow in any state of connecting, until it ends.
pub(super) async fn proceed(
    core: Shared,
    key: Key,
    mut joint: Joint,
    connecting: Option<Connecting>,
) {
    let connected = match connecting {
        None => Ok(()),
        Some(connecting) => connect(&core, key, &mut joint, connecting).await,
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

async fn connect(
    core: &Shared,
    key: Key,
    joint: &mut Joint,
    connecting: Connecting,
) -> Result<(), Option<io::Error>> {
    let context = Arc::clone(&core.borrow().context);
    if let Connecting::NotBegun(dscp) = connecting {
        admitted(core, key, joint).await?;
        let leg = begin(core, key, joint.ends(), dscp)?;
        joint.set_leg(leg);
    }
    match answered(&context, joint).await {
        // A server that resets at once may have sent bytes before.
        Err(Some(err)) if flow::reason(&err) == EndReason::ServerReset => joint.on_broken(err),
        answered => answered?,
    }
    if let Some(entry) = core.borrow_mut().entry(key) {
        entry.publish_connected();
    }
    Ok(())
}

/// Waits until the peer may begin another connection. Fails without an error if the client has
/// closed in the meantime: that costs no socket.
async fn admitted(core: &Shared, key: Key, joint: &Joint) -> Result<(), Option<io::Error>> {
    let limit = joint.ends().site.timeouts.connect;
    let client = joint.ends().client.ip();
    let admitted = timeout(limit, Core::admit_opening(core, key.peer, client));
    tokio::select! {
        biased;
        () = joint.reset() => Err(None),
        admitted = admitted => {
            admitted.map_err(|_elapsed| Some(io::Error::from_raw_os_error(libc::ETIMEDOUT)))
        }
    }
}

fn begin(core: &Shared, key: Key, ends: &FlowInfo, dscp: u8) -> io::Result<Box<dyn Leg>> {
    let (context, sites) = {
        let core = core.borrow();
        (Arc::clone(&core.context), Rc::clone(&core.far))
    };
    let leg = sites.servers.connect(&context, ends, dscp, &|cookie| {
        if let Some(entry) = core.borrow_mut().entry(key) {
            entry.publish_leg(cookie);
        }
    });
    leg.inspect_err(|err| {
        if let Some(resource) = Resource::short(err) {
            context.admission.on_short(resource);
        }
    })
}

/// Waits for the server's answer. Fails without an error if the client has closed in the meantime.
async fn answered(context: &FlowContext, joint: &Joint) -> Result<(), Option<io::Error>> {
    let limit = joint.ends().site.timeouts.connect;
    let destination = joint.ends().destination.ip();
    let Some(leg) = joint.leg() else {
        return Err(None);
    };
    tokio::select! {
        biased;
        answer = leg.connected(&context.unanswered, destination, limit) => answer.map_err(Some),
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
