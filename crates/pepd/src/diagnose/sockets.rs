//! What sockets get of the kernel: congestion controls, buffers, settings of TCP, connection tracking.

use std::time::Duration;

use pep_core::{
    config::{Config, Link},
    site::Site,
};
use units::duration;

use super::{Finding, sysctl};
use crate::{congestion::Catalogue, intercept::setup, observe::text};

/// Probes that send the last packet again gain nothing where a round trip takes longer (docs/custody.md).
const LONG: Duration = Duration::from_millis(200);
/// Buffers of a socket are never larger (docs/configuration.md).
const BUFFERS_MOST: u64 = 64 << 20;
/// A window without scaling (RFC 7323).
const WINDOW_UNSCALED: u64 = 65_535;

fn sites(config: &Config) -> impl Iterator<Item = &Site> {
    let sites = config.sites.iter().map(|(_, site)| site);
    sites.filter(|site| site.mode.takes_flows())
}

/// What is asked for and what is had. That none can be had is an error of the configuration, told before.
pub(super) fn congestion(config: &Config, catalogue: &Catalogue) -> Finding {
    let what = "congestion controls";
    let mut had = Vec::new();
    let mut passed_over = Vec::new();
    for site in sites(config) {
        for wanted in [&site.congestion, &site.congestion_lan] {
            if wanted.is_empty() {
                had.push(format!("{} (this kernel's default)", catalogue.default()));
                continue;
            }
            let choice = catalogue.choose(wanted);
            had.extend(
                choice
                    .chosen
                    .map(|(name, means)| format!("{name} ({means})")),
            );
            passed_over.extend(choice.passed_over.iter().map(ToString::to_string));
        }
    }
    for list in [&mut had, &mut passed_over] {
        list.sort();
        list.dedup();
    }
    let had = had.join(", ");
    if passed_over.is_empty() {
        return Finding::ok(what, had);
    }
    Finding::warn(
        what,
        format!("{had}; passed over: {}", passed_over.join("; ")),
        "`pepd cc list` says what there is, and why one is missing",
    )
}

/// Whether the buffers of the link legs hold what is in flight.
pub(super) fn buffers(config: &Config) -> Finding {
    let link = config.link.as_ref();
    let bdp = link.and_then(Link::bandwidth_delay_product);
    let most = |name: &str| {
        let text = setup::sysctl(&format!("net/ipv4/{name}"))?;
        text.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    let autotuned = most("tcp_wmem")
        .zip(most("tcp_rmem"))
        .map(|(w, r)| w.min(r));
    let small = sites(config).filter_map(|site| {
        let buffers = site.link_buffers(link)?;
        Some((site.name.as_str(), buffers.send.min(BUFFERS_MOST)))
    });
    let least = small.min_by_key(|(_, bytes)| *bytes);
    buffers_of(bdp, least, autotuned, link.and_then(|link| link.rtt))
}

fn buffers_of(
    bdp: Option<u64>,
    least: Option<(&str, u64)>,
    autotuned: Option<u64>,
    rtt: Option<Duration>,
) -> Finding {
    let what = "buffers of sockets";
    match (bdp, least) {
        (Some(bdp), Some((site, bytes))) if bytes < bdp => Finding::warn(
            what,
            format!(
                "{} of site {site}, less than the {} that are in flight on the full link",
                text::bytes(bytes),
                text::bytes(bdp)
            ),
            "one flow cannot fill the link: a larger `link_buffer`, at most 64MiB, or none; many flows together can",
        ),
        (Some(bdp), Some((_, bytes))) => Finding::ok(
            what,
            format!(
                "{} or more on the link, where {} are in flight; set by pepd, whatever tcp_rmem and tcp_wmem say",
                text::bytes(bytes),
                text::bytes(bdp)
            ),
        ),
        _ => {
            let Some(most) = autotuned else {
                return Finding::unknown(
                    what,
                    "tcp_rmem and tcp_wmem cannot be read",
                    "is /proc/sys mounted?",
                );
            };
            autotuned_of(what, most, rtt)
        }
    }
}

/// Half of a buffer is for the kernel's own needs (`tcp_adv_win_scale`).
fn autotuned_of(what: &str, most: u64, rtt: Option<Duration>) -> Finding {
    let seen = format!(
        "autotuned by the kernel up to {} (the third numbers of net.ipv4.tcp_rmem and tcp_wmem)",
        text::bytes(most)
    );
    let Some(rtt) = rtt else {
        return Finding::ok(
            what,
            format!("{seen}; state link.rate and link.rtt to have pepd set them"),
        );
    };
    let rate = text::bits((most / 2 * 8) as f64 / rtt.as_secs_f64());
    let seen = format!(
        "{seen}: at {} that is {rate} for one flow",
        duration::format(rtt)
    );
    Finding::warn(
        what,
        seen,
        "state link.rate too: then pepd sets them; or raise both sysctls",
    )
}

/// Settings of TCP that cost much on a link.
pub(super) fn tcp(config: &Config) -> Finding {
    let link = config.link.as_ref();
    let is = |name: &str, value: u64| sysctl(&format!("net/ipv4/{name}")) == Some(value);
    let is_long = link
        .and_then(|link| link.rtt)
        .is_some_and(|rtt| rtt >= LONG);
    let bdp = link.and_then(Link::bandwidth_delay_product);
    tcp_of(
        bdp,
        is("tcp_window_scaling", 0),
        is("tcp_sack", 0),
        is_long && !is("tcp_early_retrans", 0),
    )
}

fn tcp_of(bdp: Option<u64>, unscaled: bool, no_sack: bool, probes: bool) -> Finding {
    let what = "settings of TCP";
    if unscaled && bdp.is_none_or(|bdp| bdp > WINDOW_UNSCALED) {
        return Finding::fail(
            what,
            "net.ipv4.tcp_window_scaling = 0: no more than 64 KiB are in flight",
            "sysctl -w net.ipv4.tcp_window_scaling=1",
        );
    }
    if no_sack {
        return Finding::warn(
            what,
            "net.ipv4.tcp_sack = 0: one lost packet a round trip is found, and no more",
            "sysctl -w net.ipv4.tcp_sack=1",
        );
    }
    if probes {
        return Finding::warn(
            what,
            "net.ipv4.tcp_early_retrans is on: after an outage a split flow goes on half a second later",
            "sysctl -w net.ipv4.tcp_early_retrans=0, if the hosts' side loses nothing (docs/custody.md); the package does so",
        );
    }
    Finding::ok(what, "windows are scaled, SACK is on")
}

/// Every server leg is one connection to it, where it is on.
pub(super) fn conntrack(count: Option<u64>, most: Option<u64>, flows: u64) -> Option<Finding> {
    let what = "connection tracking";
    let (count, most) = count.zip(most)?;
    let seen = format!("{count} of {most} connections");
    let remedy = "sysctl -w net.netfilter.nf_conntrack_max=... (about 320 bytes each), and fewer where something floods";
    if count >= most / 10 * 9 {
        return Some(Finding::fail(
            what,
            format!("{seen}: nearly full, then new ones are dropped"),
            remedy,
        ));
    }
    if flows > most {
        let seen = format!("{seen}; limits.flows allows {flows} flows, one each");
        return Some(Finding::warn(what, seen, remedy));
    }
    Some(Finding::ok(what, seen))
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn buffers_hold_what_is_in_flight() {
        let of = |bdp, bytes| buffers_of(bdp, Some(("a", bytes)), Some(1), None).state;
        assert_eq!(of(Some(1 << 20), 1 << 20), State::Ok);
        assert_eq!(of(Some(1 << 20), (1 << 20) - 1), State::Warn);
        let second = Some(Duration::from_secs(1));
        let tuned = buffers_of(None, None, Some(2_000_000), second);
        assert!(tuned.seen.contains("8.00 Mbit/s"), "{tuned}");
        assert_eq!(buffers_of(None, None, None, second).state, State::Unknown);
        assert_eq!(buffers_of(None, None, Some(1), None).state, State::Ok);
    }

    #[test]
    fn settings_that_slow_tcp_down_are_told() {
        let of = |bdp, unscaled, no_sack, probes| tcp_of(bdp, unscaled, no_sack, probes).state;
        assert_eq!(of(None, false, false, false), State::Ok);
        assert_eq!(of(Some(65_536), true, false, false), State::Fail);
        assert_eq!(of(Some(65_535), true, false, false), State::Ok);
        assert_eq!(of(None, false, true, false), State::Warn);
        assert_eq!(of(None, false, false, true), State::Warn);
    }

    #[test]
    fn connection_tracking_is_told_of_where_it_is_on_and_fills_up() {
        assert_eq!(conntrack(None, None, 1), None);
        let state = |count, flows| conntrack(Some(count), Some(1000), flows).unwrap().state;
        assert_eq!(state(899, 1000), State::Ok);
        assert_eq!(state(899, 1001), State::Warn);
        assert_eq!(state(900, 1), State::Fail);
    }
}
