//! Everything that can fail, before any connection is accepted.

use std::{net::SocketAddr, sync::Arc};

use pep_core::{budget::MemoryBudget, config::Config, relay::RelayLimits};
use socket2::Socket;

use super::{DaemonError, chores::Chores, descriptors, run::Daemon, spare::Spare};
use crate::{
    accept::Listener,
    arena::{Arena, Geometry},
    congestion::{Controls, privileges},
    flow::FlowContext,
    intercept::{
        Interception, claim::Claim, defer::DeferTask, held::HeldLegs, neigh::NeighbourWatch, setup,
    },
    leg::{self, Family, SiteRuntime},
    limits::{Admission, flow_cap},
    marks::MarkSet,
    outage::LinkWatch,
    share::SharedLink,
    stats::Counters,
    tunnel::{self, Inherited, Tunnels, setup::Prepared},
    workers::Workers,
};

/// Flows that the kernel had answered for us when the gate closed: until the rule is in place,
/// at 10,000 a second, for 100 ms.
const SLACK_FLOWS: u32 = 1024;

pub(super) async fn build(config: &Config, descriptors: u64) -> Result<Daemon, DaemonError> {
    setup::check_capabilities().map_err(DaemonError::Intercept)?;
    let claim = Claim::take(config).await?;
    let controls = Controls::obtain(config)?;
    privileges::drop_those_of_loading(&controls);
    let sites = SiteRuntime::all(config, &controls);
    let tunnels = Prepared::new(config, &controls)?;
    Interception::clear_leftovers(config)
        .await
        .map_err(DaemonError::Intercept)?;
    let listeners = listeners(&sites)?;
    let config = Arc::new(config.clone());
    let drain = config.drain;
    let mut interception = Interception::install(&config)
        .await
        .map_err(DaemonError::Intercept)?;
    let prepared = (listeners, tunnels);
    match start(&config, descriptors, &sites, prepared, &mut interception) {
        Ok((context, defer, workers, tunnels)) => Ok(Daemon {
            claim,
            controls,
            neighbours: Some(neighbour_watch(&config, &context, defer.as_ref())),
            config,
            context,
            interception,
            defer,
            workers,
            tunnels,
            sites,
            drain,
            spare: Spare::default(),
            chores: Chores::default(),
        }),
        Err(err) => {
            interception.remove_or_warn().await;
            Err(err)
        }
    }
}

type Started = (
    Arc<FlowContext>,
    Option<DeferTask>,
    Workers,
    Option<Tunnels>,
);

/// What needs the interception in place. Nobody accepts before the workers run.
fn start(
    config: &Arc<Config>,
    descriptors: u64,
    sites: &[Arc<SiteRuntime>],
    (mut listeners, tunnels): (Vec<Vec<Listener>>, Option<Prepared>),
    interception: &mut Interception,
) -> Result<Started, DaemonError> {
    let defer = interception
        .defer_task(config, sites)
        .map_err(DaemonError::Intercept)?;
    let held = defer.as_ref().map(DeferTask::held_legs);
    let context = context(config, descriptors, held)?;
    let later = descriptors::later(&listeners);
    let tunnels = tunnels
        .map(|prepared| Tunnels::start(prepared, Inherited::default(), &context))
        .transpose()
        .map_err(DaemonError::system("start the tunnels"))?;
    if let Some(tunnels) = &tunnels {
        for listener in listeners.iter_mut().flatten() {
            listener.route = tunnels.route(listener.site.id);
        }
    }
    let workers =
        Workers::start(&context, listeners).map_err(DaemonError::system("start the workers"))?;
    let others = descriptors::open() + later;
    let cap = flow_cap(&config.limits, descriptors, others);
    context.admission.set_cap(cap);
    if cap < config.limits.flows {
        descriptors::warn_of_few(&config.limits, cap, descriptors, others);
    }
    Ok((context, defer, workers, tunnels))
}

fn neighbour_watch(
    config: &Config,
    context: &FlowContext,
    defer: Option<&DeferTask>,
) -> NeighbourWatch {
    NeighbourWatch::new(
        Arc::clone(&context.unanswered),
        defer.map(DeferTask::held_listener),
        MarkSet::new(config.intercept.marks).server_leg(),
    )
}

fn shared_link(config: &Config) -> Option<Arc<SharedLink>> {
    let link = config.link.as_ref();
    let mut sites = config.sites.iter().map(|(_, site)| site);
    let rate = link?.rate.filter(|_| sites.any(|site| site.shares(link)));
    rate.map(SharedLink::new)
}

fn context(
    config: &Config,
    descriptors: u64,
    held: Option<Arc<HeldLegs>>,
) -> Result<Arc<FlowContext>, DaemonError> {
    let limits = &config.limits;
    // What else needs descriptors is not known yet.
    let cap = flow_cap(limits, descriptors, 0);
    let geometry = Geometry {
        slots: cap.saturating_add(SLACK_FLOWS),
        extent: extent(config),
        initial: limits.ring_initial.bytes(),
    };
    let counters = Arc::new(Counters::default());
    Ok(Arc::new(FlowContext {
        arena: Arena::new(geometry).map_err(DaemonError::Rings)?,
        budget: Arc::new(MemoryBudget::new(limits.memory.bytes())),
        limits: RelayLimits {
            ring_initial: limits.ring_initial.bytes(),
            ring_max: limits.ring_max.bytes(),
            turn_bytes: limits.relay_budget.bytes(),
        },
        busy_poll: limits.busy_poll,
        admission: Admission::new(cap, Arc::clone(&counters)),
        counters,
        held,
        unanswered: Arc::default(),
        outage: LinkWatch::new(config),
        link: shared_link(config),
    }))
}

/// Room for the largest ring, and for what a flow in a tunnel may hold.
fn extent(config: &Config) -> u64 {
    let ring_max = config.limits.ring_max.bytes();
    if config.peers.is_empty() {
        ring_max
    } else {
        ring_max.max(tunnel::setup::extent(config))
    }
}

/// Those of each worker.
fn listeners(sites: &[Arc<SiteRuntime>]) -> Result<Vec<Vec<Listener>>, DaemonError> {
    let mut workers: Vec<_> = (0..Workers::count()).map(|_| Vec::new()).collect();
    for site in sites {
        for family in setup::families() {
            let sockets = bind(site, family, workers.len())?;
            for (listeners, socket) in workers.iter_mut().zip(sockets) {
                let site = Arc::clone(site);
                listeners.push(Listener {
                    site,
                    family,
                    socket,
                    route: None,
                });
            }
        }
    }
    Ok(workers)
}

fn bind(site: &SiteRuntime, family: Family, count: usize) -> Result<Vec<Socket>, DaemonError> {
    leg::listeners(site, family, count).map_err(|err| DaemonError::Listen {
        site: site.name.clone(),
        address: SocketAddr::new(family.loopback(), site.port).to_string(),
        err,
    })
}
