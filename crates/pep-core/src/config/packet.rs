//! Sites that handle single packets: modes `packet`, `boost` and `block`.

use units::{ByteSize, duration};

use super::{Config, Marks, PacketSite, sites::Context};
use crate::reading::{Findings, Section};
use crate::site::{
    Matcher, Mode, PacketPolicy, Site,
    boost::{Boost, Rule, When},
};

/// Maximum number of sites of modes `packet` and `boost`: each takes one or two marks, routing
/// tables and TUNs.
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
        if !site.mode.boosts() && section.is_present() {
            s.warning(
                key,
                format!("has no effect: only modes \"packet\" and \"boost\" have `{key}`"),
            );
        }
    }
    if site.mode == Mode::Boost {
        check_peerless(s, &packet);
    }
    let policy = packet.whole(|s| PacketPolicy::read_keys(s, site.class, boost));
    if site.mode == Mode::Boost {
        check_boosters(s, &policy.boost);
    }
    if site.mode.takes_packets() {
        check_legs(s, site.mode);
    }
    if !site.mode.boosts() {
        return None;
    }
    if site.mode == Mode::Packet && !s.has("peer") {
        s.error(
            "peer",
            "missing: mode \"packet\" needs the name of a [peer.NAME] section",
        );
    }
    Some(policy)
}

/// Boosters whose packets the far end has to restore.
const OF_PEERS: [&str; 5] = ["fec", "arq", "ack_reconstruction", "jitter", "compress"];

/// Rejects boosters that need a peer.
fn check_boosters(site: &Section<'_>, boost: &Boost) {
    let names = boost.rules().map(|(name, _)| name);
    for name in names.filter(|name| OF_PEERS.contains(name)) {
        let message = "needs mode \"packet\" and a `peer`, which restores the packets; accepted with mode \"boost\": \
                       ack_filter, data_filter, snoop, divacks, checksum, congestion";
        site.error(&format!("boost.{name}"), message);
    }
}

/// Warns about keys of peers.
fn check_peerless(site: &Section<'_>, packet: &Section<'_>) {
    if site.has("peer") {
        site.warning("peer", "has no effect: mode \"boost\" needs no peer");
    }
    let keys = ["mss_clamp", "join", "on_peer_loss"];
    for key in keys.into_iter().filter(|key| packet.has(key)) {
        packet.warning(key, "has no effect: mode \"boost\" has no peer");
    }
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

    /// Reports sites that match both directions on a one-armed machine, where packets from the link
    /// arrive by the interface on which those of hosts arrive.
    fn check_loops(&self, index: usize, site: &Site) {
        let link = self.link.map(|link| &link.interface);
        let one_armed = link.is_some_and(|link| self.intercept.lan.contains(link));
        if !one_armed || !site.matcher.src.is_empty() || !site.matcher.dst.is_empty() {
            return;
        }
        let key = format!("site[{}].match", index + 1);
        let both = "matches packets from and to hosts, and `link.interface` is in `intercept.lan`";
        match site.mode {
            Mode::Boost => {
                let message =
                    format!("{both}: pepd cannot tell the directions apart; set `src` or `dst`");
                self.findings.error(&key, message);
            }
            _ => {
                let message = format!("{both}: packets from the peer may loop; set `src` or `dst`");
                self.findings.warning(&key, message);
            }
        }
    }

    /// Limits sites of modes `packet` and `boost`, whose TUNs take marks.
    pub(super) fn check_packet_sites(&self, sites: &[Site]) {
        let of_packets = sites.iter().enumerate();
        let of_packets: Vec<_> = of_packets.filter(|(_, site)| site.mode.boosts()).collect();
        for &(index, site) in &of_packets {
            self.check_loops(index, site);
            if site.mode == Mode::Packet {
                self.check_width(index, site);
            }
        }
        if let Some((index, _)) = of_packets.get(SITES_MAX) {
            let count = of_packets.len();
            self.findings.error(
                &format!("site[{}].mode", index + 1),
                format!(
                    "{count} sites of modes \"packet\" and \"boost\"; accepted: 0 to {SITES_MAX}, as each has TUN devices"
                ),
            );
            return;
        }
        let tuns = |(_, site): &(usize, &Site)| if site.mode == Mode::Boost { 2 } else { 1 };
        let packets: u64 = of_packets.iter().map(tuns).sum();
        let lans = self.intercept.lan.len() as u64;
        let fixed = u64::from(Marks::FIXED);
        let marks = self.intercept.marks;
        let without = fixed + lans;
        if (without..without + packets).contains(&marks.room()) {
            let needed = without + packets;
            self.findings.error(
                "intercept.mark_mask",
                format!(
                    "has room for {} marks from {:#x} upwards; {needed} are needed ({fixed}, one per interface of `lan`, one \
                     per site of mode \"packet\", two per site of mode \"boost\")",
                    marks.room(),
                    marks.first(),
                ),
            );
        }
    }
}

/// Returns the maximum bytes of all queues and caches of packets.
pub(super) fn memory(config: &Config) -> u64 {
    let of_site = |site: PacketSite<'_>| site.policy.memory(config.rate_before(&site));
    config.packet_sites().map(of_site).sum()
}

/// Limits the queues and caches of packets to the memory of all flows.
pub(super) fn check_memory(config: &Config, findings: &Findings) {
    let needed = memory(config);
    let memory = config.limits.memory;
    if needed > memory.bytes() {
        let needed = ByteSize(needed);
        findings.error(
            "limits.memory",
            format!(
                "{memory} is less than the maximum of all queues and caches of modes \"packet\" and \"boost\", \
                 {needed}; accepted: \"{needed}\" or more, or a smaller `packet.queue`, `boost.arq.cache` or `boost.snoop.cache`"
            ),
        );
    }
}

/// Warns about ARQ waits that end before a retransmission can arrive, one round trip later.
pub(super) fn check_waits(config: &Config, findings: &Findings) {
    for site in config.packet_sites() {
        let rtt = site.peer.and_then(|peer| config.peers[peer].rtt);
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

/// Warns about sites of mode `boost` whose boosters can do nothing: without a peer, pepd does not
/// measure the loss of the link, and without a rate no packet waits.
pub(super) fn check_boosts(config: &Config, findings: &Findings) {
    let link = config.link.as_ref();
    let rate = link.and_then(|link| link.rate);
    let both = rate.and_then(|_| link?.rate_down);
    for site in config.boosted_sites() {
        let key = format!("site[{}].boost", site.id.index() + 1);
        let boost = &site.policy.boost;
        if boost.rules().next().is_none() {
            let message = "missing: mode \"boost\" without a booster does nothing; expected for example `snoop = true`";
            findings.warning(&key, message);
        }
        for (name, rule) in boost.rules().filter(|(_, rule)| rule.when == When::Rule) {
            let key = format!("{key}.{name}");
            if rule.loss_above.is_some() {
                let message = "`loss_above` never holds with mode \"boost\": without a peer, pepd does not measure the loss of the \
                               link; remove the condition";
                findings.warning(&key, message);
            }
            if rule.asymmetry_above.is_some() && both.is_none() {
                let message =
                    "`asymmetry_above` never holds without `link.rate` and `link.rate_down`";
                findings.warning(&key, message);
            }
        }
        let of_queue = ["ack_filter", "congestion"].into_iter();
        let waits = |name: &str, rule: &Rule| {
            of_queue.clone().any(|of| of == name) || rule.queue_above.is_some()
        };
        for (name, _) in boost.rules().filter(|(name, rule)| waits(name, rule)) {
            if rate.is_none() {
                let message = "has no effect without `link.rate`: no packet waits in pepd's queue; set the rate into the link";
                findings.warning(&format!("{key}.{name}"), message);
            }
        }
    }
}
