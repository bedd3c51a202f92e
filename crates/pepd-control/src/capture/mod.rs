//! Packets of one flow as a pcapng file: `pepd capture`. The command captures by itself, on its own
//! socket; the running pepd only reports the addresses of the flow.
//!
//! - [`filter`]: packets that the kernel delivers
//! - [`pcapng`]: file format

pub mod filter;
pub mod pcapng;

use std::{
    collections::HashMap,
    io::{self, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use filter::Endpoints;
use pcapng::Writer;
use pepd_api::flows::FlowStatus;
use pepd_sys::packet::{COOKED_LEN, PacketSocket, Seen, Statistics};

/// Maximum wait for packets between two calls of `goes_on`.
const PATIENCE: Duration = Duration::from_millis(50);
/// Maximum length of a packet: packets that the kernel has joined (GRO) have 64 KiB, and more only
/// with BIG TCP.
const PACKET_MAX: usize = 256 * 1024;
/// Receive buffer of the socket.
const BUFFER: usize = 8 << 20;
/// Maximum bytes per write.
const BATCH: usize = 1 << 20;
/// Minimum of the limit on the file: its header and a packet.
pub const FILE_MIN: u64 = 4096;

/// Error of a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The kernel denies packet sockets.
    #[error(
        "cannot capture packets: {0}; this takes CAP_NET_RAW in the network namespace of pepd: run it as root there"
    )]
    Forbidden(#[source] io::Error),
    /// The socket fails.
    #[error("cannot capture packets: {0}")]
    Socket(#[source] io::Error),
    /// The file cannot be written.
    #[error("cannot write more than {packets} packets: {source}")]
    Write {
        /// Complete packets in the file.
        packets: u64,
        /// Bytes of these packets; incomplete ones may follow.
        bytes: u64,
        /// System error.
        source: io::Error,
    },
}

/// Limits of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum duration.
    pub lasting: Duration,
    /// Maximum number of packets.
    pub packets: Option<u64>,
    /// Maximum size of the file.
    pub bytes: u64,
    /// Maximum bytes of each packet, from its IP header on.
    pub packet_bytes: u32,
}

/// Reason for the end of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The callback has returned false.
    Enough,
    /// [`Limits::lasting`] was reached.
    Time,
    /// [`Limits::packets`] was reached.
    Packets,
    /// [`Limits::bytes`] was reached.
    Bytes,
}

/// Result of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Packets written, by interface.
    pub interfaces: Vec<(String, u64)>,
    /// Bytes written.
    pub bytes: u64,
    /// Packets that the kernel dropped because the capture was too slow.
    pub dropped: u32,
    /// Reason for the end.
    pub stopped: Stopped,
}

impl Captured {
    /// Returns the number of packets written.
    pub fn packets(&self) -> u64 {
        self.interfaces.iter().map(|(_, packets)| packets).sum()
    }
}

/// Returns the local connections of a flow. Both connections of a transparent flow have the same
/// addresses, on different interfaces.
pub fn connections(flow: &FlowStatus) -> Vec<Endpoints> {
    let legs = [&flow.client_leg, &flow.server_leg].into_iter().flatten();
    let ends = legs.filter_map(|leg| {
        let address = |text: &Option<String>| text.as_ref()?.parse::<SocketAddr>().ok();
        Some(Endpoints(address(&leg.local)?, address(&leg.remote)?))
    });
    let mut ends: Vec<_> = ends.collect();
    ends.dedup();
    ends
}

/// Opens a socket for the packets of these connections on all interfaces.
///
/// # Errors
/// If the system denies it.
pub fn open(connections: &[Endpoints]) -> Result<PacketSocket, CaptureError> {
    PacketSocket::open(&filter::program(connections), BUFFER).map_err(|err| match err.kind() {
        io::ErrorKind::PermissionDenied => CaptureError::Forbidden(err),
        _ => CaptureError::Socket(err),
    })
}

/// Writes packets shortly after their arrival, until a limit is reached or `goes_on` returns false.
///
/// # Errors
/// If the socket or the file fails.
pub fn run(
    socket: &PacketSocket,
    file: &mut impl Write,
    comment: &str,
    limits: Limits,
    mut goes_on: impl FnMut() -> bool,
) -> Result<Captured, CaptureError> {
    let begin = Instant::now();
    let mut sink = Sink::new(file, comment, limits);
    sink.commit()?;
    let mut buffer = vec![0; COOKED_LEN + PACKET_MAX];
    let stopped = loop {
        if !goes_on() {
            break Stopped::Enough;
        }
        if begin.elapsed() >= limits.lasting {
            break Stopped::Time;
        }
        socket.wait(PATIENCE).map_err(CaptureError::Socket)?;
        let stopped = sink.take_all(socket, &mut buffer)?;
        sink.commit()?;
        if let Some(stopped) = stopped {
            break stopped;
        }
    };
    let Statistics { dropped } = socket.statistics().map_err(CaptureError::Socket)?;
    Ok(Captured {
        interfaces: sink.interfaces,
        bytes: sink.written,
        dropped,
        stopped,
    })
}

struct Sink<'a, W> {
    file: &'a mut W,
    /// Complete blocks not yet written.
    batch: Writer,
    limits: Limits,
    /// Interfaces in the order of their blocks.
    interfaces: Vec<(String, u64)>,
    /// Index of an interface by its number in the kernel.
    places: HashMap<usize, u32>,
    packets: u64,
    /// Bytes and packets in the file.
    written: u64,
    written_packets: u64,
}

impl<'a, W: Write> Sink<'a, W> {
    fn new(file: &'a mut W, comment: &str, limits: Limits) -> Self {
        let snaplen = limits.packet_bytes.saturating_add(COOKED_LEN as u32);
        Self {
            file,
            batch: Writer::new(comment, snaplen),
            limits,
            interfaces: Vec::new(),
            places: HashMap::new(),
            packets: 0,
            written: 0,
            written_packets: 0,
        }
    }

    /// Takes the packets that have arrived, for a bounded time, so that a flood does not block the
    /// loop.
    fn take_all(
        &mut self,
        socket: &PacketSocket,
        buffer: &mut [u8],
    ) -> Result<Option<Stopped>, CaptureError> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let packet = &mut buffer[COOKED_LEN..];
            let seen = socket.receive(packet).map_err(CaptureError::Socket)?;
            let Some(seen) = seen else { break };
            buffer[..COOKED_LEN].copy_from_slice(&seen.cooked);
            let stopped = self.take(&seen, buffer);
            if stopped.is_some() {
                return Ok(stopped);
            }
            if self.batch.blocks().len() >= BATCH {
                self.commit()?;
            }
        }
        Ok(None)
    }

    /// Takes a packet, unless a limit is reached.
    fn take(&mut self, seen: &Seen, buffer: &[u8]) -> Option<Stopped> {
        let length = COOKED_LEN + seen.length;
        let wanted = COOKED_LEN + self.limits.packet_bytes as usize;
        let kept = length.min(buffer.len()).min(wanted);
        if self.batch.length() + pcapng::packet_length(kept) > self.limits.bytes {
            return Some(Stopped::Bytes);
        }
        let place = match self.places.get(&seen.interface) {
            Some(place) => *place,
            None => {
                let name = seen.interface_name();
                let place = self.batch.interface(&name);
                self.interfaces.push((name, 0));
                self.places.insert(seen.interface, place);
                place
            }
        };
        self.batch
            .packet(place, seen.at, &buffer[..kept], length, seen.is_outgoing);
        self.interfaces[place as usize].1 += 1;
        self.packets += 1;
        let is_last = self.limits.packets == Some(self.packets);
        is_last.then_some(Stopped::Packets)
    }

    /// Writes the batch to the file.
    fn commit(&mut self) -> Result<(), CaptureError> {
        let failed = |source| CaptureError::Write {
            packets: self.written_packets,
            bytes: self.written,
            source,
        };
        self.file.write_all(self.batch.blocks()).map_err(failed)?;
        self.file.flush().map_err(failed)?;
        self.batch.clear();
        self.written = self.batch.length();
        self.written_packets = self.packets;
        Ok(())
    }
}
