//! Keys: generation, and key files.
//!
//! A key file is text: one line with the key in base64. Lines that begin with `#`, and blank ones,
//! are ignored.

mod file;

use pep_core::key::{KEY_BYTES, PublicKey, SecretKey};
use ring::rand::{SecureRandom as _, SystemRandom};

pub use file::{KeyFileError, is_open_to_others, read, write};

/// The operating system provides no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system provides no random bytes")]
pub struct NoRandomness;

/// Returns random bytes of the operating system, for keys and seeds.
///
/// # Errors
/// When the system has none; on Linux only in the first moments after booting.
pub fn random() -> Result<[u8; KEY_BYTES], NoRandomness> {
    let mut bytes = [0; KEY_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// Generates an X25519 private key or a pre-shared key: any 32 bytes are valid.
///
/// # Errors
/// As [`random`].
pub fn generate() -> Result<SecretKey, NoRandomness> {
    random().map(SecretKey::new)
}

/// Returns the public key of a private one (RFC 7748), with the code that the handshakes use.
pub fn public_key(private: &SecretKey) -> PublicKey {
    PublicKey(tunnel::crypto::public_key(private.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748 §6.1: Alice's keys.
    #[test]
    fn public_keys_are_those_of_the_standard() {
        let private = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2,
            0x66, 0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5,
            0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let public = [
            0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54, 0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e,
            0xf7, 0x5a, 0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4, 0xeb, 0xa4, 0xa9, 0x8e,
            0xaa, 0x9b, 0x4e, 0x6a,
        ];
        assert_eq!(public_key(&SecretKey::new(private)), PublicKey(public));
    }

    #[test]
    fn no_two_keys_are_alike() {
        assert_ne!(generate(), generate());
    }
}
