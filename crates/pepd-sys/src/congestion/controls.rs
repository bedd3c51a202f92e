//! The congestion controls that sites get: the kernel's, and ours, which are loaded here and held.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    os::fd::BorrowedFd,
    sync::Arc,
    time::Duration,
};

use bpf_cc::{Control, LoadError, Loaded};
use pep_core::{
    config::{Config, CongestionName},
    site::{RTT0_DEFAULT, Site, SiteId},
};

use super::{Catalogue, Means, WhyNot, catalogue::asks_in_vain};

/// Why a site gets none.
#[derive(Debug, thiserror::Error)]
pub enum ControlsError {
    /// None of its list can be had.
    #[error("site `{site}`: no congestion control of `{key}` can be had: {why}")]
    None {
        /// The site's name.
        site: String,
        /// Which list.
        key: &'static str,
        /// Why not, for each of the list.
        why: String,
    },
    /// The kernel does not say what it has.
    #[error("cannot ask the kernel for its congestion controls")]
    Kernel(#[source] io::Error),
}

/// What one leg of a site's flows gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Obtained {
    /// As sockets name it; `None` is the kernel's default.
    name: Option<CongestionName>,
    /// It is this one of ours.
    program: Option<Control>,
}

/// What a site gets.
#[derive(Debug)]
struct OfSite {
    link: Obtained,
    host: Obtained,
    /// Of the link leg.
    rtt0: Duration,
}

/// What the sites get. While this lives new sockets can choose it.
#[derive(Debug, Default)]
pub struct Controls {
    loaded: Arc<Loaded>,
    of_sites: BTreeMap<SiteId, OfSite>,
}

/// RTT0 to be stated of the sockets of one leg, which also keeps its control loaded.
#[derive(Clone)]
pub struct Rtt0 {
    loaded: Arc<Loaded>,
    control: Control,
    rtt0: Duration,
}

impl Controls {
    /// Finds a control for each leg of each site, and loads those of ours that are needed. What of a list
    /// cannot be had is warned of.
    ///
    /// # Errors
    /// When nothing of a list can be had.
    pub fn obtain(config: &Config) -> Result<Self, ControlsError> {
        let catalogue = Catalogue::of_machine().map_err(ControlsError::Kernel)?;
        let mut search = Search::new(catalogue);
        let mut of_sites = BTreeMap::new();
        let sites = config.sites.iter();
        for (id, site) in sites.filter(|(_, site)| site.mode.takes_flows()) {
            let of_site = OfSite {
                link: search.first_of(site, "congestion", &site.congestion)?,
                host: search.first_of(site, "congestion_lan", &site.congestion_lan)?,
                rtt0: site.rtt0,
            };
            warn_of_rtt0(site, &of_site.link);
            of_sites.insert(id, of_site);
        }
        Ok(Self {
            loaded: Arc::new(search.loaded),
            of_sites,
        })
    }

    /// Unregisters ours. To be called before the process ends, which the kernel may not notice.
    pub fn unregister(&self) {
        self.loaded.unregister();
    }

    /// What a site's link leg chooses; `None` leaves it the kernel's default.
    pub fn link(&self, site: SiteId) -> Option<&CongestionName> {
        self.of_sites.get(&site)?.link.name.as_ref()
    }

    /// What a site's host leg chooses; `None` leaves it the kernel's default.
    pub fn host(&self, site: SiteId) -> Option<&CongestionName> {
        self.of_sites.get(&site)?.host.name.as_ref()
    }

    /// What is to be stated of a site's link leg, if anything is.
    pub fn rtt0(&self, site: SiteId) -> Option<Rtt0> {
        let of_site = self.of_sites.get(&site)?;
        let control = of_site.link.program?;
        (of_site.rtt0 != RTT0_DEFAULT).then(|| Rtt0 {
            loaded: Arc::clone(&self.loaded),
            control,
            rtt0: of_site.rtt0,
        })
    }
}

/// The kernel's own hybla has one RTT0 for all sockets.
fn warn_of_rtt0(site: &Site, link: &Obtained) {
    if let (Some(name), None) = (&link.name, link.program)
        && site.rtt0 != RTT0_DEFAULT
        && name.has_rtt0()
    {
        let site = &site.name;
        tracing::warn!(
            site,
            "`rtt0` has no effect on the {name} of this kernel, which has a parameter of its module instead"
        );
    }
}

impl Rtt0 {
    /// States it: before the socket connects or, for those to be accepted, for their listener.
    ///
    /// # Errors
    /// When the kernel refuses: memory is short, or a privilege.
    pub fn state(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.loaded.set_rtt0(self.control, socket, self.rtt0)
    }
}

impl PartialEq for Rtt0 {
    fn eq(&self, other: &Self) -> bool {
        (self.control, self.rtt0) == (other.control, other.rtt0)
            && Arc::ptr_eq(&self.loaded, &other.loaded)
    }
}

impl fmt::Debug for Rtt0 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rtt0({} {:?})", self.control, self.rtt0)
    }
}

/// Going through the lists of all sites.
struct Search {
    catalogue: Catalogue,
    loaded: Loaded,
    /// Trying again would give the same answer, more slowly.
    refused: BTreeMap<Control, LoadError>,
    /// What was warned of.
    told: BTreeSet<String>,
}

impl Search {
    fn new(catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            loaded: Loaded::default(),
            refused: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    fn first_of(
        &mut self,
        site: &Site,
        key: &'static str,
        wanted: &[CongestionName],
    ) -> Result<Obtained, ControlsError> {
        if wanted.is_empty() {
            return Ok(Obtained::default());
        }
        let mut passed_over = Vec::new();
        for name in wanted {
            match self.obtain(name) {
                Ok(obtained) => {
                    self.warn_of(&passed_over, name);
                    return Ok(obtained);
                }
                Err(why) => passed_over.push(why),
            }
        }
        Err(ControlsError::None {
            site: site.name.clone(),
            key,
            why: self.catalogue.explain(&passed_over),
        })
    }

    fn obtain(&mut self, name: &CongestionName) -> Result<Obtained, WhyNot> {
        match self.catalogue.means(name.as_str())? {
            Means::Program(control) => self.load(control),
            Means::Foreign => {
                self.warn_once(format!(
                    "`{name}` is an eBPF program of another process: when that is gone, flows fail"
                ));
                of_kernel(name)
            }
            Means::Kernel => of_kernel(name),
            Means::Module => of_kernel(name).or_else(|why| self.instead_of_module(name, why)),
        }
    }

    /// The kernel has a module and does not load it for us: ours does the same.
    fn instead_of_module(
        &mut self,
        name: &CongestionName,
        why: WhyNot,
    ) -> Result<Obtained, WhyNot> {
        let Ok(control) = name.as_str().parse() else {
            return Err(why);
        };
        self.warn_once(format!("{why}; loading pepd's own"));
        self.load(control)
    }

    fn load(&mut self, control: Control) -> Result<Obtained, WhyNot> {
        if let Some(err) = self.refused.get(&control) {
            let err = err.clone();
            return Err(WhyNot::Program { control, err });
        }
        let is_new = self.loaded.name_of(control).is_none();
        match self.loaded.add(control) {
            Ok(name) => {
                if is_new {
                    tracing::info!(%control, registered_as = name, "congestion control loaded");
                }
                let name = name.parse().expect("what the kernel takes is a name");
                Ok(Obtained {
                    name: Some(name),
                    program: Some(control),
                })
            }
            Err(err) => {
                self.refused.insert(control, err.clone());
                Err(WhyNot::Program { control, err })
            }
        }
    }

    fn warn_of(&mut self, passed_over: &[WhyNot], chosen: &CongestionName) {
        for why in passed_over {
            self.warn_once(why.instead(chosen));
        }
    }

    /// Many sites may name the same.
    fn warn_once(&mut self, message: String) {
        if !self.told.contains(&message) {
            tracing::warn!("{message}");
            self.told.insert(message);
        }
    }
}

/// Asking for it loads its module.
fn of_kernel(name: &CongestionName) -> Result<Obtained, WhyNot> {
    match asks_in_vain(name.as_str()) {
        Some(err) => Err(WhyNot::Refused {
            name: name.to_string(),
            reason: err.to_string(),
        }),
        None => Ok(Obtained {
            name: Some(name.clone()),
            program: None,
        }),
    }
}
