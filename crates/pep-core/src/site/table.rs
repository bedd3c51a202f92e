//! All sites, in the order of the configuration.

use std::{fmt, ops::Index};

use super::{FlowKey, Site};

/// Number of a site in a [`SiteTable`], in the order of the configuration, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u16);

impl SiteId {
    /// The position in the table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Sites in order of precedence. The last one, `default`, is built in and takes every flow.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteTable {
    sites: Vec<Site>,
}

impl SiteTable {
    /// Maximum number of sites in a table, including the built-in one: each has its own port.
    pub const SITES_MAX: usize = 1024;

    /// Returns a table of these sites, followed by `fallback`, which must match everything.
    ///
    /// # Panics
    /// When there are more than [`SITES_MAX`](Self::SITES_MAX) in all; the configuration is checked
    /// for it.
    pub fn new(mut sites: Vec<Site>, fallback: Site) -> Self {
        sites.push(fallback);
        assert!(sites.len() <= Self::SITES_MAX, "{} sites", sites.len());
        Self { sites }
    }

    /// The first site that takes the flow.
    pub fn find(&self, flow: &FlowKey<'_>) -> SiteId {
        let last = self.sites.len() - 1;
        let position = self.sites[..last]
            .iter()
            .position(|site| site.matcher.matches(flow));
        Self::id(position.unwrap_or(last))
    }

    /// The site's policy, if there is such a site.
    pub fn get(&self, id: SiteId) -> Option<&Site> {
        self.sites.get(id.index())
    }

    /// The sites in order of precedence.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SiteId, &Site)> + DoubleEndedIterator {
        self.sites
            .iter()
            .enumerate()
            .map(|(index, site)| (Self::id(index), site))
    }

    /// Number of sites, including the built-in one: 1 or more.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a table always has its built-in site"
    )]
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    fn id(index: usize) -> SiteId {
        SiteId(u16::try_from(index).expect("at most SITES_MAX"))
    }
}

impl Index<SiteId> for SiteTable {
    type Output = Site;

    fn index(&self, id: SiteId) -> &Site {
        &self.sites[id.index()]
    }
}
