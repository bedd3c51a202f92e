//! Sending whole IP packets, whatever their source address.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Sends whole IP packets, whatever their source address. They pass the output hook, with
/// a mark of ours.
#[derive(Debug)]
pub struct RawSender {
    v4: Socket,
    /// `None` where there is no IPv6.
    v6: Option<Socket>,
}

impl RawSender {
    /// A sender whose packets have this mark.
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

    /// Sends a packet toward `to`. Never waits.
    ///
    /// # Errors
    /// As a router would have them: no route, forbidden, queue full, too long.
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

/// IPPROTO_RAW: for output only, with the IP header included.
fn socket(domain: Domain, mark: u32) -> io::Result<Socket> {
    let protocol = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(domain, Type::RAW.nonblocking(), Some(protocol))?;
    socket.set_mark(mark)?;
    Ok(socket)
}

/// The address of this machine that a host would see a router's ICMP error come from.
///
/// # Errors
/// When there is no route to the host.
pub(crate) fn address_toward(host: IpAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match host {
        IpAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing, but chooses the source address.
    let probe = UdpSocket::bind(any)?;
    probe.connect((host, 9))?;
    Ok(probe.local_addr()?.ip())
}
