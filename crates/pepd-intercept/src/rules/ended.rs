//! Rules that drop late packets of connections that pepd has reset.
//!
//! A reset ends a leg at once, and with it the socket that would take packets still under way. The
//! kernel would forward them: out of a tunnel in clear text, or into the next connection from that
//! port.
//!
//! ```text
//!   host ---- data, under way ---->  no socket: dropped      <---- data, under way ---- server
//!        <--- RST of the client leg  remembers               RST of the server leg ---->
//! ```

use super::{Rule, Term, Way, build::Builder, rule};

/// Comment of rules for late packets.
const LATE: &str = "late, of a connection that pepd has reset";

impl Builder<'_> {
    /// Returns rules for packets that pepd sends.
    pub(super) fn remembers_ended(&self) -> impl Iterator<Item = Rule> {
        let legs = [
            (self.marks.client_leg(), Way::ToHost),
            (self.marks.server_leg(), Way::ToServer),
        ];
        legs.into_iter().flat_map(|(mark, way)| {
            let families = self.filtered().iter();
            families.map(move |&family| {
                let ends = [Term::Mark(mark), Term::Rst, Term::Ended(way, family)];
                rule("pepd resets a connection", ends)
            })
        })
    }

    /// Returns rules for SYNs of hosts.
    pub(super) fn begins(&self) -> impl Iterator<Item = Rule> {
        self.next(Some(Term::From(self.lan_names())), Way::ToServer)
    }

    /// Returns rules for SYNs of this machine, of pepd and of any other program: its addresses have
    /// few ports, and the kernel soon takes one again.
    pub(super) fn calls(&self) -> impl Iterator<Item = Rule> {
        self.next(None, Way::ToServer)
    }

    /// Returns rules for SYNs by the link, such as a peer's that is reached by TCP.
    pub(super) fn is_called(&self) -> impl Iterator<Item = Rule> {
        self.next(None, Way::ToHost)
    }

    fn next(&self, of: Option<Term>, way: Way) -> impl Iterator<Item = Rule> {
        self.filtered().iter().map(move |&family| {
            let begins = [Term::Syn, Term::Begins(way, family)];
            let terms = of.clone().into_iter().chain(begins);
            rule("the next from its port", terms.collect::<Vec<_>>())
        })
    }

    /// Returns rules for packets that no socket takes.
    pub(super) fn drops_late(&self, way: Way) -> impl Iterator<Item = Rule> {
        self.filtered()
            .iter()
            .map(move |&family| rule(LATE, [Term::Midway, Term::IsEnded(way, family), Term::Drop]))
    }
}
