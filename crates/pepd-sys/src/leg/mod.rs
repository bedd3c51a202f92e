//! The legs of a flow: listeners, server legs, and their socket options.
//!
//! The options of the client leg are set on the listener, from which accepted sockets inherit them.
//! A server leg is reserved first, which takes the descriptor, and connected later. So pepd accepts
//! no client without a second descriptor.

mod clamp;
mod options;
mod ports;
pub mod receive;
mod site;
mod terms;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use pep_core::site::{DscpPolicy, Source, SynHandling};
use socket2::{SockAddr, SockRef, Socket, Type};

// The kernel's connect() treats loopback and unspecified addresses as this machine.
pub use pep_core::site::may_be_host;

pub use crate::family::Family;
pub use clamp::Clamps;
pub use options::{Congestion, LegOptions, OptionError, PayloadRate, set_pacing_or_warn};
pub use site::SiteRuntime;
pub use terms::Terms;

/// Returns `count` non-blocking listeners of a site on loopback at [`SiteRuntime::port`], with the
/// options of its client legs. The kernel spreads connections over them (SO_REUSEPORT). `inherited`
/// ones, `count` at the most, are reused.
///
/// # Errors
/// The option or bind that failed; most often an address in use.
pub fn listeners(
    site: &SiteRuntime,
    family: Family,
    count: usize,
    inherited: Vec<Socket>,
) -> Result<Vec<Socket>, OptionError> {
    let mut bound = inherited;
    for socket in &bound {
        set_listener_options(socket, site, family)?;
    }
    if bound.is_empty() {
        // The first is bound exclusively: a port of another process must be an error even where
        // that process shares its port.
        let first = bound_listener(site, family, false)?;
        first.set_reuse_port(true).map_err(step("SO_REUSEPORT"))?;
        bound.push(first);
    }
    while bound.len() < count {
        bound.push(bound_listener(site, family, true)?);
    }
    for socket in &bound {
        socket.listen(site.backlog).map_err(step("listen"))?;
    }
    Ok(bound)
}

fn step(name: &'static str) -> impl Fn(io::Error) -> OptionError {
    move |source| OptionError { name, source }
}

fn bound_listener(
    site: &SiteRuntime,
    family: Family,
    share_port: bool,
) -> Result<Socket, OptionError> {
    let socket = unbound_socket(family)?;
    set_listener_options(&socket, site, family)?;
    let address = SocketAddr::new(family.loopback(), site.port);
    socket
        .set_reuse_port(share_port)
        .map_err(step("SO_REUSEPORT"))?;
    set_transparent(&socket, family).map_err(step("IP_TRANSPARENT"))?;
    socket.bind(&address.into()).map_err(step("bind"))?;
    Ok(socket)
}

/// Sets the options that may change on a listener with queued clients.
fn set_listener_options(
    socket: &Socket,
    site: &SiteRuntime,
    family: Family,
) -> Result<(), OptionError> {
    set_leg_options(socket, &site.client, family)?;
    if site.keeps_dscp() {
        let saved =
            crate::socket::set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1);
        options::or_warn("TCP_SAVE_SYN", saved);
    }
    if let DscpPolicy::Set(dscp) = site.dscp {
        set_dscp_or_warn(socket.as_fd(), family, dscp);
    }
    Ok(())
}

/// Fields that a server leg copies from its client's SYN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FromSyn {
    /// The DSCP; 0 where the site does not keep it.
    pub dscp: u8,
    /// Bits of the mark set by another program, none of pepd's.
    pub mark: u32,
}

impl FromSyn {
    /// Returns the fields that a server leg of this site has, to create another one.
    pub fn of(leg: BorrowedFd<'_>, site: &SiteRuntime, family: Family) -> Self {
        let socket = SockRef::from(&leg);
        let class = match family {
            Family::V4 => socket.tos_v4(),
            Family::V6 => socket.tclass_v6(),
        };
        let dscp = class.map_or(0, |class| (class >> 2) as u8);
        let mark = socket.mark().unwrap_or(site.server.mark);
        Self {
            dscp: if site.keeps_dscp() { dscp } else { 0 },
            mark: mark & !site.server.mark,
        }
    }
}

/// Creates the server leg of a flow: non-blocking, options set, bound as the site requires,
/// connecting.
///
/// The leg is connected when it becomes writable and [`so_error`] is `None`.
///
/// # Errors
/// As [`ReservedLeg::connect`], and any error in creating a socket.
#[cfg(any(test, feature = "testing"))]
pub fn server_leg(
    site: &SiteRuntime,
    destination: SocketAddr,
    client: SocketAddr,
    syn: FromSyn,
) -> io::Result<OwnedFd> {
    ReservedLeg::new(site, Family::from_address(&destination))?.connect(
        site,
        destination,
        client,
        syn,
    )
}

/// A server leg without a destination yet.
#[derive(Debug)]
pub struct ReservedLeg {
    socket: Socket,
    family: Family,
}

impl AsFd for ReservedLeg {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ReservedLeg {
    /// Creates the socket with every option that does not depend on the flow.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOBUFS or ENOMEM when there is no descriptor or memory; else a required
    /// option that the kernel refuses.
    pub fn new(site: &SiteRuntime, family: Family) -> io::Result<Self> {
        let socket = new_socket(&site.server, family)?;
        if site.source == Source::Client {
            set_transparent(&socket, family)?;
        }
        if site.syn == SynHandling::Defer {
            set_icmp_errors(socket.as_fd(), family, true)?;
        }
        if let DscpPolicy::Set(dscp) = site.dscp {
            set_dscp_or_warn(socket.as_fd(), family, dscp);
        }
        Ok(Self { socket, family })
    }

    /// Starts to connect, from the client's address and port where the site requires that.
    ///
    /// # Errors
    /// EADDRINUSE or EADDRNOTAVAIL when the client's address and port are in use. ENETUNREACH or
    /// EHOSTUNREACH when there is no route, EACCES when a route forbids it.
    pub fn connect(
        self,
        site: &SiteRuntime,
        destination: SocketAddr,
        client: SocketAddr,
        syn: FromSyn,
    ) -> io::Result<OwnedFd> {
        let is_bound = site.source == Source::Client;
        if is_bound {
            self.socket.bind(&client.into())?;
        }
        self.start(site, destination, syn, is_bound)
    }

    /// Starts to connect as [`connect`](Self::connect) does, but from a free port of the client's
    /// address.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_from_any_port(
        self,
        site: &SiteRuntime,
        destination: SocketAddr,
        client: IpAddr,
        syn: FromSyn,
    ) -> io::Result<OwnedFd> {
        // Defers the choice of the port to connect(), which knows the destination: more ports are
        // free then.
        let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
        crate::socket::set_int(self.socket.as_fd(), level, name, 1)?;
        self.socket.bind(&SocketAddr::new(client, 0).into())?;
        self.start(site, destination, syn, false)
    }

    fn connect_from_used(&self, destination: &SockAddr) -> io::Result<()> {
        let address = self.socket.local_addr()?.as_socket();
        let mut address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let bind = |port| {
            address.set_port(port);
            self.socket.bind(&address.into())
        };
        ports::connect_from_used(bind, || self.socket.connect(destination))
    }

    fn start(
        self,
        site: &SiteRuntime,
        destination: SocketAddr,
        syn: FromSyn,
        has_port: bool,
    ) -> io::Result<OwnedFd> {
        if site.keeps_dscp() && syn.dscp != 0 {
            set_dscp_or_warn(self.socket.as_fd(), self.family, syn.dscp);
        }
        if syn.mark != 0 {
            self.socket.set_mark(site.server.mark | syn.mark)?;
        }
        let clamped = site
            .clamps
            .apply(&self.socket, self.family, site.server.mss);
        options::or_warn("TCP_MAXSEG", clamped);
        let destination = SockAddr::from(destination);
        let connect = || self.socket.connect(&destination);
        let connected = if has_port {
            connect()
        } else {
            match ports::connect_in_parts(self.socket.as_fd(), connect) {
                Err(err) if err.kind() == io::ErrorKind::AddrNotAvailable => {
                    self.connect_from_used(&destination)
                }
                result => result,
            }
        };
        match connected {
            Err(err) if err.raw_os_error() != Some(libc::EINPROGRESS) => Err(err),
            _ => Ok(self.socket.into()),
        }
    }
}

/// Gives a leg that has just begun to connect, and does not leave by the link, the options for
/// that. Returns the site's options for such flows; `None` if it has no others.
pub fn leave_link(
    fd: BorrowedFd<'_>,
    site: &SiteRuntime,
    family: Family,
) -> Option<Arc<SiteRuntime>> {
    let beside = site.beside.as_ref()?;
    beside.server.replace_or_warn(&site.server, fd, family);
    Some(Arc::clone(beside))
}

/// Takes the pending error of a socket, if there is one (SO_ERROR).
///
/// # Errors
/// When the option cannot be read.
pub fn so_error(fd: BorrowedFd<'_>) -> io::Result<Option<io::Error>> {
    SockRef::from(&fd).take_error()
}

/// Prepares a connected leg: caps retransmissions as the site requires, and clears IP_RECVERR. With
/// it the kernel would end an established connection at the first ICMP unreachable of an outage.
///
/// # Errors
/// When the option cannot be cleared.
pub fn on_connected(fd: BorrowedFd<'_>, site: &SiteRuntime, family: Family) -> io::Result<()> {
    site.server.cap_retransmissions(fd);
    if site.syn == SynHandling::Defer {
        set_icmp_errors(fd, family, false)?;
    }
    Ok(())
}

/// Sets whether close() sends RST and drops undelivered data (`true`, the initial state of all
/// legs), or FIN after all data (`false`).
///
/// # Errors
/// When the option cannot be set.
pub fn set_reset_on_close(fd: BorrowedFd<'_>, reset: bool) -> io::Result<()> {
    SockRef::from(&fd).set_linger(reset.then_some(Duration::ZERO))
}

/// Returns the DSCP of an accepted leg's SYN, if it was saved; 0 otherwise.
pub fn syn_dscp(fd: BorrowedFd<'_>) -> u8 {
    let mut buffer = [0; 256];
    match crate::socket::saved_syn(fd, &mut buffer) {
        Ok([first, second, ..]) if first >> 4 == 4 => second >> 2,
        Ok([first, second, ..]) if first >> 4 == 6 => (first << 4 | second >> 4) >> 2,
        _ => 0,
    }
}

/// Sets the DSCP of all further packets of a leg.
pub fn set_dscp_or_warn(fd: BorrowedFd<'_>, family: Family, dscp: u8) {
    let (level, name) = match family {
        Family::V4 => (libc::IPPROTO_IP, libc::IP_TOS),
        Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    };
    let result = crate::socket::set_int(fd, level, name, libc::c_int::from(dscp) << 2);
    options::or_warn("IP_TOS", result);
}

fn new_socket(options: &LegOptions, family: Family) -> Result<Socket, OptionError> {
    let socket = unbound_socket(family)?;
    options.apply_to_connect(&socket, family)?;
    reset_on_drop(&socket)?;
    Ok(socket)
}

fn unbound_socket(family: Family) -> Result<Socket, OptionError> {
    let socket =
        Socket::new(family.domain(), Type::STREAM.nonblocking(), None).map_err(step("socket"))?;
    if family == Family::V6 {
        // Else ::ffff:127.0.0.1, which a host may address, would be this machine's own loopback.
        socket.set_only_v6(true).map_err(step("IPV6_V6ONLY"))?;
    }
    Ok(socket)
}

fn set_leg_options(
    socket: &Socket,
    options: &LegOptions,
    family: Family,
) -> Result<(), OptionError> {
    options.apply(socket, family)?;
    reset_on_drop(socket)
}

fn reset_on_drop(socket: &Socket) -> Result<(), OptionError> {
    // Until the flow has ended properly, closing this socket sends RST. If pepd is killed the
    // kernel closes it, and a FIN would make half a download look complete.
    set_reset_on_close(socket.as_fd(), true).map_err(step("SO_LINGER"))
}

fn set_transparent(socket: &Socket, family: Family) -> io::Result<()> {
    match family {
        Family::V4 => socket.set_ip_transparent_v4(true),
        Family::V6 => socket.set_ip_transparent_v6(true),
    }
}

fn set_icmp_errors(fd: BorrowedFd<'_>, family: Family, on: bool) -> io::Result<()> {
    let (level, name) = match family {
        Family::V4 => (libc::IPPROTO_IP, libc::IP_RECVERR),
        Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    crate::socket::set_int(fd, level, name, libc::c_int::from(on))
}
