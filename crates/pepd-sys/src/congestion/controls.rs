//! Congestion controls of sites: the kernel's, and pepd's own, which are loaded and held here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    os::fd::BorrowedFd,
    sync::Arc,
};

use bpf_cc::{Control, LoadError, Loaded, SocketTerms};
use pep_core::{
    config::{Config, CongestionName},
    site::{RTT0_DEFAULT, Site, SiteId},
};

use super::{Catalogue, Means, WhyNot, catalogue::asks_in_vain};

/// The reason why a site has no congestion control.
#[derive(Debug, thiserror::Error)]
pub enum ControlsError {
    /// No control of the list is available.
    #[error("site `{site}`: no congestion control of `{key}` is available: {why}")]
    None {
        /// The site's name.
        site: String,
        /// The key of the list.
        key: &'static str,
        /// The reason for each control of the list.
        why: String,
    },
    /// The kernel's controls cannot be read.
    #[error("cannot read the list of congestion controls from the kernel")]
    Kernel(#[source] io::Error),
}

/// The control of one leg of a site's flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Obtained {
    /// The registered name; `None` is the kernel's default.
    name: Option<CongestionName>,
    /// The control, if it is pepd's own.
    program: Option<Control>,
}

/// The controls of a site.
#[derive(Debug)]
struct OfSite {
    link: Obtained,
    host: Obtained,
    /// Terms of the link leg.
    terms: SocketTerms,
}

/// The controls of all sites, which new sockets can choose while this value lives.
#[derive(Debug, Default)]
pub struct Controls {
    loaded: Arc<Loaded>,
    of_sites: BTreeMap<SiteId, OfSite>,
}

/// Terms of pepd's own control for sockets of one leg; also keeps the control loaded.
#[derive(Clone)]
pub struct ControlTerms {
    loaded: Arc<Loaded>,
    control: Control,
    terms: SocketTerms,
}

impl Controls {
    /// Finds a control for each leg of each site, and loads those of pepd that are needed. Warns of
    /// unavailable controls.
    ///
    /// # Errors
    /// When no control of a list is available.
    pub fn obtain(config: &Config) -> Result<Self, ControlsError> {
        let catalogue = Catalogue::of_machine().map_err(ControlsError::Kernel)?;
        let mut search = Search::new(catalogue);
        let mut of_sites = BTreeMap::new();
        let sites = config.sites.iter();
        for (id, site) in sites.filter(|(_, site)| site.mode.takes_flows()) {
            let of_site = OfSite {
                link: search.first_of(site, "congestion", &site.congestion)?,
                host: search.first_of(site, "congestion_lan", &site.congestion_lan)?,
                terms: SocketTerms {
                    rtt0: site.rtt0,
                    rto_min: site.timeouts.rto_min,
                },
            };
            warn_of_rtt0(site, &of_site.link);
            of_sites.insert(id, of_site);
        }
        Ok(Self {
            loaded: Arc::new(search.loaded),
            of_sites,
        })
    }

    /// Returns true if a site names a control of pepd's own, and so may load it.
    pub fn may_load(config: &Config) -> bool {
        let is_ours = |name: &CongestionName| name.as_str().parse::<Control>().is_ok();
        let sites = config.sites.iter();
        let mut sites = sites.filter(|(_, site)| site.mode.takes_flows());
        sites.any(|(_, site)| {
            let mut names = site.congestion.iter().chain(&site.congestion_lan);
            names.any(is_ours)
        })
    }

    /// Unregisters pepd's own. Must be called before the process ends, which the kernel may not
    /// notice.
    pub fn unregister(&self) {
        self.loaded.unregister();
    }

    /// Returns the control of a site's link leg; `None` is the kernel's default.
    pub fn link(&self, site: SiteId) -> Option<&CongestionName> {
        self.of_sites.get(&site)?.link.name.as_ref()
    }

    /// Returns the control of a site's host leg; `None` is the kernel's default.
    pub fn host(&self, site: SiteId) -> Option<&CongestionName> {
        self.of_sites.get(&site)?.host.name.as_ref()
    }

    /// Returns the terms to set on a site's link leg, where they differ from the control's own.
    pub fn terms(&self, site: SiteId) -> Option<ControlTerms> {
        let of_site = self.of_sites.get(&site)?;
        let (control, terms) = (of_site.link.program?, of_site.terms);
        let differ = terms.rtt0 != RTT0_DEFAULT || terms.rto_min.is_some();
        differ.then(|| ControlTerms {
            loaded: Arc::clone(&self.loaded),
            control,
            terms,
        })
    }
}

/// Warns if RTT0 has no effect: the kernel's hybla has one RTT0 for all sockets.
fn warn_of_rtt0(site: &Site, link: &Obtained) {
    if let (Some(name), None) = (&link.name, link.program)
        && site.rtt0 != RTT0_DEFAULT
        && name.has_rtt0()
    {
        let site = &site.name;
        tracing::warn!(
            site,
            "`rtt0` has no effect on the {name} of this kernel; set the parameter of its module instead"
        );
    }
}

impl ControlTerms {
    /// Sets the terms: before the socket connects or, for accepted sockets, on their listener.
    ///
    /// # Errors
    /// When memory is short, or a privilege is missing.
    pub fn state(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.loaded.state(self.control, socket, &self.terms)
    }
}

impl PartialEq for ControlTerms {
    fn eq(&self, other: &Self) -> bool {
        (self.control, self.terms) == (other.control, other.terms)
            && Arc::ptr_eq(&self.loaded, &other.loaded)
    }
}

impl fmt::Debug for ControlTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ControlTerms({} {:?})", self.control, self.terms)
    }
}

/// A search through the lists of all sites.
struct Search {
    catalogue: Catalogue,
    loaded: Loaded,
    /// Failed controls: another attempt would fail again, more slowly.
    refused: BTreeMap<Control, LoadError>,
    /// Warnings already logged.
    logged: BTreeSet<String>,
}

impl Search {
    fn new(catalogue: Catalogue) -> Self {
        Self {
            catalogue,
            loaded: Loaded::default(),
            refused: BTreeMap::new(),
            logged: BTreeSet::new(),
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
            Means::OtherProcess => {
                self.warn_once(format!(
                    "`{name}` is an eBPF program of another process: flows fail once that process ends"
                ));
                of_kernel(name)
            }
            Means::Kernel => of_kernel(name),
            Means::Module => of_kernel(name).or_else(|why| self.instead_of_module(name, why)),
        }
    }

    /// Loads pepd's own control where the kernel has a module, but does not load it.
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
                let name = name.parse().expect("a registered name is valid");
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

    /// Logs a warning once, as many sites may name the same control.
    fn warn_once(&mut self, message: String) {
        if !self.logged.contains(&message) {
            tracing::warn!("{message}");
            self.logged.insert(message);
        }
    }
}

/// Requests a control of the kernel, which loads its module.
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
