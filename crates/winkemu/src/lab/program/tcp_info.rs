//! TCP_INFO of a sending socket.

use std::io;

use serde::Serialize;
use socket2::Socket;

use super::sys;

/// Part of `struct tcp_info` (`include/uapi/linux/tcp.h`, Linux 4.19 or later).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TcpInfo {
    /// State of congestion control: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    pub ca_state: u8,
    /// Bytes of payload in a packet.
    pub snd_mss: u32,
    /// Congestion window, in packets.
    pub snd_cwnd: u32,
    /// Slow start threshold, in packets; 2,147,483,647 until it is set.
    pub snd_ssthresh: u32,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Minimum round-trip time in a time window chosen by the kernel.
    pub min_rtt_us: u32,
    /// Packets sent and not acknowledged.
    pub unacked: u32,
    /// Packets delivered, also out of order.
    pub delivered: u32,
    /// Segments received: for a sender, acknowledgements.
    pub segs_in: u32,
    /// Packets retransmitted.
    pub total_retrans: u32,
    /// Bytes retransmitted.
    pub bytes_retrans: u64,
    /// Pacing rate of the socket, in bytes per second.
    pub pacing_rate: u64,
}

/// Size of the part that is read: up to `tcpi_bytes_retrans`.
const BYTES: usize = 216;

impl TcpInfo {
    /// Reads the structure from the kernel.
    ///
    /// # Errors
    /// The socket is no TCP socket.
    pub fn read(socket: &Socket) -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        sys::tcp_info(socket, &mut bytes)?;
        Ok(Self::parse(&bytes))
    }

    /// Parses the structure. Its offsets are stable, because it only grows at its end.
    fn parse(bytes: &[u8; BYTES]) -> Self {
        Self {
            ca_state: bytes[1],
            snd_mss: u32::from_ne_bytes(at(bytes, 16)),
            unacked: u32::from_ne_bytes(at(bytes, 24)),
            srtt_us: u32::from_ne_bytes(at(bytes, 68)),
            snd_ssthresh: u32::from_ne_bytes(at(bytes, 76)),
            snd_cwnd: u32::from_ne_bytes(at(bytes, 80)),
            total_retrans: u32::from_ne_bytes(at(bytes, 100)),
            pacing_rate: u64::from_ne_bytes(at(bytes, 104)),
            segs_in: u32::from_ne_bytes(at(bytes, 140)),
            min_rtt_us: u32::from_ne_bytes(at(bytes, 148)),
            delivered: u32::from_ne_bytes(at(bytes, 192)),
            bytes_retrans: u64::from_ne_bytes(at(bytes, 208)),
        }
    }
}

fn at<const N: usize>(bytes: &[u8; BYTES], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_puts_them() {
        let mut bytes = [0; BYTES];
        // tcpi_rtt follows 8 bytes and 15 words, tcpi_bytes_retrans is the word after
        // tcpi_bytes_sent.
        bytes[68..72].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[208..216].copy_from_slice(&9_u64.to_ne_bytes());
        let info = TcpInfo::parse(&bytes);
        let expected = TcpInfo {
            srtt_us: 7,
            bytes_retrans: 9,
            ..TcpInfo::default()
        };
        assert_eq!(info, expected);
    }

    #[test]
    fn what_is_no_tcp_socket_has_none() {
        let udp = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        assert!(TcpInfo::read(&udp).is_err());
    }
}
