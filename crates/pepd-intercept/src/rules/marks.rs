//! Marks that outlast other programs' rules, and marks of other programs that server legs take over.

use super::{Chain, Counter, Family, Hook, Rule, Term, build::Builder, chain, rule};

impl Builder<'_> {
    /// The families whose SYNs' foreign marks are kept.
    pub(super) fn marked(&self) -> &'static [Family] {
        if self.features.marks && self.features.tags {
            self.features.families()
        } else {
            &[]
        }
    }

    /// The term by which a packet is known as one that will have this mark.
    pub(super) fn tag(&self, mark: u32) -> Option<Term> {
        let number = self.marks.number(mark);
        self.features.tags.then_some(Term::Tag(number))
    }

    /// The mark that stands for none among tags: no packet that comes in has it.
    pub(super) fn no_mark(&self) -> u32 {
        self.marks.client_leg()
    }

    /// Terms by which reverse path filters of other programs take the sender of a packet to be
    /// behind the TUN of this number, out of which the packet comes. Nothing where the mark could
    /// not be taken back.
    pub(super) fn behind_tun(&self, number: usize) -> Vec<Term> {
        let mark = Term::SetMark(self.marks.hold(number));
        let tag = self.tag(self.no_mark());
        tag.into_iter()
            .flat_map(|tag| [mark.clone(), tag])
            .collect()
    }

    /// Terms that have the kernel route a packet into the TUN of this number, if there is a way
    /// into it.
    ///
    /// The mark itself is set by the chain `marks_again`: reverse path filters, of the kernel and
    /// of other programs, would look for the packet's sender behind the TUN.
    pub(super) fn way_into_tun(&self, number: usize, tun: &str) -> Vec<Term> {
        let mut terms = vec![Term::SetMark(self.marks.hold(number))];
        if self.features.fib {
            terms.push(Term::RoutedTo(tun.to_owned()));
        }
        let tag = self.tag(self.marks.hold(number)).into_iter();
        terms.extend(tag.flat_map(|tag| [Term::SetMark(0), tag]));
        terms
    }

    /// The hook at which no other program's rules come any more.
    pub(super) fn marks_chain(&self) -> Option<Chain> {
        let again = |tag, mark, comment: &str| {
            let tagged = Term::Tagged(self.marks.number(tag));
            rule(comment, [tagged, Term::SetMark(mark)])
        };
        let local = self.marks.local();
        let local = again(local, local, "to pepd, whatever mark others have set");
        let tuns = self.lans.len() + self.lanes.len();
        let has_tun = |number: &usize| match self.lans.get(*number) {
            Some(lan) => lan.tun.is_some(),
            None => true,
        };
        let tuns = (0..tuns).filter(has_tun).map(|number| {
            let mark = self.marks.hold(number);
            again(mark, mark, "into a TUN, past reverse path filters")
        });
        let clear = again(self.no_mark(), 0, "out of a TUN, past reverse path filters");
        let kept = self.to_kept_marks();
        let rules = kept.into_iter().chain([local, clear]).chain(tuns).collect();
        let hook = Some(Hook::PreroutingLast);
        self.features
            .tags
            .then(|| chain("marks_again", hook, rules))
    }

    /// Jumps to [`KEPT_MARKS`] of the SYNs that pepd takes.
    fn to_kept_marks(&self) -> Vec<Rule> {
        let lan = Term::From(self.lan_names());
        let holds = self.lans.iter().enumerate();
        let holds = holds.filter(|(_, lan)| lan.tun.is_some());
        let holds = holds.map(|(number, _)| self.marks.hold(number));
        let taken = [self.marks.local()].into_iter().chain(holds);
        let jump = |mark: u32| {
            let tagged = Term::Tagged(self.marks.number(mark));
            let jump = Term::Jump(KEPT_MARKS.to_owned());
            let terms = [lan.clone(), Term::Syn, tagged, jump];
            rule(
                "a SYN that pepd takes, perhaps with another program's mark",
                terms,
            )
        };
        let is_empty = self.marked().is_empty();
        taken.filter(|_| !is_empty).map(jump).collect()
    }

    /// The chain in which marks of other programs are kept for server legs, and with them, in
    /// pepd's own bits, whether the way by that mark leads by the link.
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
            // An update leaves what a map has under a key.
            rules.extend(self.marked().iter().map(|&family| {
                let forget = [Term::Of(family), Term::ForgetMark(family)];
                rule("that of an earlier SYN with the same addresses", forget)
            }));
        }
        rules.push(rule("nothing to keep", [Term::NoOtherMark, Term::Return]));
        if let Some(link) = self.link_alone() {
            let beside = vec![
                // As the server leg will be routed.
                Term::SetMark(self.marks.server_leg()),
                Term::RoutedByOther(link.to_owned()),
                Term::SetMark(self.marks.passed()),
            ];
            rules.extend(keep("by that mark it does not leave by the link", beside));
        }
        rules.extend(keep("the server leg has it, too", vec![Term::SetMark(0)]));
        let full = [Term::Count(Counter::Unkept)];
        rules.push(rule("no room: the server leg has none", full));
        let is_empty = self.marked().is_empty();
        (!is_empty).then(|| chain(KEPT_MARKS, None, rules))
    }
}

/// The chain of SYNs that other programs have marked.
const KEPT_MARKS: &str = "kept_marks";
