//! Splitting of packets in two parts: fields common to a flow, and the rest.

use crate::{checksum, ip::protocol, tcp::flags::URG, wire::Reader};

const IPV4: usize = 20;
const IPV6: usize = 40;
const PORTS: usize = 4;
const UDP: usize = 8;
const TCP: usize = 20;

/// Don't-fragment bit in the third word of IPv4. With any other bit set, the packet is a fragment.
const DONT_FRAGMENT: u16 = 0x4000;

/// Bytes before the timestamps in nearly all segments that have them (RFC 7323 appendix A): NOP,
/// NOP, kind, length.
const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];
const TIMESTAMPS_LEN: usize = 12;

/// Bit of TCP's 13th byte that is in use now (RFC 9768 §3.1.1); the other three are 0.
const AE: u8 = 1;
/// In the first byte of TCP's part: timestamps, and no other options.
const FORM_TIMES: u8 = 2;
/// In the same byte: an urgent pointer.
const FORM_URGENT: u8 = 1;
const FORM_AE: u8 = 8;

/// Fields common to a flow's packets: IP's header, with zeros for what changes, and the ports of a
/// known transport.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fixed {
    len: u8,
    bytes: [u8; IPV6 + PORTS],
}

impl std::fmt::Debug for Fixed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Protocol after IP's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
    Other,
}

impl Fixed {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    fn ip_header(&self) -> usize {
        if self.bytes[0] >> 4 == 4 { IPV4 } else { IPV6 }
    }

    fn protocol(&self) -> u8 {
        self.bytes[if self.bytes[0] >> 4 == 4 { 9 } else { 6 }]
    }

    fn transport(&self) -> Transport {
        let has_ports = usize::from(self.len) > self.ip_header();
        match self.protocol() {
            protocol::UDP if has_ports => Transport::Udp,
            protocol::TCP if has_ports => Transport::Tcp,
            _ => Transport::Other,
        }
    }
}

/// Parts of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub(super) fixed: Fixed,
    pub(super) ecn: u8,
    /// IPv4 identification.
    pub(super) id: u16,
    /// Header of UDP or TCP, if known.
    header: &'a [u8],
    /// Remaining bytes.
    pub(super) payload: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Splits a packet, if joining the parts restores it exactly.
pub(super) fn split(packet: &[u8]) -> Option<Parts<'_>> {
    let ip_header = match packet.first()? {
        // IPv4 without options.
        0x45 => IPV4,
        first if first >> 4 == 6 => IPV6,
        _ => return None,
    };
    let (ip, behind) = packet.split_at_checked(ip_header)?;
    let mut fixed = Fixed {
        len: ip_header as u8,
        bytes: [0; _],
    };
    let bytes = &mut fixed.bytes;
    bytes[..ip_header].copy_from_slice(ip);
    let (ecn, id) = if ip_header == IPV4 {
        let fits = usize::from(word(ip, 2)) == packet.len();
        let whole = word(ip, 6) & !DONT_FRAGMENT == 0;
        bytes[1] &= !3;
        for at in [2, 4, 10] {
            bytes[at..at + 2].fill(0);
        }
        let mut header = *ip.first_chunk::<IPV4>()?;
        header[10..12].fill(0);
        if !fits || !whole || checksum::fold(checksum::sum(&header)) != word(ip, 10) {
            return None;
        }
        (ip[1] & 3, word(ip, 4))
    } else {
        if usize::from(word(ip, 4)) != behind.len() {
            return None;
        }
        bytes[1] &= !0x30;
        bytes[4..6].fill(0);
        (ip[1] >> 4 & 3, 0)
    };
    let header = transport_header(fixed.protocol(), behind);
    if let Some(ports) = behind.get(..PORTS)
        && header > 0
    {
        fixed.bytes[ip_header..ip_header + PORTS].copy_from_slice(ports);
        fixed.len += PORTS as u8;
    }
    let (header, payload) = behind.split_at_checked(header)?;
    Some(Parts {
        fixed,
        ecn,
        id,
        header,
        payload,
    })
}

/// Returns the length of a compressible transport header; 0 if there is none.
fn transport_header(protocol: u8, bytes: &[u8]) -> usize {
    match protocol {
        protocol::UDP if bytes.len() >= UDP && usize::from(word(bytes, 4)) == bytes.len() => UDP,
        protocol::TCP if bytes.len() >= TCP => {
            let header = usize::from(bytes[12] >> 4) * 4;
            let fits = (TCP..=bytes.len()).contains(&header);
            let known = bytes[12] & 0x0f & !AE == 0;
            if fits && known { header } else { 0 }
        }
        _ => 0,
    }
}

impl Parts<'_> {
    /// Writes the variable fields of the transport header.
    pub(super) fn write_transport(&self, out: &mut Vec<u8>) {
        let header = self.header;
        match self.fixed.transport() {
            Transport::Other => {}
            Transport::Udp => out.extend_from_slice(&header[6..8]),
            Transport::Tcp => {
                let options = &header[TCP..];
                let times = options.len() == TIMESTAMPS_LEN && options.starts_with(&TIMESTAMPS);
                let urgent = header[13] & URG != 0 || header[18..20] != [0; 2];
                let mut form = header[12] & 0xf0;
                form |= if header[12] & AE != 0 { FORM_AE } else { 0 };
                form |= if times { FORM_TIMES } else { 0 };
                form |= if urgent { FORM_URGENT } else { 0 };
                out.push(form);
                out.extend_from_slice(&header[4..12]);
                out.extend_from_slice(&header[13..18]);
                if urgent {
                    out.extend_from_slice(&header[18..20]);
                }
                out.extend_from_slice(&options[if times { TIMESTAMPS.len() } else { 0 }..]);
            }
        }
    }
}

/// Reads the transport header of a packet with these fixed parts. Fields to be computed are 0 in
/// it.
pub(super) fn read_transport(fixed: &Fixed, reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(60);
    out.extend_from_slice(&fixed.bytes()[fixed.ip_header()..]);
    match fixed.transport() {
        Transport::Other => {}
        Transport::Udp => {
            out.extend_from_slice(&[0; 2]);
            out.extend_from_slice(reader.bytes(2)?);
        }
        Transport::Tcp => {
            let form = reader.u8()?;
            let options = usize::from(form >> 4).checked_sub(TCP / 4)? * 4;
            let times = form & FORM_TIMES != 0;
            if form & 4 != 0 || times && options != TIMESTAMPS_LEN {
                return None;
            }
            out.extend_from_slice(reader.bytes(8)?);
            out.push(form & 0xf0 | if form & FORM_AE != 0 { AE } else { 0 });
            out.extend_from_slice(reader.bytes(5)?);
            let urgent = if form & FORM_URGENT != 0 {
                reader.u16()?
            } else {
                0
            };
            out.extend_from_slice(&urgent.to_be_bytes());
            let known: &[u8] = if times { &TIMESTAMPS } else { &[] };
            out.extend_from_slice(known);
            out.extend_from_slice(reader.bytes(options - known.len())?);
        }
    }
    Some(out)
}

/// Joins a packet; `None` if it would be too long.
pub(super) fn join(
    fixed: &Fixed,
    ecn: u8,
    id: u16,
    transport: &[u8],
    payload: &[u8],
) -> Option<Vec<u8>> {
    let ip_header = fixed.ip_header();
    let behind = transport.len() + payload.len();
    let mut out = Vec::with_capacity(ip_header + behind);
    out.extend_from_slice(&fixed.bytes[..ip_header]);
    out.extend_from_slice(transport);
    out.extend_from_slice(payload);
    if ip_header == IPV4 {
        let total = u16::try_from(ip_header + behind).ok()?;
        out[1] |= ecn & 3;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[4..6].copy_from_slice(&id.to_be_bytes());
        let sum = checksum::fold(checksum::sum(&out[..IPV4]));
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let total = u16::try_from(behind).ok()?;
        out[1] |= (ecn & 3) << 4;
        out[4..6].copy_from_slice(&total.to_be_bytes());
    }
    if fixed.transport() == Transport::Udp {
        let len = u16::try_from(behind).ok()?;
        out[ip_header + 4..ip_header + 6].copy_from_slice(&len.to_be_bytes());
    }
    Some(out)
}
