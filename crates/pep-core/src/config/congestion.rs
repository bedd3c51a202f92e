//! Requirements of congestion controls on the site that names them.

use super::{CongestionName, Link};
use crate::reading::Section;
use crate::site::{RTT0_DEFAULT, Site};

/// Reports requirements that the site does not meet.
pub(super) fn check(section: &Section<'_>, site: &Site, link: Option<&Link>) {
    let whole = CongestionName::takes_the_whole_link;
    if let Some(name) = site.congestion.iter().find(|name| whole(name)) {
        check_whole_link(section, name, site, link);
    }
    if let Some(name) = site.congestion_lan.iter().find(|name| whole(name)) {
        section.error(
            "congestion_lan",
            format!(
                "`{name}` sends at a configured rate whatever is lost, and the host leg has \
                 none; accepted: in `congestion` only"
            ),
        );
    }
    let adapts = |name: &CongestionName| name.as_str() == "hybla_sat";
    if site.congestion.iter().any(adapts) && site.pacing_rate(link).is_none() {
        section.warning(
            "congestion",
            "`hybla_sat` knows no rate that bounds its first window: the start of a flow may \
             overload the link; state `link.rate` or `pacing`, or use `bbr`",
        );
    }
    let names_one = site.congestion.iter().any(CongestionName::has_rtt0);
    if site.rtt0 != RTT0_DEFAULT && !names_one {
        section.warning(
            "rtt0",
            "has no effect: only hybla and hybla_sat use it, and `congestion` names neither",
        );
    }
}

fn check_whole_link(
    section: &Section<'_>,
    name: &CongestionName,
    site: &Site,
    link: Option<&Link>,
) {
    if !site.dedicated {
        section.error(
            "congestion",
            format!(
                "`{name}` ignores loss and starves other traffic on the link; accepted: only \
                 with `dedicated = true`, for a link that nothing else uses"
            ),
        );
    }
    if site.pacing_rate(link).is_none() {
        section.error(
            "congestion",
            format!(
                "`{name}` needs a rate to send at; accepted: only with \
                 `link.rate`, or with a rate as the site's `pacing`"
            ),
        );
    }
}
