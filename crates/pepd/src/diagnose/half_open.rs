//! Incomplete handshakes with clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;

use super::read;

/// Returns clients that have sent a SYN to an address of another machine, and have not yet answered
/// pepd's SYN-ACK.
pub(super) fn clients() -> Vec<SocketAddr> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let own: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect();
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(read);
    let all = tables.iter().flat_map(|table| table.lines().skip(1));
    all.filter_map(syn_received)
        .filter(|(local, _)| !own.contains(&local.ip()))
        .map(|(_, remote)| remote)
        .collect()
}

/// Returns both ends in a line of `/proc/net/tcp` that is in SYN_RECV.
fn syn_received(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    /// `TCP_SYN_RECV`, and `TCP_NEW_SYN_RECV` as shown in this file.
    const SYN_RECV: &str = "03";
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (words.next()?, words.next()?);
    let state = words.next()?;
    (state == SYN_RECV).then_some(())?;
    Some((address(local)?, address(remote)?))
}

/// Parses hexadecimal, four bytes each in the machine's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = address.len() / 8;
    let mut bytes = Vec::with_capacity(16);
    for index in 0..words {
        let word = address.get(index * 8..index * 8 + 8)?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    let ip = match *bytes.as_slice() {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_open_connections_are_read_from_the_kernels_table() {
        let of = |words: [u32; 4]| words.map(|word| format!("{:08X}", word.to_be())).concat();
        let v4 = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |local: &str, remote: &str, state: &str| {
            format!("   1: {local}:0050 {remote}:C350 {state} 00000000:00000000 01:00000063")
        };
        let (server, client) = (v4([10, 2, 0, 2]), v4([10, 1, 0, 2]));
        let found = syn_received(&line(&server, &client, "03")).unwrap();
        assert_eq!(found.0.to_string(), "10.2.0.2:80");
        assert_eq!(found.1.to_string(), "10.1.0.2:50000");
        assert_eq!(syn_received(&line(&server, &client, "01")), None);
        let long = of([0xfd01_0000, 0, 0, 2]);
        let found = syn_received(&line(&long, &long, "03")).unwrap();
        assert_eq!(found.1.to_string(), "[fd01::2]:50000");
        assert_eq!(syn_received("nonsense"), None);
        assert_eq!(syn_received(&line("", "0", "03")), None);
    }
}
