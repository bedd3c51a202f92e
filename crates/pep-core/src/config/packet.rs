//! Sites that handle single packets: modes `packet` and `block`.

use units::{ByteSize, duration};

use super::{Config, Marks, PacketSite, sites::Context};
use crate::reading::{Findings, Section};
use crate::site::{Matcher, Mode, PacketPolicy, Site};

/// Maximum number of sites of mode `packet`: each takes a mark, a routing table and a TUN.
pub(super) const SITES_MAX: usize = 16;

/// Keys of TCP legs.
const OF_LEGS: [&str; 19] = [
    "congestion",
    "congestion_lan",
    "dedicated",
    "rtt0",
    "link_leg",
    "source",
    "syn",
    "dscp",
    "nodelay_lan",
    "nodelay_link",
    "mss",
    "timeouts",
    "notsent_lowat",
    "pacing",
    "share",
    "link_buffer",
    "lan_buffer",
    "while_down",
    "on_interception_loss",
];

/// Reads `[site.packet]` and `[site.boost]`, and checks the requirements of a site that has them.
pub(super) fn read(s: &mut Section<'_>, site: &Site) -> Option<PacketPolicy> {
    let packet = s.section("packet");
    let boost = s.section("boost");
    for (key, section) in [("packet", &packet), ("boost", &boost)] {
        if site.mode != Mode::Packet && section.is_present() {
            s.warning(
                key,
                format!("has no effect: only mode \"packet\" has `{key}`"),
            );
        }
    }
    let policy = packet.whole(|s| PacketPolicy::read_keys(s, site.class, boost));
    if site.mode.takes_packets() {
        check_legs(s, site.mode);
    }
    if site.mode != Mode::Packet {
        return None;
    }
    if !s.has("peer") {
        s.error(
            "peer",
            "missing: mode \"packet\" needs the name of a [peer.NAME] section",
        );
    }
    Some(policy)
}

fn check_legs(section: &Section<'_>, mode: Mode) {
    for key in OF_LEGS.into_iter().filter(|key| section.has(key)) {
        let message = format!("has no effect: mode \"{mode}\" has no TCP legs");
        section.warning(key, message);
    }
}

impl Context<'_> {
    /// Warns about a site whose match restricts neither the hosts that the peer can reach nor the
    /// packets that enter the tunnel.
    fn check_width(&self, index: usize, site: &Site) {
        if site.matcher == Matcher::default() {
            self.findings.warning(
                &format!("site[{}].mode", index + 1),
                "matches every packet of every protocol, and lets the peer reach every local \
                 host; set `src`, `dst`, `protocol` or ports in `match`",
            );
        }
    }

    /// Warns about loops on a one-armed machine, where a peer's packets leave by the interface on
    /// which hosts' packets arrive.
    fn check_loops(&self, index: usize, site: &Site) {
        let link = self.link.map(|link| &link.interface);
        let one_armed = link.is_some_and(|link| self.intercept.lan.contains(link));
        if one_armed && site.matcher.src.is_empty() && site.matcher.dst.is_empty() {
            self.findings.warning(
                &format!("site[{}].match", index + 1),
                "matches packets from and to hosts, and `link.interface` is in \
                 `intercept.lan`: packets from the peer may loop; set `src` or `dst`",
            );
        }
    }

    /// Limits sites of mode `packet`, each of which takes a mark.
    pub(super) fn check_packet_sites(&self, sites: &[Site]) {
        let of_packets = sites
            .iter()
            .enumerate()
            .filter(|(_, site)| site.mode == Mode::Packet);
        let of_packets: Vec<_> = of_packets.map(|(index, _)| index).collect();
        for &index in &of_packets {
            self.check_loops(index, &sites[index]);
            self.check_width(index, &sites[index]);
        }
        if let Some(index) = of_packets.get(SITES_MAX) {
            let count = of_packets.len();
            self.findings.error(
                &format!("site[{}].mode", index + 1),
                format!("{count} sites of mode \"packet\"; accepted: 0 to {SITES_MAX}, as each has a TUN device"),
            );
            return;
        }
        let (lans, packets) = (self.intercept.lan.len() as u64, of_packets.len() as u64);
        let fixed = u64::from(Marks::FIXED);
        let marks = self.intercept.marks;
        let without = fixed + lans;
        if (without..without + packets).contains(&marks.room()) {
            let needed = without + packets;
            self.findings.error(
                "intercept.mark_mask",
                format!(
                    "has room for {} marks from {:#x} upwards; {needed} are needed ({fixed}, one per interface of `lan`, and one \
                     per site of mode \"packet\")",
                    marks.room(),
                    marks.first(),
                ),
            );
        }
    }
}

/// Limits the queues and caches of packets to the memory of all flows.
pub(super) fn check_memory(config: &Config, findings: &Findings) {
    let of_site = |site: PacketSite<'_>| site.policy.memory(config.peers[site.peer].rate);
    let needed = config.packet_sites().map(of_site).sum();
    let memory = config.limits.memory;
    if needed > memory.bytes() {
        let needed = ByteSize(needed);
        findings.error(
            "limits.memory",
            format!(
                "{memory} is less than the maximum of all queues and caches of mode \"packet\", \
                 {needed}; accepted: \"{needed}\" or more, or a smaller `packet.queue`, `boost.arq.cache` or `boost.snoop.cache`"
            ),
        );
    }
}

/// Warns about ARQ waits that end before a retransmission can arrive, one round trip later.
pub(super) fn check_waits(config: &Config, findings: &Findings) {
    for site in config.packet_sites() {
        let rtt = config.peers[site.peer].rtt;
        let wait = site.policy.boost.arq.as_ref().map(|arq| arq.wait);
        let Some((wait, rtt)) = wait.zip(rtt).filter(|(wait, rtt)| wait < rtt) else {
            continue;
        };
        let [wait, rtt] = [wait, rtt].map(duration::format);
        findings.warning(
            &format!("site[{}].boost.arq", site.id.index() + 1),
            format!(
                "has no effect: `wait` (or else `packet.deadline`) is {wait}, below the round \
                 trip of {rtt} to the peer: retransmissions come too late; set a longer `wait`"
            ),
        );
    }
}
