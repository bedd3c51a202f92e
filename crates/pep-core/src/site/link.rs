//! `[link]`: the bad hop, as the operator describes it.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use units::Rate;

use super::{names::IfName, timeouts::KERNEL_RTO_MAX};
use crate::reading::{
    Section, section,
    values::{BitRate, Map, Reading, Span, Switch, WordOr, path, some, text},
    words,
};

section! {
    /// `[link]`: the bad hop. Optional; sizes buffers and paces senders.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Link(s, stated: IfName) {
        /// Interface that leads to the link.
        interface: IfName = stated;
        /// Rate in bit/s at which pepd may send into the link. `None`: unknown; the kernel's
        /// autotuning sizes send buffers, and flows are not paced.
        rate: Option<Rate> = rate_or_auto(), None;
        /// Receive rate of the link in bit/s. `None`: unknown. Bounds receive buffers and the room
        /// for a peer's data; limits no flow.
        rate_down: Option<Rate> = rate_or_auto(), None;
        /// Round-trip time of the idle link. `None`: unknown.
        rtt: Option<Duration> = some(round_trip()), None;
        /// True where nothing else uses the link. Keys of sites and peers take precedence.
        dedicated: bool = Switch, false;
        /// Handling of new flows of mode `split` whose route uses another interface.
        other_routes: OtherRoutes = OtherRoutes::WORDS, OtherRoutes::Pass;
        /// File with the times at which the link is up (a contact plan, [`units::contacts`]).
        contacts: Option<PathBuf> = some(path("the path of a contact plan")), None;
        /// Address beyond the link that pepd probes.
        gateway: Option<IpAddr> = read_gateway(s);
        /// Interval between probes. The default costs some 200 bit/s with IPv4.
        gateway_every: Duration =
            Span(Duration::from_millis(100)..=Duration::from_secs(3600)), Duration::from_secs(5);
    }
}

words! {
    /// Handling of new flows that do not cross the link, as their route uses another interface.
    pub enum OtherRoutes {
        /// The kernel forwards them.
        Pass = "pass",
        /// pepd carries them as if they crossed the link: the route uses an interface above the
        /// link's, a VPN's for example.
        Split = "split",
    }
}

/// A rate, or `"auto"`: unknown.
pub(crate) fn rate_or_auto() -> impl Reading<Value = Option<Rate>> {
    WordOr("auto", None, Map(BitRate, Some))
}

/// A round-trip time.
pub(crate) fn round_trip() -> Span {
    Span(Duration::from_micros(1)..=Duration::from_secs(600))
}

impl Link {
    /// Reads the section, if present.
    pub(crate) fn read(mut section: Section<'_>) -> Option<Self> {
        if !section.is_present() {
            return None;
        }
        let interface = section.require("interface", text("the name of an interface"));
        let is_named = interface.is_some();
        let none = || "none".parse().expect("a valid name");
        let link = Self::read_keys(&mut section, interface.unwrap_or_else(none));
        if section.has("gateway_every") && link.gateway.is_none() {
            section.warning(
                "gateway_every",
                "has no effect: there is no `gateway` to probe",
            );
        }
        if link.rtt.is_some_and(|rtt| rtt >= KERNEL_RTO_MAX) {
            section.warning(
                "rtt",
                "the kernel's TCP retransmits after 2 min at the latest: over such a link it \
                 sends everything more than once",
            );
        }
        section.finish();
        is_named.then_some(link)
    }

    /// Bytes in flight toward the link when it is full, where `rate` and `rtt` are both configured.
    pub fn bandwidth_delay_product(&self) -> Option<u64> {
        Some(self.rate?.bandwidth_delay_product(self.rtt?))
    }

    /// Bytes in flight in the faster direction, where `rate_down` and `rtt` are both configured.
    ///
    /// `rate` alone does not bound the receive rate: terminals receive 5 to 20 times as fast as
    /// they send.
    pub fn largest_bandwidth_delay_product(&self) -> Option<u64> {
        let rate = self.rate_down?;
        let fastest = self.rate.map_or(rate, |up| up.max(rate));
        Some(fastest.bandwidth_delay_product(self.rtt?))
    }
}

fn read_gateway(section: &mut Section<'_>) -> Option<IpAddr> {
    let gateway = section.read("gateway", text("an address"));
    if let Some(why) = gateway.and_then(why_no_gateway) {
        let message = format!(
            "is {why}; accepted: the address of a machine beyond the link, such as \"192.0.2.1\""
        );
        section.error("gateway", message);
    }
    gateway
}

/// Returns the reason why an address cannot be a gateway beyond a link.
fn why_no_gateway(address: IpAddr) -> Option<&'static str> {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    if address.is_unspecified() {
        Some("not a host's address")
    } else if address.is_loopback() {
        Some("this machine's own (loopback)")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if is_broadcast {
        Some("the broadcast address")
    } else if is_mapped {
        Some("an IPv4 address written as one of IPv6")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    #[test]
    fn a_gateway_has_an_address_that_a_host_beyond_the_link_can_have() {
        let errors = |gateway: &str| {
            let link = format!("[link]\ninterface = \"sat0\"\ngateway = \"{gateway}\"\n");
            parse(&format!("[intercept]\nlan = [\"eth0\"]\n{link}")).err()
        };
        for (gateway, word) in [
            ("0.0.0.0", "not a host's"),
            ("::", "not a host's"),
            ("127.1.2.3", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("::ffff:192.0.2.1", "IPv4"),
        ] {
            let errors = errors(gateway).expect(gateway);
            let [error] = &errors[..] else {
                panic!("{gateway}: {errors:?}")
            };
            assert_eq!((error.line, error.key.as_str()), (5, "link.gateway"));
            assert!(
                error.message.contains(word) && error.message.contains("beyond the link"),
                "{error}"
            );
        }
        for gateway in ["192.0.2.1", "10.0.0.255", "2001:db8::1", "fe80::1"] {
            assert_eq!(errors(gateway), None, "{gateway}");
        }
    }
}
