//! Datagrams of a flow that go to the kernel as one, which takes them through its rules and routes at once and parts them again where they leave it.
//!
//! That is UDP's segmentation offload (`UDP_SEGMENT` in udp(7), `VIRTIO_NET_HDR_GSO_UDP_L4` in `linux/virtio_net.h`): one header, which the
//! kernel repeats with lengths, checksums and IPv4 identification put right. So only what it makes of them again as it was is put together. The
//! one thing that may differ is the identification of IPv4 packets that must not be fragmented, which means nothing (RFC 6864 §4.1).

use std::{io::IoSlice, os::fd::AsFd};

use boosters::{
    checksum,
    ip::{Ip, protocol},
};
use nix::{errno::Errno, sys::uio::writev};

/// How long a `virtio_net_hdr` is.
pub(super) const HEADER: usize = 10;
/// As many datagrams as the kernel takes from a socket (`UDP_MAX_SEGMENTS` before Linux 6.11).
const RUN_MAX: usize = 64;
/// How long a packet may be, with headers.
const LENGTH_MAX: usize = 65_535;
/// How long UDP's header is, and where in it its length and its checksum are.
const UDP: usize = 8;
const UDP_LENGTH: usize = 4;
const UDP_CHECKSUM: usize = 6;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const GSO_UDP: u8 = 5;

/// A packet, and what it is if others of its flow may go with it.
#[derive(Debug)]
pub struct Single {
    packet: Vec<u8>,
    datagram: Option<Datagram>,
}

impl Single {
    /// Between which ports a datagram goes that others may go with.
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

/// Packets in their order: one of any kind, or datagrams of a flow that differ in what they carry only, and of which the last may be shorter if it is
/// the third or a later one.
#[derive(Debug)]
pub struct Run {
    packets: Vec<Vec<u8>>,
    /// What the first is, if others may follow it.
    datagram: Option<Datagram>,
    /// Together, with the headers of the first.
    length: usize,
    /// The last is shorter: it stays the last.
    ends: bool,
}

/// A datagram that can be one of several.
#[derive(Debug, Clone, Copy)]
struct Datagram {
    version: u8,
    /// Where UDP's header begins.
    ip: usize,
    /// How much it carries.
    payload: usize,
    /// The sum of its addresses and its protocol.
    pseudo: u64,
}

impl Run {
    /// One that begins with this packet.
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

    /// The packets.
    #[must_use]
    pub fn packets(&self) -> &[Vec<u8>] {
        &self.packets
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// With the packet, if it does not continue the run.
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

    /// How much this packet carries, if it continues the run.
    fn continued_by(&self, Single { packet, datagram }: &Single) -> Option<usize> {
        let (first, next) = (self.datagram?, (*datagram)?);
        let headers = packet.get(..first.ip + UDP)?;
        let (of_first, number) = (&self.packets[0], self.packets.len());
        if self.ends || number == RUN_MAX || !first.is_alike(of_first, headers, number) {
            return None;
        }
        // The first of different ones may be a probe for a longer path (RFC 8899), and then what follows must not share its fate.
        let is_alike =
            next.payload == first.payload || (next.payload < first.payload && number > 1);
        let fits = is_alike && self.length + next.payload <= LENGTH_MAX;
        fits.then_some(next.payload)
    }

    /// Gives the kernel all of it as one packet.
    ///
    /// # Errors
    /// Those of writing: `EINVAL` where the kernel knows no such packets, as one before Linux 6.2.
    ///
    /// # Panics
    /// When there are not several packets.
    pub(super) fn write(&self, device: impl AsFd) -> Result<(), Errno> {
        let first = self.datagram.expect("several are datagrams");
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
    /// What a packet is, if the kernel's copy of its headers would be the same: without options and extensions, whole, and with a checksum, which is right.
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

    /// Whether the headers of the packet that is `number` behind the first are what the kernel makes of the first one's.
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

    /// What stands before the payloads: virtio's header, and those of the first packet with the length of all.
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
