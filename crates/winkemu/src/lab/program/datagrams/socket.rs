//! Sockets for datagrams, and the headers before the payload.

use std::{
    io::{self, Read as _},
    net::SocketAddr,
    time::Duration,
};

use serde::Deserialize;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Carrier protocol of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// UDP.
    #[default]
    Udp,
    /// IP protocol 50 (RFC 4303), over IPv4: a security parameters index, a sequence number, and an
    /// opaque payload. No key is involved, and only the receiver interprets it.
    Esp,
}

/// Protocol number of ESP.
const ESP: i32 = 50;
/// Length of SPI and sequence number; equal to that of the UDP header.
pub(super) const ESP_HEADER: usize = 8;
/// Receive buffer: 100 Mbit/s while the receiver does not run for half a second.
const BUFFER: usize = 8 << 20;
/// Maximum length of a datagram with its headers.
const LONGEST: usize = 10_000;

/// End of a datagram flow.
#[derive(Debug)]
pub(super) struct End {
    carrier: Carrier,
    socket: Socket,
    /// Security parameters index of ESP.
    spi: u32,
}

impl End {
    /// Binds to an address; for ESP the port serves as the index.
    pub fn bind(carrier: Carrier, address: SocketAddr, spi: u16) -> io::Result<Self> {
        let (kind, protocol) = match carrier {
            Carrier::Udp => (Type::DGRAM, Protocol::UDP),
            Carrier::Esp => (Type::RAW, Protocol::from(ESP)),
        };
        let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
        // As much as the system allows; the rest shows as loss.
        let _ = socket.set_recv_buffer_size(BUFFER);
        socket.bind(&SockAddr::from(address))?;
        Ok(Self {
            carrier,
            socket,
            spi: spi.into(),
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::Error::other("socket has no IP address"))
    }

    /// Sets the DiffServ code point of sent packets.
    pub fn mark(&self, dscp: u8, ipv6: bool) -> io::Result<()> {
        let traffic_class = u32::from(dscp) << 2;
        if ipv6 {
            self.socket.set_tclass_v6(traffic_class)
        } else {
            self.socket.set_tos_v4(traffic_class)
        }
    }

    /// Length of the header before the payload in the send buffer.
    pub fn header_len(&self) -> usize {
        match self.carrier {
            Carrier::Udp => 0,
            Carrier::Esp => ESP_HEADER,
        }
    }

    /// Sends a buffer with room for [`header_len`](Self::header_len) at its start.
    pub fn send(&self, buffer: &mut [u8], number: u64, to: SocketAddr) -> io::Result<()> {
        if self.carrier == Carrier::Esp {
            // RFC 4303, section 2.2: the first sequence number is 1.
            let number = (number as u32).wrapping_add(1);
            buffer[..4].copy_from_slice(&self.spi.to_be_bytes());
            buffer[4..ESP_HEADER].copy_from_slice(&number.to_be_bytes());
        }
        self.socket.send_to(buffer, &to.into()).map(drop)
    }

    /// Calls `take` with the next payload; returns false if none arrives in time.
    pub fn receive(&self, patience: Duration, take: impl FnOnce(&[u8])) -> io::Result<bool> {
        self.socket.set_read_timeout(Some(patience))?;
        let mut buffer = [0; LONGEST];
        match (&self.socket).read(&mut buffer) {
            Ok(count) => {
                if let Some(payload) = self.payload(&buffer[..count]) {
                    take(payload);
                }
                Ok(true)
            }
            Err(err) if is_timeout(&err) => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Extracts the payload. Raw sockets deliver the IP header, and packets of other indices.
    fn payload<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        match self.carrier {
            Carrier::Udp => Some(packet),
            Carrier::Esp => esp_payload(packet, self.spi),
        }
    }
}

/// Payload of an IPv4 packet with ESP of this index.
fn esp_payload(packet: &[u8], spi: u32) -> Option<&[u8]> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let esp = packet.get(header..)?;
    let found = u32::from_be_bytes(esp.get(..4)?.try_into().ok()?);
    (found == spi).then(|| esp.get(ESP_HEADER..))?
}

fn is_timeout(err: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(err.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_of_esp_is_behind_both_headers() {
        let mut packet = vec![0x45];
        packet.resize(20, 0);
        packet.extend([0, 0, 0x23, 0x29, 0, 0, 0, 1, 7, 8, 9]);
        assert_eq!(esp_payload(&packet, 9001), Some(&[7, 8, 9][..]));
        assert_eq!(esp_payload(&packet, 9002), None);
        for cut in 0..28 {
            assert_eq!(esp_payload(&packet[..cut], 9001), None, "{cut}");
        }
    }
}
