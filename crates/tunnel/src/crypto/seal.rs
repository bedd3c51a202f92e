//! The keys of a session, and sealing datagrams where they are.
//!
//! snow's transport state would copy every packet, so ring is asked directly, with the keys that the
//! handshake ends in. They are the keys of Noise's Split(), the nonces those of Noise's AESGCM.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::Key;

/// What a seal adds at the end, in bytes.
pub(crate) const TAG_LEN: usize = 16;

/// The nonce of the seal that confirms keys. Packet numbers are below.
const CONFIRM: u64 = u64::MAX - 1;

/// What two peers seal with until they have new keys.
pub(crate) struct Keys {
    ours: LessSafeKey,
    theirs: LessSafeKey,
    /// The beginning of the handshake's hash, which is the same at both ends and of no other handshake.
    pub name: u64,
}

/// The seal is not the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Keys {
    /// For sealing and opening, and the handshake's hash (32 bytes).
    pub fn new(ours: Key, theirs: Key, hash: &[u8]) -> Self {
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

    /// Seals what follows the first `header` bytes from `start` on, which are authenticated with it. Each number only
    /// once.
    pub fn seal(&self, number: u64, start: usize, header: usize, datagram: &mut Vec<u8>) {
        let (header, packet) = datagram[start..].split_at_mut(header);
        let tag = self
            .ours
            .seal_in_place_separate_tag(nonce(number), Aad::from(&*header), packet);
        // Only texts of 64 GiB and more cannot be sealed; zeros are no valid tag of anything.
        match tag {
            Ok(tag) => datagram.extend_from_slice(tag.as_ref()),
            Err(_) => datagram.extend_from_slice(&[0; TAG_LEN]),
        }
    }

    /// Opens what follows the first `header` bytes, and returns it.
    ///
    /// # Errors
    /// If any bit of it or of the header is not the peer's. The datagram is then in ruins.
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

    /// Appends the seal of nothing but a header that begins at `start`: whoever wrote it has these keys. It is the same
    /// each time.
    pub fn confirm(&self, start: usize, header: usize, datagram: &mut Vec<u8>) {
        self.seal(CONFIRM, start, header, datagram);
    }

    /// Whether the peer confirms these keys.
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
