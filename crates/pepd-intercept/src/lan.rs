//! Hosts and networks of the machine's interfaces.

use std::{collections::BTreeSet, io, net::IpAddr};

use ipnet::IpNet;
use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::{InterfaceFlags, if_nametoindex},
    sys::socket::SockaddrStorage,
};

use super::netlink::LanHost;

/// Returns one host for each network of these interfaces that are up: a neighbour of the machine's
/// address there.
///
/// # Errors
/// When the kernel does not answer.
pub(super) fn lan_hosts(lans: &[String]) -> io::Result<Vec<LanHost>> {
    let mut hosts: Vec<LanHost> = Vec::new();
    for address in getifaddrs()? {
        let (name, flags) = (address.interface_name, address.flags);
        if !lans.contains(&name)
            || !flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
        {
            continue;
        }
        let own = address.address.as_ref().and_then(ip);
        let mask = address.netmask.as_ref().and_then(ip);
        let Some(neighbour) = own.zip(mask).and_then(|(own, mask)| neighbour(own, mask)) else {
            continue;
        };
        // One of each family suffices.
        let family = |host: &LanHost| {
            (host.interface == name) && host.address.is_ipv4() == neighbour.is_ipv4()
        };
        if !hosts.iter().any(family) {
            let index = if_nametoindex(name.as_str())?;
            hosts.push(LanHost {
                interface: name,
                index,
                address: neighbour,
            });
        }
    }
    Ok(hosts)
}

/// Returns the address, or the mask, of a socket address.
fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

/// Returns the network of an address of this machine, if the kernel routes packets for other hosts
/// there. `permanent` are the addresses without a lifetime: those with one were assigned by others.
pub(super) fn network_of(
    address: &InterfaceAddress,
    permanent: &BTreeSet<IpAddr>,
) -> Option<IpNet> {
    let is_up = address.flags.contains(InterfaceFlags::IFF_UP);
    if !is_up || address.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        return None;
    }
    let own = ip(address.address.as_ref()?)?;
    let mask = ip(address.netmask.as_ref()?)?;
    let net = IpNet::with_netmask(own, mask).ok()?.trunc();
    let is_of_many = net.prefix_len() < net.max_prefix_len() && net.prefix_len() > 0;
    let is_routed = !matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
    (is_of_many && is_routed && permanent.contains(&own)).then_some(net)
}

/// Returns another address of the same network, if it has room for a host.
fn neighbour(own: IpAddr, mask: IpAddr) -> Option<IpAddr> {
    if own.is_loopback() || matches!(own, IpAddr::V6(own) if own.is_unicast_link_local()) {
        return None;
    }
    let net = IpNet::with_netmask(own, mask).ok()?;
    net.hosts()
        .take(3)
        .find(|host| *host != own && *host != net.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(own: &str, mask: &str) -> Option<String> {
        let parse = |text: &str| text.parse().expect("an address");
        neighbour(parse(own), parse(mask)).map(|host| host.to_string())
    }

    #[test]
    fn a_neighbour_is_another_host_of_the_network() {
        let found = |own, mask| found(own, mask).expect("a neighbour");
        assert_eq!(found("10.71.1.1", "255.255.255.0"), "10.71.1.2");
        assert_eq!(found("10.71.1.9", "255.255.255.0"), "10.71.1.1");
        assert_eq!(found("10.0.0.1", "255.255.255.252"), "10.0.0.2");
        assert_eq!(found("fd71:1::1", "ffff:ffff:ffff:ffff::"), "fd71:1::2");
    }

    #[test]
    fn a_lone_or_link_local_address_has_no_neighbour() {
        let all = "255.255.255.255";
        assert_eq!(found("10.0.0.1", all), None);
        assert_eq!(found("fe80::1", "ffff:ffff:ffff:ffff::"), None);
        assert_eq!(found("127.0.0.1", "255.0.0.0"), None);
    }
}
