//! Probes of the gateway beyond the link ([`pep_core::outage::probing`]), for pepds without
//! tunnels.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
    process,
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv, send};
use pep_core::{config::Link, outage::probing::Probing};
use pepd_sys::{notices::Retry, reactor};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};

use super::LinkWatch;

/// Extra time for an answer, beyond two round trips of an idle link: queues are long on a bad one.
const PATIENCE: Duration = Duration::from_secs(3);
/// More than an answer takes, with the longest IP header.
const PACKET_BYTES_MAX: usize = 256;

/// Sends probes for as long as it is polled.
pub(super) async fn watch(watch: &LinkWatch, link: &Link, gateway: IpAddr) {
    let mut retry = Retry::watching(
        "gateway probes stopped (`link.gateway`)",
        "other sources determine the state of the link",
    );
    loop {
        let Err(err) = ask(watch, link, gateway).await;
        retry.wait(&err).await;
    }
}

async fn ask(watch: &LinkWatch, link: &Link, gateway: IpAddr) -> io::Result<Infallible> {
    let socket = reactor::register(socket(link, gateway)?, Interest::READABLE)?;
    let began = Instant::now();
    let patience = PATIENCE + 2 * link.rtt.unwrap_or_default();
    // As ping does.
    let identifier = process::id() as u16;
    let every = link.gateway_every;
    let mut probing = Probing::new(Duration::ZERO, gateway, identifier, every, patience);
    if watch.gateway_has_answered(gateway) {
        probing.expect_answers();
    }
    loop {
        if let Some(question) = probing.poll_question(began.elapsed()) {
            // An unsent probe stays unanswered; the silence is reported below.
            if let Err(errno) = send(socket.as_raw_fd(), &question, MsgFlags::empty()) {
                tracing::debug!(error = %errno, %gateway, "cannot send a gateway probe");
            }
        }
        if probing.poll_silence(began.elapsed()) {
            watch.probe(false);
        }
        watch.gateway_is_mute(probing.is_mute());
        tokio::select! {
            packet = receive(&socket) => {
                if probing.receive(&packet?) {
                    watch.probe(true);
                }
            }
            () = sleep_until(began + probing.deadline()) => {}
        }
    }
}

/// Receives a packet of the gateway. Errors from a router or from the interface count as silence.
async fn receive(socket: &AsyncFd<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    let read = |socket: &OwnedFd| {
        let flags = MsgFlags::MSG_DONTWAIT;
        recv(socket.as_raw_fd(), &mut packet, flags).map_err(io::Error::from)
    };
    let len = match socket.async_io(Interest::READABLE, read).await {
        Err(err) if is_of_the_way(&err) => 0,
        len => len?,
    };
    packet.truncate(len);
    Ok(packet)
}

fn is_of_the_way(err: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, PermissionDenied,
    };
    matches!(
        err.kind(),
        ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable | PermissionDenied
    ) || err.raw_os_error() == Some(libc::EPROTO)
}

/// Opens a raw socket: the kernel's ping sockets are forbidden to all users by default, and pepd
/// has the right to open raw ones anyway.
fn socket(link: &Link, gateway: IpAddr) -> io::Result<OwnedFd> {
    let (domain, protocol) = match gateway {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW.nonblocking(), Some(protocol))?;
    socket.bind_device(Some(link.interface.as_str().as_bytes()))?;
    // Exchanges packets with the gateway only. Fails without a route, and is retried.
    socket.connect(&SocketAddr::new(gateway, 0).into())?;
    Ok(socket.into())
}
