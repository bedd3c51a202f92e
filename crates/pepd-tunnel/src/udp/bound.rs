//! Sockets for datagrams, outside of any event loop.
//!
//! Several threads may share an address and port, each with a socket of its own. The kernel gives a
//! datagram to the thread whose number is the shard in its receiver index:
//!
//! ```text
//!   type 1 | ...                                          first thread
//!   type 2 | sender:32 | slot and shard:16 | random:16    thread in the low bits of the 16
//!   others | slot and shard:16 | random:16                thread in the low bits of the 16
//! ```

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    sync::Arc,
};

use pepd_sys::socket::{set_int, steer};
use socket2::{Domain, Protocol, Socket, Type};

/// Receive buffer in bytes: 60 ms at 1 Gbit/s. Datagrams beyond it are lost, and their repair costs
/// even more CPU time.
const RECEIVE_BUFFER: i32 = 8 << 20;
/// Send buffer in bytes; the pacer keeps it almost empty.
const SEND_BUFFER: i32 = 1 << 20;

/// Bound sockets of one thread. A clone keeps them open.
#[derive(Debug, Clone)]
pub(in super::super) struct Bound {
    pub(super) v4: Option<Arc<Socket>>,
    pub(super) v6: Option<Arc<Socket>>,
}

impl Bound {
    /// Binds to `listen`. Without it, and for the other version of IP, binds to any address and a
    /// port that the kernel chooses. If `listen` is any address, binds both versions.
    ///
    /// Returns the sockets of `count` threads, 1 to 16, in the order of the threads. If the kernel
    /// cannot distribute datagrams to them, warns, and returns only those of the first thread.
    ///
    /// A datagram may still reach the wrong thread: the kernel distributes datagrams that it has
    /// joined (GRO) by the first of them. All sockets must stay open until no thread uses any: the
    /// last socket takes the position of a closed one. A [clone](Clone) keeps them open.
    ///
    /// # Errors
    /// If `listen` cannot be bound, or no socket can.
    pub(in super::super) fn bind(
        listen: Option<SocketAddr>,
        mark: u32,
        count: usize,
    ) -> io::Result<Vec<Self>> {
        let any = |ip: IpAddr| {
            let port = listen.filter(|listen| listen.ip().is_unspecified());
            SocketAddr::new(ip, port.map_or(0, |listen| listen.port()))
        };
        let wanted = |family: fn(&SocketAddr) -> bool, ip: IpAddr| {
            let listen = listen.filter(family);
            bind_all(listen.unwrap_or(any(ip)), mark, count)
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
        let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
        let mut bound = Vec::from_iter((0..count).map(|_| Self {
            v4: v4.next().map(Arc::new),
            v6: v6.next().map(Arc::new),
        }));
        if count > 1
            && let Err(err) = bound[0].distribute(count)
        {
            tracing::warn!(
                error = %err,
                "all tunnels share one thread: the kernel cannot distribute datagrams to several"
            );
            bound.truncate(1);
            bound[0].stop_sharing()?;
        }
        Ok(bound)
    }

    /// Makes the port exclusive again.
    fn stop_sharing(&self) -> io::Result<()> {
        let mut sockets = [&self.v4, &self.v6].into_iter().flatten();
        sockets.try_for_each(|socket| socket.set_reuse_port(false))
    }

    /// Attaches the program that distributes datagrams to so many threads.
    fn distribute(&self, count: usize) -> io::Result<()> {
        let program = distribution(count);
        for socket in [&self.v4, &self.v6].into_iter().flatten() {
            steer(socket.as_fd(), &program)?;
        }
        Ok(())
    }
}

/// Returns the classic BPF program that computes the position of a datagram's thread: 0 for an
/// initiation, and for a datagram that ends before its shard. If the number of threads is no power
/// of two, there may be no such thread; the kernel then chooses one by the addresses.
fn distribution(count: usize) -> [libc::sock_filter; 9] {
    let mask = count.next_power_of_two() as u32 - 1;
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let byte = |at| step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at, 0, 0);
    let is = |k, then, or| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, then, or);
    [
        byte(0),
        is(1, 6, 0),
        is(2, 0, 2),
        byte(6),
        step(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0),
        byte(2),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0, 0),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}

/// Binds `count` sockets to one address and port.
fn bind_all(address: SocketAddr, mark: u32, count: usize) -> io::Result<Vec<Socket>> {
    // The first is bound exclusively: a port of another process must be an error even where that
    // process shares its port.
    let first = unbound(address, mark)?;
    first.bind(&address.into())?;
    let mut bound = vec![first];
    if count > 1 {
        bound[0].set_reuse_port(true)?;
        // The kernel may have chosen the port.
        let chosen = bound[0].local_addr()?;
        for _ in 1..count {
            let socket = unbound(address, mark)?;
            socket.set_reuse_port(true)?;
            socket.bind(&chosen)?;
            bound.push(socket);
        }
    }
    Ok(bound)
}

fn unbound(address: SocketAddr, mark: u32) -> io::Result<Socket> {
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
        set_int(socket.as_fd(), libc::SOL_SOCKET, option, bytes)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::poll::{PollFd, PollFlags, poll};

    use super::*;

    /// Sockets of one version of IP, one for each of three threads, and a sender to them.
    struct Three {
        sockets: Vec<Arc<Socket>>,
        sender: UdpSocket,
    }

    impl Three {
        fn new(listen: Option<SocketAddr>, local: IpAddr) -> Self {
            let bound = Bound::bind(listen, 0, 3).expect("loopback");
            assert_eq!(bound.len(), 3);
            let sockets = bound.into_iter();
            let sockets = sockets.filter_map(|one| if local.is_ipv4() { one.v4 } else { one.v6 });
            let sockets = Vec::from_iter(sockets);
            let to = sockets[0].local_addr().expect("bound");
            let to = SocketAddr::new(local, to.as_socket().expect("IP").port());
            let sender = UdpSocket::bind((local, 0)).expect("loopback");
            sender.connect(to).expect("loopback");
            Self { sockets, sender }
        }

        /// All ways to listen that the machine has.
        fn each() -> impl Iterator<Item = Self> {
            let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
            let ips: [IpAddr; _] = [v4, v6];
            let available = ips
                .into_iter()
                .filter(|ip| UdpSocket::bind((*ip, 0)).is_ok());
            available.flat_map(|ip| [Self::new(Some((ip, 0).into()), ip), Self::new(None, ip)])
        }

        /// Waits for a datagram. Returns the position of the socket that got it.
        fn receive(&self) -> (usize, Vec<u8>) {
            let sockets = self.sockets.iter();
            let fds = sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
            let mut fds = Vec::from_iter(fds);
            assert_eq!(poll(&mut fds, 10_000_u16), Ok(1), "sockets with datagrams");
            let position = fds.iter().position(|fd| fd.any() == Some(true));
            let position = position.expect("there is one");
            let mut bytes = vec![0; 1000];
            let socket = &self.sockets[position];
            let count = io::Read::read(&mut &**socket, &mut bytes).expect("a datagram");
            bytes.truncate(count);
            (position, bytes)
        }

        fn assert_reaches(&self, position: usize, datagram: &[u8]) {
            self.sender.send(datagram).expect("loopback");
            assert_eq!(self.receive(), (position, datagram.to_vec()));
        }
    }

    /// A datagram of this type. Its first and its second index have these second bytes.
    fn datagram(kind: u8, first: u8, second: u8) -> Vec<u8> {
        let indices = [kind, 255, first, 255, 255, 255, second, 255, 255];
        [&indices[..], &[kind; 91]].concat()
    }

    /// Slots above the two bits of the thread.
    const SLOTS: [u8; 3] = [0, 1 << 2, 63 << 2];

    #[test]
    fn datagrams_reach_the_thread_that_their_index_names() {
        for three in Three::each() {
            for (slot, thread) in SLOTS
                .into_iter()
                .flat_map(|slot| [0, 1, 2].map(|k| (slot, k)))
            {
                let (named, other) = (slot + thread, slot + (thread + 1) % 3);
                let thread = thread.into();
                three.assert_reaches(0, &datagram(1, named, other));
                three.assert_reaches(thread, &datagram(2, other, named));
                for kind in [3, 4, 5] {
                    three.assert_reaches(thread, &datagram(kind, named, other));
                }
            }
        }
    }

    #[test]
    fn datagrams_without_an_index_reach_the_first_thread() {
        for three in Three::each() {
            three.assert_reaches(0, &[]);
            for length in 1..3 {
                three.assert_reaches(0, &datagram(5, 1, 1)[..length]);
            }
            for length in 1..7 {
                three.assert_reaches(0, &datagram(2, 1, 1)[..length]);
            }
        }
    }

    /// Strangers can send such datagrams, so that none may be lost in the kernel unseen.
    #[test]
    fn a_datagram_for_a_thread_that_there_is_not_reaches_some_thread() {
        for three in Three::each() {
            let datagram = datagram(5, 3, 3);
            three.sender.send(&datagram).expect("loopback");
            assert_eq!(three.receive().1, datagram);
        }
    }

    /// Threads must expect the datagrams of others.
    #[test]
    fn joined_datagrams_reach_the_thread_of_the_first() {
        for three in Three::each() {
            for socket in &three.sockets {
                set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).expect("an option");
            }
            let sender = three.sender.as_fd();
            set_int(sender, libc::SOL_UDP, libc::UDP_SEGMENT, 100).expect("an option");
            let datagrams = [2, 0, 1].map(|thread| datagram(5, thread, thread)).concat();
            three.sender.send(&datagrams).expect("loopback");
            // The kernel may split them before, if it must.
            let (position, received) = three.receive();
            assert_eq!(position, 2);
            assert!(received == datagrams || received == datagrams[..100]);
        }
    }

    /// The reason why all sockets must stay open.
    #[test]
    fn the_last_socket_takes_the_place_of_a_closed_one() {
        for mut three in Three::each() {
            three.sockets.swap_remove(0);
            three.assert_reaches(0, &datagram(1, 0, 0));
            three.assert_reaches(1, &datagram(5, 1, 1));
        }
    }

    #[test]
    fn a_port_in_use_is_an_error_even_if_it_is_shared() {
        let local = (Ipv4Addr::LOCALHOST, 0);
        let other = UdpSocket::bind(local).expect("loopback");
        let listen = other.local_addr().expect("bound");
        for shared in [false, true] {
            socket2::SockRef::from(&other)
                .set_reuse_port(shared)
                .expect("an option");
            for count in [1, 3] {
                let refused = Bound::bind(Some(listen), 0, count).expect_err("in use");
                assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
            }
        }
    }
}
