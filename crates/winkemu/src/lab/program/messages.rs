//! Small messages at fixed times, and the delay of each to the receiver.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{Delays, ProgramError, Transfer};
use crate::lab::{Node, topology::Family};

/// Time that the receiver waits after the last message was due.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages over one connection, each sent when it is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Messages {
    /// Direction of the messages.
    pub transfer: Transfer,
    /// Size of each message.
    pub bytes: usize,
    /// Interval between due times.
    pub interval: Duration,
    /// Duration of sending.
    pub duration: Duration,
    /// Initial part whose messages do not count; shorter than the duration.
    pub warmup: Duration,
    /// Delay beyond the links' one-way delay after which a message is late.
    pub within: Duration,
    /// Address family.
    pub family: Family,
    /// Port of the server.
    pub port: u16,
}

/// Delays of messages from the due time to the last byte, beyond the links' one-way delay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessagesResult {
    /// Due time of the first message; not part of files.
    #[serde(skip)]
    pub began: Instant,
    /// One-way delay of the links.
    pub one_way_s: f64,
    /// Messages that count.
    pub sent: usize,
    /// Messages of these that arrived. A lost message counts with the time that the receiver waited
    /// for it.
    pub arrived: usize,
    /// Share of `sent` that arrived on time.
    pub on_time: f64,
    /// Statistics of the delays.
    #[serde(flatten)]
    pub delays: Delays,
}

impl Messages {
    /// Sends the messages from one node to the other, over links with this delay.
    ///
    /// # Errors
    /// [`ProgramError::Socket`]: no connection.
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
            // The sender may still wait for a receiver that has given up.
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

    /// Due time of a message, since the start.
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

    /// Delays of the arrived messages, in order.
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
        let delays =
            Delays::from_seconds(&mut beyond).expect("the warm-up is shorter than the duration");
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

/// Accepts the connection. It may be minutes behind the client's if a link is down.
fn accept(listener: &TcpListener) -> Result<TcpStream, ProgramError> {
    let accepted = listener.accept();
    accepted
        .map(|(socket, _)| socket)
        .map_err(ProgramError::socket("accept a connection"))
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
        // Ten messages that do not count, then ten that do, one of them late.
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
