//! SYNs for which the set of recent ones has no room: the answer to a SYN cookie would not match.

use pep_core::site::{Mode, Site, SiteId};

use super::{Counter, Rule, Term, build::Builder, rule};

impl Builder<'_> {
    /// Returns rules for SYNs of a site that could not be remembered, or for which there is no
    /// listener.
    pub(super) fn beyond_recent(&self, id: SiteId, site: &Site) -> Vec<Rule> {
        let full = |terms: &[Term]| rule("set of recent SYNs is full", terms);
        let passes = [Term::Syn, Term::Count(Counter::PassedRecent), Term::Accept];
        let drops = |counter| [Term::Syn, Term::Count(counter), Term::Drop];
        match (site.mode, self.asks(site)) {
            // The host repeats one out of a TUN, or to a tunnel.
            (Mode::Tunnel, true) => vec![full(&drops(Counter::DroppedRate))],
            (_, true) => vec![full(&drops(Counter::PassedRecent))],
            (Mode::Tunnel, false) => {
                let port = self.config.listen_port(id);
                let families = self.features.families().iter();
                let waits = families.map(|&family| {
                    let [syn, counted, drop] = drops(Counter::DroppedRate);
                    // Without a listener no pepd runs.
                    full(&[syn, Term::Tproxy(family, port), counted, drop])
                });
                waits.chain([full(&passes)]).collect()
            }
            (_, false) => vec![full(&passes)],
        }
    }
}
