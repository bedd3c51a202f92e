//! The two messages of the handshake, each with a payload.
//!
//! ```text
//!   initiator                                   responder, whose public key the initiator knows
//!      | e, es, s, ss, payload  ---------------->  |   identifies the initiator
//!      |  <------------------ e, ee, se, psk, payload |
//!     keys                                        keys
//! ```

use snow::{Builder, HandshakeState};
use zeroize::Zeroize as _;

use super::{Key, Keys, public_key, resolver::Resolver, seal::TAG_LEN};

/// Noise protocol name of the handshake.
const NAME: &str = "Noise_IKpsk2_25519_AESGCM_SHA256";

/// Context that both sides include, so that no other use of the same keys fits.
const PROLOGUE: &[u8] = b"pepd tunnel";

/// Position of the pre-shared key: after the second message's DH.
const PSK: usize = 2;

/// Bytes that the first message adds to its payload: e; s and its tag; the payload's tag.
pub(crate) const INITIATION_OVERHEAD: usize = 32 + 32 + TAG_LEN + TAG_LEN;

/// Bytes that the second message adds to its payload: e, and the payload's tag.
pub(crate) const RESPONSE_OVERHEAD: usize = 32 + TAG_LEN;

/// Static key pair of the local end.
pub(crate) struct Identity {
    private: Key,
    /// Public key, by which peers identify the local end.
    pub public: Key,
}

impl Identity {
    pub fn new(private: Key) -> Self {
        let public = public_key(&private);
        Self { private, public }
    }

    fn builder(&self, seed: Key) -> Result<Builder<'_>, snow::Error> {
        Builder::with_resolver(NAME.parse()?, Box::new(Resolver { seed }))
            .local_private_key(&self.private)?
            .prologue(PROLOGUE)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.private.zeroize();
    }
}

/// A handshake that waits for its response.
pub(crate) struct Initiating(Box<HandshakeState>);

impl Initiating {
    /// Writes the first message to the end of `out`. `seed` must not be used for anything else.
    ///
    /// # Errors
    /// snow fails; it does not for keys of the right length.
    pub fn begin(
        us: &Identity,
        peer: &Key,
        psk: &Key,
        seed: Key,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Self, snow::Error> {
        let mut state = us
            .builder(seed)?
            .remote_public_key(peer)?
            .psk(PSK as u8, psk)?
            .build_initiator()?;
        write(&mut state, payload, INITIATION_OVERHEAD, out)?;
        Ok(Self(Box::new(state)))
    }

    /// Reads the second message and its payload, into `payload` of exactly that length.
    ///
    /// # Errors
    ///
    /// The message is not the intended responder's answer to the first message; another one may
    /// follow.
    pub fn finish(&mut self, message: &[u8], payload: &mut [u8]) -> Result<Keys, snow::Error> {
        self.0.read_message(message, payload)?;
        let (ours, theirs) = self.0.dangerously_get_raw_split();
        Ok(Keys::new(ours, theirs, self.0.get_handshake_hash()))
    }
}

/// A handshake whose first message has been read.
pub(crate) struct Responding {
    state: HandshakeState,
    /// Public key of the initiator, which has proved to hold the private one.
    pub peer: Key,
}

impl Responding {
    /// Reads the first message and its payload, into `payload` of exactly that length.
    ///
    /// # Errors
    /// The message was not written for the local end, or is damaged.
    pub fn read(
        us: &Identity,
        seed: Key,
        message: &[u8],
        payload: &mut [u8],
    ) -> Result<Self, snow::Error> {
        let mut state = us.builder(seed)?.build_responder()?;
        state.read_message(message, payload)?;
        let mut peer = [0; 32];
        match state.get_remote_static() {
            Some(key) if key.len() == peer.len() => peer.copy_from_slice(key),
            _ => return Err(snow::Error::Input),
        }
        Ok(Self { state, peer })
    }

    /// Writes the second message to the end of `out`.
    ///
    /// # Errors
    /// snow fails.
    pub fn answer(
        mut self,
        psk: &Key,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Keys, snow::Error> {
        self.state.set_psk(PSK, psk)?;
        write(&mut self.state, payload, RESPONSE_OVERHEAD, out)?;
        let (theirs, ours) = self.state.dangerously_get_raw_split();
        Ok(Keys::new(ours, theirs, self.state.get_handshake_hash()))
    }
}

fn write(
    state: &mut HandshakeState,
    payload: &[u8],
    overhead: usize,
    out: &mut Vec<u8>,
) -> Result<(), snow::Error> {
    let start = out.len();
    out.resize(start + payload.len() + overhead, 0);
    let written = state.write_message(payload, &mut out[start..])?;
    out.truncate(start + written);
    Ok(())
}
