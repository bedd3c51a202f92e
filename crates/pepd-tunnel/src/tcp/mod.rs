//! Datagrams by TCP, for networks that block UDP.
//!
//! ```text
//!   driver -- datagram --> queue of a connection --> its task <==== TCP ====> the other pepd
//!     ^                      | full: the peer is held   |
//!     +------- released -----+                          +-- datagrams --> endpoint
//! ```
//!
//! A connection is a stranger until it has authenticated as a peer. Strangers are limited in
//! number, memory and time.
//!
//! - [`sockets`], creation of sockets
//! - [`strangers`], the choice of the one that makes room for another
//! - `connection`, one connection as a task

mod connection;
mod sockets;
mod strangers;

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    task::Waker,
    time::Duration,
};

use pep_core::config::{self, Peer};
use pepd_relay::{flow::SHORTAGE_RETRY, limits::Resource};
use tokio::{
    net::{TcpListener, TcpStream},
    task::spawn_local,
    time::sleep,
};
use tunnel::{
    endpoint::{Carrier, PeerId, Remote, subnet_of},
    wire::append_carried,
};

use self::strangers::Stranger;
pub(super) use self::{
    connection::run,
    sockets::{Listeners, Options},
};
use super::{
    core::{Core, Shared},
    shards::{Datagram, Passed, Received},
};

/// Maximum of bytes queued for a connection, apart from handshakes. Beyond it, its peer is held.
const QUEUE: usize = 32 << 10;
/// Maximum including the handshakes of a held peer.
const QUEUE_MAX: usize = QUEUE + (128 << 10);
/// Time limit for a stranger to authenticate.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(15);
/// Idle time after which a connection is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Silence, beyond four round trips, after which a connection counts as stuck although data is due.
/// A new connection is faster than the kernel's next retransmission.
const STUCK: Duration = Duration::from_secs(5);

/// State of a connection.
#[derive(Debug)]
struct Connection {
    /// Unique number of the connection.
    id: u64,
    /// The local end has opened the connection.
    called: bool,
    /// The authenticated peer; `None` for strangers.
    peer: Option<PeerId>,
    /// Peer whose initiation came by the connection and was offered keys.
    offered: Option<PeerId>,
    /// Time of the opening, or of the last bytes of an authenticated peer.
    heard: Duration,
    /// Bytes that wait to be sent.
    queue: Vec<u8>,
    /// The peer is held.
    full: bool,
    /// Received datagrams wait until there is room in the peer's queue.
    stalled: bool,
    /// Waker of the task.
    waker: Option<Waker>,
}

impl Connection {
    fn new(id: u64, called: bool, peer: Option<PeerId>, now: Duration) -> Self {
        Self {
            id,
            called,
            peer,
            offered: None,
            heard: now,
            queue: Vec::new(),
            full: false,
            stalled: false,
            waker: None,
        }
    }

    fn is_stranger(&self) -> bool {
        self.peer.is_none()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// All connections, by remote address.
#[derive(Debug)]
pub(super) struct Connections {
    list: BTreeMap<SocketAddr, Connection>,
    /// Subnets where peers were heard.
    expected: BTreeSet<IpAddr>,
    options: Options,
    next: u64,
    /// Connections closed before they had authenticated, by either end.
    pub(super) strangers_closed: u64,
    /// Datagrams received, sent and not sent.
    pub(super) counted: super::udp::Counted,
}

impl Connections {
    /// Creates the value without connections.
    pub(super) fn new(options: Options) -> Self {
        Self {
            list: BTreeMap::new(),
            expected: BTreeSet::new(),
            options,
            next: 0,
            strangers_closed: 0,
            counted: Default::default(),
        }
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    fn get(&mut self, at: SocketAddr, id: u64) -> Option<&mut Connection> {
        self.list.get_mut(&at).filter(|conn| conn.id == id)
    }

    /// Inserts a connection; replaces an earlier one with that address.
    fn insert(&mut self, at: SocketAddr, mut connection: Connection) -> u64 {
        self.next += 1;
        connection.id = self.next;
        if let Some(mut old) = self.list.insert(at, connection) {
            old.wake();
        }
        self.next
    }

    /// Wakes connections whose received datagrams wait.
    pub(super) fn wake_waiting(&mut self) {
        for conn in self.list.values_mut().filter(|conn| conn.stalled) {
            conn.stalled = false;
            conn.wake();
        }
    }

    /// Removes a connection, which ends its task.
    fn remove(&mut self, at: SocketAddr) -> Option<Connection> {
        let mut removed = self.list.remove(&at)?;
        self.strangers_closed += u64::from(removed.is_stranger());
        removed.wake();
        Some(removed)
    }

    /// Replaces the addresses where peers were heard: a part of the strangers' places is theirs.
    pub(super) fn expect_from(&mut self, addresses: &[IpAddr]) {
        self.expected = addresses.iter().copied().map(subnet_of).collect();
    }

    /// Records that keys were offered to a peer in answer to a stranger's initiation.
    pub(super) fn on_offer(&mut self, at: SocketAddr, peer: PeerId) {
        if let Some(conn) = self.list.get_mut(&at) {
            conn.offered = Some(peer);
        }
    }

    /// Admits an incoming connection.
    fn admit(&mut self, now: Duration, from: SocketAddr) -> u64 {
        let strangers = self.list.iter().filter(|(_, conn)| conn.is_stranger());
        let strangers: Vec<_> = strangers
            .map(|(at, conn)| Stranger {
                at: *at,
                since: (conn.heard, conn.id),
                offered: conn.offered,
            })
            .collect();
        if let Some(displaced) = strangers::displaced(&strangers, &self.expected, from.ip()) {
            self.remove(displaced);
        }
        self.insert(from, Connection::new(0, false, None, now))
    }
}

impl Core {
    /// Queues a datagram for a connection. Opens a connection if there is none and the peer can be
    /// called.
    pub(super) fn send_by_tcp(
        &mut self,
        shared: &Shared,
        peer: Option<PeerId>,
        to: SocketAddr,
        datagram: &[u8],
    ) {
        let now = self.now();
        if self.wants_call(now, peer, to) {
            let id = self.tcp.insert(to, Connection::new(0, true, peer, now));
            spawn_local(connection::call(Rc::clone(shared), to, id));
        }
        let conn = self.tcp.list.get_mut(&to);
        let Some(conn) = conn.filter(|conn| conn.queue.len() < QUEUE_MAX) else {
            self.tcp.counted.unsent += 1;
            return;
        };
        append_carried(datagram, &mut conn.queue);
        self.tcp.counted.sent += 1;
        conn.wake();
        if let (true, Some(peer)) = (conn.queue.len() >= QUEUE, peer) {
            conn.full = true;
            self.endpoint.hold(peer, Remote::tcp(to));
        }
    }

    /// Returns whether there is no usable connection and the peer may be called at that address.
    fn wants_call(&self, now: Duration, peer: Option<PeerId>, to: SocketAddr) -> bool {
        let Some(peer) = peer.filter(|peer| self.endpoint.addresses(*peer).contains(&to)) else {
            return false;
        };
        let Some(state) = self.endpoint.peer_state(peer) else {
            return false;
        };
        let stuck = STUCK + 4 * state.rtt;
        self.tcp
            .list
            .get(&to)
            .is_none_or(|conn| conn.called && conn.heard + stuck < now)
    }

    /// Adds a connection that another thread has passed. Returns its stream and number.
    pub(super) fn take_connection(
        &mut self,
        at: SocketAddr,
        stream: std::net::TcpStream,
        unsent: Vec<u8>,
    ) -> io::Result<(TcpStream, u64)> {
        let stream = TcpStream::from_std(stream)?;
        let now = self.now();
        let id = self.tcp.admit(now, at);
        if let Some(conn) = self.tcp.get(at, id) {
            conn.queue = unsent;
        }
        Ok((stream, id))
    }

    /// Passes a connection, with its received and unsent bytes, to the thread of its peer.
    fn pass_connection(
        &mut self,
        id: u64,
        stream: TcpStream,
        received: Received,
        (to, first, admitted): (u16, Datagram, bool),
    ) {
        let at = first.from.address;
        let Some(conn) = self.tcp.get(at, id) else {
            return;
        };
        let unsent = mem::take(&mut conn.queue);
        match stream.into_std() {
            Ok(stream) => {
                self.tcp.list.remove(&at);
                let passed = Passed::Connection {
                    stream,
                    received,
                    unsent,
                    first,
                    admitted,
                };
                if !self.pass(to, passed) {
                    tracing::debug!(%at, "TCP connection to a peer closed: its thread is too busy");
                }
            }
            Err(err) => {
                tracing::debug!(%at, error = %err, "TCP connection to a peer closed");
                self.on_connection_end(at, id);
            }
        }
    }

    /// Handles the end of a connection.
    fn on_connection_end(&mut self, at: SocketAddr, id: u64) {
        if self.tcp.get(at, id).is_some() {
            self.end_connection(at);
        }
    }

    fn end_connection(&mut self, at: SocketAddr) {
        if let Some(peer) = self.tcp.remove(at).and_then(|removed| removed.peer) {
            self.endpoint.lose(peer, Remote::tcp(at));
            self.wake_driver();
        }
    }

    /// Closes overdue strangers and idle connections.
    pub(super) fn sweep_connections(&mut self) {
        let now = self.now();
        let list = self.tcp.list.iter();
        let old: Vec<_> = list
            .filter(|(_, conn)| {
                let time = if conn.is_stranger() {
                    STRANGER_TIMEOUT
                } else {
                    IDLE
                };
                conn.heard + time < now
            })
            .map(|(at, _)| *at)
            .collect();
        for at in old {
            self.end_connection(at);
        }
    }
}

/// Logs a peer's transport if it has changed or is unexpected. Returns whether it has logged.
pub(super) fn log_carrier(peer: &Peer, was: Option<Carrier>, is: Remote) -> bool {
    let (name, address) = (peer.name.as_str(), is.address);
    if peer.carrier != config::Carrier::Auto || was.unwrap_or(Carrier::Udp) == is.carrier {
        return false;
    }
    match is.carrier {
        Carrier::Tcp => tracing::warn!(
            peer = name,
            %address,
            "peer reached by TCP: UDP does not get through"
        ),
        Carrier::Udp => tracing::info!(peer = name, %address, "peer reached by UDP again"),
    }
    true
}

/// Accepts connections.
pub(super) async fn accept(core: Shared, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let mut core_there = core.borrow_mut();
                let now = core_there.now();
                let id = core_there.tcp.admit(now, from);
                let received = Received::default();
                spawn_local(run(Rc::clone(&core), stream, (from, id), received));
            }
            Err(err) => {
                tracing::debug!(error = %err, "cannot accept a TCP connection of a peer");
                if let Some(resource) = Resource::short(&err) {
                    core.borrow().context.admission.on_short(resource);
                }
                // The kernel does not notify of free descriptors.
                sleep(SHORTAGE_RETRY).await;
            }
        }
    }
}
