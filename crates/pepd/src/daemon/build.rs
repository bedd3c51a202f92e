//! Construction of the daemon: every step that can fail, before any connection is accepted.

use std::{net::SocketAddr, sync::Arc};

use pep_core::{
    budget::MemoryBudget,
    config::{Addresses, Config},
    relay::RelayLimits,
};
use pepd_intercept::{
    Interception, MidwayTask, defer::DeferTask, neigh::NeighbourWatch, program::runner::Runner,
    setup,
};
use pepd_relay::{
    arena::{Arena, Geometry},
    flow::{FlowContext, Silence},
    limits::{Admission, descriptors, flow_cap},
    outage::LinkWatch,
    share::SharedLink,
    survive::{
        claim::{self, Claim},
        inheritance::Inheritance,
        keeper::Keeper,
    },
};
use pepd_sys::{
    congestion::Controls,
    held::HeldLegs,
    leg::{self, SiteRuntime},
    marks::MarkSet,
    privileges::{self, Phase, calls::Programs},
    stats::Counters,
    threads::{self, IdleLoop},
};
use pepd_tunnel::{
    Inherited, Tunnels,
    boosted::{self, Boosters},
    setup::Prepared,
};
use units::counted;

use super::{
    DaemonError, Role,
    beside::{Beside, Followers},
    chores::Chores,
    redirected::Redirected,
    run::Daemon,
    spare::Spare,
    takeover::{self, Legs, TakenOver},
};
use crate::{accept::Listener, workers::Workers};

pub(super) async fn build(
    config: &Config,
    descriptors: u64,
    role: Role,
    runner: Runner,
    keeper: Option<Keeper>,
) -> Result<Daemon, DaemonError> {
    setup::check_capabilities().map_err(DaemonError::Intercept)?;
    let (claim, keepers) = Claim::take(config, keeper.as_ref().map(Keeper::id)).await?;
    if let Ok(Some((process, interface))) = claim::rival(config) {
        tracing::warn!(
            "another pepd (process {process}) also takes connections of {interface}, and which of the two gets one is \
             undefined: stop one, or give each its own interfaces (`intercept.lan`)"
        );
    }
    let succeeds = !keepers.is_empty();
    if !succeeds && matches!(role, Role::Worker { again: true, .. }) {
        tracing::error!(
            "previous process and keeper have ended: nothing to take over, open flows are lost; \
             look for the OOM killer in dmesg"
        );
    }
    let mut inheritance = Inheritance::take(&keepers).map_err(DaemonError::TakeOver)?;
    inheritance.end_keepers();
    // From here on this process's keeper has what was inherited; if the start fails, it stays for
    // the next one.
    let ours = KeptOnFailure(succeeds, Some((claim, keeper)));
    // Before their names are used again.
    bpf_cc::remove_left_by(&inheritance.take_maps());
    let controls = Controls::obtain(config)?;
    // Threads inherit the privileges of their creator.
    confine(config);
    let threads = Workers::threads().map_err(DaemonError::system("start the workers"))?;
    let followers = Followers::default();
    let clamps = Arc::clone(&followers.clamps);
    let sites = SiteRuntime::all(config, &controls, &clamps);
    let rules = followers.clone().begin(Arc::new(config.clone()));
    let rules = tokio::spawn(rules);
    // Sockets of tunnels are new, and so are their sessions.
    let client_mark = MarkSet::new(config.intercept.marks).client_leg();
    let addresses = addresses(&sites);
    let identity = config.identity.as_ref();
    let tunnel = identity.and_then(|identity| identity.listen);
    let ports: Vec<u16> = addresses
        .iter()
        .chain(&tunnel)
        .map(SocketAddr::port)
        .collect();
    inheritance.close_conflicting(&ports, &addresses, client_mark);
    let tunnels = Prepared::new(config, &controls, &clamps, inheritance.take_paths())?;
    let tunnels = tunnels.map(|prepared| {
        let threads = prepared.threads()?;
        Ok((prepared, threads))
    });
    let tunnels = tunnels.transpose();
    let tunnels = tunnels.map_err(DaemonError::system("start the tunnels"))?;
    let boosts = config.boosted_sites().next();
    let boosters = boosts.map(|_| boosted::Prepared::new());
    let boosters = boosters.transpose();
    let boosters = boosters.map_err(DaemonError::system("start the boosters"))?;
    Interception::hold_clear(config)
        .await
        .map_err(DaemonError::Intercept)?;
    if !succeeds {
        Interception::clear_leftovers(config)
            .await
            .map_err(DaemonError::Intercept)?;
    }
    let listeners = listeners(&sites, &mut inheritance)?;
    let config = Arc::new(config.clone());
    // A panic in it does not affect the start.
    let _done = rules.await;
    let obstacles = Arc::clone(&followers.obstacles);
    let interception = Interception::install(&config, succeeds, obstacles).await;
    let mut interception = interception.map_err(DaemonError::Intercept)?;
    let prepared = Parts {
        listeners,
        threads,
        tunnels,
        boosters,
        inheritance,
        discards: matches!(role, Role::Worker { discards: true, .. }),
    };
    match start(&config, descriptors, &sites, prepared, &mut interception).await {
        Ok((context, defer, midway, workers, tunnels, boosters)) => {
            let (claim, keeper) = ours.into_inner();
            Ok(Daemon {
                claim,
                controls,
                neighbours: Some(neighbour_watch(&config, &context, defer.as_ref())),
                redirected: Redirected::new(&config),
                beside: Beside::new(&config, followers),
                config,
                context,
                interception,
                defer,
                midway,
                workers,
                tunnels,
                boosters,
                sites,
                descriptors,
                spare: Spare::default(),
                chores: Chores::default(),
                runner: Some(runner),
                keeper,
            })
        }
        Err(err) => {
            if !succeeds {
                interception.remove_or_warn().await;
            }
            Err(err)
        }
    }
}

/// Drops the privileges that only the start needs, before this process reads a byte from the
/// network.
fn confine(config: &Config) {
    privileges::limit(Phase::Worker, false);
    privileges::files::confine(config, pepd_tunnel::setup::state(config));
    if let Err(err) = privileges::calls::refuse(Programs::Refused) {
        tracing::info!(error = %err, "system calls are not filtered: pepd may make all");
    }
}

/// A claim and a keeper that survive a failed start, if the keeper holds flows of an earlier
/// process.
struct KeptOnFailure(bool, Option<(Claim, Option<Keeper>)>);

impl KeptOnFailure {
    fn into_inner(mut self) -> (Claim, Option<Keeper>) {
        self.1.take().expect("the claim has one owner")
    }
}

impl Drop for KeptOnFailure {
    fn drop(&mut self) {
        if let Some((claim, Some(keeper))) = self.1.take().filter(|_| self.0) {
            keeper.leave();
            // The keeper shares the table of descriptors: closed here, it would no longer identify
            // the sockets that it keeps.
            std::mem::forget(claim);
        }
    }
}

/// Parts created before the interception.
struct Parts {
    listeners: Vec<Vec<Listener>>,
    threads: Vec<IdleLoop>,
    tunnels: Option<(Prepared, Vec<IdleLoop>)>,
    boosters: Option<boosted::Prepared>,
    inheritance: Inheritance,
    /// True if flows of earlier processes are not taken over.
    discards: bool,
}

type Started = (
    Arc<FlowContext>,
    Option<DeferTask>,
    Option<MidwayTask>,
    Workers,
    Option<Tunnels>,
    Option<Boosters>,
);

/// Creates the parts that need the interception. No connection is accepted before the workers run.
async fn start(
    config: &Arc<Config>,
    descriptors: u64,
    sites: &[Arc<SiteRuntime>],
    parts: Parts,
    interception: &mut Interception,
) -> Result<Started, DaemonError> {
    let Parts {
        mut listeners,
        threads,
        tunnels,
        boosters,
        inheritance,
        discards,
    } = parts;
    let defer = interception
        .defer_task(config, sites)
        .await
        .map_err(DaemonError::Intercept)?;
    let held = defer.as_ref().map(DeferTask::held_legs);
    let other_marks = interception.other_marks(config);
    let mut tuns = interception.take_packet_tuns();
    let boosted = tuns.split_off_boosted();
    let boosted = boosted.map_err(DaemonError::system("start the boosters"))?;
    // From here on an error closes the sockets of flows: no step may need what can run out.
    let (mut context, legs) = context(config, descriptors, held, inheritance, discards)?;
    context.other_marks = other_marks;
    let context = Arc::new(context);
    let midway = interception.midway_task(config, &context.counters);
    let reserved = listeners.iter().flatten().map(Listener::reserved_legs);
    let reserved = reserved.sum::<usize>() + usize::from(defer.is_some());
    let later = descriptors::later(reserved);
    let taken = legs.map(|legs| takeover::flows(config, &context, sites, legs));
    let TakenOver {
        split,
        in_tunnels,
        for_tunnels,
    } = taken.unwrap_or_default();
    let inherited = Inherited {
        survivors: in_tunnels,
        sites: sites.to_vec(),
    };
    let boosters = boosters.map(|prepared| Boosters::start(config, prepared, boosted, &context));
    let tunnels = match tunnels {
        Some(prepared) => Some(Tunnels::start(prepared, inherited, tuns, &context)),
        None => {
            takeover::lose(&context, &inherited.survivors);
            None
        }
    };
    if let Some(tunnels) = &tunnels {
        for listener in listeners.iter_mut().flatten() {
            listener.route = tunnels.route(listener.site.id);
        }
        for client in for_tunnels {
            client.hand_over(tunnels, &context);
        }
    }
    let workers = Workers::start(&context, threads, listeners, split)
        .map_err(DaemonError::system("start the workers"))?;
    let others = descriptors::open() + later;
    let by_descriptors = flow_cap(config, descriptors, others);
    let slots = context.arena.layout().slots();
    let cap = by_descriptors.min(slots.saturating_sub(Addresses::HERE.slack_flows));
    let per_host = config.limits.flows_per_host(cap);
    context.admission.set_caps(cap, per_host);
    if by_descriptors < config.limits.flows {
        descriptors::warn_of_few(config, cap, descriptors, others);
    } else if cap < by_descriptors {
        // The cgroup has got more memory since.
        tracing::warn!(
            "the memory of flows, allocated at the start, has room for {}: restart pepd for more",
            counted(cap.into(), "flow")
        );
    }
    Ok((context, defer, midway, workers, tunnels, boosters))
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
    let rate = config.link.as_ref()?.rate?;
    let interface = config.counted_interface().map(str::to_owned);
    config
        .shares_link()
        .then(|| SharedLink::new(rate, interface))
}

/// Returns the flow context, with the sockets of flows to be taken over.
fn context(
    config: &Config,
    descriptors: u64,
    held: Option<Arc<HeldLegs>>,
    inheritance: Inheritance,
    discards: bool,
) -> Result<(FlowContext, Option<Legs>), DaemonError> {
    let limits = &config.limits;
    // Other needs for descriptors are not known yet.
    let cap = flow_cap(config, descriptors, 0);
    let geometry = Geometry {
        slots: cap.saturating_add(Addresses::HERE.slack_flows),
        extent: Addresses::HERE.extent(cap, extent(config), config.extent_min()),
        initial: limits.ring_initial.bytes(),
    };
    let counters = Arc::new(Counters::default());
    let client_mark = MarkSet::new(config.intercept.marks).client_leg();
    let inherited = (!inheritance.is_empty()).then(|| inheritance.into_flows(client_mark));
    let (arena, legs) = takeover::arena(
        geometry,
        config.extent_min(),
        inherited,
        discards,
        &counters,
    );
    let arena = match arena {
        Some(arena) => arena,
        None => Arena::new(geometry).map_err(DaemonError::Rings)?,
    };
    counters.update(|stats| stats.restarts = arena.generation() - 1);
    if let Some(held) = held.as_ref().filter(|_| legs.is_some()) {
        held.succeed();
    }
    let context = FlowContext {
        budget: Arc::new(MemoryBudget::new(limits.memory.bytes())),
        limits: RelayLimits {
            ring_initial: limits.ring_initial.bytes(),
            ring_max: limits.ring_max.bytes().min(arena.layout().extent_bytes()),
            turn_bytes: limits.relay_budget.bytes(),
        },
        busy_poll: limits.busy_poll,
        admission: Admission::new(cap, Arc::clone(&counters)),
        counters,
        held,
        other_marks: None,
        end_lines: Default::default(),
        client_ports: Default::default(),
        unanswered: Arc::default(),
        silence: Silence::new(config.link.as_ref().and_then(|link| link.rtt)),
        heartbeat: Default::default(),
        outage: LinkWatch::new(config, Some(Arc::clone(&arena))),
        link: shared_link(config),
        watchers: Arc::default(),
        recorders: Arc::default(),
        arena,
    };
    Ok((context, legs))
}

/// Returns the size of the largest ring, with room for the buffers of a flow in a tunnel.
fn extent(config: &Config) -> u64 {
    let ring_max = config.limits.ring_max.bytes();
    if config.peers.is_empty() {
        ring_max
    } else {
        ring_max.max(pepd_tunnel::setup::extent(config))
    }
}

/// Returns the addresses of the sites' listeners.
fn addresses(sites: &[Arc<SiteRuntime>]) -> Vec<SocketAddr> {
    let all = sites.iter().flat_map(|site| {
        let families = setup::families();
        families.map(|family| SocketAddr::new(family.loopback(), site.port))
    });
    all.collect()
}

/// Returns the listeners of each worker.
fn listeners(
    sites: &[Arc<SiteRuntime>],
    inheritance: &mut Inheritance,
) -> Result<Vec<Vec<Listener>>, DaemonError> {
    let mut workers: Vec<_> = (0..threads::count()).map(|_| Vec::new()).collect();
    for site in sites {
        for family in setup::families() {
            let address = SocketAddr::new(family.loopback(), site.port);
            let inherited = inheritance
                .take_listeners(address, workers.len())
                .map_err(DaemonError::TakeOver)?;
            let sockets = leg::listeners(site, family, workers.len(), inherited);
            let sockets = sockets.map_err(|err| DaemonError::Listen {
                site: site.name.clone(),
                address: address.to_string(),
                err,
            })?;
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
