//! Sites that an operator switches off and on: while one is off, the kernel forwards its new flows, or its packets. Flows that are open
//! go on.

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
    config::Config,
    site::{Mode, SiteId},
};
use pepd_api::sites::{SiteList, SiteOrder, SiteState};
use pepd_relay::arena::Arena;
use tokio::{sync::watch, time::timeout};

/// A rule is changed within less, unless nft cannot be run.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of a request.
const BODY_MAX: usize = 1024;

/// Why a site stays as it was.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// The configuration has none of that name.
    #[error("there is no site `{0}`; there are: {1}")]
    Unknown(String, String),
    /// They do not come to us.
    #[error("the kernel forwards the flows of `{0}` anyway, as its mode is `{1}`")]
    NoFlows(String, Mode),
    /// There is no more room in what outlives this process.
    #[error(
        "{OFF_MAX} sites are off, and there cannot be more; give them `mode = \"bypass\"` in the configuration, and reload"
    )]
    Full,
}

/// Those that are off, and how often that has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Off {
    /// Which.
    pub sites: BTreeSet<SiteId>,
    /// Changes so far.
    pub changes: u64,
}

/// Which sites are off.
#[derive(Debug)]
pub struct Switches {
    config: Arc<Config>,
    /// Which outlives this process.
    arena: Arc<Arena>,
    off: watch::Sender<Off>,
    /// How many changes the kernel has been told.
    told: watch::Sender<u64>,
}

impl Switches {
    /// As the process before has left them in the arena, for those sites that there still are.
    pub fn new(config: &Arc<Config>, arena: &Arc<Arena>) -> Arc<Self> {
        let kept: BTreeSet<_> = arena.off().into_iter().collect();
        let sites = config.sites.iter();
        let off = sites.filter(|(_, site)| kept.contains(&name_hash(&site.name)));
        let off: Vec<_> = off.map(|(id, site)| (id, site.name.as_str())).collect();
        if !off.is_empty() {
            let names: Vec<_> = off.iter().map(|(_, name)| *name).collect();
            tracing::warn!(sites = ?names, "sites stay off, as an operator has said (`pepd site on`)");
        }
        let sites = off.into_iter().map(|(id, _)| id).collect();
        Arc::new(Self {
            config: Arc::clone(config),
            arena: Arc::clone(arena),
            off: watch::Sender::new(Off { sites, changes: 0 }),
            told: watch::Sender::new(0),
        })
    }

    /// Those that are off, as that changes.
    pub fn off(&self) -> watch::Receiver<Off> {
        self.off.subscribe()
    }

    /// Whether that one is.
    pub fn is_off(&self, site: SiteId) -> bool {
        self.off.borrow().sites.contains(&site)
    }

    /// The rules in the kernel are as so many changes have it.
    pub fn announce(&self, changes: u64) {
        self.told.send_replace(changes);
    }

    /// Switches a site. Returns how many changes the kernel has to be [told](Self::tell).
    ///
    /// # Errors
    /// When there is no such site, it takes no flows, or too many are off.
    pub fn set(&self, order: &SiteOrder) -> Result<u64, SwitchError> {
        let name = &order.site;
        let mut sites = self.config.sites.iter();
        let Some((id, site)) = sites.find(|(_, site)| site.name == *name) else {
            return Err(SwitchError::Unknown(name.clone(), self.names()));
        };
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
            tracing::info!(site = name, off, "an operator switches a site");
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
        let mut told = self.told.subscribe();
        let told = timeout(PATIENCE, told.wait_for(|told| *told >= changes)).await;
        told.is_ok()
    }
}

/// Requests about them.
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

/// Answers once the kernel knows.
async fn order(State(switches): State<Arc<Switches>>, Json(order): Json<SiteOrder>) -> Response {
    match switches.set(&order) {
        Ok(changes) if switches.is_announced(changes).await => Json(order).into_response(),
        Ok(_) => {
            let why = "the kernel's rules could not be changed yet, which is tried again every second; the log says why\n";
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
        // One that is gone for a while is off when it comes again.
        assert!(off(&Switches::new(&config(&["mail"]), &arena)).is_empty());
        let switches = Switches::new(&config(&["web"]), &arena);
        assert_eq!(set(&switches, "web", true), Ok(1));
        assert!(off(&switches).is_empty() && arena.off().is_empty());
    }

    #[test]
    fn what_cannot_be_is_said() {
        let switches = Switches::new(&config(&["mail"]), &arena());
        let unknown = set(&switches, "mial", false).unwrap_err().to_string();
        assert!(
            unknown.contains("`mial`; there are: `mail`, `plain`"),
            "{unknown}"
        );
        assert_eq!(
            set(&switches, "plain", false),
            Err(SwitchError::NoFlows("plain".to_owned(), Mode::Bypass))
        );
        assert_eq!(set(&switches, "plain", true), Ok(0));
    }

    #[test]
    fn there_is_room_for_so_many_and_for_others_once_some_are_on() {
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
