//! Parsing of TCP segments, and segments derived from them.

use etherparse::TcpSlice;

use crate::{
    checksum,
    ip::{Ip, protocol},
};

/// Length of the longest acknowledgement: the longest headers of IPv4 and TCP.
const PLAIN_ACK_MAX: usize = 120;

/// Compares sequence numbers modulo 2^32 (RFC 9293 §3.4).
#[must_use]
pub fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Complete TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    /// Packet that contains it.
    pub ip: Ip<'a>,
    /// Number of its first byte.
    pub seq: u32,
    /// Acknowledgement number, valid if [`flags`](Self::flags) has ACK.
    pub ack: u32,
    /// CWR, ECE, URG, ACK, PSH, RST, SYN, FIN, from the highest bit on.
    pub flags: u8,
    /// Window field, not scaled.
    pub window: u16,
    /// Length of TCP's header, including options.
    pub header: usize,
}

/// TCP flags.
pub mod flags {
    /// The sender has no more bytes.
    pub const FIN: u8 = 0x01;
    /// The connection begins.
    pub const SYN: u8 = 0x02;
    /// The connection is reset.
    pub const RST: u8 = 0x04;
    /// Bytes to be given to the application at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement field is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// The receiver has experienced congestion (RFC 3168).
    pub const ECE: u8 = 0x40;
}

/// Option of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    /// Option kind; 5 is SACK, 8 timestamps.
    pub kind: u8,
    /// Data without kind and length.
    pub data: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Parses the segment in a packet; `None` if there is none, or if it is truncated, fragmented,
    /// or not to be touched ([`Ip::is_bound`]).
    #[must_use]
    pub fn parse(ip: Ip<'a>) -> Option<Self> {
        if ip.protocol != protocol::TCP || ip.fragment || ip.is_bound() {
            return None;
        }
        let slice = TcpSlice::from_slice(ip.payload()).ok()?;
        Some(Self {
            ip,
            seq: slice.sequence_number(),
            ack: slice.acknowledgment_number(),
            flags: ip.payload()[13],
            window: slice.window_size(),
            header: slice.header_len(),
        })
    }

    /// Parses the segment of this packet; `None` also for a wrong checksum, since damaged content
    /// must not change any state.
    #[must_use]
    pub fn read(packet: &'a [u8]) -> Option<Self> {
        Self::parse(Ip::parse(packet)?).filter(Self::is_whole)
    }

    /// Returns whether its checksum is right.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        checksum::is_transport_valid(&self.ip, self.ip.payload())
    }

    /// Returns its payload.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        &self.ip.payload()[self.header..]
    }

    /// Returns its length in sequence numbers.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        let ends = [flags::SYN, flags::FIN];
        let ends = ends.iter().filter(|flag| self.has(**flag)).count();
        self.data().len() as u32 + ends as u32
    }

    /// Returns the number after its last byte.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.seq_len())
    }

    /// Returns whether any of these flags is set.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Returns whether it is a pure acknowledgement that can be dropped without loss of other
    /// information. It has no bytes, no SYN or FIN, no congestion flags (ECE, CWR, and AE next to
    /// them), no urgent data, and no options but SACK and timestamps. Nor has it more headers than
    /// any TCP sends: boosters copy and keep such packets.
    #[must_use]
    pub fn is_plain_ack(&self) -> bool {
        let reserved = self.ip.payload()[12] & 0x0f;
        self.data().is_empty()
            && self.ip.bytes.len() <= PLAIN_ACK_MAX
            && self.flags & !flags::PSH == flags::ACK
            && reserved == 0
            && self.has_only(&[5, 8])
    }

    /// Returns whether all its options are well-formed and of these kinds or padding (0, 1).
    #[must_use]
    pub fn has_only(&self, kinds: &[u8]) -> bool {
        let mut rest = &self.ip.payload()[20..self.header];
        loop {
            match *rest {
                [] | [0, ..] => return true,
                [1, ref after @ ..] => rest = after,
                [kind, len, ..]
                    if kinds.contains(&kind) && len >= 2 && usize::from(len) <= rest.len() =>
                {
                    rest = &rest[len.into()..];
                }
                _ => return false,
            }
        }
    }

    /// Returns the SACK ranges (RFC 2018), in its order.
    pub fn sack(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let option = self.options().find(|option| option.kind == 5);
        let blocks = option.map_or(&[][..], |option| option.data).chunks_exact(8);
        blocks.filter_map(|block| {
            let (begin, end) = (block.first_chunk()?, block.last_chunk()?);
            Some((u32::from_be_bytes(*begin), u32::from_be_bytes(*end)))
        })
    }

    /// Returns its options, up to the first malformed one.
    pub fn options(&self) -> impl Iterator<Item = TcpOption<'a>> + use<'a> {
        let mut rest = &self.ip.payload()[20..self.header];
        std::iter::from_fn(move || {
            loop {
                match *rest {
                    [1, ref after @ ..] => rest = after,
                    [kind, len, ..] if kind != 0 && len >= 2 && usize::from(len) <= rest.len() => {
                        let (option, after) = rest.split_at(len.into());
                        rest = after;
                        return Some(TcpOption {
                            kind,
                            data: &option[2..],
                        });
                    }
                    _ => return None,
                }
            }
        })
    }

    /// Returns whether it has SACK ranges (RFC 2018).
    #[must_use]
    pub fn has_sack(&self) -> bool {
        self.options().any(|option| option.kind == 5)
    }

    /// Returns its timestamp and the echoed one (RFC 7323).
    #[must_use]
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        let option = self.options().find(|option| option.kind == 8)?;
        let word = |at: usize| {
            option
                .data
                .get(at..)?
                .first_chunk()
                .map(|b| u32::from_be_bytes(*b))
        };
        Some((word(0)?, word(4)?))
    }
}

/// Sets the acknowledgement number of the TCP segment in this packet, and updates checksums. No
/// effect on other packets.
pub fn set_ack(packet: &mut [u8], ack: u32) {
    set_u32(packet, 8, ack);
}

/// Sets the window in the same way.
pub fn set_window(packet: &mut [u8], window: u16) {
    set_u16(packet, 14, window);
}

fn transport(packet: &[u8]) -> Option<usize> {
    Tcp::parse(Ip::parse(packet)?).map(|tcp| tcp.ip.header)
}

fn set_u32(packet: &mut [u8], at: usize, value: u32) {
    if let Some(header) = transport(packet) {
        let field = &mut packet[header + at..header + at + 4];
        let old = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
        field.copy_from_slice(&value.to_be_bytes());
        checksum::replace_u32(packet, header + 16, old, value);
    }
}

fn set_u16(packet: &mut [u8], at: usize, value: u16) {
    if let Some(header) = transport(packet) {
        let field = &mut packet[header + at..header + at + 2];
        let old = u16::from_be_bytes([field[0], field[1]]);
        field.copy_from_slice(&value.to_be_bytes());
        checksum::replace_u16(packet, header + 16, old, value);
    }
}

/// Returns a pure acknowledgement with the addresses, ports, numbers and window of `like`, with
/// `options` (padded to words) instead of its own, and without bytes. `None` if `like` is no TCP
/// packet, or for more than 40 bytes of options.
#[must_use]
pub fn pure_ack(like: &[u8], options: &[u8]) -> Option<Vec<u8>> {
    let tcp = Tcp::parse(Ip::parse(like)?)?;
    let padded = options.len().next_multiple_of(4);
    if padded > 40 {
        return None;
    }
    let header = tcp.ip.header;
    let mut out = like[..header + 20].to_vec();
    out.extend_from_slice(options);
    out.resize(header + 20 + padded, 1);
    out[header + 12] = (((20 + padded) / 4) as u8) << 4;
    out[header + 13] = flags::ACK;
    out[header + 18..header + 20].fill(0);
    let len = out.len();
    if tcp.ip.version == 4 {
        out[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        out[10..12].fill(0);
        let sum = checksum::fold(checksum::sum(&out[..header]));
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        out[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
    }
    seal(&mut out);
    Some(out)
}

/// Recomputes the checksum of the TCP segment in this packet. No effect on other packets.
pub fn seal(packet: &mut [u8]) {
    let Some(header) = transport(packet) else {
        return;
    };
    packet[header + 16..header + 18].fill(0);
    let Some(ip) = Ip::parse(packet) else { return };
    let sum = checksum::of_transport(&ip, ip.payload());
    packet[header + 16..header + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the timestamps of the TCP segment in this packet, if it has some, and updates the checksum.
pub fn set_timestamps(packet: &mut [u8], value: u32, echo: u32) {
    let Some(tcp) = Ip::parse(packet).and_then(Tcp::parse) else {
        return;
    };
    let Some(option) = tcp
        .options()
        .find(|option| option.kind == 8 && option.data.len() == 8)
    else {
        return;
    };
    // Both point into the same bytes.
    let at = option.data.as_ptr() as usize - packet.as_ptr() as usize;
    packet[at..at + 4].copy_from_slice(&value.to_be_bytes());
    packet[at + 4..at + 8].copy_from_slice(&echo.to_be_bytes());
    // The option may be at an odd offset.
    seal(packet);
}

/// Removes the SACK ranges of the TCP segment in this packet, and updates the checksum. Its length
/// stays.
pub fn clear_sack(packet: &mut [u8]) {
    let Some(tcp) = Ip::parse(packet).and_then(Tcp::parse) else {
        return;
    };
    let Some(option) = tcp.options().find(|option| option.kind == 5) else {
        return;
    };
    // Both point into the same bytes; kind and length are before.
    let at = option.data.as_ptr() as usize - packet.as_ptr() as usize;
    let end = at + option.data.len();
    packet[at - 2..end].fill(1);
    seal(packet);
}

#[cfg(test)]
pub(crate) mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    /// Returns a segment of the host 10.0.0.1 to 10.9.0.2, from port 1 to 80.
    pub(crate) fn segment(seq: u32, ack: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        between(
            ([10, 0, 0, 1], 1),
            ([10, 9, 0, 2], 80),
            (seq, ack),
            flags,
            data,
        )
    }

    /// Returns one of the other direction.
    pub(crate) fn answer(seq: u32, ack: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        between(
            ([10, 9, 0, 2], 80),
            ([10, 0, 0, 1], 1),
            (seq, ack),
            flags,
            data,
        )
    }

    fn between(
        from: ([u8; 4], u16),
        to: ([u8; 4], u16),
        (seq, ack): (u32, u32),
        flags: u8,
        data: &[u8],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4(from.0, to.0, 64).tcp(from.1, to.1, seq, 5000);
        builder.ack(ack).write(&mut bytes, data).expect("fits");
        bytes[20 + 13] = flags;
        seal(&mut bytes);
        bytes
    }

    /// Adds SACK ranges to a packet.
    pub(crate) fn with_sack(packet: &[u8], ranges: &[(u32, u32)]) -> Vec<u8> {
        let mut option = vec![1, 1, 5, 2 + 8 * ranges.len() as u8];
        for (begin, end) in ranges {
            option.extend_from_slice(&begin.to_be_bytes());
            option.extend_from_slice(&end.to_be_bytes());
        }
        pure_ack(packet, &option).expect("short")
    }

    /// Returns a copy with these options and no bytes.
    pub(crate) fn with_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
        pure_ack(packet, options).expect("short")
    }

    /// Returns a copy with one bit of its checksum changed.
    pub(crate) fn damaged(packet: &[u8]) -> Vec<u8> {
        let mut bytes = packet.to_vec();
        bytes[20 + 16] ^= 1;
        bytes
    }

    /// Returns a segment over IPv6.
    pub(crate) fn segment6(seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv6([1; 16], [2; 16], 64).tcp(1, 80, seq, 5000);
        builder.ack(ack).write(&mut bytes, data).expect("fits");
        bytes
    }

    #[test]
    fn what_is_bound_to_its_headers_is_left_alone() {
        let plain = segment6(1, 2, b"x");
        assert!(Tcp::read(&plain).is_some());
        // An extension header of that kind, of 8 bytes, between IP's and TCP's.
        let extended = |kind: u8, first: [u8; 2]| {
            let mut bytes = plain.clone();
            (bytes[5], bytes[6]) = (bytes[5] + 8, kind);
            bytes.splice(40..40, [6, 0, first[0], first[1], 1, 0, 0, 0]);
            bytes
        };
        for options in [0, 60] {
            let tcp = Ip::parse(&extended(options, [1, 2]))
                .and_then(Tcp::parse)
                .map(|tcp| tcp.seq);
            assert_eq!(tcp, Some(1), "{options}");
        }
        for bound in [43, 51] {
            let bytes = extended(bound, [0, 0]);
            assert!(Ip::parse(&bytes).and_then(Tcp::parse).is_none(), "{bound}");
        }
        let mut routed = segment(1, 2, flags::ACK, b"x");
        routed.splice(20..20, [131, 3, 4, 0]);
        (routed[0], routed[3]) = (0x46, routed[3] + 4);
        assert!(Ip::parse(&routed).is_some());
        assert!(Ip::parse(&routed).and_then(Tcp::parse).is_none());
    }

    #[test]
    fn acknowledgements_with_other_options_are_not_plain() {
        let ack = segment(1, 2, flags::ACK, &[]);
        let plain = |options: &[u8]| {
            Tcp::read(&with_options(&ack, options)).is_some_and(|tcp| tcp.is_plain_ack())
        };
        assert!(plain(&[]) && plain(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]));
        assert!(!plain(&[30, 4, 0, 0]), "MPTCP");
        assert!(!plain(&[
            1, 1, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
        ]));
        assert!(!plain(&[8, 90, 0, 0]), "truncated option");
        assert!(Tcp::read(&damaged(&ack)).is_none());
    }

    #[test]
    fn segments_are_read_changed_and_made() {
        let mut packet = segment(5, 7, flags::ACK | flags::PSH, b"abc");
        set_ack(&mut packet, 70_000);
        set_window(&mut packet, 9);
        let tcp = Tcp::parse(Ip::parse(&packet).unwrap()).unwrap();
        assert!(checksum::is_transport_valid(&tcp.ip, tcp.ip.payload()));
        assert_eq!((tcp.seq, tcp.end(), tcp.ack, tcp.window), (5, 8, 70_000, 9));
        assert!(!tcp.is_plain_ack());
        let made = with_sack(&packet, &[(10, 20), (30, 40)]);
        let tcp = Tcp::parse(Ip::parse(&made).unwrap()).unwrap();
        assert!(checksum::is_transport_valid(&tcp.ip, tcp.ip.payload()));
        assert!(checksum::is_valid(&made[..20]));
        assert!(tcp.is_plain_ack() && tcp.has_sack());
        assert_eq!(tcp.ip.bytes.len(), made.len());
    }
}
