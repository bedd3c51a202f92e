//! File descriptors: the number available and the number needed.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pep_core::{
    config::{Config, Midway},
    custody::FILES_OPEN,
};
use pepd_intercept::setup;
pub use pepd_sys::descriptors::open;
use pepd_sys::threads;
use units::counted;

/// Open files of custody, signals (a pair of sockets and copies of one), the watch for neighbours,
/// a log that is rotated.
const OTHERS_LATER: usize = FILES_OPEN + 8 + ADMIN;
/// The admin socket and its clients.
const ADMIN: usize = 17;

/// Event loop: two epoll descriptors, an eventfd, a copy of the pipe for signals.
const EVENT_LOOP: u64 = 4;
/// Netlink socket by which a thread that opens server legs asks for the marks of SYNs.
const ASKER: u64 = 1;
/// The claim (two), the memory of the rings, netlink, signals, the watches for neighbours and for
/// changes; the supervisor, the runner, and in the keeper, this process.
const ALWAYS: u64 = 15;
/// The TUN device, sockets that forge answers, a server leg made ahead, and a log of packets.
const DEFER: u64 = 10;
/// A log of packets, and sockets that send resets.
const MIDWAY: u64 = 3;
/// An event loop, and the sockets and timer of a tunnel thread.
const TUNNELS: u64 = EVENT_LOOP + 10;
/// A TUN of a site in mode `packet` or `boost`, and its watch.
const PACKETS: u64 = 2;
/// A multicast socket of each family, and its watch.
const GROUPS: u64 = 4;
/// The custody directory.
const CUSTODY: u64 = 1;
/// An event loop, a timer and its watch, and a copy of the TUN for passed packets.
const BOOSTERS: u64 = EVENT_LOOP + 3;
/// Kept for running nft: files of its input, output and errors, a pipe for its result, and copies
/// until the runner has them; as many again since acceptors may be faster.
pub const SPARE: usize = 16;
/// Two legs of a flow.
const FLOW: u64 = 2;

/// Raises the soft limit to the hard limit. Returns the number of descriptors now available.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let Ok((soft, hard)) = limit else { return 1024 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => pepd_sys::wide(hard),
        Err(err) => {
            tracing::warn!(error = %err, limit = soft, "cannot raise the soft limit of file descriptors");
            pepd_sys::wide(soft)
        }
    }
}

/// Returns the number without which pepd does not start: enough to carry one flow and to remove all
/// rules at the end. `open` are open at the start.
pub fn to_start(config: &Config, open: u64) -> u64 {
    // If open descriptors cannot be counted, assume the three standard ones.
    open.max(3) + minimum(config, threads::count() as u64, families())
}

/// Returns the number with which `limits.flows` can be reached, with `open` at the start. May be
/// somewhat more than a running pepd counts, never fewer.
pub fn in_full(config: &Config, open: u64) -> u64 {
    let kept = u64::from(config.limits.descriptors);
    config.descriptors_needed() + without_flows(config, open).saturating_sub(kept)
}

/// Returns the number that belong to no flow, with `open` at the start.
pub fn without_flows(config: &Config, open: u64) -> u64 {
    // Each listener has at most one leg in reserve.
    let reserves = listeners(config, threads::count() as u64, families());
    to_start(config, open) - FLOW + reserves + OTHERS_LATER as u64
}

fn listeners(config: &Config, workers: u64, families: u64) -> u64 {
    let sites = config.sites.iter().map(|(_, site)| site);
    let sites = sites.filter(|site| site.mode.takes_flows());
    sites.count() as u64 * workers * families
}

fn families() -> u64 {
    setup::families().count() as u64
}

/// Returns the number needed besides those open at the start, for this number of workers.
fn minimum(config: &Config, workers: u64, families: u64) -> u64 {
    let listeners = listeners(config, workers, families);
    let tunnels = config.tunnel_threads() as u64 * TUNNELS;
    let defer = if config.takes_syns() { DEFER } else { 0 };
    let midway = match config.intercept.midway {
        Midway::Reset => MIDWAY,
        Midway::Pass => 0,
    };
    let packets = PACKETS * config.packet_tuns() as u64;
    // One more for passed packets, and those for groups.
    let packets = packets + u64::from(packets > 0) * (1 + GROUPS);
    let boosts = config.boosted_sites().next().is_some();
    let packets = packets + u64::from(boosts) * BOOSTERS;
    let custody = u64::from(config.custody.directory.is_some()) * CUSTODY;
    let event_loops = (1 + workers) * (EVENT_LOOP + ASKER);
    // While nft installs or removes rules, it uses the spare ones.
    let by_use = listeners + event_loops + tunnels + defer + midway + packets + custody;
    by_use + ALWAYS + SPARE as u64 + FLOW
}

/// Returns the number of descriptors outside flows that are opened later, with `reserved_legs` made
/// ahead by listeners and for held SYNs.
pub fn later(reserved_legs: usize) -> u64 {
    let askers = (1 + threads::count() as u64) * ASKER;
    askers + (reserved_legs + SPARE + OTHERS_LATER) as u64
}

/// Warns that descriptors allow only `cap` flows: `available` in all, of which `others` are kept
/// for other uses.
pub fn warn_of_few(config: &Config, cap: u32, available: u64, others: u64) {
    let more = others.saturating_sub(config.limits.descriptors.into());
    let needed = config.descriptors_needed() + more;
    tracing::warn!(
        "not enough file descriptors: only {} can be accelerated ({available} of {needed} for \
         `limits.flows`); raise LimitNOFILE= or ulimit -n",
        counted(cap.into(), "flow"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        pep_core::config::parse(&format!("[intercept]\nlan = [\"eth0\"]\n{more}")).expect("valid")
    }

    #[test]
    fn more_sites_processors_and_devices_need_more_descriptors() {
        let config = |text: &str| config(&format!("forward = \"ignore\"\n{text}"));
        let smallest = minimum(&config(""), 1, 1);
        let obeys = self::config("");
        assert_eq!(minimum(&obeys, 1, 1), smallest + DEFER);
        let site = "[[site]]\nname = \"a\"\n";
        assert_eq!(minimum(&config(site), 1, 1), smallest + 1);
        assert_eq!(
            minimum(&config(""), 2, 2),
            smallest + 3 + EVENT_LOOP + ASKER
        );
        assert_eq!(
            minimum(&config("syn = \"defer\"\n"), 1, 1),
            smallest + DEFER
        );
        assert_eq!(
            minimum(&config("midway = \"pass\"\n"), 1, 1),
            smallest - MIDWAY
        );
        let peer = |name, number| {
            let key = pep_core::key::PublicKey([number; 32]);
            format!("[peer.{name}]\npublic_key = \"{key}\"\n")
        };
        let tunnels = |threads| {
            let limits = format!("[limits]\ntunnel_threads = {threads}\n");
            let peers = peer("a", 1) + &peer("b", 2);
            config(&format!("[identity]\nkey_file = \"a\"\n{limits}{peers}"))
        };
        assert_eq!(minimum(&tunnels(1), 1, 1), smallest + TUNNELS);
        // At most one for each peer.
        assert_eq!(minimum(&tunnels(3), 1, 1), smallest + 2 * TUNNELS);
        let mut on_disk = tunnels(1);
        on_disk.custody.directory = Some("/a".into());
        assert_eq!(minimum(&on_disk, 1, 1), smallest + TUNNELS + CUSTODY);
        let bypass = "[[site]]\nname = \"a\"\nmode = \"bypass\"\nsyn = \"defer\"\n";
        assert_eq!(minimum(&config(bypass), 1, 1), smallest);
    }

    #[test]
    fn with_all_that_are_needed_limits_flows_is_reached() {
        for text in [
            "",
            "syn = \"defer\"\n",
            "[limits]\nflows = 20\ndescriptors = 1000\n",
        ] {
            let config = config(text);
            let (all, others) = (in_full(&config, 6), without_flows(&config, 6));
            let cap = |all| crate::limits::flow_cap(&config, all, others);
            assert_eq!(cap(all), config.limits.flows, "{text}");
            // Held SYNs get a third of the room.
            assert!(
                config.defers() || cap(all - 1) < config.limits.flows,
                "{text}"
            );
            assert!(to_start(&config, 6) < all);
        }
    }
}
