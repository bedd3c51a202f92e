//! All TCP sockets of this process, with their kernel state.
//!
//! Found by their descriptors and identified by their cookies. `sock_diag` would list those of all
//! programs of the machine, and needs a module that may be missing.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, RawFd},
    time::Duration,
};

use socket2::SockRef;

use super::{
    descriptors,
    socket::{TCP_INFO_LEN, array, check, get_of, unread},
};

/// A TCP socket that was open a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    fd: RawFd,
    cookie: u64,
    /// Bytes to be sent or acknowledged.
    pub queue: u64,
    /// Bytes that the socket has acknowledged, and that pepd has not read.
    pub unread: u64,
}

/// Returns the TCP sockets of this process, by their cookies (SO_COOKIE). Sockets created or closed
/// meanwhile may be missing.
pub fn all() -> HashMap<u64, Found> {
    let found = descriptors::numbers().filter_map(|fd| find(fd).ok());
    found.map(|found| (found.cookie, found)).collect()
}

fn find(fd: RawFd) -> io::Result<Found> {
    let cookie = cookie(fd)?;
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int, which `bytes` is. If another thread has closed or
    // reused the descriptor, the call still only reads.
    let result = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    check(result)?;
    // SAFETY: the descriptor is not kept. If another thread has closed or reused it, the call still
    // only reads.
    let unread = unread(unsafe { BorrowedFd::borrow_raw(fd) })?;
    Ok(Found {
        fd,
        cookie,
        queue: u64::try_from(bytes).unwrap_or(0),
        unread,
    })
}

fn cookie(fd: RawFd) -> io::Result<u64> {
    let mut cookie = [0; size_of::<u64>()];
    get_of(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// The kernel's state of a TCP socket (`struct tcp_info`, `TCP_CONGESTION`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The state, a number of `include/net/tcp_states.h`.
    pub state: u8,
    /// The local and the remote address.
    pub ends: [Option<SocketAddr>; 2],
    /// The congestion control.
    pub congestion: String,
    /// The smoothed round-trip time; `None` before the first measurement.
    pub rtt: Option<Duration>,
    /// The recent minimum round-trip time; `None` before the first measurement.
    pub rtt_min: Option<Duration>,
    /// The congestion window, in segments.
    pub window: u32,
    /// Bytes of payload in a segment.
    pub segment: u32,
    /// Segments sent and not cumulatively acknowledged; some behind a gap may have arrived.
    pub unacked: u32,
    /// Segments in flight: sent, and neither known to have arrived nor considered lost.
    pub in_flight: u32,
    /// Segments retransmitted since the socket was opened.
    pub retransmitted: u32,
    /// The pacing rate, in bytes per second; `None` if unlimited.
    pub pacing: Option<u64>,
    /// The last delivery rate, in bytes per second; `None` before the first measurement.
    pub delivery: Option<u64>,
    /// The time with data to send.
    pub busy: Duration,
    /// The part of it limited by the receiver's window.
    pub window_limited: Duration,
    /// The part of it limited by the local send buffer.
    pub buffer_limited: Duration,
    /// State of the receiving side.
    pub incoming: Incoming,
}

/// Receiving side of a socket: its limits, and the received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Incoming {
    /// Receive buffer in bytes as the kernel counts them.
    pub buffer: u64,
    /// Advertised window, in bytes; 0 before Linux 6.2.
    pub window: u64,
    /// Maximum bytes that the application read within a round trip.
    pub taken: u64,
    /// Bytes that the application has not read.
    pub unread: u64,
    /// Time since the last byte arrived.
    pub silent: Duration,
}

impl Incoming {
    /// Silence beyond this time does not indicate a full window.
    const RECENT: Duration = Duration::from_secs(5);

    /// Returns the window in bytes, if it limits the remote sender.
    ///
    /// The bytes read in a round trip reach the window only if nothing else limits the sender: the
    /// kernel, and pepd, keep the window at twice as much while they can. A slow reader leaves
    /// bytes unread; then the window is not the limit.
    fn limit(&self) -> Option<u64> {
        let window = self.window.max(self.buffer / 2);
        let is_full = self.taken >= window / 4 * 3;
        let is_read = self.unread < window / 8;
        (is_full && is_read && window > 0 && self.silent < Self::RECENT).then_some(window)
    }
}

impl Facts {
    /// Returns the receive window in bytes, if it limits the remote sender.
    pub fn receive_limit(&self) -> Option<u64> {
        self.incoming.limit()
    }
}

impl Found {
    /// Returns the same socket in its present state; `None` once it is closed.
    pub fn again(&self) -> Option<Self> {
        let found = find(self.fd).ok()?;
        (found.cookie == self.cookie).then_some(found)
    }

    fn ends(&self) -> [Option<SocketAddr>; 2] {
        // SAFETY: the descriptor is not kept. If another thread has closed or reused it, the call
        // still only reads.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let socket = SockRef::from(&fd);
        [socket.local_addr(), socket.peer_addr()].map(|end| {
            let end = end.ok()?.as_socket()?;
            Some(SocketAddr::new(end.ip().to_canonical(), end.port()))
        })
    }

    /// Returns the cookie (SO_COOKIE).
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Returns the kernel's state of the socket; `None` once it is closed.
    pub fn facts(&self) -> Option<Facts> {
        let mut info = [0; TCP_INFO_LEN];
        let mut name = [0; 16];
        get_of(self.fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
        get_of(self.fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name).ok()?;
        let ends = self.ends();
        let mut buffer = [0; size_of::<u32>()];
        get_of(self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut buffer).ok()?;
        // SAFETY: the descriptor is not kept. If another thread has closed or reused it, the call
        // still only reads.
        let unread = unread(unsafe { BorrowedFd::borrow_raw(self.fd) }).ok()?;
        // The descriptor may belong to another socket by now. Cookies are unique.
        let same = cookie(self.fd).is_ok_and(|cookie| cookie == self.cookie);
        same.then(|| {
            let facts = Facts::read(&info, &name);
            let incoming = Incoming {
                buffer: u64::from(u32::from_ne_bytes(buffer)),
                unread,
                ..facts.incoming
            };
            Facts {
                ends,
                incoming,
                ..facts
            }
        })
    }
}

impl Facts {
    fn read(info: &[u8; TCP_INFO_LEN], name: &[u8]) -> Self {
        let word = |at| u32::from_ne_bytes(array(info, at));
        let long = |at| u64::from_ne_bytes(array(info, at));
        let micros = |at| Duration::from_micros(u64::from(word(at)));
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Self {
            state: info[0],
            ends: [None; 2],
            congestion: String::from_utf8_lossy(name).into_owned(),
            // 0 and the maximum value mean "not measured".
            rtt: (word(68) != 0).then(|| micros(68)),
            rtt_min: (!matches!(word(148), 0 | u32::MAX)).then(|| micros(148)),
            window: word(80),
            segment: word(16),
            unacked: word(24),
            // Counts as `tcp_packets_in_flight()` of the kernel does.
            in_flight: word(24)
                .saturating_add(word(36))
                .saturating_sub(word(28).saturating_add(word(32))),
            retransmitted: word(100),
            pacing: (long(104) != u64::MAX).then(|| long(104)),
            delivery: (long(160) != 0).then(|| long(160)),
            busy: Duration::from_micros(long(168)),
            window_limited: Duration::from_micros(long(176)),
            buffer_limited: Duration::from_micros(long(184)),
            incoming: Incoming {
                window: u64::from(word(232)),
                taken: u64::from(word(96)),
                silent: Duration::from_millis(u64::from(word(52))),
                ..Incoming::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd as _,
    };

    use super::*;

    #[test]
    fn a_socket_is_found_by_its_cookie_and_asked_as_long_as_it_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[1; 1000]).unwrap();
        receiver.read_exact(&mut [0; 1000]).unwrap();
        let cookie = SockRef::from(&sender).cookie().unwrap();
        let found = all()[&cookie];
        assert_eq!(found.fd, sender.as_raw_fd());
        sender.write_all(&[2; 500]).unwrap();
        receiver.peek(&mut [0]).unwrap();
        let receiving = SockRef::from(&receiver).cookie().unwrap();
        assert_eq!(all()[&receiving].unread, 500);
        receiver.read_exact(&mut [0; 500]).unwrap();
        let facts = found.facts().unwrap();
        let ends = [sender.local_addr(), sender.peer_addr()].map(Result::ok);
        assert_eq!(facts.ends, ends);
        assert_eq!(facts.state, 1, "established: {facts:?}");
        let control = SockRef::from(&sender).tcp_congestion().unwrap();
        let control = String::from_utf8(control).unwrap();
        assert_eq!(facts.congestion, control.trim_end_matches('\0'));
        assert!(facts.window > 0 && facts.segment > 0, "{facts:?}");
        let rtt = facts.rtt.unwrap();
        assert!(rtt < Duration::from_secs(10), "{facts:?}");
        assert!(facts.rtt_min.unwrap() <= rtt, "{facts:?}");
        assert_eq!(found.again(), Some(found), "nothing is under way");
        drop(sender);
        assert_eq!((found.facts(), found.again()), (None, None));
        assert!(!all().contains_key(&cookie));
    }

    #[test]
    fn a_receive_window_limits_where_it_is_full_and_read() {
        let full = Incoming {
            buffer: 6 << 20,
            window: 3 << 20,
            taken: 3 << 20,
            unread: 0,
            silent: Duration::from_millis(1),
        };
        assert_eq!(full.limit(), Some(3 << 20));
        let directions = Incoming {
            taken: 3 << 19,
            ..full
        };
        assert_eq!(directions.limit(), None, "there is room for twice as much");
        let unread = Incoming {
            unread: 1 << 20,
            window: 2 << 20,
            ..full
        };
        assert_eq!(unread.limit(), None, "the reader is slow");
        let silent = Incoming {
            silent: Duration::from_secs(9),
            ..full
        };
        assert_eq!(silent.limit(), None);
        assert_eq!(Incoming::default().limit(), None);
    }

    #[test]
    fn what_was_never_measured_is_none() {
        let mut info = [0; TCP_INFO_LEN];
        info[148..152].copy_from_slice(&u32::MAX.to_ne_bytes());
        info[104..112].copy_from_slice(&u64::MAX.to_ne_bytes());
        info[80..84].copy_from_slice(&10_u32.to_ne_bytes());
        info[176..184].copy_from_slice(&1_500_000_u64.to_ne_bytes());
        for (at, segments) in [(24, 953_u32), (28, 443), (32, 6), (36, 6)] {
            info[at..at + 4].copy_from_slice(&segments.to_ne_bytes());
        }
        let facts = Facts::read(&info, b"cubic\0\0\0");
        assert_eq!(facts.congestion, "cubic");
        assert_eq!((facts.rtt, facts.rtt_min), (None, None));
        assert_eq!((facts.pacing, facts.delivery), (None, None));
        assert_eq!(facts.window, 10);
        assert_eq!((facts.unacked, facts.in_flight), (953, 510));
        assert_eq!(facts.window_limited, Duration::from_millis(1500));
    }
}
