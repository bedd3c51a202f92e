//! Protection of pepd's marks from rules of other programs, and marks of other programs that server
//! legs copy.

use super::{Chain, Counter, Family, Hook, Rule, Term, build::Builder, chain, rule};

impl Builder<'_> {
    /// Returns the families for whose SYNs pepd keeps the marks of other programs.
    pub(super) fn marked(&self) -> &'static [Family] {
        if self.features.marks && self.features.tags {
            self.features.families()
        } else {
            &[]
        }
    }

    /// Returns the tag of packets that will get this mark.
    pub(super) fn tag(&self, mark: u32) -> Option<Term> {
        let number = self.marks.number(mark);
        self.features.tags.then_some(Term::Tag(number))
    }

    /// Returns the mark that stands for "none" among tags: no incoming packet has it.
    pub(super) fn no_mark(&self) -> u32 {
        self.marks.client_leg()
    }

    /// Returns terms by which reverse path filters of other programs take a packet's source to be
    /// behind the TUN of this number, out of which it came. Empty if the mark could not be removed
    /// afterwards.
    pub(super) fn behind_tun(&self, number: usize) -> Vec<Term> {
        let mark = Term::SetMark(self.marks.hold(number));
        let tag = self.tag(self.no_mark());
        tag.into_iter()
            .flat_map(|tag| [mark.clone(), tag])
            .collect()
    }

    /// Returns terms that route a packet into the TUN of this number, if a route into it exists.
    ///
    /// The chain `marks_again` sets the mark itself: otherwise reverse path filters, of the kernel
    /// and of other programs, would look for the packet's source behind the TUN.
    pub(super) fn route_into_tun(&self, number: usize, tun: &str) -> Vec<Term> {
        let mut terms = vec![Term::SetMark(self.marks.hold(number))];
        if self.features.fib {
            terms.push(Term::RoutedTo(tun.to_owned()));
        }
        let tag = self.tag(self.marks.hold(number)).into_iter();
        terms.extend(tag.flat_map(|tag| [Term::SetMark(0), tag]));
        terms
    }

    /// Returns the chain at the hook behind the rules of all other programs.
    pub(super) fn marks_chain(&self) -> Option<Chain> {
        let again = |tag, mark, comment: &str| {
            let tagged = Term::Tagged(self.marks.number(tag));
            rule(comment, [tagged, Term::SetMark(mark)])
        };
        let local = self.marks.local();
        let local = again(local, local, "to pepd, despite marks of other programs");
        let tuns = self.tun_marks();
        let tuns = tuns.map(|mark| again(mark, mark, "into a TUN, past reverse path filters"));
        let clear = again(self.no_mark(), 0, "out of a TUN, past reverse path filters");
        let kept = self.to_kept_marks();
        let rules = kept.into_iter().chain([local, clear]).chain(tuns).collect();
        let hook = Some(Hook::PreroutingLast);
        self.features
            .tags
            .then(|| chain("marks_again", hook, rules))
    }

    /// Returns the marks that lead into TUNs.
    pub(super) fn tun_marks(&self) -> impl Iterator<Item = u32> {
        let tuns = self.lans.len() + self.lanes.len();
        let has_tun = |number: &usize| match self.lans.get(*number) {
            Some(lan) => lan.tun.is_some(),
            None => true,
        };
        let tuns = (0..tuns).filter(has_tun);
        tuns.map(|number| self.marks.hold(number))
    }

    /// Returns the chain for SYNs that pass. The ACK that follows is for the server. If pepd took
    /// an earlier SYN from the same port, that ACK would look like the answer to a SYN cookie.
    pub(super) fn passed_chain(&self) -> Option<Chain> {
        let asked = self.obeys().then(|| self.no_mark());
        let taken = [self.marks.local()].into_iter().chain(self.tun_marks());
        let taken = taken
            .chain(asked)
            .filter(|_| self.features.tags)
            .map(|mark| {
                let tagged = Term::Tagged(self.marks.number(mark));
                rule("pepd takes it", [tagged, Term::Accept])
            });
        let forgets = self.forgotten().iter().map(|&family| {
            let from = Term::From(self.lan_names());
            // Not up front: until the kernel collects it, a deleted entry takes room in the set.
            let terms = [from, Term::Syn, Term::Mark(0), Term::Forget(family)];
            rule("passes: an earlier SYN from its port is not recent", terms)
        });
        let rules = taken.chain(forgets).collect();
        let hook = Some(Hook::PreroutingRawNext);
        let is_empty = self.forgotten().is_empty();
        (!is_empty).then(|| chain("passed_syns", hook, rules))
    }

    /// Returns jumps to [`KEPT_MARKS`] for the SYNs that pepd takes.
    fn to_kept_marks(&self) -> Vec<Rule> {
        let lan = Term::From(self.lan_names());
        let holds = self.lans.iter().enumerate();
        let holds = holds.filter(|(_, lan)| lan.tun.is_some());
        let holds = holds.map(|(number, _)| self.marks.hold(number));
        let asked = self.obeys().then(|| self.no_mark());
        let taken = [self.marks.local()].into_iter().chain(holds).chain(asked);
        let jump = |mark: u32| {
            let tagged = Term::Tagged(self.marks.number(mark));
            let jump = Term::Jump(KEPT_MARKS.to_owned());
            let terms = [tagged, lan.clone(), Term::Syn, jump];
            rule(
                "a SYN that pepd takes, perhaps with another program's mark",
                terms,
            )
        };
        let is_empty = self.marked().is_empty();
        taken.filter(|_| !is_empty).map(jump).collect()
    }

    /// Returns the chain that keeps marks of other programs for server legs. In pepd's own bits it
    /// keeps a flag: true if the route with that mark leads by the link.
    pub(super) fn kept_marks(&self) -> Option<Chain> {
        let keep = |comment: &str, conditions: Vec<Term>| {
            let rules = self.marked().iter().map(|&family| {
                let keep = [Term::Of(family), Term::KeepMark(family), Term::Return];
                rule(comment, [&conditions[..], &keep].concat())
            });
            rules.collect::<Vec<_>>()
        };
        let mut rules = Vec::new();
        if self.features.forget {
            // An update does not replace the value of an existing key.
            rules.extend(self.marked().iter().map(|&family| {
                let forget = [Term::Of(family), Term::ForgetMark(family)];
                rule(
                    "delete the mark of an earlier SYN with these addresses",
                    forget,
                )
            }));
        }
        rules.push(rule("no mark to keep", [Term::NoOtherMark, Term::Return]));
        if let Some(link) = self.link_alone() {
            let beside = vec![
                // As the server leg will be routed.
                Term::SetMark(self.marks.server_leg()),
                Term::RoutedByOther(vec![link.to_owned()]),
                Term::SetMark(self.marks.passed()),
            ];
            rules.extend(keep(
                "with that mark the route does not lead by the link",
                beside,
            ));
        }
        rules.extend(keep(
            "the server leg gets the same mark",
            vec![Term::SetMark(0)],
        ));
        // Without its mark the server leg might take another path.
        let full = [Term::Count(Counter::Unkept), Term::Drop];
        rules.push(rule("map is full: the host repeats its SYN", full));
        let is_empty = self.marked().is_empty();
        (!is_empty).then(|| chain(KEPT_MARKS, None, rules))
    }
}

/// Name of the chain for SYNs with marks of other programs.
pub(super) const KEPT_MARKS: &str = "kept_marks";
