//! Open flows, with the kernel's facts about their legs; and the causes for which connections pass.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use pep_core::{
    arena::{Record, SlotState, name_hash},
    relay::{Direction, Side},
    site::{InterceptionLoss, Site},
};
use pepd_api::{
    custody::FlowCustody,
    flows::{
        FlowStatus, FlowsQuery, FlowsReport, LISTED, LISTED_MAX, LeftSite, LegStatus,
        NotAccelerated, Sort,
    },
};
use pepd_sys::{
    gate::Gate,
    leg::Family,
    sockets::{self, Facts, Found},
};

use super::{
    Observer,
    custody::{open_flows, site_names},
    gather,
};

/// Counters of causes for which connections are not accelerated.
const REASONS: [&str; 5] = [
    "gate_closed",
    "host_cap_reached",
    "descriptors_short",
    "memory_short",
    "syns_passed_held",
];

fn left_site(site: &Site, why: &str, families: Vec<String>) -> LeftSite {
    LeftSite {
        site: site.name.clone(),
        why: why.to_owned(),
        families,
    }
}

impl Observer {
    /// Returns the open flows. Queries the kernel for each socket: not for an event loop.
    pub fn flows(&self, query: &FlowsQuery) -> FlowsReport {
        let sockets = sockets::all();
        let (arena, config) = (&self.context.arena, &self.config);
        let wanted = |flow: &FlowCustody| query.site.is_none() || flow.site == query.site;
        let sites = site_names(config);
        let flows = open_flows(arena, config, &sockets, arena.occupied());
        let flows = flows.map(|flow| {
            let custody = flow.custody(&sites);
            (flow.record, custody)
        });
        let mut flows: Vec<_> = flows.filter(|(_, flow)| wanted(flow)).collect();
        let total = flows.len();
        sort(&mut flows, query.sort);
        flows.truncate(query.limit.unwrap_or(LISTED));
        let peers = self.peer_names();
        let flows = flows.into_iter();
        FlowsReport {
            total,
            flows: flows
                .map(|(record, flow)| flow_status(&record, flow, &peers, &sockets))
                .collect(),
            not_accelerated: self.not_accelerated(),
        }
    }

    /// Returns the flow in a slot, if any. Queries the kernel like [`flows`](Self::flows).
    pub(super) fn flow(&self, slot: u32) -> Option<FlowStatus> {
        let sockets = sockets::all();
        let (arena, config) = (&self.context.arena, &self.config);
        let found = open_flows(arena, config, &sockets, vec![slot]).next()?;
        let flow = found.custody(&site_names(config));
        let peers = self.peer_names();
        Some(flow_status(&found.record, flow, &peers, &sockets))
    }

    fn peer_names(&self) -> HashMap<u64, &String> {
        let peers = self.config.peers.iter().map(|peer| &peer.name);
        peers.map(|name| (name_hash(name), name)).collect()
    }

    fn not_accelerated(&self) -> NotAccelerated {
        let why = self.why_bypassed();
        let sites = self.config.sites.iter().filter_map(|(id, site)| {
            let why = why(id, site)?;
            let families = match why {
                "interception" => self.interception_lost(id),
                "silence" => vec![Family::V6.to_string()],
                _ => Vec::new(),
            };
            Some(left_site(site, why, families))
        });
        let blocked = self.config.sites.iter().filter_map(|(id, site)| {
            let families = self.interception_lost(id);
            let blocks = site.on_interception_loss == InterceptionLoss::Block;
            let is_blocked =
                blocks && !families.is_empty() && self.why_bypassed()(id, site).is_none();
            is_blocked.then(|| left_site(site, "interception", families))
        });
        let counters = gather(&self.context);
        let reasons = counters
            .entries()
            .filter(|(name, _)| REASONS.contains(name));
        NotAccelerated {
            sites: sites.collect(),
            blocked: blocked.collect(),
            gate_closed: *self.context.admission.gate().borrow() == Gate::Closed,
            flows: self.limits().flows,
            reasons: reasons
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }
}

fn sort(flows: &mut [(Record, FlowCustody)], by: Sort) {
    match by {
        Sort::Bytes => flows.sort_by_key(|(record, _)| {
            Reverse(record.directions.map(|part| part.tail).iter().sum::<u64>())
        }),
        Sort::Age => flows.sort_by_key(|(record, _)| record.identity.born),
        Sort::Held => flows.sort_by_key(|(_, flow)| Reverse(flow.total())),
    }
}

fn flow_status(
    record: &Record,
    flow: FlowCustody,
    peers: &HashMap<u64, &String>,
    sockets: &HashMap<u64, Found>,
) -> FlowStatus {
    let leg = |side: Side| {
        let socket = sockets.get(&record.cookies[side as usize])?;
        socket.facts().as_ref().map(leg_status)
    };
    let come = |direction: Direction| record.directions[direction as usize].tail;
    FlowStatus {
        flow,
        peer: peers.get(&record.identity.peer).map(ToString::to_string),
        state: come_to(record.state).to_owned(),
        up_bytes: come(Direction::Up),
        down_bytes: come(Direction::Down),
        client_leg: leg(Side::Client),
        server_leg: leg(Side::Server),
    }
}

/// Returns the name of a flow's state.
pub(super) fn come_to(state: SlotState) -> &'static str {
    match state {
        SlotState::Free | SlotState::Closed => "closing",
        SlotState::Accepted => "accepted",
        SlotState::Relaying => "relaying",
    }
}

/// Converts the kernel's facts about a socket.
pub(super) fn leg_status(facts: &Facts) -> LegStatus {
    let seconds = |time: Option<Duration>| time.as_ref().map(Duration::as_secs_f64);
    let [local, remote] = facts.ends.map(|end| end.as_ref().map(ToString::to_string));
    LegStatus {
        local,
        remote,
        state: state(facts.state).to_owned(),
        congestion: facts.congestion.clone(),
        rtt_s: seconds(facts.rtt),
        rtt_min_s: seconds(facts.rtt_min),
        cwnd: facts.window,
        mss: facts.segment,
        unacked: facts.unacked,
        in_flight: facts.in_flight,
        retransmitted: facts.retransmitted,
        pacing_rate: facts.pacing.map(|bytes| bytes.saturating_mul(8)),
        delivery_rate: facts.delivery.map(|bytes| bytes.saturating_mul(8)),
        busy_s: facts.busy.as_secs_f64(),
        rwnd_limited_s: facts.window_limited.as_secs_f64(),
        sndbuf_limited_s: facts.buffer_limited.as_secs_f64(),
        receive_limit: facts.receive_limit(),
    }
}

/// Returns the name of a state of `include/net/tcp_states.h`.
fn state(number: u8) -> &'static str {
    const NAMES: [&str; 13] = [
        "unknown",
        "established",
        "syn-sent",
        "syn-recv",
        "fin-wait-1",
        "fin-wait-2",
        "time-wait",
        "closed",
        "close-wait",
        "last-ack",
        "listening",
        "closing",
        "new-syn-recv",
    ];
    NAMES.get(usize::from(number)).unwrap_or(&NAMES[0])
}

/// Serves `GET /v1/flows`.
pub(super) async fn show(
    State(observer): State<Arc<Observer>>,
    Query(query): Query<FlowsQuery>,
) -> Response {
    let refuse = |why: String| (StatusCode::BAD_REQUEST, why).into_response();
    if query.limit.is_some_and(|limit| limit > LISTED_MAX) {
        return refuse(format!("`limit` must be at most {LISTED_MAX}\n"));
    }
    if let Some(name) = &query.site
        && !observer
            .config
            .sites
            .iter()
            .any(|(_, site)| site.name == *name)
    {
        return refuse(format!("no site `{name}` in the configuration\n"));
    }
    match observer.search(move |here| here.flows(&query)).await {
        Ok(report) => Json(report).into_response(),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use pep_core::arena::{DirectionRecord, Identity};

    use super::*;

    fn flow(born: u64, tails: [u64; 2], held: u64) -> (Record, FlowCustody) {
        let address = "192.0.2.1:1".parse().unwrap();
        let part = |tail| DirectionRecord {
            tail,
            ..DirectionRecord::default()
        };
        let record = Record {
            state: SlotState::Relaying,
            cookies: [0; 2],
            identity: Identity {
                kind: pep_core::arena::Kind::Near,
                site: 0,
                peer: name_hash("hub"),
                born,
                token: 0,
                client: address,
                destination: address,
                flags: pep_core::arena::Flags::default(),
                class: 0,
            },
            directions: tails.map(part),
        };
        let custody = FlowCustody {
            id: String::new(),
            site: None,
            kind: "near".to_owned(),
            client: address.to_string(),
            destination: address.to_string(),
            age_s: 0,
            memory: [held, 0],
            disk: [0; 2],
            kernel: [0; 2],
        };
        (record, custody)
    }

    #[test]
    fn flows_are_sorted_as_asked_for() {
        let mut flows = [flow(3, [5, 5], 1), flow(1, [0, 9], 3), flow(2, [20, 0], 2)];
        for (by, expected) in [
            (Sort::Bytes, [2, 3, 1]),
            (Sort::Age, [1, 2, 3]),
            (Sort::Held, [1, 2, 3]),
        ] {
            sort(&mut flows, by);
            let order = flows.each_ref().map(|(record, _)| record.identity.born);
            assert_eq!(order, expected, "{by:?}");
        }
    }

    #[test]
    fn a_flow_has_its_peer_its_bytes_and_no_leg_that_is_not_here() {
        let (record, custody) = flow(1, [7, 8], 0);
        let hub = "hub".to_owned();
        let peers = HashMap::from([(name_hash("hub"), &hub)]);
        let status = flow_status(&record, custody, &peers, &HashMap::new());
        assert_eq!(status.peer.as_deref(), Some("hub"));
        assert_eq!((status.up_bytes, status.down_bytes), (7, 8));
        assert_eq!(status.state, "relaying");
        assert_eq!((status.client_leg, status.server_leg), (None, None));
    }

    #[test]
    fn every_reason_is_a_counter() {
        let names = pep_core::stats::Stats::default().entries();
        let names: Vec<_> = names.map(|(name, _)| name).collect();
        assert!(REASONS.iter().all(|name| names.contains(name)));
    }

    #[test]
    fn states_have_the_names_of_the_kernel() {
        let named = [1, 7, 8, 12, 13].map(state);
        let expected = [
            "established",
            "closed",
            "close-wait",
            "new-syn-recv",
            "unknown",
        ];
        assert_eq!(named, expected);
    }
}
