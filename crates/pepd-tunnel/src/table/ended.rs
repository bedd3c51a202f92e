//! End codes of recently ended flows of a peer, for a peer that has missed the end because its
//! session was gone.
//!
//! They are published for a successor, too: the peer may ask for them after a crash.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use pep_core::arena::Ending;
use pepd_relay::arena::Arena;
use tunnel::wire::ResetCode;

/// Maximum of remembered flows: more than end while one report is in flight.
const MOST: usize = 4096;

/// End codes of flows, by token.
#[derive(Debug)]
pub(super) struct Ended {
    arena: Arc<Arena>,
    /// Hash of the peer's name.
    peer: u64,
    codes: BTreeMap<u128, ResetCode>,
    order: VecDeque<u128>,
}

impl Ended {
    /// Creates an empty value for no peer.
    pub(super) fn new(arena: &Arc<Arena>) -> Self {
        Self {
            arena: Arc::clone(arena),
            peer: 0,
            codes: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Loads the published codes of a peer, by the [hash](pep_core::arena::name_hash) of its name.
    pub(super) fn for_peer(arena: &Arc<Arena>, peer: u64) -> Self {
        let mut ended = Self {
            peer,
            ..Self::new(arena)
        };
        for Ending { token, how, .. } in arena.endings(peer) {
            if let Some(code) = ResetCode::from_wire(how) {
                ended.note(token, code);
            }
        }
        ended
    }

    pub(super) fn insert(&mut self, token: u128, code: ResetCode) {
        let (peer, how) = (self.peer, code as u8);
        self.arena.publish_ending(&Ending { token, peer, how });
        self.note(token, code);
    }

    fn note(&mut self, token: u128, code: ResetCode) {
        if self.codes.insert(token, code).is_none() {
            self.order.push_back(token);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.codes.remove(&oldest);
        }
    }

    pub(super) fn get(&self, token: u128) -> Option<ResetCode> {
        self.codes.get(&token).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::context;

    #[test]
    fn the_last_ones_are_remembered() {
        let arena = &context(1, 1 << 20).arena;
        let mut ended = Ended::for_peer(arena, 5);
        for token in 0..MOST as u128 + 10 {
            ended.insert(token, ResetCode::Ended);
            ended.insert(token, ResetCode::Host);
        }
        assert_eq!(ended.get(9), None);
        assert_eq!(ended.get(10), Some(ResetCode::Host));
        assert_eq!((ended.codes.len(), ended.order.len()), (MOST, MOST));
    }

    #[test]
    fn a_successor_knows_those_of_the_same_peer() {
        let arena = &context(1, 1 << 20).arena;
        Ended::for_peer(arena, 5).insert(1, ResetCode::Ended);
        Ended::for_peer(arena, 6).insert(2, ResetCode::Host);
        let mut ended = Ended::for_peer(arena, 5);
        assert_eq!((ended.get(1), ended.get(2)), (Some(ResetCode::Ended), None));
        ended.insert(1, ResetCode::Expired);
        assert_eq!(Ended::for_peer(arena, 5).get(1), Some(ResetCode::Expired));
        assert_eq!(Ended::for_peer(arena, 6).get(2), Some(ResetCode::Host));
    }
}
