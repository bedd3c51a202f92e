//! Rules of other programs in pepd's way, as `pepd check` names them: logged when they come.

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
use pepd_intercept::{Interception, nft};
use pepd_sys::leg::{Clamps, Family};
use tokio::time::timeout;

use crate::diagnose;

/// Time between two looks at all rules, which may be thousands.
const PAUSE: Duration = Duration::from_secs(8);
/// Time that the first look may hold up a start, or flows that are taken over.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes of the rules of this machine, and lines that the log has.
#[derive(Debug)]
pub(super) struct Beside {
    config: Arc<Config>,
    /// The ruleset and the policy rules at the last look.
    seen: Option<(u32, Vec<String>)>,
    looked: Option<Instant>,
    told: Arc<Mutex<BTreeSet<String>>>,
    clamps: Arc<Clamps>,
    /// Rules could not be read at the last look.
    failed: Arc<AtomicBool>,
}

impl Beside {
    pub(super) fn new(config: &Arc<Config>, clamps: Arc<Clamps>) -> Self {
        Self {
            config: Arc::clone(config),
            seen: None,
            looked: None,
            told: Arc::default(),
            clamps,
            failed: Arc::default(),
        }
    }

    /// Looks at the rules where they have changed; to be called every second.
    pub(super) async fn inspect(&mut self, interception: &Interception) {
        if self.looked.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let Ok(generation) = nft::generation() else {
            return;
        };
        let now = Some((generation, interception.rules_for_hosts_only().await));
        if self.failed.swap(false, Relaxed) || now != self.seen {
            self.seen = now;
            self.looked = Some(Instant::now());
            self.log(false);
        }
    }

    /// Logs rules that are in the way and that the log does not have; those that only may be where
    /// `doubtful`.
    pub(super) fn log(&self, doubtful: bool) {
        let (config, told) = (Arc::clone(&self.config), Arc::clone(&self.told));
        let (clamps, failed) = (Arc::clone(&self.clamps), Arc::clone(&self.failed));
        drop(tokio::spawn(async move {
            let seen = diagnose::beside(&config, doubtful).await;
            match seen.clamps {
                Some(now) => follow(&clamps, now),
                // The last ones hold until the next look.
                None => failed.store(true, Relaxed),
            }
            let found = seen.lines;
            let mut told = told.lock();
            // A rule that is removed and comes back gets a line again.
            told.retain(|line| found.contains(line));
            for line in found {
                if told.insert(line.clone()) {
                    tracing::warn!("beside pepd, {line}");
                }
            }
        }));
    }
}

/// Gives the first connections what the rules have; to be called before any is accepted.
pub(super) async fn begin(config: Arc<Config>, clamps: Arc<Clamps>) {
    if let Ok(Some(now)) = timeout(PATIENCE, diagnose::clamps(&config)).await {
        follow(&clamps, now);
    }
}

fn follow(clamps: &Clamps, now: [Option<u16>; 2]) {
    for (family, mss) in Family::ALL.into_iter().zip(now) {
        if clamps.set(family, mss) {
            log_clamp(family, mss);
        }
    }
}

fn log_clamp(family: Family, mss: Option<u16>) {
    match mss {
        Some(mss) => tracing::info!(
            "beside pepd, a rule sets the MSS of hosts' SYNs over the link to {mss} bytes: new connections to servers \
             have no more, {family}"
        ),
        None => tracing::info!(
            "beside pepd, no rule lowers the MSS of hosts' SYNs any more: nor is that of connections to servers lowered, \
             {family}"
        ),
    }
}
