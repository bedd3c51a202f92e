//! The address families of IP.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::Domain;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPv{}", self.number())
    }
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns 4 or 6.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }

    /// Returns the family of an address.
    pub fn from_address(address: &SocketAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    pub(crate) fn domain(self) -> Domain {
        match self {
            Self::V4 => Domain::IPV4,
            Self::V6 => Domain::IPV6,
        }
    }

    /// Returns the loopback address, to which listeners are bound. On the wildcard address the
    /// kernel would also accept connections to pepd's port that were not redirected.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }
}
