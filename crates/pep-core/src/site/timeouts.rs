//! Times after which pepd gives up, and those after which it does not.

use std::time::Duration;

use super::link::Link;

/// Linux waits no longer than this before it sends again (TCP_RTO_MAX).
pub(crate) const KERNEL_RTO_MAX: Duration = Duration::from_secs(120);

/// TCP keepalive of both legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe (TCP_KEEPIDLE), whole seconds, 1 s to 32,767 s.
    /// Default 5 min: shorter than the idle timeouts of the NATs and modems on the way, and
    /// 8192 idle flows cost the link no more than 11 kbit/s.
    pub idle: Duration,
    /// Between probes that go unanswered (TCP_KEEPINTVL), whole seconds, 1 s to 32,767 s.
    /// Default 30 s.
    pub interval: Duration,
    /// Unanswered probes after which the peer is dead (TCP_KEEPCNT), 1 to 127. Default 10:
    /// with the others, 10 minutes in all. On the link leg `user_timeout` decides instead.
    pub count: u32,
}

/// Timers of a flow, as `[timeouts]` sets them for all sites and `[site.timeouts]` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// For the server to answer our connect, 1 s to 1 h. Default 130 s: TCP itself gives up
    /// after 127 s (net.ipv4.tcp_syn_retries = 6), and in `spoof` the host already believes
    /// it is connected, so ending earlier would break what would have worked without us.
    pub connect: Duration,
    /// Without a byte in either direction, 1 s to 365 days, or "off" (`None`). Default
    /// 24 h: dead hosts are found by keepalive within minutes, so this is only the last bound;
    /// ssh sessions and database pools are silent for hours, and RFC 5382 (REQ-5)
    /// asks NATs for at least 2 h 4 min.
    pub idle: Option<Duration>,
    /// For sent data to be acknowledged over the link (TCP_USER_TIMEOUT of the link leg), 1 s
    /// to 24 days, or "off" (`None`): the kernel's own. Default 25 min: hosts' own TCP lasts for 15
    /// (net.ipv4.tcp_retries2 = 15 is 924 s), and an outage as long as that is to end no flow that
    /// would have lived without us, nor one that had been silent for as long as `keepalive.idle` and some before.
    pub user_timeout: Option<Duration>,
    /// Longest wait between retransmissions over the link (TCP_RTO_MAX_MS, Linux 6.15 and
    /// later), 1 s to 120 s, or "off" (`None`): the kernel's own, 120 s. Default 2 s, or three
    /// times `link.rtt` where that is longer: flows that ask for the link move again even sooner after an outage
    /// ([`revival`](crate::outage::revival), which "off" switches off too), others as soon as this, not
    /// up to two minutes later. Needs `user_timeout`: the kernel counts retransmissions, and
    /// capped ones alone would end every flow some 15 s into an outage. By default
    /// never above `user_timeout`, and off where that is, or where `link.rtt` is 2 min or
    /// more: a cap above it is not to be had.
    pub rto_max: Option<Duration>,
    /// Keepalive of both legs; `None` where `keepalive = "off"`. Default on: without it the
    /// flows of hosts that vanished would stay until `idle`.
    pub keepalive: Option<Keepalive>,
    /// For the last bytes of a flow that both ends have closed to be acknowledged, 1 s to
    /// 24 h. Default 25 min, as `user_timeout`: a file whose end is caught by an outage
    /// still arrives.
    pub orphan: Duration,
}

impl Keepalive {
    /// 5 min, 30 s, 10 probes.
    pub const DEFAULT: Self = Self {
        idle: Duration::from_secs(300),
        interval: Duration::from_secs(30),
        count: 10,
    };
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(130),
            idle: Some(Duration::from_secs(24 * 3600)),
            user_timeout: Some(Duration::from_secs(25 * 60)),
            rto_max: Some(Duration::from_secs(2)),
            keepalive: Some(Keepalive::DEFAULT),
            orphan: Duration::from_secs(25 * 60),
        }
    }
}

impl Timeouts {
    /// The defaults over this link.
    pub fn over(link: Option<&Link>) -> Self {
        let mut timeouts = Self::default();
        if let Some(rtt) = link.and_then(|link| link.rtt) {
            let cap = |rto: Duration| rto.max(rtt * 3).min(KERNEL_RTO_MAX);
            let room = rtt < KERNEL_RTO_MAX;
            timeouts.rto_max = timeouts.rto_max.map(cap).filter(|_| room);
        }
        timeouts
    }
}
