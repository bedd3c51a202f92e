//! Keys offered to the peer, until it proves that it has them.

use std::time::Duration;

use super::{Arrival, Peer};
use crate::{
    crypto::Mac,
    endpoint::{
        COUNTER_MAX, Carrier, HandshakeError, Limits, Remote,
        live::{Generation, Refused},
        terms::Terms,
    },
    session::Unreached,
};

/// Maximum number of offers without proof from the peer: more than the initiations that it sends
/// within a round trip. No other host makes those with new counters.
const PENDING: usize = 32;

/// Lifetime of offered keys: the peer may have a session with them, and its proof may be lost in an
/// outage.
const PENDING_LIFE: Duration = Duration::from_secs(3600);

/// An initiation and its response, for repetitions.
pub(in crate::endpoint) struct Answered {
    pub mac1: Mac,
    pub response: Vec<u8>,
}

/// Offered keys.
pub(in crate::endpoint) struct Pending {
    pub generation: Generation,
    /// Carrier of the handshake.
    pub by: Carrier,
    /// Remote to which alone the local end's message went; `None` if it went to several. A peer
    /// that proves the keys receives there.
    pub at: Option<Remote>,
    /// Session that continues; `None` for a new one.
    pub continues: Option<u64>,
    pub terms: Terms,
    /// Hosts that the local end does not reach, as it said.
    pub said: Unreached,
    /// `None` if the local end initiated.
    pub answered: Option<Answered>,
}

impl Pending {
    /// Returns true if these are the first keys of that session.
    pub fn begins(&self, session: u64) -> bool {
        self.continues.is_none() && self.generation.keys.name == session
    }
}

impl Peer {
    /// Returns the response to that initiation, if the keys that it offered are still pending. A
    /// copy may overtake the original, whose sender needs the answer. If the copy comes from
    /// another address, proof of the keys no longer tells which of both the peer has.
    pub fn response_to(&mut self, mac1: &Mac, from: Remote) -> Option<Vec<u8>> {
        self.pending.iter_mut().find_map(|offer| {
            let answered = offer.answered.as_ref()?;
            if answered.mac1 != *mac1 {
                return None;
            }
            offer.at = offer.at.filter(|at| *at == from);
            Some(answered.response.clone())
        })
    }

    /// Handles a response that offers nothing: the peer has accepted a later initiation.
    pub fn on_refusal(&mut self, arrival: &Arrival, accepted: u64) {
        if accepted > COUNTER_MAX {
            self.failed(HandshakeError::Counter);
        } else if self.counters.raise(accepted) {
            self.addresses.on_answer(arrival.from.address);
            self.initiations.refused(arrival.now);
        }
    }

    /// Records keys offered to the peer.
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

    /// Handles the peer's confirmation of offered keys.
    pub fn on_confirmation(
        &mut self,
        arrival: &Arrival,
        header: usize,
        datagram: &mut [u8],
        limits: &Limits,
    ) -> Result<(), Refused> {
        let at = self.pending_at(arrival.index).ok_or(Refused::Repeated)?;
        let pending = &self.pending[at];
        let offered_at = pending.at;
        let keys = &pending.generation.keys;
        if !keys.is_confirmation(header, datagram) {
            return Err(Refused::Forged);
        }
        self.promote(arrival.now, at)?;
        offered_at.into_iter().for_each(|at| self.paths.prove(at));
        if let Some(live) = &mut self.live {
            live.heard = arrival.now;
        }
        if self.says_where(arrival) {
            self.move_to(arrival.now, arrival.from, limits);
        }
        self.paths.on_received(arrival.from, datagram.len());
        self.release(arrival.from);
        Ok(())
    }

    pub(super) fn pending_at(&self, index: u32) -> Option<usize> {
        let mut pending = self.pending.iter();
        pending.position(|pending| pending.generation.index == index)
    }

    /// Installs offered keys that the peer has proved to have.
    pub(super) fn promote(&mut self, now: Duration, at: usize) -> Result<(), Refused> {
        let mut pending = self.pending.remove(at).ok_or(Refused::Forged)?;
        let offered = pending.generation.since;
        if offered + PENDING_LIFE < now {
            return Err(Refused::Repeated);
        }
        pending.generation.confirmed = true;
        if !self.crosses(offered) {
            // A peer with these keys has discarded earlier offers, but possibly not later ones.
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

    /// Returns true if both ends initiated before hearing of each other. Keys offered before the
    /// local end's own were agreed give way if the local key is the larger one.
    fn crosses(&self, offered: Duration) -> bool {
        let Some(live) = &self.live else {
            return false;
        };
        let keys = live.current();
        self.greater && keys.ours && !keys.confirmed && offered <= keys.since
    }
}
