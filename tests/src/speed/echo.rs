//! Short exchanges: times of connecting and answering.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::{Bed, Result, bed::connect, summary::median_us};

/// The interval in which the server checks whether to stop, in milliseconds.
const LOOK: u8 = 100;
/// Rounds before timing begins, for caches, windows and the CPU's clock.
const WARM_UP_ROUNDS: usize = 200;
/// The event of the listener; streams have their index.
const LISTENER: u64 = u64::MAX;

/// An echo server for any number of connections, on one thread.
#[derive(Debug)]
pub(super) struct EchoServer {
    /// The listening address.
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl EchoServer {
    /// Starts a server on a new port of the bed's server.
    pub(super) fn start(bed: &Bed) -> Result<Self> {
        let (listener, address) = bed.listen()?;
        let over = Arc::new(AtomicBool::new(false));
        let serving = Serving::new(listener)?;
        let thread = thread::Builder::new().name("echo".to_owned());
        let thread = thread.spawn({
            let over = Arc::clone(&over);
            move || serving.run(&over)
        })?;
        Ok(Self {
            address,
            over,
            thread: Some(thread),
        })
    }

    /// Closes all connections and returns the first error, if any.
    pub(super) fn stop(mut self) -> Result<()> {
        self.over.store(true, Relaxed);
        let thread = self.thread.take().expect("taken here and in drop only");
        thread.join().expect("the echo thread reports errors")
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

struct Serving {
    epoll: Epoll,
    listener: TcpListener,
    streams: Vec<Option<TcpStream>>,
    free: Vec<usize>,
}

impl Serving {
    fn new(listener: TcpListener) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            epoll,
            listener,
            streams: Vec::new(),
            free: Vec::new(),
        })
    }

    fn run(mut self, over: &AtomicBool) -> Result<()> {
        let mut events = [EpollEvent::empty(); 256];
        let mut buffer = [0; 4096];
        while !over.load(Relaxed) {
            let ready = self.epoll.wait(&mut events, LOOK)?;
            for event in &events[..ready] {
                match event.data() {
                    LISTENER => self.accept()?,
                    index => self.answer(index as usize, &mut buffer)?,
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(err) => return Err(err.into()),
        };
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.streams.push(None);
            self.streams.len() - 1
        });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
        self.epoll.add(&stream, event)?;
        self.streams[index] = Some(stream);
        Ok(())
    }

    fn answer(&mut self, index: usize, buffer: &mut [u8]) -> Result<()> {
        let Some(stream) = &mut self.streams[index] else {
            return Ok(());
        };
        match stream.read(buffer) {
            Ok(bytes) if bytes > 0 => Ok(stream.write_all(&buffer[..bytes])?),
            Err(err) if err.kind() == ErrorKind::WouldBlock => Ok(()),
            // The end, or a reset: the client reports errors.
            _ => {
                self.streams[index] = None;
                self.free.push(index);
                Ok(())
            }
        }
    }
}

/// Sends messages of `size` bytes one at a time; returns the median round trip in microseconds.
pub(super) fn ping_pong(bed: &Bed, size: usize, rounds: usize) -> Result<f64> {
    let server = EchoServer::start(bed)?;
    let mut stream = bed.connect(server.address, 1)?.remove(0);
    let mut message = vec![1; size];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..WARM_UP_ROUNDS + rounds {
        let began = Instant::now();
        exchange(&mut stream, &mut message)?;
        if round >= WARM_UP_ROUNDS {
            times.push(elapsed_ns(began));
        }
    }
    server.stop()?;
    Ok(median_us(&mut times))
}

/// Connects, exchanges one byte and closes, repeatedly; returns the median time of connecting and
/// exchanging in microseconds.
pub(super) fn connect_echo(bed: &Bed, rounds: usize) -> Result<f64> {
    let server = EchoServer::start(bed)?;
    let address = server.address;
    let visits = || {
        (0..WARM_UP_ROUNDS + rounds)
            .map(|_| visit(address))
            .collect()
    };
    let times: Result<Vec<u64>> = bed.client().enter(visits)?;
    server.stop()?;
    Ok(median_us(&mut times?[WARM_UP_ROUNDS..]))
}

/// Returns the connections per second that `clients` open and close together, with one byte in each
/// direction.
pub(super) fn short_connections(bed: &Bed, clients: usize, total: usize) -> Result<f64> {
    let server = EchoServer::start(bed)?;
    let began = Instant::now();
    visit_in_parallel(bed, server.address, clients, total)?;
    let took = began.elapsed();
    server.stop()?;
    Ok(total as f64 / took.as_secs_f64())
}

/// Opens flows that have each carried a byte in both directions; they stay open as long as both
/// results are held.
pub(super) fn idle_flows(bed: &Bed, flows: usize) -> Result<(EchoServer, Vec<TcpStream>)> {
    let server = EchoServer::start(bed)?;
    let mut streams = bed.connect(server.address, flows)?;
    for stream in &mut streams {
        exchange(stream, &mut [1])?;
    }
    Ok((server, streams))
}

fn visit_in_parallel(bed: &Bed, server: SocketAddr, clients: usize, total: usize) -> Result<()> {
    let left = AtomicUsize::new(total);
    let visit_until_done = || -> Result<()> {
        while left
            .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1))
            .is_ok()
        {
            visit(server)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|_| scope.spawn(|| bed.client().enter(visit_until_done)?))
            .collect();
        let mut ended = clients.into_iter().map(thread::ScopedJoinHandle::join);
        ended.try_for_each(|result| result.expect("clients report errors"))
    })
}

/// Opens one connection with one byte in each direction; returns the nanoseconds until the byte was
/// back.
fn visit(server: SocketAddr) -> Result<u64> {
    let began = Instant::now();
    let mut stream = connect(server)?;
    exchange(&mut stream, &mut [1])?;
    Ok(elapsed_ns(began))
}

fn exchange(stream: &mut TcpStream, message: &mut [u8]) -> Result<()> {
    stream.write_all(message)?;
    Ok(stream.read_exact(message)?)
}

fn elapsed_ns(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).expect("five centuries fit")
}
