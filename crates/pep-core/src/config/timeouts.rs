//! `[timeouts]`: when pepd gives up, and when it does not.

use std::time::Duration;

use super::{Keepalive, Link, Timeouts};
use crate::reading::{
    Section,
    values::{Integer, Map, OneOf, Reading, Seconds, Span, WordOr},
};
use crate::site::timeouts::KERNEL_RTO_MAX;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A duration, or `"off"`.
fn optional(range: std::ops::RangeInclusive<Duration>) -> impl Reading<Value = Option<Duration>> {
    WordOr("off", None, Map(Span(range), Some))
}

impl Timeouts {
    /// Reads what a section says otherwise than `base`. The caller finishes the section.
    pub(super) fn read(section: &mut Section<'_>, base: &Self, link: Option<&Link>) -> Self {
        let user_timeout = section.read("user_timeout", optional(SECOND..=24 * DAY));
        let rto_max = section.read("rto_max", optional(SECOND..=KERNEL_RTO_MAX));
        let user_timeout_or_base = user_timeout.unwrap_or(base.user_timeout);
        // Both or neither: a cap left at its default follows the timeout it needs.
        let rto_max_base = user_timeout_or_base
            .and_then(|user_timeout| base.rto_max.map(|rto_max| rto_max.min(user_timeout)));
        let timeouts = Self {
            connect: section
                .read("connect", Span(SECOND..=HOUR))
                .unwrap_or(base.connect),
            idle: section
                .read("idle", optional(SECOND..=365 * DAY))
                .unwrap_or(base.idle),
            user_timeout: user_timeout_or_base,
            rto_max: rto_max.unwrap_or(rto_max_base),
            keepalive: read_keepalive(section, base.keepalive),
            orphan: section
                .read("orphan", Span(SECOND..=DAY))
                .unwrap_or(base.orphan),
        };
        timeouts.check(section, link);
        timeouts
    }

    fn check(&self, section: &Section<'_>, link: Option<&Link>) {
        let Some(rto_max) = self.rto_max else { return };
        let span = units::duration::format;
        match self.user_timeout {
            None => section.error(
                "rto_max",
                "needs `user_timeout`: retransmissions that are capped but still counted would \
                 end every flow some 15 s into an outage; give both, or neither",
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
                    "is not above `link.rtt`: everything would be sent twice; accepted: {}\"off\"",
                    above(rtt)
                ),
            );
        }
    }
}

/// What `rto_max` may be over a link of this round-trip time, beside "off".
fn above(rtt: Duration) -> String {
    if rtt >= KERNEL_RTO_MAX {
        return String::new();
    }
    let rtt = units::duration::format(rtt);
    format!("above \"{rtt}\", up to \"2min\" (three times the round-trip time is good), or ")
}

fn read_keepalive(section: &mut Section<'_>, base: Option<Keepalive>) -> Option<Keepalive> {
    if section.is_text("keepalive") {
        return section.read("keepalive", OneOf(&[("off", None)])).flatten();
    }
    let mut table = section.section("keepalive");
    let d = base.unwrap_or(Keepalive::DEFAULT);
    let keepalive = Keepalive {
        idle: table.read("idle", Seconds(1..=32_767)).unwrap_or(d.idle),
        interval: table
            .read("interval", Seconds(1..=32_767))
            .unwrap_or(d.interval),
        count: table.read("count", Integer(1..=127)).unwrap_or(d.count),
    };
    let keepalive = if table.is_present() {
        Some(keepalive)
    } else {
        base
    };
    table.finish();
    keepalive
}
