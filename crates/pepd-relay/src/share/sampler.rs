//! Sampling of the flows' progress, and the level derived from it.

use std::{
    io, mem,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use pep_core::share::{INTERVAL, Level, Sharer, Usage};
use pepd_sys::socket::{self, Progress};
use tokio::time::{Instant, sleep};

use super::{Sender, SharedLink};

/// Maximum sampling interval while nothing moves, possibly for hours.
const INTERVAL_STUCK: Duration = Duration::from_secs(1);

/// Task that sets the pacing rate of all flows that share the link. It sleeps while there are fewer
/// than two.
#[derive(Debug)]
pub struct Sampler {
    link: Arc<SharedLink>,
    level: Level,
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

impl AsMut<Sharer> for Watched {
    fn as_mut(&mut self) -> &mut Sharer {
        &mut self.sharer
    }
}

impl Sampler {
    /// Creates the sampler of a link. Each link has exactly one.
    pub fn new(link: Arc<SharedLink>) -> Self {
        Self {
            level: Level::new(link.rate),
            link,
            flows: Vec::new(),
            sampled: Instant::now(),
        }
    }

    /// Samples for as long as the runtime lives.
    pub async fn run(mut self) {
        let mut pause = INTERVAL;
        loop {
            if !self.link.is_crowded() {
                self.rest();
                self.link.wait_until_crowded().await;
                self.sampled = Instant::now();
            }
            let moved = self.sample();
            pause = if moved {
                INTERVAL
            } else {
                INTERVAL_STUCK.min(2 * pause)
            };
            sleep(pause).await;
        }
    }

    /// Leaves a single remaining flow the whole link, and does not sample until another comes.
    fn rest(&mut self) {
        self.admit_newcomers();
        self.level = Level::new(self.link.rate);
        for flow in &mut self.flows {
            flow.sharer = Sharer::default();
            (flow.new, flow.seen) = (true, None);
        }
        self.publish();
    }

    /// Samples all flows. Returns whether any has sent.
    fn sample(&mut self) -> bool {
        self.admit_newcomers();
        let now = Instant::now();
        let elapsed = now - self.sampled;
        self.sampled = now;
        let before = self.flows.len();
        let mut moved = false;
        self.flows.retain_mut(|flow| match flow.sample() {
            Some(usage) => {
                moved |= usage.new || usage.sent > 0;
                flow.sharer.handle_usage(usage);
                true
            }
            None => false,
        });
        let left = (before - self.flows.len()) as u64;
        self.link.listed.fetch_sub(left, Relaxed);
        self.level.handle_interval(elapsed, &mut self.flows);
        self.publish();
        moved
    }

    fn admit_newcomers(&mut self) {
        let newcomers = self.link.take_newcomers().into_iter();
        self.flows.extend(newcomers.map(|sender| Watched {
            sharer: Sharer::default(),
            new: true,
            // The initial burst of a flow is not paced, but counts.
            seen: sender.begins.swap(false, Relaxed).then(Progress::default),
            sender,
        }));
    }

    fn publish(&self) {
        let level = self.level.get();
        self.link.level.store(level, Relaxed);
        for flow in &self.flows {
            flow.sender.pace_at(level, self.link.rate);
        }
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
        Some(Usage {
            sent: now.packet_bytes_since(&last, self.sender.terms.headers),
            new,
            fresh: now.fresh_bytes() != last.fresh_bytes(),
            backlogged: now.unsent > 0,
        })
    }

    /// Returns the socket's progress; `None` when the flow has ended.
    fn progress(&self) -> Option<Progress> {
        let leg = self.sender.leg.upgrade()?;
        let progress: io::Result<_> = socket::progress(leg.as_fd());
        progress.ok()
    }

    /// Removes the sender from the list, unless it has sent in the meantime. Either it sees that it
    /// is no longer listed, or the sampler sees the bytes sent.
    fn leaves(&self, last: Progress) -> bool {
        self.sender.listed.store(false, SeqCst);
        if self.progress().is_none_or(|now| now == last) {
            return true;
        }
        // If it has seen it, it is among the newcomers and no longer the sampler's.
        self.sender.listed.swap(true, SeqCst)
    }
}
