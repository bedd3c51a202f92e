//! Listeners and sockets to call with.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use pep_core::site::{Buffers, ReceiveBuffer};
use pepd_sys::leg::{Clamps, Family, LegOptions};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// How sockets are made.
#[derive(Debug)]
pub(in super::super) struct Options {
    /// What the kernel is told about them.
    pub(in super::super) leg: LegOptions,
    /// The MSS of those that call, at most.
    pub(in super::super) clamps: Arc<Clamps>,
    /// Our address, if it is not for the kernel to choose.
    pub(in super::super) from: Option<IpAddr>,
}

impl Options {
    fn socket(leg: &LegOptions, to: &SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(*to), Type::STREAM.nonblocking(), None)?;
        if to.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        leg.apply(&socket, Family::of(to))?;
        Ok(socket)
    }

    /// Connects.
    ///
    /// # Errors
    /// When the kernel refuses, or the other side.
    pub(super) fn call(
        &self,
        to: SocketAddr,
    ) -> io::Result<impl Future<Output = io::Result<TcpStream>> + use<>> {
        let socket = Self::socket(&self.leg, &to)?;
        // A rule's number that the kernel refuses is warned of where legs of flows meet it.
        let _refused = self.clamps.apply(&socket, Family::of(&to), self.leg.mss);
        if let Some(from) = self.from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        let socket = TcpSocket::from_std_stream(socket.into());
        Ok(socket.connect(to))
    }
}

/// Listeners that are bound, outside of any event loop.
#[derive(Debug)]
pub(in super::super) struct Listeners(Vec<Socket>);

impl Listeners {
    /// Listens there; where that is any address, for both versions of IP.
    ///
    /// # Errors
    /// When that cannot be bound to.
    pub(in super::super) fn bind(listen: SocketAddr, options: &Options) -> io::Result<Self> {
        let mut sockets = vec![listener(listen, options)?];
        let other: IpAddr = match listen {
            SocketAddr::V4(_) => Ipv6Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv4Addr::UNSPECIFIED.into(),
        };
        if listen.ip().is_unspecified() {
            // Without one version of IP the other will do.
            sockets.extend(listener(SocketAddr::new(other, listen.port()), options));
        }
        Ok(Self(sockets))
    }

    /// Puts them into the event loop this is called in.
    ///
    /// # Errors
    /// When it does not take them.
    pub(in super::super) fn register(self) -> io::Result<Vec<TcpListener>> {
        let sockets = self.0.into_iter();
        sockets
            .map(|socket| TcpListener::from_std(socket.into()))
            .collect()
    }
}

/// The kernel sizes what comes in: a stranger that calls must not hold memory before it has shown
/// that it is a peer.
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
