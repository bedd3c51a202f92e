//! Datagram format: the five kinds of datagrams. Numbers are in network byte order.
//!
//! ```text
//! INITIATION    1 | sender:32 | noise 1: 192 bytes | mac1:128 | mac2:128             229 bytes
//! RESPONSE      2 | sender:32 | receiver:32 | noise 2: 144 bytes | mac1:128          169
//! COOKIE        3 | receiver:32 | nonce:96 | sealed cookie: 32 bytes                  49
//! CONFIRMATION  4 | receiver:32 | tag:128                                             21
//! DATA          5 | receiver:32 | packet number:32 | sealed packet | tag:128          25 + packet
//! ```
//!
//! `sender` is the index by which the writer is to be addressed, `receiver` the index chosen by the
//! reader.

use super::terms::TERMS_LEN;
use crate::{
    crypto::{INITIATION_OVERHEAD, MAC_LEN, RESPONSE_OVERHEAD, SEALED_COOKIE_LEN, TAG_LEN},
    wire::{DATAGRAM_OVERHEAD, PATH_FRAME_LEN},
};

pub(super) const INITIATION: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
pub(super) const COOKIE: u8 = 3;
pub(super) const CONFIRMATION: u8 = 4;
pub(super) const DATA: u8 = 5;

/// Length of type and index.
const SHORT_HEADER: usize = 1 + 4;
/// Length of type and index of a confirmation.
pub(super) const CONFIRMATION_HEADER: usize = SHORT_HEADER;
/// Length of type, index and packet number.
pub(super) const DATA_HEADER: usize = SHORT_HEADER + 4;

const _: () = assert!(DATA_HEADER + TAG_LEN == DATAGRAM_OVERHEAD);

/// Length of an initiation.
pub(super) const INITIATION_LEN: usize =
    SHORT_HEADER + TERMS_LEN + INITIATION_OVERHEAD + 2 * MAC_LEN;
/// Length of an initiation of protocol version 1, which differs in its terms only.
pub(super) const INITIATION_1_LEN: usize = INITIATION_LEN - 48;
/// Length of a response.
pub(super) const RESPONSE_LEN: usize = SHORT_HEADER + 4 + TERMS_LEN + RESPONSE_OVERHEAD + MAC_LEN;
/// Length of a cookie reply.
pub(super) const COOKIE_LEN: usize = SHORT_HEADER + SEALED_COOKIE_LEN;
/// Length of a confirmation.
pub(super) const CONFIRMATION_LEN: usize = CONFIRMATION_HEADER + TAG_LEN;

/// Length of the shortest datagram with a path challenge, and of that with an answer.
pub(super) const CHALLENGE_LEN: usize = DATAGRAM_OVERHEAD + PATH_FRAME_LEN;

// An answer is never longer than its request, so pepd cannot be used for amplification.
const _: () = assert!(RESPONSE_LEN < INITIATION_LEN && COOKIE_LEN < INITIATION_LEN);

/// Bytes of an initiation that `mac1` covers; `mac2` covers one MAC more.
pub(super) const INITIATION_SIGNED: usize = INITIATION_LEN - 2 * MAC_LEN;
/// Bytes of an initiation of protocol version 1 that `mac1` covers.
pub(super) const INITIATION_1_SIGNED: usize = INITIATION_1_LEN - 2 * MAC_LEN;
/// Bytes of a response that `mac1` covers.
pub(super) const RESPONSE_SIGNED: usize = RESPONSE_LEN - MAC_LEN;
/// Offset of the handshake message in an initiation.
pub(super) const INITIATION_HEADER: usize = SHORT_HEADER;
/// Offset of the handshake message in a response.
pub(super) const RESPONSE_HEADER: usize = SHORT_HEADER + 4;

/// Kind of a datagram, by type and length; others are malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Initiation {
        sender: u32,
    },
    /// An initiation of protocol version 1.
    Initiation1,
    Response {
        sender: u32,
        receiver: u32,
    },
    Cookie {
        receiver: u32,
    },
    Confirmation {
        receiver: u32,
    },
    Data {
        receiver: u32,
        number: u32,
    },
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
            (INITIATION, INITIATION_1_LEN) => Self::Initiation1,
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
