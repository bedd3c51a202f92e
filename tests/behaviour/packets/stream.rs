//! Numbered datagrams from a client to a server.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use pepd_tests::{
    bed::Family,
    host::Host,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_for, wait_until},
};

/// The interval between datagrams, where a test waits for something by sending.
const SPACING: Duration = Duration::from_millis(5);

/// Returns a non-blocking socket of a machine.
fn socket(host: &Host, address: SocketAddr) -> UdpSocket {
    // An earlier socket may still be open for a moment, inherited by a process that another test is
    // starting.
    let socket = wait_for("an address of this machine", || {
        host.enter(|| UdpSocket::bind(address)).ok()
    });
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Datagrams sent by the client, and received by the server.
pub struct Stream {
    pub client: UdpSocket,
    pub server: UdpSocket,
    to: SocketAddr,
    sent: Vec<Instant>,
    /// First arrival time of each datagram.
    came: BTreeMap<usize, Instant>,
    /// Duplicates, and datagrams with wrong content.
    pub wrong: usize,
}

impl Stream {
    /// Opens a stream to that port of the server.
    pub fn new(bed: &TunnelBed, family: Family, port: u16) -> Self {
        let client = SocketAddr::new(bed.address("client", family), 0);
        let to = bed.server_at(family, port);
        Self {
            client: socket(&bed.host("client"), client),
            server: socket(&bed.host("server"), to),
            to,
            sent: Vec::new(),
            came: BTreeMap::new(),
            wrong: 0,
        }
    }

    fn content(number: usize, len: usize) -> Vec<u8> {
        let mut bytes = (number as u64).to_be_bytes().to_vec();
        bytes.extend((8..len).map(|at| (number + at) as u8));
        bytes
    }

    /// Sends a datagram of `len` bytes, 8 or more; returns its number.
    pub fn send(&mut self, len: usize) -> usize {
        let number = self.sent.len();
        self.sent.push(Instant::now());
        // Datagrams that the kernel refuses count as lost (a host that is unreachable for a moment,
        // a packet that is too long for the path).
        let _ = self.client.send_to(&Self::content(number, len), self.to);
        number
    }

    /// Receives all datagrams that have arrived.
    pub fn take(&mut self) {
        let mut buffer = vec![0; 65_536];
        loop {
            match self.server.recv_from(&mut buffer) {
                Ok((len, _)) => self.on_datagram(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("cannot receive: {error}"),
            }
        }
    }

    fn on_datagram(&mut self, bytes: &[u8]) {
        let number = bytes.first_chunk().copied().map(u64::from_be_bytes);
        let number = number.and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| Self::content(*number, bytes.len()) == bytes);
        match number.filter(|number| *number < self.sent.len()) {
            Some(number) if !self.came.contains_key(&number) => {
                self.came.insert(number, Instant::now());
            }
            _ => self.wrong += 1,
        }
    }

    /// Returns how many of these are missing.
    pub fn missing(&self, numbers: Range<usize>) -> usize {
        numbers.len() - self.came.range(numbers).count()
    }

    /// Returns the maximum delay.
    pub fn slowest(&self) -> Duration {
        let took = self.came.iter();
        let took = took.map(|(number, came)| came.duration_since(self.sent[*number]));
        took.max().unwrap_or_default()
    }

    /// Sends `count` datagrams at an interval; returns their numbers.
    pub fn run(&mut self, count: usize, len: usize, spacing: Duration) -> Range<usize> {
        let first = self.sent.len();
        for _ in 0..count {
            self.send(len);
            thread::sleep(spacing);
            self.take();
        }
        first..self.sent.len()
    }

    /// Sends datagrams of these lengths without a pause; returns their numbers.
    pub fn burst(&mut self, lengths: impl Iterator<Item = usize>) -> Range<usize> {
        let first = self.sent.len();
        lengths.for_each(|len| {
            self.send(len);
        });
        first..self.sent.len()
    }

    /// Returns whether these arrived in order, apart from missing ones.
    pub fn is_in_order(&self, numbers: Range<usize>) -> bool {
        let came = self.came.range(numbers);
        came.map(|(_, at)| at).is_sorted()
    }

    /// Sends until the condition holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        wait_until(what, || {
            self.run(10, 100, SPACING);
            holds()
        });
    }

    /// Sends until one of the new datagrams arrives.
    pub fn until_one_comes(&mut self, what: &str, len: usize) -> usize {
        let from = self.sent.len();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.run(1, len, SPACING);
            if let Some((number, _)) = self.came.range(from..).next() {
                return *number;
            }
            assert!(Instant::now() < deadline, "{what}: no datagram arrives");
        }
    }
}
