//! `[timeouts]`: times after which pepd gives up.

use std::{ops::RangeInclusive, time::Duration};

use super::link::Link;
use crate::reading::{
    Section, section,
    values::{Integer, Map, OneOf, Reading, Seconds, Span, WordOr},
};

/// Linux's maximum wait between retransmissions (TCP_RTO_MAX).
pub(crate) const KERNEL_RTO_MAX: Duration = Duration::from_secs(120);

/// Accepted minimum waits before a retransmission. Linux accepts two ticks of its clock (8 ms at
/// HZ=250, 20 ms at HZ=100) up to 200 ms.
const KERNEL_RTO_MIN: RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(200);

/// Longest round trip of links whose flows get a short minimum. Over longer ones the round trip
/// itself rules the timer.
const SHORT_RTT: Duration = Duration::from_millis(100);
/// Minimum wait over short links: above the 40 ms for which most receivers delay an ACK. Linux may
/// delay it by a round trip, older systems by 200 ms: then a lone segment is sent twice.
const SHORT_RTO_MIN: Duration = Duration::from_millis(50);

/// Bytes of a small window: eight full packets.
const WINDOW: u64 = 8 * 1500;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

section! {
    /// Times of TCP keepalives that pepd sends.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Keepalive(s, base: Keepalive) {
        /// Silence before the first probe (TCP_KEEPIDLE), whole seconds.
        idle: Duration = Seconds(1..=32_767), base.idle;
        /// Interval between unanswered probes (TCP_KEEPINTVL), whole seconds.
        interval: Duration = Seconds(1..=32_767), base.interval;
        /// Unanswered probes after which the peer is dead (TCP_KEEPCNT).
        count: u32 = Integer(1..=127), base.count;
    }
}

section! {
    /// Timers of a flow, as `[timeouts]` sets them for all sites and `[site.timeouts]` for one.
    /// `None` means `"off"`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Timeouts(s, base: &Timeouts) {
        /// Maximum time without an ACK of sent data over the link (TCP_USER_TIMEOUT of the link
        /// leg). Off: the kernel's own.
        user_timeout: Option<Duration> = optional(SECOND..=24 * DAY), base.user_timeout;
        /// Maximum wait between retransmissions over the link (TCP_RTO_MAX_MS, Linux 6.15 and
        /// later). Off: the kernel's own, and no [`revival`](crate::outage::revival). Needs
        /// `user_timeout`: a cap left at its default follows that.
        rto_max: Option<Duration> =
            optional(SECOND..=KERNEL_RTO_MAX), base.rto_max_within(user_timeout);
        /// Shortest wait before a retransmission over the link, beyond the round trip
        /// (TCP_RTO_MIN_US, Linux 6.15 and later). Off: the kernel's own 200 ms.
        rto_min: Option<Duration> = optional(KERNEL_RTO_MIN), base.rto_min;
        /// Time for the server to answer pepd's connect.
        connect: Duration = Span(SECOND..=HOUR), base.connect;
        /// Time without a byte in either direction.
        idle: Option<Duration> = optional(SECOND..=365 * DAY), base.idle;
        /// Keepalives of both legs.
        keepalive: KeepalivePolicy = read_keepalive(s, base.keepalive);
        /// Time for the last bytes of a flow that both ends have closed to be acknowledged.
        orphan: Duration = Span(SECOND..=DAY), base.orphan;
    }
}

/// A duration, or `"off"`.
fn optional(range: RangeInclusive<Duration>) -> impl Reading<Value = Option<Duration>> {
    WordOr("off", None, Map(Span(range), Some))
}

/// Keepalives of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepalivePolicy {
    /// True if keepalives of hosts and servers are passed on.
    pub passes: bool,
    /// Times of those that pepd sends on both legs, where they are stated.
    pub own: Option<Keepalive>,
}

impl KeepalivePolicy {
    const OFF: Self = Self {
        passes: false,
        own: None,
    };
    const DEFAULT: Self = Self {
        passes: true,
        own: None,
    };

    /// Times on host legs. A host that sleeps for an hour has not vanished.
    pub fn of_host(self) -> Option<Keepalive> {
        self.own.or(self.passes.then_some(Keepalive::HOST))
    }

    /// Times between a far pepd and the server, to which keepalives of hosts do not come.
    pub fn of_far_leg(self) -> Option<Keepalive> {
        self.own.or(self.passes.then_some(Keepalive::FAR))
    }
}

impl Keepalive {
    /// Not before two hours (RFC 1122 §4.2.3.6), and then as Linux.
    const HOST: Self = Self {
        idle: Duration::from_secs(7200),
        interval: Duration::from_secs(75),
        count: 9,
    };
    /// Before load balancers and NATs forget a connection: many do so after 4 min.
    const FAR: Self = Self {
        idle: Duration::from_secs(180),
        ..Self::STATED
    };
    /// Values of the keys that are missing beside stated ones: 5 min, 30 s, 10 probes.
    const STATED: Self = Self {
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
            rto_min: None,
            keepalive: KeepalivePolicy::DEFAULT,
            orphan: Duration::from_secs(25 * 60),
        }
    }
}

impl Timeouts {
    /// The defaults over this link.
    pub fn over(link: Option<&Link>) -> Self {
        let mut timeouts = Self::default();
        let Some(link) = link else { return timeouts };
        let rtt = link.rtt.unwrap_or_default();
        // On a slow link the packets of a window make most of the round trip.
        let packets = link.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs(WINDOW)
                / u32::try_from(rate.bytes_per_second().max(1)).unwrap_or(u32::MAX)
        });
        let cap = |rto: Duration| rto.max(rtt * 3 + packets).min(KERNEL_RTO_MAX);
        let room = rtt < KERNEL_RTO_MAX;
        timeouts.rto_max = timeouts.rto_max.map(cap).filter(|_| room);
        let is_short = link.rtt.is_some_and(|rtt| rtt <= SHORT_RTT);
        timeouts.rto_min = is_short.then_some(SHORT_RTO_MIN);
        timeouts
    }

    /// Reads a section whose missing keys take the values of `base`. The caller finishes the
    /// section.
    pub(crate) fn read(section: &mut Section<'_>, base: &Self, link: Option<&Link>) -> Self {
        let timeouts = Self::read_keys(section, base);
        timeouts.check(section, link);
        timeouts
    }

    fn rto_max_within(&self, user_timeout: Option<Duration>) -> Option<Duration> {
        let (rto_max, user_timeout) = self.rto_max.zip(user_timeout)?;
        Some(rto_max.min(user_timeout))
    }

    fn check(&self, section: &Section<'_>, link: Option<&Link>) {
        let Some(rto_max) = self.rto_max else { return };
        let span = units::duration::format;
        match self.user_timeout {
            None => section.error(
                "rto_max",
                "needs `user_timeout`: without it the kernel's retry limit would end every flow \
                 some 15 s into an outage; set both, or neither",
            ),
            Some(user_timeout) if user_timeout < rto_max => section.error(
                "user_timeout",
                format!(
                    "is below `rto_max`; accepted: \"{}\" to \"24d\"",
                    span(rto_max)
                ),
            ),
            Some(_) => {}
        }
        if let Some(rtt) = link.and_then(|link| link.rtt).filter(|rtt| rto_max <= *rtt) {
            section.error(
                "rto_max",
                format!(
                    "is not above `link.rtt`: every segment would be retransmitted; accepted: {}\"off\"",
                    above(rtt)
                ),
            );
        }
    }
}

/// Accepted values of `rto_max` over a link of this round-trip time, other than "off".
fn above(rtt: Duration) -> String {
    if rtt >= KERNEL_RTO_MAX {
        return String::new();
    }
    let rtt = units::duration::format(rtt);
    format!("above \"{rtt}\", up to \"2min\" (three times the round-trip time is good), or ")
}

fn read_keepalive(section: &mut Section<'_>, base: KeepalivePolicy) -> KeepalivePolicy {
    if section.is_text("keepalive") {
        let words = OneOf(&[
            ("off", KeepalivePolicy::OFF),
            ("passed", KeepalivePolicy::DEFAULT),
        ]);
        return section.read("keepalive", words).unwrap_or(base);
    }
    let mut table = section.section("keepalive");
    let stated = Keepalive::read_keys(&mut table, base.own.unwrap_or(Keepalive::STATED));
    let keepalive = if table.is_present() {
        KeepalivePolicy {
            // Answers to its own would look like keepalives of the ends.
            passes: false,
            own: Some(stated),
        }
    } else {
        base
    };
    table.finish();
    keepalive
}
