//! Listening and connecting sockets.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use pep_core::site::{Buffers, ReceiveBuffer};
use pepd_sys::leg::{Clamps, Family, LegOptions};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Options of sockets.
#[derive(Debug, Clone)]
pub(in super::super) struct Options {
    /// Socket options.
    pub(in super::super) leg: LegOptions,
    /// Maximum MSS of outgoing connections.
    pub(in super::super) clamps: Arc<Clamps>,
    /// Local address, unless the kernel chooses it.
    pub(in super::super) from: Option<IpAddr>,
}

impl Options {
    fn socket(leg: &LegOptions, to: &SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(*to), Type::STREAM.nonblocking(), None)?;
        if to.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        leg.apply(&socket, Family::from_address(to))?;
        Ok(socket)
    }

    /// Connects.
    ///
    /// # Errors
    /// If the kernel or the remote end refuses.
    pub(super) fn call(
        &self,
        to: SocketAddr,
    ) -> io::Result<impl Future<Output = io::Result<TcpStream>> + use<>> {
        let socket = Self::socket(&self.leg, &to)?;
        // A rule number that the kernel refuses is logged for legs of flows.
        let _refused = self
            .clamps
            .apply(&socket, Family::from_address(&to), self.leg.mss);
        if let Some(from) = self.from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        let socket = TcpSocket::from_std_stream(socket.into());
        Ok(socket.connect(to))
    }
}

impl Options {
    /// Returns the address from which a connection to there would leave now.
    ///
    /// # Errors
    /// If there is no route.
    pub(super) fn source_toward(&self, to: SocketAddr) -> io::Result<IpAddr> {
        if let Some(from) = self.from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            return Ok(from);
        }
        // To connect it sends nothing.
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
        socket.set_mark(self.leg.mark)?;
        socket.connect(&to.into())?;
        let local = socket.local_addr()?.as_socket();
        local.map(|local| local.ip()).ok_or(ErrorKind::Other.into())
    }
}

/// Bound listeners, outside of any event loop.
#[derive(Debug)]
pub(in super::super) struct Listeners(Vec<Socket>);

impl Listeners {
    /// Listens at that address; if it is any address, for both versions of IP.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(in super::super) fn bind(listen: SocketAddr, options: &Options) -> io::Result<Self> {
        let mut sockets = vec![listener(listen, options)?];
        let other: IpAddr = match listen {
            SocketAddr::V4(_) => Ipv6Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv4Addr::UNSPECIFIED.into(),
        };
        if listen.ip().is_unspecified() {
            // One version of IP suffices.
            sockets.extend(listener(SocketAddr::new(other, listen.port()), options));
        }
        Ok(Self(sockets))
    }

    /// Adds the listeners to the current event loop.
    ///
    /// # Errors
    /// If the event loop rejects them.
    pub(in super::super) fn register(self) -> io::Result<Vec<TcpListener>> {
        let sockets = self.0.into_iter();
        sockets
            .map(|socket| TcpListener::from_std(socket.into()))
            .collect()
    }
}

/// Creates a listener with automatic receive buffers: a stranger must not hold memory before it has
/// authenticated.
fn listener(address: SocketAddr, options: &Options) -> io::Result<Socket> {
    let leg = LegOptions {
        buffers: Buffers {
            receive: ReceiveBuffer::System,
            ..options.leg.buffers
        },
        ..options.leg.clone()
    };
    let socket = Options::socket(&leg, &address)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}
