//! An echo server for thousands of connections on one thread.

use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// An echo server, which closes a connection once the client has; runs until dropped.
#[derive(Debug)]
pub struct EchoServer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    open: AtomicUsize,
    accepted: AtomicUsize,
}

impl EchoServer {
    /// Starts serving.
    ///
    /// # Panics
    /// At the limit of threads or descriptors.
    pub fn start(listener: TcpListener) -> Self {
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut service = Service::new(listener, served).expect("epoll is available");
            service.run().expect("the echo server's own calls work");
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Returns the connections open now.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Returns the connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// Received bytes not yet echoed; nothing more is received until it is empty.
    pending: Vec<u8>,
}

struct Service {
    epoll: Epoll,
    listener: TcpListener,
    connections: HashMap<u64, Connection>,
    shared: Arc<Shared>,
    buffer: Vec<u8>,
}

impl Service {
    fn new(listener: TcpListener, shared: Arc<Shared>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, event(EpollFlags::EPOLLIN, key(&listener)))?;
        Ok(Self {
            epoll,
            listener,
            connections: HashMap::new(),
            shared,
            buffer: vec![0; 64 * 1024],
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 256];
        while !self.shared.stop.load(Ordering::SeqCst) {
            // The timeout only bounds the delay of a stop.
            let ready = match self.epoll.wait(&mut events, EpollTimeout::from(50u8)) {
                Err(nix::errno::Errno::EINTR) => continue,
                ready => ready?,
            };
            for event in &events[..ready] {
                self.handle(event.data())?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, id: u64) -> io::Result<()> {
        if id == key(&self.listener) {
            return self.accept();
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        match echo(connection, &mut self.buffer) {
            Ok(interest) => {
                let mut event = event(interest, id);
                self.epoll.modify(&connection.stream, &mut event)?;
            }
            // The client has closed or reset the connection.
            Err(_) => {
                self.connections.remove(&id);
                self.shared.open.fetch_sub(1, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            // Answers leave at once, as those of an interactive server.
            stream.set_nodelay(true)?;
            self.epoll
                .add(&stream, event(EpollFlags::EPOLLIN, key(&stream)))?;
            let pending = Vec::new();
            self.connections
                .insert(key(&stream), Connection { stream, pending });
            self.shared.open.fetch_add(1, Ordering::SeqCst);
            self.shared.accepted.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Moves bytes; returns the events to wait for, or an error at the end of the connection.
fn echo(connection: &mut Connection, buffer: &mut [u8]) -> io::Result<EpollFlags> {
    loop {
        while !connection.pending.is_empty() {
            match connection.stream.write(&connection.pending) {
                Ok(len) => drop(connection.pending.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(EpollFlags::EPOLLOUT);
                }
                Err(error) => return Err(error),
            }
        }
        match connection.stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => connection.pending.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(EpollFlags::EPOLLIN);
            }
            Err(error) => return Err(error),
        }
    }
}

fn event(flags: EpollFlags, key: u64) -> EpollEvent {
    EpollEvent::new(flags, key)
}

fn key(socket: &impl std::os::fd::AsRawFd) -> u64 {
    u64::try_from(socket.as_raw_fd()).expect("descriptors are not negative")
}
