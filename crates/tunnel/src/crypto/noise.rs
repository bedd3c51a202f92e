//! The two messages of the handshake, each with a payload.
//!
//! ```text
//!   initiator                                   responder, whose public key the initiator knows
//!      | e, es, s, ss, payload  ---------------->  |   knows now who it is
//!      |  <------------------ e, ee, se, psk, payload |
//!     keys                                        keys
//! ```

use snow::{Builder, HandshakeState};

use super::{Key, Keys, public_key, resolver::Resolver, seal::TAG_LEN};

/// The name of the handshake in the terms of Noise.
const NAME: &str = "Noise_IKpsk2_25519_AESGCM_SHA256";

/// What both sides must have in mind, so that no other use of the same keys fits.
const PROLOGUE: &[u8] = b"pepd tunnel";

/// Where the shared secret goes: after the second message's DH.
const PSK: usize = 2;

/// What the first message adds to its payload: e; s and its tag; the payload's tag.
pub(crate) const INITIATION_OVERHEAD: usize = 32 + 32 + TAG_LEN + TAG_LEN;

/// What the second message adds to its payload: e, and the payload's tag.
pub(crate) const RESPONSE_OVERHEAD: usize = 32 + TAG_LEN;

/// Who we are.
pub(crate) struct Identity {
    private: Key,
    /// What others know us by.
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

/// A handshake that waits for its response.
pub(crate) struct Initiating(Box<HandshakeState>);

impl Initiating {
    /// Writes the first message to the end of `out`. `seed` must not be used for anything else.
    ///
    /// # Errors
    /// If snow cannot; for keys of the right length it can.
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

    /// Reads the second message, and what it says into `payload`, which must be as long.
    ///
    /// # Errors
    /// If it is not an answer to the first message by the one who was meant; another one may follow.
    pub fn finish(&mut self, message: &[u8], payload: &mut [u8]) -> Result<Keys, snow::Error> {
        self.0.read_message(message, payload)?;
        let (ours, theirs) = self.0.dangerously_get_raw_split();
        Ok(Keys::new(ours, theirs, self.0.get_handshake_hash()))
    }
}

/// A handshake whose first message has been read.
pub(crate) struct Responding {
    state: HandshakeState,
    /// Whose it is: who knows the private key of it.
    pub peer: Key,
}

impl Responding {
    /// Reads the first message, and what it says into `payload`, which must be as long.
    ///
    /// # Errors
    /// If it was not written for us, or is damaged.
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
    /// If snow cannot.
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
