//! Sockets: congestion controls, buffers, TCP settings, connection tracking.

use std::time::Duration;

use pep_core::{
    config::{Config, Link},
    site::{Buffers, LinkLeg, ReceiveBuffer, Site},
};
use pepd_api::{
    flows::{FlowStatus, LegStatus},
    link::LinkReport,
    text,
};
use pepd_sys::congestion::{Catalogue, Means};
use units::duration;

use super::{Finding, sysctl};

/// Round trip above which tail loss probes gain nothing (docs/custody.md).
const LONG: Duration = Duration::from_millis(200);
/// Maximum size of a socket's buffers (docs/configuration.md).
const BUFFERS_MOST: u64 = 64 << 20;
/// Maximum window without scaling (RFC 7323).
const WINDOW_UNSCALED: u64 = 65_535;

fn sites(config: &Config) -> impl Iterator<Item = &Site> {
    let sites = config.sites.iter().map(|(_, site)| site);
    sites.filter(|site| site.mode.takes_flows())
}

/// Returns true if a site gets one of pepd's own controls.
pub(super) fn loads(config: &Config, catalogue: &Catalogue) -> bool {
    let mut lists = sites(config).flat_map(|site| [&site.congestion, &site.congestion_lan]);
    lists.any(|wanted| {
        matches!(
            catalogue.choose(wanted).chosen,
            Some((_, Means::Program(_)))
        )
    })
}

/// Returns a finding that compares configured and available controls. A site without any available
/// control is an error of the configuration, reported earlier.
pub(super) fn congestion(config: &Config, catalogue: &Catalogue) -> Finding {
    let what = "congestion controls";
    let mut had = Vec::new();
    let mut takes_default = false;
    let mut passed_over = Vec::new();
    for site in sites(config) {
        for wanted in [&site.congestion, &site.congestion_lan] {
            if wanted.is_empty() {
                takes_default = true;
                continue;
            }
            let choice = catalogue.choose(wanted);
            if let Some((name, means)) = choice.chosen {
                had.push((name.to_string(), means.to_string()));
                passed_over.extend(choice.passed_over.iter().map(|why| why.instead(name)));
            }
        }
    }
    passed_over.sort();
    passed_over.dedup();
    let default = takes_default.then(|| catalogue.default());
    let had = each_once(had, default).join(", ");
    if passed_over.is_empty() {
        return Finding::ok(what, had);
    }
    Finding::warn(
        what,
        format!("{had}; {}", passed_over.join("; ")),
        "`pepd cc list` shows the available ones, and why one is missing",
    )
}

/// Returns each control once, with its origin: those of sites, and the kernel's default.
fn each_once(mut had: Vec<(String, String)>, default: Option<&str>) -> Vec<String> {
    const DEFAULT: &str = "this kernel's default";
    had.sort();
    had.dedup();
    let named = had.iter_mut().find(|(name, _)| default == Some(name));
    match (named, default) {
        (Some((_, means)), _) => *means = format!("{means}, {DEFAULT}"),
        (None, Some(default)) => had.push((default.to_owned(), DEFAULT.to_owned())),
        (None, None) => {}
    }
    let entries = had.iter().map(|(name, means)| format!("{name} ({means})"));
    entries.collect()
}

/// Returns a finding that compares the buffers of link legs with the bytes in flight in each
/// direction.
pub(super) fn buffers(config: &Config) -> Finding {
    let link = config.link.as_ref();
    let most = |name: &str| {
        let text = pepd_sys::sysctl(&format!("net/ipv4/{name}"))?;
        text.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    let legs = sites(config).map(|site| (site.name.as_str(), site.link_buffers(link)));
    let legs: Vec<_> = legs.collect();
    let sent = link.and_then(Link::bandwidth_delay_product);
    let received = link
        .and_then(Link::largest_bandwidth_delay_product)
        .or(sent);
    buffers_of(
        [sent, received],
        &legs,
        most("tcp_wmem"),
        link.and_then(|link| link.rtt),
    )
}

fn buffers_of(
    [sent, received]: [Option<u64>; 2],
    legs: &[(&str, Buffers)],
    autotuned: Option<u64>,
    rtt: Option<Duration>,
) -> Finding {
    let what = "buffers of sockets";
    for (site, buffers) in legs {
        let receive = match buffers.receive {
            ReceiveBuffer::Fixed(bytes) => Some(bytes),
            ReceiveBuffer::System | ReceiveBuffer::Grown(_) => None,
        };
        for (direction, bytes, flight) in
            [("send", buffers.send, sent), ("receive", receive, received)]
        {
            if let Some((bytes, flight)) = bytes.zip(flight)
                && bytes.min(BUFFERS_MOST) < flight
            {
                return Finding::warn(
                    what,
                    format!(
                        "site {site}: the {direction} buffer is {}, but the full link holds {}",
                        text::bytes(bytes),
                        text::bytes(flight)
                    ),
                    "one flow cannot fill the link: remove the site's `link_buffer`, or raise it (maximum 64MiB)",
                );
            }
        }
    }
    if let Some(flight) = sent {
        return Finding::ok(
            what,
            format!(
                "larger than the bandwidth-delay product ({}); receive buffers grow with the arriving data",
                text::bytes(flight)
            ),
        );
    }
    match autotuned {
        Some(most) => autotuned_of(what, most, rtt),
        None => Finding::unknown(
            what,
            "tcp_wmem is unreadable",
            "check that /proc/sys is mounted",
        ),
    }
}

/// Returns a finding about flows that one of pepd's own buffers limits, if any.
pub(super) fn windows(flows: &[FlowStatus]) -> Option<Finding> {
    let what = "windows of flows";
    let legs = |flow: &FlowStatus| [flow.client_leg.clone(), flow.server_leg.clone()];
    let limited = |by: fn(&LegStatus) -> bool| {
        let mut flows = flows
            .iter()
            .filter(|flow| legs(flow).iter().flatten().any(by));
        let first = flows.next()?;
        Some((first.flow.id.clone(), 1 + flows.count()))
    };
    let seen = |(id, count): (String, usize), by: &str| {
        let others = match count {
            1 => String::new(),
            2 => " and 1 other".to_owned(),
            _ => format!(" and {} others", count - 1),
        };
        format!("flow {id}{others} limited by {by}")
    };
    if let Some(found) = limited(|leg| leg.receive_limit.is_some()) {
        return Some(Finding::warn(
            what,
            seen(found, "pepd's receive buffer"),
            "remove `link_buffer` of its site, or raise `limits.memory`; or raise the third number of net.ipv4.tcp_rmem",
        ));
    }
    let found = limited(LegStatus::is_send_buffer_limited)?;
    Some(Finding::warn(
        what,
        seen(found, "pepd's send buffer"),
        "set the true `link.rate` and `link.rtt`, or a larger `link_buffer` for its site",
    ))
}

/// Fraction of the configured rate below which the link carries less, or the congestion control
/// yields.
const RATE_TRUE: f64 = 0.85;
/// Seconds after an outage in which flows may still be increasing their rate.
const SETTLED_S: f64 = 60.0;
/// Fraction of the window in flight from which a leg sends as much as its congestion control
/// allows.
const WINDOW_FULL: f64 = 0.7;
/// Bytes on the link per byte of payload: full segments with time stamps over IPv4.
const PACKETS: f64 = 1500.0 / 1448.0;

/// Judges `link.rate` by the rates of split flows that have enough to send.
///
/// `None` without such flows, or if they reach the configured rate. A link that carries more cannot
/// be detected: pepd does not send faster than configured. Nor can it soon after an outage, while
/// windows are growing again.
pub(super) fn stated_rate(
    config: &Config,
    link: &LinkReport,
    flows: &[FlowStatus],
) -> Option<Finding> {
    let stated = config.link.as_ref()?.rate?.bits_per_second() as f64;
    if !link.up || link.outages > 0 && link.for_s < SETTLED_S {
        return None;
    }
    let is_full = |leg: &&LegStatus| {
        let window = f64::from(leg.cwnd.max(1));
        f64::from(leg.in_flight) >= WINDOW_FULL * window
            && leg.busy_s > 20.0 * leg.rtt_s.unwrap_or(1.0)
    };
    let legs: Vec<_> = sites(config)
        .flat_map(|site| {
            let of_site = |flow: &&FlowStatus| {
                flow.peer.is_none() && flow.flow.site.as_deref() == Some(site.name.as_str())
            };
            flows
                .iter()
                .filter(of_site)
                .filter_map(|flow| match site.link_leg {
                    LinkLeg::Client => flow.client_leg.as_ref(),
                    LinkLeg::Server => flow.server_leg.as_ref(),
                })
        })
        .collect();
    let sent: f64 = legs
        .iter()
        .filter_map(|leg| leg.delivery_rate)
        .map(|rate| rate as f64)
        .sum();
    let sent = sent * PACKETS;
    if sent >= RATE_TRUE * stated || !legs.iter().any(is_full) {
        return None;
    }
    let resent = legs
        .iter()
        .any(|leg| leg.retransmitted > 0 && leg.congestion != "hybla_sat");
    let remedy = if resent {
        "the link carries less than `link.rate`: lower it; or losses slow a loss-based congestion control: `congestion = [\"hybla_sat\"]`"
    } else {
        "the link carries less than `link.rate`: lower it"
    };
    Some(Finding::warn(
        "link.rate",
        format!(
            "split flows with full windows get {} of the configured {}",
            text::bits(sent),
            text::bits(stated)
        ),
        remedy,
    ))
}

/// Half of a buffer is for the kernel's own needs (`tcp_adv_win_scale`).
fn autotuned_of(what: &str, most: u64, rtt: Option<Duration>) -> Finding {
    let seen = format!(
        "autotuned by the kernel up to {} (the third number of net.ipv4.tcp_wmem)",
        text::bytes(most)
    );
    let Some(rtt) = rtt else {
        return Finding::ok(
            what,
            format!("{seen}; set link.rate and link.rtt to have pepd size the buffers"),
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
        "set link.rate too: then pepd sizes the send buffer; or raise net.ipv4.tcp_wmem",
    )
}

/// Returns a finding about TCP settings that are costly on a link.
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
            "net.ipv4.tcp_window_scaling = 0: at most 64 KiB in flight",
            "sysctl -w net.ipv4.tcp_window_scaling=1",
        );
    }
    if no_sack {
        return Finding::warn(
            what,
            "net.ipv4.tcp_sack = 0: TCP detects only one lost packet per round trip",
            "sysctl -w net.ipv4.tcp_sack=1",
        );
    }
    if probes {
        return Finding::warn(
            what,
            "net.ipv4.tcp_early_retrans is on: after an outage split flows resume 0.5 s later than without it",
            "sysctl -w net.ipv4.tcp_early_retrans=0 (as the Debian package does), if the LAN loses no packets (Wi-Fi does): docs/custody.md",
        );
    }
    Finding::ok(what, "window scaling and SACK are on")
}

/// Returns a finding about conntrack, which tracks each server leg as one connection if loaded.
pub(super) fn conntrack(count: Option<u64>, most: Option<u64>, flows: u64) -> Option<Finding> {
    let what = "connection tracking";
    let (count, most) = count.zip(most)?;
    let seen = format!("{count} of {most} connections");
    let remedy = "sysctl -w net.netfilter.nf_conntrack_max=... (about 320 bytes each), or stop a flood of connections";
    if count >= most / 10 * 9 {
        return Some(Finding::fail(
            what,
            format!("{seen}: nearly full; new connections are dropped when full"),
            remedy,
        ));
    }
    if flows > most {
        let seen = format!("{seen}; limits.flows allows {flows} flows, one connection each");
        return Some(Finding::warn(what, seen, remedy));
    }
    Some(Finding::ok(what, seen))
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn each_congestion_control_is_named_once() {
        let had = || {
            let all = ["bbr", "reno", "bbr"].map(|name| (name.to_owned(), "kernel".to_owned()));
            all.to_vec()
        };
        assert_eq!(each_once(had(), None), ["bbr (kernel)", "reno (kernel)"]);
        assert_eq!(
            each_once(had(), Some("bbr")),
            ["bbr (kernel, this kernel's default)", "reno (kernel)"]
        );
        assert_eq!(
            each_once(Vec::new(), Some("cubic")),
            ["cubic (this kernel's default)"]
        );
    }

    #[test]
    fn buffers_hold_what_is_in_flight() {
        let of = |flight, send, receive| {
            let buffers = Buffers {
                send: Some(send),
                receive,
            };
            buffers_of(flight, &[("a", buffers)], Some(1), None)
        };
        let mib = |up: u64, down: u64| [Some(up << 20), Some(down << 20)];
        let grown = ReceiveBuffer::Grown(1);
        assert_eq!(of(mib(1, 10), 1 << 20, grown).state, State::Ok);
        let small = of(mib(1, 10), (1 << 20) - 1, grown);
        assert!(
            small.state == State::Warn && small.seen.contains("a: the send buffer"),
            "{small}"
        );
        let small = of(mib(1, 10), 1 << 20, ReceiveBuffer::Fixed(1 << 20));
        assert!(
            small.state == State::Warn && small.seen.contains("a: the receive buffer"),
            "{small}"
        );
        let second = Some(Duration::from_secs(1));
        let tuned = buffers_of([None; 2], &[], Some(2_000_000), second);
        assert!(tuned.seen.contains("8.00 Mbit/s"), "{tuned}");
        let state = |autotuned, rtt| buffers_of([None; 2], &[], autotuned, rtt).state;
        assert_eq!(state(None, second), State::Unknown);
        assert_eq!(state(Some(1), None), State::Ok);
    }

    #[test]
    fn a_stated_rate_that_full_windows_do_not_reach_is_named() {
        let config = "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"sat0\"\n\
            rate = \"10Mbit/s\"\n[[site]]\nname = \"all\"\n";
        let config = pep_core::config::parse(config).unwrap();
        let flow = |delivery_rate: u64, in_flight: u32, retransmitted: u32| {
            flow_with(&serde_json::json!({
                "rtt_s": 0.6, "cwnd": 100, "in_flight": in_flight, "retransmitted": retransmitted,
                "delivery_rate": delivery_rate, "busy_s": 60.0, "sndbuf_limited_s": 0.0,
            }))
        };
        let link = |up: bool, for_s: f64, outages: u64| LinkReport {
            up,
            for_s,
            outages,
            ..LinkReport::default()
        };
        let found = |flows: &[FlowStatus]| stated_rate(&config, &link(true, 5.0, 0), flows);
        assert_eq!(found(&[flow(9_600_000, 100, 0)]), None, "it is true");
        assert_eq!(found(&[flow(4_800_000, 20, 0)]), None, "little is sent");
        assert_eq!(
            found(&[flow(4_800_000, 90, 0), flow(4_800_000, 90, 0)]),
            None,
            "together"
        );
        let less = found(&[flow(4_800_000, 90, 0)]).unwrap();
        assert!(
            less.seen
                .contains("4.97 Mbit/s of the configured 10.0 Mbit/s"),
            "{less}"
        );
        let lossy = found(&[flow(4_800_000, 90, 7)]).unwrap();
        assert!(lossy.remedy.unwrap().contains("hybla_sat"));
        let mut already = flow(4_800_000, 90, 7);
        already.server_leg.as_mut().unwrap().congestion = "hybla_sat".to_owned();
        assert!(
            !found(&[already])
                .unwrap()
                .remedy
                .unwrap()
                .contains("hybla_sat")
        );
        let after = |link| stated_rate(&config, &link, &[flow(4_800_000, 90, 0)]);
        assert_eq!(after(link(true, 5.0, 1)), None, "windows grow again");
        assert_eq!(after(link(false, 90.0, 1)), None);
        assert!(after(link(true, 90.0, 1)).is_some());
    }

    fn flow_with(leg: &serde_json::Value) -> FlowStatus {
        let mut whole = serde_json::json!({
            "state": "established", "congestion": "cubic", "cwnd": 10, "mss": 1448, "unacked": 0,
            "retransmitted": 0, "busy_s": 10.0, "rwnd_limited_s": 0.0,
        });
        for (key, value) in leg.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let flow = serde_json::json!({
            "id": "7", "site": "all", "kind": "split", "client": "a", "destination": "b",
            "age_s": 1, "memory": [0, 0], "disk": [0, 0], "kernel": [0, 0], "state": "relaying",
            "up_bytes": 0, "down_bytes": 0, "server_leg": whole,
        });
        serde_json::from_value::<FlowStatus>(flow).expect("a flow")
    }

    #[test]
    fn flows_that_a_buffer_of_ours_limits_are_named() {
        let flow = |receive_limit: Option<u64>, sndbuf_limited_s: f64| {
            flow_with(&serde_json::json!({
                "sndbuf_limited_s": sndbuf_limited_s, "receive_limit": receive_limit,
            }))
        };
        assert_eq!(windows(&[flow(None, 0.1)]), None);
        let received = windows(&[flow(None, 0.0), flow(Some(1 << 20), 0.0)]).unwrap();
        assert!(
            received.seen.ends_with("limited by pepd's receive buffer"),
            "{received}"
        );
        let sent = windows(&[flow(None, 9.0), flow(None, 9.0)]).unwrap();
        assert_eq!(
            sent.seen,
            "flow 7 and 1 other limited by pepd's send buffer"
        );
    }

    #[test]
    fn settings_that_slow_tcp_down_are_reported() {
        let of = |bdp, unscaled, no_sack, probes| tcp_of(bdp, unscaled, no_sack, probes).state;
        assert_eq!(of(None, false, false, false), State::Ok);
        assert_eq!(of(Some(65_536), true, false, false), State::Fail);
        assert_eq!(of(Some(65_535), true, false, false), State::Ok);
        assert_eq!(of(None, false, true, false), State::Warn);
        assert_eq!(of(None, false, false, true), State::Warn);
    }

    #[test]
    fn connection_tracking_is_reported_when_on_and_filling_up() {
        assert_eq!(conntrack(None, None, 1), None);
        let state = |count, flows| conntrack(Some(count), Some(1000), flows).unwrap().state;
        assert_eq!(state(899, 1000), State::Ok);
        assert_eq!(state(899, 1001), State::Warn);
        assert_eq!(state(900, 1), State::Fail);
    }
}
