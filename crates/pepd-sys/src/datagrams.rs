//! Receiving many datagrams with one call (recvmmsg(2)), with the time at which each arrived.

use std::{
    io,
    mem::{self, MaybeUninit},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Bytes of a buffer: the most that the kernel joins (GRO).
const BUFFER: usize = 64 << 10;
/// Room for the control messages of a datagram: local address, mark, size, and time.
const CONTROL: usize = 32;
/// Difference, in nanoseconds, above which the system clock was set. A smaller one may be that of
/// two readings, or of a clock that is being adjusted.
const SET: u128 = 10_000_000;

/// A received buffer: one datagram, or several of one size that the kernel joined.
#[derive(Debug)]
pub struct Received<'a> {
    /// Address of the sender.
    pub from: SocketAddr,
    /// Local address, if the socket reports it (`IP_PKTINFO`, `IPV6_RECVPKTINFO`).
    pub to: Option<IpAddr>,
    /// ECN codepoint (RFC 3168 §5), 0 if the socket does not report it (`IP_RECVTOS`,
    /// `IPV6_RECVTCLASS`).
    pub ecn: u8,
    /// Time since the arrival, if the socket reports it ([`report_times`]). `None` while datagrams
    /// may wait since before the system clock was set.
    pub age: Option<Duration>,
    /// Bytes of each datagram but the last, which may be shorter. Never 0.
    pub segment: usize,
    /// Bytes of all datagrams.
    pub bytes: &'a mut [u8],
}

/// Makes a socket report when each datagram arrived.
///
/// # Errors
/// As setsockopt(2).
pub fn report_times(socket: BorrowedFd<'_>) -> io::Result<()> {
    super::socket::set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// One instant by two clocks.
#[derive(Debug, Clone, Copy)]
struct Now {
    /// Unix time, by which the kernel notes arrivals. It may be set.
    wall: Duration,
    /// Monotonic time with an arbitrary start.
    steady: Duration,
}

impl Now {
    /// Returns the difference of the clocks in nanoseconds. It changes when one of them is set.
    fn difference(self) -> i128 {
        let [wall, steady] = [self.wall, self.steady].map(|time| time.as_nanos() as i128);
        wall - steady
    }
}

/// Ages of the datagrams of one socket.
#[derive(Debug)]
pub struct Ages {
    began: Instant,
    /// Difference of the clocks when no datagram waited.
    drained: Option<i128>,
}

impl Default for Ages {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            drained: None,
        }
    }
}

impl Ages {
    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Now {
            wall: wall.unwrap_or_default(),
            steady: self.began.elapsed(),
        }
    }

    /// Notes that no datagram waited at some time after `before`.
    fn on_drained(&mut self, before: Now) {
        self.drained = Some(before.difference());
    }

    /// Returns the age of a datagram that arrived at this Unix time.
    fn age(&self, at: Duration, now: Now) -> Option<Duration> {
        let set = now.difference().abs_diff(self.drained?);
        (set <= SET).then(|| now.wall.saturating_sub(at))
    }
}

/// Storage for control messages, aligned as the kernel writes them.
type Control = [u64; CONTROL];

/// Buffers for one receive call.
#[derive(Debug)]
pub struct Receiver {
    bytes: Vec<u8>,
    from: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
}

impl Receiver {
    /// Creates this many buffers. The kernel provides their memory as they are filled.
    pub fn new(buffers: usize) -> Self {
        // SAFETY: all-zero bytes are a valid sockaddr_storage, of family AF_UNSPEC.
        let unknown: libc::sockaddr_storage = unsafe { mem::zeroed() };
        Self {
            bytes: vec![0; buffers * BUFFER],
            from: vec![unknown; buffers],
            controls: vec![[0; CONTROL]; buffers],
        }
    }

    /// Receives without waiting into `most` buffers at most, and calls `take` for each. Returns
    /// their number. `ages` are those of this socket.
    ///
    /// # Errors
    /// As recvmmsg(2); `WouldBlock` if nothing has arrived.
    pub fn receive(
        &mut self,
        (socket, ages): (BorrowedFd<'_>, &mut Ages),
        most: usize,
        mut take: impl FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let before = ages.now();
        let most = most.min(self.from.len());
        let mut iovecs: Vec<libc::iovec> = Vec::with_capacity(most);
        for buffer in self.bytes.chunks_exact_mut(BUFFER).take(most) {
            iovecs.push(libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: BUFFER,
            });
        }
        let mut headers = Vec::with_capacity(most);
        let parts = iovecs
            .iter_mut()
            .zip(&mut self.from)
            .zip(&mut self.controls);
        for ((iovec, from), control) in parts {
            headers.push(header(iovec, from, control));
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each of the `most` headers points to a buffer, an address and room for control
        // messages, which live until the end of this function and are used by nothing else. The
        // time limit may be null.
        let count = unsafe {
            let count = libc::c_uint::try_from(most).unwrap_or(libc::c_uint::MAX);
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                flags as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error());
        let count = count.inspect_err(|err| {
            if err.kind() == io::ErrorKind::WouldBlock {
                ages.on_drained(before);
            }
        })?;
        let now = ages.now();
        let buffers = self.bytes.chunks_exact_mut(BUFFER);
        for ((header, from), buffer) in headers.iter().zip(&self.from).zip(buffers).take(count) {
            let length = (header.msg_len as usize).min(BUFFER);
            let noted = Noted::read(&header.msg_hdr);
            let Some(from) = address(from) else { continue };
            take(Received {
                from,
                to: noted.to,
                ecn: noted.ecn,
                age: noted.at.and_then(|at| ages.age(at, now)),
                segment: noted.segment.unwrap_or(length).max(1),
                bytes: &mut buffer[..length],
            });
        }
        if count < most {
            ages.on_drained(before);
        }
        Ok(count)
    }
}

fn header(
    iovec: &mut libc::iovec,
    from: &mut libc::sockaddr_storage,
    control: &mut Control,
) -> libc::mmsghdr {
    // SAFETY: all-zero bytes are a valid mmsghdr, without any buffer.
    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
    header.msg_hdr.msg_name = ptr::from_mut(from).cast();
    header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
    header.msg_hdr.msg_iov = iovec;
    header.msg_hdr.msg_iovlen = 1;
    header.msg_hdr.msg_control = control.as_mut_ptr().cast();
    header.msg_hdr.msg_controllen = size_of::<Control>() as _;
    header
}

/// Contents of the control messages of a buffer.
#[derive(Debug, Default)]
struct Noted {
    to: Option<IpAddr>,
    ecn: u8,
    segment: Option<usize>,
    /// Time since 1970.
    at: Option<Duration>,
}

impl Noted {
    fn read(header: &libc::msghdr) -> Self {
        let mut noted = Self::default();
        // SAFETY: the kernel has filled the header's control buffer, which is alive, and set its
        // length.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
        // SAFETY: `next` is null or points to a control message inside the buffer.
        while let Some(message) = unsafe { next.as_ref() } {
            noted.add(message);
            // SAFETY: both belong to the same buffer.
            next = unsafe { libc::CMSG_NXTHDR(header, message) };
        }
        noted
    }

    fn add(&mut self, message: &libc::cmsghdr) {
        match (message.cmsg_level, message.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let info: Option<libc::in_pktinfo> = contents(message);
                let local = info.map(|info| Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)));
                self.to = local.map(IpAddr::V4);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let info: Option<libc::in6_pktinfo> = contents(message);
                let local = info.map(|info| Ipv6Addr::from(info.ipi6_addr.s6_addr));
                self.to = local.map(IpAddr::V6);
            }
            (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_RECVTOS) => {
                self.ecn = contents::<u8>(message).unwrap_or(0) & 3;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class: libc::c_int = contents(message).unwrap_or(0);
                self.ecn = (class & 3) as u8;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size: Option<libc::c_int> = contents(message);
                self.segment = size.and_then(|size| usize::try_from(size).ok());
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // Two machine words, also where libc's own timespec is larger.
                let at: Option<[libc::c_long; 2]> = contents(message);
                self.at = at.and_then(|[seconds, nanoseconds]| {
                    let seconds = u64::try_from(seconds).ok()?;
                    Some(Duration::new(seconds, u32::try_from(nanoseconds).ok()?))
                });
            }
            _ => {}
        }
    }
}

/// Plain data that any bytes are valid for.
trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for libc::c_int {}
impl Plain for [libc::c_long; 2] {}
impl Plain for libc::in_pktinfo {}
impl Plain for libc::in6_pktinfo {}

/// Returns the contents of a control message, unless it is too short for them.
fn contents<T: Plain>(message: &libc::cmsghdr) -> Option<T> {
    // SAFETY: computes a length only.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as libc::c_uint) };
    if (message.cmsg_len as u64) < u64::from(needed) {
        return None;
    }
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the kernel wrote all bytes of a `T`, or more, behind the header, and any bytes
    // are a valid `T`.
    unsafe {
        let data = libc::CMSG_DATA(message);
        ptr::copy_nonoverlapping(data, value.as_mut_ptr().cast(), size_of::<T>());
        Some(value.assume_init())
    }
}

fn address(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from = ptr::from_ref(from);
    // SAFETY: a sockaddr_storage is large enough for both, aligned for both, and initialised; its
    // family tells which one it holds.
    unsafe {
        match libc::c_int::from((*from).ss_family) {
            libc::AF_INET => {
                let from = &*from.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(from.sin_port)).into())
            }
            libc::AF_INET6 => {
                let from = &*from.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                let port = u16::from_be(from.sin6_port);
                let from = SocketAddrV6::new(ip, port, from.sin6_flowinfo, from.sin6_scope_id);
                Some(from.into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, os::fd::AsFd as _, thread};

    use super::*;
    use crate::socket::set_int;

    fn pair(local: IpAddr) -> Option<(UdpSocket, UdpSocket)> {
        let bind = || UdpSocket::bind((local, 0)).ok();
        let (a, b) = (bind()?, bind()?);
        a.connect(b.local_addr().expect("bound")).expect("loopback");
        Some((a, b))
    }

    #[test]
    fn datagrams_arrive_with_address_mark_and_time() {
        for local in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let Some((sender, receiver)) = pair(local) else {
                continue;
            };
            let (level, mark, marked, to) = match local {
                IpAddr::V4(_) => (
                    libc::IPPROTO_IP,
                    libc::IP_TOS,
                    libc::IP_RECVTOS,
                    libc::IP_PKTINFO,
                ),
                IpAddr::V6(_) => (
                    libc::IPPROTO_IPV6,
                    libc::IPV6_TCLASS,
                    libc::IPV6_RECVTCLASS,
                    libc::IPV6_RECVPKTINFO,
                ),
            };
            set_int(sender.as_fd(), level, mark, 3).expect("an option");
            for option in [marked, to] {
                set_int(receiver.as_fd(), level, option, 1).expect("an option");
            }
            report_times(receiver.as_fd()).expect("an option");
            // The kernel begins to note times a little after it was asked.
            let (mut buffers, mut ages) = (Receiver::new(4), Ages::default());
            let mut notes = false;
            while !notes {
                sender.send(b"first").expect("loopback");
                thread::sleep(Duration::from_millis(2));
                let note = |received: Received<'_>| {
                    notes = received
                        .age
                        .is_some_and(|age| age >= Duration::from_millis(2));
                };
                let _ = buffers.receive((receiver.as_fd(), &mut ages), 4, note);
            }
            sender.send(b"early").expect("loopback");
            thread::sleep(Duration::from_millis(30));
            sender.send(b"late").expect("loopback");
            let mut seen = Vec::new();
            let count = buffers.receive((receiver.as_fd(), &mut ages), 4, |received| {
                assert_eq!(received.from, sender.local_addr().expect("bound"));
                assert_eq!((received.to, received.ecn), (Some(local), 3));
                assert_eq!(received.segment, received.bytes.len());
                seen.push((received.bytes.to_vec(), received.age.expect("reported")));
            });
            assert_eq!(count.expect("two datagrams"), 2);
            let [(first, early), (second, late)] = &seen[..] else {
                panic!("{seen:?}");
            };
            assert_eq!((&first[..], &second[..]), (&b"early"[..], &b"late"[..]));
            assert!(
                *early >= *late + Duration::from_millis(30),
                "{early:?} {late:?}"
            );
            let none = buffers.receive((receiver.as_fd(), &mut ages), 4, |_| {
                panic!("nothing was sent")
            });
            assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn no_more_buffers_are_filled_than_wanted() {
        let (sender, receiver) = pair(Ipv4Addr::LOCALHOST.into()).expect("loopback");
        for number in 0..5 {
            sender.send(&[number; 9]).expect("loopback");
        }
        let (mut buffers, mut ages) = (Receiver::new(3), Ages::default());
        let mut seen = Vec::new();
        for most in [2, 8, 8] {
            let count = buffers.receive((receiver.as_fd(), &mut ages), most, |received| {
                assert_eq!((received.to, received.age, received.ecn), (None, None, 0));
                seen.push(received.bytes[0]);
            });
            assert!(count.is_ok_and(|count| count <= most.min(3)) || seen.len() == 5);
        }
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn joined_datagrams_arrive_with_their_size() {
        let (sender, receiver) = pair(Ipv4Addr::LOCALHOST.into()).expect("loopback");
        // A kernel before 5.0 joins nothing.
        let joins = set_int(receiver.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let splits = set_int(sender.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 100).is_ok();
        if !joins || !splits {
            return;
        }
        sender.send(&[7; 450]).expect("loopback");
        let (mut buffers, mut ages) = (Receiver::new(8), Ages::default());
        let mut lengths = Vec::new();
        let _ = buffers.receive((receiver.as_fd(), &mut ages), 8, |received| {
            lengths.extend(received.bytes.chunks(received.segment).map(<[u8]>::len));
        });
        assert_eq!(lengths, [100, 100, 100, 100, 50]);
    }

    /// A clock that is set by years makes no datagram that old, or younger than others.
    #[test]
    fn a_clock_set_by_ten_years_makes_ages_unknown_until_no_datagram_waits() {
        const YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
        const MS: Duration = Duration::from_millis(1);
        let unix = Duration::from_secs(1_700_000_000);
        for set in [|wall: Duration| wall + YEARS, |wall: Duration| wall - YEARS] {
            let mut ages = Ages::default();
            let at = |steady: u32| Now {
                wall: unix + MS * steady,
                steady: MS * steady,
            };
            let then = |steady: u32| Now {
                wall: set(at(steady).wall),
                ..at(steady)
            };
            // Datagrams of a predecessor may wait since any time.
            assert_eq!(ages.age(at(7).wall, at(10)), None);
            ages.on_drained(at(10));
            assert_eq!(ages.age(at(17).wall, at(20)), Some(3 * MS));
            // One has arrived before the clock was set, one after that.
            assert_eq!(ages.age(at(21).wall, then(30)), None);
            assert_eq!(ages.age(then(25).wall, then(30)), None);
            ages.on_drained(then(30));
            assert_eq!(ages.age(then(35).wall, then(40)), Some(5 * MS));
        }
    }
}
