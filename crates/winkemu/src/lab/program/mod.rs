//! Programs that run on the nodes of a topology.
//!
//! - [`Bulk`]: built in; one long transfer, measured at the receiver
//! - [`Messages`]: built in; small messages at fixed times, and their delays
//! - [`Datagrams`]: built in; a constant flow of UDP or ESP, and the fate of each datagram
//! - [`CountingTcp`]: built in; a transfer from a sender that counts ACKs, as old senders did
//! - [`Curl`] or a [`Page`] with [`Nginx`], [`Iperf3`], any [`Shell`] command
//! - [`Pepd`]: the daemon on a node in the middle

mod arrivals;
mod bulk;
mod command;
mod counting_tcp;
mod curl;
mod datagrams;
mod delays;
mod error;
mod iperf3;
mod keys;
mod lines;
mod messages;
mod nginx;
mod page;
mod pepd;
mod sys;
mod tcp_info;

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub use arrivals::Arrival;
pub use bulk::{Bulk, BulkResult, Point, QuicControl, Sample};
pub use command::{Finished, Shell, run_to_end};
pub use counting_tcp::{CountingTcp, CountingTcpResult};
pub use curl::{Curl, CurlResult};
pub(super) use datagrams::BYTES_MIN as DATAGRAM_BYTES_MIN;
pub use datagrams::{Carrier, Datagrams, DatagramsResult};
pub use delays::Delays;
pub use error::ProgramError;
pub use iperf3::{Iperf3, Iperf3Result};
pub use keys::Keys;
pub use lines::Lines;
pub use messages::{Messages, MessagesResult};
pub use nginx::Nginx;
pub use page::{Page, PageResult};
pub use pepd::{Pepd, PepdReport, pepd_binary};
pub use tcp_info::TcpInfo;

/// Direction of a transfer's data. The client opens the connection in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// Data from the client to the server.
    Upload,
    /// Data from the server to the client.
    Download,
}

/// Time limit for a server to start listening, long enough for a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Calls `check` every few milliseconds until it returns true or the timeout is over.
fn wait_until(timeout: Duration, mut check: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !check() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Creates a TCP socket for connections to or from an address.
fn tcp_socket(address: SocketAddr) -> Result<Socket, ProgramError> {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
        .map_err(ProgramError::socket("create a socket"))
}

/// Creates a TCP listener on an address; accepting waits for `tick` or less.
fn tcp_listener(address: SocketAddr, tick: Duration) -> Result<Socket, ProgramError> {
    let socket = tcp_socket(address)?;
    let listen = || {
        socket.set_reuse_address(true)?;
        socket.set_read_timeout(Some(tick))?;
        bind_when_free(&socket, address)?;
        socket.listen(1)
    };
    listen().map_err(ProgramError::socket(format!("listen on {address}")))?;
    Ok(socket)
}

/// Binds a socket to an address, once the former listener there has been closed.
///
/// A process that another thread forks holds a copy of every descriptor until it calls exec(2), so
/// that a listener outlives its owner for a moment.
fn bind_when_free(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let mut bound = socket.bind(&SockAddr::from(address));
    wait_until(Duration::from_secs(2), || {
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            bound = socket.bind(&SockAddr::from(address));
        }
        !matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse)
    });
    bound
}

#[cfg(test)]
mod tests;
