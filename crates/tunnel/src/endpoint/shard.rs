//! One of several endpoints with one identity, and the datagrams that are for it.
//!
//! ```text
//!  receiver index   | slot: 16 - bits | shard: bits | random: 16 |
//!
//!  INITIATION                              to the first shard
//!  RESPONSE, COOKIE, CONFIRMATION, DATA    to the shard in the receiver index
//! ```
//!
//! Each shard has its own seed, sockets and peers. The first one admits all initiations by UDP, so
//! that limits and cookies exist once. Each shard admits those on its own TCP connections.

use super::datagram::Kind;

/// Maximum number of bits of a shard's number, for 16 shards of 4,096 peers.
const BITS_MAX: u8 = 4;

/// Place of an endpoint among those with its identity. By default it is the only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    number: u16,
    bits: u8,
}

impl Shard {
    /// Creates the place with this number, from 0, among up to 2^`bits` endpoints. `bits` must be
    /// the same for all of them. Returns `None` if `bits` exceeds 4, or the number does not fit.
    pub fn new(number: u16, bits: u8) -> Option<Self> {
        (bits <= BITS_MAX && number >> bits == 0).then_some(Self { number, bits })
    }

    /// Returns the number of the shard.
    pub fn number(self) -> u16 {
        self.number
    }

    /// Returns the number of the other shard that a datagram is for, read from its bytes in clear;
    /// `None` if it is to be handled here. A malformed datagram is handled wherever it arrives. All
    /// shards agree, so each datagram is passed at most once. A forged one may name a shard that
    /// does not exist.
    ///
    /// A filter at the sockets can select the same shard: the first for type 1, else by the low
    /// `bits` bits of one byte. That is byte 6 for type 2, and byte 2 for other types.
    pub fn owner(self, datagram: &[u8]) -> Option<u16> {
        if self.bits == 0 {
            return None;
        }
        let owner = match Kind::parse(datagram)? {
            Kind::Initiation { .. } | Kind::Initiation1 => 0,
            Kind::Response { receiver, .. }
            | Kind::Cookie { receiver }
            | Kind::Confirmation { receiver }
            | Kind::Data { receiver, .. } => self.number_in(receiver),
        };
        (owner != self.number).then_some(owner)
    }

    /// Returns true if initiations are handled here before any other shard.
    pub(super) fn is_first(self) -> bool {
        self.number == 0
    }

    /// Returns the maximum number of peers.
    pub fn slots(self) -> usize {
        1 << (16 - self.bits)
    }

    /// Creates an index by which the peer in a slot addresses the local end.
    pub(super) fn index(self, slot: u16, random: u16) -> u32 {
        u32::from(slot << self.bits | self.number) << 16 | u32::from(random)
    }

    /// Returns the slot in an index; `None` if the index is another shard's.
    pub(super) fn slot_of(self, index: u32) -> Option<usize> {
        let slot = (index >> 16 >> self.bits) as usize;
        (self.number_in(index) == self.number).then_some(slot)
    }

    fn number_in(self, index: u32) -> u16 {
        (index >> 16) as u16 & ((1 << self.bits) - 1)
    }
}
