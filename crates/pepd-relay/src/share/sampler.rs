//! What the flows have sent, and the level that follows.

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

/// While nothing moves, which may be for hours, flows are looked at less and less often, down to this.
const INTERVAL_STUCK: Duration = Duration::from_secs(1);

/// The task that sets the pace of all flows that share the link. It sleeps while there is one at most.
#[derive(Debug)]
pub struct Sampler {
    link: Arc<SharedLink>,
    level: Level,
    flows: Vec<Watched>,
    sampled: Instant,
}

/// A flow that is listed.
#[derive(Debug)]
struct Watched {
    sender: Arc<Sender>,
    sharer: Sharer,
    /// Its rate cannot be told yet.
    new: bool,
    /// Its socket as it was seen last.
    seen: Option<Progress>,
}

impl AsMut<Sharer> for Watched {
    fn as_mut(&mut self) -> &mut Sharer {
        &mut self.sharer
    }
}

impl Sampler {
    /// Of this link, for which there should be no other.
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

    /// Whoever is left has the link for itself, and is not looked at until somebody comes.
    fn rest(&mut self) {
        self.admit_newcomers();
        self.level = Level::new(self.link.rate);
        for flow in &mut self.flows {
            flow.sharer = Sharer::default();
            (flow.new, flow.seen) = (true, None);
        }
        self.publish();
    }

    /// Whether anybody has sent anything.
    fn sample(&mut self) -> bool {
        self.admit_newcomers();
        let now = Instant::now();
        let elapsed = now - self.sampled;
        self.sampled = now;
        let before = self.flows.len();
        let mut moved = false;
        self.flows.retain_mut(|flow| match flow.look() {
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
            // The burst with which a flow begins is not paced, but counts.
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
    /// What the flow has done since the last time; `None` when it is done and no longer listed.
    fn look(&mut self) -> Option<Usage> {
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

    /// `None` when the flow has ended.
    fn progress(&self) -> Option<Progress> {
        let leg = self.sender.leg.upgrade()?;
        let progress: io::Result<_> = socket::progress(leg.as_fd());
        progress.ok()
    }

    /// Takes the sender from the list, unless it has sent something in the meantime. Either it sees that it is
    /// no longer listed, or we see what it has sent.
    fn leaves(&self, last: Progress) -> bool {
        self.sender.listed.store(false, SeqCst);
        if self.progress().is_none_or(|now| now == last) {
            return true;
        }
        // When it has seen it, it is among the newcomers, and no longer ours.
        self.sender.listed.swap(true, SeqCst)
    }
}
