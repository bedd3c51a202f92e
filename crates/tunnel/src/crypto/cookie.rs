//! Cookies: prove that an initiator receives at its source address.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::{
    Key, MAC_LEN, Mac, MacKey,
    mac::labelled,
    seal::{Forged, TAG_LEN},
};

/// Length of nonce, cookie and tag.
pub(crate) const SEALED_COOKIE_LEN: usize = NONCE_LEN + MAC_LEN + TAG_LEN;

const NONCE_LEN: usize = 12;

/// Lifetime of a secret; its cookies are accepted for as long again.
const EPOCH: Duration = Duration::from_secs(120);

/// Stateless maker and verifier of cookies.
pub(crate) struct CookieJar {
    secret: MacKey,
}

impl CookieJar {
    pub fn new(secret: &Key) -> Self {
        let secret = MacKey::new(secret);
        Self { secret }
    }

    /// Returns the cookie of an address.
    pub fn bake(&self, now: Duration, from: SocketAddr) -> Mac {
        self.of_epoch(epoch(now), from)
    }

    /// Returns true if a message is signed with a cookie of that address no older than four
    /// minutes.
    pub fn is_ours(&self, now: Duration, from: SocketAddr, message: &[u8], mac: &[u8]) -> bool {
        let epoch = epoch(now);
        [epoch, epoch.wrapping_sub(1)]
            .into_iter()
            .any(|epoch| MacKey::new(&self.of_epoch(epoch, from)).verify(message, mac))
    }

    fn of_epoch(&self, epoch: u64, from: SocketAddr) -> Mac {
        let mut input = [0; 8 + 16 + 2];
        input[..8].copy_from_slice(&epoch.to_be_bytes());
        input[8..24].copy_from_slice(&octets(from.ip()));
        input[24..].copy_from_slice(&from.port().to_be_bytes());
        self.secret.mac(&input)
    }
}

fn epoch(now: Duration) -> u64 {
    now.as_secs() / EPOCH.as_secs()
}

/// Returns an address in IPv6 form.
pub(super) fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Key that seals cookies on their way to the initiator. Reading or forging one takes the
/// initiation and the responder's public key.
pub(crate) struct CookieKey(LessSafeKey);

impl CookieKey {
    /// Derives the key for cookies of the owner of a public key.
    pub fn of_responder(public: &Key) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &labelled(b"pepd cookie", public))
            .expect("AES-256 takes any 32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// Appends nonce and sealed cookie to `out`; `mac1` is that of the initiation.
    pub fn seal(&self, nonce: [u8; NONCE_LEN], mac1: &Mac, cookie: Mac, out: &mut Vec<u8>) {
        let mut sealed = cookie;
        let tag = self.0.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(mac1),
            &mut sealed,
        );
        if let Ok(tag) = tag {
            out.extend_from_slice(&nonce);
            out.extend_from_slice(&sealed);
            out.extend_from_slice(tag.as_ref());
        }
    }

    /// Returns the cookie in an answer to the initiation with that `mac1`.
    pub fn open(&self, mac1: &Mac, sealed: &mut [u8]) -> Result<Mac, Forged> {
        let (nonce, sealed) = sealed.split_first_chunk_mut::<NONCE_LEN>().ok_or(Forged)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let cookie = self
            .0
            .open_in_place(nonce, Aad::from(mac1), sealed)
            .map_err(|_| Forged)?;
        Mac::try_from(&*cookie).map_err(|_| Forged)
    }
}
