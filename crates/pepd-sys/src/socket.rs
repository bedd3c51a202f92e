//! Socket calls that neither socket2 nor nix wraps.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

use pep_core::outage::revival::Vitals;
use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, SockRef, Socket, Type};

/// `TCP_RTO_MAX_MS` (Linux 6.15, `include/uapi/linux/tcp.h`); libc does not define it yet.
pub const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Sets the maximum time between retransmissions of a TCP socket, 1 s to 120 s (`TCP_RTO_MAX_MS`).
pub fn set_rto_max(fd: BorrowedFd<'_>, rto_max: Duration) -> io::Result<()> {
    let ms = i32::try_from(rto_max.as_millis()).unwrap_or(i32::MAX);
    set_int(fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, ms)
}

/// Returns whether the kernel has TCP_RTO_MAX_MS (Linux 6.15); without it `timeouts.rto_max` has no
/// effect.
pub fn has_rto_max() -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    let set = |socket: Socket| set_rto_max(socket.as_fd(), Duration::from_secs(2));
    socket.and_then(set).is_ok()
}

/// `TCP_RTO_MIN_US` (Linux 6.15, `include/uapi/linux/tcp.h`); libc does not define it yet.
const TCP_RTO_MIN_US: libc::c_int = 45;

/// Sets the minimum time before a retransmission of a TCP socket, beyond the round trip: two ticks
/// of the kernel's clock to 200 ms (`TCP_RTO_MIN_US`).
pub fn set_rto_min(fd: BorrowedFd<'_>, rto_min: Duration) -> io::Result<()> {
    let us = i32::try_from(rto_min.as_micros()).unwrap_or(i32::MAX);
    set_int(fd, libc::IPPROTO_TCP, TCP_RTO_MIN_US, us)
}

/// `SO_MAX_PACING_RATE` takes an unsigned long: bytes per second.
pub use libc::SO_MAX_PACING_RATE;

/// Sets an option of type `int`.
pub fn set_int(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set(fd, level, name, &value)
}

/// Sets an option of type `unsigned long`.
pub(crate) fn set_ulong(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: u64,
) -> io::Result<()> {
    // An unsigned long has as many bits as an address.
    let value = usize::try_from(value).unwrap_or(usize::MAX) as libc::c_ulong;
    set(fd, level, name, &value)
}

fn set<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` points to `len` readable bytes for the whole call, and the kernel
    // keeps no reference to them, nor to what they point to.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) };
    check(result).map(drop)
}

/// Attaches a classic BPF program to the sockets that share a socket's address and port
/// (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5). It reads the payload of a datagram and returns the
/// position, in order of binding, of the socket that gets it. The kernel chooses by the addresses
/// if there is no such socket.
///
/// # Errors
/// If the program is invalid, or the socket is in no group of sockets that share a port.
pub fn steer(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        // The kernel copies the instructions.
        filter: program.as_ptr().cast_mut(),
    };
    set(
        socket,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        &program,
    )
}

/// Sets the size of the send buffer in bytes as the kernel counts them, regardless of
/// `net.core.wmem_max` (SO_SNDBUFFORCE). Needs CAP_NET_ADMIN.
pub(crate) fn set_send_buffer(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, halved(bytes))
}

/// Sets the size of the receive buffer in bytes as the kernel counts them, regardless of
/// `net.core.rmem_max` (SO_RCVBUFFORCE). Needs CAP_NET_ADMIN.
pub(crate) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, halved(bytes))
}

/// Halves a size, because the kernel doubles the given value.
fn halved(bytes: u64) -> libc::c_int {
    let bytes = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
    bytes.min(i32::MAX / 2)
}

/// Returns the size of the receive buffer in bytes as the kernel counts them.
pub fn receive_buffer(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes = [0; 4];
    get(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut bytes)?;
    Ok(u64::from(u32::from_ne_bytes(bytes)))
}

/// Lets the advertised window grow to the receive buffer (TCP_WINDOW_CLAMP).
pub(crate) fn unclamp_window(fd: BorrowedFd<'_>) -> io::Result<()> {
    /// The maximum window (RFC 7323, section 2.3).
    const LARGEST: libc::c_int = 1 << 30;
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, LARGEST)
}

/// Limits the window that is advertised from now on (TCP_WINDOW_CLAMP). What was advertised before
/// remains so.
pub(crate) fn clamp_window(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// `SO_BUF_LOCK` (Linux 5.14); libc does not define it on all systems.
const SO_BUF_LOCK: libc::c_int = 72;
/// `SOCK_SNDBUF_LOCK` and `SOCK_RCVBUF_LOCK` of `include/net/sock.h`.
const SEND_LOCK: u32 = 1;
const RECEIVE_LOCK: u32 = 2;

/// Returns whether the size of the receive buffer was set, so that the kernel does not tune it.
pub(crate) fn is_receive_buffer_set(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(buffer_locks(fd)? & RECEIVE_LOCK != 0)
}

/// Returns whether the size of the send buffer was set.
#[cfg(test)]
pub(crate) fn is_send_buffer_set(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(buffer_locks(fd)? & SEND_LOCK != 0)
}

/// Lets the kernel tune the size of a send buffer that was set.
pub(crate) fn tune_send_buffer(fd: BorrowedFd<'_>) -> io::Result<()> {
    let locks = buffer_locks(fd)? & !SEND_LOCK;
    set_int(fd, libc::SOL_SOCKET, SO_BUF_LOCK, locks.cast_signed())
}

fn buffer_locks(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut locks = [0; 4];
    get(fd, libc::SOL_SOCKET, SO_BUF_LOCK, &mut locks)?;
    Ok(u32::from_ne_bytes(locks))
}

/// Returns the maximum bytes that the application read within a round trip, as the kernel measures.
pub(crate) fn taken_in_a_round_trip(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0; TCP_INFO_LEN];
    tcp_info(fd, &mut info)?;
    Ok(u64::from(u32::from_ne_bytes(array(&info, 96))))
}

/// Accepts a completed connection from a listener: non-blocking, closed on exec.
///
/// # Errors
/// As accept4(2); `WouldBlock` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut storage = SockAddrStorage::zeroed();
    let mut len = storage.size_of();
    // SAFETY: `storage` has `len` bytes and outlives the call; the kernel writes an address into it
    // and its length into `len`.
    let result = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            (&raw mut storage).cast(),
            &raw mut len,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    };
    let fd = check(result)?;
    // SAFETY: accept4 has just returned it, so it is open and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the kernel initialised `len` bytes of `storage` as a socket address.
    let address = unsafe { SockAddr::new(storage, len) };
    let peer = address
        .as_socket()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((fd, peer))
}

/// Returns the headers, from IP on, of an accepted connection's SYN, if its listener had
/// `TCP_SAVE_SYN`. Empty otherwise, and after the first call.
pub(crate) fn saved_syn<'a>(fd: BorrowedFd<'_>, buffer: &'a mut [u8; 256]) -> io::Result<&'a [u8]> {
    let mut len = buffer.len() as libc::socklen_t;
    // SAFETY: `buffer` has `len` writable bytes and outlives the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result)?;
    Ok(&buffer[..len as usize])
}

/// Returns the bytes written to a TCP socket and not yet acknowledged by its peer (`SIOCOUTQ`); a
/// FIN counts as one.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int, which `bytes` is.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(result)?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Returns whether a TCP socket is in state CLOSE: reset, timed out, or closed by both and
/// acknowledged.
pub fn is_closed(fd: BorrowedFd<'_>) -> io::Result<bool> {
    /// `TCP_CLOSE` of `include/net/tcp_states.h`.
    const CLOSE: u8 = 7;
    Ok(state(fd)? == CLOSE)
}

/// Returns whether a TCP socket is in state ESTABLISHED.
pub fn is_established(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(state(fd)? == ESTABLISHED)
}

/// `TCP_ESTABLISHED` of `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// Returns the state of a TCP socket, a number of `include/net/tcp_states.h`.
fn state(fd: BorrowedFd<'_>) -> io::Result<u8> {
    // The kernel fills as much of the structure as fits; the state comes first.
    let mut state = [0];
    tcp_info(fd, &mut state)?;
    Ok(state[0])
}

/// Byte counters of a TCP socket since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// The state, a number of `include/net/tcp_states.h`.
    pub state: u8,
    /// Sent bytes that were acknowledged; SYN and FIN count as one each.
    pub acknowledged: u64,
    /// Bytes received in order; the remote FIN counts as one.
    pub received: u64,
}

/// Returns the byte counters of a TCP socket (Linux 4.2 and later).
pub fn totals(fd: BorrowedFd<'_>) -> io::Result<Totals> {
    let mut info = [0; TCP_INFO_LEN];
    tcp_info(fd, &mut info)?;
    let long = |at| u64::from_ne_bytes(array(&info, at));
    Ok(Totals {
        state: info[0],
        acknowledged: long(120),
        received: long(128),
    })
}

/// Returns the bytes that a TCP socket holds unread (`SIOCINQ`); a FIN does not count.
pub fn unread(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCINQ (FIONREAD) writes one int, which `bytes` is.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    check(result)?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Returns the unread bytes of a TCP socket as `TCP_INQ` reports them (Linux 4.18), FIN included; 0
/// if there are none. Takes the socket's pending error, if it has one.
pub fn unread_with_fin(fd: BorrowedFd<'_>) -> io::Result<u64> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_INQ, 1)?;
    let peeked = peek_hint(fd);
    // The first attempt may have returned a pending error, which is then cleared.
    let peeked = peeked.or_else(|_| peek_hint(fd));
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_INQ, 0)?;
    match peeked {
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

fn peek_hint(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut byte = [0_u8; 1];
    let mut vector = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // Aligned for a header, with room for more than an int.
    let mut control = [0_u64; 8];
    // SAFETY: all zeroes is a valid `msghdr`: no name, no vectors, no control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `message` names one vector and a control buffer, which outlive the call.
    if unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled in the control messages and their lengths; each is within
    // `control`.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = next.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_TCP, libc::TCP_CM_INQ) {
                let hint: libc::c_int = libc::CMSG_DATA(header)
                    .cast::<libc::c_int>()
                    .read_unaligned();
                return Ok(u64::try_from(hint).unwrap_or(0));
            }
            next = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(0)
}

/// Returns the number of segments that a TCP socket has received, with data or without (Linux 4.2
/// and later); wraps.
pub fn segments_in(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0; TCP_INFO_LEN];
    tcp_info(fd, &mut info)?;
    Ok(u32::from_ne_bytes(array(&info, 140)))
}

/// Send progress of a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes of payload sent, retransmissions included.
    pub sent: u64,
    /// Bytes retransmitted.
    pub sent_again: u64,
    /// Packets sent, with payload or without; wraps.
    pub packets: u32,
    /// Bytes queued for their first transmission.
    pub unsent: u32,
    /// Packets not yet acknowledged.
    pub unacknowledged: u32,
}

impl Progress {
    /// Returns the bytes of payload sent, without retransmissions.
    pub fn fresh_bytes(&self) -> u64 {
        self.sent.saturating_sub(self.sent_again)
    }

    /// Returns the bytes of payload sent since `earlier`, retransmissions included.
    pub fn payload_since(&self, earlier: &Self) -> u64 {
        self.sent.saturating_sub(earlier.sent)
    }

    /// Returns the packets sent since `earlier`.
    pub fn packets_since(&self, earlier: &Self) -> u64 {
        self.packets.wrapping_sub(earlier.packets).into()
    }

    /// Returns whether all data was acknowledged.
    pub fn is_done(&self) -> bool {
        self.unsent == 0 && self.unacknowledged == 0
    }
}

/// Returns the send progress of a TCP socket (Linux 4.19 and later; all zero before).
pub fn progress(fd: BorrowedFd<'_>) -> io::Result<Progress> {
    let mut info = [0; TCP_INFO_LEN];
    tcp_info(fd, &mut info)?;
    let word = |at| u32::from_ne_bytes(array(&info, at));
    let long = |at| u64::from_ne_bytes(array(&info, at));
    Ok(Progress {
        unacknowledged: word(24),
        packets: word(136),
        unsent: word(144),
        sent: long(200),
        sent_again: long(208),
    })
}

/// Returns whether a TCP socket's data arrives. A socket that is not established has nothing in
/// flight, and [`send_probe`] has no effect on it.
pub fn vitals(fd: BorrowedFd<'_>) -> io::Result<Vitals> {
    let mut info = [0; TCP_INFO_LEN];
    tcp_info(fd, &mut info)?;
    let word = |at| u32::from_ne_bytes(array(&info, at));
    let established = info[0] == ESTABLISHED;
    let waits_for_window = word(24) == 0 && word(144) > 0;
    Ok(Vitals {
        unacked: if established { word(24) } else { 0 },
        silent: Duration::from_millis(word(56).into()),
        rtt: Duration::from_micros(word(68).into()),
        // The maximum stands for "no sample yet".
        rtt_min: match word(148) {
            u32::MAX => Duration::ZERO,
            micros => Duration::from_micros(micros.into()),
        },
        acked: u64::from_ne_bytes(array(&info, 120)),
        waits_for_window,
        gives_up_soon: waits_for_window && word(228) > 0 && info[3] >= MANY_PROBES,
        is_established: established,
    })
}

/// The number of probes without an answer that is near the kernel's limit of 15.
const MANY_PROBES: u8 = 5;

/// Declares bytes sent that the kernel could not send. From then on its timer retransmits them,
/// which ends by TCP_USER_TIMEOUT only, not by a number of tries. Needs CAP_NET_ADMIN.
///
/// No thread may send or receive on the socket meanwhile: its calls would fail.
pub fn count_as_sent(fd: BorrowedFd<'_>) -> io::Result<()> {
    /// Values of `include/uapi/linux/tcp.h`.
    const SEND_QUEUE: libc::c_int = 2;
    const OFF_WITHOUT_PROBE: libc::c_int = -1;
    let set = |name, value| set_int(fd, libc::IPPROTO_TCP, name, value);
    set(libc::TCP_REPAIR, 1)?;
    // Under repair the kernel moves what it would send, and sends nothing.
    let moved = set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE).and_then(|()| push(fd));
    set(libc::TCP_REPAIR, OFF_WITHOUT_PROBE)?;
    // Restores the option, which TCP_REPAIR has cleared.
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    moved
}

/// Makes a TCP socket send what it may. Its timer alone tries only later again to send bytes for
/// which there was no route.
pub fn push(fd: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel does so whenever this option is cleared, whether it was set or not.
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0)
}

/// Makes an established TCP socket send a window probe at once, regardless of its timers; the far
/// end answers with an acknowledgement. The kernel sends the probe when TCP_REPAIR ends. Needs
/// CAP_NET_ADMIN.
///
/// No thread may send or receive on the socket meanwhile: its calls would fail.
pub fn send_probe(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)?;
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, 0)?;
    // Restores the option, which TCP_REPAIR has cleared.
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
}

/// Makes a TCP socket ignore segments without bytes, SYN, FIN and RST, among them keepalives; or
/// ends that. Meanwhile acknowledgements do not arrive either.
pub fn mute(fd: BorrowedFd<'_>, mute: bool) -> io::Result<()> {
    let socket = SockRef::from(&fd);
    if mute {
        socket.attach_filter(&WITHOUT_BYTES)
    } else {
        socket.detach_filter()
    }
}

/// Filter that drops such segments. It sees them from their TCP header on.
const WITHOUT_BYTES: [SockFilter; 12] = {
    const fn step(code: u32, jt: u8, jf: u8, k: u32) -> SockFilter {
        SockFilter::new(code as u16, jt, jf, k)
    }
    const FLAGS: u32 = 0x07; // FIN, SYN, RST
    [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
        step(libc::BPF_ST, 0, 0, 0),
        // The header's length, in words, is in the upper half of byte 12.
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 12),
        step(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 4),
        step(libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K, 0, 0, 2),
        step(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
        step(libc::BPF_LD | libc::BPF_MEM, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X, 0, 2, 0),
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 13),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, FLAGS),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
};

/// Ends a [probe](send_probe) that another process left unfinished when it was killed: no call that
/// sends or receives would succeed.
pub fn end_probe(fd: BorrowedFd<'_>) -> io::Result<()> {
    // ENOENT: that process had not muted it.
    let _ = mute(fd, false);
    let mut repair = [0; 4];
    get(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &mut repair)?;
    if i32::from_ne_bytes(repair) != 0 {
        set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, 0)?;
    }
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
}

/// Returns the cap on the time between retransmissions of a socket (TCP_RTO_MAX_MS).
#[cfg(any(test, feature = "testing"))]
pub fn rto_max(fd: BorrowedFd<'_>) -> io::Result<Duration> {
    let mut ms = [0; 4];
    get(fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, &mut ms)?;
    Ok(Duration::from_millis(u32::from_ne_bytes(ms).into()))
}

/// Returns the minimum time before a retransmission of a socket (TCP_RTO_MIN_US).
#[cfg(any(test, feature = "testing"))]
pub fn rto_min(fd: BorrowedFd<'_>) -> io::Result<Duration> {
    let mut us = [0; 4];
    get(fd, libc::IPPROTO_TCP, TCP_RTO_MIN_US, &mut us)?;
    Ok(Duration::from_micros(u32::from_ne_bytes(us).into()))
}

/// Returns the maximum send rate of a socket (SO_MAX_PACING_RATE), in bytes per second.
#[cfg(any(test, feature = "testing"))]
pub fn max_pacing_rate(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0; TCP_INFO_LEN];
    tcp_info(fd, &mut info)?;
    Ok(u64::from_ne_bytes(array(&info, 112)))
}

/// Returns the packets that a socket dropped because its receive buffer was full; modulo 2^32.
pub fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    /// `SK_MEMINFO_DROPS` and `SK_MEMINFO_VARS` of `include/uapi/linux/sock_diag.h`.
    const DROPS: usize = 8;
    const VARS: usize = 9;
    let mut info = [0; 4 * VARS];
    get(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info)?;
    let drops = info.as_chunks().0.get(DROPS);
    Ok(u32::from_ne_bytes(drops.copied().unwrap_or_default()))
}

/// The length of the used part of `struct tcp_info` (`include/uapi/linux/tcp.h`); libc's is
/// shorter.
pub(super) const TCP_INFO_LEN: usize = 240;

pub(super) fn array<const N: usize>(info: &[u8; TCP_INFO_LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|index| info[at + index])
}

/// Fills the buffer as far as the kernel's structure goes.
fn tcp_info(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<()> {
    get(fd, libc::IPPROTO_TCP, libc::TCP_INFO, buffer)
}

/// Reads a socket option whose length differs between kernels.
fn get(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    buffer: &mut [u8],
) -> io::Result<()> {
    get_of(fd.as_raw_fd(), level, name, buffer)
}

/// Reads an option of a descriptor that another thread may close or reuse meanwhile: the call
/// changes nothing.
pub(super) fn get_of(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut len = buffer.len() as libc::socklen_t;
    // SAFETY: `buffer` has `len` writable bytes, and both outlive the call.
    let result = unsafe {
        let value = buffer.as_mut_ptr().cast();
        libc::getsockopt(fd, level, name, value, &raw mut len)
    };
    check(result).map(drop)
}

/// Turns the -1 of a system call into `errno`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream, UdpSocket},
    };

    use socket2::SockRef;

    use super::*;

    /// Needs root, as pepd does.
    #[test]
    fn a_probe_that_a_killed_process_began_is_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut leg = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut host, _) = listener.accept().unwrap();
        set_int(leg.as_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, 1).unwrap();
        assert!(leg.write(b"x").is_err(), "the kernel refuses it");
        end_probe(leg.as_fd()).unwrap();
        end_probe(leg.as_fd()).unwrap();
        leg.write_all(b"to").unwrap();
        host.read_exact(&mut [0; 2]).unwrap();
        host.write_all(b"from").unwrap();
        leg.read_exact(&mut [0; 4]).unwrap();
    }

    #[test]
    fn only_sockets_that_share_a_port_are_steered() {
        let first = UdpSocket::bind("127.0.0.1:0").unwrap();
        SockRef::from(&first).set_reuse_port(true).unwrap();
        let always = |position| libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: position,
        };
        assert!(steer(first.as_fd(), &[always(0)]).is_err(), "it is alone");
        let second = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        second.set_reuse_port(true).unwrap();
        let to = first.local_addr().unwrap();
        second.bind(&to.into()).unwrap();
        let second = UdpSocket::from(second);
        assert!(steer(first.as_fd(), &[]).is_err(), "there is no program");
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (position, socket) in [(1, &second), (0, &first)] {
            steer(first.as_fd(), &[always(position)]).unwrap();
            sender.send_to(&[7], to).unwrap();
            let timeout = Some(Duration::from_secs(10));
            socket.set_read_timeout(timeout).unwrap();
            socket.recv(&mut [0]).unwrap();
        }
    }
}
