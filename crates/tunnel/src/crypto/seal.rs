//! Session keys, and in-place sealing of datagrams.
//!
//! snow's transport state would copy every packet, so ring is called directly, with the keys of the
//! handshake. These are the keys of Noise's Split(), with the nonces of Noise's AESGCM.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::Key;

/// Length of a seal, in bytes.
pub(crate) const TAG_LEN: usize = 16;

/// Nonce of the seal that confirms keys. Packet numbers are below.
const CONFIRM: u64 = u64::MAX - 1;

/// Keys of one handshake, used until the next.
pub(crate) struct Keys {
    ours: LessSafeKey,
    theirs: LessSafeKey,
    /// First bytes of the handshake's hash: the same at both ends, and unique to the handshake.
    pub name: u64,
}

/// The seal is not the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Keys {
    /// Creates the keys for sealing and opening; `hash` is the handshake's (32 bytes).
    pub fn new(ours: Key, theirs: Key, hash: &[u8]) -> Self {
        let [ours, theirs] = [ours, theirs].map(Zeroizing::new);
        let mut name = [0; 8];
        for (to, from) in name.iter_mut().zip(hash) {
            *to = *from;
        }
        Self {
            ours: aes(&ours),
            theirs: aes(&theirs),
            name: u64::from_be_bytes(name),
        }
    }

    /// Seals everything after the first `header` bytes from `start` on; the header is
    /// authenticated. A number must not be reused.
    pub fn seal(&self, number: u64, start: usize, header: usize, datagram: &mut Vec<u8>) {
        let (header, packet) = datagram[start..].split_at_mut(header);
        let tag = self
            .ours
            .seal_in_place_separate_tag(nonce(number), Aad::from(&*header), packet);
        // Fails only for texts of 64 GiB or more; zeros are never a valid tag.
        match tag {
            Ok(tag) => datagram.extend_from_slice(tag.as_ref()),
            Err(_) => datagram.extend_from_slice(&[0; TAG_LEN]),
        }
    }

    /// Opens everything after the first `header` bytes, and returns it.
    ///
    /// # Errors
    /// Some bit of it or of the header is not the peer's. The datagram is unusable then.
    pub fn open<'a>(
        &self,
        number: u64,
        header: usize,
        datagram: &'a mut [u8],
    ) -> Result<&'a mut [u8], Forged> {
        let Some((header, sealed)) = datagram.split_at_mut_checked(header) else {
            return Err(Forged);
        };
        self.theirs
            .open_in_place(nonce(number), Aad::from(&*header), sealed)
            .map_err(|_| Forged)
    }

    /// Appends a seal over a header that begins at `start`, without contents: it proves possession
    /// of the keys. Deterministic.
    pub fn confirm(&self, start: usize, header: usize, datagram: &mut Vec<u8>) {
        self.seal(CONFIRM, start, header, datagram);
    }

    /// Returns true if the datagram is the peer's confirmation of these keys.
    pub fn is_confirmation(&self, header: usize, datagram: &mut [u8]) -> bool {
        self.open(CONFIRM, header, datagram) == Ok(&mut [])
    }
}

fn aes(key: &Key) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key).expect("AES-256 takes any 32 bytes");
    LessSafeKey::new(key)
}

/// Noise, section 12.4: 32 zero bits, then the number.
fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
