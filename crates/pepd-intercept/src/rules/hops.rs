//! Rules for routes with several next hops, of which the link is one.

use std::collections::BTreeSet;

use super::{
    Chain, Family, OTHER_ROUTE, Rule, Ruleset, Term, build::Builder, chain, marks::KEPT_MARKS, rule,
};

/// Chains of rules that ask by which interface a split connection would leave.
const JUDGING: [&str; 2] = [OTHER_ROUTE, KEPT_MARKS];

/// Name of the chain of SYNs of server legs.
const LEAVING: &str = "leaving";

impl Builder<'_> {
    /// Returns the link's interface, if rules can also tell by which interface server legs leave.
    pub(super) fn judged_link(&self) -> Option<&str> {
        self.link_alone().filter(|_| self.features.recent)
    }

    /// Returns the families for which they tell.
    pub(super) fn off_link(&self) -> &'static [Family] {
        match self.judged_link() {
            Some(_) => self.features.families(),
            None => &[],
        }
    }

    /// Returns the rule for SYNs of server legs, and the chain to which it leads: empty until a
    /// route has several next hops.
    pub(super) fn leaving(&self) -> Option<(Rule, Chain)> {
        self.judged_link()?;
        let jump = Term::Jump(LEAVING.to_owned());
        let leg = Term::Mark(self.marks.server_leg());
        let leaves = rule("a SYN of pepd leaves: by the link?", [leg, Term::Syn, jump]);
        Some((leaves, chain(LEAVING, None, Vec::new())))
    }
}

impl Ruleset {
    /// Returns rules that note by which interface a SYN of a server leg leaves.
    fn noting(&self) -> Vec<Rule> {
        let link: Vec<_> = self.judged_link.iter().cloned().collect();
        let families = self.off_link.iter().copied();
        let other = families.clone().map(|family| {
            let other = [Term::NotTo(link.clone()), Term::OffLink(family)];
            rule("by another interface", other)
        });
        let again = families.filter(|_| self.forgets()).map(|family| {
            let again = [Term::To(link.clone()), Term::OnLink(family)];
            rule("by the link, unlike an earlier one", again)
        });
        other.chain(again).collect()
    }

    /// Returns true if rules can remove elements of sets.
    fn forgets(&self) -> bool {
        let rules = self.chains.iter().flat_map(|chain| &chain.rules);
        let mut terms = rules.flat_map(|rule| &rule.terms);
        terms.any(|term| matches!(term, Term::Forget(_)))
    }

    /// Sets the interfaces by which connections may cross the link, for split sites. Returns the
    /// chains that are different then.
    pub(crate) fn set_hops(&mut self, interfaces: &BTreeSet<String>) -> Vec<(String, Vec<Rule>)> {
        let interfaces: Vec<_> = interfaces.iter().cloned().collect();
        let noting = match interfaces.len() {
            0 | 1 => Vec::new(),
            _ => self.noting(),
        };
        let mut changed = Vec::new();
        if let Some(leaving) = self.chains.iter_mut().find(|chain| chain.name == LEAVING)
            && leaving.rules != noting
        {
            leaving.rules = noting;
            changed.push((leaving.name.clone(), leaving.rules.clone()));
        }
        let chains = self.chains.iter_mut();
        for chain in chains.filter(|chain| JUDGING.contains(&chain.name.as_str())) {
            let before = chain.rules.clone();
            let rules = chain.rules.iter_mut();
            for term in rules.flat_map(|rule| &mut rule.terms) {
                if let Term::RoutedByOther(names) = term {
                    names.clone_from(&interfaces);
                }
            }
            if chain.rules != before {
                changed.push((chain.name.clone(), chain.rules.clone()));
            }
        }
        changed
    }
}
