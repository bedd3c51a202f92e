//! Sampling of the flows' progress, and the limits derived from it.

use std::{
    io, mem,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use pep_core::share::{
    Active, INTERVAL, OtherTraffic, Priority, Sharer, Shares, Transmitted, Usage,
};
use pepd_sys::{
    interface::TransmitCounters,
    socket::{self, Progress},
};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::{Sender, SharedLink};

/// Maximum sampling interval while nothing moves, possibly for hours.
const INTERVAL_STUCK: Duration = Duration::from_secs(1);

/// Task that sets the pacing rate of all flows that share the link. While there is none, it only
/// measures the other traffic, once per second. If that does not count, it sleeps while there are
/// fewer than two flows.
#[derive(Debug)]
pub struct Sampler {
    link: Arc<SharedLink>,
    shares: Shares,
    other: OtherTraffic,
    counters: Option<Counters>,
    flows: Vec<Watched>,
    sampled: Instant,
}

/// Listed flow.
#[derive(Debug)]
struct Watched {
    sender: Arc<Sender>,
    sharer: Sharer,
    /// True while its rate is not known yet.
    new: bool,
    /// Progress of its socket at the last sample.
    seen: Option<Progress>,
}

impl AsRef<Sharer> for Watched {
    fn as_ref(&self) -> &Sharer {
        &self.sharer
    }
}

impl AsMut<Sharer> for Watched {
    fn as_mut(&mut self) -> &mut Sharer {
        &mut self.sharer
    }
}

/// Transmit counters of the link's interface.
#[derive(Debug)]
struct Counters {
    interface: TransmitCounters,
    /// True after a failure that was logged.
    failed: bool,
}

impl Counters {
    fn open(name: &str) -> Option<Self> {
        match TransmitCounters::new(name) {
            Ok(interface) => Some(Self {
                interface,
                failed: false,
            }),
            Err(err) => {
                warn_uncounted(&err);
                None
            }
        }
    }

    /// Returns the counters; `None` while there is no such interface, or they are unreadable.
    fn read(&mut self) -> Option<Transmitted> {
        match self.interface.read() {
            Ok(transmitted) => {
                self.failed = false;
                Some(transmitted)
            }
            Err(err) => {
                let is_gone = err.kind() == io::ErrorKind::NotFound;
                if !is_gone && !mem::replace(&mut self.failed, true) {
                    warn_uncounted(&err);
                }
                None
            }
        }
    }
}

fn warn_uncounted(err: &io::Error) {
    warn!(
        error = %err,
        "cannot read the counters of link.interface: other traffic does not reduce the flows' shares"
    );
}

impl Sampler {
    /// Creates the sampler of a link. Each link has exactly one.
    pub fn new(link: Arc<SharedLink>) -> Self {
        Self {
            shares: Shares::new(link.rate),
            other: OtherTraffic::new(link.rate),
            counters: link.interface.as_deref().and_then(Counters::open),
            link,
            flows: Vec::new(),
            sampled: Instant::now(),
        }
    }

    /// Samples for as long as the runtime lives.
    pub async fn run(mut self) {
        let mut pause = INTERVAL;
        loop {
            if !self.link.is_shared() {
                self.rest().await;
            }
            let moved = self.sample();
            pause = if moved {
                INTERVAL
            } else {
                INTERVAL_STUCK.min(2 * pause)
            };
            // A newcomer's demand is to be known soon, however long nothing has moved.
            if pause == INTERVAL || timeout(pause, self.link.begun.notified()).await.is_ok() {
                sleep(INTERVAL).await;
            }
        }
    }

    /// Waits until flows share the link. Leaves a single one the whole link, if other traffic does
    /// not count; otherwise measures that meanwhile.
    async fn rest(&mut self) {
        let link = Arc::clone(&self.link);
        if self.counters.is_some() {
            while timeout(INTERVAL_STUCK, link.wait_until_shared())
                .await
                .is_err()
            {
                self.sample();
            }
            return;
        }
        self.admit_newcomers();
        self.shares = Shares::new(link.rate);
        for flow in &mut self.flows {
            flow.sharer = Sharer::new(flow.sender.place);
            (flow.new, flow.seen) = (true, None);
            flow.sender.pace_at(link.rate, link.rate);
        }
        self.publish();
        link.wait_until_shared().await;
        self.sampled = Instant::now();
    }

    /// Samples all flows. Returns whether any has sent.
    fn sample(&mut self) -> bool {
        self.admit_newcomers();
        let now = Instant::now();
        let elapsed = now - self.sampled;
        self.sampled = now;
        let mut moved = false;
        self.flows.retain_mut(|flow| match flow.sample() {
            Some(usage) => {
                moved |= usage.new || usage.sent > 0;
                flow.sharer.handle_usage(usage);
                true
            }
            None => {
                self.link.unlist(flow.sender.place);
                false
            }
        });
        if let Some(counters) = &mut self.counters {
            let usages = self.flows.iter().map(|flow| flow.sharer.usage());
            self.other.handle_interval(elapsed, counters.read(), usages);
        }
        self.shares
            .handle_interval(elapsed, self.other.rate(), &mut self.flows);
        self.publish();
        moved
    }

    fn admit_newcomers(&mut self) {
        let newcomers = self.link.take_newcomers().into_iter();
        self.flows.extend(newcomers.map(|sender| {
            let seen = sender.before.lock().take();
            Watched {
                sharer: Sharer::new(sender.place),
                new: true,
                seen,
                sender,
            }
        }));
    }

    /// Sets the pace of all flows that have a limit.
    fn publish(&self) {
        let rate = self.link.rate;
        let mut highest = 0;
        for flow in &self.flows {
            let limit = flow.sharer.limit();
            highest = highest.max(limit);
            if limit > 0 {
                flow.sender.pace_at(limit, rate);
            }
        }
        // Flows restart after an outage with the shares that they had.
        if !self.shares.is_down() {
            let sharers = self.flows.iter().map(|flow| &flow.sharer);
            self.link.newcomers.lock().active = Active::new(rate, sharers);
        }
        for (level, now) in self.link.levels.iter().zip(self.shares.levels()) {
            level.store(now, Relaxed);
        }
        let all = self.shares.levels()[Priority::First as usize];
        let highest = if highest > 0 { highest } else { all };
        self.link.limit.store(highest, Relaxed);
        self.link.other_rate.store(self.other.rate(), Relaxed);
        self.link.other_bytes.store(self.other.total(), Relaxed);
    }
}

impl Watched {
    /// Returns the flow's usage since the last sample; `None` when it is done and no longer listed.
    fn sample(&mut self) -> Option<Usage> {
        let now = self.progress()?;
        let last = self.seen.replace(now).unwrap_or(now);
        let new = mem::take(&mut self.new);
        if !new && last == now && now.is_done() && self.leaves(now) {
            return None;
        }
        let packets = now.packets_since(&last);
        let headers = packets * self.sender.terms.headers;
        Some(Usage {
            sent: now.payload_since(&last) + headers,
            packets,
            headers,
            new,
            fresh: now.fresh_bytes() != last.fresh_bytes(),
            backlogged: now.unsent > 0,
        })
    }

    /// Returns the socket's progress, once also after the flow's end; then `None`.
    fn progress(&self) -> Option<Progress> {
        let Some(leg) = self.sender.leg.upgrade() else {
            return self.sender.last.lock().take();
        };
        let progress: io::Result<_> = socket::progress(leg.as_fd());
        progress.ok()
    }

    /// Removes the sender from the list, unless it has sent in the meantime. Either it sees that it
    /// is no longer listed, or the sampler sees the bytes sent.
    fn leaves(&self, last: Progress) -> bool {
        *self.sender.before.lock() = Some(last);
        self.sender.listed.store(false, SeqCst);
        if self.progress().is_none_or(|now| now == last) {
            return true;
        }
        // If it has seen it, it is among the newcomers and no longer the sampler's.
        self.sender.listed.swap(true, SeqCst)
    }
}
