//! Tunnel keys as text: 32 bytes in base64, 44 characters, like those of WireGuard.

use std::{fmt, str::FromStr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Reason why a text is not a key. Describes the accepted form; never quotes the text, which may be
/// secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not base64 of 32 bytes.
    #[error(
        "not a key; expected 32 bytes as 44 characters of base64, as `pepd keygen` prints them"
    )]
    Form,
    /// All bytes are zero, which no key generator makes.
    #[error("a key of zeros only; expected one made by `pepd keygen`")]
    Zero,
}

fn parse(text: &str) -> Result<[u8; KEY_BYTES], KeyError> {
    let bytes = BASE64_STANDARD.decode(text.trim());
    let bytes = Zeroizing::new(bytes.map_err(|_| KeyError::Form)?);
    let key: [u8; KEY_BYTES] = bytes.as_slice().try_into().map_err(|_| KeyError::Form)?;
    if key == [0; KEY_BYTES] {
        return Err(KeyError::Zero);
    }
    Ok(key)
}

/// An X25519 public key (RFC 7748), which identifies a pepd to its peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        parse(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A private key, or a key that two peers share. Debug output hides it, and dropping it overwrites
/// its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; KEY_BYTES]);

impl SecretKey {
    /// Wraps the bytes of a key.
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The key as base64 text.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE64_STANDARD.encode(self.0))
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        parse(text).map(Self)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

    #[test]
    fn text_and_bytes_agree() {
        let key: PublicKey = TEXT.parse().expect("a key");
        assert_eq!(key.0[..3], [1, 2, 3]);
        assert_eq!(key.to_string(), TEXT);
        let secret: SecretKey = format!(" {TEXT}\n").parse().expect("a key");
        assert_eq!((secret.bytes(), secret.reveal().as_str()), (&key.0, TEXT));
    }

    #[test]
    fn what_is_no_key_is_refused_and_secrets_are_not_shown() {
        let short = &TEXT[4..];
        let url_safe = TEXT.replace('H', "-");
        for text in [
            "",
            "AAAA",
            short,
            &url_safe,
            &TEXT[..43],
            "not base64 at all",
        ] {
            assert_eq!(text.parse::<PublicKey>(), Err(KeyError::Form), "{text}");
        }
        let zero = format!("{}=", "A".repeat(43));
        assert_eq!(zero.parse::<SecretKey>(), Err(KeyError::Zero));
        let secret: SecretKey = TEXT.parse().expect("a key");
        assert_eq!(format!("{secret:?}"), "(secret)");
    }
}
