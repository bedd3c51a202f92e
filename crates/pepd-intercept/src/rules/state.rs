//! Chains whose rules depend on the state of pepd, its peers and this machine. They are replaced
//! while pepd runs.

use pep_core::{
    config::Config,
    site::{InterceptionLoss, Mode, Site, SiteId},
};
use pepd_sys::gate::Gate;

use super::{Counter, Family, Rule, Term, build::site_chain, packets, rule};

/// Returns the rules of the chain `gate`.
///
/// A packet that belongs to a known handshake or TIME_WAIT is of one of pepd's flows, which
/// continues even when the gate is closed.
pub fn gate(gate: Gate) -> Vec<Rule> {
    match gate {
        Gate::Open => Vec::new(),
        Gate::Closed => unless_open(vec![rule(
            "new flows pass unaccelerated",
            [Term::Count(Counter::Passed), Term::Accept],
        )]),
    }
}

/// Returns these rules behind an exception for open handshakes. A listener of another program for
/// any address is none.
pub(super) fn unless_open(passes: Vec<Rule>) -> Vec<Rule> {
    let to_listener = passes.iter().map(|pass| {
        let condition = [Term::WildcardSocket];
        rule(&pass.comment, [&condition[..], &pass.terms].concat())
    });
    let to_listener: Vec<_> = to_listener.collect();
    [to_listener, vec![goes_on()], passes].concat()
}

/// Returns the rules that a kernel knows. `wildcard` states whether it can recognise listeners for
/// any address.
pub(crate) fn known(rules: &[Rule], wildcard: bool) -> Vec<Rule> {
    let known = |rule: &&Rule| wildcard || !rule.terms.contains(&Term::WildcardSocket);
    rules.iter().filter(known).cloned().collect()
}

fn goes_on() -> Rule {
    rule(
        "an open handshake continues",
        [Term::SocketTransparent, Term::Return],
    )
}

/// Name of the chain that new flows pass which pepd would otherwise answer at once.
pub(crate) const NO_ROUTE: &str = "no_route";

/// Uses of the chain [`NO_ROUTE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum NoRoute {
    /// Flows to destinations without a route pass.
    #[default]
    Asked,
    /// All flows of IPv6 pass as well, since no server answers over it.
    SilentV6,
    /// None pass: routes may be missing with the link, and flows wait for it.
    LinkDown,
}

/// Returns the rules of the chain [`NO_ROUTE`].
pub(crate) fn no_route(now: NoRoute) -> Vec<Rule> {
    let passes = |comment, condition| {
        let passes = [condition, Term::Count(Counter::PassedNoRoute), Term::Accept];
        rule(comment, passes)
    };
    let asked = passes(
        "no route to the destination: the kernel answers",
        Term::NoRoute,
    );
    let silent = passes(
        "no server answers over IPv6: hosts fall back to IPv4",
        Term::Of(Family::V6),
    );
    match now {
        NoRoute::Asked => unless_open(vec![asked]),
        NoRoute::SilentV6 => unless_open(vec![asked, silent]),
        NoRoute::LinkDown => Vec::new(),
    }
}

/// Returns the name of the chain that stops new flows of a site while redirected SYNs do not
/// arrive.
pub(crate) fn lost_chain(id: SiteId) -> String {
    format!("lost_{id}")
}

/// Returns true for the name of a chain of a site whose rules depend on the state of this machine.
pub fn follows_state(name: &str) -> bool {
    name.starts_with("lost_") || name.starts_with("unforwarded_")
}

/// Returns the name of the chain for new flows of a site that this machine does not forward.
pub(crate) fn unforwarded_chain(id: SiteId) -> String {
    format!("unforwarded_{id}")
}

/// Returns the rules of the chain [`unforwarded_chain`] for these interfaces and families.
pub(crate) fn unforwarded<'a>(
    id: SiteId,
    from: impl IntoIterator<Item = &'a (String, Family)>,
) -> Vec<Rule> {
    let rules = from.into_iter().map(|(interface, family)| {
        let conditions = [Term::From(vec![interface.clone()]), Term::Of(*family)];
        let to = [Term::Goto(site_chain(id))];
        rule(
            "not forwarded, so no rule of others concerns it",
            [&conditions[..], &to].concat(),
        )
    });
    rules.collect()
}

/// Returns the rules of the chain [`lost_chain`] while SYNs of these families do not arrive.
pub(crate) fn lost<'a>(
    families: impl IntoIterator<Item = &'a Family>,
    instead: InterceptionLoss,
) -> Vec<Rule> {
    let rules = families.into_iter().map(|&family| {
        let (comment, counter, end) = match instead {
            InterceptionLoss::Pass => (LOST_PASS, Counter::PassedLost, Term::Accept),
            InterceptionLoss::Block => (LOST_BLOCK, Counter::BlockedLost, Term::Drop),
        };
        rule(comment, [Term::Of(family), Term::Count(counter), end])
    });
    rules.collect()
}

const LOST_PASS: &str = "redirected SYNs do not arrive: new flows pass";
const LOST_BLOCK: &str = "redirected SYNs do not arrive: new flows are blocked";

/// Returns rules of the chain [`lost_chain`] that end SYNs of these families with `end`.
pub(crate) fn unreached<'a>(
    families: impl IntoIterator<Item = &'a Family>,
    end: &Term,
) -> Vec<Rule> {
    let rules = families.into_iter().map(|&family| {
        let counted = Term::Count(Counter::RefusedUnreached);
        let terms = [Term::Of(family), counted, end.clone()];
        rule(
            "the peer reaches no such hosts: they try another address",
            terms,
        )
    });
    rules.collect()
}

/// Name of the chain for new flows of split sites where the link is known.
pub(crate) const OTHER_ROUTE: &str = "elsewhere";

/// Returns the rules of the chain [`OTHER_ROUTE`].
pub(super) fn other_route(link: &str) -> Vec<Rule> {
    let passes = [
        Term::RoutedByOther(vec![link.to_owned()]),
        Term::Count(Counter::PassedOtherRoute),
        Term::Accept,
    ];
    unless_open(vec![rule("route does not lead by the link", passes)])
}

/// Returns the rules of the chain `host_at_cap`.
pub(super) fn host_at_cap() -> Vec<Rule> {
    unless_open(vec![rule(
        "host at its flow limit: new flows pass unaccelerated",
        [Term::Count(Counter::PassedHosts), Term::Accept],
    )])
}

/// Name of the chain before SYNs of a deferred site enter a TUN. It is empty while the site is on:
/// otherwise pepd would connect to the servers of connections that pass.
pub(crate) fn off_chain(id: SiteId) -> String {
    format!("off_{}", id.0)
}

/// Returns whether SYNs of a site that takes flows go through pepd before the kernel answers them.
pub(super) fn takes_syns(config: &Config, site: &Site) -> bool {
    site.is_deferred() || config.asks_forward(site)
}

/// Returns the names of a site's own chains, whose rules can be replaced without affecting others.
/// Sites of mode `bypass` have none.
pub(crate) fn own_chains(config: &Config, id: SiteId) -> Vec<String> {
    match config.sites[id].mode {
        Mode::Split | Mode::Tunnel if takes_syns(config, &config.sites[id]) => {
            vec![off_chain(id), site_chain(id)]
        }
        Mode::Split | Mode::Tunnel => vec![site_chain(id)],
        Mode::Packet | Mode::Boost => packets::lanes_of(config, id),
        Mode::Block => vec![packets::block_chain(id)],
        Mode::Bypass => Vec::new(),
    }
}

/// Returns the rules of a site's own chain of this name while the site is bypassed; `None` for
/// other chains.
pub fn left_alone(chain: &str) -> Option<Vec<Rule>> {
    let (of, _) = chain.split_once('_')?;
    match of {
        "site" | "off" => Some(unless_open(vec![rule(
            "peer or link is down, or site is off: new flows pass",
            [Term::Accept],
        )])),
        "packet" | "block" => Some(vec![rule(
            "peer is down, or site is off: packets pass",
            [Term::Accept],
        )]),
        _ => None,
    }
}

/// Returns the alternative rules that a chain of this name may hold: while a peer or the link is
/// down, its site off, or IPv6 without answers.
pub fn instead(chain: &str) -> Vec<Vec<Rule>> {
    match chain {
        NO_ROUTE => [NoRoute::LinkDown, NoRoute::SilentV6].map(no_route).into(),
        _ => left_alone(chain).into_iter().collect(),
    }
}
