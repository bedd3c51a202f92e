//! Bypass or block of new flows while redirected SYNs do not arrive (`on_interception_loss`), and
//! refusal of those to hosts that the peer of a tunnel does not reach.

use std::collections::{BTreeMap, BTreeSet};

use pep_core::{config::Config, site::SiteId};

use super::{
    InterceptError, Interception, cannot,
    filter::FilterError,
    iptables::IptablesError,
    nft::NftError,
    rules::{self, Family, Rule, Term},
};

/// Families whose SYNs do not go to pepd, by site. Sites without any are absent.
pub type Lost = BTreeMap<SiteId, BTreeSet<Family>>;

/// SYNs of sites that do not go to pepd.
#[derive(Debug, Clone, Default)]
pub(super) struct Stops {
    /// Rules for those that do not arrive.
    lost: BTreeMap<SiteId, Vec<Rule>>,
    /// Families whose hosts the peer does not reach, by site.
    unreached: Lost,
    /// True if the kernel cannot reset connections before routing.
    no_reset: bool,
}

impl Stops {
    fn sites(&self) -> impl Iterator<Item = SiteId> {
        self.lost.keys().chain(self.unreached.keys()).copied()
    }

    fn rules(&self, site: SiteId) -> Vec<Rule> {
        let end = if self.no_reset {
            Term::Drop
        } else {
            Term::Reset
        };
        let families = self.unreached.get(&site).into_iter().flatten();
        let mut rules = rules::unreached(families, &end);
        rules.extend(self.lost.get(&site).into_iter().flatten().cloned());
        rules
    }

    fn chain(&self, site: SiteId) -> (String, Vec<Rule>) {
        (rules::lost_chain(site), self.rules(site))
    }
}

impl Interception {
    /// Returns the rules' counters of packets, by name. Those of iptables are of its last listing.
    ///
    /// # Errors
    /// When no descriptors are left, or the table is missing.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>, InterceptError> {
        self.filter.counters().map_err(InterceptError::Ask)
    }

    /// Returns true if [`counters`](Self::counters) are of this moment, once for each listing of
    /// iptables.
    pub fn has_new_counters(&self) -> bool {
        self.filter.take_fresh()
    }

    /// Stops the redirection of SYNs of these families of these sites, and resumes that of all
    /// others.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. The next call retries the rest.
    pub async fn set_lost(&mut self, config: &Config, lost: Lost) -> Result<(), InterceptError> {
        let instead = |site: &SiteId| config.sites[*site].on_interception_loss;
        let rules = lost
            .iter()
            .map(|(site, families)| (*site, rules::lost(families, instead(site))));
        let now = Stops {
            lost: rules.collect(),
            ..self.stops.clone()
        };
        self.set_stops(now).await
    }

    /// Refuses SYNs of these families of these sites from now on, and no others.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. The next call retries the rest.
    pub(super) async fn set_unreached(&mut self, unreached: Lost) -> Result<(), InterceptError> {
        let now = Stops {
            unreached,
            ..self.stops.clone()
        };
        let Err(err) = self.set_stops(now.clone()).await else {
            return Ok(());
        };
        if self.stops.no_reset || !is_refusal(&err) {
            return Err(err);
        }
        // A kernel without nft_reject. Hosts then try another address after a moment.
        let dropping = Stops {
            no_reset: true,
            ..now
        };
        self.set_stops(dropping).await.map_err(|_| err)
    }

    /// Returns true if SYNs of these families were last [refused](Self::set_unreached).
    pub(super) fn refuses(&self, unreached: &Lost) -> bool {
        self.stops.unreached == *unreached
    }

    async fn set_stops(&mut self, now: Stops) -> Result<(), InterceptError> {
        let sites = now.sites().chain(self.stops.sites());
        let sites: BTreeSet<SiteId> = sites.collect();
        let changed = sites
            .into_iter()
            .filter(|site| now.rules(*site) != self.stops.rules(*site));
        let chains: Vec<_> = changed.map(|site| now.chain(site)).collect();
        self.set_lost_chains(&chains).await?;
        self.stops = now;
        Ok(())
    }

    /// Takes connections again that did not reach pepd: an obstacle was removed.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing. They then pass for some minutes more.
    pub async fn forget_filtered(&self) -> Result<(), InterceptError> {
        let forgotten = self.filter.forget_filtered(&self.ruleset.filtered).await;
        forgotten.map_err(cannot("take connections again that did not reach pepd"))
    }

    /// Restores this part of a table that has been reinstalled.
    pub(super) async fn put_back_lost(&self) -> Result<(), InterceptError> {
        let sites: BTreeSet<SiteId> = self.stops.sites().collect();
        let chains: Vec<_> = sites
            .into_iter()
            .map(|site| self.stops.chain(site))
            .collect();
        self.set_lost_chains(&chains).await
    }

    async fn set_lost_chains(&self, chains: &[(String, Vec<Rule>)]) -> Result<(), InterceptError> {
        let applied = self.filter.set_chains(chains).await;
        applied.map_err(cannot("switch the redirection of a site's flows off or on"))
    }
}

/// Returns true if nft, or the kernel, rejects the rules. It may accept them later after any other
/// failure.
fn is_refusal(err: &InterceptError) -> bool {
    let InterceptError::Rules { err, .. } = err else {
        return false;
    };
    // Programs also say that they refuse when they lack these.
    let short = ["Cannot allocate memory", "Too many open files"];
    match err {
        FilterError::Iptables(err) if err.is_locked() => false,
        FilterError::Nft(NftError::Refused(said))
        | FilterError::Iptables(IptablesError::Refused(_, said)) => {
            !short.iter().any(|why| said.contains(why))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use pep_core::site::InterceptionLoss;

    use super::*;

    #[test]
    fn only_rules_that_are_refused_are_replaced() {
        let is_refusal = |err: NftError| is_refusal(&cannot("set")(FilterError::Nft(err)));
        let refused = |said: &str| NftError::Refused(said.to_owned());
        assert!(is_refusal(refused("No such file or directory")));
        assert!(!is_refusal(refused("Cannot allocate memory")));
        assert!(!is_refusal(NftError::Hangs(Duration::from_secs(10))));
        assert!(!is_refusal(NftError::Run(io::Error::other("no processes"))));
    }

    #[test]
    fn what_the_peer_does_not_reach_is_refused_whether_or_not_other_syns_arrive() {
        let (site, v6) = (SiteId(0), BTreeSet::from([Family::V6]));
        let lost = rules::lost(&[Family::V4, Family::V6], InterceptionLoss::Pass);
        let mut stops = Stops {
            lost: BTreeMap::from([(site, lost.clone())]),
            ..Stops::default()
        };
        assert_eq!(stops.rules(site), lost);
        stops.unreached.insert(site, v6);
        let ends = |stops: &Stops| -> Vec<Term> {
            let rules = stops.rules(site);
            rules
                .iter()
                .filter_map(|rule| rule.terms.last().cloned())
                .collect()
        };
        assert_eq!(ends(&stops), [Term::Reset, Term::Accept, Term::Accept]);
        stops.no_reset = true;
        assert_eq!(ends(&stops), [Term::Drop, Term::Accept, Term::Accept]);
        stops.lost.clear();
        assert_eq!(ends(&stops), [Term::Drop]);
        assert_eq!(stops.rules(SiteId(1)), []);
    }
}
