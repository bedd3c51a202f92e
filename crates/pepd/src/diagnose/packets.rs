//! Packets of sites of mode `packet`, which both ends need; those of mode `boost`, which need both
//! directions; and ICMP errors to hosts for refused packets.

use pep_core::{config::Config, site::Mode};
use pepd_api::status::{PacketStatus, PeerStatus, Status};

use super::{Finding, sysctl};

/// Returns a finding for each peer with packets, and for each site of mode `boost`.
pub(super) fn check(config: &Config, status: &Status) -> Vec<Finding> {
    let has_sites = |peer: &&PeerStatus| {
        let mut sites = config.sites.iter();
        sites.any(|(_, site)| site.mode == Mode::Packet && site.peer.as_ref() == Some(&peer.name))
    };
    let of_peers = status.peers.iter().filter(has_sites).map(of_peer);
    of_peers
        .chain(status.boosted.iter().map(of_boost))
        .collect()
}

/// Packets of a site in one direction after which some of the other are expected.
const ONE_WAY: u64 = 100;

fn of_boost(site: &PacketStatus) -> Finding {
    let (name, from, to) = (&site.site, site.packets, site.delivered);
    let what = format!("packets of {name}");
    let seen = format!("{from} from hosts to the link, {to} from the link to hosts");
    let missing = match (from, to) {
        (ONE_WAY.., 0) => "the link",
        (0, ONE_WAY..) => "hosts",
        _ => return Finding::ok(what, seen),
    };
    Finding::warn(
        what,
        format!("{seen}: boosters of TCP need both directions"),
        format!(
            "packets from {missing} must cross this machine, too; check routes, `intercept.lan` and `link.interface`"
        ),
    )
}

fn of_peer(peer: &PeerStatus) -> Finding {
    let name = &peer.name;
    let what = format!("packets of and for {name}");
    if peer.takes_packets == Some(false) {
        return Finding::warn(
            what,
            "the peer accepts no packets: `packet.on_peer_loss` applies to those of sites with mode = \"packet\"",
            "the peer needs a site with mode = \"packet\" for this pepd that matches the answers (`sport` instead of `dport`)",
        );
    }
    let given: u64 = peer.packets.iter().map(|site| site.delivered).sum();
    let taken: u64 = peer.packets.iter().map(|site| site.packets).sum();
    let seen = format!("{taken} taken from hosts, {given} delivered to hosts");
    let unmatched = peer.packets_unmatched;
    if unmatched == 0 {
        return Finding::ok(what, seen + hint(taken, given));
    }
    let last = peer.unmatched_last.as_ref();
    let last = last.map_or(String::new(), |last| format!(" (the last: {last})"));
    Finding::warn(
        what,
        format!(
            "{seen}; pepd dropped {unmatched} packets of peer {name}: no local site carries their \
             answers{last}"
        ),
        format!(
            "add a site with mode = \"packet\" and peer = \"{name}\" that matches the answers \
             (`src` and `dst`, `sport` and `dport` swapped), or remove the peer's site"
        ),
    )
}

/// Returns a hint if no packet returned. That can be correct: telemetry, or multicast.
fn hint(taken: u64, given: u64) -> &'static str {
    match (taken, given) {
        (1.., 0) => "; if answers are missing, run `pepd check` at the peer",
        _ => "",
    }
}

/// Returns a finding about the rate at which the kernel notifies hosts of packets refused by mode
/// `block`.
pub(super) fn refusals(config: &Config) -> Option<Finding> {
    let mut sites = config.sites.iter();
    sites.find(|(_, site)| site.mode == Mode::Block)?;
    let mask = sysctl("net/ipv4/icmp_ratemask").unwrap_or(0);
    let v4 = sysctl("net/ipv4/icmp_ratelimit").filter(|_| mask & UNREACHABLE != 0);
    Some(refusals_of(v4, sysctl("net/ipv6/icmp/ratelimit")))
}

/// Bit of `icmp_ratemask` for destination unreachable.
const UNREACHABLE: u64 = 1 << 3;

/// Returns the finding for the minimum intervals between two errors for a host, in milliseconds.
fn refusals_of(v4: Option<u64>, v6: Option<u64>) -> Finding {
    let what = "refusals by mode = \"block\"";
    let named = [
        ("net.ipv4.icmp_ratelimit", v4),
        ("net.ipv6.icmp.ratelimit", v6),
    ];
    let limits = named.into_iter().filter(|(_, limit)| *limit > Some(0));
    let (seen, mend): (Vec<_>, Vec<_>) = limits
        .map(|(name, limit)| {
            let limit = limit.unwrap_or_default();
            (format!("{name} = {limit}"), format!("{name}=0"))
        })
        .unzip();
    if seen.is_empty() {
        return Finding::ok(what, "hosts are notified of each");
    }
    Finding::warn(
        what,
        format!(
            "the kernel limits ICMP errors ({}): refused packets beyond that get no answer, so \
             browsers wait instead of falling back to TCP",
            seen.join(", ")
        ),
        format!(
            "sysctl -w {}, and the same in /etc/sysctl.d",
            mend.join(" ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn refusals_without_icmp_errors_are_reported() {
        for (v4, v6, named) in [
            (Some(1000), Some(1000), "icmp_ratelimit=0 net.ipv6"),
            (Some(1000), None, "sysctl -w net.ipv4.icmp_ratelimit=0,"),
            (Some(0), Some(100), "sysctl -w net.ipv6.icmp.ratelimit=0,"),
        ] {
            let found = refusals_of(v4, v6);
            assert_eq!(found.state, State::Warn);
            let remedy = found.remedy.expect("what to do");
            assert!(remedy.contains(named), "{remedy}");
        }
        for (v4, v6) in [(Some(0), Some(0)), (None, None)] {
            assert_eq!(refusals_of(v4, v6).state, State::Ok);
        }
        assert_eq!(refusals(&config("packet")), None);
    }

    fn config(mode: &str) -> Config {
        let text = format!(
            "[intercept]\nlan = [\"lan0\"]\n[identity]\nkey_file = \"k\"\n[peer.deaf]\nendpoint = \"192.0.2.1:1\"\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"voice\"\npeer = \"deaf\"\nmode = \"{mode}\"\nmatch = {{ dport = 5060 }}\n"
        );
        pep_core::config::parse(&text).expect("valid")
    }

    fn status(change: impl FnOnce(&mut PeerStatus)) -> Status {
        let mut status = pepd_api::testing::status();
        let peer = status.peers.iter_mut().find(|peer| peer.name == "deaf");
        change(peer.expect("there"));
        status
    }

    #[test]
    fn unmatched_packets_are_reported_with_the_missing_site() {
        let fine = check(&config("packet"), &status(|_| {}));
        assert_eq!((fine.len(), fine[0].state), (2, State::Ok));
        let without = Status {
            boosted: Vec::new(),
            ..status(|_| {})
        };
        assert_eq!(check(&config("tunnel"), &without), []);
        let status = status(|peer| {
            peer.packets_unmatched = 3;
            peer.unmatched_last = Some("tcp from 192.0.2.9:22 to 10.0.0.1:4000".to_owned());
        });
        let found = check(&config("packet"), &status).remove(0);
        assert_eq!(found.state, State::Warn);
        assert!(found.seen.contains("dropped 3 packets") && found.seen.contains("192.0.2.9:22"));
        let remedy = found.remedy.expect("what to do");
        assert!(remedy.contains("peer = \"deaf\""), "{remedy}");
    }

    #[test]
    fn a_boosted_site_that_sees_one_direction_is_reported() {
        for (from, to, state, named) in [
            (100, 0, State::Warn, "from the link must"),
            (0, 100, State::Warn, "from hosts must"),
            (100, 1, State::Ok, ""),
            (99, 0, State::Ok, ""),
        ] {
            let mut status = status(|_| {});
            (status.boosted[0].packets, status.boosted[0].delivered) = (from, to);
            let found = check(&config("block"), &status).remove(0);
            assert_eq!(found.state, state, "{found}");
            assert!(found.what.contains("radio"), "{found}");
            assert!(found.remedy.unwrap_or_default().contains(named));
        }
    }

    #[test]
    fn missing_answers_refer_to_the_peer() {
        assert!(hint(5, 0).contains("`pepd check` at the peer"));
        assert_eq!((hint(0, 0), hint(5, 1)), ("", ""));
    }

    #[test]
    fn a_peer_that_accepts_no_packets_is_reported() {
        let status = status(|peer| peer.takes_packets = Some(false));
        let found = check(&config("packet"), &status).remove(0);
        assert_eq!(found.state, State::Warn);
        assert!(found.seen.contains("accepts no packets"), "{found}");
    }
}
