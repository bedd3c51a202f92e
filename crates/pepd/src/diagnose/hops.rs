//! Routes with several next hops, of which the link is one.

use pep_core::{
    config::{Config, OtherRoutes, RulesBy},
    site::{LinkLeg, Mode},
};
use pepd_intercept::hops::{self, Shared};

use super::Finding;

/// Routes named at most.
const NAMED: usize = 3;

/// Returns a finding about routes that share packets between the link and other interfaces; `None`
/// without any.
pub(super) fn check(config: &Config) -> Option<Finding> {
    let link = config.link.as_ref()?.interface.as_str();
    // Without an answer there is nothing to report.
    let shared = hops::shared_with(link).ok()?;
    finding(config, link, &shared)
}

/// Returns whether the default route, of any family, has several next hops, and this is one.
pub(super) fn is_default_by(link: &str) -> bool {
    let shared = hops::shared_with(link).unwrap_or_default();
    let mut routes = shared.routes.iter();
    routes.any(|route| route.to.prefix_len() == 0)
}

fn finding(config: &Config, link: &str, shared: &Shared) -> Option<Finding> {
    let named = shared.routes.iter().take(NAMED).map(ToString::to_string);
    let mut named: Vec<_> = named.collect();
    if shared.number > named.len() {
        named.push(format!("{} more", shared.number - named.len()));
    }
    let routes = named.join("; ");
    let what = "routes of several next hops";
    let splits = config
        .sites
        .iter()
        .any(|(_, site)| site.mode == Mode::Split && site.link_leg == LinkLeg::Server);
    let link_of = config.link.as_ref()?;
    let finding = match (link_of.other_routes, config.intercept.rules) {
        _ if shared.number == 0 => return None,
        (OtherRoutes::Pass, RulesBy::Auto | RulesBy::Nft) if splits => Finding::info(
            what,
            format!(
                "{routes}: the kernel chooses for each connection, and connections of mode split \
                 that leave by another interface than {link} have neither its rate nor its share"
            ),
            "nothing, if the others are not the same link; modes tunnel, packet and boost take traffic of all hops, or of \
             the first: docs/interception.md",
        ),
        _ => Finding::warn(
            what,
            format!("{routes}: pepd treats all their connections as if they crossed {link}"),
            "if the other interfaces are other uplinks: rules by nft (`intercept.rules`), and \
             link.other_routes = \"pass\"; docs/interception.md",
        ),
    };
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::State;

    fn found(more: &str, number: usize) -> Option<Finding> {
        let text = format!("[intercept]\nlan = [\"lan0\"]\n{more}\n[link]\ninterface = \"sat0\"\n");
        let config = pep_core::config::parse(&text).expect("valid");
        let shared = Shared {
            number,
            ..Shared::default()
        };
        finding(&config, "sat0", &shared)
    }

    #[test]
    fn routes_of_several_next_hops_are_named_and_warned_of_where_pepd_cannot_tell() {
        assert!(found("", 0).is_none());
        let told = found("", 2).expect("a finding");
        assert_eq!(told.state, State::Info);
        assert!(told.seen.contains("2 more"), "{told}");
        let iptables = found("rules = \"iptables\"", 1).expect("a finding");
        assert_eq!(iptables.state, State::Warn);
    }
}
