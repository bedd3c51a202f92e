//! Rules that notice when rules of other programs drop packets on their way to pepd, and let later
//! connections of that kind pass.
//!
//! What pepd takes goes through the hook `input`, where operators close ports of this machine, and
//! ban addresses. They do not mean connections that this machine forwards.
//!
//! A SYN, its answer and the ACK that ends a handshake are retransmitted if they do not arrive:
//!
//! ```text
//!   prerouting   noted before?  --> drop by others, or not --> end of input: forget the note
//!                yes: the first one has not arrived
//!
//!   output       the same for SYNs of server legs, up to source NAT, which changes them: counted
//! ```
//!
//! Several of one burst may pass these rules before the first arrives. So only those count that
//! follow half a second after the one before.

use pep_core::site::{InterceptionLoss, Mode, Site};

use super::{
    Chain, Counter, Family, Filtered, Hook, Rule, Term, build::Builder, chain, rule,
    state::unless_open,
};

/// Name of the chain that lets connections pass whose packets do not reach pepd.
const FILTERED: &str = "filtered";

/// Name of the chain of SYNs that go to pepd.
const REPEATED: &str = "repeated";

/// Name of the chain of SYN-ACKs of servers that pepd has connected to.
const ANSWERED: &str = "answered";

/// Name of the chain of SYNs of server legs.
const CONNECTING: &str = "connecting";

/// Name of the chain of such SYNs that no rule has dropped.
const SENT: &str = "sent_syns";

const CONNECTS: Term = Term::Count(Counter::Connecting);

/// Comment of rules for retransmitted packets.
const AGAIN: &str = "retransmitted: the first one has not arrived";

impl Builder<'_> {
    /// Returns the families for which such connections are remembered.
    pub(super) fn filtered(&self) -> &'static [Family] {
        self.forgotten()
    }

    /// Returns the chains that other chains jump to.
    pub(super) fn filtered_chains(&self) -> Vec<Chain> {
        if self.filtered().is_empty() {
            return Vec::new();
        }
        let families = || self.filtered().iter();
        let passes = families().flat_map(|&family| {
            let pass = |comment: &str, of| {
                let condition = Term::IsFiltered(of, family);
                let pass = [
                    condition,
                    Term::Count(Counter::PassedFiltered),
                    Term::Accept,
                ];
                rule(comment, pass)
            };
            [
                pass(
                    "packets of this host to this port did not arrive",
                    Filtered::Host,
                ),
                pass("answers of this server did not arrive", Filtered::Server),
            ]
        });
        let noted = families().flat_map(|&family| self.unheard_of_host(family));
        let repeated = self.unproven(false).into_iter().chain(noted);
        let counts = rule("a server answers pepd", [Term::Count(Counter::Answered)]);
        let answers = families().flat_map(|&family| {
            let lost = [Term::Filtered(Filtered::Server, family)];
            unheard(&lost, family)
        });
        let unproven = self.unproven(true);
        let answered = [counts].into_iter().chain(unproven).chain(answers);
        let counts = rule("pepd connects to a server", [CONNECTS]);
        // Told only: rules there may mean pepd's connections (marks), and would not hold otherwise.
        let unsent = Term::Count(Counter::Unsent);
        let legs = families().flat_map(|&family| unheard(std::slice::from_ref(&unsent), family));
        let connecting = [counts].into_iter().chain(legs);
        let sent = families().map(|&family| rule("it leaves", [Term::Heard(family)]));
        vec![
            chain(CONNECTING, None, connecting.collect()),
            chain(SENT, None, sent.collect()),
            chain(FILTERED, None, unless_open(passes.collect())),
            chain(REPEATED, None, repeated.collect()),
            chain(ANSWERED, None, answered.collect()),
        ]
    }

    /// Returns the rule for packets of hosts that belong to a handshake.
    pub(super) fn unheard_of_hosts(&self) -> Option<Rule> {
        let noted = [Term::Ack, Term::Jump(REPEATED.to_owned())];
        let rule = rule("notice hosts whose packets do not reach pepd", noted);
        (!self.filtered().is_empty()).then_some(rule)
    }

    /// Returns rules for packets that the kernel may drop before the hook `input`, and that anyone
    /// may send in the name of others: they say nothing about rules of other programs.
    fn unproven(&self, answers: bool) -> Vec<Rule> {
        let lan = Term::From(self.lan_names());
        // One out of a TUN was checked before it entered that.
        let checked = (!answers).then(|| lan.clone()).into_iter();
        // Without look-ups, all of them.
        let other_source = self.features.fib.then_some(Term::NotBehind);
        let other_source = checked.chain(other_source).chain([Term::Return]);
        let comment = "source is not behind the interface: perhaps forged, and dropped";
        let other_source = rule(comment, other_source.collect::<Vec<_>>());
        let of_host = (answers && !self.may_be_one_armed())
            .then(|| rule("not from a server", [lan, Term::Return]));
        let options = rule(
            "options of IP, for which it may be dropped",
            [Term::IpOptions, Term::Return],
        );
        [of_host, Some(other_source), Some(options)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Returns rules for SYNs that go to pepd, and for ACKs that end a handshake.
    fn unheard_of_host(&self, family: Family) -> [Rule; 3] {
        // This SYN passes at once. One out of a TUN would meet its own server leg.
        let lost = [
            Term::Filtered(Filtered::Host, family),
            Term::Heard(family),
            Term::From(self.lan_names()),
            Term::Syn,
            Term::Jump(FILTERED.to_owned()),
        ];
        unheard(&lost, family)
    }

    /// Returns the condition and the action that let SYNs of a site pass if packets of such
    /// connections do not reach pepd.
    pub(super) fn passes_filtered(&self, site: &Site) -> Option<[Term; 2]> {
        // Nothing leaves a tunnel because of what a host, or a server, may have caused.
        let is_split = site.mode == Mode::Split;
        let may_pass = is_split && site.on_interception_loss == InterceptionLoss::Pass;
        let knows = !self.filtered().is_empty();
        (may_pass && knows).then(|| [Term::Syn, Term::Jump(FILTERED.to_owned())])
    }

    /// Returns the rule that lets SYNs pass before the listener of a site.
    pub(super) fn skips_filtered(&self, site: &Site) -> Option<Rule> {
        // One out of a TUN would meet its own server leg.
        let passes = self
            .passes_filtered(site)
            .filter(|_| !self.takes_syns(site));
        passes.map(|passes| rule("skip connections that do not reach pepd", passes))
    }

    /// Returns the rule for each SYN that goes to the listener of a site. One that passes behind it
    /// is to be [forgotten](Self::taken_back) first: it never reaches pepd.
    pub(super) fn notices(&self, site: &Site) -> Option<Rule> {
        self.passes_filtered(site).map(|_| {
            let repeated = [Term::Syn, Term::Jump(REPEATED.to_owned())];
            rule("notice connections that do not reach pepd", repeated)
        })
    }

    /// Returns rules for SYNs that the listener does not get after all.
    pub(super) fn taken_back(&self, site: &Site) -> impl Iterator<Item = Rule> {
        let noticed = self.notices(site).map(|_| self.filtered());
        let families = noticed.unwrap_or_default().iter();
        families.map(|&family| rule("it passes", [Term::Syn, Term::Heard(family)]))
    }

    /// Returns the rule for SYN-ACKs of servers that pepd has connected to.
    pub(super) fn counts_answer(&self) -> Rule {
        let end = match self.filtered().is_empty() {
            true => Term::Count(Counter::Answered),
            false => Term::Jump(ANSWERED.to_owned()),
        };
        let leg = Term::SocketMark(self.marks.server_leg());
        rule("a server answers pepd", [Term::SynAck, leg, end])
    }

    /// Returns the rule for SYNs of server legs. They have the addresses of the host's SYN.
    pub(super) fn counts_connecting(&self) -> Rule {
        let end = match self.filtered().is_empty() {
            true => CONNECTS,
            false => Term::Jump(CONNECTING.to_owned()),
        };
        let leg = Term::Mark(self.marks.server_leg());
        rule("pepd connects to a server", [leg, Term::Syn, end])
    }

    /// Returns the rule for SYNs of server legs that no rule has dropped.
    pub(super) fn sent(&self) -> Option<Rule> {
        let leg = Term::Mark(self.marks.server_leg());
        let jump = Term::Jump(SENT.to_owned());
        let rule = rule("a SYN of pepd leaves", [leg, Term::Syn, jump]);
        (!self.filtered().is_empty()).then_some(rule)
    }

    /// Returns the chain of packets that no rule has dropped.
    pub(super) fn arrived_chain(&self) -> Option<Chain> {
        let kinds = [Term::Syn, Term::SynAck, Term::Ack].into_iter();
        let rules = kinds.flat_map(|kind| {
            self.filtered().iter().map(move |&family| {
                let heard = [kind.clone(), Term::Heard(family)];
                rule("it reaches pepd", heard)
            })
        });
        let rules: Vec<_> = rules.collect();
        (!rules.is_empty()).then(|| chain("arrived", Some(Hook::InputLast), rules))
    }
}

/// Returns rules that remember a packet; `lost` follows if one before it did not arrive.
fn unheard(lost: &[Term], family: Family) -> [Rule; 3] {
    let again = [Term::IsUnheard(family), Term::NotFresh(family)];
    [
        rule(AGAIN, [&again, lost].concat()),
        rule("for half a second", [Term::Fresh(family)]),
        rule("until it arrives", [Term::Unheard(family)]),
    ]
}

#[cfg(test)]
#[path = "filtered_tests.rs"]
mod tests;
