//! Datagrams by TCP, where UDP does not get through.
//!
//! ```text
//!   driver -- datagram --> queue of a connection --> its task <==== TCP ====> the other pepd
//!     ^                      | full: the peer is held   |
//!     +------- released -----+                          +-- datagrams --> endpoint
//! ```
//!
//! Who has not shown that it is a peer is a stranger: strangers are few, have little memory and
//! little time.
//!
//! - [`sockets`], how they are made
//! - `connection`, one of them as a task

mod connection;
mod sockets;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    task::Waker,
    time::Duration,
};

use pep_core::config::{self, Peer};
use pepd_relay::{flow::SHORTAGE_RETRY, limits::Resource};
use tokio::{net::TcpListener, task::spawn_local, time::sleep};
use tunnel::{
    endpoint::{Carrier, PeerId, Remote},
    wire::append_carried,
};

pub(super) use self::sockets::{Listeners, Options};
use super::core::{Core, Shared};

/// Bytes that wait for a connection at most, but for handshakes: beyond them its peer is held.
const QUEUE: usize = 32 << 10;
/// Handshakes of a peer that is held.
const QUEUE_MAX: usize = QUEUE + (128 << 10);
/// Strangers at a time, and from one address (IPv6: from one /64) of them.
const STRANGERS: usize = 256;
const STRANGERS_ALIKE: usize = 16;
/// How long somebody may remain a stranger.
const STRANGE: Duration = Duration::from_secs(15);
/// A connection by which nothing comes for so long is of no use to anybody.
const IDLE: Duration = Duration::from_secs(60);
/// By which nothing comes for so long and four round trips, though something should, is stuck: a
/// new one is quicker than the kernel's next retransmission.
const STUCK: Duration = Duration::from_secs(5);

/// What there is to be known of a connection.
#[derive(Debug)]
struct Connection {
    /// No other connection ever has it.
    id: u64,
    /// We have called; else we were called.
    called: bool,
    /// Whose it is. Unknown of strangers.
    peer: Option<PeerId>,
    /// Since when it is there, and when something of a peer's last came.
    heard: Duration,
    /// What waits to be sent.
    queue: Vec<u8>,
    /// The peer is held.
    full: bool,
    /// Of the task.
    waker: Option<Waker>,
}

impl Connection {
    fn new(id: u64, called: bool, peer: Option<PeerId>, now: Duration) -> Self {
        Self {
            id,
            called,
            peer,
            heard: now,
            queue: Vec::new(),
            full: false,
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

/// All connections, by the address at their other end.
#[derive(Debug)]
pub(super) struct Connections {
    list: BTreeMap<SocketAddr, Connection>,
    options: Options,
    next: u64,
    /// Strangers that went, or were sent, without having shown who they are.
    pub(super) strangers_gone: u64,
    /// Datagrams that have come, gone, and not gone.
    pub(super) counted: super::udp::Counted,
}

impl Connections {
    /// None yet.
    pub(super) fn new(options: Options) -> Self {
        Self {
            list: BTreeMap::new(),
            options,
            next: 0,
            strangers_gone: 0,
            counted: Default::default(),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    fn get(&mut self, at: SocketAddr, id: u64) -> Option<&mut Connection> {
        self.list.get_mut(&at).filter(|there| there.id == id)
    }

    /// A connection, in the place of an earlier one with that address.
    fn insert(&mut self, at: SocketAddr, mut connection: Connection) -> u64 {
        self.next += 1;
        connection.id = self.next;
        if let Some(mut old) = self.list.insert(at, connection) {
            old.wake();
        }
        self.next
    }

    /// Ends a connection: its task sees that it is gone.
    fn remove(&mut self, at: SocketAddr) -> Option<Connection> {
        let mut gone = self.list.remove(&at)?;
        self.strangers_gone += u64::from(gone.is_stranger());
        gone.wake();
        Some(gone)
    }

    /// Somebody has called.
    fn admit(&mut self, now: Duration, from: SocketAddr) -> u64 {
        let strangers = |alike: Option<IpAddr>| {
            let list = self.list.iter();
            list.filter(move |(at, there)| {
                there.is_stranger() && alike.is_none_or(|alike| are_alike(alike, at.ip()))
            })
        };
        let oldest = |alike| {
            let oldest = strangers(alike).min_by_key(|(_, there)| (there.heard, there.id));
            oldest.map(|(at, _)| *at)
        };
        let gone = if strangers(Some(from.ip())).count() >= STRANGERS_ALIKE {
            oldest(Some(from.ip()))
        } else if strangers(None).count() >= STRANGERS {
            oldest(None)
        } else {
            None
        };
        if let Some(gone) = gone {
            self.remove(gone);
        }
        self.insert(from, Connection::new(0, false, None, now))
    }
}

fn are_alike(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => one == other,
    }
}

impl Core {
    /// Puts a datagram into the queue of a connection, which is called where there is none and it
    /// can be.
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
        let there = self.tcp.list.get_mut(&to);
        let Some(there) = there.filter(|there| there.queue.len() < QUEUE_MAX) else {
            self.tcp.counted.unsent += 1;
            return;
        };
        append_carried(datagram, &mut there.queue);
        self.tcp.counted.sent += 1;
        there.wake();
        if let (true, Some(peer)) = (there.queue.len() >= QUEUE, peer) {
            there.full = true;
            self.endpoint.hold(peer, Remote::tcp(to));
        }
    }

    /// Whether there is no connection, or one that is stuck, and the peer may be called there.
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
            .is_none_or(|there| there.called && there.heard + stuck < now)
    }

    /// A connection is over.
    fn on_connection_end(&mut self, at: SocketAddr, id: u64) {
        if self.tcp.get(at, id).is_some() {
            self.end_connection(at);
        }
    }

    fn end_connection(&mut self, at: SocketAddr) {
        if let Some(peer) = self.tcp.remove(at).and_then(|gone| gone.peer) {
            self.endpoint.lose(peer, Remote::tcp(at));
            self.wake_driver();
        }
    }

    /// Ends connections of strangers and those by which nothing comes.
    pub(super) fn sweep_connections(&mut self) {
        let now = self.now();
        let list = self.tcp.list.iter();
        let old: Vec<_> = list
            .filter(|(_, there)| {
                let time = if there.is_stranger() { STRANGE } else { IDLE };
                there.heard + time < now
            })
            .map(|(at, _)| *at)
            .collect();
        for at in old {
            self.end_connection(at);
        }
    }
}

/// Says by what a peer is reached, if that has changed or is not what is to be expected. Whether it
/// has said so.
pub(super) fn tell_of_carrier(peer: &Peer, was: Option<Carrier>, is: Remote) -> bool {
    let (name, address) = (peer.name.as_str(), is.address);
    if peer.carrier != config::Carrier::Auto || was.unwrap_or(Carrier::Udp) == is.carrier {
        return false;
    }
    match is.carrier {
        Carrier::Tcp => tracing::warn!(
            peer = name,
            %address,
            "peer is reached by TCP, not by UDP"
        ),
        Carrier::Udp => tracing::info!(peer = name, %address, "peer is reached by UDP again"),
    }
    true
}

/// Takes connections.
pub(super) async fn accept(core: Shared, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let mut core_there = core.borrow_mut();
                let now = core_there.now();
                let id = core_there.tcp.admit(now, from);
                spawn_local(connection::run(Rc::clone(&core), stream, from, id));
            }
            Err(err) => {
                tracing::debug!(error = %err, "cannot take a connection of a peer");
                if let Some(resource) = Resource::short(&err) {
                    core.borrow().context.admission.on_short(resource);
                }
                // Nobody tells when there is a descriptor again.
                sleep(SHORTAGE_RETRY).await;
            }
        }
    }
}
