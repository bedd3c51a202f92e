//! Peers without a session, and peers of unlimited reach.

use pep_core::config::{Config, Peer};
use pepd_api::status::{self, PeerStatus, Status};
use units::counted;

use super::{Finding, State};

/// Returns a finding for each peer that is down, or one if all are up, and one for each peer that
/// does not reach the hosts of a family.
pub(super) fn check(status: &Status) -> Vec<Finding> {
    let mut findings = states(status);
    findings.extend(status.peers.iter().filter_map(unreached));
    findings
}

fn unreached(peer: &PeerStatus) -> Option<Finding> {
    let seen = status::unreached(peer)?;
    let families = peer.unreached.join(" and ");
    let remedy = format!(
        "hosts use other addresses of a name. If they need {families}: give the peer's machine a route, and \
         `to` of this pepd there"
    );
    Some(Finding::warn(
        format!("hosts beyond peer {}", peer.name),
        seen,
        remedy,
    ))
}

fn states(status: &Status) -> Vec<Finding> {
    let down = status.peers.iter().filter(|peer| !is_up(peer));
    let down: Vec<_> = down
        .map(|peer| of_peer(peer, status.link.report.up))
        .collect();
    match status.peers.len() {
        0 => Vec::new(),
        all if down.is_empty() => {
            let seen = format!("{} up", counted(all as u64, "peer"));
            vec![Finding::ok("peers", seen)]
        }
        _ => down,
    }
}

/// Returns a finding about peers that may speak for any host, and reach any public address.
pub(super) fn reach(config: &Config) -> Option<Finding> {
    let opens = |peer: &&Peer| peer.flows != Some(0) || has_packets(config, peer);
    let unlimited = |peer: &&Peer| peer.from.is_none() && peer.to.is_none();
    let names: Vec<_> = config
        .peers
        .iter()
        .filter(|peer| unlimited(peer) && opens(peer))
        .map(|peer| peer.name.as_str())
        .collect();
    let first = names.first()?;
    Some(Finding::warn(
        "reach of peers",
        format!("no `from` and no `to`: {}", names.join(", ")),
        format!(
            "state in [peer.{first}] whose hosts it speaks for, and what they reach: \
             `from = [\"10.5.0.0/16\"]`, `to = [\"192.0.2.7:443\"]`; or `flows = 0`"
        ),
    ))
}

fn has_packets(config: &Config, peer: &Peer) -> bool {
    let mut sites = config.packet_sites();
    sites.any(|site| site.site.peer.as_ref() == Some(&peer.name))
}

fn is_up(peer: &PeerStatus) -> bool {
    peer.up && peer.session.is_some()
}

fn of_peer(peer: &PeerStatus, link_is_up: bool) -> Finding {
    let name = &peer.name;
    let what = format!("peer {name}");
    let why = peer.no_session.as_deref();
    let reported = status::no_session(peer).map_or_else(String::new, |why| format!("; {why}"));
    let seen = format!(
        "down, {}{reported}",
        status::contact(peer).replace("\n  ", ", ")
    );
    let keys = || {
        format!(
            "the psk_file for this tunnel (`peer.{name}.psk_file` here) differs between the two \
             pepds, or one of them has none: compare both files"
        )
    };
    let (state, remedy) = match why {
        Some("keys" | "answers_rejected") => (State::Fail, keys()),
        Some("version") => (
            State::Fail,
            "update the older of the two pepds (docs/tunnel.md#versions)".to_owned(),
        ),
        Some("counter") => (
            State::Fail,
            "give one end a new key (`identity.key_file`), and the other its public key".to_owned(),
        ),
        _ if !link_is_up => (
            State::Warn,
            "the link is down: the peer follows when it is up".to_owned(),
        ),
        _ if peer.endpoint.is_none() => (
            State::Warn,
            "the peer initiates: run `pepd check` there; the local firewall must accept `identity.listen`".to_owned(),
        ),
        _ => (
            State::Fail,
            format!(
                "check that pepd runs there, its firewall accepts the port, and `peer.{name}.endpoint` is \
                 right. Both logs report a key that differs"
            ),
        ),
    };
    Finding::new(state, what, seen, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(peer: serde_json::Value, link_is_up: bool) -> Finding {
        let peer = serde_json::from_value(peer).expect("a peer");
        of_peer(&peer, link_is_up)
    }

    #[test]
    fn peers_that_are_down_are_reported_with_a_remedy() {
        let hub = serde_json::json!({
            "name": "hub", "endpoint": "192.0.2.1:5001", "remote": "192.0.2.1:5001", "up": false,
            "flows": 0, "session": null, "heard_s": 300.0, "no_session": "unanswered",
        });
        let down = found(hub.clone(), true);
        assert_eq!((down.what.as_str(), down.state), ("peer hub", State::Fail));
        let seen = "down, at 192.0.2.1:5001, last heard 5min0s ago, received 0 B, sent 0 B; \
                    does not answer handshakes";
        assert_eq!(down.seen, seen);
        assert_eq!(found(hub.clone(), false).state, State::Warn);
        let mut keys = hub.clone();
        keys["no_session"] = "keys".into();
        let remedy = found(keys, false).remedy.expect("there is one");
        assert!(remedy.contains("`peer.hub.psk_file`"), "{remedy}");
        let mut newer = hub.clone();
        newer["no_session"] = "version".into();
        newer["other_version"] = 9.into();
        let newer = found(newer, true);
        assert_eq!(newer.state, State::Fail);
        let named = newer.seen.ends_with("; speaks tunnel protocol version 9");
        assert!(named, "{}", newer.seen);
        let mut boat = hub;
        for key in ["endpoint", "remote", "heard_s", "no_session"] {
            boat[key] = serde_json::Value::Null;
        }
        let boat = found(boat, true);
        assert_eq!(
            (boat.seen.as_str(), boat.state),
            ("down, never heard", State::Warn)
        );
    }

    #[test]
    fn peers_of_unlimited_reach_are_named_in_one_finding() {
        let found = |first: &str| {
            let text = format!(
                "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n\
                 listen = \"0.0.0.0:1\"\n[peer.one]\n{first}\n\
                 public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
                 [peer.two]\nto = [\"default\"]\n\
                 public_key = \"ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0A=\"\n"
            );
            reach(&pep_core::config::parse(&text).expect("valid"))
        };
        let one = found("").expect("a finding");
        assert_eq!(
            (one.state, one.seen.as_str()),
            (State::Warn, "no `from` and no `to`: one")
        );
        for keys in ["from = \"10.5.0.0/16\"", "to = []", "flows = 0"] {
            assert_eq!(found(keys), None, "{keys}");
        }
    }

    #[test]
    fn peers_that_are_up_are_one_finding_together() {
        let mut status = pepd_api::testing::status();
        let down = check(&status);
        assert_eq!(down.len(), 4, "and hosts that one does not reach");
        status.peers.truncate(1);
        status.peers[0].unreached.clear();
        assert_eq!(check(&status), [Finding::ok("peers", "1 peer up")]);
        status.peers[0].unreached = vec!["IPv6".to_owned()];
        let unreached = check(&status).pop().expect("a finding");
        assert_eq!(
            (unreached.state, unreached.seen.as_str()),
            (
                State::Warn,
                "reaches no IPv6 hosts: new connections to them are refused"
            )
        );
        status.peers.clear();
        assert_eq!(check(&status), []);
    }
}
