//! Transfer to the kernel's TCP from a sender that counts ACKs, as senders before RFC 3465 did.

mod segment;
mod sender;

use std::{
    io::{self, Read as _},
    net::{SocketAddr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use segment::{SYN, Segment};
pub use sender::Counts;
use sender::Sender;

use super::{Point, ProgramError, Transfer, tcp_listener, tcp_socket};
use crate::lab::Node;

/// Maximum time that a call blocks before the next look at the clock.
const TICK: Duration = Duration::from_millis(50);
/// Receive buffer of the raw socket: divided ACKs come in thousands.
const BUFFER: usize = 4 << 20;
/// Initial sequence number, chosen arbitrarily.
const ISS: u32 = 0x1234_5678;
/// Filter `return 0`, which accepts no packet.
const TAKE_NOTHING: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// Transfer of a number of bytes, over IPv4.
#[derive(Debug, Clone, PartialEq)]
pub struct CountingTcp {
    /// Direction. The sending end does not use the kernel's TCP.
    pub transfer: Transfer,
    /// Number of bytes.
    pub bytes: u64,
    /// Port of the server.
    pub port: u16,
    /// Time limit.
    pub timeout: Duration,
}

/// Result of the transfer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CountingTcpResult {
    /// Time from the client's first SYN to the last byte at the receiver.
    pub seconds: f64,
    /// Time from the client's first SYN to the first byte at the receiver.
    pub first_byte_s: f64,
    /// All bytes over `seconds`, in bit/s.
    pub goodput_bps: f64,
    /// Goodput over time, from the client's first SYN.
    pub series: Vec<Point>,
    /// Counters of the sender.
    #[serde(flatten)]
    pub sender: Counts,
}

/// Arrivals at the receiver.
#[derive(Debug, Default)]
struct Arrivals {
    first: Option<Duration>,
    last: Duration,
    total: u64,
    /// Bytes in each interval.
    bins: Vec<u64>,
}

impl Arrivals {
    fn count(&mut self, bytes: u64, at: Duration) {
        self.first.get_or_insert(at);
        self.last = at;
        self.total += bytes;
        let bin = at.as_nanos() / CountingTcp::INTERVAL.as_nanos();
        let bin = usize::try_from(bin).expect("below the timeout");
        self.bins.resize(self.bins.len().max(bin + 1), 0);
        self.bins[bin] += bytes;
    }

    fn series(&self) -> Vec<Point> {
        let interval = CountingTcp::INTERVAL.as_secs_f64();
        let point = |(index, bytes): (usize, &u64)| Point {
            t_s: (index + 1) as f64 * interval,
            bps: *bytes as f64 * 8.0 / interval,
        };
        self.bins.iter().enumerate().map(point).collect()
    }
}

impl CountingTcp {
    /// Interval of the time series.
    pub const INTERVAL: Duration = Duration::from_millis(10);

    /// Runs the transfer between two nodes. The client opens the connection in either direction.
    ///
    /// # Errors
    /// [`ProgramError::Socket`] without CAP_NET_RAW, or if the connection breaks;
    /// [`ProgramError::Timeout`].
    pub fn run(&self, client: &Node, server: &Node) -> Result<CountingTcpResult, ProgramError> {
        let address = SocketAddrV4::new(server.ipv4(), self.port);
        match self.transfer {
            Transfer::Upload => {
                let listener = server
                    .netns()
                    .enter(|| tcp_listener(address.into(), TICK))??;
                let local = SocketAddrV4::new(client.ipv4(), 0);
                let wire = client.netns().enter(|| Wire::open(local))??;
                let began = Instant::now();
                let sender = Sender::calling(self.bytes, ISS, Duration::ZERO);
                let receive = || self.receive(accept(&listener, began + self.timeout)?, began);
                self.both(&wire, sender, Some(address), began, receive)
            }
            Transfer::Download => {
                let wire = server.netns().enter(|| Wire::open(address))??;
                let sender = Sender::listening(self.bytes, ISS);
                let connecting = client.netns().enter(|| tcp_socket(address.into()))??;
                let began = Instant::now();
                let receive = || {
                    connecting.connect_timeout(&address.into(), self.timeout)?;
                    self.receive(connecting, began)
                };
                self.both(&wire, sender, None, began, receive)
            }
        }
    }

    fn both(
        &self,
        wire: &Wire,
        sender: Sender,
        peer: Option<SocketAddrV4>,
        began: Instant,
        receive: impl FnOnce() -> io::Result<Arrivals>,
    ) -> Result<CountingTcpResult, ProgramError> {
        let over = AtomicBool::new(false);
        let (received, sent) = thread::scope(|scope| {
            let sending = scope.spawn(|| wire.drive(sender, peer, began, &over));
            let received = receive();
            over.store(true, Ordering::Relaxed);
            let sent = sending.join();
            let sent = sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (received, sent)
        });
        let counts = sent.map_err(ProgramError::socket("send segments"))?;
        let arrivals = received.map_err(|err| self.failed(err))?;
        let last = arrivals.last;
        Ok(CountingTcpResult {
            seconds: last.as_secs_f64(),
            first_byte_s: arrivals.first.unwrap_or(last).as_secs_f64(),
            goodput_bps: self.bytes as f64 * 8.0 / last.as_secs_f64(),
            series: arrivals.series(),
            sender: counts,
        })
    }

    fn failed(&self, err: io::Error) -> ProgramError {
        if is_timeout(&err) {
            return ProgramError::Timeout {
                program: "counting_tcp".to_owned(),
                what: "transfer all bytes",
                after: self.timeout,
            };
        }
        ProgramError::socket("receive from counting_tcp")(err)
    }

    /// Receives all bytes, and resets the connection.
    fn receive(&self, mut socket: Socket, began: Instant) -> io::Result<Arrivals> {
        let mut buffer = vec![0; 64 * 1024];
        let mut arrivals = Arrivals::default();
        while arrivals.total < self.bytes {
            let left = self.timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            socket.set_read_timeout(Some(left))?;
            let count = socket.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            arrivals.count(count as u64, began.elapsed());
        }
        socket.set_linger(Some(Duration::ZERO))?;
        Ok(arrivals)
    }
}

/// Sender's end: a raw socket, and a kernel socket that holds the port.
#[derive(Debug)]
struct Wire {
    raw: Socket,
    local: SocketAddrV4,
    /// Kernel socket that accepts nothing. With it the kernel sends no RST for segments of a
    /// connection unknown to it.
    _guard: Socket,
}

impl Wire {
    /// Opens both sockets at this address; port 0 takes any port.
    fn open(local: SocketAddrV4) -> Result<Self, ProgramError> {
        let open = || {
            let guard = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            guard.attach_filter(&[TAKE_NOTHING])?;
            guard.bind(&SockAddr::from(local))?;
            guard.listen(1)?;
            let bound = guard.local_addr()?.as_socket_ipv4().unwrap_or(local);
            let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP))?;
            // As much as the system allows.
            let _ = raw.set_recv_buffer_size(BUFFER);
            raw.bind(&SockAddr::from(SocketAddrV4::new(*local.ip(), 0)))?;
            Ok(Self {
                raw,
                local: bound,
                _guard: guard,
            })
        };
        open().map_err(ProgramError::socket(format!(
            "open a raw socket at {local}"
        )))
    }

    /// Runs the sender until the receiver has everything.
    fn drive(
        &self,
        mut sender: Sender,
        mut peer: Option<SocketAddrV4>,
        began: Instant,
        over: &AtomicBool,
    ) -> io::Result<Counts> {
        let mut buffer = vec![0; 64 * 1024];
        while !over.load(Ordering::Relaxed) && !sender.is_reset() {
            sender.handle_timeout(began.elapsed());
            while let Some((to, segment)) = peer.zip(sender.poll_transmit(began.elapsed())) {
                self.send(&segment, to)?;
            }
            let left = sender.poll_timeout().unwrap_or(Duration::MAX);
            let left = left.saturating_sub(began.elapsed());
            let left = left.clamp(Duration::from_millis(1), TICK);
            self.raw.set_read_timeout(Some(left))?;
            let count = match (&self.raw).read(&mut buffer) {
                Ok(count) => count,
                Err(err) if is_timeout(&err) => continue,
                Err(err) => return Err(err),
            };
            let found = Segment::parse(&buffer[..count]);
            let Some((from, _, segment)) = found.filter(|(_, to, _)| *to == self.local) else {
                continue;
            };
            // A segment of an earlier connection may still be in flight.
            if peer.is_none() && segment.has(SYN) {
                peer = Some(from);
            }
            if peer == Some(from) {
                sender.handle(&segment, began.elapsed());
            }
        }
        Ok(sender.counts)
    }

    fn send(&self, segment: &Segment, to: SocketAddrV4) -> io::Result<()> {
        let bytes = segment.emit(self.local, to);
        let address = SocketAddr::from(SocketAddrV4::new(*to.ip(), 0));
        match self.raw.send_to(&bytes, &address.into()) {
            // A full queue counts as loss.
            Err(err) if err.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => sent.map(drop),
        }
    }
}

fn accept(listener: &Socket, end: Instant) -> io::Result<Socket> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Ok(socket),
            Err(err) if is_timeout(&err) && Instant::now() < end => {}
            Err(err) => return Err(err),
        }
    }
}

fn is_timeout(err: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(err.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests;
