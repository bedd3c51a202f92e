//! Everything that can fail, before any connection is accepted.

use std::{fs, net::SocketAddr, sync::Arc, thread};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pep_core::{
    budget::MemoryBudget,
    config::{Config, Limits},
    relay::RelayLimits,
};
use socket2::Socket;

use super::{DaemonError, chores::Chores, run::Daemon, spare::Spare};
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
    share::SharedLink,
    stats::Counters,
    tunnel::{self, Tunnels, setup::Prepared},
    workers::Workers,
};

/// Flows that the kernel had answered for us when the gate closed: until the rule is in place,
/// at 10,000 a second, for 100 ms.
const SLACK_FLOWS: u32 = 1024;

/// Signals (a pair of sockets and copies of one), the watch for neighbours, a log that is rotated.
const OTHERS_LATER: usize = 8;

pub(super) async fn build(config: &Config) -> Result<Daemon, DaemonError> {
    setup::check_capabilities().map_err(DaemonError::Intercept)?;
    let descriptors = raise_descriptors();
    let claim = Claim::take(config).await?;
    let controls = Controls::obtain(config)?;
    privileges::drop_those_of_loading(&controls);
    let sites = SiteRuntime::all(config, &controls);
    let tunnels = Prepared::new(config, &controls)?;
    let listeners = listeners(&sites)?;
    let config = Arc::new(config.clone());
    let mut interception = Interception::install(&config)
        .await
        .map_err(DaemonError::Intercept)?;
    let prepared = (listeners, tunnels);
    match start(&config, descriptors, &sites, prepared, &mut interception) {
        Ok((context, defer, workers, tunnels)) => Ok(Daemon {
            claim,
            controls,
            neighbours: Some(neighbour_watch(&config, &context, defer.as_ref())),
            context,
            interception,
            defer,
            workers,
            tunnels,
            sites,
            drain: config.drain,
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
    let later = later_descriptors(&listeners);
    let tunnels = tunnels
        .map(|prepared| Tunnels::start(prepared, &context))
        .transpose()
        .map_err(DaemonError::system("start the tunnels"))?;
    if let Some(tunnels) = &tunnels {
        for listener in listeners.iter_mut().flatten() {
            listener.route = tunnels.route(listener.site.id);
        }
    }
    let workers =
        Workers::start(&context, listeners).map_err(DaemonError::system("start the workers"))?;
    let others = open_descriptors() + later;
    let cap = flow_cap(&config.limits, descriptors, others);
    context.admission.set_cap(cap);
    if cap < config.limits.flows {
        warn_of_few_descriptors(&config.limits, cap, descriptors, others);
    }
    Ok((context, defer, workers, tunnels))
}

fn warn_of_few_descriptors(limits: &Limits, cap: u32, descriptors: u64, others: u64) {
    let others = others.max(limits.descriptors.into());
    let needed = 2 * u64::from(limits.flows) + u64::from(limits.held) + others;
    tracing::warn!(
        flows = cap,
        descriptors,
        needed,
        "descriptors do not suffice for `limits.flows`: further flows will pass unaccelerated; \
         raise the limit (LimitNOFILE=, ulimit -n)"
    );
}

/// Descriptors open now: listeners, event loops, netlink, TUNs.
fn open_descriptors() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64)
}

/// Descriptors of no flow that are opened later.
fn later_descriptors(listeners: &[Vec<Listener>]) -> u64 {
    let reserves: usize = listeners
        .iter()
        .flatten()
        .map(Listener::reserved_legs)
        .sum();
    (reserves + Spare::COUNT + OTHERS_LATER) as u64
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
        arena: Arena::new(geometry).map_err(DaemonError::system("map the memory of the rings"))?,
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

/// As many descriptors as the hard limit allows. Returns how many that are.
fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let Ok((soft, hard)) = limit else { return 1024 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(err) => {
            tracing::warn!(error = %err, limit = soft, "cannot raise the limit of descriptors");
            soft
        }
    }
}

/// Those of each worker.
fn listeners(sites: &[Arc<SiteRuntime>]) -> Result<Vec<Vec<Listener>>, DaemonError> {
    let mut workers: Vec<_> = (0..worker_count()).map(|_| Vec::new()).collect();
    for site in sites {
        for family in families() {
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

fn families() -> impl Iterator<Item = Family> {
    let has = |family: &Family| *family == Family::V4 || setup::has_ipv6();
    Family::ALL.into_iter().filter(has)
}

fn bind(site: &SiteRuntime, family: Family, count: usize) -> Result<Vec<Socket>, DaemonError> {
    leg::listeners(site, family, count).map_err(|err| DaemonError::Listen {
        site: site.name.clone(),
        address: SocketAddr::new(family.loopback(), site.port).to_string(),
        err,
    })
}

/// One per processor, up to what one link can keep busy.
fn worker_count() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(16)
}
