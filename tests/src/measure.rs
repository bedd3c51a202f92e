//! Latencies, connection rates and goodput, always measured at the receiver.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::{
    host::{Dial, Host},
    serve::Server,
};

/// Measured durations, sorted.
#[derive(Debug, Clone)]
pub struct Latencies {
    sorted: Vec<Duration>,
}

impl Latencies {
    /// Sorts the samples.
    ///
    /// # Panics
    /// Without samples.
    pub fn new(mut samples: Vec<Duration>) -> Self {
        assert!(!samples.is_empty(), "no samples");
        samples.sort_unstable();
        Self { sorted: samples }
    }

    /// Returns the quantile at this share (0 to 1).
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.sorted.len() - 1;
        let rank = (last as f64 * share).round() as usize;
        self.sorted[rank.min(last)]
    }

    /// Returns the median.
    pub fn median(&self) -> Duration {
        self.quantile(0.5)
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns false: see [`new`](Self::new).
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }
}

/// Sends `size` bytes to an echo server and waits for all of them, `rounds` times.
///
/// # Errors
/// Those of the connection.
pub fn ping_pong(stream: &mut TcpStream, size: usize, rounds: usize) -> io::Result<Latencies> {
    let (message, mut answer) = (vec![0x5a; size], vec![0; size]);
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        samples.push(start.elapsed());
    }
    Ok(Latencies::new(samples))
}

/// Times of a connection's first steps.
#[derive(Debug, Clone)]
pub struct Opening {
    /// Time until `connect()` returned.
    pub connect: Latencies,
    /// Time until the echo of a first byte arrived, from the start of the connect.
    pub first_byte: Latencies,
}

/// Connects to an echo server, echoes one byte and closes, `rounds` times.
///
/// # Errors
/// Those of the connections.
///
/// # Panics
/// With no rounds.
pub fn openings(client: &Host, to: SocketAddr, rounds: usize) -> io::Result<Opening> {
    let dial = Dial::to(to);
    client.enter(|| {
        let (mut connects, mut first_bytes) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = Instant::now();
            let mut stream = dial.connect_here()?;
            connects.push(start.elapsed());
            echo_one_byte(&mut stream)?;
            first_bytes.push(start.elapsed());
        }
        Ok(Opening {
            connect: Latencies::new(connects),
            first_byte: Latencies::new(first_bytes),
        })
    })
}

fn echo_one_byte(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

/// Returns the connections per second that `threads` clients reach together in `duration`; each
/// connects, echoes one byte and closes.
///
/// # Errors
/// Those of the connections.
pub fn connection_rate(
    client: &Host,
    to: SocketAddr,
    threads: usize,
    duration: Duration,
) -> io::Result<f64> {
    let start = Instant::now();
    let run = || {
        client.enter(|| -> io::Result<u64> {
            let mut connections = 0;
            while start.elapsed() < duration {
                echo_one_byte(&mut Dial::to(to).connect_here()?)?;
                connections += 1;
            }
            Ok(connections)
        })
    };
    let counts = run_threads(threads, run)?;
    Ok(counts.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64())
}

/// Bytes received, and the time from the first to the last.
#[derive(Debug, Clone, Copy)]
pub struct Goodput {
    /// Bytes received.
    pub bytes: u64,
    /// From the first byte received to the last.
    pub elapsed: Duration,
}

impl Goodput {
    /// Returns the goodput in bit/s.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed.as_secs_f64()
    }
}

/// Bytes per call in bulk transfers.
const CHUNK: usize = 1 << 20;

/// Starts a server that sends as many zeros as a request of eight bytes asks for.
pub fn bulk_server(listener: std::net::TcpListener) -> Server {
    Server::start(listener, |mut stream, _| {
        // A client may close before the end.
        let _ = send_zeros(&mut stream);
    })
}

fn send_zeros(stream: &mut TcpStream) -> io::Result<()> {
    let mut request = [0; 8];
    stream.read_exact(&mut request)?;
    let mut left = u64::from_le_bytes(request);
    let chunk = vec![0; CHUNK];
    while left > 0 {
        let len = left.min(CHUNK as u64) as usize;
        stream.write_all(&chunk[..len])?;
        left -= len as u64;
    }
    Ok(())
}

/// Downloads `bytes` in all from a [`bulk_server`] over parallel connections.
///
/// # Errors
/// Those of the connections; `UnexpectedEof` when bytes are missing.
pub fn download(client: &Host, to: SocketAddr, flows: usize, bytes: u64) -> io::Result<Goodput> {
    let each = bytes / flows as u64;
    let fetch = || {
        let mut stream = client.connect(to)?;
        stream.write_all(&each.to_le_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        receive_zeros(&mut stream, each)
    };
    let spans = run_threads(flows, fetch)?;
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    let elapsed = match (first, last) {
        (Some(first), Some(last)) => last - first,
        _ => Duration::ZERO,
    };
    Ok(Goodput {
        bytes: each * flows as u64,
        elapsed,
    })
}

/// Returns the arrival times of the first and the last byte.
fn receive_zeros(stream: &mut TcpStream, bytes: u64) -> io::Result<(Instant, Instant)> {
    let (mut chunk, mut total, mut first) = (vec![0; CHUNK], 0, None);
    loop {
        let len = stream.read(&mut chunk)?;
        let now = Instant::now();
        let first = *first.get_or_insert(now);
        total += len as u64;
        if total == bytes {
            return Ok((first, now));
        }
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Runs a closure on several threads at once; returns their results, or the first error.
fn run_threads<T: Send>(
    threads: usize,
    run: impl Fn() -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(&run)).collect();
        let joined = handles.into_iter().map(|handle| {
            let result = handle.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    })
}

/// Opens connections to an echo server, each after one echoed byte.
///
/// # Errors
/// Those of the connections.
pub fn idle_flows(client: &Host, to: SocketAddr, flows: usize) -> io::Result<Vec<TcpStream>> {
    client.enter(|| {
        (0..flows)
            .map(|_| {
                let mut stream = Dial::to(to).connect_here()?;
                echo_one_byte(&mut stream)?;
                Ok(stream)
            })
            .collect()
    })
}
