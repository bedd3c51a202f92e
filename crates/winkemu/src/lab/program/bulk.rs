//! One long transfer, measured where it is received.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{ProgramError, Transfer};
use crate::lab::{Node, topology::Family};

/// How long a socket call may block before it looks at the clock.
const TICK: Duration = Duration::from_millis(100);
const CHUNK: usize = 256 * 1024;

/// A transfer that sends as much as it can for a given time.
#[derive(Debug, Clone, PartialEq)]
pub struct Bulk {
    /// Which end sends.
    pub transfer: Transfer,
    /// From the client's `connect()` to the end of the measurement.
    pub duration: Duration,
    /// The part at the beginning that does not count; shorter than the duration.
    pub warmup: Duration,
    /// The congestion control of the sending socket; that of its node if absent.
    pub congestion: Option<String>,
    /// The address family.
    pub family: Family,
    /// The server's port.
    pub port: u16,
    /// Length of the intervals of the time series.
    pub interval: Duration,
}

/// What arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkResult {
    /// Bytes received after the warm-up, in bit/s.
    pub goodput_bps: f64,
    /// Bytes received in all.
    pub bytes: u64,
    /// From the client's `connect()` to the first byte at the receiver; `None` if nothing came.
    pub first_byte_s: Option<f64>,
    /// The congestion control the sending socket had.
    pub congestion: String,
    /// Goodput over time.
    pub series: Vec<Point>,
}

/// An interval of a time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Its end, in seconds since the start.
    pub t_s: f64,
    /// Mean goodput in it, in bit/s.
    pub bps: f64,
}

impl Bulk {
    /// Runs the transfer between two nodes.
    ///
    /// # Errors
    /// [`ProgramError::Socket`] when there is no connection, or the kernel lacks the congestion
    /// control.
    pub fn run(&self, client: &Node, server: &Node) -> Result<BulkResult, ProgramError> {
        let address = SocketAddr::new(server.ip(self.family), self.port);
        let listener = server.netns().enter(|| self.listen(address))??;
        let socket = client.netns().enter(|| self.new_socket())??;
        let start = Instant::now();
        let end = start + self.duration;
        let connecting = socket.connect_timeout(&address.into(), self.duration);
        connecting.map_err(ProgramError::socket(format!("connect to {address}")))?;
        let accepted = accept(&listener, end)?;
        let (sender, receiver) = match self.transfer {
            Transfer::Upload => (socket, accepted),
            Transfer::Download => (accepted, socket),
        };
        let congestion = self.set_congestion(&sender)?;
        let mut meter = Meter::new(self, start);
        thread::scope(|scope| {
            scope.spawn(|| send(&sender, end));
            receive(&receiver, end, &mut meter)
        })?;
        Ok(meter.result(congestion))
    }

    fn new_socket(&self) -> Result<Socket, ProgramError> {
        let domain = match self.family {
            Family::Ipv4 => Domain::IPV4,
            Family::Ipv6 => Domain::IPV6,
        };
        Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
            .map_err(ProgramError::socket("make a socket"))
    }

    fn listen(&self, address: SocketAddr) -> Result<Socket, ProgramError> {
        let socket = self.new_socket()?;
        let listen = || {
            socket.set_reuse_address(true)?;
            // Also the longest time that accept() waits.
            socket.set_read_timeout(Some(TICK))?;
            socket.bind(&SockAddr::from(address))?;
            socket.listen(1)
        };
        listen().map_err(ProgramError::socket(format!("listen on {address}")))?;
        Ok(socket)
    }

    fn set_congestion(&self, sender: &Socket) -> Result<String, ProgramError> {
        if let Some(name) = &self.congestion {
            let set = sender.set_tcp_congestion(name.as_bytes());
            set.map_err(ProgramError::socket(format!(
                "use the congestion control `{name}`"
            )))?;
        }
        let name = sender
            .tcp_congestion()
            .map_err(ProgramError::socket("read TCP_CONGESTION"))?;
        let name = String::from_utf8_lossy(&name);
        Ok(name.trim_end_matches('\0').to_owned())
    }
}

fn accept(listener: &Socket, end: Instant) -> Result<Socket, ProgramError> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Ok(socket),
            Err(err) if is_timeout(&err) && Instant::now() < end => {}
            Err(err) => return Err(ProgramError::socket("accept the connection")(err)),
        }
    }
}

/// Sends until the end; then, or when the receiver is gone, resets the connection, so that what
/// is still on its way burdens nobody.
fn send(socket: &Socket, end: Instant) {
    let chunk = vec![0x5a; CHUNK];
    // Options of a connected socket; the loop would end by the receiver's reset without them.
    let _ = socket.set_write_timeout(Some(TICK));
    let mut stream = socket;
    while Instant::now() < end {
        match stream.write(&chunk) {
            Ok(_) => {}
            Err(err) if is_timeout(&err) => {}
            Err(_) => break,
        }
    }
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.shutdown(Shutdown::Both);
}

fn receive(socket: &Socket, end: Instant, meter: &mut Meter) -> Result<(), ProgramError> {
    let mut buffer = vec![0; CHUNK];
    let mut stream = socket;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let timeout = socket.set_read_timeout(Some(left.min(TICK)));
        timeout.map_err(ProgramError::socket("set SO_RCVTIMEO"))?;
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => meter.count(count as u64, Instant::now()),
            Err(err) if is_timeout(&err) => {}
            // The sender closes at the end; earlier, somebody else did.
            _ if Instant::now() + TICK > end => return Ok(()),
            Ok(_) => {
                return Err(ProgramError::output(
                    "bulk",
                    "the connection was closed early",
                ));
            }
            Err(err) => return Err(ProgramError::socket("receive")(err)),
        }
    }
}

fn is_timeout(err: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(err.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Sorts received bytes into intervals.
#[derive(Debug)]
struct Meter {
    start: Instant,
    duration: Duration,
    warmup: Duration,
    interval: Duration,
    bins: Vec<u64>,
    measured: u64,
    total: u64,
    first: Option<Duration>,
}

impl Meter {
    fn new(bulk: &Bulk, start: Instant) -> Self {
        let bins = bulk.duration.as_nanos().div_ceil(bulk.interval.as_nanos());
        Self {
            start,
            duration: bulk.duration,
            warmup: bulk.warmup,
            interval: bulk.interval,
            bins: vec![0; usize::try_from(bins).expect("checked when the scenario was read")],
            measured: 0,
            total: 0,
            first: None,
        }
    }

    fn count(&mut self, bytes: u64, now: Instant) {
        let at = now.duration_since(self.start);
        if at >= self.duration {
            return;
        }
        self.first.get_or_insert(at);
        self.total += bytes;
        if at >= self.warmup {
            self.measured += bytes;
        }
        let bin = at.as_nanos() / self.interval.as_nanos();
        self.bins[usize::try_from(bin).expect("below the number of bins")] += bytes;
    }

    fn result(&self, congestion: String) -> BulkResult {
        let window = (self.duration - self.warmup).as_secs_f64();
        let interval = self.interval.as_secs_f64();
        let point = |(index, bytes): (usize, &u64)| {
            let begin = index as f64 * interval;
            let end = (begin + interval).min(self.duration.as_secs_f64());
            Point {
                t_s: end,
                bps: *bytes as f64 * 8.0 / (end - begin),
            }
        };
        BulkResult {
            goodput_bps: self.measured as f64 * 8.0 / window,
            bytes: self.total,
            first_byte_s: self.first.map(|first| first.as_secs_f64()),
            congestion,
            series: self.bins.iter().enumerate().map(point).collect(),
        }
    }
}
