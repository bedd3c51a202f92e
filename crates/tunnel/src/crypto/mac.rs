//! First, cheap check of handshake messages: the sender must know the recipient's public key.

use ring::{digest, hmac};

use super::{Key, equal};

/// Length of a [`Mac`].
pub(crate) const MAC_LEN: usize = 16;

/// First half of HMAC-SHA256 (RFC 2104, section 5).
pub(crate) type Mac = [u8; MAC_LEN];

/// Key of a MAC.
#[derive(Clone)]
pub(crate) struct MacKey(hmac::Key);

impl MacKey {
    /// Derives the key for messages to the owner of a public key.
    pub fn of_recipient(public: &Key) -> Self {
        Self::new(&labelled(b"pepd mac1", public))
    }

    pub fn new(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    pub fn mac(&self, message: &[u8]) -> Mac {
        let tag = hmac::sign(&self.0, message);
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(&tag.as_ref()[..MAC_LEN]);
        mac
    }

    pub fn verify(&self, message: &[u8], mac: &[u8]) -> bool {
        equal(&self.mac(message), mac)
    }
}

/// Returns SHA-256 over a label and a public key.
pub(super) fn labelled(label: &[u8], public: &Key) -> Key {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(label);
    context.update(public);
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}
