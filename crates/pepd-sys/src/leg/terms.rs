//! Terms on which the flows of a site share the link.

use pep_core::{
    config::Link,
    site::{IpVersion, Site},
};

/// What the packets of a site's flows are like, so that a rate of the link can be told as one of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Payload in bytes per second where the link has no other flow.
    pub full: u64,
    /// Bytes of each packet that are no payload.
    pub headers: u64,
}

impl Terms {
    /// `None` where the site's flows do not share.
    pub fn new(site: &Site, link: Option<&Link>, ip: IpVersion) -> Option<Self> {
        let full = site.payload_rate(link, ip)?.bytes_per_second();
        site.shares(link).then_some(Self {
            full,
            headers: ip.packet_headers(),
        })
    }
}
