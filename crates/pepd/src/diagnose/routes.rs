//! Routes to hosts and servers: packets have to leave by the interface where they arrive.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::IpNet;
use pep_core::{
    config::Config,
    site::{LinkLeg, Mode},
};
use pepd_api::flows::FlowStatus;
use pepd_intercept::{netlink::interface, route::Routing, rules::Features, setup};
use pepd_sys::marks::MarkSet;

use super::{Finding, Net, State, hops, read, sysctl};

/// Address that no machine has (for documentation, RFC 5737), which takes the default route.
const DOCUMENTATION: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Maximum number of addresses looked up, of clients and of servers each.
const LOOKED_UP: usize = 64;

/// Returns true if the reverse path check of an interface is strict: the larger of two settings
/// applies (`ip-sysctl`).
fn is_strict(name: &str) -> bool {
    let of = |name: &str| sysctl(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    of("all").max(of(name)) == 1
}

/// Returns the packets of this namespace that the reverse path check has dropped, from
/// `/proc/net/netstat`.
fn dropped(netstat: &str) -> Option<u64> {
    let mut lines = netstat
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt:"));
    let names = lines.next()?.split_whitespace();
    let mut all = names.zip(lines.next()?.split_whitespace());
    let (_, count) = all.find(|(name, _)| *name == "IPReversePathFilter")?;
    count.parse().ok()
}

/// Returns the findings that do not need a running pepd.
pub(super) async fn check(config: &Config, net: &Net) -> Vec<Finding> {
    let mut findings = vec![reverse_path(config)];
    for (_, site) in config
        .sites
        .iter()
        .filter(|(_, site)| site.mode.takes_flows())
    {
        for prefix in &site.matcher.src {
            findings.extend(to_hosts(config, net, &site.name, *prefix).await);
        }
    }
    findings.extend(to_link(config, net).await);
    findings.extend(hops::check(config));
    findings.extend(policy(config, net).await);
    findings
}

/// Returns a finding about policy rules that route packets of hosts, but not those that pepd sends
/// for them.
pub(super) async fn policy(config: &Config, net: &Net) -> Option<Finding> {
    let routing = Routing::new(config, Features::FULL.families());
    let rules = routing.for_hosts_only(net.netlink.as_ref()?).await.ok()?;
    (!rules.is_empty()).then(|| {
        Finding::warn(
            "policy routing",
            format!(
                "{}: for packets of hosts, but not for pepd's connections to servers, which other rules route",
                rules.join("; ")
            ),
            "use rules by a masked mark, such as fwmark 0x100/0xffffff, set on packets of hosts in prerouting: \
             server legs copy it beside pepd's own bits; \
             or use a site with mode = \"bypass\" for such hosts: docs/interception.md",
        )
    })
}

/// Returns a note that pepd accelerates one direction, where sites split flows and servers are
/// beyond the link.
pub(super) fn side(config: &Config) -> Option<Finding> {
    let sites = || config.sites.iter().map(|(_, site)| site);
    let split = sites().any(|site| site.mode == Mode::Split && site.link_leg == LinkLeg::Server);
    // A pepd in front of servers also has the built-in last site, which takes other flows.
    let serves = sites().any(|site| site.link_leg == LinkLeg::Client);
    (split && !serves).then(|| Finding::info(
        "direction",
        "pepd accelerates data that it sends over the link (uploads); downloads use the server's congestion control",
        "for faster downloads of sites with mode split: another pepd at the far end, or mode = \"tunnel\" to one",
    ))
}

/// Returns a finding about the local delivery of redirected packets, by a policy rule and a route
/// of pepd.
pub(super) async fn delivery(config: &Config, net: &Net) -> Option<Finding> {
    let delivers = delivers(config, net).await?;
    Some(delivery_of(delivers, config.intercept.rule_priority))
}

/// Returns true if the kernel delivers packets with the mark of redirected ones locally.
///
/// `None` if the kernel does not answer.
pub(super) async fn delivers(config: &Config, net: &Net) -> Option<bool> {
    let families = Features {
        ipv6: setup::has_ipv6(),
        ..Features::FULL
    };
    let routing = Routing::new(config, families.families());
    routing.works(net.netlink.as_ref()?).await.ok()
}

fn delivery_of(delivers: bool, priority: u32) -> Finding {
    let what = "routes of pepd";
    if delivers {
        return Finding::ok(what, "redirected packets are delivered to pepd");
    }
    Finding::fail(
        what,
        "the kernel does not deliver redirected packets to pepd: pepd's policy rule or route is \
         missing or overridden",
        format!(
            "pepd reinstalls them, ahead of others, within a second or two: repeat the check. If it persists: see pepd's log, and \
             `ip rule`, which lists rules with a priority of {priority} or less"
        ),
    )
}

fn reverse_path(config: &Config) -> Finding {
    let lan = config.intercept.lan.iter();
    let link = config.link.as_ref().map(|link| &link.interface);
    let names: BTreeSet<_> = lan.chain(link).map(AsRef::as_ref).collect();
    let strict: Vec<&str> = names.into_iter().filter(|name| is_strict(name)).collect();
    let dropped = dropped(&read("/proc/net/netstat")).unwrap_or(0);
    reverse_path_of(&strict, dropped)
}

fn reverse_path_of(strict: &[&str], dropped: u64) -> Finding {
    let what = "reverse path check (rp_filter)";
    let where_ = if strict.is_empty() {
        "not strict on pepd's interfaces".to_owned()
    } else {
        format!("strict on {}", strict.join(", "))
    };
    if dropped == 0 {
        return Finding::ok(what, format!("{where_}; it has dropped nothing"));
    }
    Finding::warn(
        what,
        format!(
            "{where_}; it has dropped {dropped} packets since the start of the machine or namespace"
        ),
        "if that number grows while connections hang: packets arrive by an interface that has no route to their \
         source. Fix the routes, or `sysctl -w net.ipv4.conf.IFACE.rp_filter=2` (the larger of IFACE and `all` applies)",
    )
}

/// Returns an address within a prefix that a host may have.
fn within(prefix: IpNet) -> IpAddr {
    prefix.hosts().next().unwrap_or(prefix.addr())
}

/// Returns the interface by which servers are reached.
pub(super) async fn uplink(config: &Config, net: &Net) -> Option<String> {
    let mark = MarkSet::new(config.intercept.marks).server_leg();
    by(net, DOCUMENTATION, mark).await.flatten()
}

async fn by(net: &Net, address: IpAddr, mark: u32) -> Option<Option<String>> {
    let route = net.netlink.as_ref()?.look_up(address, mark).await.ok()?;
    let index = route.as_ref().and_then(interface);
    Some(index.map(|index| {
        net.name(index)
            .map_or_else(|| index.to_string(), str::to_owned)
    }))
}

async fn to_hosts(config: &Config, net: &Net, site: &str, prefix: IpNet) -> Option<Finding> {
    if prefix.prefix_len() == 0 {
        return None;
    }
    let device = by(net, within(prefix), 0).await?;
    let lan = names(config);
    hosts_of(site, prefix, device.as_deref(), &lan, is_strict)
}

fn names(config: &Config) -> Vec<&str> {
    config.intercept.lan.iter().map(AsRef::as_ref).collect()
}

/// Returns a finding about a site's prefix; `None` if its route is correct, since prefixes may be
/// many.
fn hosts_of(
    site: &str,
    prefix: IpNet,
    device: Option<&str>,
    lan: &[&str],
    strict: impl Fn(&str) -> bool,
) -> Option<Finding> {
    if device.is_some_and(|device| lan.contains(&device)) {
        return None;
    }
    let what = format!("route to the hosts of site {site}");
    let list = lan.join(", ");
    let seen = match device {
        Some("lo") => return None,
        Some(device) => format!("{prefix} is reached by {device}, not by {list} (intercept.lan)"),
        None => format!("no route to {prefix}"),
    };
    let remedy = format!(
        "packets for these hosts leave by another interface than they arrive by: route \
         {prefix} by the router on {list} (`ip route`), or add the interface by which they arrive \
         to `intercept.lan`"
    );
    let is_dropped = prefix.addr().is_ipv4() && lan.iter().all(|lan| strict(lan));
    let state = if is_dropped { State::Fail } else { State::Warn };
    let seen = if is_dropped {
        format!("{seen}; the strict reverse path check there drops their packets")
    } else {
        seen
    };
    Some(Finding::new(state, what, seen, remedy))
}

/// Returns a finding about the route to servers, which has to lead by the configured link.
async fn to_link(config: &Config, net: &Net) -> Option<Finding> {
    let link = config.link.as_ref()?.interface.as_str();
    net.named(link)?;
    let mark = MarkSet::new(config.intercept.marks).server_leg();
    let device = by(net, DOCUMENTATION, mark).await?;
    let faces_clients = config
        .sites
        .iter()
        .any(|(_, site)| site.link_leg == LinkLeg::Client);
    let mut device = device;
    if hops::is_default_by(link) {
        // A look-up finds one of its next hops.
        device = Some(link.to_owned());
    }
    (!faces_clients).then(|| link_of(link, device.as_deref(), &names(config), is_strict(link)))
}

fn link_of(link: &str, device: Option<&str>, lan: &[&str], strict: bool) -> Finding {
    let what = "route to the link";
    match device {
        Some(device) if device == link => {
            Finding::ok(what, format!("the default route leads by {link}"))
        }
        Some(device) if lan.contains(&device) => Finding::warn(
            what,
            format!(
                "{device} is in intercept.lan, but the default route leads by it, not by {link}"
            ),
            format!(
                "if the two are swapped, set intercept.lan = [\"{link}\"] and \
                 link.interface = \"{device}\"; otherwise route servers by {link} (`ip route`)"
            ),
        ),
        Some(device) => {
            let dropped = if strict {
                "; the strict reverse path check of the link drops packets that return by it"
            } else {
                ""
            };
            Finding::warn(
                what,
                format!(
                    "the default route leads by {device}, not by {link} (link.interface){dropped}"
                ),
                format!(
                    "only packets routed by {link} cross it: route servers there (`ip route`), or set link.interface to {device}; \
                     otherwise rate and buffers are those of another link"
                ),
            )
        }
        None => Finding::warn(
            what,
            format!("no default route; some prefixes are routed by {link}"),
            "nothing to do if each server is in one of these prefixes (`ip route`); else add a route by that interface",
        ),
    }
}

/// Returns a finding about clients that are not reached by LAN interfaces.
pub(super) async fn of_flows(
    config: &Config,
    net: &Net,
    flows: &[FlowStatus],
    half_open: &[SocketAddr],
) -> Option<Finding> {
    let near = flows.iter().filter(|flow| flow.flow.kind != "far");
    let clients = near.filter_map(|flow| flow.flow.client.parse::<SocketAddr>().ok());
    let clients: BTreeSet<IpAddr> = clients
        .chain(half_open.iter().copied())
        .map(|client| client.ip())
        .take(LOOKED_UP)
        .collect();
    let lan = names(config);
    let mut astray = Vec::new();
    for &client in &clients {
        let device = by(net, client, 0).await?;
        if !device
            .as_deref()
            .is_some_and(|device| lan.contains(&device))
        {
            astray.push((client, device));
        }
    }
    clients_of(clients.len(), &astray, &lan.join(", "))
}

fn clients_of(all: usize, astray: &[(IpAddr, Option<String>)], lan: &str) -> Option<Finding> {
    let what = "route to clients";
    let Some((client, device)) = astray.first() else {
        return (all > 0).then(|| {
            Finding::ok(
                what,
                format!("all clients with open flows ({all}) are reached by {lan}"),
            )
        });
    };
    let device = device
        .as_ref()
        .map_or("no interface".to_owned(), Clone::clone);
    Some(Finding::fail(
        what,
        format!(
            "{} of {all} clients are not reached by {lan}, where their packets arrive: {client} by {device}",
            astray.len()
        ),
        format!(
            "pepd's answers do not reach them: fix the route to {client} (`ip route get {client}`), so that it leads by {lan}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_reverse_path_check_dropped_is_read() {
        let text = "TcpExt: SyncookiesSent IPReversePathFilter TCPTimeWait\nTcpExt: 1 22 3\nIpExt: a\nIpExt: 4\n";
        assert_eq!(dropped(text), Some(22));
        assert_eq!(dropped("TcpExt: A\nTcpExt: 1\n"), None);
        assert_eq!(dropped(""), None);
        assert_eq!(reverse_path_of(&["lan0"], 0).state, State::Ok);
        assert_eq!(reverse_path_of(&[], 5).state, State::Warn);
    }

    #[test]
    fn one_pepd_in_front_of_hosts_does_not_speed_downloads() {
        let found = |site: &str| {
            let text = format!("[intercept]\nlan = [\"lan0\"]\n[[site]]\nname = \"a\"\n{site}");
            side(&pep_core::config::parse(&text).unwrap()).map(|finding| finding.state)
        };
        assert_eq!(found(""), Some(State::Info));
        assert_eq!(found("link_leg = \"client\"\n"), None);
    }

    #[test]
    fn what_is_redirected_has_to_be_delivered() {
        assert_eq!(delivery_of(true, 100).state, State::Ok);
        let other = delivery_of(false, 100);
        assert!(other.state == State::Fail && other.remedy.unwrap().contains("100 or less"));
    }

    #[test]
    fn hosts_are_reached_by_where_they_come_from() {
        let prefix: IpNet = "10.9.0.0/24".parse().unwrap();
        let of = |device, strict: bool| hosts_of("a", prefix, device, &["lan0"], |_| strict);
        assert_eq!(of(Some("lan0"), true), None);
        assert_eq!(of(Some("wan0"), false).unwrap().state, State::Warn);
        let dropped = of(Some("wan0"), true).unwrap();
        assert_eq!(dropped.state, State::Fail);
        assert!(
            dropped.seen.contains("10.9.0.0/24 is reached by wan0"),
            "{dropped}"
        );
        assert_eq!(of(None, false).unwrap().state, State::Warn);
    }

    #[test]
    fn a_default_route_that_does_not_lead_by_the_link_is_reported() {
        let of = |device, strict| link_of("sat0", device, &["eth0"], strict);
        assert_eq!(of(Some("sat0"), true).state, State::Ok);
        let other = of(Some("lte0"), true);
        assert_eq!(other.state, State::Warn);
        assert!(other.seen.contains("leads by lte0") && other.seen.contains("reverse path"));
        assert_eq!(of(None, false).state, State::Warn);
    }

    #[test]
    fn lan_and_link_that_are_swapped_are_warned_of() {
        let swapped = link_of("eth0", Some("sat0"), &["sat0"], false);
        assert_eq!(swapped.state, State::Warn);
        assert!(
            swapped.seen.contains("sat0 is in intercept.lan"),
            "{swapped}"
        );
        let remedy = swapped.remedy.unwrap();
        assert!(
            remedy.contains("intercept.lan = [\"eth0\"] and link.interface = \"sat0\""),
            "{remedy}"
        );
        let one_armed = link_of("eth0", Some("eth0"), &["eth0"], false);
        assert_eq!(one_armed.state, State::Ok);
    }

    #[test]
    fn clients_that_are_reached_elsewhere_fail() {
        let client: IpAddr = "10.1.0.2".parse().unwrap();
        assert_eq!(clients_of(0, &[], "lan0"), None);
        assert_eq!(clients_of(3, &[], "lan0").unwrap().state, State::Ok);
        let astray = clients_of(3, &[(client, Some("wan0".to_owned()))], "lan0").unwrap();
        assert_eq!(astray.state, State::Fail);
        assert!(astray.seen.contains("1 of 3") && astray.seen.contains("10.1.0.2 by wan0"));
    }

    #[test]
    fn an_address_of_a_prefix_is_one_of_a_host() {
        let first = |net: &str| within(net.parse().unwrap()).to_string();
        assert_eq!(first("10.9.0.0/24"), "10.9.0.1");
        assert_eq!(first("10.9.0.7/32"), "10.9.0.7");
    }
}
