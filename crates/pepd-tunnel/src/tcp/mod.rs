//! Datagrams by TCP, for networks that block UDP.
//!
//! ```text
//!   driver -- datagram --> queue of a connection --> its task <==== TCP ====> the other pepd
//!     ^                      | full: the peer is held   |
//!     +------- released -----+                          +-- datagrams --> endpoint
//! ```
//!
//! A connection is a stranger until it has authenticated as a peer. Strangers are limited in
//! number, memory and time, and the connections of each peer in number and memory.
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

use pep_core::{
    budget::Share,
    config::{self, Peer},
    pace::Line,
};
use pepd_relay::{flow::SHORTAGE_RETRY, limits::Resource};
use tokio::{
    net::{TcpListener, TcpStream},
    task::spawn_local,
    time::sleep,
};
use tunnel::{
    endpoint::{Carrier, PeerId, Remote, subnet_of},
    wire::{Carried, append_carried},
};

use self::strangers::Stranger;
pub(super) use self::{
    connection::run,
    sockets::{Listeners, Options},
};
use super::{
    core::{Core, Kind, Shared},
    shards::{Datagram, Passed, Received},
};

/// Maximum of bytes queued for a connection, apart from handshakes. Beyond it, its peer is held.
const QUEUE: usize = 32 << 10;
/// Maximum including the handshakes of a held peer.
const QUEUE_MAX: usize = QUEUE + (128 << 10);
/// Maximum of connections by which one peer has called: a boat uses one, and another one once that
/// is stuck.
const PEER_MAX: usize = 4;
/// Datagrams in a row that are not the peer's, after which its connection is closed. TCP delivers
/// what was sent; only datagrams under way at the end of a session are not a session's any more.
const GARBAGE_MAX: u32 = 256;
/// Memory of a peer's connection: a datagram in progress, and the queue.
const MEMORY: u64 = (Carried::HELD_MAX + QUEUE) as u64;
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
    /// Latest datagrams that were not the peer's.
    garbage: u32,
    /// Part of `limits.memory`, if the connection is a peer's.
    memory: Option<Share>,
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
            garbage: 0,
            memory: None,
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
    /// Connections of peers that pepd has closed: one too many, or full of garbage.
    pub(super) peers_closed: u64,
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
            peers_closed: 0,
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
            let called = Connection {
                memory: Some(self.memory_of_connection()),
                ..Connection::new(0, true, peer, now)
            };
            let id = self.tcp.insert(to, called);
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

    /// Takes the memory of a peer's connection, also beyond the limit: their number is bounded.
    fn memory_of_connection(&self) -> Share {
        let mut memory = Share::none(&self.context.budget);
        memory.grow(MEMORY);
        memory
    }

    /// Handles the authentication of a connection by which a peer has called. Beyond the maximum,
    /// the one that has been silent for longest makes room.
    fn on_joined(&mut self, peer: PeerId, at: SocketAddr) {
        let memory = self.memory_of_connection();
        if let Some(conn) = self.tcp.list.get_mut(&at) {
            conn.memory.get_or_insert(memory);
        }
        let list = self.tcp.list.iter();
        let earlier = list
            .filter(|(other, conn)| conn.peer == Some(peer) && !conn.called && **other != at)
            .map(|(other, conn)| ((conn.heard, conn.id), *other));
        let mut earlier: Vec<_> = earlier.collect();
        earlier.sort_unstable();
        for (_, other) in earlier.iter().rev().skip(PEER_MAX - 1) {
            let reason = format!("it has opened more than {PEER_MAX}");
            self.close_of_peer(peer, *other, &reason);
        }
    }

    /// Closes a connection of a peer that brings garbage.
    fn close_broken(&mut self, at: SocketAddr) {
        let conn = self.tcp.list.get(&at);
        if let Some(peer) = conn.and_then(|conn| conn.peer) {
            self.close_of_peer(peer, at, "what it brings is not the peer's");
        }
    }

    fn close_of_peer(&mut self, peer: PeerId, at: SocketAddr, reason: &str) {
        self.tcp.peers_closed += 1;
        self.end_connection(at);
        let index = self.peers.index(peer);
        if let Some(Line { left_out }) = self.line(index, Kind::Moved) {
            let peer = self.peer_name(index);
            tracing::warn!(peer, %at, reason, left_out, "TCP connection of the peer closed");
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
        for conn in self.tcp.list.values_mut() {
            if conn.queue.is_empty() {
                conn.queue = Vec::new();
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig;

    /// However many a peer opens; the one that it uses stays.
    #[tokio::test(flavor = "current_thread")]
    async fn a_peer_has_few_connections_and_they_count_as_memory() {
        const OPENED: u16 = 50;
        let hub_at = SocketAddr::from(([192, 0, 2, 1], 1));
        let hub = rig::core(3, &[(1, None), (2, None)]);
        let boat = rig::core(1, &[(3, Some(hub_at))]);
        let other = rig::core(2, &[(3, Some(hub_at))]);
        let memory = || hub.borrow().context.budget.taken();
        let before = memory();
        let come = |end: &Shared, index: usize, port: u16, id: Option<u64>| {
            let at = SocketAddr::from(([192, 0, 2, 2 + index as u8], port));
            let mut datagram = rig::next_data((&hub, index), end, (Remote::tcp(at), hub_at));
            let core = &mut *hub.borrow_mut();
            let now = core.now();
            core.begin_turn();
            let id = id.unwrap_or_else(|| core.tcp.admit(now, at));
            assert!(core.take_from_tcp(at, id, &mut datagram));
            id
        };
        come(&other, 1, 9, None);
        let used = come(&boat, 0, 1, None);
        for port in 2..=OPENED {
            come(&boat, 0, 1, Some(used));
            come(&boat, 0, port, None);
            let core = hub.borrow();
            let list = core.tcp.list.iter();
            let ports: Vec<_> = list
                .filter(|(_, conn)| conn.peer == core.peers.ids().first().copied())
                .map(|(at, _)| at.port())
                .collect();
            assert!(ports.len() <= PEER_MAX, "{ports:?}");
            assert!(ports.contains(&1) && ports.contains(&port), "{ports:?}");
        }
        assert_eq!(hub.borrow().tcp.len(), PEER_MAX + 1, "and the other peer's");
        assert_eq!(memory() - before, (PEER_MAX as u64 + 1) * MEMORY);
        let closed = u64::from(OPENED) - PEER_MAX as u64;
        assert_eq!(hub.borrow().tcp.peers_closed, closed);
        let core = &mut *hub.borrow_mut();
        core.pass_time(2 * IDLE);
        core.sweep_connections();
        assert_eq!((core.tcp.len(), core.context.budget.taken()), (0, before));
    }
}
