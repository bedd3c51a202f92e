//! Switching sites off and on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Body of `PUT /v1/sites` and of its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteOrder {
    /// Name of the site.
    pub site: String,
    /// True if pepd takes its new flows or packets as its mode says.
    pub enabled: bool,
}

impl fmt::Display for SiteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, enabled } = self;
        if *enabled {
            writeln!(f, "`{site}` is on: pepd takes its new flows or packets")
        } else {
            writeln!(
                f,
                "`{site}` is off: the kernel forwards its new flows or packets"
            )
        }
    }
}

/// Response to `GET /v1/sites`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SiteList(pub Vec<SiteState>);

/// State of a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteState {
    /// Name of the site.
    pub name: String,
    /// Mode of the site: split, tunnel, packet, boost, bypass, block.
    pub mode: String,
    /// False if an operator has switched the site off.
    pub enabled: bool,
}

impl fmt::Display for SiteList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|site| {
            let state = if site.enabled { "on" } else { "off" };
            writeln!(f, "{:<20} {:<7} {state}", site.name, site.mode)
        })
    }
}
