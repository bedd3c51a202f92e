//! Events of an endpoint, for its owner.

use super::Remote;
use crate::session::Event;

/// An event of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A session has begun, without streams.
    Up,
    /// The session is over, and its streams are lost.
    Down(DownReason),
    /// An event of the session.
    Session(Event),
    /// The peer now sends from this remote, and receives there.
    Roamed(Remote),
    /// Handshakes with the peer fail. Reported once until one succeeds.
    Failed(HandshakeError),
}

/// Reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// Another session begins: the peer restarted, or lost this session.
    Replaced,
    /// The peer closed it, and ended its streams for good.
    PeerClosed,
    /// The peer closed it, and what its streams carried continues in the next session.
    Elsewhere,
    /// The peer violated the protocol.
    Protocol(String),
}

/// Reason for a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The protocol versions differ: update one of the two pepds.
    #[error("peer uses protocol version {0}, the local pepd {ours}: update the older pepd", ours = super::VERSION)]
    Version(u8),
    /// The keys differ: compare `psk` and the public keys at both ends. A host on the path that
    /// corrupts messages has the same effect.
    #[error("peer's handshake response does not match its public key and psk")]
    Keys,
    /// The counter of initiations is used up, which takes a hostile peer. Remedy: a new key pair.
    #[error("the handshake counter of this pair of keys is used up: give one end a new key")]
    Counter,
}

/// Reason why an initiation from an unknown sender is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// The message is for another public key than that of the endpoint, or invalid.
    NotForUs,
    /// The sender proves a public key that no peer has.
    UnknownKey,
    /// The sender uses protocol version 1 and knows the local public key.
    Version1,
    /// The sender has a peer's key, and that peer is heard at another address.
    SecondHolder,
}

/// A peer that cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddPeerError {
    /// Another peer has this public key, perhaps in another shard.
    #[error("another peer has this public key")]
    Known,
    /// The public key is the endpoint's own.
    #[error("the public key is the endpoint's own")]
    Ourselves,
    /// The maximum is reached: 65,536, or the [part](super::Shard::slots) of one of several shards.
    #[error("too many peers: the maximum is 65,536, or less for one of several threads")]
    TooMany,
}
