//! Keys that were offered to the peer, until it shows that it has them.

use std::time::Duration;

use super::{Arrival, Peer};
use crate::endpoint::{
    Carrier, Limits,
    live::{Generation, Refused},
    terms::Terms,
};

/// Answered initiations of which it is not known whether they were the peer's: more than come in a round trip
/// without cookies.
const PENDING: usize = 32;

/// Offered keys are good for so long: the peer may have a session by them, and its proof be lost in an outage.
const PENDING_LIFE: Duration = Duration::from_secs(3600);

/// Keys that we have offered.
pub(in crate::endpoint) struct Pending {
    pub generation: Generation,
    /// By what they were agreed.
    pub by: Carrier,
    /// The session that goes on, or none.
    pub continues: Option<u64>,
    pub terms: Terms,
}

impl Pending {
    /// Whether these are the first keys of that session.
    pub fn begins(&self, session: u64) -> bool {
        self.continues.is_none() && self.generation.keys.name == session
    }
}

impl Peer {
    /// Keys were offered to the peer.
    pub fn offered(&mut self, pending: Pending) {
        if self.pending.len() == PENDING {
            let needed = |old: &Pending| pending.continues.is_some_and(|id| old.begins(id));
            let oldest = self.pending.iter().position(|old| !needed(old));
            oldest.map(|at| self.pending.remove(at));
        }
        self.pending.push_back(pending);
        self.answers_rejected = self.answers_rejected.saturating_add(1);
        self.on_initiations();
    }

    /// Takes the peer's word that it has the keys which we have offered.
    pub fn on_confirmation(
        &mut self,
        arrival: &Arrival,
        header: usize,
        datagram: &mut [u8],
        limits: &Limits,
    ) -> Result<(), Refused> {
        let at = self.pending_at(arrival.index).ok_or(Refused::Repeated)?;
        let keys = &self.pending[at].generation.keys;
        if !keys.is_confirmation(header, datagram) {
            return Err(Refused::Forged);
        }
        self.promote(arrival.now, at)?;
        if let Some(live) = &mut self.live {
            live.heard = arrival.now;
        }
        if self.says_where(arrival) {
            self.move_to(arrival.now, arrival.from, limits);
        }
        self.release(arrival.from);
        Ok(())
    }

    pub(super) fn pending_at(&self, index: u32) -> Option<usize> {
        let mut pending = self.pending.iter();
        pending.position(|pending| pending.generation.index == index)
    }

    /// The peer has the keys that we have offered: it is there, and wants them.
    pub(super) fn promote(&mut self, now: Duration, at: usize) -> Result<(), Refused> {
        let mut pending = self.pending.remove(at).ok_or(Refused::Forged)?;
        let offered = pending.generation.since;
        if offered + PENDING_LIFE < now {
            return Err(Refused::Repeated);
        }
        pending.generation.confirmed = true;
        if !self.crosses(offered) {
            // Whoever has these keys has forgotten what was offered before; perhaps not what was offered since.
            let mut before: Vec<_> = self.pending.drain(..at).collect();
            let rtt = now.saturating_sub(offered);
            if let Some(id) = pending.continues.filter(|id| !self.has(*id))
                && let Some(first) = before.iter().position(|offer| offer.begins(id))
            {
                let mut first = before.swap_remove(first);
                (first.generation.since, first.generation.confirmed) = (now, true);
                self.install(first, rtt, false);
            }
            pending.generation.since = now;
            return if self.install(pending, rtt, false) {
                Ok(())
            } else {
                Err(Refused::Repeated)
            };
        }
        match &mut self.live {
            Some(live) if pending.continues == Some(live.id) => live.accept(pending.generation),
            _ => return Err(Refused::Repeated),
        }
        Ok(())
    }

    /// Both ends have initiated before they heard of each other: keys that were offered before ours were agreed give
    /// way if ours is the greater key.
    fn crosses(&self, offered: Duration) -> bool {
        let Some(live) = &self.live else {
            return false;
        };
        let keys = live.current();
        self.greater && keys.ours && !keys.confirmed && offered <= keys.since
    }
}
