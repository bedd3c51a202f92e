//! One connection, as a task.

use std::{
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{net::TcpStream, time::sleep};
use tunnel::{ecn::Ecn, endpoint::Remote, wire::Carried};

use super::{
    super::{
        core::{Core, Shared},
        shards::{Datagram, Received},
    },
    GARBAGE_MAX, Options, QUEUE,
};

/// Interval between two looks at the route to a peer.
const UPLINK_LOOK: Duration = Duration::from_secs(1);

/// Read calls, and datagrams taken, before other tasks run.
const READ_TURN: usize = 8;
const TAKE_TURN: usize = 128;

/// Connects, and runs the connection.
pub(super) async fn call(core: Shared, at: SocketAddr, id: u64) {
    let connecting = core.borrow().tcp.options.call(at);
    let connected = match connecting {
        Ok(connecting) => tokio::select! {
            connected = connecting => connected,
            () = replaced(&core, at, id) => return,
        },
        Err(err) => Err(err),
    };
    match connected {
        Ok(stream) => {
            let options = core.borrow().tcp.options.clone();
            let local = stream.local_addr().ok();
            let moved = uplink_changes(&options, at, local.map(|local| local.ip()));
            tokio::select! {
                () = run(Rc::clone(&core), stream, (at, id), Received::default()) => {}
                from = moved => {
                    tracing::info!(%at, %from, "TCP connection to a peer is renewed: another uplink leads to the peer now");
                    core.borrow_mut().on_connection_end(at, id);
                }
            }
        }
        Err(err) => {
            tracing::debug!(%at, error = %err, "cannot call a peer by TCP");
            core.borrow_mut().on_connection_end(at, id);
        }
    }
}

/// Waits until packets to `at` leave from another address than the connection's, by two looks in a
/// row: over equal routes the kernel chooses one by the ports. Returns that address.
async fn uplink_changes(options: &Options, at: SocketAddr, local: Option<IpAddr>) -> IpAddr {
    let mut before = None;
    loop {
        sleep(UPLINK_LOOK).await;
        let now = options.source_toward(at).ok();
        let now = now.filter(|now| local.is_some_and(|local| local != *now));
        match now.filter(|_| now == before) {
            Some(changed) => return changed,
            None => before = now,
        }
    }
}

async fn replaced(core: &Shared, at: SocketAddr, id: u64) {
    poll_fn(|cx| {
        let core = &mut *core.borrow_mut();
        let Some(conn) = core.tcp.get(at, id) else {
            return Poll::Ready(());
        };
        conn.waker = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Moves datagrams until the connection ends or is to end, or its peer turns out to be another
/// thread's.
pub(in super::super) async fn run(
    core: Shared,
    stream: TcpStream,
    (at, id): (SocketAddr, u64),
    Received { carried, chances }: Received,
) {
    let mut pipe = Pipe {
        stream,
        at,
        id,
        carried,
        chances,
        left: 0,
        elsewhere: None,
    };
    core.borrow_mut().on_room(at, id);
    let end = poll_fn(|cx| pipe.poll(cx, &core)).await;
    if let Some(elsewhere) = pipe.elsewhere {
        let core = &mut *core.borrow_mut();
        let received = Received {
            carried: pipe.carried,
            chances: pipe.chances,
        };
        return core.pass_connection(id, pipe.stream, received, elsewhere);
    }
    tracing::debug!(%at, error = end.err().map(tracing::field::display), "TCP connection to a peer closed");
    core.borrow_mut().on_connection_end(at, id);
}

struct Pipe {
    stream: TcpStream,
    at: SocketAddr,
    id: u64,
    carried: Carried,
    chances: u32,
    /// Datagrams that this turn may take.
    left: usize,
    /// Thread of the peer that has called, its first datagram, and whether that is an admitted
    /// initiation.
    elsewhere: Option<(u16, Datagram, bool)>,
}

impl Pipe {
    fn poll(&mut self, cx: &mut Context<'_>, core: &Shared) -> Poll<io::Result<()>> {
        let core = &mut *core.borrow_mut();
        let Some(conn) = core.tcp.get(self.at, self.id) else {
            return Poll::Ready(Ok(()));
        };
        conn.waker = Some(cx.waker().clone());
        if conn.called {
            self.carried.prove();
        }
        core.begin_part();
        let has_ended = self.receive(cx, core);
        core.end_part();
        self.carried.shrink();
        if has_ended? || core.tcp.get(self.at, self.id).is_none() {
            return Poll::Ready(Ok(()));
        }
        self.write(cx, core)?;
        Poll::Pending
    }

    /// Handles what has arrived, as much as a turn may. Returns whether the connection has ended
    /// here.
    fn receive(&mut self, cx: &mut Context<'_>, core: &mut Core) -> io::Result<bool> {
        self.left = TAKE_TURN;
        // An earlier turn, or another thread, may have left complete datagrams.
        self.take_all(core)?;
        Ok(self.elsewhere.is_some() || self.read(cx, core)?)
    }

    /// Handles received bytes. Returns whether the connection has ended.
    fn read(&mut self, cx: &mut Context<'_>, core: &mut Core) -> io::Result<bool> {
        for _ in 0..READ_TURN {
            if core.is_stalled(self.at, self.id) {
                return Ok(false);
            }
            if self.left == 0 {
                break;
            }
            if self.stream.poll_read_ready(cx)?.is_pending() {
                return Ok(false);
            }
            match self.stream.try_read(self.carried.space()) {
                Ok(0) => return Ok(true),
                Ok(count) => self.carried.filled(count),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => continue,
                Err(err) => return Err(err),
            }
            self.take_all(core)?;
            if self.elsewhere.is_some() {
                return Ok(true);
            }
            // In an overload what is read waits, and few datagrams may.
            if core.is_turn_over() && !core.is_overloaded() {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Ok(false)
    }

    fn take_all(&mut self, core: &mut Core) -> io::Result<()> {
        let nonsense = |err| io::Error::new(io::ErrorKind::InvalidData, err);
        while self.left > 0
            && core.tcp.get(self.at, self.id).is_some()
            && !core.stalls(self.at, self.id)
            && let Some(datagram) = self.carried.next().map_err(nonsense)?
        {
            self.left -= 1;
            let conn = core.tcp.get(self.at, self.id);
            let is_stranger = conn.is_some_and(|conn| conn.is_stranger());
            let member = &core.member;
            let by_index = is_stranger.then(|| member.owner_of_connection(datagram));
            let by_index = by_index.flatten();
            let is_known = by_index.is_none() && core.take_from_tcp(self.at, self.id, datagram);
            let by_key = core.endpoint.take_elsewhere().filter(|_| is_stranger);
            if let Some(owner) = by_index.or(by_key)
                && self.chances > 1
            {
                self.chances -= 1;
                let first = Datagram {
                    at: core.now(),
                    from: Remote::tcp(self.at),
                    to: None,
                    ecn: Ecn::NotEct,
                    bytes: (&*datagram).into(),
                };
                self.elsewhere = Some((owner, first, by_index.is_none()));
                return Ok(());
            }
            if is_known {
                self.carried.prove();
                continue;
            }
            self.chances -= 1;
            if self.chances == 0 {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        Ok(())
    }

    fn write(&mut self, cx: &mut Context<'_>, core: &mut Core) -> io::Result<()> {
        let Some(conn) = core.tcp.get(self.at, self.id) else {
            return Ok(());
        };
        let mut written = 0;
        while written < conn.queue.len() && self.stream.poll_write_ready(cx)?.is_ready() {
            match self.stream.try_write(&conn.queue[written..]) {
                Ok(count) => written += count,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(err) => return Err(err),
            }
        }
        conn.queue.drain(..written);
        if conn.full && conn.queue.len() <= QUEUE / 2 {
            core.on_room(self.at, self.id);
        }
        Ok(())
    }
}

impl Core {
    /// Handles free room in the queue of a connection.
    fn on_room(&mut self, at: SocketAddr, id: u64) {
        let Some(conn) = self.tcp.get(at, id) else {
            return;
        };
        conn.full = false;
        if let Some(peer) = conn.peer {
            self.endpoint.release(peer, Remote::tcp(at));
            self.wake_driver();
        }
    }

    /// Returns whether the connection's datagrams wait for room in the queue of its peer.
    fn is_stalled(&mut self, at: SocketAddr, id: u64) -> bool {
        self.tcp.get(at, id).is_some_and(|conn| conn.stalled)
    }

    /// Makes the connection's datagrams wait if the queue of its peer is full. Returns whether they
    /// wait.
    fn stalls(&mut self, at: SocketAddr, id: u64) -> bool {
        if !self.is_overloaded() {
            return false;
        }
        let peer = self.tcp.get(at, id).and_then(|conn| conn.peer);
        let stalls = peer.is_some_and(|peer| self.is_queue_full(peer));
        if let Some(conn) = self.tcp.get(at, id) {
            conn.stalled = stalls;
        }
        stalls
    }

    /// Takes a datagram: handles it, or lets it wait for its peer's turn. Returns whether the
    /// connection is that of a peer.
    pub(in super::super) fn take_from_tcp(
        &mut self,
        at: SocketAddr,
        id: u64,
        datagram: &mut [u8],
    ) -> bool {
        self.check();
        let conn = self.tcp.list.get(&at).filter(|conn| conn.id == id);
        let peer = conn.and_then(|conn| conn.peer);
        let peer = peer.filter(|_| self.is_overloaded());
        if peer.is_none() {
            return self.handle_from_tcp(at, id, datagram);
        }
        let waiting = Datagram {
            at: self.now(),
            from: Remote::tcp(at),
            to: None,
            ecn: Ecn::NotEct,
            bytes: (&*datagram).into(),
        };
        self.let_wait(peer, waiting);
        self.wake_driver();
        true
    }

    /// Handles a datagram that has waited. Its connection may have ended.
    pub(in super::super) fn take_from_peer(&mut self, at: SocketAddr, datagram: &mut [u8]) {
        let conn = self.tcp.list.get(&at);
        let id = conn.map_or(0, |conn| conn.id);
        self.handle_from_tcp(at, id, datagram);
    }

    /// Handles a datagram. Returns whether the connection is that of a peer.
    fn handle_from_tcp(&mut self, at: SocketAddr, id: u64, datagram: &mut [u8]) -> bool {
        let now = self.now();
        let remote = Remote::tcp(at);
        self.tcp.counted.received += 1;
        let from = self.handle_datagram(now, remote, None, Ecn::NotEct, datagram);
        self.wake_driver();
        let state = from.and_then(|peer| self.endpoint.peer_state(peer));
        let uses = state.is_some_and(|state| state.up && state.remote == Some(remote));
        let Some(conn) = self.tcp.get(at, id) else {
            return false;
        };
        let has_joined = conn.is_stranger() && uses;
        if has_joined {
            conn.peer = from;
        }
        if conn.is_stranger() && from.is_some() {
            conn.offered = from;
        }
        if !conn.is_stranger() && from.is_some() {
            conn.heard = now;
            conn.garbage = 0;
        }
        conn.garbage += u32::from(from.is_none());
        let (is_peer, is_broken) = (!conn.is_stranger(), conn.garbage > GARBAGE_MAX);
        if let Some(peer) = from.filter(|_| has_joined) {
            self.on_joined(peer, at);
        }
        if is_peer && is_broken {
            self.close_broken(at);
        }
        is_peer
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener};

    use tokio::task::yield_now;
    use tunnel::wire::append_carried;

    use super::*;
    use crate::rig;

    /// One turn takes few datagrams, however small, and a connection full of garbage ends.
    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_full_of_garbage_ends_and_takes_little_of_each_turn() {
        let hub_at = SocketAddr::from(([192, 0, 2, 1], 1));
        let hub = rig::core(3, &[(1, None), (2, None)]);
        let boat = rig::core(1, &[(3, Some(hub_at))]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, at) = listener.accept().expect("a connection");
        stream.set_nonblocking(true).expect("a socket");
        let (mut sent, mut garbage) = (Vec::new(), 0);
        let authentic = rig::next_data((&hub, 0), &boat, (Remote::tcp(at), hub_at));
        for count in [GARBAGE_MAX, GARBAGE_MAX, 2000] {
            // As many in a row as may be, then one that is authentic.
            let junk = rig::junk();
            (0..count).for_each(|_| append_carried(&junk, &mut sent));
            garbage += count;
            append_carried(
                &rig::next_data((&hub, 0), &boat, (Remote::tcp(at), hub_at)),
                &mut sent,
            );
        }
        let mut first = Vec::new();
        append_carried(&authentic, &mut first);
        client.write_all(&[first, sent].concat()).expect("room");
        let id = {
            let core = &mut *hub.borrow_mut();
            let now = core.now();
            core.tcp.admit(now, at)
        };
        let mut pipe = Pipe {
            stream: TcpStream::from_std(stream).expect("a runtime"),
            at,
            id,
            carried: Carried::default(),
            chances: 16,
            left: 0,
            elsewhere: None,
        };
        let taken = |core: &Shared| core.borrow().tcp.counted.received;
        loop {
            let before = taken(&hub);
            let polled = poll_fn(|cx| Poll::Ready(pipe.poll(cx, &hub))).await;
            assert!(taken(&hub) - before <= TAKE_TURN as u64);
            while Core::work_off(&hub) {}
            if polled.is_ready() {
                break;
            }
            yield_now().await;
        }
        assert_eq!(
            taken(&hub),
            1 + 2 * (u64::from(GARBAGE_MAX) + 1) + u64::from(GARBAGE_MAX) + 1
        );
        assert!(taken(&hub) < u64::from(garbage));
        let core = hub.borrow();
        assert_eq!((core.tcp.len(), core.tcp.peers_closed), (0, 1));
    }
}
