//! What is on the wire: the five kinds of datagrams. Numbers are in network byte order.
//!
//! ```text
//! INITIATION    1 | sender:32 | noise 1: 144 bytes | mac1:128 | mac2:128             181 bytes
//! RESPONSE      2 | sender:32 | receiver:32 | noise 2: 96 bytes | mac1:128           121
//! COOKIE        3 | receiver:32 | nonce:96 | sealed cookie: 32 bytes                  49
//! CONFIRMATION  4 | receiver:32 | tag:128                                             21
//! DATA          5 | receiver:32 | packet number:32 | sealed packet | tag:128          25 and the packet
//! ```
//!
//! `sender` is the index by which the writer wants to be addressed, `receiver` the one that the
//! reader asked for.

use super::terms::TERMS_LEN;
use crate::{
    crypto::{INITIATION_OVERHEAD, MAC_LEN, RESPONSE_OVERHEAD, SEALED_COOKIE_LEN, TAG_LEN},
    wire::DATAGRAM_OVERHEAD,
};

pub(super) const INITIATION: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
pub(super) const COOKIE: u8 = 3;
pub(super) const CONFIRMATION: u8 = 4;
pub(super) const DATA: u8 = 5;

/// Type and index.
const SHORT_HEADER: usize = 1 + 4;
/// Type and index of a confirmation.
pub(super) const CONFIRMATION_HEADER: usize = SHORT_HEADER;
/// Type, index and packet number.
pub(super) const DATA_HEADER: usize = SHORT_HEADER + 4;

const _: () = assert!(DATA_HEADER + TAG_LEN == DATAGRAM_OVERHEAD);

/// The length of an initiation, always.
pub(super) const INITIATION_LEN: usize =
    SHORT_HEADER + TERMS_LEN + INITIATION_OVERHEAD + 2 * MAC_LEN;
/// The length of a response, always.
pub(super) const RESPONSE_LEN: usize = SHORT_HEADER + 4 + TERMS_LEN + RESPONSE_OVERHEAD + MAC_LEN;
/// The length of a cookie reply, always.
pub(super) const COOKIE_LEN: usize = SHORT_HEADER + SEALED_COOKIE_LEN;
/// The length of a confirmation, always.
pub(super) const CONFIRMATION_LEN: usize = CONFIRMATION_HEADER + TAG_LEN;

// An answer is never longer than what it answers: nobody is flooded through us.
const _: () = assert!(RESPONSE_LEN < INITIATION_LEN && COOKIE_LEN < INITIATION_LEN);

/// What `mac1` of an initiation is over; what `mac2` is over ends a MAC later.
pub(super) const INITIATION_SIGNED: usize = INITIATION_LEN - 2 * MAC_LEN;
/// What `mac1` of a response is over.
pub(super) const RESPONSE_SIGNED: usize = RESPONSE_LEN - MAC_LEN;
/// Where the handshake's message begins.
pub(super) const INITIATION_HEADER: usize = SHORT_HEADER;
/// Where the handshake's message begins.
pub(super) const RESPONSE_HEADER: usize = SHORT_HEADER + 4;

/// What a datagram is by its type and its length; what has neither is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Initiation { sender: u32 },
    Response { sender: u32, receiver: u32 },
    Cookie { receiver: u32 },
    Confirmation { receiver: u32 },
    Data { receiver: u32, number: u32 },
}

impl Kind {
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let field = |at: usize| Some(u32::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        let index = field(1)?;
        Some(match (*datagram.first()?, datagram.len()) {
            (DATA, DATAGRAM_OVERHEAD..) => Self::Data {
                receiver: index,
                number: field(SHORT_HEADER)?,
            },
            (INITIATION, INITIATION_LEN) => Self::Initiation { sender: index },
            (RESPONSE, RESPONSE_LEN) => Self::Response {
                sender: index,
                receiver: field(SHORT_HEADER)?,
            },
            (COOKIE, COOKIE_LEN) => Self::Cookie { receiver: index },
            (CONFIRMATION, CONFIRMATION_LEN) => Self::Confirmation { receiver: index },
            _ => return None,
        })
    }
}

/// Appends type and index.
pub(super) fn begin(kind: u8, index: u32, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&index.to_be_bytes());
}
