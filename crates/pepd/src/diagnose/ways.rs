//! By which interfaces hosts and servers are reached: packets have to leave where they came in.

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

use super::{Finding, Net, State, read, sysctl};

/// Where a packet for an address that is nobody's goes (for documentation, RFC 5737): by the
/// default route.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Addresses of clients and of servers that are looked up at most, each.
const LOOKED_UP: usize = 64;

/// Whether the reverse path check of an interface is strict: the greater of two settings counts
/// (`ip-sysctl`).
fn is_strict(name: &str) -> bool {
    let of = |name: &str| sysctl(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    of("all").max(of(name)) == 1
}

/// Packets of this namespace that the reverse path check has dropped, of `/proc/net/netstat`.
fn dropped(netstat: &str) -> Option<u64> {
    let mut lines = netstat
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt:"));
    let names = lines.next()?.split_whitespace();
    let mut all = names.zip(lines.next()?.split_whitespace());
    let (_, count) = all.find(|(name, _)| *name == "IPReversePathFilter")?;
    count.parse().ok()
}

/// What holds whether or not a pepd runs.
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
    findings.extend(policy(config, net).await);
    findings
}

/// Policy rules that route hosts' packets and not what pepd sends for these.
pub(super) async fn policy(config: &Config, net: &Net) -> Option<Finding> {
    let routing = Routing::new(config, Features::FULL.families());
    let rules = routing.for_hosts_only(net.netlink.as_ref()?).await.ok()?;
    (!rules.is_empty()).then(|| {
        Finding::warn(
            "policy routing",
            format!(
                "{}: for packets of hosts, and not for pepd's connections to servers, which go by the other rules",
                rules.join("; ")
            ),
            "rules by a mark and its mask, such as fwmark 0x100/0xffffff, a mark that prerouting sets on what comes in: \
             server legs have it beside pepd's own bits; \
             or a site with mode = \"bypass\" for such hosts: docs/interception.md",
        )
    })
}

/// Note that pepd speeds one direction, where sites split flows and servers are beyond the link.
pub(super) fn side(config: &Config) -> Option<Finding> {
    let sites = || config.sites.iter().map(|(_, site)| site);
    let split = sites().any(|site| site.mode == Mode::Split && site.link_leg == LinkLeg::Server);
    // One in front of servers has the last site, which takes what no other does, all the same.
    let serves = sites().any(|site| site.link_leg == LinkLeg::Client);
    (split && !serves).then(|| Finding::info(
        "direction",
        "pepd speeds what it sends over the link (uploads); downloads keep the far server's congestion control",
        "for faster downloads another pepd at the far end, or a tunnel to one (mode = \"tunnel\")",
    ))
}

/// Whether what is redirected is delivered here: by a policy rule and a route of pepd's.
pub(super) async fn delivery(config: &Config, net: &Net) -> Option<Finding> {
    let delivers = delivers(config, net).await?;
    Some(delivery_of(delivers, config.intercept.rule_priority))
}

/// True where the kernel delivers packets with the mark of redirected ones here.
///
/// `None` where that cannot be asked.
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
        return Finding::ok(what, "what is redirected is delivered here");
    }
    Finding::fail(
        what,
        "the kernel does not deliver redirected packets to pepd: pepd's policy rule or route is \
         missing or overridden",
        format!(
            "pepd puts them back, and ahead of others', within a second or two: look again. If it stays: its log, and \
             `ip rule`, which shows those with a priority of {priority} or less"
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
        "not strict where it matters".to_owned()
    } else {
        format!("strict on {}", strict.join(", "))
    };
    if dropped == 0 {
        return Finding::ok(what, format!("{where_}; it has dropped nothing"));
    }
    Finding::warn(
        what,
        format!(
            "{where_}; it has dropped {dropped} packets since the machine, or the namespace, came up"
        ),
        "if that number grows while connections hang: packets come in by an interface by which their sender is not \
         reached. Fix the routes, or `sysctl -w net.ipv4.conf.IFACE.rp_filter=2` (the greater of IFACE and `all` counts)",
    )
}

/// An address within a prefix that a host may have.
fn within(prefix: IpNet) -> IpAddr {
    prefix.hosts().next().unwrap_or(prefix.addr())
}

/// The interface by which servers are reached.
pub(super) async fn uplink(config: &Config, net: &Net) -> Option<String> {
    let mark = MarkSet::new(config.intercept.marks).server_leg();
    by(net, NOBODY, mark).await.flatten()
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
    let way = by(net, within(prefix), 0).await?;
    let lan = names(config);
    hosts_of(site, prefix, way.as_deref(), &lan, is_strict)
}

fn names(config: &Config) -> Vec<&str> {
    config.intercept.lan.iter().map(AsRef::as_ref).collect()
}

/// `None` where it is as it should be: there may be many prefixes.
fn hosts_of(
    site: &str,
    prefix: IpNet,
    way: Option<&str>,
    lan: &[&str],
    strict: impl Fn(&str) -> bool,
) -> Option<Finding> {
    if way.is_some_and(|way| lan.contains(&way)) {
        return None;
    }
    let what = format!("route to the hosts of site {site}");
    let list = lan.join(", ");
    let seen = match way {
        Some("lo") => return None,
        Some(way) => format!("{prefix} is reached by {way}, and not by {list} (intercept.lan)"),
        None => format!("there is no route to {prefix}"),
    };
    let remedy = format!(
        "packets for these hosts leave by another interface than the one they send to: route \
         {prefix} by the router on {list} (`ip route`), or name the interface by which they come \
         in `intercept.lan`"
    );
    let is_dropped = prefix.addr().is_ipv4() && lan.iter().all(|lan| strict(lan));
    let state = if is_dropped { State::Fail } else { State::Warn };
    let seen = if is_dropped {
        format!("{seen}; the strict reverse path check there drops what they send")
    } else {
        seen
    };
    Some(Finding::new(state, what, seen, remedy))
}

/// Whether what goes beyond goes over the link that is described.
async fn to_link(config: &Config, net: &Net) -> Option<Finding> {
    let link = config.link.as_ref()?.interface.as_str();
    net.named(link)?;
    let mark = MarkSet::new(config.intercept.marks).server_leg();
    let way = by(net, NOBODY, mark).await?;
    let faces_clients = config
        .sites
        .iter()
        .any(|(_, site)| site.link_leg == LinkLeg::Client);
    (!faces_clients).then(|| link_of(link, way.as_deref(), &names(config), is_strict(link)))
}

fn link_of(link: &str, way: Option<&str>, lan: &[&str], strict: bool) -> Finding {
    let what = "route to the link";
    match way {
        Some(way) if way == link => Finding::ok(what, format!("the default route leads by {link}")),
        Some(way) if lan.contains(&way) => Finding::warn(
            what,
            format!("{way} is in intercept.lan, but the default route leads by it, not by {link}"),
            format!(
                "are the two swapped? Then write intercept.lan = [\"{link}\"] and \
                 link.interface = \"{way}\". If they are not, route servers by {link} (`ip route`)"
            ),
        ),
        Some(way) => {
            let dropped = if strict {
                "; the strict reverse path check of the link drops what comes back by it"
            } else {
                ""
            };
            Finding::warn(
                what,
                format!(
                    "the default route leads by {way}, and not by {link} (link.interface){dropped}"
                ),
                format!(
                    "only what is routed by {link} crosses it: route servers there (`ip route`), or name {way} in link.interface, \
                     else rate and buffers are those of another link"
                ),
            )
        }
        None => Finding::warn(
            what,
            format!("there is no default route; {link} carries what is routed there by prefix"),
            "right where all servers have routes of their own (`ip route`)",
        ),
    }
}

/// Whether the clients and servers of flows are reached by the interfaces that they should be.
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
        let way = by(net, client, 0).await?;
        if !way.as_deref().is_some_and(|way| lan.contains(&way)) {
            astray.push((client, way));
        }
    }
    clients_of(clients.len(), &astray, &lan.join(", "))
}

fn clients_of(all: usize, astray: &[(IpAddr, Option<String>)], lan: &str) -> Option<Finding> {
    let what = "route to clients";
    let Some((client, way)) = astray.first() else {
        return (all > 0).then(|| {
            Finding::ok(
                what,
                format!("{all} clients of flows, all reached by {lan}"),
            )
        });
    };
    let way = way
        .as_ref()
        .map_or("no interface at all".to_owned(), Clone::clone);
    Some(Finding::fail(
        what,
        format!(
            "{} of {all} clients are not reached by {lan}, where they come from: {client} by {way}",
            astray.len()
        ),
        format!(
            "our answers go astray: fix the route to {client} (`ip route get {client}`), such that it leads by {lan}"
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
        let of = |way, strict: bool| hosts_of("a", prefix, way, &["lan0"], |_| strict);
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
    fn the_default_route_leads_over_the_link_or_that_is_said() {
        let of = |way, strict| link_of("sat0", way, &["eth0"], strict);
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
