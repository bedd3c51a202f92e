//! Header compression, and zstd for payloads where it pays.
//!
//! What all packets of a flow have in common (addresses, ports, TTL and so on) goes to the far end once, as a *context*;
//! then a packet's number of it stands for that. All else is sent as it is: nothing is told relative to another packet, so loss, duplication and
//! reordering harm none but the packets that they befall. A context is relied on once the far end has said that it knows it, and until then sent
//! now and then, packets in between as they are: so no burst of losses takes what the link has delivered. Where the far end says no such thing
//! this is the unidirectional mode of robust header compression in spirit (RFC 5795 §4.4, RFC 3095 §5.3.1): a context is relied on after
//! it was sent several times, over some packets. In any case it is sent again at intervals that grow, and at once when the far end asks for it.
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
//!            of TCP   offset:4 AE:1 0:1 TIMES:1 URGENT:1 | seq:32 | ack:32 | flags:8 | window:16 | checksum:16
//!                     [urgent:16] options, or what is behind "NOP NOP timestamps" of them
//!            of all else, of what UDP's or TCP's header is odd in: none, it is in the payload
//! ```
//!
//! - HEADERS: there are cid and generation; always so in CONTEXT. WIDE: cid has 16 bits.
//! - ZSTD: what comes last (IP packet or payload) is a zstd frame without its magic.
//! - ID: IPv4's identification is there; it is 0 otherwise. ECN: the two bits of the IP header.
//! - Lengths, and the checksum of IPv4's header, are computed. Where they would come out different, and with options of IPv4 and fragments of it,
//!   headers are not compressed. Checksums of transport are never touched, right or wrong.
//!
//! A *generation* tells contexts apart that had the same cid one after the other. When the sender was restarted and all that it sent of a new context
//! was lost, 1 in 256 is taken for an old one of that cid; checksums of transport, which are over addresses and ports, then fail at the host.

mod codec;
mod contexts;
mod header;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use self::{receiver::Receiver, sender::Sender};

/// What a message is longer than its packet at most: with a context.
pub const OVERHEAD: usize = 5;

/// How a [`Sender`] is to work. What is out of bounds is taken as the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How hard zstd tries, 1 to 19; 3 unless told.
    pub level: i32,
    /// Whether headers are compressed; yes unless told.
    pub headers: bool,
    /// Whether payloads are, where it pays; yes unless told.
    pub payload: bool,
    /// How many flows have contexts at a time, 1 to 4096; 256 unless told, as their numbers take a byte less then. Each costs about 200
    /// bytes.
    pub flows_max: usize,
}

impl Config {
    /// The most contexts that a receiver keeps, so that a sender may have.
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

/// What is in the flags of a message.
mod flag {
    pub const HEADERS: u8 = 0x80;
    pub const ZSTD: u8 = 0x40;
    pub const WIDE: u8 = 0x20;
    pub const ID: u8 = 0x10;
    /// Of no meaning yet: who sets them is not understood.
    pub const SPARE: u8 = 0x0c;
    pub const ECN: u8 = 0x03;
}
