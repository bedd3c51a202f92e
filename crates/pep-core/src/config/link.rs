//! Checks of `[link]` that need the rest of the configuration.

use super::{Config, CongestionName};
use crate::reading::Findings;

/// Warns about `dedicated` where nothing sends at a configured rate: a dedicated link only permits
/// that.
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
        let message = "has no effect without a configured rate; expected a `rate` as well, \
                       such as `rate = \"10Mbit/s\"`";
        findings.warning("link.dedicated", message);
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
}
