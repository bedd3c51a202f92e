//! How a flow begins where its server is: the peer says where it goes, and we connect.

use std::{fmt, io, net::IpAddr, os::fd::BorrowedFd, rc::Rc, sync::Arc};

use pep_core::{greeting::Greeting, relay::Side, site::Source, stats::EndReason};
use pepd_relay::{
    flow::{self, Ends, FlowContext},
    limits::Permit,
};
use pepd_sys::{
    leg::{self, Family, FromSyn, ReservedLeg, SiteRuntime},
    tally::Tally,
};
use socket2::SockRef;
use tunnel::wire::ResetCode;

use super::{core::Shared, flow::Joint, leg::Leg, register, table::Policy};
use crate::table::Key;

/// What server legs of peers' flows are made by: from the client's address, and from ours.
#[derive(Debug)]
pub(super) struct Sites {
    as_client: Arc<SiteRuntime>,
    as_self: Arc<SiteRuntime>,
    servers: Box<dyn Servers>,
}

/// Where the servers of peers' flows are.
pub(super) trait Servers: fmt::Debug + Send {
    /// Begins to connect a leg with that DSCP. `publish` gets the cookie of each socket before it connects.
    ///
    /// # Errors
    /// When there may be no such server, or as connect(2).
    fn connect(
        &self,
        context: &FlowContext,
        ends: &Ends,
        dscp: u8,
        publish: &dyn Fn(io::Result<u64>),
    ) -> io::Result<Box<dyn Leg>>;
}

/// Those that the kernel reaches.
#[derive(Debug)]
struct Reachable {
    /// Whether there may be a server for peers' flows.
    may_be: fn(IpAddr) -> bool,
}

impl Servers for Reachable {
    fn connect(
        &self,
        context: &FlowContext,
        ends: &Ends,
        dscp: u8,
        publish: &dyn Fn(io::Result<u64>),
    ) -> io::Result<Box<dyn Leg>> {
        if !(self.may_be)(ends.destination.ip()) {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        }
        let family = Family::of(&ends.destination);
        let leg = ReservedLeg::new(&ends.site, family)?;
        let publish = |leg: BorrowedFd<'_>| publish(SockRef::from(&leg).cookie());
        let syn = FromSyn { dscp, mark: 0 };
        register(flow::connect(context, leg, family, (ends, syn), publish)?)
    }
}

impl Sites {
    pub(super) fn new(site: &SiteRuntime) -> Self {
        let may_be = leg::may_be_host;
        Self::with_servers(site, Box::new(Reachable { may_be }))
    }

    /// The same with these servers.
    pub(super) fn with_servers(site: &SiteRuntime, servers: Box<dyn Servers>) -> Self {
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

    /// What peers' flows have come to.
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.as_self.tally
    }

    /// What becomes of their bytes while the link is away.
    pub(super) fn policy(&self) -> Policy {
        Policy::of(&self.as_self)
    }

    /// For tests, whose servers are on this machine.
    #[cfg(test)]
    pub(super) fn with_loopback(site: &SiteRuntime) -> Self {
        let may_be = |ip: IpAddr| ip.is_loopback();
        Self::with_servers(site, Box::new(Reachable { may_be }))
    }

    /// What a server leg is made by, from the client's address or ours.
    pub(super) fn with(&self, as_client: bool) -> Arc<SiteRuntime> {
        Arc::clone(if as_client {
            &self.as_client
        } else {
            &self.as_self
        })
    }
}

/// How far connecting to a server has come.
#[derive(Debug, Clone, Copy)]
pub(super) enum Connecting {
    /// There is no leg. With the DSCP that it is to have.
    NotBegun(u8),
    /// The leg was told to.
    Begun,
}

/// Serves a flow that a peer has opened, to its end.
pub(super) async fn serve(core: Shared, key: Key, greeting: Greeting, permit: Permit) {
    let ends = {
        let core = core.borrow();
        Ends {
            client: greeting.client,
            destination: greeting.destination,
            site: core.far.with(greeting.as_client),
            peer: Some(core.peer_name(key.peer).into()),
        }
    };
    let mut joint = Joint::new(Rc::clone(&core), key, ends, Side::Server, permit);
    if greeting.compressed {
        joint.compress();
    }
    go_on(core, key, joint, Some(Connecting::NotBegun(greeting.dscp))).await;
}

/// Serves a flow to its end that is about to connect, or connecting, or connected.
pub(super) async fn go_on(
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
        let leg = begin(core, key, joint.ends(), dscp)?;
        joint.set_leg(leg);
    }
    answered(&context, joint).await?;
    if let Some(entry) = core.borrow_mut().entry(key) {
        entry.publish_connected();
    }
    Ok(())
}

fn begin(core: &Shared, key: Key, ends: &Ends, dscp: u8) -> io::Result<Box<dyn Leg>> {
    let (context, sites) = {
        let core = core.borrow();
        (Arc::clone(&core.context), Rc::clone(&core.far))
    };
    sites.servers.connect(&context, ends, dscp, &|cookie| {
        if let Some(entry) = core.borrow_mut().entry(key) {
            entry.publish_leg(cookie);
        }
    })
}

/// Waits for the server's answer. Fails without an error where the client is gone meanwhile.
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
