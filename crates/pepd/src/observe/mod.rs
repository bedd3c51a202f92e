//! Observation of a running pepd; all views of it query this module.
//!
//! ```text
//! flows, once a second ----> SiteCounters of a site ---+
//! tunnels, once a second --> facts of each peer -------+
//! boosters, once a second -> facts of each site -------+-> Observer::status()
//! arena and kernel, every 10 s --> held bytes ---------+     |
//!                                                            +-> /v1/status, /metrics
//!                                                            +-> once a second: Past, Listeners
//! ```
//!
//! - `counters`: counters of the process; `sampler`: rates and held bytes
//! - `custody`: bytes held for hosts
//! - `flows`: open flows, with the kernel's facts about their legs
//! - `past`: history of recent hours; `stream`: a status a second for listeners
//! - `trace`: one flow, four times a second
//! - `packets`: packets of hosts; `metrics`: all of it for Prometheus

mod counters;
mod custody;
mod flows;
mod metrics;
mod packets;
mod past;
mod sampler;
mod searches;
pub(crate) mod stream;
mod trace;

use std::{
    cmp::Reverse,
    process,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use nix::{errno::Errno, net::if_::if_nametoindex};
use parking_lot::{Mutex, MutexGuard};
use pep_core::{
    config::{Config, IfName, Peer},
    site::{Clear, InterceptionLoss, Mode, Site, SiteId},
    stats::EndReason,
};
use pepd_api::status::{
    Causes, Custody, HOSTS_MAX, HostAtCap, Limits, LinkStatus, PacketStatus, PeerStatus,
    SessionStatus, SiteStatus, Status, Traffic, Used,
};
use pepd_relay::{flow::FlowContext, limits::Admission};
use pepd_sys::{leg::SiteRuntime, site_counters::SiteCounters};
use pepd_tunnel::{
    Tunnels,
    boosted::Boosters,
    packets::SiteFacts,
    peers::{NoSession, SessionFacts, Statuses},
};
use tokio::task::JoinError;
use tunnel::{outage, rate::Found};
use units::Rate;

pub use counters::{gather, set_passed};

use self::{
    past::Past,
    sampler::{RecentSamples, SlowSamples},
    searches::Searches,
    stream::Listeners,
};
use crate::{page, switches::Switches};

/// Collection point of all observations.
#[derive(Debug)]
pub struct Observer {
    config: Arc<Config>,
    context: Arc<FlowContext>,
    switches: Arc<Switches>,
    /// Counters by site; `None` for sites that take no flows.
    sites: Vec<Option<Arc<SiteCounters>>>,
    /// Status of peers, and counters of the flows that they sent.
    peers: Option<(Statuses, Arc<SiteCounters>)>,
    /// Sites of mode `boost`, if there are any.
    boosted: Option<Arc<Mutex<Vec<SiteFacts>>>>,
    /// Limit of descriptors.
    descriptors: u64,
    /// Program that has installed the rules.
    rules: String,
    began: (Instant, SystemTime),
    looks: Mutex<RecentSamples>,
    slow: Mutex<SlowSamples>,
    past: Mutex<Past>,
    listeners: Listeners,
    searches: Searches,
}

impl Observer {
    /// Runs what asks the kernel for each socket.
    ///
    /// # Errors
    /// If it panics.
    async fn search<T: Send + 'static>(
        self: Arc<Self>,
        run: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let here = Arc::clone(&self);
        self.searches.run(move || run(&here)).await
    }

    /// Returns the observer of a pepd with these sites, tunnels, boosters and limit of descriptors.
    pub fn new(
        config: &Arc<Config>,
        context: &Arc<FlowContext>,
        sites: &[Arc<SiteRuntime>],
        (tunnels, boosters): (Option<&Tunnels>, Option<&Boosters>),
        descriptors: u64,
        switches: &Arc<Switches>,
        rules: String,
    ) -> Arc<Self> {
        let site_counters = |id: SiteId| {
            let site = sites.iter().find(|site| site.id == id);
            site.map(|site| Arc::clone(&site.site_counters))
        };
        let began = (Instant::now(), SystemTime::now());
        Arc::new(Self {
            config: Arc::clone(config),
            context: Arc::clone(context),
            switches: Arc::clone(switches),
            rules,
            sites: config
                .sites
                .iter()
                .map(|(id, _)| site_counters(id))
                .collect(),
            peers: tunnels.map(|tunnels| (tunnels.statuses().clone(), Arc::clone(tunnels.far()))),
            boosted: boosters.map(Boosters::facts),
            descriptors,
            began,
            looks: Mutex::default(),
            slow: Mutex::default(),
            past: Mutex::new(Past::new(began)),
            listeners: Listeners::default(),
            searches: Searches::default(),
        })
    }

    /// Samples rates and history for as long as it is polled.
    pub async fn run(self: Arc<Self>) {
        sampler::run(self).await;
    }

    /// Returns the current status.
    pub fn status(&self) -> Status {
        let sites = self.site_statuses();
        let peers = self.peers.as_ref();
        let from_peers = peers.map(|(_, far)| self.traffic(self.sites.len(), far, None));
        let mut total = Traffic::default();
        for traffic in sites.iter().map(|site| &site.traffic).chain(&from_peers) {
            total.add(traffic);
        }
        let counters = gather(&self.context);
        let (began, started) = self.began;
        let started = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process::id(),
            started: started.as_secs_f64(),
            uptime_s: began.elapsed().as_secs_f64(),
            restarts: counters.restarts,
            draining: self.context.admission.is_stopping(),
            rules: self.rules.clone(),
            lan_missing: self.lan_missing(),
            link: self.link(),
            total,
            sites,
            from_peers,
            peers: self.peer_statuses(),
            boosted: self.boosted_statuses(),
            custody: Custody {
                memory: Used {
                    used: counters.custody_memory_bytes,
                    most: self.config.custody_memory(),
                },
                disk: Used {
                    used: counters.custody_disk_bytes,
                    most: self.config.custody.disk_bytes(),
                },
            },
            limits: self.limits(),
            counters: counters
                .entries()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }

    fn link(&self) -> LinkStatus {
        let link = self.config.link.as_ref();
        LinkStatus {
            interface: link.map(|link| link.interface.to_string()),
            rate: link.and_then(|link| link.rate).map(Rate::bits_per_second),
            rate_down: link
                .and_then(|link| link.rate_down)
                .map(Rate::bits_per_second),
            rtt_s: link.and_then(|link| link.rtt).map(|rtt| rtt.as_secs_f64()),
            other_rate: self
                .context
                .link
                .as_ref()
                .and_then(|link| link.other_bits()),
            report: self.context.outage.report(),
        }
    }

    fn limits(&self) -> Limits {
        let (admission, budget) = (&self.context.admission, &self.context.budget);
        Limits {
            flows: Used {
                used: admission.open_flows().into(),
                most: admission.cap().into(),
            },
            flows_per_host: admission.cap_per_host(),
            hosts_at_cap: hosts_at_cap(admission),
            memory: Used {
                used: budget.taken(),
                most: budget.limit(),
            },
            descriptors: Used {
                used: self.slow().descriptors,
                most: self.descriptors,
            },
        }
    }

    fn lan_missing(&self) -> Vec<String> {
        let lan = self.config.intercept.lan.iter().map(IfName::as_str);
        let is_missing = |name: &&str| if_nametoindex(*name) == Err(Errno::ENODEV);
        lan.filter(is_missing).map(str::to_owned).collect()
    }

    fn site_named(&self, name: &str) -> Option<SiteId> {
        let mut sites = self.config.sites.iter();
        sites.find_map(|(id, site)| (site.name == name).then_some(id))
    }

    fn site_statuses(&self) -> Vec<SiteStatus> {
        let why = self.why_bypassed();
        let sites = self.config.sites.iter().zip(&self.sites);
        let sites = sites.map(|((id, site), site_counters)| {
            let lost = self.interception_lost(id);
            SiteStatus {
                name: site.name.clone(),
                mode: site.mode.to_string(),
                congestion: site.congestion.iter().map(ToString::to_string).collect(),
                peer: site.peer.clone(),
                clear_never: site.clear == Clear::Never,
                bypassed: why(id, site).map(ToOwned::to_owned),
                on_interception_loss: (!lost.is_empty())
                    .then(|| site.on_interception_loss.to_string()),
                interception_lost: lost,
                traffic: site_counters
                    .as_ref()
                    .map_or_else(Traffic::default, |site_counters| {
                        self.traffic(id.index(), site_counters, Some(&site.name))
                    }),
            }
        });
        sites.collect()
    }

    /// Returns the families of a site whose redirected SYNs do not arrive.
    fn interception_lost(&self, site: SiteId) -> Vec<String> {
        let site_counters = self.sites[site.index()].iter();
        let lost = site_counters.flat_map(|site_counters| site_counters.lost());
        lost.map(|family| family.to_string()).collect()
    }

    /// Returns a function that gives the cause for which the kernel forwards new flows of a site,
    /// if it does.
    fn why_bypassed(&self) -> impl Fn(SiteId, &Site) -> Option<&'static str> + use<'_> {
        let away = self.context.outage.bypassed();
        let off = self.switches.off().borrow().sites.clone();
        let peers = self.peers.as_ref();
        let lonely = peers.map(|(statuses, _)| statuses.bypassed().borrow().clone());
        let silent = *self.context.silence.passes().borrow();
        move |id, site| {
            if site.mode == Mode::Bypass {
                Some("mode")
            } else if off.contains(&id) {
                Some("operator")
            } else if away.contains(&id) {
                Some("link")
            } else {
                let lonely = lonely.as_ref().is_some_and(|sites| sites.contains(&id));
                let passes = site.on_interception_loss == InterceptionLoss::Pass;
                let is_lost = || passes && !self.interception_lost(id).is_empty();
                let lost = || is_lost().then_some("interception");
                let silence = || (silent && site.answers_first()).then_some("silence");
                lonely.then_some("peer").or_else(lost).or_else(silence)
            }
        }
    }

    /// Returns traffic figures. `place` is the index among [`bytes`](Self::bytes), `site` the
    /// site's name.
    fn traffic(&self, place: usize, site_counters: &SiteCounters, site: Option<&str>) -> Traffic {
        let now = site_counters.now();
        let [up_rate, down_rate] = self.looks().rates(place);
        let ended = EndReason::ALL.iter().zip(now.ended);
        let ended = ended.filter(|(_, count)| *count > 0);
        Traffic {
            flows_open: now.open,
            flows_accepted: now.accepted,
            flows_ended: ended
                .map(|(reason, count)| (reason.to_string(), count))
                .collect(),
            up_bytes: now.bytes[0],
            down_bytes: now.bytes[1],
            up_rate,
            down_rate,
            held: self.slow().held_of(site),
        }
    }

    fn boosted_statuses(&self) -> Vec<PacketStatus> {
        let facts = self.boosted.as_ref().map(|facts| facts.lock().clone());
        facts.iter().flatten().map(packets::status).collect()
    }

    fn peer_statuses(&self) -> Vec<PeerStatus> {
        let Some((statuses, _)) = &self.peers else {
            return Vec::new();
        };
        let peers = self.config.peers.iter().enumerate();
        let peers = peers.map(|(index, peer): (usize, &Peer)| {
            let status = statuses.status(index);
            let (session, contact, flows) = status.known();
            let packets = status.packets();
            PeerStatus {
                name: peer.name.clone(),
                endpoint: peer.endpoint.as_ref().map(ToString::to_string),
                remote: contact.remote.map(|remote| remote.address.to_string()),
                addresses: status.addresses().iter().map(ToString::to_string).collect(),
                heard_s: contact.silence.map(|silence| silence.as_secs_f64()),
                sent_bytes: contact.sent_bytes,
                received_bytes: contact.received_bytes,
                up: status.is_up(),
                no_session: status.trouble().map(|why| why.as_str().to_owned()),
                other_version: status.trouble().and_then(NoSession::version),
                unreached: texts(&status.unreached()),
                flows,
                from: peer.from.as_deref().map(texts),
                to: peer.to.as_deref().map(texts),
                may_open_flows: Some(peer.flows != Some(0)),
                session: session.as_ref().map(session_status),
                packets: packets.sites.iter().map(packets::status).collect(),
                packets_received: packets
                    .received
                    .iter()
                    .map(packets::received_status)
                    .collect(),
                takes_packets: packets.taken,
                understands: packets
                    .understood
                    .map(|all| all.into_iter().map(str::to_owned).collect()),
                packets_refused: packets.refused,
                packets_unmatched: packets.strangers.unmatched,
                unmatched_last: packets.strangers.last.map(|packet| packet.to_string()),
                packets_martian: packets.strangers.martian,
            }
        });
        peers.collect()
    }

    /// Returns the bytes of the sites in the order of the configuration, empty for sites that take
    /// no flows, followed by those sent by peers.
    fn bytes(&self) -> Vec<[u64; 2]> {
        let far = self.peers.as_ref().map(|(_, far)| Some(far));
        let site_counters = self.sites.iter().map(Option::as_ref).chain(far);
        let bytes = site_counters.map(|site_counters| {
            site_counters.map_or([0; 2], |site_counters| site_counters.now().bytes)
        });
        bytes.collect()
    }

    fn looks(&self) -> MutexGuard<'_, RecentSamples> {
        self.looks.lock()
    }

    fn slow(&self) -> MutexGuard<'_, SlowSamples> {
        self.slow.lock()
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock()
    }
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn hosts_at_cap(admission: &Admission) -> Vec<HostAtCap> {
    let mut hosts = admission.hosts_at_cap();
    hosts.sort_unstable_by_key(|(_, flows)| Reverse(*flows));
    let hosts = hosts.iter().take(HOSTS_MAX);
    let hosts = hosts.map(|(host, flows)| HostAtCap {
        host: host.to_string(),
        flows: *flows,
    });
    hosts.collect()
}

fn session_status(facts: &SessionFacts) -> SessionStatus {
    let SessionFacts {
        carrier,
        path,
        stats,
        causes,
    } = facts;
    SessionStatus {
        carrier: carrier.map(|carrier| carrier.to_string().to_lowercase()),
        path: match path.link {
            outage::State::Up => "up",
            outage::State::Silent { .. } => "silent",
            outage::State::Stopped { .. } => "stopped",
        }
        .to_owned(),
        rtt_s: path.rtt.as_secs_f64(),
        rtt_min_s: path.rtt_min.as_secs_f64(),
        rate: path.rate,
        link_rate: path.link_rate,
        stated_rate: path.stated,
        stated: path.found.map(|found| {
            match found {
                Found::Unused => "unused",
                Found::Carried => "carried",
                Found::Less => "less",
                Found::Shared => "shared",
            }
            .to_owned()
        }),
        loss: path.loss,
        fec_overhead: path.fec_overhead,
        packets_sent: stats.packets_sent,
        bytes_sent: stats.bytes_sent,
        repairs_sent: stats.repairs_sent,
        segments_retransmitted: stats.segments_retransmitted,
        packets_received: stats.packets_received,
        segments_restored: stats.segments_restored,
        outages: stats.outages,
        lost: Causes {
            link: causes.link,
            congestion: causes.congestion,
            outage: causes.outage,
        },
    }
}

/// Returns the routes for queries of the observer.
pub fn routes(observer: &Arc<Observer>) -> Router {
    Router::new()
        .route("/v1/status", get(show_status))
        .route("/v1/custody", get(custody::show))
        .route("/v1/flows", get(flows::show))
        .route("/v1/flows/{flow}", get(trace::show_flow))
        .route("/v1/flows/{flow}/trace", get(trace::show))
        .route("/v1/flows/{flow}/qlog", get(trace::qlog::flow))
        .route("/v1/peers/{peer}/qlog", get(trace::qlog::peer))
        .route("/v1/history", get(past::show))
        .route("/v1/stream", get(stream::show))
        .route("/metrics", get(show_metrics))
        .merge(page::routes())
        .with_state(Arc::clone(observer))
}

async fn show_status(State(observer): State<Arc<Observer>>) -> Json<Status> {
    Json(observer.status())
}

async fn show_metrics(State(observer): State<Arc<Observer>>) -> Response {
    match metrics::render(observer.status()) {
        Ok(page) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
    }
}
