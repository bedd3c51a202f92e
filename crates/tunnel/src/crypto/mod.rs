//! Cryptography: handshake, sealed datagrams, replay protection, and cookies.
//!
//! The handshake is Noise_IKpsk2_25519_AESGCM_SHA256 (The Noise Protocol Framework, revision 34,
//! sections 7.5 and 9), by snow. All randomness comes from seeds passed in by the caller.
//! docs/protocol.md specifies the messages.

mod cookie;
mod mac;
mod noise;
mod resolver;
mod seal;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use cookie::{CookieJar, CookieKey, SEALED_COOKIE_LEN};
pub(crate) use mac::{MAC_LEN, Mac, MacKey};
pub(crate) use noise::{INITIATION_OVERHEAD, Identity, Initiating, RESPONSE_OVERHEAD, Responding};
pub(crate) use seal::{Keys, TAG_LEN};
pub use window::Window;

use snow::{
    params::DHChoice,
    resolvers::{CryptoResolver, DefaultResolver},
};

/// An X25519 key, private or public, or a pre-shared key of two peers.
pub type Key = [u8; 32];

/// Returns the public key of a private one (X25519, RFC 7748; any 32 bytes are a private key).
pub fn public_key(private: &Key) -> Key {
    let mut public = [0; 32];
    if let Some(mut dh) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
        dh.set(private);
        public.copy_from_slice(dh.pubkey());
    }
    public
}

/// Compares in constant time.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}
