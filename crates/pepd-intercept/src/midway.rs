//! Connections that another pepd has split, and that now pass through this machine: the I/O around
//! [`pep_core::midway`].

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use pep_core::{
    config::Config,
    midway::{Judge, Reset, Segment, Verdict},
    pace::{Line, Lines, Pace},
};
use pepd_sys::{marks::MarkSet, packet_log::PacketLog, stats::Counters};
use tracing::{debug, info, warn};

use super::{
    raw::RawSender,
    rules::{CopyTo, FROM_HOSTS, HEADERS},
};

/// At most one line of the log in this time.
const LINES: Duration = Duration::from_secs(10);

/// Task that resets connections which another pepd has split.
#[derive(Debug)]
pub struct MidwayTask {
    log: PacketLog,
    judge: Judge,
    began: Instant,
    lines: Lines,
    counters: Arc<Counters>,
    /// conntrack knows the connection as it is toward the link, perhaps with NAT.
    to_link: RawSender,
    /// Packets to hosts are not tracked: NAT does not concern them.
    to_hosts: RawSender,
}

impl MidwayTask {
    /// Returns the task; `None` with a warning if it cannot work. Must be called within a tokio
    /// runtime.
    pub(super) fn or_warn(config: &Config, ipv6: bool, counters: &Arc<Counters>) -> Option<Self> {
        let task = Self::new(config, ipv6, counters);
        task.inspect_err(Self::warn).ok()
    }

    fn new(config: &Config, ipv6: bool, counters: &Arc<Counters>) -> io::Result<Self> {
        let intercept = &config.intercept;
        let marks = MarkSet::new(intercept.marks);
        let link = config.link.as_ref().map(|link| link.interface.as_str());
        // One-armed, all packets seem to come from hosts, and each end may be behind NAT.
        let is_lan = |name| intercept.lan.iter().any(|lan| lan.as_str() == name);
        let to_hosts = match link.is_some_and(is_lan) {
            true => marks.passed(),
            false => marks.client_leg(),
        };
        Ok(Self {
            log: PacketLog::open(CopyTo::midway(config), HEADERS)?,
            judge: Judge::default(),
            began: Instant::now(),
            lines: Lines::new(Pace::new(LINES, 1)),
            counters: Arc::clone(counters),
            to_link: RawSender::new(marks.passed(), ipv6)?,
            to_hosts: RawSender::new(to_hosts, ipv6)?,
        })
    }

    fn warn(err: &io::Error) {
        warn!(
            error = %err,
            "cannot read the packet filter's log (NFLOG): connections that another pepd has split hang after a take-over; if another program reads the group that is numbered as `intercept.listen_port`, change that"
        );
    }

    /// Runs until the log has failed for good.
    pub async fn run(mut self) {
        let mut arrived = Vec::new();
        loop {
            let take = |prefix: &[u8], packet: &[u8]| {
                let of_host = prefix == FROM_HOSTS.as_bytes();
                arrived.extend(Segment::parse(packet).map(|segment| (of_host, segment)));
            };
            if let Err(err) = self.log.next(take).await {
                return Self::warn(&err);
            }
            for (of_host, segment) in arrived.drain(..) {
                self.judge(of_host, segment);
            }
        }
    }

    fn judge(&mut self, of_host: bool, segment: Segment) {
        let now = self.began.elapsed();
        let verdict = self.judge.handle(segment, now);
        debug!(
            of_host,
            ?segment,
            ?verdict,
            "packet of a connection that began elsewhere"
        );
        match verdict {
            Verdict::Waits => {}
            Verdict::Fits => self.counters.update(|stats| stats.midway_passed += 1),
            // The second is for the sender of this segment.
            Verdict::Split([first, second]) => {
                self.counters.update(|stats| stats.midway_reset += 1);
                self.send(!of_host, &first);
                self.send(of_host, &second);
                if let Some(Line { left_out }) = self.lines.next(now) {
                    let (one, other) = (first.to, second.to);
                    info!(
                        %one,
                        %other,
                        left_out,
                        "a connection that another pepd has split, or this one before it lost power, is reset at both ends"
                    );
                }
            }
        }
    }

    fn send(&self, to_host: bool, reset: &Reset) {
        let sender = if to_host {
            &self.to_hosts
        } else {
            &self.to_link
        };
        if let Err(err) = sender.send(&reset.packet(), reset.to.ip()) {
            // The end repeats its segment, and is judged again.
            debug!(%err, to = %reset.to, "cannot send a reset");
        }
    }
}
