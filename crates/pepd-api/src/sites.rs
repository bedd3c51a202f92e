//! Sites, switched off and on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The body of `PUT /v1/sites`, and of the answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteOrder {
    /// The name of the site.
    pub site: String,
    /// Whether pepd takes its new flows or its packets, as its mode says.
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

/// The answer to `GET /v1/sites`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SiteList(pub Vec<SiteState>);

/// A site, and whether its new flows are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteState {
    /// Its name.
    pub name: String,
    /// What becomes of its flows or packets: split, tunnel, packet, bypass, block.
    pub mode: String,
    /// Whether an operator lets pepd take its new flows.
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
