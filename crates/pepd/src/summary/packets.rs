//! Sites that handle single packets.

use pep_core::{
    config::When,
    site::{Mode, PacketPolicy, Site, WithoutPeer},
};
use units::duration;

/// Describes the mode of such a site.
pub(super) fn mode(site: &Site) -> String {
    match (site.mode, &site.packet, &site.peer) {
        (Mode::Packet, Some(policy), Some(peer)) => packet(site, policy, peer),
        (Mode::Boost, Some(policy), _) => boost(site, policy),
        (Mode::Block, ..) => "block: rejected by ICMP (port unreachable)".to_owned(),
        _ => "bypass: forwarded by the kernel, untouched".to_owned(),
    }
}

fn boost(site: &Site, policy: &PacketPolicy) -> String {
    format!(
        "boost as {}: both directions through boosters, then forwarded by the kernel; where `link.rate` is set, {}; \
         boosters: {}",
        site.class,
        waiting(policy),
        boosters(policy),
    )
}

/// Describes the queue before the link.
fn waiting(policy: &PacketPolicy) -> String {
    let queue = match policy.queue {
        Some(size) => format!(", {size} in total"),
        None => String::new(),
    };
    let deadline = duration::format(policy.deadline);
    format!("each waits at most {deadline}{queue}")
}

fn boosters(policy: &PacketPolicy) -> String {
    let boosters = policy.boost.rules().map(|(name, rule)| match rule.when {
        When::Rule => format!("{name} by rule"),
        When::Always => name.to_owned(),
        When::Never => format!("{name} never"),
    });
    let boosters: Vec<_> = boosters.collect();
    match boosters.is_empty() {
        true => "none".to_owned(),
        false => boosters.join(", "),
    }
}

fn packet(site: &Site, policy: &PacketPolicy, peer: &str) -> String {
    let without = match policy.on_peer_loss {
        WithoutPeer::Pass => "forwarded by the kernel",
        WithoutPeer::Drop => "dropped",
    };
    let clamp = match policy.mss_clamp {
        true => "; MSS clamped",
        false => "",
    };
    let joined = match policy.join {
        true => "",
        false => "; datagrams delivered one by one",
    };
    format!(
        "packet to {peer} as {}, {without} while the peer is down; {}{clamp}{joined}; boosters: {}",
        site.class,
        waiting(policy),
        boosters(policy),
    )
}
