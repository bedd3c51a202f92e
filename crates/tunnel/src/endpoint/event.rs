//! What an endpoint tells its owner.

use super::Remote;
use crate::session::Event;

/// What has happened with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A session has begun, without streams.
    Up,
    /// The session is over, and its streams are gone.
    Down(DownReason),
    /// Something has happened in the session.
    Session(Event),
    /// The peer sends from there now, and gets there what we send.
    Roamed(Remote),
    /// The peer's handshake leads to nothing. Told once until a handshake succeeds.
    Failed(HandshakeError),
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// Another one begins: the peer, or its memory of this one, was gone.
    Replaced,
    /// The peer closed it.
    PeerClosed,
    /// The peer sent what makes no sense.
    Protocol(String),
}

/// Why there are no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Update one of the two pepds.
    #[error("the peer speaks version {0} of the protocol, we speak {ours}", ours = super::VERSION)]
    Version(u8),
    /// Compare `psk` and the public keys at both ends. Or somebody in between damages what is sent.
    #[error("the peer's answer does not fit its key and the shared secret")]
    Keys,
}

/// Why somebody who wants to begin a session is not answered, and is no peer that could be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// The message is for another public key than ours, or for nobody.
    NotForUs,
    /// The sender proves a public key that is no peer's.
    UnknownKey,
}

/// A peer that cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddPeerError {
    /// Its public key is another peer's.
    #[error("there is a peer with this public key")]
    Known,
    /// Its public key is our own.
    #[error("the public key is our own")]
    Ourselves,
    /// There are 65,536 peers.
    #[error("there are as many peers as there may be")]
    TooMany,
}
