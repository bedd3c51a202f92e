//! What the near pepd says of a flow when it opens its stream: where it goes, and whose it is.
//!
//! ```text
//!   version:8 = 1 | flags:8 | DSCP:8 | length of the site's name:8
//!   destination: address (4 or 16 bytes), port:16
//!   client: the same
//!   the site's name
//! ```
//!
//! Flags: 1, the addresses are IPv6; 2, connect from the client's address; 4, what the stream carries is compressed, both ways.
//! Others are zero, and a greeting in which they are not is refused: so is one with 4 by those who do not know it. Numbers are in
//! network byte order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What is said of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// Where the client wants to go.
    pub destination: SocketAddr,
    /// Who it is; of the same family.
    pub client: SocketAddr,
    /// Whether the server is to see the client's address.
    pub as_client: bool,
    /// Whether the stream's bytes are compressed, in both directions.
    pub compressed: bool,
    /// The DSCP of its packets, 0 to 63.
    pub dscp: u8,
    /// The near pepd's site, for logs: up to 64 letters, digits, `-`, `_` or `.`.
    pub site: String,
}

/// Why a greeting is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    /// Of a later version of pepd.
    #[error("a greeting of version {0}, which this pepd does not know")]
    Version(u8),
    /// Too short, too long, or with values that mean nothing.
    #[error("a greeting that makes no sense")]
    Form,
}

const VERSION: u8 = 1;
const IPV6: u8 = 1;
const AS_CLIENT: u8 = 2;
const COMPRESSED: u8 = 4;
const NAME_MAX: usize = 64;

impl Greeting {
    /// As it is sent.
    ///
    /// # Panics
    /// When the addresses are of two families.
    pub fn emit(&self) -> Vec<u8> {
        assert_eq!(self.destination.is_ipv4(), self.client.is_ipv4());
        let name = &self.site.as_bytes()[..self.site.len().min(NAME_MAX)];
        let ipv6 = if self.client.is_ipv6() { IPV6 } else { 0 };
        let as_client = if self.as_client { AS_CLIENT } else { 0 };
        let compressed = if self.compressed { COMPRESSED } else { 0 };
        let length = u8::try_from(name.len()).expect("at most NAME_MAX");
        let flags = ipv6 | as_client | compressed;
        let mut bytes = vec![VERSION, flags, self.dscp, length];
        for address in [self.destination, self.client] {
            match address.ip() {
                IpAddr::V4(ip) => bytes.extend(ip.octets()),
                IpAddr::V6(ip) => bytes.extend(ip.octets()),
            }
            bytes.extend(address.port().to_be_bytes());
        }
        bytes.extend(name);
        bytes
    }

    /// What a peer has sent.
    ///
    /// # Errors
    /// When it is not exactly that.
    pub fn parse(bytes: &[u8]) -> Result<Self, GreetingError> {
        let (&version, rest) = bytes.split_first().ok_or(GreetingError::Form)?;
        if version != VERSION {
            return Err(GreetingError::Version(version));
        }
        Self::parse_first(rest).ok_or(GreetingError::Form)
    }

    fn parse_first(bytes: &[u8]) -> Option<Self> {
        let (&[flags, dscp, length], rest) = bytes.split_first_chunk()?;
        if flags & !(IPV6 | AS_CLIENT | COMPRESSED) != 0
            || dscp > 63
            || usize::from(length) > NAME_MAX
        {
            return None;
        }
        let ipv6 = flags & IPV6 != 0;
        let (destination, rest) = address(rest, ipv6)?;
        let (client, name) = address(rest, ipv6)?;
        if name.len() != usize::from(length) || !name.iter().copied().all(is_of_name) {
            return None;
        }
        Some(Self {
            destination,
            client,
            as_client: flags & AS_CLIENT != 0,
            compressed: flags & COMPRESSED != 0,
            dscp,
            site: String::from_utf8(name.to_vec()).ok()?,
        })
    }
}

/// As sites are named; nothing else comes into a log by this way.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// An address and port, and what follows.
fn address(bytes: &[u8], ipv6: bool) -> Option<(SocketAddr, &[u8])> {
    let (ip, rest): (IpAddr, _) = if ipv6 {
        let (octets, rest) = bytes.split_first_chunk::<16>()?;
        (Ipv6Addr::from(*octets).into(), rest)
    } else {
        let (octets, rest) = bytes.split_first_chunk::<4>()?;
        (Ipv4Addr::from(*octets).into(), rest)
    };
    let (port, rest) = rest.split_first_chunk()?;
    Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn greeting() -> impl Strategy<Value = Greeting> {
        let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| [a.into(), b.into()]);
        let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(a, b)| [a.into(), b.into()]);
        let ips = prop_oneof![v4, v6];
        (
            ips,
            any::<[u16; 2]>(),
            any::<[bool; 2]>(),
            0..64_u8,
            "[a-z0-9._-]{0,64}",
        )
            .prop_map(
                |([destination, client], ports, [as_client, compressed], dscp, site): (
                    [IpAddr; 2],
                    _,
                    _,
                    _,
                    _,
                )| {
                    Greeting {
                        destination: SocketAddr::new(destination, ports[0]),
                        client: SocketAddr::new(client, ports[1]),
                        as_client,
                        compressed,
                        dscp,
                        site,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(greeting in greeting()) {
            let bytes = greeting.emit();
            prop_assert!(bytes.len() <= 104, "well below what a stream may be opened with");
            prop_assert_eq!(Greeting::parse(&bytes), Ok(greeting));
        }

        #[test]
        fn what_is_cut_short_or_goes_on_is_refused(greeting in greeting(), more in 1..20_usize) {
            let mut bytes = greeting.emit();
            for length in 0..bytes.len() {
                prop_assert_eq!(Greeting::parse(&bytes[..length]), Err(GreetingError::Form));
            }
            bytes.extend(vec![b'a'; more]);
            prop_assert_eq!(Greeting::parse(&bytes), Err(GreetingError::Form));
        }

        #[test]
        fn whatever_is_accepted_is_what_would_be_emitted(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(greeting) = Greeting::parse(&bytes) {
                prop_assert_eq!(greeting.emit(), bytes);
            }
        }
    }

    #[test]
    fn later_versions_and_strange_values_are_refused() {
        let good = Greeting {
            destination: ([192, 0, 2, 1], 80).into(),
            client: ([10, 0, 0, 1], 4000).into(),
            as_client: true,
            compressed: false,
            dscp: 46,
            site: "a".to_owned(),
        }
        .emit();
        let with = |at: usize, value| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Greeting::parse(&bytes)
        };
        assert_eq!(with(0, 2), Err(GreetingError::Version(2)));
        for (at, value) in [(1, 8), (1, 1), (2, 64), (3, 2), (16, b'\n')] {
            assert_eq!(with(at, value), Err(GreetingError::Form), "{at} {value}");
        }
    }
}
