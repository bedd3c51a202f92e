//! Datagrams by UDP: several per call, with ECN marks and local addresses.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    task::{Context, Poll, ready},
};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{io::Interest, net::UdpSocket};
use tunnel::ecn::Ecn;

use super::batch::Batch;

/// Receive buffer in bytes: 60 ms at 1 Gbit/s. Datagrams beyond it are lost, and their repair costs
/// even more CPU time.
const RECEIVE_BUFFER: i32 = 8 << 20;
/// Send buffer in bytes; the pacer keeps it almost empty.
const SEND_BUFFER: i32 = 1 << 20;
/// Buffers per receive call, each of which the kernel may fill with many datagrams.
const BUFFERS: usize = 8;
/// Bytes per buffer: the maximum that the kernel joins (GRO).
const BUFFER: usize = 64 << 10;

/// Bound sockets, outside of any event loop.
#[derive(Debug)]
pub(super) struct Bound {
    v4: Option<Socket>,
    v6: Option<Socket>,
}

impl Bound {
    /// Binds to `listen`. Without it, and for the other version of IP, binds to any address and a
    /// port that the kernel chooses. If `listen` is any address, binds both versions.
    ///
    /// # Errors
    /// If `listen` cannot be bound, or no socket can.
    pub(super) fn bind(listen: Option<SocketAddr>, mark: u32) -> io::Result<Self> {
        let any = |ip: IpAddr| {
            let port = listen.filter(|listen| listen.ip().is_unspecified());
            SocketAddr::new(ip, port.map_or(0, |listen| listen.port()))
        };
        let wanted = |family: fn(&SocketAddr) -> bool, ip: IpAddr| {
            let listen = listen.filter(family);
            bind(listen.unwrap_or(any(ip)), mark).map(Some)
        };
        let v4 = wanted(SocketAddr::is_ipv4, Ipv4Addr::UNSPECIFIED.into());
        let v6 = wanted(SocketAddr::is_ipv6, Ipv6Addr::UNSPECIFIED.into());
        // One version of IP suffices, unless the other was configured.
        let (v4, v6) = match (listen, v4, v6) {
            (Some(SocketAddr::V4(_)), v4, v6) => (v4?, v6.unwrap_or_default()),
            (Some(SocketAddr::V6(_)), v4, v6) => (v4.unwrap_or_default(), v6?),
            (None, Err(err), Err(_)) => return Err(err),
            (None, v4, v6) => (v4.unwrap_or_default(), v6.unwrap_or_default()),
        };
        Ok(Self { v4, v6 })
    }
}

fn bind(address: SocketAddr, mark: u32) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if mark != 0 {
        socket.set_mark(mark)?;
    }
    for (option, bytes) in [
        (libc::SO_RCVBUFFORCE, RECEIVE_BUFFER),
        (libc::SO_SNDBUFFORCE, SEND_BUFFER),
    ] {
        pepd_sys::socket::set_int(socket.as_fd(), libc::SOL_SOCKET, option, bytes)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// One socket in the event loop.
#[derive(Debug)]
struct Udp {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Udp {
    fn new(socket: Socket) -> io::Result<Self> {
        let socket = UdpSocket::from_std(socket.into())?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // quinn-udp 0.6 requests arrival times, which pepd does not use, and has room for 96 bytes
        // of control messages. With the time, joined datagrams take 112 (IPv4) or 120, and the ECN
        // mark is cut off.
        pepd_sys::socket::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0)?;
        Ok(Self { socket, state })
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_recv_ready(cx))?;
            let attempt = self.socket.try_io(Interest::READABLE, || {
                let socket = UdpSockRef::from(&self.socket);
                self.state.recv(socket, buffers, metas)
            });
            match attempt {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_send_ready(cx))?;
            let attempt = self.socket.try_io(Interest::WRITABLE, || {
                let socket = UdpSockRef::from(&self.socket);
                self.state.try_send(socket, transmit)
            });
            match attempt {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

/// A received datagram.
#[derive(Debug)]
pub(super) struct Arrived<'a> {
    /// Address of the sender.
    pub(super) from: SocketAddr,
    /// Local address of the datagram.
    pub(super) to: Option<IpAddr>,
    /// ECN mark.
    pub(super) ecn: Ecn,
    /// Bytes of the datagram.
    pub(super) datagram: &'a mut [u8],
}

/// Datagrams and the system calls for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) received: u64,
    pub(super) receive_calls: u64,
    pub(super) sent: u64,
    pub(super) send_calls: u64,
    /// Datagrams that the kernel rejected.
    pub(super) unsent: u64,
}

impl std::ops::Add for Counted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            receive_calls: self.receive_calls + other.receive_calls,
            sent: self.sent + other.sent,
            send_calls: self.send_calls + other.send_calls,
            unsent: self.unsent + other.unsent,
        }
    }
}

/// All sockets of the tunnels: one for each available version of IP.
#[derive(Debug)]
pub(super) struct Sockets {
    v4: Option<Udp>,
    v6: Option<Udp>,
    buffers: Vec<Vec<u8>>,
    metas: [RecvMeta; BUFFERS],
    /// Batches that wait to be sent.
    queue: VecDeque<Batch>,
    /// Buffers for reuse.
    spare: Vec<Batch>,
    pub(super) counted: Counted,
}

/// Maximum of waiting batches; beyond it the pacer's packets wait.
const QUEUE: usize = 4;

impl Sockets {
    /// Adds the sockets to the current event loop.
    ///
    /// # Errors
    /// If the event loop rejects them.
    pub(super) fn new(bound: Bound) -> io::Result<Self> {
        Ok(Self {
            v4: bound.v4.map(Udp::new).transpose()?,
            v6: bound.v6.map(Udp::new).transpose()?,
            buffers: vec![vec![0; BUFFER]; BUFFERS],
            metas: [RecvMeta::default(); BUFFERS],
            queue: VecDeque::new(),
            spare: Vec::new(),
            counted: Counted::default(),
        })
    }

    /// Takes what one call receives from each socket. Returns whether anything arrived.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(Arrived<'_>),
    ) -> bool {
        let mut any = false;
        for udp in [&self.v4, &self.v6].into_iter().flatten() {
            let mut slices: [_; BUFFERS] = {
                let mut buffers = self.buffers.iter_mut();
                std::array::from_fn(|_| IoSliceMut::new(buffers.next().expect("there are as many")))
            };
            match udp.poll_receive(cx, &mut slices, &mut self.metas) {
                Poll::Pending => {}
                Poll::Ready(Ok(count)) => {
                    any = true;
                    self.counted.receive_calls += 1;
                    let filled = self.metas[..count].iter().zip(&mut self.buffers);
                    for (meta, buffer) in filled {
                        self.counted.received += take_all(meta, buffer, &mut take);
                    }
                }
                Poll::Ready(Err(err)) => {
                    // Mostly ICMP errors of earlier sends.
                    any = true;
                    tracing::debug!(error = %err, "cannot receive a datagram");
                }
            }
        }
        any
    }

    /// Returns the number of datagrams that one call may send.
    pub(super) fn segments_max(&self, to: &SocketAddr) -> usize {
        let udp = self.socket_for(to);
        udp.map_or(1, |udp| udp.state.max_gso_segments())
    }

    fn socket_for(&self, to: &SocketAddr) -> Option<&Udp> {
        if to.is_ipv4() {
            self.v4.as_ref()
        } else {
            self.v6.as_ref()
        }
    }

    /// Returns the datagrams that the sockets have dropped since they were created because pepd did
    /// not read them in time; modulo 2^32.
    pub(super) fn dropped(&self) -> u32 {
        let drops = |udp: &Udp| pepd_sys::socket::drops(udp.socket.as_fd()).unwrap_or_default();
        let sockets = [&self.v4, &self.v6].into_iter().flatten();
        sockets.map(drops).fold(0, u32::wrapping_add)
    }

    /// Returns whether there is room for another datagram.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < QUEUE
    }

    /// Returns the buffer to which the next datagram is appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        if self.queue.back().is_none_or(Batch::is_complete) {
            self.queue.push_back(self.spare.pop().unwrap_or_default());
        }
        let batch = self.queue.back_mut().expect("there is one now");
        &mut batch.bytes
    }

    /// Queues the bytes of the [tail](Self::tail) from `begin` on as a datagram for this address.
    pub(super) fn push(&mut self, begin: usize, to: SocketAddr, from: Option<IpAddr>, ecn: Ecn) {
        let most = self.segments_max(&to);
        let Some(batch) = self.queue.back_mut() else {
            return;
        };
        if !batch.take(begin, to, from, ecn, most) {
            let mut next = self.spare.pop().unwrap_or_default();
            batch.split(begin, &mut next);
            next.take(0, to, from, ecn, most);
            self.queue.push_back(next);
        }
    }

    /// Sends the queue. Pending when the kernel takes no more for now. Calls `failed` with a local
    /// address from which sending failed.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        mut failed: impl FnMut(SocketAddr),
    ) -> Poll<()> {
        while let Some(mut batch) = self.queue.pop_front() {
            match self.poll_send(cx, &batch) {
                _ if batch.segments == 0 => {}
                Poll::Pending => {
                    self.queue.push_front(batch);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => {
                    self.counted.sent += batch.segments as u64;
                    self.counted.send_calls += 1;
                }
                Poll::Ready(Err(err)) => {
                    self.counted.unsent += batch.segments as u64;
                    // An MTU probe may be too long for the interface.
                    if !quinn_udp::is_msg_size_err(&err) {
                        tracing::debug!(error = %err, to = ?batch.to, "cannot send a datagram");
                        batch.to.into_iter().for_each(&mut failed);
                    }
                }
            }
            batch.clear();
            self.spare.push(batch);
        }
        Poll::Ready(())
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: &Batch) -> Poll<io::Result<()>> {
        let Some((to, udp)) = batch.to.and_then(|to| Some((to, self.socket_for(&to)?))) else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let transmit = Transmit {
            destination: to,
            ecn: codepoint(batch.ecn),
            contents: &batch.bytes,
            segment_size: (batch.segments > 1).then_some(batch.segment),
            src_ip: batch.from,
        };
        udp.poll_send(cx, &transmit)
    }
}

fn mark_of(codepoint: Option<EcnCodepoint>) -> Ecn {
    match codepoint {
        None => Ecn::NotEct,
        Some(EcnCodepoint::Ect0) => Ecn::Ect0,
        Some(EcnCodepoint::Ect1) => Ecn::Ect1,
        Some(EcnCodepoint::Ce) => Ecn::Ce,
    }
}

fn codepoint(mark: Ecn) -> Option<EcnCodepoint> {
    match mark {
        Ecn::NotEct => None,
        Ecn::Ect0 => Some(EcnCodepoint::Ect0),
        Ecn::Ect1 => Some(EcnCodepoint::Ect1),
        Ecn::Ce => Some(EcnCodepoint::Ce),
    }
}

/// Passes on every datagram of a buffer. Returns their number.
fn take_all(meta: &RecvMeta, buffer: &mut [u8], take: &mut impl FnMut(Arrived<'_>)) -> u64 {
    let received = &mut buffer[..meta.len];
    let mut count = 0;
    for datagram in received.chunks_mut(meta.stride.max(1)) {
        count += 1;
        take(Arrived {
            from: meta.addr,
            to: meta.dst_ip,
            ecn: mark_of(meta.ecn),
            datagram,
        });
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_finds_no_room_is_counted() {
        let local: SocketAddr = ([127, 0, 0, 1], 0).into();
        let bound = Bound::bind(Some(local), 0).expect("loopback");
        let socket = bound.v4.as_ref().expect("it was asked for");
        let to = socket.local_addr().expect("bound");
        let smallest = 1;
        socket.set_recv_buffer_size(smallest).expect("an option");
        let sockets = Sockets::new(bound).expect("an event loop");
        assert_eq!(sockets.dropped(), 0);
        let sender = std::net::UdpSocket::bind(local).expect("loopback");
        for _ in 0..100 {
            sender
                .send_to(&[7; 1000], to.as_socket().expect("IP"))
                .expect("loopback");
        }
        assert!((50..100).contains(&sockets.dropped()));
    }

    /// Datagrams of one mark share a batch and a send call, and arrive joined.
    #[tokio::test(flavor = "current_thread")]
    async fn marks_arrive_as_they_were_sent() {
        marks_arrive([127, 0, 0, 1].into()).await;
        if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            marks_arrive(Ipv6Addr::LOCALHOST.into()).await;
        }
    }

    async fn marks_arrive(local: IpAddr) {
        let bound = || Bound::bind(Some((local, 0).into()), 0).expect("loopback");
        let socket = || Sockets::new(bound()).expect("an event loop");
        let (mut a, mut b) = (socket(), socket());
        let udp = if local.is_ipv4() { &b.v4 } else { &b.v6 };
        let to = udp.as_ref().expect("bound").socket.local_addr();
        let to = to.expect("bound");
        let marks = [Ecn::Ect0, Ecn::NotEct, Ecn::Ect1, Ecn::Ce, Ecn::Ect0];
        let marks = marks.map(|ecn| [ecn; 3]).concat();
        for ecn in &marks {
            if !a.has_room() {
                std::future::poll_fn(|cx| a.poll_flush(cx, |_| panic!("not sent"))).await;
            }
            let begin = a.tail().len();
            a.tail().resize(begin + 100, 7);
            a.push(begin, to, None, *ecn);
        }
        std::future::poll_fn(|cx| a.poll_flush(cx, |_| panic!("not sent"))).await;
        let mut arrived = Vec::new();
        std::future::poll_fn(|cx| {
            while b.poll_receive(cx, |datagram| arrived.push(datagram.ecn)) {}
            if arrived.len() == marks.len() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        assert_eq!(arrived, marks);
    }

    /// Over loopback, joined and split by the kernel where it can.
    #[tokio::test(flavor = "current_thread")]
    async fn datagrams_arrive_as_they_were_sent() {
        let local: SocketAddr = ([127, 0, 0, 1], 0).into();
        let bound = |address| Bound::bind(Some(address), 0).expect("loopback");
        let socket = |address| Sockets::new(bound(address)).expect("an event loop");
        let (mut a, mut b) = (socket(local), socket(local));
        let udp = b.v4.as_ref().expect("bound").socket.local_addr();
        let to = udp.expect("bound");
        for length in [1000, 1000, 1000, 300, 500] {
            let begin = a.tail().len();
            a.tail().resize(begin + length, length as u8);
            a.push(begin, to, None, Ecn::Ect0);
        }
        let sent = std::future::poll_fn(|cx| a.poll_flush(cx, |_| panic!("not sent")));
        sent.await;
        let mut lengths = Vec::new();
        std::future::poll_fn(|cx| {
            while b.poll_receive(cx, |arrived| {
                assert!(
                    arrived
                        .datagram
                        .iter()
                        .all(|b| usize::from(*b) == arrived.datagram.len() % 256)
                );
                assert_eq!(arrived.to, Some([127, 0, 0, 1].into()));
                assert_eq!(arrived.ecn, Ecn::Ect0);
                lengths.push(arrived.datagram.len());
            }) {}
            if lengths.len() == 5 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        assert_eq!(lengths, [1000, 1000, 1000, 300, 500]);
        assert_eq!((a.counted.sent, b.counted.received), (5, 5));
    }
}
