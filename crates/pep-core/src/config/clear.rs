//! Checks of `clear = "never"`: nothing else may let packets of such a site pass in the clear.

use super::{Config, OnPeerLoss, RulesBy};
use crate::{
    reading::Findings,
    site::{Clear, Mode, Site, WhileDown},
};

/// Reports what contradicts `clear = "never"`.
pub(super) fn check(config: &Config, findings: &Findings) {
    for (index, (_, site)) in config.sites.iter().enumerate() {
        if site.clear == Clear::Never {
            let key = |name: &str| format!("site[{}].{name}", index + 1);
            for (name, message) in contradictions(config, site) {
                findings.error(&key(name), message);
            }
        }
    }
}

/// Returns a key of the site and a message for each contradiction.
fn contradictions(config: &Config, site: &Site) -> Vec<(&'static str, String)> {
    if site.mode != Mode::Tunnel {
        let message = "\"never\" needs mode \"tunnel\", as packets of other modes leave in the clear; accepted here: \"allowed\"";
        return vec![("clear", message.to_owned())];
    }
    let mut found = Vec::new();
    let mut say = |key, message: &str| found.push((key, message.to_owned()));
    if site.matcher.src.is_empty() {
        let message = "missing: `clear = \"never\"` needs the prefixes of its hosts, as interfaces may be renamed";
        say("match.src", message);
    }
    if !site.matcher.interface.is_empty() {
        let message =
            "not with `clear = \"never\"`: interfaces may be renamed; accepted: `src` instead";
        say("match.interface", message);
    }
    if !site.matcher.dscp.is_empty() {
        let message = "not with `clear = \"never\"`: packets after the SYN may have another DSCP; accepted: `src`, `dst` and ports";
        say("match.dscp", message);
    }
    if site.while_down == WhileDown::Bypass {
        let message =
            "\"bypass\" contradicts `clear = \"never\"`; accepted with it: custody, refuse";
        say("while_down", message);
    }
    if config.link.is_none() {
        let message = "\"never\" needs `link.interface`: pepd must know which interface of `intercept.lan` leads to hosts only";
        say("clear", message);
    }
    if matches!(config.intercept.rules, RulesBy::Iptables | RulesBy::Manual) {
        let message = "\"never\" needs rules of nft, which outlive pepd; accepted with it for `intercept.rules`: auto, nft";
        say("clear", message);
    }
    let named = |peer: &&super::Peer| site.peer.as_ref() == Some(&peer.name);
    let peer = config.peers.iter().find(named);
    if let Some(peer) = peer.filter(|peer| peer.on_peer_loss != OnPeerLoss::Hold) {
        let message = format!(
            "\"never\" needs `on_peer_loss = \"hold\"` in [peer.{}]: otherwise flows leave in the clear while it is down",
            peer.name
        );
        say("clear", &message);
    }
    found
}
