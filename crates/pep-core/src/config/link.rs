//! `[link]`: what is known of the bad hop.

use std::{path::PathBuf, time::Duration};

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
}

impl Link {
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
        })
    }
}
