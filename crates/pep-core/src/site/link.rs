//! The bad hop, as an operator states it.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use units::Rate;

use super::names::IfName;

/// `[link]`: the bad hop. Optional; what it states is used to size buffers and pace senders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The interface that leads to it.
    pub interface: IfName,
    /// Rate in bit/s at which pepd may send into it. `None` (`"auto"`, the default): unknown, send
    /// buffers are left to the kernel's autotuning and flows are not paced.
    pub rate: Option<Rate>,
    /// Rate in bit/s of what comes from it. `None` (the default): unknown. Bounds receive buffers
    /// and the room for what a peer sends; limits no flow.
    pub rate_down: Option<Rate>,
    /// Its round-trip time when idle, 1 us to 10 min. Default none: unknown.
    pub rtt: Option<Duration>,
    /// True where nothing else uses the link; default false. Statements of sites and peers take
    /// precedence.
    pub dedicated: bool,
    /// Fate of new flows of mode `split` whose route leads by another interface; default
    /// [`Elsewhere::Pass`].
    pub elsewhere: Elsewhere,
    /// The file that says when it is there (a contact plan, [`units::contacts`]). Default none.
    pub contacts: Option<PathBuf>,
    /// Who beyond the link is asked whether it is there. Default nobody.
    pub gateway: Option<IpAddr>,
    /// How often, 100 ms to 1 h; default [`Link::GATEWAY_EVERY`].
    pub gateway_every: Duration,
}

/// Fate of new flows that do not cross the link, as their route leads by another interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Elsewhere {
    /// The kernel forwards them (default).
    #[default]
    Pass,
    /// pepd carries them as if they crossed it: the route leads by an interface above the link's, a
    /// VPN's for example.
    Split,
}

impl Link {
    /// How often a gateway is asked where nothing else is said: some 200 bit/s with IPv4.
    pub const GATEWAY_EVERY: Duration = Duration::from_secs(5);

    /// Bytes in flight toward the link when it is full, where `rate` and `rtt` are both stated.
    pub fn bandwidth_delay_product(&self) -> Option<u64> {
        Some(self.rate?.bandwidth_delay_product(self.rtt?))
    }

    /// Bytes in flight on the faster of its directions, where `rate_down` and `rtt` are both
    /// stated.
    ///
    /// `rate` alone says nothing of what comes from the link: terminals receive 5 to 20 times as
    /// fast as they send.
    pub fn largest_bandwidth_delay_product(&self) -> Option<u64> {
        let rate = self.rate_down?;
        let fastest = self.rate.map_or(rate, |up| up.max(rate));
        Some(fastest.bandwidth_delay_product(self.rtt?))
    }
}
