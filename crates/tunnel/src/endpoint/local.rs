//! What all peers of an endpoint have in common.

use std::time::Duration;

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{EndpointConfig, Limits};
use crate::crypto::{CookieKey, Identity, Key, MacKey};

/// Our identity, and what follows from it.
pub(super) struct Local {
    pub identity: Identity,
    /// Of messages to us.
    pub mac: MacKey,
    /// Seals the cookies that we give.
    pub cookie: CookieKey,
    pub limits: Limits,
    /// No session begins any more.
    pub ending: bool,
    random: ChaCha20Rng,
}

impl Local {
    pub fn new(config: &EndpointConfig) -> Self {
        let identity = Identity::new(config.private_key);
        Self {
            mac: MacKey::of_recipient(&identity.public),
            cookie: CookieKey::of_responder(&identity.public),
            identity,
            limits: config.limits,
            ending: false,
            random: ChaCha20Rng::from_seed(config.seed),
        }
    }

    /// Random bytes that nobody else gets.
    pub fn random<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// For one handshake.
    pub fn seed(&mut self) -> Key {
        self.random()
    }

    /// The time until the next initiation: both ends must not try in step for ever.
    pub fn retry(&mut self, limits: &Limits) -> Duration {
        let share = u32::from(u16::from_be_bytes(self.random()));
        limits.retry * 4 / 5 + limits.retry * 2 / 5 * share / u32::from(u16::MAX)
    }
}
