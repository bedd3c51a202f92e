//! Takeover of the previous process's flows.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use pep_core::{
    arena::{Kind, name_hash},
    config::Config,
    site::{FlowKey, Protocol},
};
use pepd_relay::{
    arena::{Arena, Geometry},
    flow::{FlowContext, FlowInfo, Resumed},
    survive::{Survivor, recovery::Recovery},
};
use pepd_sys::{
    leg::{self, SiteRuntime},
    marks::MarkSet,
    stats::Counters,
};
use pepd_tunnel::Tunnels;
use socket2::SockRef;
use units::counted;

/// Sockets of flows, by cookie.
pub(super) type Legs = HashMap<u64, OwnedFd>;

/// Returns the inherited memory of flows, if it is usable, and the sockets of its flows. Otherwise
/// the flows are reset. It must have room for `minimum` bytes in each direction of a flow.
pub(super) fn arena(
    geometry: Geometry,
    minimum: u64,
    inherited: Option<(Option<OwnedFd>, Legs)>,
    discards: bool,
    counters: &Counters,
) -> (Option<Arc<Arena>>, Option<Legs>) {
    let Some((arena, legs)) = inherited else {
        return (None, None);
    };
    let opened = arena.map(|fd| Arena::open(fd, geometry.initial));
    let why = match opened {
        Some(Ok(arena)) if arena.layout().extent_bytes() < minimum => {
            "too small for the new tunnels' flows, or their larger initial rings".to_owned()
        }
        Some(Ok(_)) if discards => {
            "processes ended at once after the takeover, repeatedly".to_owned()
        }
        Some(Ok(arena)) => {
            warn_of_size(&arena, geometry);
            return (Some(arena), Some(legs));
        }
        Some(Err(err)) => err.to_string(),
        None => "memory is missing".to_owned(),
    };
    // Most flows have two.
    let lost = legs.len().div_ceil(2) as u64;
    counters.update(|stats| stats.flows_lost_at_restart += lost);
    tracing::error!(
        flows = lost,
        "previous process's flow memory is unusable, its flows are reset: {why}"
    );
    (None, None)
}

fn warn_of_size(arena: &Arena, geometry: Geometry) {
    let (slots, extent) = (arena.layout().slots(), arena.layout().extent_bytes());
    if slots < geometry.slots || extent < geometry.extent {
        tracing::warn!(
            slots,
            extent,
            "the previous process's flow memory has fewer flows, or smaller rings, than `limits` allow: \
             restart pepd to enlarge it"
        );
    }
}

/// Flows to be taken over.
#[derive(Debug, Default)]
pub(super) struct TakenOver {
    /// Flows with both legs on this machine.
    pub(super) split: Vec<Resumed>,
    /// Flows with one leg on this machine, and a stream to a peer.
    pub(super) in_tunnels: Vec<Survivor>,
    /// Clients that were just accepted, for a tunnel.
    pub(super) for_tunnels: Vec<Accepted>,
}

/// A client leg without published state.
#[derive(Debug)]
pub(super) struct Accepted {
    ends: FlowInfo,
    dscp: u8,
    client: OwnedFd,
}

impl Accepted {
    /// Passes the client to its site's tunnel. Without memory or a tunnel, it is reset.
    pub(super) fn hand_over(self, tunnels: &Tunnels, context: &FlowContext) {
        let route = tunnels.route(self.ends.site.id);
        match route.zip(context.take_memory()) {
            Some((route, memory)) => {
                route.hand_over(context, self.ends, self.dscp, memory, self.client);
                context.counters.update(|stats| stats.flows_recovered += 1);
            }
            None => context
                .counters
                .update(|stats| stats.flows_lost_at_restart += 1),
        }
    }
}

/// Returns the flows to be taken over, from their published state and sockets. Others are reset and
/// counted.
pub(super) fn flows(
    config: &Config,
    context: &FlowContext,
    sites: &[Arc<SiteRuntime>],
    legs: Legs,
) -> TakenOver {
    let client_mark = MarkSet::new(config.intercept.marks).client_leg();
    let recovery = Recovery::new(&context.arena, legs, client_mark);
    let sites = Sites { config, sites };
    let (mut lost, mut repaired) = (recovery.lost, 0);
    let mut taken = TakenOver::default();
    for survivor in recovery.survivors {
        if survivor.record.identity.kind != Kind::Split {
            taken.in_tunnels.push(survivor);
            continue;
        }
        match resume(context, &sites, survivor) {
            Some(flow) => {
                repaired += flow.repaired;
                taken.split.push(flow);
            }
            None => lost += 1,
        }
    }
    for client in recovery.accepted {
        match accepted(&sites, client) {
            Some(client) if sites.is_in_tunnel(&client) => taken.for_tunnels.push(client),
            Some(Accepted { ends, client, .. }) => match Resumed::accepted(context, ends, client) {
                Some(flow) => taken.split.push(flow),
                None => lost += 1,
            },
            None => lost += 1,
        }
    }
    let recovered = taken.split.len() as u64;
    context.counters.update(|stats| {
        stats.flows_recovered += recovered;
        stats.flows_lost_at_restart += lost;
        stats.bytes_corrected += repaired;
    });
    let (restarts, in_tunnels) = (context.arena.generation() - 1, taken.in_tunnels.len());
    let all = counted(recovered, "flow");
    // The tunnels' threads check these, also against custody on disk, and log their own line.
    let later = match in_tunnels as u64 {
        0 => String::new(),
        number => format!("; {} in tunnels to be restored", counted(number, "flow")),
    };
    let none_or = |number: u64| match number {
        0 => "none".to_owned(),
        number => number.to_string(),
    };
    tracing::info!(
        in_tunnels,
        corrected_bytes = repaired,
        restarts,
        "took over {all} from the previous process, {} lost{later}",
        none_or(lost)
    );
    taken
}

/// Resets flows in tunnels when the configuration has no peer.
pub(super) fn lose(context: &FlowContext, survivors: &[Survivor]) {
    if survivors.is_empty() {
        return;
    }
    let lost = survivors.len() as u64;
    context
        .counters
        .update(|stats| stats.flows_lost_at_restart += lost);
    tracing::warn!(
        lost,
        "flows in tunnels are reset: the configuration has no peers"
    );
}

fn resume(context: &FlowContext, sites: &Sites<'_>, survivor: Survivor) -> Option<Resumed> {
    let identity = survivor.record.identity;
    let (client, destination) = (identity.client, identity.destination);
    let site = sites.named(identity.site)?.on_way(identity.flags.off_link);
    let resumed = Resumed::new(context, survivor, site);
    let reported = |err| {
        tracing::warn!(%client, %destination, error = &err as &dyn std::error::Error, "flow lost in takeover");
    };
    resumed.map_err(reported).ok()
}

/// Returns a client whose process ended right after accepting it. A client that has moved bytes is
/// none.
fn accepted(sites: &Sites<'_>, client: OwnedFd) -> Option<Accepted> {
    let socket = SockRef::from(&client);
    let reported = pepd_relay::survive::counters::counters(client.as_fd(), false, false).ok()?;
    let address = socket.peer_addr().ok()?.as_socket()?;
    let destination = socket.local_addr().ok()?.as_socket()?;
    if reported.read + reported.written != 0 {
        tracing::warn!(client = %address, %destination, "flow without published state lost in takeover");
        return None;
    }
    let dscp = leg::syn_dscp(client.as_fd());
    let site = sites.site_of(&FlowKey {
        protocol: Protocol::TCP,
        src: address,
        dst: destination,
        dscp,
        // It was not published.
        interface: "",
    });
    let ends = FlowInfo {
        client: address,
        destination,
        site: site?,
        peer: None,
    };
    Some(Accepted { ends, dscp, client })
}

struct Sites<'a> {
    config: &'a Config,
    sites: &'a [Arc<SiteRuntime>],
}

impl Sites<'_> {
    /// Returns the site with this name, or the last one if it no longer exists.
    fn named(&self, hash: u64) -> Option<Arc<SiteRuntime>> {
        let mut sites = self.sites.iter();
        let named = sites.find(|site| name_hash(&site.name) == hash);
        named.or(self.sites.last()).map(Arc::clone)
    }

    fn site_of(&self, key: &FlowKey<'_>) -> Option<Arc<SiteRuntime>> {
        let id = self.config.sites.find(key);
        let site = self.sites.iter().find(|site| site.id == id);
        site.map(Arc::clone)
    }

    fn is_in_tunnel(&self, client: &Accepted) -> bool {
        self.config.peer_of(client.ends.site.id).is_some()
    }
}
