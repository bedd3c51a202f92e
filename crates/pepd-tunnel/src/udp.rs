//! Datagrams by UDP: several per call, with ECN marks and local addresses.
//!
//! - `bound`, creation of sockets

mod bound;

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use pepd_sys::{
    datagrams::{self, Ages, Received, Receiver},
    reactor,
};
use quinn_udp::{EcnCodepoint, Transmit, UdpSockRef, UdpSocketState};
use socket2::Socket;
use tokio::io::{Interest, unix::AsyncFd};
use tunnel::ecn::Ecn;

pub(super) use self::bound::Bound;
use super::{batch::Batch, company::Company};

/// Buffers per receive call: as many as a tick of 10 ms brings at 40 Mbit/s.
const BUFFERS: usize = 32;
/// Buffers if the kernel fills each with many datagrams: more would not fit a CPU's cache.
const JOINED_BUFFERS: usize = 8;

/// One socket in the event loop.
#[derive(Debug)]
struct Udp {
    socket: Arc<Socket>,
    state: UdpSocketState,
    ages: Ages,
    company: Company,
    /// More datagrams may have arrived than were received.
    has_more: bool,
    /// Buffers of the next receive call.
    most: usize,
    interest: EpollFlags,
}

impl Udp {
    fn new(socket: Arc<Socket>) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        datagrams::report_times(socket.as_fd())?;
        Ok(Self {
            socket,
            state,
            ages: Ages::default(),
            company: Company::default(),
            has_more: false,
            most: BUFFERS,
            interest: EpollFlags::EPOLLIN,
        })
    }

    /// Returns whether to look for datagrams. `woken` tells that one of the sockets woke the task.
    fn is_due(&self, now: Duration, woken: bool) -> bool {
        self.has_more || woken && self.company.is_woken() || self.company.is_due(now)
    }

    /// Sets what the kernel wakes the task for. Returns whether datagrams wake it again: those that
    /// have arrived already may not.
    fn watch(&mut self, epoll: &Epoll, room: bool) -> bool {
        let mut interest = EpollFlags::empty();
        interest.set(EpollFlags::EPOLLIN, self.company.is_woken());
        interest.set(EpollFlags::EPOLLOUT, room);
        if self.interest == interest {
            return false;
        }
        let arrivals = EpollFlags::EPOLLIN;
        let again = interest.contains(arrivals) && !self.interest.contains(arrivals);
        self.interest = interest;
        if let Err(err) = epoll.modify(&self.socket, &mut EpollEvent::new(interest, 0)) {
            tracing::error!(error = %err, "cannot wait for datagrams");
        }
        again
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.state
            .try_send(UdpSockRef::from(&self.socket), transmit)
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
    /// Time of its arrival in the kernel, on the [clock](Taker::now) of who takes it.
    pub(super) at: Duration,
    /// Bytes of the datagram.
    pub(super) datagram: &'a mut [u8],
}

/// Handling of received datagrams.
pub(super) trait Taker {
    /// Returns the time.
    fn now(&self) -> Duration;

    /// Returns whether datagrams that have arrived must be known now.
    fn must_know(&self, now: Duration) -> bool;

    /// Takes a datagram.
    fn take(&mut self, arrived: Arrived<'_>);

    /// Returns whether to leave other datagrams that have arrived for the next turn.
    fn is_turn_over(&mut self) -> bool;

    /// Returns how long datagrams may wait for others.
    fn may_wait(&mut self, now: Duration) -> Duration;
}

/// Wake-ups by the sockets. The runtime itself would wake pepd for every datagram that arrives, and
/// for every one that has left.
#[derive(Debug)]
struct Wakeups {
    epoll: Epoll,
    watch: AsyncFd<OwnedFd>,
}

impl Wakeups {
    fn new<'a>(sockets: impl Iterator<Item = &'a Udp>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for udp in sockets {
            epoll.add(&udp.socket, EpollEvent::new(udp.interest, 0))?;
        }
        let watch = epoll.0.as_fd().try_clone_to_owned()?;
        let watch = reactor::register(watch, Interest::READABLE)?;
        Ok(Self { epoll, watch })
    }

    /// Ready after a wake-up, once.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut woken = Poll::Pending;
        while let Poll::Ready(ready) = self.watch.poll_read_ready(cx) {
            match ready {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return Poll::Ready(()),
            }
            woken = Poll::Ready(());
        }
        woken
    }
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
    wakeups: Wakeups,
    receiver: Receiver,
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
        let v4 = bound.v4.map(Udp::new).transpose()?;
        let v6 = bound.v6.map(Udp::new).transpose()?;
        Ok(Self {
            wakeups: Wakeups::new([&v4, &v6].into_iter().flatten())?,
            v4,
            v6,
            receiver: Receiver::new(BUFFERS),
            queue: VecDeque::new(),
            spare: Vec::new(),
            counted: Counted::default(),
        })
    }

    fn each(&self) -> impl Iterator<Item = &Udp> {
        [&self.v4, &self.v6].into_iter().flatten()
    }

    /// Returns the time of the next [receive](Self::poll_receive) if no datagram wakes the task
    /// before.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.each().filter_map(|udp| udp.company.deadline()).min()
    }

    /// Takes what has arrived, by at most this many calls a socket and until the turn is over, if
    /// it is time to look. Returns whether more may have arrived.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        calls: usize,
        taker: &mut impl Taker,
    ) -> bool {
        let woken = self.wakeups.poll(cx).is_ready();
        let began = taker.now();
        let mut more = false;
        for udp in [&mut self.v4, &mut self.v6].into_iter().flatten() {
            let due = udp.is_due(began, woken) || !udp.company.is_woken() && taker.must_know(began);
            if !due {
                continue;
            }
            let before = self.counted.received;
            udp.has_more = true;
            for _ in 0..calls {
                let (mut received, mut joined, mut now) = (0, false, None);
                let each = |mut buffer: Received<'_>| {
                    joined |= buffer.bytes.len() > buffer.segment;
                    // Ages were taken when the call had ended.
                    let now = *now.get_or_insert_with(|| taker.now());
                    received += take_all(now, &mut buffer, taker);
                };
                let of = (udp.socket.as_fd(), &mut udp.ages);
                match self.receiver.receive(of, udp.most, each) {
                    Ok(count) => {
                        udp.has_more = count == udp.most;
                        udp.most = if joined { JOINED_BUFFERS } else { BUFFERS };
                        self.counted.receive_calls += 1;
                    }
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => udp.has_more = false,
                    // Mostly ICMP errors of earlier sends.
                    Err(err) => tracing::debug!(error = %err, "cannot receive a datagram"),
                }
                self.counted.received += received;
                if !udp.has_more || taker.is_turn_over() {
                    break;
                }
            }
            let count = self.counted.received - before;
            udp.company.on_look(began, count, taker.may_wait(began));
            let room = udp.interest.contains(EpollFlags::EPOLLOUT);
            udp.has_more |= udp.watch(&self.wakeups.epoll, room);
            more |= udp.has_more;
        }
        more
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
        self.each().map(drops).fold(0, u32::wrapping_add)
    }

    /// Returns the address of a socket.
    #[cfg(test)]
    pub(super) fn local(&self) -> SocketAddr {
        let socket = &self.each().next().expect("one").socket;
        socket
            .local_addr()
            .ok()
            .and_then(|at| at.as_socket())
            .expect("of IP")
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

    /// Sends the queue. Returns whether the kernel takes no more for now; the task is then woken
    /// when there is room. Calls `failed` with a local
    /// address from which sending failed.
    pub(super) fn flush(&mut self, mut failed: impl FnMut(SocketAddr)) -> bool {
        let mut blocked = false;
        while let Some(mut batch) = self.queue.pop_front() {
            match self.send(&batch) {
                _ if batch.segments == 0 => {}
                Ok(()) => {
                    self.counted.sent += batch.segments as u64;
                    self.counted.send_calls += 1;
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                    self.queue.push_front(batch);
                    blocked = true;
                    break;
                }
                Err(err) => {
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
        for udp in [&mut self.v4, &mut self.v6].into_iter().flatten() {
            udp.watch(&self.wakeups.epoll, blocked);
        }
        blocked
    }

    fn send(&mut self, batch: &Batch) -> io::Result<()> {
        let to = batch.to.ok_or(io::ErrorKind::Unsupported)?;
        let udp = if to.is_ipv4() {
            self.v4.as_mut()
        } else {
            self.v6.as_mut()
        };
        let udp = udp.ok_or(io::ErrorKind::Unsupported)?;
        let transmit = Transmit {
            destination: to,
            ecn: codepoint(batch.ecn),
            contents: &batch.bytes,
            segment_size: (batch.segments > 1).then_some(batch.segment),
            src_ip: batch.from,
        };
        udp.send(&transmit)?;
        udp.company.on_sent(batch.segments as u64);
        Ok(())
    }
}

fn mark_of(codepoint: u8) -> Ecn {
    match codepoint {
        1 => Ecn::Ect1,
        2 => Ecn::Ect0,
        3 => Ecn::Ce,
        _ => Ecn::NotEct,
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
fn take_all(now: Duration, buffer: &mut Received<'_>, taker: &mut impl Taker) -> u64 {
    let at = now.saturating_sub(buffer.age.unwrap_or_default());
    let mut count = 0;
    if buffer.from.port() == 0 {
        // Nothing can be sent to this port (RFC 8085, section 5.1). The attempt fails as on a
        // kernel without GSO, which the socket would then do without for ever.
        return buffer.bytes.chunks(buffer.segment).len() as u64;
    }
    for datagram in buffer.bytes.chunks_mut(buffer.segment) {
        count += 1;
        taker.take(Arrived {
            from: buffer.from,
            to: buffer.to,
            ecn: mark_of(buffer.ecn),
            at,
            datagram,
        });
    }
    count
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// Calls a function with each datagram, at once.
    struct Each<F>(F);

    impl<F: FnMut(Arrived<'_>)> Taker for Each<F> {
        fn now(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn must_know(&self, _now: Duration) -> bool {
            false
        }

        fn take(&mut self, arrived: Arrived<'_>) {
            (self.0)(arrived);
        }

        fn is_turn_over(&mut self) -> bool {
            false
        }

        fn may_wait(&mut self, _now: Duration) -> Duration {
            Duration::ZERO
        }
    }

    fn alone(address: SocketAddr) -> Bound {
        let mut bound = Bound::bind(Some(address), 0, 1).expect("loopback");
        bound.pop().expect("one was asked for")
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_finds_no_room_is_counted() {
        let local: SocketAddr = ([127, 0, 0, 1], 0).into();
        let bound = alone(local);
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

    #[test]
    fn what_comes_from_port_0_is_dropped() {
        for (port, taken) in [(0, 0), (1, 3)] {
            let mut buffer = Received {
                from: ([127, 0, 0, 1], port).into(),
                to: None,
                ecn: 0,
                age: None,
                segment: 100,
                bytes: &mut [7; 250],
            };
            let mut count = 0;
            let mut each = Each(|_: Arrived<'_>| count += 1);
            assert_eq!(take_all(Duration::ZERO, &mut buffer, &mut each), 3);
            assert_eq!(count, taken, "port {port}");
        }
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
        let socket = || Sockets::new(alone((local, 0).into())).expect("an event loop");
        let (mut a, mut b) = (socket(), socket());
        let udp = if local.is_ipv4() { &b.v4 } else { &b.v6 };
        let to = udp.as_ref().expect("bound").socket.local_addr();
        let to = to.expect("bound").as_socket().expect("IP");
        let marks = [Ecn::Ect0, Ecn::NotEct, Ecn::Ect1, Ecn::Ce, Ecn::Ect0];
        let marks = marks.map(|ecn| [ecn; 3]).concat();
        for ecn in &marks {
            if !a.has_room() {
                assert!(!a.flush(|_| panic!("not sent")));
            }
            let begin = a.tail().len();
            a.tail().resize(begin + 100, 7);
            a.push(begin, to, None, *ecn);
        }
        assert!(!a.flush(|_| panic!("not sent")));
        let mut arrived = Vec::new();
        std::future::poll_fn(|cx| {
            while b.poll_receive(
                cx,
                1,
                &mut Each(|datagram: Arrived<'_>| arrived.push(datagram.ecn)),
            ) {}
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
        let socket = || Sockets::new(alone(local)).expect("an event loop");
        let (mut a, mut b) = (socket(), socket());
        let udp = b.v4.as_ref().expect("bound").socket.local_addr();
        let to = udp.expect("bound").as_socket().expect("IP");
        for length in [1000, 1000, 1000, 300, 500] {
            let begin = a.tail().len();
            a.tail().resize(begin + length, length as u8);
            a.push(begin, to, None, Ecn::Ect0);
        }
        assert!(!a.flush(|_| panic!("not sent")));
        let mut lengths = Vec::new();
        std::future::poll_fn(|cx| {
            let mut take = Each(|arrived: Arrived<'_>| {
                let length = arrived.datagram.len();
                assert!(
                    arrived
                        .datagram
                        .iter()
                        .all(|b| usize::from(*b) == length % 256)
                );
                assert_eq!(arrived.to, Some([127, 0, 0, 1].into()));
                assert_eq!(arrived.ecn, Ecn::Ect0);
                lengths.push(length);
            });
            while b.poll_receive(cx, 1, &mut take) {}
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
