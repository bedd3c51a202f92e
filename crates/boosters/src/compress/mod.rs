//! Header compression, and zstd for payloads where it pays.
//!
//! The fields common to all packets of a flow (addresses, ports, TTL and so on) go to the far end
//! once, as a *context*; afterwards its number replaces them. All other fields are sent in full,
//! never relative to another packet: loss, duplication and reordering affect no other packets. A
//! context is relied on once the far end has confirmed it. Until then some packets announce it, and
//! those in between are sent uncompressed, so no burst of losses takes packets that the link has
//! delivered. With a far end that does not confirm, this resembles the unidirectional mode of
//! robust header compression (RFC 5795 §4.4, RFC 3095 §5.3.1): a context is relied on after several
//! announcements, spread over some packets. In both cases it is repeated at growing intervals, and
//! at once when the far end requests it.
//!
//! ```text
//!  CONTEXT    | flags:8 | cid:8 or 16 | generation:8 | IP packet
//!  COMPRESSED | flags:8 | cid:8 or 16 | generation:8 | [id:16] [transport] payload
//!  COMPRESSED | flags:8 |                              IP packet          without HEADERS
//!  NO_CONTEXT | cid:16  | generation:8                                    a reply
//!  CONTEXT_KNOWN | cid:16 | generation:8                                  a reply
//!
//!  flags      | HEADERS | ZSTD | WIDE | ID | 0 | 0 | ECN:2 |
//!
//!  transport of UDP   checksum:16
//!            of TCP   offset:4 AE:1 0:1 TIMES:1 URGENT:1 | seq:32 | ack:32 | flags:8 | window:16
//!                     checksum:16 [urgent:16] options, or those after "NOP NOP timestamps"
//!            otherwise, or with an unusual UDP or TCP header: none, it is in the payload
//! ```
//!
//! - HEADERS: cid and generation are present; always set in CONTEXT. WIDE: cid has 16 bits.
//! - ZSTD: the last field (IP packet or payload) is a zstd frame without its magic.
//! - ID: IPv4's identification is present; otherwise it is 0. ECN: the two bits of the IP header.
//! - Lengths and the checksum of IPv4's header are computed. If they would come out different, or
//!   with IPv4 options or fragments, headers are not compressed. Transport checksums are never
//!   touched, right or wrong.
//!
//! A *generation* distinguishes successive contexts with the same cid. If the sender was restarted
//! and all announcements of a new context were lost, 1 in 256 is taken for an old one of that cid.
//! The transport checksum, which covers addresses and ports, then fails at the host.

mod codec;
mod contexts;
mod header;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use self::{receiver::Receiver, sender::Sender};

/// Maximum number of bytes that a message is longer than its packet: with a context.
pub const OVERHEAD: usize = 5;

/// Settings of a [`Sender`]. Values out of range are clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Compression level of zstd, 1 to 19. Default 3.
    pub level: i32,
    /// True to compress headers. Default true.
    pub headers: bool,
    /// True to compress payloads where it pays. Default true.
    pub payload: bool,
    /// Maximum number of flows with contexts, 1 to 4096. Default 256: larger numbers take one more
    /// byte. Each costs about 200 bytes.
    pub flows_max: usize,
}

impl Config {
    /// Maximum contexts that a receiver keeps, and thus a sender may use.
    pub const FLOWS_MAX: usize = 4096;
}

impl Default for Config {
    fn default() -> Self {
        Self {
            level: 3,
            headers: true,
            payload: true,
            flows_max: 256,
        }
    }
}

/// Bits of a message's flags.
mod flag {
    pub const HEADERS: u8 = 0x80;
    pub const ZSTD: u8 = 0x40;
    pub const WIDE: u8 = 0x20;
    pub const ID: u8 = 0x10;
    /// Reserved: a message that sets them is rejected.
    pub const SPARE: u8 = 0x0c;
    pub const ECN: u8 = 0x03;
}
