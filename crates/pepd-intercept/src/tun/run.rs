//! Runs: datagrams of a flow that the kernel takes as one packet through its rules and routes, and
//! splits where they leave.
//!
//! They use UDP segmentation offload (`UDP_SEGMENT` in udp(7), `VIRTIO_NET_HDR_GSO_UDP_L4` in
//! `linux/virtio_net.h`). The kernel repeats one header with corrected lengths, checksums and IPv4
//! identification. So a run holds only datagrams that the kernel restores unchanged. One field may
//! differ: the identification of IPv4 packets that must not be fragmented, which has no meaning
//! (RFC 6864 section 4.1).

use std::{io::IoSlice, os::fd::AsFd};

use boosters::{
    checksum,
    ip::{Ip, protocol},
};
use nix::{errno::Errno, sys::uio::writev};

/// Length of a `virtio_net_hdr`.
pub(super) const HEADER: usize = 10;
/// Maximum number of datagrams that the kernel takes at once (`UDP_MAX_SEGMENTS` before Linux
/// 6.11).
const RUN_MAX: usize = 64;
/// Maximum length of a packet, with headers.
const LENGTH_MAX: usize = 65_535;
/// Length of UDP's header, and offsets of its length and checksum.
const UDP: usize = 8;
const UDP_LENGTH: usize = 4;
const UDP_CHECKSUM: usize = 6;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const GSO_UDP: u8 = 5;

/// A packet, and its parse result if it may be part of a run.
#[derive(Debug)]
pub struct Single {
    packet: Vec<u8>,
    datagram: Option<Datagram>,
}

impl Single {
    /// Returns the ports of a datagram that may be part of a run.
    #[must_use]
    pub fn ports(&self) -> Option<[u8; 4]> {
        let ports = self.packet.get(self.datagram?.ip..)?;
        ports.first_chunk().copied()
    }
}

impl From<Vec<u8>> for Single {
    fn from(packet: Vec<u8>) -> Self {
        Self {
            datagram: Datagram::parse(&packet),
            packet,
        }
    }
}

/// Packets in order: one of any kind, or datagrams of a flow that differ in their payload only. The
/// last may be shorter if it is the third or a later one.
#[derive(Debug)]
pub struct Run {
    packets: Vec<Vec<u8>>,
    /// Parse result of the first, if others may follow it.
    datagram: Option<Datagram>,
    /// Length of all, with the headers of the first.
    length: usize,
    /// True if the last is shorter: no other may follow.
    ends: bool,
}

/// A datagram that may be part of a run.
#[derive(Debug, Clone, Copy)]
struct Datagram {
    version: u8,
    /// Offset of UDP's header.
    ip: usize,
    /// Length of the payload.
    payload: usize,
    /// Checksum of the pseudo header.
    pseudo: u64,
}

impl Run {
    /// Returns a run that begins with this packet.
    #[must_use]
    pub fn new(first: impl Into<Single>) -> Self {
        let Single { packet, datagram } = first.into();
        Self {
            datagram,
            length: packet.len(),
            packets: vec![packet],
            ends: false,
        }
    }

    /// Returns the packets.
    #[must_use]
    pub fn packets(&self) -> &[Vec<u8>] {
        &self.packets
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Returns the packet if it does not continue the run.
    pub fn push(&mut self, next: impl Into<Single>) -> Result<(), Single> {
        let next = next.into();
        let Some(payload) = self.continued_by(&next) else {
            return Err(next);
        };
        self.ends = self.datagram.is_some_and(|first| payload < first.payload);
        self.length += payload;
        self.packets.push(next.packet);
        Ok(())
    }

    /// Returns the payload length of this packet, if it continues the run.
    fn continued_by(&self, Single { packet, datagram }: &Single) -> Option<usize> {
        let (first, next) = (self.datagram?, (*datagram)?);
        let headers = packet.get(..first.ip + UDP)?;
        let (of_first, number) = (&self.packets[0], self.packets.len());
        if self.ends || number == RUN_MAX || !first.is_alike(of_first, headers, number) {
            return None;
        }
        // The first of different datagrams may be a probe for a larger MTU (RFC 8899); the
        // following ones must not share its fate.
        let is_alike =
            next.payload == first.payload || (next.payload < first.payload && number > 1);
        let fits = is_alike && self.length + next.payload <= LENGTH_MAX;
        fits.then_some(next.payload)
    }

    /// Writes all packets to the kernel as one.
    ///
    /// # Errors
    /// Those of writing: `EINVAL` if the kernel does not support such packets, as before Linux 6.2.
    ///
    /// # Panics
    /// When the run has fewer than two packets.
    pub(super) fn write(&self, device: impl AsFd) -> Result<(), Errno> {
        let first = self
            .datagram
            .expect("a run of several packets holds datagrams");
        let headers = first.headers(&self.packets[0], self.length);
        let mut parts = [IoSlice::new(&[]); 1 + RUN_MAX];
        parts[0] = IoSlice::new(&headers);
        for (part, packet) in parts[1..].iter_mut().zip(&self.packets) {
            *part = IoSlice::new(&packet[first.ip + UDP..]);
        }
        writev(device, &parts[..=self.packets.len()]).map(drop)
    }
}

impl Datagram {
    /// Parses a packet that the kernel's copy of its headers would restore: without options and
    /// extensions, whole, and with a correct checksum.
    fn parse(packet: &[u8]) -> Option<Self> {
        let ip = Ip::parse(packet)?;
        let plain = if ip.version == 4 { 20 } else { 40 };
        if ip.protocol != protocol::UDP
            || ip.fragment
            || (ip.header, ip.bytes.len()) != (plain, packet.len())
            || (ip.version == 6 && packet[4..6] != ((packet.len() - plain) as u16).to_be_bytes())
        {
            return None;
        }
        let payload = ip.payload().len().checked_sub(UDP).filter(|of| *of > 0)?;
        let field = |at| u16::from_be_bytes([ip.payload()[at], ip.payload()[at + 1]]);
        let is_whole = usize::from(field(UDP_LENGTH)) == UDP + payload;
        let has_checksum = field(UDP_CHECKSUM) != 0;
        let is_right = is_whole
            && has_checksum
            && checksum::is_transport_valid(&ip, ip.payload())
            && (ip.version == 6 || checksum::is_valid(&packet[..plain]));
        is_right.then_some(Self {
            version: ip.version,
            ip: plain,
            payload,
            pseudo: checksum::pseudo(&ip, 0),
        })
    }

    /// Returns true if the headers of the packet at position `number` after the first equal those
    /// that the kernel derives from the first.
    fn is_alike(self, first: &[u8], headers: &[u8], number: usize) -> bool {
        let same = |from: usize, to: usize| first[from..to] == headers[from..to];
        let ports = same(self.ip, self.ip + UDP_LENGTH);
        if self.version == 6 {
            return ports && same(0, 4) && same(6, 40);
        }
        let id = |packet: &[u8]| u16::from_be_bytes([packet[4], packet[5]]);
        let is_atomic = first[6] & 0x40 != 0;
        let counts = id(headers) == id(first).wrapping_add(number as u16);
        ports && same(0, 2) && (is_atomic || counts) && same(6, 10) && same(12, 20)
    }

    /// Returns the bytes before the payloads: virtio's header, and the headers of the first packet
    /// with the total length.
    fn headers(self, first: &[u8], length: usize) -> Vec<u8> {
        let (ip, transport) = (self.ip, length - self.ip);
        let mut out = Vec::with_capacity(HEADER + ip + UDP);
        out.extend([NEEDS_CHECKSUM, GSO_UDP]);
        for field in [ip + UDP, self.payload, ip, UDP_CHECKSUM] {
            out.extend((field as u16).to_ne_bytes());
        }
        out.extend(&first[..ip + UDP]);
        let packet = &mut out[HEADER..];
        let mut put = |at: usize, value: u16| {
            packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        if self.version == 6 {
            put(4, transport as u16);
        } else {
            put(2, length as u16);
        }
        put(ip + UDP_LENGTH, transport as u16);
        // Of the addresses only: the kernel adds the rest.
        let sum = checksum::fold(self.pseudo + transport as u64);
        put(ip + UDP_CHECKSUM, !sum);
        if self.version == 4 {
            let [old, new] = [first.len(), length].map(|length| length as u16);
            checksum::replace_u16(packet, 10, old, new);
        }
        out
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
