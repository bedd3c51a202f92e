//! Switches of sites: while a site is off, the kernel forwards its new flows, or its packets. Open
//! flows continue.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use pep_core::{
    arena::{OFF_MAX, name_hash},
    config::{Config, RulesBy},
    site::{Mode, SiteId},
};
use pepd_api::sites::{SiteList, SiteOrder, SiteState};
use pepd_relay::arena::Arena;
use tokio::{sync::watch, time::timeout};

/// Timeout of a change of the rules, which takes less unless nft cannot be run.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum bytes of a request's body.
const BODY_MAX: usize = 1024;

/// Reason why a site was not switched.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// No site has this name.
    #[error("no site `{0}`; sites: {1}")]
    Unknown(String, String),
    /// pepd does not take its flows.
    #[error("the kernel already forwards the flows of `{0}`, since its mode is `{1}`")]
    NoFlows(String, Mode),
    /// pepd changes no rules.
    #[error(
        "the operator's own rules redirect the flows of `{0}` (`intercept.rules = \"manual\"`): change those"
    )]
    Manual(String),
    /// No room is left in the memory that outlives this process.
    #[error(
        "{OFF_MAX} sites are off, which is the maximum; set `mode = \"bypass\"` in the configuration and reload"
    )]
    Full,
}

/// Sites that are off, and the number of changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Off {
    /// Sites that are off.
    pub sites: BTreeSet<SiteId>,
    /// Number of changes so far.
    pub changes: u64,
}

/// Switches of all sites.
#[derive(Debug)]
pub struct Switches {
    config: Arc<Config>,
    /// Arena that outlives this process.
    arena: Arc<Arena>,
    off: watch::Sender<Off>,
    /// Number of changes applied in the kernel.
    reported: watch::Sender<u64>,
}

impl Switches {
    /// Returns the switches as left in the arena by the previous process, for sites that still
    /// exist.
    pub fn new(config: &Arc<Config>, arena: &Arc<Arena>) -> Arc<Self> {
        let kept: BTreeSet<_> = arena.off().into_iter().collect();
        let sites = config.sites.iter();
        let off = sites.filter(|(_, site)| kept.contains(&name_hash(&site.name)));
        let off: Vec<_> = off.map(|(id, site)| (id, site.name.as_str())).collect();
        if !off.is_empty() {
            let names: Vec<_> = off.iter().map(|(_, name)| *name).collect();
            tracing::warn!(sites = ?names, "sites stay switched off by the operator (`pepd site on`)");
        }
        let sites = off.into_iter().map(|(id, _)| id).collect();
        Arc::new(Self {
            config: Arc::clone(config),
            arena: Arc::clone(arena),
            off: watch::Sender::new(Off { sites, changes: 0 }),
            reported: watch::Sender::new(0),
        })
    }

    /// Returns a receiver of the sites that are off.
    pub fn off(&self) -> watch::Receiver<Off> {
        self.off.subscribe()
    }

    /// Returns true if this site is off.
    pub fn is_off(&self, site: SiteId) -> bool {
        self.off.borrow().sites.contains(&site)
    }

    /// Announces that the kernel's rules include this number of changes.
    pub fn announce(&self, changes: u64) {
        self.reported.send_replace(changes);
    }

    /// Switches a site. Returns the number of changes that the kernel has to
    /// [apply](Self::announce).
    ///
    /// # Errors
    /// When the site does not exist, takes no flows, or too many are off.
    pub fn set(&self, order: &SiteOrder) -> Result<u64, SwitchError> {
        let name = &order.site;
        let mut sites = self.config.sites.iter();
        let Some((id, site)) = sites.find(|(_, site)| site.name == *name) else {
            return Err(SwitchError::Unknown(name.clone(), self.names()));
        };
        if self.config.intercept.rules == RulesBy::Manual && !order.enabled {
            return Err(SwitchError::Manual(name.clone()));
        }
        if site.mode == Mode::Bypass && !order.enabled {
            return Err(SwitchError::NoFlows(name.clone(), site.mode));
        }
        let off = !order.enabled;
        let mut kept = true;
        self.off.send_if_modified(|now| {
            if now.sites.contains(&id) == off {
                return false;
            }
            kept = self.arena.set_off(name_hash(name), off);
            if !kept {
                return false;
            }
            if off {
                now.sites.insert(id);
            } else {
                now.sites.remove(&id);
            }
            now.changes += 1;
            tracing::info!(site = name, off, "site switched by the operator");
            true
        });
        if kept {
            Ok(self.off.borrow().changes)
        } else {
            Err(SwitchError::Full)
        }
    }

    fn names(&self) -> String {
        let names = self.config.sites.iter();
        let names: Vec<_> = names
            .map(|(_, site)| format!("`{}`", site.name))
            .take(20)
            .collect();
        names.join(", ")
    }

    async fn is_announced(&self, changes: u64) -> bool {
        let mut reported = self.reported.subscribe();
        let reported = timeout(PATIENCE, reported.wait_for(|reported| *reported >= changes)).await;
        reported.is_ok()
    }
}

/// Returns the routes for these requests.
pub fn router(switches: Arc<Switches>) -> Router {
    Router::new()
        .route("/v1/sites", get(list).put(order))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(switches)
}

async fn list(State(switches): State<Arc<Switches>>) -> Json<SiteList> {
    let sites = switches.config.sites.iter().map(|(id, site)| SiteState {
        name: site.name.clone(),
        mode: site.mode.to_string(),
        enabled: !switches.is_off(id),
    });
    Json(SiteList(sites.collect()))
}

/// Answers after the kernel's rules have changed.
async fn order(State(switches): State<Arc<Switches>>, Json(order): Json<SiteOrder>) -> Response {
    match switches.set(&order) {
        Ok(changes) if switches.is_announced(changes).await => Json(order).into_response(),
        Ok(_) => {
            let why =
                "changing the kernel's rules failed so far, retrying every second: see the log\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
        Err(err) => (StatusCode::CONFLICT, format!("{err}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use pep_core::config;

    use super::*;
    use pepd_relay::arena::Geometry;

    fn config(sites: &[&str]) -> Arc<Config> {
        let mut text = "[intercept]\nlan = [\"eth0\"]\n".to_owned();
        for name in sites {
            text += &format!("[[site]]\nname = \"{name}\"\nmatch = {{ dport = [25] }}\n");
        }
        text += "[[site]]\nname = \"plain\"\nmode = \"bypass\"\nmatch = { dport = [1] }\n";
        Arc::new(config::parse(&text).unwrap())
    }

    fn arena() -> Arc<Arena> {
        let geometry = Geometry {
            slots: 1,
            extent: 1 << 12,
            initial: 1 << 12,
        };
        Arena::new(geometry).unwrap()
    }

    fn set(switches: &Switches, site: &str, enabled: bool) -> Result<u64, SwitchError> {
        let site = site.to_owned();
        switches.set(&SiteOrder { site, enabled })
    }

    fn off(switches: &Switches) -> Vec<String> {
        let off = switches.off();
        let off = off.borrow().sites.clone();
        let sites = switches.config.sites.iter();
        let sites = sites.filter(|(id, _)| off.contains(id));
        sites.map(|(_, site)| site.name.clone()).collect()
    }

    #[test]
    fn what_is_off_is_so_for_the_next_process_wherever_the_site_is_then() {
        let arena = arena();
        let switches = Switches::new(&config(&["mail", "web"]), &arena);
        assert_eq!(set(&switches, "web", false), Ok(1));
        assert_eq!(set(&switches, "web", false), Ok(1), "nothing has changed");
        assert_eq!(off(&switches), ["web"]);
        let switches = Switches::new(&config(&["web", "mail"]), &arena);
        assert_eq!(off(&switches), ["web"]);
        // A site that is removed for a while is off when it returns.
        assert!(off(&Switches::new(&config(&["mail"]), &arena)).is_empty());
        let switches = Switches::new(&config(&["web"]), &arena);
        assert_eq!(set(&switches, "web", true), Ok(1));
        assert!(off(&switches).is_empty() && arena.off().is_empty());
    }

    #[test]
    fn impossible_orders_are_refused_with_a_reason() {
        let switches = Switches::new(&config(&["mail"]), &arena());
        let unknown = set(&switches, "mial", false).unwrap_err().to_string();
        assert!(
            unknown.contains("`mial`; sites: `mail`, `plain`"),
            "{unknown}"
        );
        assert_eq!(
            set(&switches, "plain", false),
            Err(SwitchError::NoFlows("plain".to_owned(), Mode::Bypass))
        );
        assert_eq!(set(&switches, "plain", true), Ok(0));
    }

    #[test]
    fn the_number_of_sites_that_are_off_is_limited() {
        let names: Vec<_> = (0..=OFF_MAX).map(|number| format!("s{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let switches = Switches::new(&config(&names), &arena());
        let (last, others) = names.split_last().unwrap();
        for name in others {
            set(&switches, name, false).unwrap();
        }
        assert_eq!(set(&switches, last, false), Err(SwitchError::Full));
        set(&switches, names[3], true).unwrap();
        set(&switches, last, false).unwrap();
        assert_eq!(switches.arena.off().len(), OFF_MAX);
    }
}
