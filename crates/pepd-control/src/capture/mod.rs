//! The packets of one flow, as a file in the form of pcapng: `pepd capture`. The command does it by itself, with a socket of its
//! own; the pepd that runs only says which addresses the flow has.
//!
//! - [`filter`], which packets the kernel hands over
//! - [`pcapng`], what is written

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

/// How long to wait for packets before it is asked again whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);
/// The longest packet: those that the kernel has joined (GRO) have 64 KiB, and more only with BIG TCP.
const PACKET_MAX: usize = 256 * 1024;
/// What the kernel may keep for us.
const BUFFER: usize = 8 << 20;
/// So much is written at a time at most.
const BATCH: usize = 1 << 20;
/// A file that may be shorter has no room for what it begins with and a packet.
pub const FILE_MIN: u64 = 4096;

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The kernel does not let us.
    #[error(
        "cannot see packets: {0}; this takes CAP_NET_RAW, in the network namespace of pepd: run it as root there"
    )]
    Forbidden(#[source] io::Error),
    /// Something else is wrong with the socket.
    #[error("cannot see packets: {0}")]
    Socket(#[source] io::Error),
    /// The file cannot be written any more.
    #[error("cannot write more than {packets} packets: {source}")]
    Write {
        /// Those that are in the file,
        packets: u64,
        /// in its first bytes. What comes after them is a part of others.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
}

/// When enough is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// After this time.
    pub lasting: Duration,
    /// With so many packets.
    pub packets: Option<u64>,
    /// Before the file is longer.
    pub bytes: u64,
    /// Bytes of each packet that are written, from its IP header on.
    pub packet_bytes: u32,
}

/// Why it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Whoever was asked wants no more.
    Enough,
    /// [`Limits::lasting`].
    Time,
    /// [`Limits::packets`].
    Packets,
    /// [`Limits::bytes`].
    Bytes,
}

/// What has come of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Packets that were written, by interface.
    pub interfaces: Vec<(String, u64)>,
    /// Bytes that were written.
    pub bytes: u64,
    /// Packets that the kernel has dropped, as we were too slow.
    pub dropped: u32,
    /// Why it has ended.
    pub stopped: Stopped,
}

impl Captured {
    /// Packets that were written.
    pub fn packets(&self) -> u64 {
        self.interfaces.iter().map(|(_, packets)| packets).sum()
    }
}

/// The connections of a flow that are here. Those of a transparent flow have the same addresses, by different interfaces.
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

/// Sees the packets of these connections, of all interfaces.
///
/// # Errors
/// When the system does not let us.
pub fn open(connections: &[Endpoints]) -> Result<PacketSocket, CaptureError> {
    PacketSocket::open(&filter::program(connections), BUFFER).map_err(|err| match err.kind() {
        io::ErrorKind::PermissionDenied => CaptureError::Forbidden(err),
        _ => CaptureError::Socket(err),
    })
}

/// Writes what comes, a moment after it has come, until a limit is reached or `goes_on` says no.
///
/// # Errors
/// When the socket or the file fails.
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
    /// What is to be written next, in whole blocks.
    batch: Writer,
    limits: Limits,
    /// In the order of their blocks.
    interfaces: Vec<(String, u64)>,
    /// Which of these has that number in the kernel.
    places: HashMap<usize, u32>,
    packets: u64,
    /// Bytes and packets that are in the file.
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

    /// What there is now, but not for long: a flood is not to keep us from what else there is.
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

    /// A packet, unless a limit is in the way.
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

    /// Writes what has been taken.
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
