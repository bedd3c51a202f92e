//! Terms on which the flows of a site share the link.

use pep_core::{
    config::Link,
    site::{IpVersion, Site},
};

/// Packet properties of a site's flows, for converting the link's rate to a payload rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The payload rate in bytes per second on a link without other flows.
    pub full: u64,
    /// Header bytes of each packet.
    pub headers: u64,
}

impl Terms {
    /// Returns the terms; `None` where the site's flows do not share.
    pub fn new(site: &Site, link: Option<&Link>, ip: IpVersion) -> Option<Self> {
        let full = site.payload_rate(link, ip)?.bytes_per_second();
        site.shares(link).then_some(Self {
            full,
            headers: ip.packet_headers(),
        })
    }
}
