//! Splitting: the kernel delivers segments of a connection, or datagrams of a flow, as one packet
//! with one header (`linux/virtio_net.h`), and leaves checksums to pepd.

use boosters::{
    checksum,
    ip::{Ip, protocol},
};

use super::run::HEADER;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum covers the pseudo header only.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE` and others: the kinds of packets that stand for several.
const WHOLE: u8 = 0;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: a flag of the kind.
const ECN: u8 = 0x80;

/// TCP flags of the last segment only, and of the first only (RFC 3168 §6.1.2).
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Content of a `virtio_net_hdr`. Its header length is a hint that nothing here depends on.
#[derive(Debug, Clone, Copy)]
struct Given {
    needs_checksum: bool,
    kind: u8,
    /// Bytes of payload of each packet but the last.
    segment: usize,
    /// Offset of the bytes that the checksum covers, and of the checksum from there.
    start: usize,
    offset: usize,
}

impl Given {
    fn parse(header: [u8; HEADER]) -> Self {
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]).into();
        Self {
            needs_checksum: header[0] & NEEDS_CHECKSUM != 0,
            kind: header[1] & !ECN,
            segment: field(4),
            start: field(6),
            offset: field(8),
        }
    }
}

/// Calls `each` with the packets that a packet of the kernel stands for, in order. Returns their
/// number: 0 if the packet is malformed, or the kernel should not have delivered it.
///
/// The packets are made in place: the headers of one overwrite the end of the one before.
pub(super) fn split(
    header: [u8; HEADER],
    packet: &mut [u8],
    mut each: impl FnMut(&mut [u8]),
) -> usize {
    let given = Given::parse(header);
    if given.kind == WHOLE {
        let is_right = !given.needs_checksum || complete(packet, given.start, given.offset);
        if is_right {
            each(packet);
        }
        return is_right.into();
    }
    let Some(plan) = Plan::new(given, packet) else {
        return 0;
    };
    let (headers, payload) = (plan.headers.len(), packet.len() - plan.headers.len());
    let count = payload.div_ceil(given.segment);
    for number in 0..count {
        let begin = number * given.segment;
        let end = headers + payload.min(begin + given.segment);
        let part = &mut packet[begin..end];
        plan.write_headers(number, number + 1 == count, part);
        each(part);
    }
    count
}

/// Completes the checksum of a packet. Returns false if it is outside.
fn complete(packet: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(covered) = packet.get_mut(start..) else {
        return false;
    };
    let sum = checksum::sum(covered);
    let Some(field) = covered.get_mut(offset..offset + 2) else {
        return false;
    };
    field.copy_from_slice(&never_zero(checksum::fold(sum)).to_be_bytes());
    true
}

/// Returns an equal checksum, as 0 means none in UDP.
fn never_zero(checksum: u16) -> u16 {
    match checksum {
        0 => 0xffff,
        other => other,
    }
}

/// Headers of the packets that one stands for.
#[derive(Debug)]
struct Plan {
    /// Headers of the whole.
    headers: Vec<u8>,
    version: u8,
    is_tcp: bool,
    /// Offset of the transport header.
    transport: usize,
    /// Sum of the pseudo header without the length; `None` for datagrams without a checksum.
    pseudo: Option<u64>,
    segment: usize,
}

impl Plan {
    /// Returns the plan for a packet; `None` if it is not of its kind, or malformed.
    fn new(given: Given, packet: &[u8]) -> Option<Self> {
        let ip = Ip::parse(packet)?;
        let is_tcp = match (given.kind, ip.version, ip.protocol) {
            (TCP4, 4, protocol::TCP) | (TCP6, 6, protocol::TCP) => true,
            (UDP, _, protocol::UDP) => false,
            _ => return None,
        };
        let (transport, segment) = (ip.header, given.segment);
        let [of_udp, of_tcp] = [6, 16];
        let offset = if is_tcp { of_tcp } else { of_udp };
        let length = match is_tcp {
            true => usize::from(ip.payload().get(12)? >> 4) * 4,
            false => 8,
        };
        let is_whole = !ip.fragment && ip.bytes.len() == packet.len();
        let has_payload = segment > 0 && packet.len() > transport + length;
        let is_header = length >= if is_tcp { 20 } else { 8 };
        let is_checksum =
            !given.needs_checksum || (given.start, given.offset) == (transport, offset);
        if !(is_whole && has_payload && is_header && is_checksum) {
            return None;
        }
        let field = &packet[transport + offset..][..2];
        let field = u16::from_be_bytes([field[0], field[1]]);
        let pseudo = match given.needs_checksum {
            // The kernel has summed it, with the length of the whole.
            true => {
                let length = (packet.len() - transport) as u16;
                Some(u64::from(field) + u64::from(!length))
            }
            false if field == 0 && !is_tcp => None,
            false => Some(checksum::pseudo(&ip, 0)),
        };
        Some(Self {
            headers: packet[..transport + length].to_vec(),
            version: ip.version,
            is_tcp,
            transport,
            pseudo,
            segment,
        })
    }

    /// Writes the headers of a packet, whose payload is in place.
    fn write_headers(&self, number: usize, is_last: bool, part: &mut [u8]) {
        part[..self.headers.len()].copy_from_slice(&self.headers);
        let (length, transport) = (part.len(), self.transport);
        let put = |part: &mut [u8], at: usize, value: u16| {
            part[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        if self.version == 6 {
            put(part, 4, (length - 40) as u16);
        } else {
            let id = u16::from_be_bytes([part[4], part[5]]);
            put(part, 2, length as u16);
            put(part, 4, id.wrapping_add(number as u16));
            put(part, 10, 0);
            let sum = checksum::fold(checksum::sum(&part[..transport]));
            put(part, 10, sum);
        }
        let part = &mut part[transport..];
        let at = if self.is_tcp {
            let before = (number * self.segment) as u32;
            let seq = u32::from_be_bytes([part[4], part[5], part[6], part[7]]);
            part[4..8].copy_from_slice(&seq.wrapping_add(before).to_be_bytes());
            let not_first = if number > 0 { CWR } else { 0 };
            let not_last = if is_last { 0 } else { FIN_PSH };
            part[13] &= !(not_first | not_last);
            16
        } else {
            put(part, 4, (length - transport) as u16);
            6
        };
        if let Some(pseudo) = self.pseudo {
            put(part, at, 0);
            let sum = pseudo + part.len() as u64 + checksum::sum(part);
            put(part, at, never_zero(checksum::fold(sum)));
        }
    }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
