//! `[link]`: what is known of the bad hop.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use super::{Config, CongestionName, Elsewhere, Link};
use crate::reading::{
    Findings, Section,
    values::{BitRate, Map, NonEmpty, OneOf, Span, Switch, WordOr, text},
};
use crate::site::timeouts::KERNEL_RTO_MAX;

impl Link {
    /// Reads the section, where there is one.
    pub(super) fn read(mut section: Section<'_>) -> Option<Self> {
        if !section.is_present() {
            return None;
        }
        let interface = section.require("interface", text("the name of an interface"));
        let rate = section.read("rate", WordOr("auto", None, Map(BitRate, Some)));
        let rate_down = section.read("rate_down", WordOr("auto", None, Map(BitRate, Some)));
        let rtt = section.read(
            "rtt",
            Span(Duration::from_micros(1)..=Duration::from_secs(600)),
        );
        let dedicated = section.read("dedicated", Switch).unwrap_or(false);
        let words = OneOf(&[("pass", Elsewhere::Pass), ("split", Elsewhere::Split)]);
        let elsewhere = section.read("elsewhere", words);
        let contacts = section.read("contacts", NonEmpty("the path of a contact plan"));
        let gateway = section.read("gateway", text("an address"));
        if let Some(why) = gateway.and_then(why_no_gateway) {
            let message = format!(
                "is {why}; accepted: the address of a machine beyond the link, such as \"192.0.2.1\""
            );
            section.error("gateway", message);
        }
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
            rate_down: rate_down.flatten(),
            rtt,
            dedicated,
            contacts: contacts.map(PathBuf::from),
            gateway,
            elsewhere: elsewhere.unwrap_or_default(),
            gateway_every: gateway_every.unwrap_or(Self::GATEWAY_EVERY),
        })
    }
}

/// Warns where nothing sends at a stated rate: what a dedicated link allows is only to do so
/// whatever happens.
pub(super) fn check_dedicated(config: &Config, findings: &Findings) {
    let link = config.link.as_ref();
    let Some(link) = link.filter(|link| link.dedicated) else {
        return;
    };
    let mut sites = config.sites.iter().map(|(_, site)| &site.congestion);
    let is_used = link.rate.is_some()
        || config.peers.iter().any(|peer| peer.rate.is_some())
        || sites.any(|names| names.iter().any(CongestionName::takes_the_whole_link));
    if !is_used {
        let message = "has no effect: no `rate` is stated that could be certain; expected a rate \
                       as well, such as `rate = \"10Mbit/s\"`";
        findings.warning("link.dedicated", message);
    }
}

/// Addresses that nobody beyond a link can have.
fn why_no_gateway(address: IpAddr) -> Option<&'static str> {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    if address.is_unspecified() {
        Some("no machine's address")
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
    use super::super::parse;

    const PEER: &str = "public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
                        endpoint = \"192.0.2.1:5001\"\n[identity]\nkey_file = \"key\"";

    #[test]
    fn a_dedicated_link_without_a_rate_is_warned_of() {
        let link = "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"sat0\"\n";
        for (keys, expected) in [
            ("dedicated = true", 1),
            ("dedicated = true\nrate = \"auto\"", 1),
            ("dedicated = true\nrate = \"1Mbit/s\"", 0),
            ("dedicated = false", 0),
            ("dedicated = true\n[peer.hub]\nrate = \"1Mbit/s\"", 0),
            ("dedicated = true\n[peer.hub]", 1),
        ] {
            let keys = match keys.contains("peer") {
                true => format!("{keys}\n{PEER}"),
                false => keys.to_owned(),
            };
            let config = parse(&format!("{link}{keys}\n")).expect(&keys);
            let warnings = config.warnings.iter();
            let warned = warnings.filter(|warning| warning.key == "link.dedicated");
            assert_eq!(warned.count(), expected, "{keys}");
        }
    }

    #[test]
    fn a_gateway_is_an_address_that_somebody_beyond_the_link_can_have() {
        let errors = |gateway: &str| {
            let link = format!("[link]\ninterface = \"sat0\"\ngateway = \"{gateway}\"\n");
            parse(&format!("[intercept]\nlan = [\"eth0\"]\n{link}")).err()
        };
        for (gateway, word) in [
            ("0.0.0.0", "no machine's"),
            ("::", "no machine's"),
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
