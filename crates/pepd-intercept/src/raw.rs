//! Raw sockets that send IP packets with any source address.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Sender of whole IP packets with any source address. They pass the output hook with one of pepd's
/// marks.
#[derive(Debug)]
pub struct RawSender {
    v4: Socket,
    /// `None` without IPv6.
    v6: Option<Socket>,
}

impl RawSender {
    /// Returns a sender that sets this mark on its packets.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn new(mark: u32, ipv6: bool) -> io::Result<Self> {
        let v4 = socket(Domain::IPV4, mark)?;
        let v6 = ipv6.then(|| {
            let socket = socket(Domain::IPV6, mark)?;
            socket.set_header_included_v6(true)?;
            Ok::<_, io::Error>(socket)
        });
        Ok(Self {
            v4,
            v6: v6.transpose()?,
        })
    }

    /// Sends a packet toward `to`. Never blocks.
    ///
    /// # Errors
    /// As for a router: no route, forbidden, queue full, too long.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let socket = if to.is_ipv4() {
            &self.v4
        } else {
            self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?
        };
        let address = SockAddr::from(SocketAddr::new(to, 0));
        socket.send_to(packet, &address).map(drop)
    }
}

/// Opens a socket of IPPROTO_RAW: for output only, with the IP header included.
fn socket(domain: Domain, mark: u32) -> io::Result<Socket> {
    let protocol = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(domain, Type::RAW.nonblocking(), Some(protocol))?;
    socket.set_mark(mark)?;
    Ok(socket)
}

/// Returns the address of this machine that a host would see as source of a router's ICMP error.
///
/// # Errors
/// When no route to the host exists.
pub(crate) fn address_toward(host: IpAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match host {
        IpAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing, and selects the source address.
    let probe = UdpSocket::bind(any)?;
    probe.connect((host, 9))?;
    Ok(probe.local_addr()?.ip())
}
