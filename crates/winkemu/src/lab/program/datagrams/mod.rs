//! Constant flow of datagrams, and the fate of each.

mod content;
mod socket;
mod tally;

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

pub(in crate::lab) use content::BYTES_MIN;
use content::Content;
pub use socket::Carrier;
use socket::{ESP_HEADER, End};
pub use tally::DatagramsResult;
use tally::Tally;

use super::{ProgramError, Transfer};
use crate::lab::{Node, topology::Family};

/// Time that the receiver waits after the last datagram; retransmissions of a tunnel peer arrive
/// within a few round trips.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time that a call blocks before the next look at the clock.
const TICK: Duration = Duration::from_millis(200);

/// Datagrams of one size at a fixed interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Datagrams {
    /// Direction of the flow.
    pub transfer: Transfer,
    /// Carrier protocol.
    pub carrier: Carrier,
    /// Payload of each datagram.
    pub bytes: usize,
    /// Interval between datagrams.
    pub interval: Duration,
    /// Duration of sending.
    pub duration: Duration,
    /// Initial part whose datagrams do not count; shorter than the duration.
    pub warmup: Duration,
    /// Delay beyond the links' one-way delay after which a datagram is late.
    pub within: Duration,
    /// DiffServ code point of the packets.
    pub dscp: Option<u8>,
    /// Address family.
    pub family: Family,
    /// Port of the server; with ESP the security parameters index.
    pub port: u16,
}

impl Datagrams {
    /// Sends the datagrams from one node to the other, over links with this delay.
    ///
    /// # Errors
    /// [`ProgramError::Socket`]: no socket; raw sockets need CAP_NET_RAW.
    pub fn run(
        &self,
        client: &Node,
        server: &Node,
        one_way: Duration,
    ) -> Result<DatagramsResult, ProgramError> {
        let bind = |node: &Node, port| {
            let address = SocketAddr::new(node.ip(self.family), port);
            let bind = || End::bind(self.carrier, address, self.port);
            let end = node.netns().enter(bind)?;
            end.map_err(ProgramError::socket(format!("bind to {address}")))
        };
        let (calling, called) = (bind(client, 0)?, bind(server, self.port)?);
        let (sender, receiver) = match self.transfer {
            Transfer::Upload => (calling, called),
            Transfer::Download => (called, calling),
        };
        self.mark(&sender)
            .map_err(ProgramError::socket("set the traffic class"))?;
        let to = receiver
            .address()
            .map_err(ProgramError::socket("read an address"))?;
        let began = Instant::now();
        let (over, mut tally) = (AtomicBool::new(false), Tally::new(self, one_way));
        let refused = thread::scope(|scope| {
            let sending = scope.spawn(|| self.send(&sender, to, began, &over));
            let received = self.receive(&receiver, began, &mut tally);
            // Stop the sender once the receiver has given up.
            over.store(true, Ordering::Relaxed);
            let refused = sending.join();
            let refused = refused.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            received.map(|()| refused)
        });
        let refused = refused.map_err(ProgramError::socket("receive datagrams"))?;
        Ok(tally.result(began, refused))
    }

    /// Bytes of the IP header and of the UDP or ESP header before the payload.
    pub(super) fn header_bytes(&self) -> usize {
        // The UDP header is as long as the ESP header.
        ESP_HEADER
            + match self.family {
                Family::Ipv4 => 20,
                Family::Ipv6 => 40,
            }
    }

    fn count(&self) -> u64 {
        let count = self.duration.as_nanos() / self.interval.as_nanos();
        u64::try_from(count).expect("checked when the scenario was read")
    }

    /// Due time of a datagram, since the start.
    fn due(&self, number: u64) -> Duration {
        let number = u32::try_from(number).expect("checked when the scenario was read");
        self.interval * number
    }

    fn mark(&self, sender: &End) -> io::Result<()> {
        match self.dscp {
            Some(dscp) => sender.mark(dscp, self.family == Family::Ipv6),
            None => Ok(()),
        }
    }

    /// Sends all datagrams, and returns the number that the kernel refused.
    fn send(&self, sender: &End, to: SocketAddr, began: Instant, over: &AtomicBool) -> u64 {
        let header = sender.header_len();
        let mut buffer = vec![0; header + self.bytes];
        let mut refused = 0;
        for number in 0..self.count() {
            let due = began + self.due(number);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if over.load(Ordering::Relaxed) {
                break;
            }
            let sent = began.elapsed();
            Content { number, sent }.emit(&mut buffer[header..]);
            refused += u64::from(sender.send(&mut buffer, number, to).is_err());
        }
        refused
    }

    /// Receives until all datagrams have arrived with none behind them, or until the deadline.
    fn receive(&self, receiver: &End, began: Instant, tally: &mut Tally<'_>) -> io::Result<()> {
        let end = began + self.duration + PATIENCE;
        while Instant::now() < end {
            let came = receiver.receive(TICK, |payload| tally.note(payload, began.elapsed()))?;
            if !came && tally.is_complete() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
