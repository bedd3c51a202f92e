//! `[link]`: what is known of the bad hop.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use units::Rate;

use super::{
    IfName,
    raw::Section,
    timeouts::KERNEL_RTO_MAX,
    values::{BitRate, Map, NonEmpty, Span, Switch, WordOr, text},
};

/// `[link]`: the bad hop. Optional; what it states is used to size buffers and pace senders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The interface that leads to it.
    pub interface: IfName,
    /// Its rate in bit/s. `None` (`"auto"`, the default): unknown, buffers are left to the
    /// kernel's autotuning and flows are not paced.
    pub rate: Option<Rate>,
    /// Its round-trip time when idle, 1 us to 10 min. Default none: unknown.
    pub rtt: Option<Duration>,
    /// Nobody else uses it; default false. What sites and peers say goes before.
    pub dedicated: bool,
    /// The file that says when it is there (a contact plan, [`units::contacts`]). Default none.
    pub contacts: Option<PathBuf>,
    /// Who beyond the link is asked whether it is there. Default nobody.
    pub gateway: Option<IpAddr>,
    /// How often, 100 ms to 1 h; default [`Link::GATEWAY_EVERY`].
    pub gateway_every: Duration,
}

impl Link {
    /// How often a gateway is asked where nothing else is said: some 200 bit/s with IPv4.
    pub const GATEWAY_EVERY: Duration = Duration::from_secs(5);

    /// The bytes in flight on a full link, where rate and round-trip time are both stated.
    pub fn bandwidth_delay_product(&self) -> Option<u64> {
        Some(self.rate?.bandwidth_delay_product(self.rtt?))
    }
}

impl Link {
    /// Reads the section, where there is one.
    pub(super) fn read(mut section: Section<'_>) -> Option<Self> {
        if !section.is_present() {
            return None;
        }
        let interface = section.require("interface", text("the name of an interface"));
        let rate = section.read("rate", WordOr("auto", None, Map(BitRate, Some)));
        let rtt = section.read(
            "rtt",
            Span(Duration::from_micros(1)..=Duration::from_secs(600)),
        );
        let dedicated = section.read("dedicated", Switch).unwrap_or(false);
        let contacts = section.read("contacts", NonEmpty("the path of a contact plan"));
        let gateway = section.read("gateway", text("an address"));
        let every = Span(Duration::from_millis(100)..=Duration::from_secs(3600));
        let gateway_every = section.read("gateway_every", every);
        if gateway_every.is_some() && gateway.is_none() {
            section.warning("gateway_every", "nobody is asked as there is no `gateway`");
        }
        if rtt.is_some_and(|rtt| rtt >= KERNEL_RTO_MAX) {
            section.warning(
                "rtt",
                "the kernel's TCP never waits longer than 2 min before it sends again: over such \
                 a link it sends everything more than once",
            );
        }
        section.finish();
        Some(Self {
            interface: interface?,
            rate: rate.flatten(),
            rtt,
            dedicated,
            contacts: contacts.map(PathBuf::from),
            gateway,
            gateway_every: gateway_every.unwrap_or(Self::GATEWAY_EVERY),
        })
    }
}
