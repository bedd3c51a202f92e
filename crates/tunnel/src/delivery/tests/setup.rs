//! Configuration of the emulated link and both ends.

use std::time::Duration;

use winkemu_link::{Direction, Engine, LinkConfig, LinkOptions, RateModel};

use crate::session::Outages;

#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Options in winkemu's syntax: for both directions, and differences of the return path.
    pub(super) link: String,
    pub(super) back: String,
    /// Sending rate of each end in bits per second.
    pub(super) rates: [u64; 2],
    pub(super) rtt: Duration,
    pub(super) outages: Outages,
    /// Segments of each end.
    pub(super) segments: [u64; 2],
    pub(super) seed: u64,
}

impl Setup {
    pub(super) fn link(&self) -> LinkConfig {
        let mut options: LinkOptions = self.link.parse().unwrap();
        options.ba = Some(self.back.parse().unwrap());
        options.resolve_without_files().unwrap()
    }

    /// Returns the share of the time until then for which the forward path is up.
    pub(super) fn up_share(&self, until: Duration) -> f64 {
        let mut link = self.link();
        link.ab.rate = RateModel::Unlimited;
        link.ab.loss = Default::default();
        let mut engine = Engine::new(&link, self.seed);
        let instants = until.as_micros() as u64 / 500;
        for instant in 0..instants {
            engine.handle_packet(Direction::AtoB, &[0], instant * 500_000);
        }
        let mut up = 0;
        while engine.poll_deliver(u64::MAX).is_some() {
            up += 1;
        }
        f64::from(up) / instants as f64
    }
}
