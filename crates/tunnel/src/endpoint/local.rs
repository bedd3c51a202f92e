//! State shared by all peers of an endpoint.

use std::time::Duration;

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{EndpointConfig, Limits, Shard};
use crate::crypto::{CookieKey, Identity, Key, MacKey};

/// Identity of the endpoint, and keys derived from it.
pub(super) struct Local {
    pub identity: Identity,
    /// MAC key of messages to the local end.
    pub mac: MacKey,
    /// Seals cookies made by the local end.
    pub cookie: CookieKey,
    pub limits: Limits,
    pub shard: Shard,
    /// True during shutdown: no session begins any more.
    pub ending: bool,
    /// Reports wait until then.
    pub reports_from: Duration,
    random: ChaCha20Rng,
    /// Seeds of the packet numbers that sessions leave out.
    skips: ChaCha20Rng,
}

/// Number of the stream of random numbers for those left out.
const SKIPS: u64 = 1;

impl Local {
    pub fn new(config: &EndpointConfig) -> Self {
        let identity = Identity::new(config.private_key);
        let mut skips = ChaCha20Rng::from_seed(config.seed);
        skips.set_stream(SKIPS);
        Self {
            mac: MacKey::of_recipient(&identity.public),
            cookie: CookieKey::of_responder(&identity.public),
            identity,
            limits: config.limits,
            shard: Shard::default(),
            ending: false,
            reports_from: Duration::ZERO,
            random: ChaCha20Rng::from_seed(config.seed),
            skips,
        }
    }

    /// Returns random bytes, used only once.
    pub fn random<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// Returns the seed for the packet numbers that the sessions of a peer leave out.
    pub fn skip_seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.skips.fill_bytes(&mut seed);
        seed
    }

    /// Returns the seed of one handshake.
    pub fn seed(&mut self) -> Key {
        self.random()
    }

    /// Returns the randomised time until the next initiation: both ends must not stay in step.
    pub fn retry(&mut self, limits: &Limits) -> Duration {
        let share = u32::from(u16::from_be_bytes(self.random()));
        limits.retry * 4 / 5 + limits.retry * 2 / 5 * share / u32::from(u16::MAX)
    }
}
