//! Bytes held for hosts: acknowledged to one host, and not yet acknowledged by the other.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use pep_core::{
    arena::{Identity, Kind, Record, name_hash},
    config::Config,
    relay::{Direction, Side},
};
use pepd_api::custody::{CustodyQuery, CustodyReport, FlowCustody, LISTED_MAX, SiteCustody};
use pepd_relay::{arena::Arena, flow::age};
use pepd_sys::sockets::{self, Found};

use super::Observer;

/// Returns a report of the bytes held now, for one site or for all.
pub(super) fn report(arena: &Arena, config: &Config, site: Option<&str>) -> CustodyReport {
    let sockets = sockets::all();
    let sites = site_names(config);
    let flows = open_flows(arena, config, &sockets, arena.occupied());
    let flows = flows.map(|flow| flow.custody(&sites));
    let flows = flows.filter(|flow| site.is_none() || flow.site.as_deref() == site);
    CustodyReport::from_flows(flows.collect())
}

/// Returns the sums over the flows of each site. Flows opened by peers, and those of sites that a
/// reload has removed, have none.
pub(super) fn by_site(arena: &Arena, config: &Config) -> HashMap<Option<String>, SiteCustody> {
    let sockets = sockets::all();
    let sites = site_names(config);
    let mut sums: HashMap<Option<&&String>, SiteCustody> = HashMap::new();
    for flow in open_flows(arena, config, &sockets, arena.occupied()) {
        let held = [flow.memory, flow.disk, flow.kernel].map(|[up, down]| up + down);
        let Identity { site, born, .. } = flow.record.identity;
        let sum = sums.entry(sites.get(&site)).or_default();
        sum.add(held, age(born).as_secs());
    }
    let sums = sums.into_iter();
    sums.map(|(name, sum)| (name.map(ToString::to_string), sum))
        .collect()
}

/// Returns the names of the sites by their hashes, as records have them.
pub(super) fn site_names(config: &Config) -> HashMap<u64, &String> {
    let sites = config.sites.iter().map(|(_, site)| &site.name);
    sites.map(|name| (name_hash(name), name)).collect()
}

/// Open flow: its published state, and held bytes to the server and to the client.
pub(super) struct OpenFlow {
    pub(super) record: Record,
    slot: u32,
    memory: [u64; 2],
    disk: [u64; 2],
    kernel: [u64; 2],
}

/// Returns the flows of these slots. `sockets` are those of this process.
pub(super) fn open_flows(
    arena: &Arena,
    config: &Config,
    sockets: &HashMap<u64, Found>,
    slots: Vec<u32>,
) -> impl Iterator<Item = OpenFlow> {
    let slots = slots.into_iter();
    // The published state of a flow may lag behind its chunks: without a disk that must not look
    // like one.
    let has_disk = config.custody.disk_bytes() > 0;
    slots.filter_map(move |slot| {
        let record = arena.record(slot)?;
        let disk = has_disk.then(|| on_disk(arena, slot, &record));
        let disk = disk.unwrap_or_default();
        let held = |direction: Direction| {
            let state = &record.directions[direction as usize];
            let held = state.tail.saturating_sub(state.head);
            held.saturating_sub(disk[direction as usize])
        };
        let socket = |side: Side| sockets.get(&record.cookies[side as usize]);
        let queued = |direction: Direction| {
            let unread = socket(direction.source()).map_or(0, |socket| socket.unread);
            let unsent = socket(direction.sink()).map_or(0, |socket| socket.queue);
            unread + unsent
        };
        Some(OpenFlow {
            memory: Direction::ALL.map(held),
            kernel: Direction::ALL.map(queued),
            slot,
            record,
            disk,
        })
    })
}

/// Returns the name of the flow in a slot, for operators.
pub(crate) fn id(slot: u32, identity: &Identity) -> String {
    let Identity {
        born,
        client,
        destination,
        ..
    } = identity;
    let part = name_hash(&format!("{born} {client} {destination}")) as u16;
    format!("{slot}-{part:04x}")
}

/// Returns bytes on disk. Only flows that enter a tunnel have any.
fn on_disk(arena: &Arena, slot: u32, record: &Record) -> [u64; 2] {
    let outward = match record.identity.kind {
        Kind::Split => return [0; 2],
        Kind::Near => Direction::Up,
        Kind::Far => Direction::Down,
    };
    let state = &record.directions[outward as usize];
    let here = arena.in_chunks(slot, outward, state.head..state.tail);
    let mut disk = [0; 2];
    disk[outward as usize] = state.tail.saturating_sub(state.head).saturating_sub(here);
    disk
}

impl OpenFlow {
    /// Describes the flow for operators.
    pub(super) fn custody(&self, sites: &HashMap<u64, &String>) -> FlowCustody {
        let identity = &self.record.identity;
        let kind = match identity.kind {
            Kind::Split => "split",
            Kind::Near => "near",
            Kind::Far => "far",
        };
        FlowCustody {
            id: id(self.slot, identity),
            site: sites.get(&identity.site).map(ToString::to_string),
            kind: kind.to_owned(),
            client: identity.client.to_string(),
            destination: identity.destination.to_string(),
            age_s: age(identity.born).as_secs(),
            memory: self.memory,
            disk: self.disk,
            kernel: self.kernel,
        }
    }
}

/// Serves `GET /v1/custody`.
pub(super) async fn show(
    State(observer): State<Arc<Observer>>,
    Query(query): Query<CustodyQuery>,
) -> Response {
    if let Some(site) = &query.site
        && observer.site_named(site).is_none()
    {
        let why = format!("no site `{site}` in the configuration\n");
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    let report = observer.search(move |here| {
        let mut report = report(&here.context.arena, &here.config, query.site.as_deref());
        report.flows.truncate(LISTED_MAX);
        report
    });
    match report.await {
        Ok(report) => Json(report).into_response(),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
    }
}
