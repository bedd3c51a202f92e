//! SYNs that meet rules of other programs in the forward hook only where this machine forwards
//! (`forward = "auto"`).

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use pep_core::{
    config::{Config, Forward},
    site::SiteId,
};
use pepd_sys::leg::Family;

use super::{
    InterceptError, Interception, cannot,
    rules::{self, Rule},
    setup,
};

/// Families of which SYNs behind rules in the forward hook would not reach a listener, because of
/// rules of other programs.
#[derive(Debug, Default)]
pub struct Obstacles([AtomicBool; 2]);

impl Obstacles {
    /// Sets whether there is an obstacle for a family.
    pub fn set(&self, family: Family, is_there: bool) {
        self.of(family).store(is_there, Relaxed);
    }

    fn of(&self, family: Family) -> &AtomicBool {
        match family {
            Family::V4 => &self.0[0],
            Family::V6 => &self.0[1],
        }
    }
}

/// Interfaces whose SYNs of a family meet no rules in the forward hook.
type Unforwarded = BTreeSet<(String, Family)>;

/// State of the table that depends on whether this machine forwards.
#[derive(Debug)]
pub(super) struct Forwarding {
    lans: Vec<String>,
    /// Sites whose SYNs meet these rules.
    sites: Vec<SiteId>,
    /// True if pepd cannot take SYNs behind these rules.
    is_impossible: bool,
    obstacles: Arc<Obstacles>,
    unforwarded: Unforwarded,
}

impl Forwarding {
    /// Returns `None` if the state of this machine does not matter.
    pub(super) fn new(config: &Config, obstacles: Arc<Obstacles>) -> Option<Self> {
        let sites = config.sites.iter();
        let asked = sites.filter(|(_, site)| config.asks_forward(site));
        let lans = config.intercept.lan.iter().map(ToString::to_string);
        (config.obeys_forward() && config.intercept.forward == Forward::Auto).then(|| Self {
            lans: lans.collect(),
            sites: asked.map(|(id, _)| id).collect(),
            is_impossible: false,
            obstacles,
            unforwarded: Unforwarded::new(),
        })
    }

    fn now(&self) -> Unforwarded {
        let all = self.lans.iter();
        let all = all.flat_map(|lan| Family::ALL.map(|family| (lan.clone(), family)));
        let misses = |(lan, family): &(String, Family)| {
            self.is_impossible
                || self.obstacles.of(*family).load(Relaxed)
                || !setup::forwards(lan, *family)
        };
        all.filter(misses).collect()
    }

    fn chains(&self, unforwarded: &Unforwarded) -> Vec<(String, Vec<Rule>)> {
        let sites = self.sites.iter().map(|&id| {
            let rules = rules::unforwarded(id, unforwarded);
            (rules::unforwarded_chain(id), rules)
        });
        sites.collect()
    }
}

impl Interception {
    /// Accelerates connections past rules of other programs from now on, because of an error; or
    /// returns it, if the configuration wants them obeyed or something else needs what is missing.
    pub(super) fn ignore_forward(
        &mut self,
        is_needed: bool,
        why: InterceptError,
    ) -> Result<(), InterceptError> {
        let Some(forwarding) = self.forwarding.as_mut().filter(|_| !is_needed) else {
            return Err(why);
        };
        forwarding.is_impossible = true;
        let error = &why as &dyn std::error::Error;
        tracing::warn!(error, "{IGNORED}");
        Ok(())
    }

    /// Returns true if what this machine forwards has changed, of which the kernel
    /// does not notify.
    pub(super) fn forwards_other(&self) -> bool {
        let forwarding = self.forwarding.as_ref();
        forwarding.is_some_and(|forwarding| forwarding.now() != forwarding.unforwarded)
    }

    /// Updates the table with changes of forwarding since the last call.
    pub(super) async fn look_at_forwarding(&mut self) -> Result<(), InterceptError> {
        let Some(forwarding) = &self.forwarding else {
            return Ok(());
        };
        let now = forwarding.now();
        if now == forwarding.unforwarded {
            return Ok(());
        }
        self.set_unforwarded(forwarding.chains(&now)).await?;
        if !forwarding.is_impossible {
            log(&forwarding.unforwarded, &now);
        }
        self.forwarding = self.forwarding.take().map(|before| Forwarding {
            unforwarded: now,
            ..before
        });
        Ok(())
    }

    /// Restores this part of a table that has been reinstalled.
    pub(super) async fn put_back_forwarding(&self) -> Result<(), InterceptError> {
        match &self.forwarding {
            Some(forwarding) => {
                let chains = forwarding.chains(&forwarding.unforwarded);
                self.set_unforwarded(chains).await
            }
            None => Ok(()),
        }
    }

    async fn set_unforwarded(
        &self,
        chains: Vec<(String, Vec<Rule>)>,
    ) -> Result<(), InterceptError> {
        if !self.ruleset.asks() {
            return Ok(());
        }
        let applied = self.filter.set_chains(&chains).await;
        applied.map_err(cannot("follow what this machine forwards"))
    }
}

/// Consequence of a lack.
const IGNORED: &str =
    "rules of other programs in the hook `forward` do not hold for accelerated connections";

/// Logs interfaces with hosts of a family that meet such rules no more, or again.
fn log(before: &Unforwarded, now: &Unforwarded) {
    let list = |some: &Unforwarded, others: &Unforwarded| {
        let only = some.difference(others);
        let served = only.filter(|(lan, family)| setup::has_hosts(lan, *family));
        let names: Vec<_> = served
            .map(|(lan, family)| format!("{family} of {lan}"))
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(off) = list(now, before) {
        tracing::warn!(
            hosts = %off,
            "this machine does not forward their packets, or rules of another program drop SYNs out of pepd's TUN: {IGNORED}"
        );
    }
    if let Some(on) = list(before, now) {
        tracing::info!(hosts = %on, "rules of other programs in the hook `forward` hold for their connections again");
    }
}
