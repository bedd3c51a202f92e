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

/// Between two datagrams, where a test waits for something by sending.
const SPACING: Duration = Duration::from_millis(5);

/// A socket of a machine, which does not wait for datagrams.
fn socket(host: &Host, address: SocketAddr) -> UdpSocket {
    // An earlier one may be open for a moment yet, in a process that another test is about to start.
    let socket = wait_for("an address of this machine", || {
        host.enter(|| UdpSocket::bind(address)).ok()
    });
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// What the client has sent, and what has come to the server.
pub struct Stream {
    pub client: UdpSocket,
    pub server: UdpSocket,
    to: SocketAddr,
    sent: Vec<Instant>,
    /// When each came for the first time.
    came: BTreeMap<usize, Instant>,
    /// Datagrams that came again, or were not what was sent.
    pub wrong: usize,
}

impl Stream {
    /// To that port of the server's.
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

    /// Sends one of so many bytes, 8 at least; its number.
    pub fn send(&mut self, len: usize) -> usize {
        let number = self.sent.len();
        self.sent.push(Instant::now());
        // What the kernel refuses (a host that cannot be reached for a moment, a packet that is too long for the path) is lost.
        let _ = self.client.send_to(&Self::content(number, len), self.to);
        number
    }

    /// Takes what has come.
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

    /// How many of these have not come.
    pub fn missing(&self, numbers: Range<usize>) -> usize {
        numbers.len() - self.came.range(numbers).count()
    }

    /// The longest that one has taken.
    pub fn slowest(&self) -> Duration {
        let took = self.came.iter();
        let took = took.map(|(number, came)| came.duration_since(self.sent[*number]));
        took.max().unwrap_or_default()
    }

    /// Sends one after the other, so many.
    pub fn run(&mut self, count: usize, len: usize, spacing: Duration) {
        for _ in 0..count {
            self.send(len);
            thread::sleep(spacing);
            self.take();
        }
    }

    /// Sends datagrams of these lengths without a pause; their numbers.
    pub fn burst(&mut self, lengths: impl Iterator<Item = usize>) -> Range<usize> {
        let first = self.sent.len();
        lengths.for_each(|len| {
            self.send(len);
        });
        first..self.sent.len()
    }

    /// Whether what has come of these has come in its order.
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

    /// Sends until one of those that are sent from now on comes.
    pub fn until_one_comes(&mut self, what: &str, len: usize) -> usize {
        let from = self.sent.len();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.run(1, len, SPACING);
            if let Some((number, _)) = self.came.range(from..).next() {
                return *number;
            }
            assert!(Instant::now() < deadline, "{what}: none comes");
        }
    }
}
