//! One long transfer, measured at the receiver and sampled at the sender.

mod meter;
mod quic;
mod samples;

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use socket2::Socket;
use units::Rate;

use meter::Meter;
pub use quic::QuicControl;
pub use samples::Sample;
use samples::Sampler;

use super::{ProgramError, Transfer, sys, tcp_listener, tcp_socket};
use crate::lab::{Node, topology::Family};

/// Maximum time that a socket call blocks before the next look at the clock.
const TICK: Duration = Duration::from_millis(100);
const CHUNK: usize = 256 * 1024;

/// Transfer that sends as much as it can for a given time.
#[derive(Debug, Clone, PartialEq)]
pub struct Bulk {
    /// Direction of the transfer.
    pub transfer: Transfer,
    /// Time from the client's `connect()` to the end of the measurement.
    pub duration: Duration,
    /// Initial part that does not count; shorter than the duration.
    pub warmup: Duration,
    /// Congestion control of the sending socket; by default that of its node.
    pub congestion: Option<String>,
    /// Congestion control of an end-to-end QUIC transfer, without `congestion` and `pacing`; TCP if
    /// absent.
    pub quic: Option<QuicControl>,
    /// Maximum payload rate of the sending socket; no limit if absent.
    pub pacing: Option<Rate>,
    /// Address family.
    pub family: Family,
    /// Port of the server.
    pub port: u16,
    /// Length of the intervals of the time series.
    pub interval: Duration,
    /// Interval between samples of the sending socket.
    pub sample: Duration,
    /// Initial part whose retransmissions are counted separately; no longer than the duration.
    pub early: Duration,
}

/// Result of a bulk transfer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkResult {
    /// Start of the transfer; not part of files.
    #[serde(skip)]
    pub began: Instant,
    /// Goodput after the warm-up, in bit/s.
    pub goodput_bps: f64,
    /// Total bytes received.
    pub bytes: u64,
    /// Time from the client's `connect()` to the first byte at the receiver; `None` if no byte
    /// arrived.
    pub first_byte_s: Option<f64>,
    /// Actual congestion control of the sending socket.
    pub congestion: String,
    /// Total bytes that the sending socket retransmitted.
    pub retransmitted_bytes: Option<u64>,
    /// Bytes that it retransmitted in the early part.
    pub retransmitted_early_bytes: Option<u64>,
    /// Goodput over time.
    pub series: Vec<Point>,
    /// Samples of the sending socket.
    pub tcp: Vec<Sample>,
}

/// Interval of a time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// End of the interval, in seconds since the start.
    pub t_s: f64,
    /// Mean goodput in the interval, in bit/s.
    pub bps: f64,
}

impl Bulk {
    /// Runs the transfer between two nodes.
    ///
    /// # Errors
    /// [`ProgramError::Socket`]: no connection, or the kernel lacks the congestion control.
    pub fn run(&self, client: &Node, server: &Node) -> Result<BulkResult, ProgramError> {
        if let Some(control) = self.quic {
            return quic::run(self, control, client, server);
        }
        let address = SocketAddr::new(server.ip(self.family), self.port);
        let listener = server.netns().enter(|| tcp_listener(address, TICK))??;
        let socket = client.netns().enter(|| tcp_socket(address))??;
        // Set before the connection exists, because congestion controls may read it when they
        // start. An accepted socket inherits it from the listener.
        self.set_pacing(match self.transfer {
            Transfer::Upload => &socket,
            Transfer::Download => &listener,
        })?;
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
        let sampler = Sampler::new(self, start);
        let sampler = thread::scope(|scope| {
            let sending = scope.spawn(|| send(&sender, end, sampler));
            receive(&receiver, end, &mut meter)?;
            Ok::<_, ProgramError>(join(sending))
        })?;
        let (early, all) = sampler.retransmitted();
        Ok(BulkResult {
            began: start,
            goodput_bps: meter.goodput(),
            bytes: meter.total,
            first_byte_s: meter.first.map(|first| first.as_secs_f64()),
            congestion,
            retransmitted_bytes: all,
            retransmitted_early_bytes: early,
            series: meter.series(),
            tcp: sampler.into_series(),
        })
    }

    fn set_pacing(&self, sender: &Socket) -> Result<(), ProgramError> {
        let Some(rate) = self.pacing else {
            return Ok(());
        };
        let set = sys::set_pacing(sender, rate.bytes_per_second());
        set.map_err(ProgramError::socket("set SO_MAX_PACING_RATE"))
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
            Err(err) => return Err(ProgramError::socket("accept a connection")(err)),
        }
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Sends until the end while the sampler runs. Then, or when the receiver is gone, resets the
/// connection, so that data in flight does not disturb later transfers.
fn send(socket: &Socket, end: Instant, sampler: Sampler) -> Sampler {
    let (alive, over) = mpsc::channel();
    let mut sampler = thread::scope(|scope| {
        let sampling = scope.spawn(move || sampler.run(socket, &over));
        write(socket, end);
        drop(alive);
        join(sampling)
    });
    sampler.take(socket);
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.shutdown(Shutdown::Both);
    sampler
}

fn write(socket: &Socket, end: Instant) {
    let chunk = vec![0x5a; CHUNK];
    // Options of a connected socket. Without them the receiver's reset ends the loop as well.
    let _ = socket.set_write_timeout(Some(TICK));
    let mut stream = socket;
    while Instant::now() < end {
        match stream.write(&chunk) {
            Ok(_) => {}
            Err(err) if is_timeout(&err) => {}
            Err(_) => break,
        }
    }
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
            // The sender closes at the end; an earlier close comes from a program in between.
            _ if Instant::now() + TICK > end => return Ok(()),
            Ok(_) => {
                return Err(ProgramError::output("bulk", "connection closed early"));
            }
            Err(err) => return Err(ProgramError::socket("receive")(err)),
        }
    }
}

fn is_timeout(err: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(err.kind(), WouldBlock | TimedOut | Interrupted)
}
