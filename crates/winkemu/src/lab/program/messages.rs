//! Small messages at fixed times, and how long each takes to the receiver.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{Delays, ProgramError, Transfer};
use crate::lab::{Node, topology::Family};

/// How long after the last message was due the receiver still waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages of one connection, each sent when it is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Messages {
    /// Which end sends.
    pub transfer: Transfer,
    /// The size of each.
    pub bytes: usize,
    /// From when one is due to when the next is.
    pub interval: Duration,
    /// How long messages are sent.
    pub duration: Duration,
    /// Messages that are due in the part at the beginning do not count; shorter than the duration.
    pub warmup: Duration,
    /// A message that takes longer than the links' one-way delay and this is late.
    pub within: Duration,
    /// The address family.
    pub family: Family,
    /// The server's port.
    pub port: u16,
}

/// How long they took, from when they were due to their last bytes, beyond the links' one-way delay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessagesResult {
    /// When the first was due; not part of files.
    #[serde(skip)]
    pub began: Instant,
    /// The links' one-way delay.
    pub one_way_s: f64,
    /// Messages that count.
    pub sent: usize,
    /// Of these, the ones that have arrived. Those that have not take as long as they were waited for.
    pub arrived: usize,
    /// Share of them that were in time.
    pub on_time: f64,
    /// How long they took.
    #[serde(flatten)]
    pub delays: Delays,
}

impl Messages {
    /// Sends them from one node to the other, over links with this delay.
    ///
    /// # Errors
    /// [`ProgramError::Socket`] when there is no connection.
    pub fn run(
        &self,
        client: &Node,
        server: &Node,
        one_way: Duration,
    ) -> Result<MessagesResult, ProgramError> {
        let address = SocketAddr::new(server.ip(self.family), self.port);
        let listen = || TcpListener::bind(address);
        let listener = server.netns().enter(listen)?;
        let listener = listener.map_err(ProgramError::socket(format!("listen on {address}")))?;
        let connect = || TcpStream::connect_timeout(&address, PATIENCE + self.duration);
        let connected = client.netns().enter(connect)?;
        let connected = connected.map_err(ProgramError::socket(format!("connect to {address}")))?;
        let accepted = accept(&listener)?;
        let (sender, receiver) = match self.transfer {
            Transfer::Upload => (connected, accepted),
            Transfer::Download => (accepted, connected),
        };
        let began = Instant::now();
        let taken = thread::scope(|scope| {
            let sending = scope.spawn(|| self.send(&sender, began));
            let taken = self.receive(&receiver, began);
            // The sender may wait for a receiver that has given up.
            let _ = sender.shutdown(std::net::Shutdown::Both);
            let _ = sending.join();
            taken
        });
        taken
            .map(|taken| self.result(began, one_way, &taken))
            .map_err(ProgramError::socket("receive messages"))
    }

    fn count(&self) -> usize {
        let count = self.duration.as_nanos() / self.interval.as_nanos();
        usize::try_from(count).expect("checked when the scenario was read")
    }

    /// When a message is due, since the beginning.
    fn due(&self, number: usize) -> Duration {
        let number = u32::try_from(number).expect("checked when the scenario was read");
        self.interval * number
    }

    fn send(&self, mut socket: &TcpStream, began: Instant) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let mut message = vec![0x5a; self.bytes];
        for number in 0..self.count() {
            thread::sleep((began + self.due(number)).saturating_duration_since(Instant::now()));
            message[..8].copy_from_slice(&(number as u64).to_be_bytes());
            socket.write_all(&message)?;
        }
        Ok(())
    }

    /// How long each message took that arrived, in their order.
    fn receive(&self, mut socket: &TcpStream, began: Instant) -> io::Result<Vec<Duration>> {
        let end = began + self.duration + PATIENCE;
        let mut message = vec![0; self.bytes];
        let mut taken = Vec::with_capacity(self.count());
        while taken.len() < self.count() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            match socket.read_exact(&mut message) {
                Ok(()) => taken.push(began.elapsed().saturating_sub(self.due(taken.len()))),
                Err(err) if is_timeout(&err) => break,
                Err(err) => return Err(err),
            }
        }
        Ok(taken)
    }

    fn result(&self, began: Instant, one_way: Duration, taken: &[Duration]) -> MessagesResult {
        let missing = |number| self.duration + PATIENCE - self.due(number);
        let took = |number: usize| {
            taken
                .get(number)
                .copied()
                .unwrap_or_else(|| missing(number))
        };
        let counting = (0..self.count()).filter(|number| self.due(*number) >= self.warmup);
        let numbers: Vec<_> = counting.collect();
        let mut beyond: Vec<_> = numbers
            .iter()
            .map(|number| took(*number).as_secs_f64() - one_way.as_secs_f64())
            .collect();
        let delays = Delays::of(&mut beyond).expect("the warm-up is shorter than the duration");
        let in_time = beyond.partition_point(|seconds| *seconds <= self.within.as_secs_f64());
        let sent = beyond.len();
        MessagesResult {
            began,
            one_way_s: one_way.as_secs_f64(),
            sent,
            arrived: numbers
                .iter()
                .filter(|number| **number < taken.len())
                .count(),
            on_time: in_time as f64 / sent as f64,
            delays,
        }
    }
}

/// The one connection; it may be minutes behind the client's, where a link is down.
fn accept(listener: &TcpListener) -> Result<TcpStream, ProgramError> {
    let accepted = listener.accept();
    accepted
        .map(|(socket, _)| socket)
        .map_err(ProgramError::socket("accept the connection"))
}

fn is_timeout(err: &io::Error) -> bool {
    matches!(
        err.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn messages() -> Messages {
        Messages {
            transfer: Transfer::Upload,
            bytes: 200,
            interval: 50 * MS,
            duration: 1000 * MS,
            warmup: 500 * MS,
            within: 60 * MS,
            family: Family::Ipv4,
            port: 9000,
        }
    }

    #[test]
    fn what_counts_is_the_time_beyond_one_way_of_messages_after_the_warm_up() {
        // Ten that do not count, then ten that do, one of them late.
        let mut taken = vec![900 * MS; 10];
        taken.extend([301 * MS; 9]);
        taken.push(400 * MS);
        let result = messages().result(Instant::now(), 300 * MS, &taken);
        assert_eq!((result.sent, result.arrived), (10, 10));
        assert!((result.on_time - 0.9).abs() < 1e-9, "{result:?}");
        assert!((result.delays.p50_s - 0.001).abs() < 1e-9, "{result:?}");
        assert!((result.delays.p95_s - 0.1).abs() < 1e-9, "{result:?}");
    }

    #[test]
    fn what_has_not_arrived_is_late() {
        let result = messages().result(Instant::now(), 300 * MS, &[301 * MS; 19]);
        assert_eq!((result.sent, result.arrived), (10, 9));
        assert!(
            result.delays.max_s > 9.0 && result.on_time < 0.95,
            "{result:?}"
        );
        let nothing = messages().result(Instant::now(), 300 * MS, &[]);
        assert_eq!((nothing.arrived, nothing.on_time), (0, 0.0));
    }
}
