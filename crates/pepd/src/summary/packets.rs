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
        (Mode::Block, ..) => "block: rejected by ICMP (port unreachable)".to_owned(),
        _ => "bypass: forwarded by the kernel, untouched".to_owned(),
    }
}

fn packet(site: &Site, policy: &PacketPolicy, peer: &str) -> String {
    let queue = match policy.queue {
        Some(size) => format!(", {size} in total"),
        None => String::new(),
    };
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
    let boosters: Vec<_> = policy
        .boost
        .rules()
        .map(|(name, rule)| match rule.when {
            When::Rule => format!("{name} by rule"),
            When::Always => name.to_owned(),
            When::Never => format!("{name} never"),
        })
        .collect();
    let boosters = match boosters.is_empty() {
        true => "none".to_owned(),
        false => boosters.join(", "),
    };
    format!(
        "packet to {peer} as {}, {without} while the peer is down; each waits at most {}{queue}{clamp}{joined}; boosters: {boosters}",
        site.class,
        duration::format(policy.deadline)
    )
}
