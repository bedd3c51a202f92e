//! Rules of other programs that interfere with pepd, as `pepd check` reports them: logged when they
//! appear.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pep_core::config::Config;
use pepd_intercept::{Interception, Obstacles, nft};
use pepd_sys::leg::{Clamps, Family};
use tokio::time::timeout;

use crate::diagnose::{self, Followed};

/// Pause between two inspections of all rules, which may be thousands.
const PAUSE: Duration = Duration::from_secs(8);
/// Maximum time that the first inspection may delay the start, or flows taken over.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes of this machine's rules, and findings already logged.
#[derive(Debug)]
pub(super) struct Beside {
    config: Arc<Config>,
    /// Generation of the ruleset, and the policy rules, at the last inspection.
    seen: Option<(u32, Vec<String>)>,
    looked: Option<Instant>,
    /// True if rules may have changed since the last inspection.
    due: bool,
    reported: Arc<Mutex<BTreeSet<String>>>,
    followers: Followers,
    /// True if the last inspection could not read the rules.
    failed: Arc<AtomicBool>,
}

impl Beside {
    pub(super) fn new(config: &Arc<Config>, followers: Followers) -> Self {
        Self {
            config: Arc::clone(config),
            seen: None,
            looked: None,
            due: true,
            reported: Arc::default(),
            followers,
            failed: Arc::default(),
        }
    }

    /// Inspects the rules if they have changed; call it every second. They have not if `may_differ`
    /// was false since the last call.
    pub(super) async fn inspect(&mut self, may_differ: bool, interception: &Interception) {
        self.due |= may_differ || self.failed.load(Relaxed);
        if !self.due || self.looked.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let Ok(generation) = nft::generation() else {
            return;
        };
        self.due = false;
        let now = Some((generation, interception.rules_for_hosts_only().await));
        if self.failed.swap(false, Relaxed) || now != self.seen {
            self.seen = now;
            self.looked = Some(Instant::now());
            self.log(false);
        }
    }

    /// Logs new findings about rules; uncertain ones only if `doubtful`.
    pub(super) fn log(&self, doubtful: bool) {
        let (config, reported) = (Arc::clone(&self.config), Arc::clone(&self.reported));
        let (followers, failed) = (self.followers.clone(), Arc::clone(&self.failed));
        drop(tokio::spawn(async move {
            let seen = diagnose::beside(&config, doubtful).await;
            match seen.followed {
                Some(now) => followers.follow(now),
                // The last findings hold until the next inspection.
                None => failed.store(true, Relaxed),
            }
            let found = seen.lines;
            let mut reported = reported.lock();
            // A rule that is removed and returns is logged again.
            reported.retain(|line| found.contains(line));
            for line in found {
                if reported.insert(line.clone()) {
                    tracing::warn!("rule of another program: {line}");
                }
            }
        }));
    }
}

/// Parts that follow rules of other programs.
#[derive(Debug, Clone, Default)]
pub(super) struct Followers {
    pub(super) clamps: Arc<Clamps>,
    pub(super) obstacles: Arc<Obstacles>,
}

impl Followers {
    /// Applies these rules to the first connections; call it before any is accepted.
    pub(super) async fn begin(self, config: Arc<Config>) {
        let seen = timeout(PATIENCE, diagnose::beside(&config, false)).await;
        if let Some(now) = seen.ok().and_then(|seen| seen.followed) {
            self.follow(now);
        }
    }

    fn follow(&self, now: [Followed; 2]) {
        for (family, now) in Family::ALL.into_iter().zip(now) {
            if self.clamps.set(family, now.clamp) {
                log_clamp(family, now.clamp);
            }
            self.obstacles.set(family, now.is_obstacle);
        }
    }
}

fn log_clamp(family: Family, mss: Option<u16>) {
    match mss {
        Some(mss) => tracing::info!(
            "another program clamps the MSS of hosts' SYNs over the link to {mss} bytes: new connections to servers \
             use no larger MSS, {family}"
        ),
        None => tracing::info!(
            "no program clamps the MSS of hosts' SYNs any more: nor does pepd for connections to servers, \
             {family}"
        ),
    }
}
