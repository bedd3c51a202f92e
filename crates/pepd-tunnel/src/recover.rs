//! Recovery of the previous process's flows in tunnels from their records.
//!
//! A flow that compresses is lost: the state of its codec was in the memory of that process.

use std::{io, net::SocketAddr, os::fd::OwnedFd, rc::Rc, sync::Arc};

use pep_core::{
    arena::{Counters, Flags, Identity, Kind, SlotState, name_hash},
    parties::Party,
    reach::{Forbidden, Request},
    relay::{Direction, Side},
    stream_header::StreamHeader,
};
use pepd_relay::{
    flow::{FlowInfo, born, rounds::in_rounds},
    survive::Survivor,
};
use pepd_sys::leg::SiteRuntime;
use tunnel::class::Class;

use super::{
    core::Shared,
    far,
    flow::Joint,
    leg::Leg,
    near,
    setup::Prepared,
    table::{Adopted, Policy, RecoverError, StreamOpening},
};
use crate::{custody::Left, table::Key};

/// State left by the previous process.
#[derive(Debug, Default)]
pub struct Inherited<L = OwnedFd> {
    /// Flows in tunnels.
    pub survivors: Vec<Survivor<L>>,
    /// The sites of the current configuration.
    pub sites: Vec<Arc<SiteRuntime>>,
}

/// Reasons for which a flow is lost.
#[derive(Debug, thiserror::Error)]
enum LostError {
    #[error("its peer is no longer configured")]
    Peer,
    #[error("it was compressed, and its codec's state ended with the process")]
    Compressed,
    #[error("its leg is closed")]
    Leg,
    #[error("no site takes it")]
    Site,
    #[error("its peer may not open it: {0}")]
    Forbidden(#[from] Forbidden),
    #[error(transparent)]
    State(#[from] RecoverError),
    #[error("cannot register its leg")]
    System(#[from] io::Error),
}

/// Returns the record of a new flow.
pub(super) fn identity(
    kind: Kind,
    class: Class,
    peer: &str,
    stream_header: &StreamHeader,
) -> Identity {
    Identity {
        kind,
        site: name_hash(&stream_header.site),
        peer: name_hash(peer),
        born: born(),
        token: stream_header.token,
        client: stream_header.client,
        destination: stream_header.destination,
        flags: Flags {
            compressed: stream_header.compressed,
            opened: false,
            as_client: stream_header.as_client,
            answered: false,
            off_link: false,
        },
        class: u64::from(class as u8) | u64::from(stream_header.dscp) << 8,
    }
}

fn class(identity: &Identity) -> (Class, u8) {
    let [class, dscp, ..] = identity.class.to_le_bytes();
    (Class::from_wire(class).unwrap_or(Class::Normal), dscp)
}

/// Marks the peers of resumed flows as up, as they were when the previous process ended. New flows
/// go to them as well until they turn out to be down. To be called before any flow is accepted.
pub(super) fn expect_peers(prepared: &Prepared, inherited: &Inherited) {
    for survivor in &inherited.survivors {
        if let Some((part, index)) = find(prepared, survivor.record.identity.peer) {
            prepared.parts[part].statuses.set(index, true);
        }
    }
}

/// Returns the thread of the peer with that [`name_hash`], and its place there.
fn find(prepared: &Prepared, peer: u64) -> Option<(usize, usize)> {
    let mut parts = prepared.parts.iter().enumerate();
    parts.find_map(|(thread, part)| {
        let mut names = part.peers.iter().map(|(peer, _)| name_hash(&peer.name));
        Some((thread, names.position(|name| name == peer)?))
    })
}

/// Distributes the state to the threads. The first one gets the flows of unknown peers.
pub(super) fn split(prepared: &Prepared, inherited: Inherited) -> Vec<Inherited> {
    let mut split = Vec::new();
    split.resize_with(prepared.parts.len(), || Inherited {
        survivors: Vec::new(),
        sites: inherited.sites.clone(),
    });
    for survivor in inherited.survivors {
        let (thread, _) = find(prepared, survivor.record.identity.peer).unwrap_or_default();
        split[thread].survivors.push(survivor);
    }
    split
}

/// Resumes the inherited flows, in memory and on disk, and counts them. `register` adds legs to the
/// event loop.
pub(super) fn flows<L>(
    core: &Shared,
    (inherited, mut left): (Inherited<L>, Left),
    register: impl Fn(L) -> io::Result<Box<dyn Leg>>,
) {
    let found = left.count();
    let (mut recovered, mut lost, mut repaired) = (0, 0, 0);
    for survivor in inherited.survivors {
        let identity = survivor.record.identity;
        let registered = survivor.try_with(&register).map_err(LostError::from);
        let taken =
            registered.and_then(|survivor| flow(core, &inherited.sites, survivor, &mut left));
        match taken {
            Ok(more) => {
                recovered += 1;
                repaired += more;
            }
            Err(err) => {
                lost += 1;
                let (client, destination): (SocketAddr, SocketAddr) =
                    (identity.client, identity.destination);
                let error = &err as &dyn std::error::Error;
                tracing::warn!(%client, %destination, error, "flow in a tunnel lost in the restart");
                // The peer must not start the flow again.
                let core = &mut *core.borrow_mut();
                let peer = core.peer_of_hash(identity.peer);
                if let Some((peer, _)) = peer.filter(|_| identity.kind == Kind::Far) {
                    core.table(peer).on_lost(identity.token);
                }
            }
        }
    }
    drop_rest(core, found, left);
    if recovered + lost == 0 {
        return;
    }
    core.borrow_mut().await_peers();
    core.borrow().context.counters.update(|stats| {
        stats.flows_recovered += recovered;
        stats.flows_lost_at_restart += lost;
        stats.bytes_corrected += repaired;
    });
    tracing::info!(
        recovered,
        lost,
        repaired,
        "flows in tunnels recovered: they resume in the next session with their peers"
    );
}

/// Deletes the segments on disk that belong to no resumed flow.
fn drop_rest(core: &Shared, found: u64, left: Left) {
    let core = core.borrow();
    let (torn, unknown) = (left.torn, left.count());
    left.rest().for_each(|spot| core.custody.forget(spot));
    core.context
        .counters
        .update(|stats| stats.custody_records_dropped += torn + unknown);
    if found + torn > 0 {
        tracing::info!(
            chunks = found - unknown,
            unknown,
            torn,
            "took over the previous process's custody on disk"
        );
    }
}

/// State of a flow apart from its memory.
struct Found {
    identity: Identity,
    key: Key,
    peer: Arc<str>,
    leg: Option<Box<dyn Leg>>,
    counters: Option<Counters>,
    is_connected: bool,
    adopted: Adopted,
}

fn flow(
    core: &Shared,
    sites: &[Arc<SiteRuntime>],
    mut survivor: Survivor<Box<dyn Leg>>,
    left: &mut Left,
) -> Result<u64, LostError> {
    let identity = survivor.record.identity;
    if identity.flags.compressed {
        return Err(LostError::Compressed);
    }
    let side = if identity.kind == Kind::Near {
        Side::Client
    } else {
        Side::Server
    };
    let leg = survivor.legs[side as usize].take();
    let counters = survivor.counters[side as usize];
    let is_connected = survivor.record.state == SlotState::Relaying;
    if leg.is_some() && counters.is_none() || leg.is_none() && is_connected {
        return Err(LostError::Leg);
    }
    let (index, peer) = core
        .borrow()
        .peer_of_hash(identity.peer)
        .ok_or(LostError::Peer)?;
    let site = named(sites, &identity).filter(|_| side == Side::Client);
    let policy = site.map(|site| Policy::for_site(site));
    let on_disk = left.take(identity.token, Direction::from(side));
    let adopted = core
        .borrow_mut()
        .table(index)
        .recover(survivor, policy, on_disk)?;
    let key = Key {
        peer: index,
        flow: adopted.flow,
    };
    let found = Found {
        identity,
        key,
        peer,
        leg,
        counters,
        is_connected,
        adopted,
    };
    let begun = if side == Side::Client {
        resume_near(core, sites, found)
    } else {
        resume_far(core, found)
    };
    if begun.is_err() {
        core.borrow_mut().table(index).remove(adopted.flow);
    }
    begun.map(|()| adopted.repaired)
}

/// Returns the site that took a flow, or the default site.
fn named<'a>(sites: &'a [Arc<SiteRuntime>], identity: &Identity) -> Option<&'a Arc<SiteRuntime>> {
    let mut named = sites.iter();
    let named = named.find(|site| name_hash(&site.name) == identity.site);
    named.or(sites.last())
}

fn resume_near(core: &Shared, sites: &[Arc<SiteRuntime>], found: Found) -> Result<(), LostError> {
    let (identity, key) = (found.identity, found.key);
    let site = named(sites, &identity).ok_or(LostError::Site)?;
    let mut joint = found.joint(core, Arc::clone(site), Side::Client);
    let (leg, counters) = found.leg.zip(found.counters).ok_or(LostError::Leg)?;
    joint.take_over(leg, found.adopted.shut, &counters);
    let (class, dscp) = class(&identity);
    let stream_header = StreamHeader {
        token: identity.token,
        resume: None,
        destination: identity.destination,
        client: identity.client,
        as_client: identity.flags.as_client,
        compressed: false,
        dscp,
        site: site.name.clone(),
    };
    let announcement = StreamOpening {
        class,
        site: site.id.0.into(),
        born: identity.born,
        stream_header,
    };
    if let Some(entry) = core.borrow_mut().entry(key) {
        entry.announce(announcement);
    }
    let goes_on = identity.flags.opened;
    let party = Party::host(identity.client.ip());
    let flow = near::proceed(Rc::clone(core), key, joint, goes_on);
    tokio::task::spawn_local(in_rounds(party, flow));
    Ok(())
}

fn resume_far(core: &Shared, found: Found) -> Result<(), LostError> {
    let (identity, key) = (found.identity, found.key);
    let site = core.borrow().far.with(identity.flags.as_client);
    let begins = || {
        // The previous process may have had another configuration.
        let request = Request {
            client: identity.client.ip(),
            destination: identity.destination,
            as_client: identity.flags.as_client,
            compressed: identity.flags.compressed,
        };
        core.borrow().may_open(key.peer, &request)?;
        Ok::<_, LostError>(Some(far::Connecting::NotBegun(class(&identity).1)))
    };
    let mut joint = found.joint(core, site, Side::Server);
    let connecting = match found.leg.zip(found.counters) {
        // connect(2) was not called yet, or failed. No byte has moved, and another attempt will get
        // the error.
        Some((_, counters)) if !found.is_connected && counters.closed => begins()?,
        Some((leg, counters)) => {
            joint.take_over(leg, found.adopted.shut, &counters);
            (!found.is_connected).then_some(far::Connecting::Begun)
        }
        None => begins()?,
    };
    let party = core.borrow().party(key.peer, identity.client.ip());
    let flow = far::proceed(Rc::clone(core), key, joint, connecting);
    tokio::task::spawn_local(in_rounds(party, flow));
    Ok(())
}

impl Found {
    /// Joins the flow's stream with its leg, which is the client's or the server's by `side`.
    fn joint(&self, core: &Shared, site: Arc<SiteRuntime>, side: Side) -> Joint {
        let identity = &self.identity;
        let ends = FlowInfo {
            client: identity.client,
            destination: identity.destination,
            site,
            peer: (side == Side::Server).then(|| Arc::clone(&self.peer)),
        };
        let admission = Arc::clone(&core.borrow().context.admission);
        let permit = admission.admit(&ends.site.site_counters, ends.host());
        Joint::new(Rc::clone(core), self.key, ends, side, permit).born(identity.born)
    }
}
