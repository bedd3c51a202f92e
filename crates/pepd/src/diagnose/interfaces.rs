//! Interfaces of the configuration: existence, state and effect on packets.

use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use pep_core::{
    config::{Config, closest},
    site::{Clear, Mode, Site},
};
use pepd_intercept::{netlink::is_bridge, setup};
use pepd_relay::survive::claim;
use pepd_sys::ethtool;

use super::{Finding, Net};

/// Minimum MTU of IPv6 (RFC 8200, section 5).
const MTU_MIN_V6: u32 = 1280;
/// Bytes of the IPv4 and TCP headers without options.
const HEADERS: u32 = 40;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface.
    pub index: u32,
    /// True if set up.
    pub is_up: bool,
    /// True with a carrier.
    pub has_carrier: bool,
    /// Maximum bytes of a packet.
    pub mtu: u32,
    /// Bridge or bond of which the interface is a port.
    pub port_of: Option<u32>,
    /// A bridge or a bond: packets arrive by it, not by its ports.
    pub has_ports: bool,
    /// True for a bridge.
    pub is_bridge: bool,
}

impl Interface {
    /// Parses a message of rtnetlink.
    pub fn from_message(message: &LinkMessage) -> Option<Self> {
        let flags = message.header.flags;
        let mut interface = Self {
            name: String::new(),
            index: message.header.index,
            is_up: flags.contains(LinkFlags::Up),
            has_carrier: flags.contains(LinkFlags::LowerUp),
            mtu: 0,
            port_of: None,
            has_ports: false,
            is_bridge: is_bridge(message),
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
                LinkAttribute::Controller(index) => interface.port_of = Some(*index),
                LinkAttribute::LinkInfo(infos) => {
                    interface.has_ports = infos.iter().any(|info| {
                        matches!(info, LinkInfo::Kind(InfoKind::Bridge | InfoKind::Bond))
                    });
                }
                _ => {}
            }
        }
        (!interface.name.is_empty()).then_some(interface)
    }
}

/// Returns all findings about interfaces.
pub(super) fn check(config: &Config, net: &Net) -> Vec<Finding> {
    if net.interfaces.is_empty() {
        let finding = Finding::unknown(
            "interfaces",
            "the kernel does not list interfaces",
            "try `ip link`: netlink may be blocked (by a container, or a unit's RestrictAddressFamilies)",
        );
        return vec![finding];
    }
    let lan = config.intercept.lan.iter();
    let lan = lan.map(|name| ("intercept.lan", name.as_str()));
    let link = config.link.iter();
    let link = link.map(|link| ("link.interface", link.interface.as_str()));
    let mut findings: Vec<_> = lan
        .chain(link)
        .map(|(key, name)| exists(config, key, name, &net.interfaces))
        .collect();
    findings.extend(mtu(config, net));
    let offloads = config.intercept.lan.iter().filter_map(|name| {
        net.named(name.as_str())?;
        offloads(name.as_str(), ethtool::offloads(name.as_str()).ok()?)
    });
    findings.extend(offloads);
    findings.extend(bridges(config, net));
    findings
}

/// Returns findings about bridges whose packets the kernel filters too early to redirect them.
fn bridges(config: &Config, net: &Net) -> Vec<Finding> {
    if !setup::answers_at_once(config) {
        return Vec::new();
    }
    let lans = config.intercept.lan.iter();
    let bridges = lans.filter(|name| net.named(name.as_str()).is_some_and(|one| one.is_bridge));
    let findings = bridges.flat_map(|name| {
        setup::bridge_filters().map(move |family| {
            let key = setup::bridge_filter(family);
            Finding::fail(
                format!("bridge {name}, {family}"),
                format!(
                    "with {key}=1 (Docker, Kubernetes) the kernel filters its packets too early: connections of \
                     `syn = \"spoof\"` and of tunnels are not accepted"
                ),
                format!("`syn = \"defer\"`, or sysctl -w {key}=0"),
            )
        })
    });
    findings.collect()
}

fn exists(config: &Config, key: &str, name: &str, all: &[Interface]) -> Finding {
    let what = format!("interface {name} ({key})");
    let Some(interface) = all.iter().find(|one| one.name == name) else {
        let mut sites = config.sites.iter().map(|(_, site)| site);
        let leaves = |site: &Site| site.mode == Mode::Tunnel && site.clear != Clear::Never;
        let seen = match key == "intercept.lan" && sites.any(leaves) {
            true => {
                "not found; if it was renamed, connections of its hosts leave in the clear, not by a tunnel"
            }
            false => "not found",
        };
        return Finding::fail(what, seen, missing(key, name, all));
    };
    let controller = interface.port_of.and_then(|index| {
        let mut all = all.iter();
        all.find(|one| one.index == index && one.has_ports)
    });
    if let Some(controller) = controller.filter(|_| key == "intercept.lan") {
        let controller = &controller.name;
        return Finding::fail(
            what,
            format!(
                "a port of {controller}: the packet filter sees packets arrive by {controller}"
            ),
            format!("{key} = [\"{controller}\"]"),
        );
    }
    if !interface.is_up {
        let remedy = format!("ip link set {name} up");
        return Finding::fail(what, "down", remedy);
    }
    if !interface.has_carrier {
        let remedy = "check the cable, the modem or the radio";
        return Finding::warn(what, "no carrier", remedy);
    }
    Finding::ok(what, "up")
}

fn missing(key: &str, name: &str, all: &[Interface]) -> String {
    let others = all.iter().map(|one| one.name.as_str());
    let others: Vec<_> = others.filter(|other| *other != "lo").collect();
    let list = others.join(", ");
    match closest(name, others.iter().copied()) {
        Some(near) => format!("{key}: did you mean `{near}`? Interfaces: {list}"),
        None if others.is_empty() => {
            "this machine or namespace has only the interface lo: check that it is the right one"
                .to_owned()
        }
        None => format!("{key}: use one of: {list}; or create it (`ip link`)"),
    }
}

fn mtu(config: &Config, net: &Net) -> Option<Finding> {
    let names = config.intercept.lan.iter();
    let link = config.link.as_ref().map(|link| &link.interface);
    let all: Vec<_> = names
        .chain(link)
        .filter_map(|name| net.named(name.as_str()))
        .collect();
    let list = all.iter().map(|one| format!("{} {}", one.name, one.mtu));
    let list = list.collect::<Vec<_>>().join(", ");
    let first = all.first()?;
    if let Some(small) = all.iter().find(|one| one.mtu < MTU_MIN_V6) {
        let remedy = format!(
            "IPv6 needs an MTU of {MTU_MIN_V6}, so {} has no IPv6: ip link set {} mtu {MTU_MIN_V6}, or bypass IPv6",
            small.name, small.name
        );
        return Some(Finding::warn("MTU", list, remedy));
    }
    let crossing = link.and_then(|link| net.named(link.as_str()));
    let sites = config.sites.iter();
    let too_long = sites.filter_map(|(_, site)| {
        let (mss, link) = (u32::from(site.mss?), crossing?);
        (mss + HEADERS > link.mtu).then_some((&site.name, mss, link.mtu))
    });
    if let Some((site, mss, mtu)) = too_long.into_iter().next() {
        let most = mtu - HEADERS;
        let seen = format!("{list}; site {site} has `mss = {mss}`");
        let remedy = format!(
            "the interface limits segments to {most} bytes, below {mss}: remove `mss`, or lower it"
        );
        return Some(Finding::warn("MTU", seen, remedy));
    }
    let seen = if all.iter().all(|one| one.mtu == first.mtu) {
        list
    } else {
        format!(
            "{list}: different MTUs are fine, as pepd ends each connection; bypassed traffic needs path MTU discovery"
        )
    };
    Some(Finding::ok("MTU", seen))
}

/// Returns a finding about offloads. Generic receive offload merges only equal packets, so that
/// forwarding them is correct; large receive offload does not.
fn offloads(name: &str, offloads: ethtool::Offloads) -> Option<Finding> {
    let what = format!("offloads of {name}");
    if offloads.lro {
        return Some(Finding::warn(
            what,
            "large receive offload (LRO) is on: it merges forwarded packets into oversized ones, out of order",
            format!("ethtool -K {name} lro off"),
        ));
    }
    let seen = if offloads.gro {
        "GRO is on, LRO off"
    } else {
        "GRO is off: costs CPU time on fast networks only (`ethtool -K ... gro on`)"
    };
    Some(Finding::ok(what, seen))
}

/// Returns a finding about another pepd that takes connections of the same interface.
pub(super) fn rival(config: &Config) -> Option<Finding> {
    let (process, interface) = claim::rival(config).ok()??;
    Some(Finding::warn(
        format!("interface {interface} (intercept.lan)"),
        format!("another pepd (process {process}) also takes its connections"),
        "stop one, or give each its own interfaces (`intercept.lan`)",
    ))
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    fn config(sites: &str) -> Config {
        let text = format!("[intercept]\nlan = [\"eth0\"]\n{sites}");
        pep_core::config::parse(&text).expect("valid")
    }

    #[test]
    fn a_missing_interface_of_hosts_that_have_a_tunnel_may_leave_them_unprotected() {
        const TUNNEL: &str = "[identity]\nkey_file = \"a\"\n[peer.hub]\nendpoint = \"192.0.2.1:1\"\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"all\"\nmode = \"tunnel\"\npeer = \"hub\"\n";
        let seen = |sites: &str, key| exists(&config(sites), key, "eth0", &[]).seen;
        assert!(seen(TUNNEL, "intercept.lan").contains("in the clear"));
        assert_eq!(seen(TUNNEL, "link.interface"), "not found");
        assert_eq!(seen("", "intercept.lan"), "not found");
    }

    fn interface(name: &str, index: u32) -> Interface {
        Interface {
            name: name.to_owned(),
            index,
            is_up: true,
            has_carrier: true,
            mtu: 1500,
            port_of: None,
            has_ports: false,
            is_bridge: false,
        }
    }

    #[test]
    fn an_interface_is_there_or_another_is_suggested() {
        let all = [
            interface("lo", 1),
            interface("eth0", 2),
            interface("eth1", 3),
        ];
        assert_eq!(
            exists(&config(""), "intercept.lan", "eth0", &all).state,
            State::Ok
        );
        let slip = exists(&config(""), "intercept.lan", "etho", &all);
        assert_eq!(slip.state, State::Fail);
        let remedy = slip.remedy.unwrap();
        assert!(remedy.contains("did you mean `eth0`?"), "{remedy}");
        let other = exists(&config(""), "link.interface", "sat0", &all)
            .remedy
            .unwrap();
        assert!(other.contains("one of: eth0, eth1"), "{other}");
    }

    #[test]
    fn a_port_of_a_bridge_is_reported_with_the_bridge() {
        let mut all = [interface("eth0", 2), interface("br0", 3)];
        all[0].port_of = Some(3);
        // A VRF has ports as well, but packets arrive by them.
        assert_eq!(
            exists(&config(""), "intercept.lan", "eth0", &all).state,
            State::Ok
        );
        all[1].has_ports = true;
        let found = exists(&config(""), "intercept.lan", "eth0", &all);
        assert_eq!(found.state, State::Fail);
        assert_eq!(found.remedy.as_deref(), Some("intercept.lan = [\"br0\"]"));
    }

    #[test]
    fn one_that_is_off_fails_and_one_without_a_carrier_is_doubtful() {
        let mut all = [interface("eth0", 2)];
        all[0].has_carrier = false;
        assert_eq!(
            exists(&config(""), "intercept.lan", "eth0", &all).state,
            State::Warn
        );
        all[0].is_up = false;
        assert_eq!(
            exists(&config(""), "intercept.lan", "eth0", &all).state,
            State::Fail
        );
    }

    #[test]
    fn large_receive_offload_is_reported() {
        let on = ethtool::Offloads {
            gro: true,
            lro: true,
        };
        assert_eq!(offloads("eth0", on).unwrap().state, State::Warn);
        let off = ethtool::Offloads {
            gro: false,
            lro: false,
        };
        assert_eq!(offloads("eth0", off).unwrap().state, State::Ok);
    }

    fn net(interfaces: Vec<Interface>) -> Net {
        Net {
            netlink: None,
            interfaces,
        }
    }

    #[test]
    fn packets_have_to_fit() {
        let text = "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"eth1\"\n[[site]]\nname = \"a\"\nmss = 1400\n";
        let config = pep_core::config::parse(text).unwrap();
        let mut all = vec![interface("eth0", 2), interface("eth1", 3)];
        assert_eq!(mtu(&config, &net(all.clone())).unwrap().state, State::Ok);
        all[1].mtu = 1439;
        let found = mtu(&config, &net(all.clone())).unwrap();
        assert!(found.seen.contains("site a"), "{found:?}");
        all[1].mtu = 1279;
        let found = mtu(&config, &net(all)).unwrap();
        assert!(found.remedy.unwrap().contains("IPv6"));
    }
}
